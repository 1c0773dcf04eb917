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
# # Guides side by side
#
# The guide is a switch: the model stays the same while the family of q(v) changes. Two
# small models, each under several guides, show what a family can represent and what it
# misses: two processes that are observed only as a sum, and two that are observed only
# as a product.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp

numpyro.enable_x64()
num_steps = 3000
optimizer = optax.adam(optax.cosine_decay_schedule(3e-2, num_steps))

# %% [markdown]
# ## A sum: correlation between processes
#
# There are two hundred data, each the sum of a function of the first input, a function
# of the second, and noise. Kernel and noise are known here, so that the fits can be
# compared with the exact posterior.

# %%
rng = np.random.default_rng(0)
x = rng.uniform(-3.0, 3.0, size=(200, 2))
y = np.sin(x[:, 0]) ** 3 + np.cos(3 * x[:, 1]) + 0.5 * rng.normal(size=200)
z = np.linspace(-3.0, 3.0, 15)[:, None]
kernels = {"f": gp.kernels.RBF(0.5, 1.0), "g": gp.kernels.RBF(0.5, 0.6)}
noise = 0.5


def processes(x):
    f = gp.sparse_gp("f", kernels["f"], z)
    g = gp.sparse_gp("g", kernels["g"], z)
    return f(x[:, :1]), g(x[:, 1:])


def added(x, y=None):
    f, g = processes(x)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(noise), f + g, obs=y)


# %% [markdown]
# For every posterior we ask for the standard deviations of the sum, about which there
# are data, and of the difference and of one process, about which there are none. Sites
# that were never observed are predicted like any other.


# %%
def questions(x):
    f, g = processes(x)
    for name, latent in {"f(x)": f, "f + g": f + g, "f - g": f - g}.items():
        gp.observe(name, gp.likelihoods.Gaussian(noise), latent)


def row(fit):
    at_data = gp.predict(questions, fit, x)
    sds = {n: np.sqrt(np.mean(at_data[n].latent_variance)) for n in at_data}
    return {"bound": -np.mean(fit.losses[-50:])} | sds


guides = {
    "Gaussian, diagonal": gp.AutoGaussian(added, "diagonal"),
    "Gaussian, full": gp.AutoGaussian(added),
    "mixture, K = 2": gp.AutoMixture(added, 2, "full"),
    "coupled": gp.AutoCoupled(added),
}
fits, rows = {}, {}
for name, guide in guides.items():
    fits[name] = gp.fit(
        random.key(0),
        added,
        guide,
        x,
        y,
        loss=gp.MarginalELBO(entropy="pairwise"),
        optimizer=optimizer,
        num_steps=num_steps,
        progress=False,
    )
    rows[name] = row(fits[name])

# %% [markdown]
# The exact posterior for a sum of Gaussian processes is itself Gaussian:
# $\operatorname{Cov}(f) = K_f - K_f (K_f + K_g + \sigma^2 I)^{-1} K_f$, and likewise
# for the others.

# %%
k_f = np.asarray(kernels["f"](x[:, :1]))
k_g = np.asarray(kernels["g"](x[:, 1:]))
k_y = k_f + k_g + noise**2 * np.eye(len(x))


def exact_sd(sign):
    """Root mean square of the sd of f + sign · g."""
    cross = k_f + sign * k_g
    variance = np.diag(k_f + sign**2 * k_g - cross @ np.linalg.solve(k_y, cross.T))
    return np.sqrt(np.mean(variance))


rows["exact"] = {
    "bound": dist.MultivariateNormal(jnp.zeros(len(x)), k_y).log_prob(y),
    "f(x)": exact_sd(0.0),
    "f + g": exact_sd(1.0),
    "f - g": exact_sd(-1.0),
}
print(f"{'':20s}{'bound':>10s}{'sd f':>8s}{'sd f + g':>10s}{'sd f - g':>10s}")
for name, held in rows.items():
    print(
        f"{name:20s}{held['bound']:10.2f}{held['f(x)']:8.3f}"
        f"{held['f + g']:10.3f}{held['f - g']:10.3f}"
    )

# %% [markdown]
# All of them agree about the sum. But a constant can move from one process to the other
# without changing the fit to the data, so each process is known only up to such a
# constant. The exact posterior and the coupled q(v) show this; all others have bands
# that are two to three times too narrow. A mixture costs more and gains nothing here,
# because the posterior has one mode.

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
line = np.linspace(-3.0, 3.0, 120)[:, None]
inputs = np.hstack([line, line])
cross = np.asarray(kernels["f"](line, x[:, :1]))
mean = cross @ np.linalg.solve(k_y, y)
sd = np.sqrt(0.5 - np.sum(cross * np.linalg.solve(k_y, cross.T).T, axis=1))
bands = {"exact": (mean, sd)}
for name in ("Gaussian, full", "coupled"):
    at_line = gp.predict(questions, fits[name], inputs)["f(x)"]
    bands[name] = (
        np.asarray(at_line.latent_mean),
        np.sqrt(np.asarray(at_line.latent_variance)),
    )
for ax, (name, (mean, sd)) in zip(axes, bands.items()):
    gp.plots.function_band(line, mean - 2 * sd, mean, mean + 2 * sd, ax=ax)
    ax.plot(line, np.sin(line) ** 3, "k--", linewidth=1)
    ax.set(title=name, xlabel="$x_1$", ylabel="f" if ax is axes[0] else None)
figure.suptitle("posterior mean of f ± 2 sd; dashed: the function behind the data")
plt.show()

# %% [markdown]
# [Choosing a guide](../docs/choosing-a-guide.md) has the same comparison with the
# settings and the table of Adam (2017).
#
# ## A product: several modes
#
# Now the data are $f(x)\,g(x)$ plus noise. Both processes may change sign together, so
# the posterior has two modes of equal weight. A Gaussian has to choose one.

# %%
x_line = np.linspace(-2.0, 2.0, 24)[:, None]
f_true = 1.0 + 0.3 * np.sin(x_line[:, 0])
g_true = 0.9 + 0.2 * np.cos(x_line[:, 0])
y_product = f_true * g_true + 0.1 * np.random.default_rng(1).normal(size=24)
z_line = np.linspace(-2.0, 2.0, 6)[:, None]


def product(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.5), z_line)
    g = gp.sparse_gp("g", gp.kernels.RBF(1.0, 1.5), z_line)
    both = gp.stack([f(x), g(x)])
    with numpyro.plate("data", len(x)):
        gp.observe("y", lambda h: dist.Normal(h[..., 0] * h[..., 1], 0.1), both, obs=y)


def fit_mixture(num_components):
    return gp.fit(
        random.key(2),
        product,
        gp.AutoMixture(product, num_components, "full"),
        x_line,
        y_product,
        loss=gp.MarginalELBO(entropy="pairwise"),
        optimizer=optimizer,
        num_steps=num_steps,
        freeze={"auto_logits": num_steps // 2},
        progress=False,
    )


mixtures = {f"K = {k}": fit_mixture(k) for k in (1, 2)}

# %% [markdown]
# The weights of the mixture stay equal for the first half of the steps (`freeze=`), so
# that no component wins before the other has found its mode. HMC chains that start from
# draws of the mixture also start in both modes. No chain ever leaves its mode, so the
# share of each mode in the draws only says how many chains started there.

# %%
draws = gp.sample(
    random.key(3),
    product,
    x_line,
    y_product,
    init=mixtures["K = 2"],
    num_chains=8,
    num_warmup=num_steps // 6,
    num_samples=num_steps // 6,
    progress=False,
)
posteriors = {**mixtures, "HMC": draws}

# %% [markdown]
# How well does each posterior predict a direct measurement of $f$ with noise of sd 0.1?
# The data do not determine the sign of $f$, so a prediction is judged by its log
# density averaged over measurements of $f$ and of $-f$.


# %%
def measured(x):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.5), z_line)
    gp.sparse_gp("g", gp.kernels.RBF(1.0, 1.5), z_line)
    gp.observe("f(x)", gp.likelihoods.Gaussian(0.1), f(x))


print(f"{'':8s}{'bound':>8s}{'log density, +f':>17s}{'-f':>9s}{'mean':>9s}")
for name, held in posteriors.items():
    at_data = gp.predict(measured, held, x_line)["f(x)"]
    plus, minus = (float(np.mean(at_data.log_prob(s * f_true))) for s in (1, -1))
    bound = f"{-np.mean(held.losses[-50:]):8.2f}" if name != "HMC" else " " * 8
    print(f"{name:8s}{bound}{plus:17.2f}{minus:9.2f}{(plus + minus) / 2:9.2f}")

# %%
figure, axes = plt.subplots(2, 3, figsize=(9, 5), sharex="row", layout="constrained")
for (upper, lower), (name, held) in zip(axes.T, posteriors.items()):
    at_line = gp.predict(measured, held, x_line)["f(x)"]
    values = np.asarray(at_line.sample_latent(random.key(4), 400))
    upper.plot(x_line, values[:40].T, ".", color="C0", markersize=2)
    upper.plot(x_line, np.stack([f_true, -f_true], 1), "k--", linewidth=1)
    upper.set(title=name, xlabel="x", ylim=(-2.2, 2.2))
    lower.hist(values[:, 12], bins=np.linspace(-2, 2, 61), density=True, color="C0")
    lower.set(xlabel="f at x = 0.09", xlim=(-2, 2), ylim=(0, 12))
axes[0, 0].set_ylabel("draws of f")
axes[1, 0].set_ylabel("density")
figure.suptitle("what each posterior says of f; dashed: ± the function behind the data")
plt.show()

# %% [markdown]
# One Gaussian covers half of the posterior and is certain about it: a measurement of
# the other sign has a log density of about −170. Two components cover both modes, as
# the chains do, and the bound is higher. The gain is at most $\log 2$, that of covering
# both of two separate, equal modes instead of one.
#
# The chains also show what all these guides miss: $f$ can be stretched if $g$ is
# shrunk. Within a component the two processes are independent, and so each seems to be
# known almost exactly.
