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
# # Counts on a map, with a covariate
#
# In the late summer of 1854 cholera killed more than five hundred people in a few
# streets of Soho. John Snow drew where they had lived, and suspected the pump in Broad
# Street. His map, as digitised by Dodson & Tobler (1992), has the streets, the pumps
# and the homes of the dead. How much does the distance from that pump explain, and what
# is left over?

# %%
import arviz as az
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp

numpyro.enable_x64()
plt.style.use("tableau-colorblind10")

tables = {
    name: gp.datasets.table(f"snow_{name}") for name in ("deaths", "pumps", "streets")
}
# In 100 m: a unit of the digitised map is 54 m.
deaths, pumps, corners = (
    0.54 * np.column_stack([table["x"], table["y"]]) for table in tables.values()
)
street = tables["streets"]["street"]
broad_street = pumps[6]

# %% [markdown]
# ## The counts
#
# Nobody counted who lived where. People lived along streets, so the units are pieces of
# street of at most 60 m, the length of a piece stands for its population, the
# *exposure*, and each death belongs to the nearest piece. The distance of a piece from
# the pump is its *covariate*.

# %%
ends = np.diff(street) == 0  # consecutive corners of one street
middles, lengths = [], []
for start, end in zip(corners[:-1][ends], corners[1:][ends]):
    size = np.linalg.norm(end - start)
    number = int(np.ceil(size / 0.6))
    share = (np.arange(number) + 0.5) / number
    middles.append(start + share[:, None] * (end - start))
    lengths.append(np.full(number, size / number))
place, length = np.concatenate(middles), np.concatenate(lengths)

apart = np.linalg.norm(deaths[:, None] - place, axis=-1)
y = np.bincount(apart.argmin(axis=1), minlength=len(place))
near = np.linalg.norm(place - broad_street, axis=1) < 3.5
place, length, y = place[near], length[near], y[near]
print(
    f"{y.sum()} deaths at {len(y)} pieces of street; none at {np.sum(y == 0)} of them"
)

# %%
figure, ax = plt.subplots(figsize=(5, 4.6), layout="constrained")
ax.scatter(*place.T, s=2, color="0.7")
ax.scatter(*place[y > 0].T, s=8 * y[y > 0], alpha=0.7, label="deaths")
ax.plot(*pumps.T, "k^", mfc="none", label="pumps")
ax.plot(*broad_street, "k^", label="pump in Broad Street")
box = np.array([-3.6, 3.6])
limits = {"xlim": box + broad_street[0], "ylim": box + broad_street[1]}
labels = {"xlabel": "x / 100 m", "ylabel": "y / 100 m", "aspect": "equal"}
ax.set(**limits, **labels)
_ = ax.legend(fontsize="small", loc="lower left")

# %% [markdown]
# ## The model
#
# The log of the expected deaths per 100 m of street is a sparse process over the plane:
# whatever makes neighbouring streets alike. Its mean function has a level and, in one
# of two models, a slope times the distance from the pump. (A level that is added to
# the process is the same model; in the mean function chains move better, because the
# fit from which they start then knows how the two depend on each other.) The deaths of
# one house are not independent of each other, so the counts are negative binomial.

# %%
z = gp.inducing.kmeans(place, 30)


def model(with_distance, place, exposure, y=None):
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    concentration = numpyro.sample("concentration", dist.LogNormal(0.0, 1.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.5))
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.5))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0)) if with_distance else 0.0

    def mean(place):
        return level + slope * jnp.linalg.norm(place - broad_street, axis=-1)

    f = gp.sparse_gp("f", gp.kernels.Matern32(sd**2, lengthscale), z, mean=mean)
    likelihood = gp.likelihoods.NegativeBinomial(concentration, exposure)
    with numpyro.plate("piece", len(place)):
        gp.observe("deaths", likelihood, f(place), obs=y)


# %% [markdown]
# ## Fit and draws

# %%
models = {"map": False, "map and distance": True}
runs = {}
for name, with_distance in models.items():
    runs[name] = gp.fit_and_sample(
        random.key(0),
        model,
        with_distance,
        place,
        length,
        y,
        sampler=gp.mcmc.NUTS(target_acceptance_rate=0.95),
        num_warmup=300,
        num_samples=600,
        num_chains=2,
        log_likelihood=True,
        progress=False,
    )
    print(name, "\n", gp.diagnostics.report(runs[name].draws))

# %% [markdown]
# ## Which model predicts better?
#
# Leave-one-out cross-validation, from the same draws. The two models predict single
# pieces of street equally well, within the error of the difference: with neighbours on
# all sides the process finds the trend by itself.

# %%
az.compare({name: run.draws for name, run in runs.items()})[
    ["rank", "elpd_loo", "p_loo", "elpd_diff", "dse", "warning"]
]

# %% [markdown]
# The slope is well away from zero all the same. This is no contradiction: the
# comparison asks which model predicts better, while the slope is what the second model
# infers.

# %%
best = runs["map and distance"]
az.summary(
    best.draws,
    var_names=["slope", "sd", "lengthscale", "concentration"],
    kind="stats",
    round_to=2,
)

# %% [markdown]
# ## Could the model have made these data?
#
# A posterior predictive check of what negative binomial counts could miss: the number
# of pieces of street without a death, and the largest number at one piece.

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
statistics = {
    "pieces without a death": lambda y: np.sum(y == 0, axis=-1),
    "most deaths at one piece": lambda y: np.max(y, axis=-1),
}
for name, run in runs.items():
    draws = gp.posterior_predictive(
        random.key(1), model, run.draws, models[name], place, length, y
    )
    drawn = gp.diagnostics.group(draws, "posterior_predictive")["deaths"]
    drawn = np.reshape(drawn, (-1, len(y)))
    for ax, (label, statistic) in zip(axes, statistics.items()):
        values = statistic(drawn)
        ax.hist(values, 25, density=True, histtype="step", lw=2, label=name)
        ax.set(xlabel=label, yticks=[])
for ax, statistic in zip(axes, statistics.values()):
    ax.axvline(statistic(y), color="k", lw=2, label="data")
_ = axes[0].legend(fontsize="small")

# %% [markdown]
# Both models have as many empty pieces as the data. The largest count in the data is at
# the low end of what they predict: the tail of the negative binomial is heavier than
# that of these counts, which is the price of its many zeros.
#
# ## The map
#
# The maps show, for 100 m of street at every place, the expected number of deaths, and
# the probability that it exceeds two (an *exceedance* map). Both come from the same
# draws.

# %%
side = np.linspace(-3.5, 3.5, 36)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2) + broad_street
maps = {}
for name, run in runs.items():
    rate = run.predict(models[name], grid, np.ones(len(grid)))["deaths"]
    paths = gp.draw_functions(
        random.key(2),
        model,
        run.draws,
        models[name],
        grid,
        np.ones(len(grid)),
        num_draws=200,
    )["deaths"]
    exceeds = np.mean(np.asarray(paths) > np.log(2.0), axis=0)
    maps[name] = (np.asarray(rate.mean), exceeds)

figure, axes = plt.subplots(2, 2, figsize=(8, 6.6), layout="constrained")
for row, (name, values) in zip(axes, maps.items()):
    shown = (("expected deaths", "Reds", 40.0), ("P(more than 2)", "viridis", 1.0))
    for ax, value, (label, colours, top) in zip(row, values, shown):
        image = ax.pcolormesh(
            side + broad_street[0],
            side + broad_street[1],
            value.reshape(36, 36),
            cmap=colours,
            vmin=0.0,
            vmax=top,
        )
        plt.colorbar(image, ax=ax, label=f"{label} per 100 m")
        ax.plot(*pumps.T, "k^", mfc="none", ms=5)
        ax.plot(*broad_street, "k^")
        ax.set(title=name, aspect="equal", xticks=[], yticks=[], **limits)
plt.show()

# %% [markdown]
# Where there are data the maps agree. Away from the pump, where few died, the second
# one falls off as its slope says, and is therefore more certain. Neither model knows
# anything about Snow's pump except its distance, and the highest rates are where he
# found them.
