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
# # Ratings: ordered classes
#
# Experts gave 1599 red wines from Portugal grades from 3 to 8 (Cortez, Cerdeira,
# Almeida, Matos & Reis 2009). What do eleven chemical measurements say about the grade?
# A grade is not a number: the step from 5 to 6 need not be as large as that from 7 to
# 8. It is not a mere class either: 5 lies between 4 and 6. An *ordered logistic*
# likelihood treats it as what it is,
#
# $$P(y \le k \mid f) = \sigma(c_k - f),$$
#
# a latent quality $f$, and increasing cutpoints $c_k$ that the data decide.

# %%
import arviz as az
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from scipy import stats

import svgp_ppl as gp

numpyro.enable_x64()
plt.style.use("tableau-colorblind10")

NAMES = ["fixed acidity", "volatile acidity", "citric acid", "residual sugar"]
NAMES += ["chlorides", "free SO2", "total SO2", "density", "pH", "sulphates", "alcohol"]
GRADES = np.arange(3, 9)

data = gp.datasets.uci("wine_red")  # nine tenths of the wines, columns standardised
x, x_test = data.x, data.x_test


def grades(y):
    """0 for grade 3, …, 5 for grade 8."""
    found = np.rint(y * data.y_scale + data.y_mean).astype(int) - GRADES[0]
    return np.clip(found, 0, len(GRADES) - 1)


y, y_test = grades(data.y), grades(data.y_test)
print(dict(zip(GRADES.tolist(), np.bincount(y, minlength=6).tolist())))

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
jitter = np.random.default_rng(0).uniform(-0.3, 0.3, len(y))
for ax, name in zip(axes, ("alcohol", "volatile acidity", "sulphates")):
    ax.plot(x[:, NAMES.index(name)], GRADES[y] + jitter, ".", ms=2)
    ax.set(xlabel=f"{name}, standardised")
axes[0].set(ylabel="grade")
plt.show()

# %% [markdown]
# ## The model
#
# The latent quality is a Gaussian process around a linear effect of every column: the
# process captures what is not linear, and interactions between columns. With a
# lengthscale for each column it can leave columns out. The linear part is its `mean=`
# instead of being added to it: a sampler then moves both together.
#
# A constant added to $f$ has the same effect as one subtracted from all cutpoints. Here
# the first cutpoint is 0, `level` is the quality of an average wine, and gaps between
# cutpoints are positive.

# %%
z = gp.inducing.kmeans(x, 40)


def cutpoints():
    with numpyro.plate("step", 4):
        gap = numpyro.sample("gap", dist.LogNormal(1.0, 0.5))
    return jnp.concatenate([jnp.zeros(1), jnp.cumsum(gap)])


def linear_effects():
    level = numpyro.sample("level", dist.Normal(5.0, 3.0))
    with numpyro.plate("column", len(NAMES)):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    return lambda x: level + x @ slope


def effects(x):
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("column", len(NAMES)):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(1.5, 0.7))
    kernel = gp.kernels.RBF(sd**2, lengthscale)
    return gp.sparse_gp("f", kernel, z, mean=linear_effects())(x)


def ordinal(x, y=None):
    likelihood = gp.likelihoods.Ordinal(cutpoints())
    quality = effects(x)
    with numpyro.plate("wine", len(x)):
        gp.observe("grade", likelihood, quality, obs=y)


run = gp.fit_and_sample(
    random.key(0),
    ordinal,
    x,
    y,
    num_chains=2,
    num_warmup=250,
    num_samples=250,
    coords={"column": NAMES, "step": GRADES[1:-1]},
    log_likelihood=True,
    progress=False,
)
print(gp.diagnostics.report(run.draws))

# %% [markdown]
# ## What the grades are worth
#
# The report asks for more draws, which a paper would need; some ninety effective draws
# of the slowest parameter are enough for what follows.
#
# The cutpoints are not equally far apart: 4 is a narrow grade, and 5 is the widest.

# %%
posterior = gp.diagnostics.group(run.draws, "posterior")
for grade, values in zip(GRADES[1:], np.asarray(posterior["gap"]).reshape(-1, 4).T):
    interval = np.quantile(values, [0.05, 0.95])
    words = f"{interval[0]:.1f} to {interval[1]:.1f}"
    print(f"grade {grade} takes {values.mean():.1f} of quality (90 %: {words})")

# %% [markdown]
# ## Which columns matter
#
# The linear effects of one standard deviation of a column are in units of quality: one
# more unit multiplies the odds of a better grade by $e$.

# %%
order = np.argsort(np.asarray(posterior["slope"]).mean(axis=(0, 1)))
slopes = np.asarray(posterior["slope"]).reshape(-1, len(NAMES))[:, order]
low, high = np.quantile(slopes, [0.05, 0.95], axis=0)
figure, ax = plt.subplots(figsize=(6, 3.2), layout="constrained")
ax.hlines(np.arange(len(NAMES)), low, high)
ax.plot(slopes.mean(axis=0), np.arange(len(NAMES)), "o")
ax.axvline(0.0, color="0.6", lw=1)
ax.set_yticks(np.arange(len(NAMES)), [NAMES[i] for i in order])
ax.set(xlabel="linear effect on the latent quality, mean and 90 %")
plt.show()

# %% [markdown]
# The probabilities of the grades, as one column changes and the others stay at their
# means:

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
shades = plt.get_cmap("cividis")(np.linspace(0.0, 1.0, len(GRADES)))
for ax, name in zip(axes, ("alcohol", "volatile acidity", "sulphates")):
    column = NAMES.index(name)
    grid = np.zeros((40, len(NAMES)))
    grid[:, column] = np.linspace(*np.quantile(x[:, column], [0.01, 0.99]), 40)
    probs = np.asarray(run.predict(grid)["grade"].probs)
    ax.stackplot(grid[:, column], probs.T, labels=GRADES, colors=shades)
    ax.set(xlabel=f"{name}, standardised", ylim=(0, 1))
    ax.margins(x=0)
axes[0].set(ylabel="probability of a grade")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right", title="grade")
plt.show()

# %% [markdown]
# ## Is it worth it?
#
# Here are two simpler models for comparison. One has the same likelihood and linear
# effects only, in plain NumPyro. The other treats the grade as a number with Gaussian
# noise, and the probability of a grade is that of the half unit on either side of it.


# %%
def linear(x, y=None):
    likelihood = dist.OrderedLogistic(linear_effects()(x), cutpoints())
    with numpyro.plate("wine", len(x)):
        numpyro.sample("grade", likelihood, obs=y)


sampler = numpyro.infer.NUTS(linear)
mcmc = numpyro.infer.MCMC(
    sampler,
    num_warmup=300,
    num_samples=250,
    num_chains=2,
    chain_method="vectorized",
    progress_bar=False,
)
mcmc.run(random.key(1), x, y)


def gaussian(x, y=None):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    value = effects(x)
    with numpyro.plate("wine", len(x)):
        gp.observe("grade", gp.likelihoods.Gaussian(scale), value, obs=y)


fit = gp.fit(random.key(2), gaussian, None, x, y * 1.0, progress=False)

draws = mcmc.get_samples()
quality = draws["level"][:, None] + draws["slope"] @ x_test.T
cuts = np.pad(np.cumsum(draws["gap"], axis=1), [(0, 0), (1, 0)])
by_linear = np.mean(dist.OrderedLogistic(quality, cuts[:, None]).probs, axis=0)
at_test = fit.predict(x_test)["grade"]
edges = np.concatenate([[-np.inf], np.arange(5) + 0.5, [np.inf]])
below = stats.norm.cdf(edges, at_test.mean[:, None], at_test.std[:, None])
probabilities = {
    "ordinal, smooth": np.asarray(run.predict(x_test)["grade"].probs),
    "ordinal, linear": by_linear,
    "Gaussian, smooth": np.diff(below, axis=1),
}

rows = np.arange(len(y_test))
scores = {name: np.log(p[rows, y_test]) for name, p in probabilities.items()}
for name, p in probabilities.items():
    right = np.mean(np.argmax(p, axis=1) == y_test)
    off = scores[name] - scores["ordinal, smooth"]
    error = off.std() / np.sqrt(len(off))
    print(
        f"{name:17s} log probability of a grade {scores[name].mean():.3f} "
        f"({off.mean():+.3f} ± {error:.3f}), right {right:.0%}"
    )

# %% [markdown]
# And leave-one-out cross-validation on the wines that the models have seen, where both
# have draws:

# %%
of_linear = az.from_numpyro(mcmc)
az.compare({"smooth": run.draws, "linear": of_linear})[
    ["rank", "elpd_loo", "p_loo", "elpd_diff", "dse", "warning"]
]

# %% [markdown]
# ## Can one trust the probabilities?
#
# The figure is about grades of at least 6: the share of wines that get one, against the
# probability that the model gives, in groups of equal size.

# %%
figure, ax = plt.subplots(figsize=(4, 3.4), layout="constrained")
for (name, p), marker in zip(probabilities.items(), "os^"):
    good = p[:, 3:].sum(axis=1)
    groups = np.array_split(np.argsort(good), 6)
    shares = [np.mean(y_test[group] >= 3) for group in groups]
    ax.plot([good[group].mean() for group in groups], shares, marker, label=name)
ax.plot([0, 1], [0, 1], color="0.6", lw=1)
ax.set(xlabel="probability of a grade of 6 or more", ylabel="share of wines")
_ = ax.legend()
