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
# # Saplings on a map
#
# The data are 126 Scots pine saplings in a square of ten metres by ten metres (Møller,
# Syversveen & Waagepetersen 1998), counted in cells. The model is a log Gaussian Cox
# process over the plane, as in Hensman et al. (2015, section 5.3). What is the
# intensity, how certain is it, and how many saplings are there in a part of the map?

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp
from svgp_ppl import diagnostics, plots

num_steps = 1000
num_draws = num_steps // 2
num_cells, metres = 32, 10.0

data = gp.datasets.pines(num_cells)
x = jnp.asarray(data.x, jnp.float32)
print(f"{data.y.sum()} saplings, {len(data.y)} cells of {data.area:.3f} m²")

# %% [markdown]
# ## The model
#
# The count of a cell is Poisson with mean area · exp(f) at its centre. The inducing
# inputs are on a grid and stay there.

# %%
side = (np.arange(12) + 0.5) * metres / 12
z = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)


def model(x, area=1.0, y=None):
    variance = numpyro.sample("variance", dist.Gamma(1.2, 1.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.75, 1.0))
    kernel = gp.kernels.RBF(variance, lengthscale)
    f = gp.sparse_gp("f", kernel, jnp.asarray(z, x.dtype))
    with numpyro.plate("cells", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(area), f(x), obs=y)


hybrid = gp.fit_and_sample(
    random.key(0),
    model,
    x,
    data.area,
    data.y,
    fit_options={"optimizer": optax.adam(0.03), "num_steps": num_steps},
    sampler=gp.mcmc.HMC(step_size_bounds=(0.02, 0.5), max_steps_bounds=(5, 30)),
    num_warmup=num_draws,
    num_samples=num_draws,
    progress=False,
)
print(diagnostics.report(hybrid.draws))

# %% [markdown]
# The lengthscale mixes slowest. The draws are enough for the maps below; for the tails
# of the lengthscale the report asks for more.
#
# ## Maps
#
# From left to right: the counts; the posterior mean of the intensity, in saplings per
# square metre; and its coefficient of variation, which is largest where there are no
# saplings.


# %%
def show(ax, values, label, **options):
    """A map of one value a cell."""
    size = int(np.sqrt(values.size))
    edges = np.linspace(0.0, metres, size + 1)
    image = ax.pcolormesh(edges, edges, values.reshape(size, size).T, **options)
    plt.colorbar(image, ax=ax, label=label, shrink=0.8)
    ax.set(aspect="equal", xlabel="first coordinate, m", ylabel="second coordinate, m")


# With an area of one the mean of a count is the intensity, its variance is that of
# the intensity and, above it, one of a Poisson number.
at = hybrid.predict(x, 1.0)["y"]
intensity = np.asarray(at.mean)
spread = np.sqrt(np.maximum(np.asarray(at.variance) - intensity, 0.0)) / intensity

figure, axes = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
show(axes[0], data.y, "saplings in a cell", cmap="Greys")
show(axes[1], intensity, "E exp(f), 1/m²", vmin=0)
show(axes[2], spread, "sd / mean of exp(f)", cmap="magma")

# %% [markdown]
# ## Gaussian and free form
#
# The maps of fit and draws look alike, but the hyperparameters differ: the fit has one
# value for each, and the draws show how uncertain they are.

# %%
at_fit = gp.predict(model, hybrid.fit, x, 1.0)["y"]
ratio = intensity / np.asarray(at_fit.mean)
names = ("lengthscale", "variance")
point = [float(hybrid.fit.params[f"{name}_auto_loc"]) for name in names]
figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
show(axes[0], np.log2(ratio), "log₂ of HMC / Gaussian", cmap="RdBu_r", vmin=-1, vmax=1)
plots.joint(hybrid.draws, "lengthscale", "variance", log=True, ax=axes[1])
axes[1].plot(*point, "k*", ms=14, label="mode of the fit")
_ = axes[1].legend()

# %% [markdown]
# ## How many in a quarter?
#
# How many saplings would new data have in a quarter of the map? This depends on the
# intensity in all its cells together. `draw_functions` draws sample paths, and given
# these the counts are Poisson. The observed number is printed for comparison.

# %%
f = gp.draw_functions(
    random.key(1), model, hybrid.draws, x, 1.0, num_draws=1000, method="pathwise"
)["y"]
totals = np.random.default_rng(0).poisson(data.area * np.exp(np.asarray(f)))
for name, first, second in (
    ("south-west", 0, 0),
    ("north-west", 0, 1),
    ("south-east", 1, 0),
    ("north-east", 1, 1),
):
    inside = ((data.x // (metres / 2)) == (first, second)).all(-1)
    low, middle, high = np.quantile(totals[:, inside].sum(-1), [0.05, 0.5, 0.95])
    interval = f"{low:.0f} to {high:.0f}, median {middle:.0f}"
    print(f"{name}: {interval}; observed {data.y[inside].sum()}")

# %% [markdown]
# ## A finer map
#
# The process is defined on the plane, not on the cells: the same draws predict on a
# grid of 64 × 64, without new sampling.

# %%
fine = jnp.asarray(gp.datasets.pines(64).x, jnp.float32)
figure, ax = plt.subplots(figsize=(6, 5), layout="constrained")
show(ax, np.asarray(hybrid.predict(fine, 1.0)["y"].mean), "E exp(f), 1/m²", vmin=0)
