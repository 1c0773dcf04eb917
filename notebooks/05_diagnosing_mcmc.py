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
# # Diagnosing chains
#
# This notebook shows what a healthy run looks like, four ways in which a run goes
# wrong, and what to do about each. `gp.diagnostics.report` describes the problem in
# words; the figures show it.

# %%
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp
from svgp_ppl import diagnostics, plots

numpyro.enable_x64()
num_steps = 2000
num_draws = num_steps // 2

# %% [markdown]
# ## A healthy run
#
# The data are yearly counts of coal-mining disasters, modelled by a log Gaussian Cox
# process. One call fits the Gaussian approximation, freezes the inducing inputs and
# starts four chains from the fit.

# %%
data = gp.datasets.coal()
z = gp.inducing.grid(data.x, 20)


def coal(x, y=None):
    variance = numpyro.sample("variance", dist.Gamma(2.0, 1.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 0.2))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


fit_options = {"optimizer": optax.adam(0.02), "num_steps": num_steps}
healthy = gp.fit_and_sample(
    random.key(0),
    coal,
    data.x,
    data.y,
    fit_options=fit_options,
    sampler=gp.mcmc.NUTS(target_acceptance_rate=0.95),
    num_warmup=num_draws,
    num_samples=num_draws,
    log_likelihood=True,
    progress=False,
)
print(diagnostics.report(healthy.draws))

# %% [markdown]
# Three pictures of the same run: the potential scale reduction of the slowest
# parameters falls towards one, the effective sample sizes grow linearly, and the bands
# of the four chains coincide.


# %%
def intensity(draws, num_functions=500):
    """exp(f) at the years for each chain, [chains, functions, N]."""
    posterior = diagnostics.group(draws, "posterior")
    chains = [
        {name: values[i] for name, values in posterior.items()}
        for i in range(len(posterior["variance"]))
    ]
    return np.exp(
        [
            gp.draw_functions(
                random.key(1), coal, chain, data.x, num_draws=num_functions
            )["y"]
            for chain in chains
        ]
    )


def look(draws):
    _, axes = plots.subplots(1, 2, figsize=(10, 3.5))
    plots.psrf(draws, num=8, ax=axes[0])
    plots.ess(draws, num=8, ax=axes[1])


look(healthy.draws)
axes = plots.chain_bands(data.x, intensity(healthy.draws))
_ = axes.set(xlabel="year", ylabel="disasters a year")

# %% [markdown]
# Lengthscale and variance have long tails, and long lengthscales come with somewhat
# larger variances. They are the slowest parameters here, and the source of most
# problems.

# %%
_ = plots.joint(healthy.draws, "lengthscale", "variance", log=True)

# %% [markdown]
# ## Too short
#
# The same chains, stopped early. With so few effective draws R-hat itself is uncertain.

# %%
values = diagnostics.group(healthy.draws, "posterior")
short = {name: v[:, : max(num_draws // 40, 8)] for name, v in values.items()}
print(diagnostics.report(short))

# %% [markdown]
# ## Steps that are too long
#
# The step size is fixed, and too long for the narrow part of the posterior: the energy
# is not conserved, nearly all proposals are rejected, many trajectories diverge, and
# every chain stays near its start. More draws do not help; shorter steps do, and the
# tuning finds them by itself.

# %%
careless = gp.sample(
    random.key(2),
    coal,
    data.x,
    data.y,
    init=healthy.fit,
    sampler=gp.mcmc.HMC(step_size_bounds=(0.18, 0.18), max_steps_bounds=(20, 20)),
    num_warmup=num_draws // 4,
    num_samples=num_draws,
    progress=False,
)
print(diagnostics.report(careless))

# %% [markdown]
# ## Two modes
#
# The product of two processes does not change when both change sign. Chains that start
# on different sides seldom cross: each chain by itself looks fine, but R-hat, which
# compares them, is far from one, and the potential scale reduction hardly falls with
# more draws.

# %%
rng = np.random.default_rng(0)
x = np.linspace(0.0, 1.0, 40)[:, None]
y = (1.0 + x) * (1.0 + np.sin(5 * x)) + 0.3 * rng.normal(size=(40, 1))
z_product = gp.inducing.grid(x, 6)
noisy_product = gp.likelihoods.GPRN(num_outputs=1, num_nodes=1, scale=0.3)


def product(x, y=None):
    kernel = gp.kernels.RBF(1.0, 0.4)
    f = gp.sparse_gp("f", kernel, z_product)(x)
    g = gp.sparse_gp("g", kernel, z_product)(x)
    with numpyro.plate("data", len(x)):
        gp.observe("y", noisy_product, gp.stack([f, g]), obs=y)


two_modes = gp.sample(
    random.key(9),
    product,
    x,
    y,
    num_warmup=num_draws // 2,
    num_samples=num_draws // 2,
    progress=False,
)
print(diagnostics.report(two_modes))

# %%
figure, axes = plots.subplots(1, 2, figsize=(10, 3.5))
plots.psrf(two_modes, num=8, ax=axes[0])
_ = plots.joint(two_modes, ("f", (0,)), ("g", (0,)), ax=axes[1])

# %% [markdown]
# More draws do not help. If the signs have no meaning, choose one in the model: here a
# mean of two for `g` makes one side much more probable than the other.


# %%
def product_with_sign(x, y=None):
    kernel = gp.kernels.RBF(1.0, 0.4)
    f = gp.sparse_gp("f", kernel, z_product)(x)
    g = gp.sparse_gp("g", kernel, z_product, mean=lambda x: jnp.full(len(x), 2.0))(x)
    with numpyro.plate("data", len(x)):
        gp.observe("y", noisy_product, gp.stack([f, g]), obs=y)


guide = gp.AutoGaussian(product_with_sign)
fit = gp.fit(
    random.key(4), product_with_sign, guide, x, y, progress=False, **fit_options
)
one_mode = gp.sample(
    random.key(5),
    product_with_sign,
    x,
    y,
    sampler=gp.mcmc.NUTS(target_acceptance_rate=0.99),
    init=fit,
    num_warmup=num_draws,
    num_samples=2 * num_draws,
    progress=False,
)
print(diagnostics.report(one_mode))

# %% [markdown]
# ## A datum that does not belong
#
# Leave-one-out cross-validation weights the draws by how much each datum influences
# them. A datum with a strong influence gives weights with a heavy tail, a Pareto shape
# above 0.7: its term of the sum cannot be trusted, and the datum deserves attention.
# Here one year gets a count that no smooth intensity explains.

# %%
y_odd = np.array(data.y)
y_odd[60] = 25
odd = gp.fit_and_sample(
    random.key(6),
    coal,
    data.x,
    y_odd,
    fit_options=fit_options,
    sampler=gp.mcmc.NUTS(target_acceptance_rate=0.95),
    num_warmup=num_draws,
    num_samples=num_draws,
    log_likelihood=True,
    progress=False,
)
print(diagnostics.report(odd.draws))
shapes = {
    "that year": diagnostics.loo(odd.draws).pareto_k[60],
    "largest without it": diagnostics.loo(healthy.draws).pareto_k.max(),
}
print({name: round(float(shape), 2) for name, shape in shapes.items()})
