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
# # What a Gaussian process and an inducing input are
#
# A ten-minute introduction for readers who know NumPyro but not Gaussian processes. You
# have data $(x_n, y_n)$ and want the curve behind them, with honest uncertainty,
# without choosing its form: no polynomial, no number of knots.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp

numpyro.enable_x64()
plt.rcParams["figure.dpi"] = 80
rng = np.random.default_rng(1)
grid = np.linspace(0.0, 10.0, 200)[:, None]


def draws_of(kernel, number):
    """Functions from the prior N(0, k(x, x)), by a Cholesky factor."""
    factor = np.linalg.cholesky(np.asarray(kernel(grid)) + 1e-8 * np.eye(200))
    return factor @ rng.normal(size=(200, number))


# %% [markdown]
# ## A distribution over functions
#
# A **Gaussian process** is a prior over functions. It says: take the values $f(x_1),
# \dots, f(x_N)$ at any inputs you like, and they are jointly Gaussian. All that is left
# to choose is how two values are related: their covariance $k(x, x')$, the **kernel**.
# The usual one says that nearby values are alike,
#
# $$k(x, x') = \text{variance} \cdot
# \exp\left(-\frac{(x - x')^2}{2\, \text{lengthscale}^2}\right).$$
#
# The *lengthscale* is the distance over which the function stays about the same, and
# the square root of the *variance* says how far it goes up and down. Other kernels make
# functions that are rougher, or periodic. Four draws from each of three priors:

# %%
kernels = {
    "lengthscale 1": gp.kernels.RBF(1.0, 1.0),
    "lengthscale 3": gp.kernels.RBF(1.0, 3.0),
    "rougher: Matern12": gp.kernels.Matern12(1.0, 3.0),
}
figure, axes = plt.subplots(1, 3, figsize=(9, 2.4), sharey=True, layout="constrained")
for ax, (title, kernel) in zip(axes, kernels.items()):
    ax.plot(grid[:, 0], draws_of(kernel, 4), lw=1)
    ax.set(title=title, xlabel="x")
axes[0].set_ylabel("f(x)")
plt.show()

# %% [markdown]
# ## Data bend the draws
#
# Condition a Gaussian on some of its values and the rest stays Gaussian. That is all
# there is to regression with a Gaussian process: keep those functions that pass near
# the data. Close to data the posterior is narrow; away from them it goes back to the
# prior. With Gaussian noise, mean and variance have closed forms:

# %%
x = rng.uniform(0.0, 7.0, 25)[:, None]
y = np.sin(x[:, 0]) + 0.2 * rng.normal(size=25)
kernel, noise = gp.kernels.RBF(1.0, 1.5), 0.2


def exact(x, y, at):
    """Mean and standard deviation of f given y."""
    noisy = np.asarray(kernel(x)) + noise**2 * np.eye(len(x))
    weights = np.linalg.solve(noisy, np.asarray(kernel(x, at)))
    variance = 1.0 - np.sum(weights * np.asarray(kernel(x, at)), axis=0)
    return weights.T @ y, np.sqrt(variance)


mean, sd = exact(x, y, grid)
figure, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
gp.plots.function_band(grid, mean - 2 * sd, mean, mean + 2 * sd, ax=ax, label="f, 95 %")
ax.plot(x[:, 0], y, "k.", label="data")
ax.set(xlabel="x", ylabel="y and f(x)")
ax.legend(loc="upper right", fontsize="small")
plt.show()

# %% [markdown]
# ## Why inducing inputs
#
# Two things go wrong with real data. The exact answer factorises an N × N matrix at
# every step of a fit: at 10,000 data that is 0.8 GB and 3 · 10¹¹ operations, at 100,000
# it is 80 GB. And it needs Gaussian noise: counts, labels or outliers have no closed
# form.
#
# A smooth function is known once it is known at a few well-placed inputs. Call these M
# inputs the **inducing inputs** $z$, and the values there $u = f(z)$. Given u, the rest
# of the function is nearly determined: the remaining, *residual* variance falls to
# nothing as z gets denser than the lengthscale. The grey bands show what remains
# uncertain given u at the marks.

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 2.4), sharey=True, layout="constrained")
for ax, m in zip(axes, (3, 6, 12)):
    z = np.linspace(0.0, 7.0, m)[:, None]
    k_zz = np.asarray(kernel(z)) + 1e-6 * np.eye(m)
    k_zx = np.asarray(kernel(z, grid))
    weights = np.linalg.solve(k_zz, k_zx)
    residual = np.sqrt(np.clip(1.0 - np.sum(weights * k_zx, axis=0), 0.0, None))
    through = weights.T @ np.sin(z[:, 0])
    ax.fill_between(
        grid[:, 0], through - 2 * residual, through + 2 * residual, color="0.8"
    )
    ax.plot(grid[:, 0], through, "C0")
    ax.plot(z[:, 0], np.sin(z[:, 0]), "k|", ms=14, mew=2)
    ax.set(title=f"M = {m}", xlabel="x")
axes[0].set_ylabel("f(x) given u")
plt.show()

# %% [markdown]
# So instead of a posterior of N values we need one of M values, at a cost of N M² in
# place of N³. The library works with *whitened* values $v \sim N(0, I)$, $u = L v$ with
# $L L^\top = k(z, z)$, because their prior does not depend on the kernel. They are the
# value of the sample site of `sparse_gp`.
#
# ## The same as a model
#
# Only two lines are not plain NumPyro: the process, and the data that depend on it.

# %%
z = gp.inducing.grid(x, 8)


def model(x, y=None):
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)


fit = gp.fit(random.key(0), model, x, y, num_steps=1500, progress=False)
for name in ("lengthscale", "noise"):
    print(name, round(float(fit.params[f"{name}_auto_loc"]), 2))

# %%
at_grid = fit.predict(grid)["y"]
figure, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
gp.plots.prediction_band(grid, at_grid, 0.95, of="latent", ax=ax, label="f, 95 %")
ax.plot(x[:, 0], y, "k.", label="data")
ax.plot(z[:, 0], np.full(8, -1.9), "k|", ms=9, label="inducing inputs")
ax.set(xlabel="x", ylabel="y and f(x)")
ax.legend(loc="upper right", fontsize="small")
plt.show()

# %% [markdown]
# With eight inducing inputs the picture is that of the exact process, and the
# lengthscale and the noise were learnt along the way. The *bound* says how good the
# answer is: it is never above the log evidence of the exact process, and equal to it if
# nothing was lost.
#
# ## Where to go from here
#
# - Replace `Gaussian(noise)` by `Poisson()`, `Bernoulli()` or any function from f to
#   a NumPyro distribution: [likelihoods](../docs/likelihoods.md).
# - Draw from the posterior of everything, hyperparameters included: `gp.sample(key,
#   model, x, y, init=fit)`, as in [the first model](01_first_model.ipynb).
# - How many inducing inputs, and where: [choosing M](../docs/choosing-m.md).
# - Why the same model serves both: [the bound](../docs/the-bound.md).
