# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Inputs that nobody has seen: a latent variable model
#
# The data are thirteen chemical measurements of 178 wines, from three cultivars of
# grapes (Forina, Leardi, Armanino & Lanteri 1988). Which few numbers for each wine
# would explain all thirteen? Principal components answer with straight lines. In the
# *Gaussian process latent variable model* (Lawrence 2005; Titsias & Lawrence 2010)
# every measurement is a smooth function of an input that is not known,
#
# $$y_{nd} = f_d(x_n) + \varepsilon_{nd}, \qquad x_n \sim N(0, I),$$
#
# and the input is a sample site like any other: a fit gives it an approximate
# posterior, and a sampler draws it.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoNormal
from sklearn.datasets import load_wine

import svgp_ppl as gp

numpyro.enable_x64()
plt.style.use("tableau-colorblind10")

wines = load_wine()
cultivar, names = wines.target, wines.feature_names
y = (wines.data - wines.data.mean(axis=0)) / wines.data.std(axis=0)
num_rows, num_columns = y.shape

# A tenth of the entries is hidden, to see whether the model finds them.
hidden = np.random.default_rng(0).uniform(size=y.shape) < 0.1
known = ~hidden
print(f"{num_rows} wines, {num_columns} measurements, {hidden.sum()} of them hidden")

# %% [markdown]
# ## The model
#
# There are four latent columns with a lengthscale each; a column that is not needed
# gets a long one. All measurements share the kernel and the inducing inputs, which lie
# among the latent inputs and are fitted. Missing entries are left out by `mask=`.

# %%
NUM_LATENT = 4


def principal_components(y):
    """Scores of the first ones, with variance 1."""
    left, _, _ = np.linalg.svd(y - y.mean(axis=0), full_matrices=False)
    return left[:, :NUM_LATENT] * np.sqrt(len(y))


begin = principal_components(np.where(known, y, 0.0))
z_start = gp.inducing.kmeans(begin, 25)


def gplvm(y, known):
    with numpyro.plate("wine", len(y)):
        x = numpyro.sample("x", dist.Normal().expand([NUM_LATENT]).to_event(1))
    with numpyro.plate("latent", NUM_LATENT):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(1.0, 1.0))
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 0.5))
    scale = numpyro.sample("scale", dist.LogNormal(-0.5, 0.5))
    kernel = gp.kernels.RBF(variance, lengthscale)
    z = numpyro.param("z", z_start)
    f = gp.sparse_gp("f", kernel, z, num_outputs=num_columns)(x)
    likelihood = gp.likelihoods.Gaussian(scale)
    for d in range(num_columns):
        with numpyro.plate(f"row_{d}", len(y)):
            gp.observe(f"y_{d}", likelihood, f[..., d], obs=y[:, d], mask=known[:, d])


# %% [markdown]
# ## The fit
#
# `AutoGaussian` marginalises the values of the processes and leaves the rest to a guide
# of NumPyro: here a normal distribution for each latent input and each hyperparameter.
# Draws of the inputs go through the processes. It starts at the principal components,
# because such a bound has many optima.

# %%
start = init_to_value(values={"x": begin, "lengthscale": jnp.full(NUM_LATENT, 2.0)})


def rest(model):
    return AutoNormal(model, init_loc_fn=start, init_scale=0.1)


fit = gp.fit(
    random.key(0),
    gplvm,
    gp.AutoGaussian(gplvm, rest=rest),
    y,
    known,
    optimizer=optax.adam(optax.cosine_decay_schedule(0.02, 4000)),
    num_steps=4000,
    progress=False,
)
x_mean, x_sd = (np.asarray(fit.params[f"x_auto_{n}"]) for n in ("loc", "scale"))
log_lengthscale = np.asarray(fit.params["lengthscale_auto_loc"])
order = np.argsort(log_lengthscale)
print("lengthscales of the latent columns:", np.exp(log_lengthscale[order]).round(1))

# %% [markdown]
# The figure shows the two latent columns with the shortest lengthscales, next to the
# first two principal components. The model did not see the cultivars, which are the
# colours. Crosses extend one standard deviation of an input in both directions.


# %%
def nearest_is_the_same(x):
    """The share of wines whose nearest neighbour is of the same cultivar."""
    apart = np.linalg.norm(x[:, None] - x, axis=-1)
    np.fill_diagonal(apart, np.inf)
    return np.mean(cultivar == cultivar[np.argmin(apart, axis=1)])


best = x_mean[:, order[:2]]
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for ax, points, title in zip(
    axes, (begin[:, :2], best), ("principal components", "latent inputs")
):
    for label, marker in enumerate("os^"):
        of_label = cultivar == label
        ax.plot(*points[of_label].T, marker, ms=4, label=f"cultivar {label}")
    share = nearest_is_the_same(points)
    ax.set(title=f"{title}: {share:.0%} beside their own", xticks=[], yticks=[])
axes[1].errorbar(
    *best.T, *x_sd[:, order[:2]].T[::-1] / 2, fmt="none", ecolor="0.7", zorder=0
)
axes[0].legend()
plt.show()

# %% [markdown]
# ## What was hidden
#
# The table compares predictions of the entries that the model has not seen, from draws
# of the inputs, with the mean of the column and with as many principal components,
# fitted to the known entries by alternating least squares.


# %%
def by_components(y, known, number, num_rounds=200):
    """Hidden entries from so many principal components."""
    filled = np.where(known, y, 0.0)
    for _ in range(num_rounds):
        u, s, vt = np.linalg.svd(filled, full_matrices=False)
        filled = np.where(known, y, (u[:, :number] * s[:number]) @ vt[:number])
    return filled


def entries_of(posterior, **options):
    """Means and standard deviations of all entries, [178, 13]."""
    found = gp.predict(gplvm, posterior, y, known, **options)
    at = [found[f"y_{d}"] for d in range(num_columns)]
    return [
        np.stack([np.asarray(getattr(p, what)) for p in at], axis=1)
        for what in ("mean", "std")
    ]


def report(name, mean, sd=None):
    """Errors of the hidden entries."""
    error = (y - mean)[hidden]
    words = f"{name}: RMSE {np.sqrt(np.mean(error**2)):.3f}"
    if sd is not None:
        inside = np.mean(np.abs(error) < 1.645 * sd[hidden])
        words += f", {inside:.0%} in their 90 % intervals"
    print(words)


report("fit", *entries_of(fit, key=random.key(1), num_draws=200))
for number in (1, 2, 4):
    report(f"{number} principal components", by_components(y, known, number))
report("means", np.zeros_like(y))

# %% [markdown]
# ## Draws
#
# NUTS takes the same model, with the values of the processes integrated out: 718
# numbers are left. A rotation of the latent inputs changes next to nothing, so what can
# be compared between chains is the distances between wines, in units of the
# lengthscales.

# %%
draws = gp.sample(
    random.key(2),
    gplvm,
    y,
    known,
    init=fit,
    num_chains=2,
    num_warmup=300,
    num_samples=500,
    progress=False,
)
posterior = gp.diagnostics.group(draws, "posterior")
scaled = np.asarray(posterior["x"]) / np.asarray(posterior["lengthscale"])[:, :, None]
pairs = np.random.default_rng(1).integers(num_rows, size=(300, 2))
first, second = pairs[pairs[:, 0] != pairs[:, 1]].T
distance = np.linalg.norm(scaled[:, :, first] - scaled[:, :, second], axis=-1)
r_hat = np.asarray(gp.diagnostics.rhat(gp.diagnostics.to_arviz({"d": distance}))["d"])
print(f"R-hat of distances: median {np.median(r_hat):.2f}, largest {r_hat.max():.2f}")
report("draws", *entries_of(draws, params=fit.params))

# %% [markdown]
# How far do the fit and the draws agree? The normal distributions of the guide are
# independent of each other, and its distances are therefore a little too certain.

# %%
noise = np.random.default_rng(2).normal(size=(500, num_rows + 1, NUM_LATENT))
log_lengthscale_sd = np.asarray(fit.params["lengthscale_auto_scale"])
of_q = (x_mean + x_sd * noise[:, 1:]) / np.exp(
    log_lengthscale + log_lengthscale_sd * noise[:, :1]
)
by_fit = np.linalg.norm(of_q[:, first] - of_q[:, second], axis=-1)
by_draws = distance.reshape(-1, len(first))

figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for ax, take, title in zip(axes, (np.mean, np.std), ("mean", "standard deviation")):
    a, b = take(by_fit, axis=0), take(by_draws, axis=0)
    top = max(a.max(), b.max())
    ax.plot([0, top], [0, top], color="0.6", lw=1, zorder=0)
    ax.plot(a, b, "o", ms=3, alpha=0.6)
    ax.set(xlabel="fit", ylabel="draws", title=f"distances of wines: {title}")
    print(f"{title}: draws / fit = {np.median(b / a):.2f}")
plt.show()
