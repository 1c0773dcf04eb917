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
# # Why chains start from a fit: the geometry of sampling
#
# The posterior of a sparse Gaussian process has two kinds of unknowns: the whitened
# inducing values $v$, with $u = m_\theta(z) + L_\theta v$, and the hyperparameters
# $\theta$. A chain that moves both has to follow a narrow, bent ridge. This notebook
# shows the ridge, where it comes from, and the coordinates in which it disappears:
# [`coordinates="fitted"`](../docs/sampling.md#what-the-sampler-moves), the default of
# `gp.sample` when it is given a fit.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from scipy.linalg import cholesky, solve_triangular

import svgp_ppl as gp
from svgp_ppl.diagnostics import ess, group, rhat

numpyro.enable_x64()
num_steps = 2000
num_draws = 1000

# %% [markdown]
# ## The model
#
# The model is a log Gaussian Cox process with $M = 30$ inducing inputs for the yearly
# number of coal-mining disasters. A fit gives a Gaussian approximation of its
# posterior, $q(v) = \mathcal N(\hat m, \hat S)$ at one value $\hat\theta$ of the
# hyperparameters.

# %%
data = gp.datasets.coal()
z = gp.inducing.grid(data.x, 30)


def model(x, y=None):
    variance = numpyro.sample("variance", dist.Gamma(2.0, 1.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 0.2))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


fit = gp.fit(
    random.key(0),
    model,
    gp.AutoGaussian(model),
    data.x,
    data.y,
    optimizer=optax.adam(0.02),
    num_steps=num_steps,
    progress=False,
)

# %% [markdown]
# ## Two chains of the same posterior
#
# The same sampler, NUTS, starts from the same fit twice: once it moves $v$ and $\theta$
# themselves, and once the coordinates of the fit. Both times it returns draws of $v$
# and $\theta$.

# %%
draws, cost = {}, {}
for coordinates in ("whitened", "fitted"):
    began = time.perf_counter()
    draws[coordinates] = gp.sample(
        random.key(1),
        model,
        data.x,
        data.y,
        init=fit,
        coordinates=coordinates,
        num_warmup=num_draws // 2,
        num_samples=num_draws,
        progress=False,
    )
    seconds = time.perf_counter() - began
    attrs = draws[coordinates]["posterior"].attrs
    smallest = min(np.min(size) for size in ess(draws[coordinates]).values())
    largest = max(np.max(value) for value in rhat(draws[coordinates]).values())
    gradients = attrs["num_gradients"]
    print(
        f"{coordinates:9s} gradients a draw {gradients / (4 * num_draws):5.1f}, "
        f"effective draws of the slowest parameter {smallest:5.0f} "
        f"({1000 * smallest / gradients:5.1f} for 1000 gradients), R-hat {largest:.3f}"
    )

# %% [markdown]
# ## Where the ridge comes from
#
# The data determine the function well, and the function at the inducing inputs is $u =
# L_\theta v$. When $\theta$ moves and $u$ has to stay, $v = L_\theta^{-1} u$ must move
# with $\theta$. *Given* $v$, only a small range of $\theta$ agrees with the data. The
# figure shows the marginal posterior of the lengthscale, and its conditional posterior
# given the $v$ of one draw, from the log density of the model on a grid.

# %%
posterior = {n: np.asarray(v) for n, v in group(draws["fitted"], "posterior").items()}
flat = {n: v.reshape(-1, *v.shape[2:]) for n, v in posterior.items()}


def log_joint(lengthscale, variance, v):
    """Log density of one (θ, v), up to a constant; dense algebra, no chain."""
    k_zz = variance * np.exp(-0.5 * (z - z.T) ** 2 / lengthscale**2)
    L = cholesky(k_zz + 1e-6 * variance * np.eye(len(z)), lower=True)
    k_zx = variance * np.exp(-0.5 * (z - data.x.T) ** 2 / lengthscale**2)
    A = solve_triangular(L, k_zx, lower=True)
    mean, spread = A.T @ v, variance - np.sum(A**2, axis=0)
    counts = np.sum(np.asarray(data.y) * mean - np.exp(mean + 0.5 * spread))
    prior = 3.0 * np.log(lengthscale) - 0.2 * lengthscale + np.log(variance) - variance
    return counts + prior - 0.5 * v @ v


middle = np.argsort(flat["lengthscale"])[len(flat["lengthscale"]) // 2]
grid = np.linspace(*np.quantile(flat["lengthscale"], [0.001, 0.999]), 400)
given_v = [log_joint(s, flat["variance"][middle], flat["f"][middle]) for s in grid]
given_v = np.exp(np.array(given_v) - np.max(given_v))
given_v /= given_v.sum() * (grid[1] - grid[0])

figure, axis = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
axis.hist(flat["lengthscale"], bins=60, density=True, color="0.8", label="marginal")
axis.plot(grid, given_v, color="C3", label="given the v of one draw")
axis.set(xlabel="lengthscale / years", ylabel="posterior density")
axis.legend(frameon=False)
ratio = np.std(flat["lengthscale"]) / np.sqrt(
    np.average((grid - np.average(grid, weights=given_v)) ** 2, weights=given_v)
)
print(f"the marginal is {ratio:.0f} times as wide as the conditional")

# %% [markdown]
# A step of a sampler has to be about as long as the conditional is wide, and it takes
# many such steps to cross the marginal. Gibbs sampling, which alternates between $v$
# given $\theta$ and $\theta$ given $v$, is the worst of all here: $\theta$ crosses the
# marginal as a random walk with steps as long as the conditional.
#
# ## The fit knows the way
#
# At $\hat\theta$, $q(u)$ is the prior times a Gaussian factor: the Gaussian *sites*
# $t(u) = \exp(\eta^\top u - \tfrac12 u^\top \Lambda u)$ of expectation propagation
# (Opper and Archambeau 2009; Adam, Chang, Khan and Solin 2021), with
#
# $$\Lambda = \hat L^{-\top} (\hat S^{-1} - I) \hat L^{-1}, \qquad
# \eta = \hat L^{-\top} \hat S^{-1} \hat m .$$
#
# They represent the data, not the prior; in the code below they are pseudo-data, $y = H
# u$ plus noise of variance one. Kept fixed, they give a posterior of $v$ at *any* other
# $\theta$:
#
# $$q(v \mid \theta) \propto \mathcal N(v; 0, I)\, t(L_\theta v)
# = \mathcal N(P^{-1} L_\theta^\top \eta,\; P^{-1}), \qquad
# P = I + L_\theta^\top \Lambda L_\theta = C C^\top .$$
#
# The sampler moves $\xi = C^\top (v - P^{-1} L_\theta^\top \eta)$ in place of $v$.
# Whatever $\Lambda$ is, the map between $\xi$ and $v$ is one to one for every $\theta$,
# and its Jacobian is part of the density. The posterior is exactly the same, and the
# fit decides only how fast the chains mix.

# %%
jitter = 1e-6


def prior_factor(variance, lengthscale):
    """L_θ of k(z, z)."""
    k_zz = variance * np.exp(-0.5 * (z - z.T) ** 2 / lengthscale**2)
    return cholesky(k_zz + jitter * variance * np.eye(len(z)), lower=True)


at_fit = {n: float(fit.params[f"{n}_auto_loc"]) for n in ("variance", "lengthscale")}
L_hat = prior_factor(**at_fit)
m_hat, S_factor = (np.asarray(fit.params[f"auto_f_{n}"]) for n in ("loc", "scale_tril"))
d, U = np.linalg.eigh(np.linalg.inv(S_factor @ S_factor.T) - np.eye(len(z)))
told = d > 0.01  # in the other directions the data say nothing
d, U = d[told], U[:, told]
H = np.linalg.solve(L_hat.T, U * np.sqrt(d)).T  # Λ = Hᵀ H
y = (1.0 + d) / np.sqrt(d) * (U.T @ m_hat)  # η = Hᵀ y


def to_xi(variance, lengthscale, v):
    """The coordinates of the fit, of one draw."""
    HL = H @ prior_factor(variance, lengthscale)
    P = np.eye(len(z)) + HL.T @ HL
    return cholesky(P, lower=True).T @ (v - np.linalg.solve(P, HL.T @ y))


kept = slice(None, None, 4)
thetas = flat["variance"][kept], flat["lengthscale"][kept]
v = flat["f"][kept]
xi = np.stack([to_xi(*values) for values in zip(*thetas, v)])

# %% [markdown]
# ## Before and after
#
# The figure shows the same draws of the posterior in both sets of coordinates: the
# coordinate of $v$ and the coordinate of $\xi$ that follow the lengthscale most. On the
# left the ridge is seen from one side: long lengthscales come with low values. On the
# right hardly anything is left of it. The last panel shows the correlation with the log
# lengthscale for all 30 coordinates.

# %%
log_lengthscale = np.log(thetas[1])


def correlation(values):
    """With the log lengthscale, by ranks: the ridge is bent."""
    ranks = [np.argsort(np.argsort(column)) for column in (*values.T, log_lengthscale)]
    return np.corrcoef(ranks)[-1, :-1]


figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), layout="constrained")
for axis, name, values, color in zip(axes, ("v", "ξ"), (v, xi), ("C0", "C1")):
    worst = np.argmax(np.abs(correlation(values)))
    axis.plot(log_lengthscale, values[:, worst], ".", ms=2, alpha=0.4, color=color)
    axis.set(xlabel="log lengthscale", ylabel=f"{name}[{worst}]")
    axes[2].plot(np.abs(correlation(values)), "o", ms=4, color=color, label=name)
axes[0].set_title("whitened values")
axes[1].set_title("coordinates of the fit")
axes[2].set(xlabel="coordinate", ylim=(0, 1), title="rank correlation with it")
_ = axes[2].legend(frameon=False)

# %% [markdown]
# The spread shows the same: in the coordinates of the fit the draws are close to
# standard normal, so one step size is right for all of them.

# %%
for name, values in {"v": v, "ξ": xi}.items():
    covariance = np.cov(np.column_stack([values, log_lengthscale]).T)
    sds = np.sqrt(np.diagonal(covariance))
    condition = np.linalg.cond(covariance / np.outer(sds, sds))
    print(
        f"{name}: sds {sds[:-1].min():.2f} to {sds[:-1].max():.2f}, "
        f"condition number of the correlations with θ {condition:.0f}"
    )

# %% [markdown]
# ## What follows
#
# - **From a fit the coordinates are the default**: `gp.sample(key, model, x, y,
#   init=fit)`. NumPyro's own samplers get them from `gp.mcmc.reparam_sites`.
# - **With a Gaussian likelihood** $v$ can be integrated out altogether: `gp.sample`
#   then moves $\theta$ alone, and draws $v$ afterwards.
# - **Without a chain**: in these coordinates the posterior is often so close to a
#   Gaussian that [importance sampling](../docs/sampling.md#without-a-chain) from the
#   fit suffices.
# - [Choosing a sampler](../docs/choosing-a-sampler.md) has measurements for other
#   samplers and other models.
