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
# # A time series in parts: trend, season, residual
#
# A monthly series is a slow trend, a season that repeats every year, and what is left.
# Each part is a Gaussian process with its own kernel; the model adds them up, and the
# posterior has each of them separately. The data are the monthly means of CO₂ at Mauna
# Loa from 1988 to 2017, in parts per million (NOAA Global Monitoring Laboratory). The
# last five years are kept for testing.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp

numpyro.enable_x64()
plt.style.use("tableau-colorblind10")

table = gp.datasets.table("mauna_loa")
years = (table["Year"] + (table["Month"] - 0.5) / 12)[:, None]
co2 = table["CO2"]
is_train = years[:, 0] < 2013
x, y = years[is_train], co2[is_train]
x_test, y_test = years[~is_train], co2[~is_train]
print(f"{len(y)} months to fit, {len(y_test)} to predict")

# %%
figure, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
ax.plot(x, y, ".", ms=3, label="fitted")
ax.plot(x_test, y_test, ".", ms=3, label="kept for the test")
ax.set(xlabel="year", ylabel="CO₂ / ppm")
_ = ax.legend()

# %% [markdown]
# ## The model
#
# - *Trend*: a parabola, because the growth is known to accelerate, and around it a
#   smooth process that changes over decades.
# - *Season*: a process of the month, the same in every year. Its kernel is periodic, so
#   that inducing inputs within a single year are enough.
# - *Residual*: a rougher process, correlated over months to a few years.
# - *Noise*: independent from month to month.
#
# The priors are in ppm and years. They say what is plausible before seeing the data: a
# trend of around 1.5 ppm per year, a season of a few ppm, a residual below one. Priors
# on the lengthscales keep the parts apart: without them a "residual" with a lengthscale
# of twenty years would be a second trend.
#
# Without data, that is in predictions, three further sites return the parts.


# %%
z_slow = np.linspace(1986.0, 2020.0, 10)[:, None]
z_year = np.linspace(2000.0, 2001.0, 12, endpoint=False)[:, None]
z_fast = np.linspace(1987.5, 2018.5, 40)[:, None]


def lognormal(name, median, factor):
    """Two thirds of the prior lie within this factor of the median."""
    return numpyro.sample(name, dist.LogNormal(np.log(median), np.log(factor)))


def model(x, y=None):
    # In units of 10 ppm: optimisers start every site at about one.
    level = 370.0 + 10.0 * numpyro.sample("level", dist.Normal(0.0, 1.0))
    slope = numpyro.sample("slope", dist.Normal(1.5, 1.0))  # ppm a year
    bend = numpyro.sample("bend", dist.Normal(0.0, 1.0))  # ppm in a decade, squared
    slow = gp.kernels.RBF(
        lognormal("trend_sd", 3.0, 2.0) ** 2, lognormal("trend_years", 15.0, 1.4)
    )
    year = gp.kernels.RBF(
        lognormal("season_sd", 3.0, 2.0) ** 2, lognormal("season_shape", 1.0, 1.5)
    )
    fast = gp.kernels.Matern32(
        lognormal("residual_sd", 0.5, 2.0) ** 2, lognormal("residual_years", 1.0, 1.6)
    )
    noise = lognormal("noise", 0.3, 1.5)

    t = x[:, 0] - 2000
    parabola = level + slope * t + bend * (t / 10) ** 2
    trend = gp.sparse_gp("f_trend", slow, z_slow)(x) + parabola
    season = gp.sparse_gp("f_season", gp.kernels.Periodic(year, 1.0), z_year)(x)
    residual = gp.sparse_gp("f_residual", fast, z_fast)(x)
    with numpyro.plate("month", len(x)):
        total = trend + season + residual
        gp.observe("y", gp.likelihoods.Gaussian(noise), total, obs=y)
        if y is None:
            for name, part in (
                ("trend", trend),
                ("season", season),
                ("residual", residual),
            ):
                gp.observe(name, gp.likelihoods.Gaussian(noise), part)


# %% [markdown]
# ## The fit
#
# `AutoCoupled` is one Gaussian over the inducing values of all three processes. It
# knows that they share the data: where the trend is higher, the residual is lower. All
# noise is Gaussian here, so nothing is lost by this form, and natural gradients find it
# in a few steps. The hyperparameters are those of the largest posterior density.

# %%
fit = gp.fit(
    random.key(0),
    model,
    gp.AutoCoupled(model),
    x,
    y,
    optimizer=gp.natural_gradient(0.5, optax.adam(0.02)),
    num_steps=2000,
    progress=False,
)
print(gp.diagnostics.report(fit, x, y))
for name, value in fit.guide.median(fit.params).items():
    if value.ndim == 0:
        print(f"{name:15s} {value:.2f}")

# %% [markdown]
# ## The parts
#
# `draw_functions` draws the three parts together, in the past and in the years to come.
# A constant can move from one part to another without changing the sum, so the mean of
# each draw of the season is moved to the trend. The bands contain 90 % of the draws.

# %%
drawn = gp.draw_functions(random.key(1), model, fit, years, num_draws=200)
parts = {name: np.asarray(drawn[name]) for name in ("trend", "season", "residual")}
constant = np.mean(parts["season"], axis=1, keepdims=True)
parts["season"] = parts["season"] - constant
parts["trend"] = parts["trend"] + constant
bands = {name: np.quantile(f, [0.05, 0.5, 0.95], axis=0) for name, f in parts.items()}

# %%
figure, axes = plt.subplots(3, 1, figsize=(7, 6.5), sharex=True, layout="constrained")
for ax, (name, band) in zip(axes, bands.items()):
    gp.plots.function_band(years, *band, ax=ax, label=name)
    others = sum(bands[other][1] for other in parts if other != name)
    left = y - others[is_train]
    ax.plot(x, left, ".", ms=2, color="k", label="data − the other parts")
    ax.axvline(2013, color="0.5", lw=0.8, ls=":")
    ax.set(ylabel=f"{name} / ppm")
axes[0].legend()
_ = axes[2].set(xlabel="year")

# %% [markdown]
# The residual shows events: slow growth after the eruption of Pinatubo in 1991, and the
# El Niño of 1997 and 1998.
#
# What is least certain is *which part* a change belongs to. Sums are known better:

# %%
now = np.flatnonzero(is_train)[-1]
print("standard deviations in December 2012, in ppm")
total = parts["trend"] + parts["residual"]
for name, f in {**parts, "trend + residual": total}.items():
    print(f"  {name:17s} {np.std(f[:, now]):.2f}")

# %% [markdown]
# One year of the season: the highest month is May.

# %%
figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
months = np.arange(1, 13)
gp.plots.function_band(months, *bands["season"][:, :12], ax=ax)
ax.set(xlabel="month", ylabel="season / ppm", xticks=months)
_ = ax.axhline(0, color="0.5", lw=0.8)

# %% [markdown]
# ## Can the model be trusted?
#
# First, could it have made the data that it has seen? The check uses a statistic that
# the model does not fit directly: the largest rise from one year to the next, over the
# same month.

# %%
new = gp.posterior_predictive(random.key(2), model, fit, x, y, num_draws=1000)
new = np.reshape(gp.diagnostics.group(new, "posterior_predictive")["y"], (-1, len(y)))


def largest_rise(series):
    """Over twelve months, in ppm."""
    return np.max(series[..., 12:] - series[..., :-12], axis=-1)


low, high = np.quantile(largest_rise(new), [0.05, 0.95])
print(f"largest rise: {largest_rise(y):.2f} ppm, model {low:.2f} to {high:.2f} ppm")

# %% [markdown]
# Then the five years that it has not seen:

# %%
ahead = gp.predict(model, fit, x_test)["y"]
low, high = ahead.interval(0.9)
inside = np.mean((low <= y_test) & (y_test <= high))
error = np.sqrt(np.mean((ahead.mean - y_test) ** 2))
print(f"{100 * inside:.0f} % of the test months within the 90 % band")
print(f"root mean squared error {error:.2f} ppm")

figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
gp.plots.function_band(x_test, low, ahead.mean, high, ax=ax, label="predicted, 90 %")
ax.plot(x_test, y_test, "k.", ms=4, label="measured")
ax.set(xlabel="year", ylabel="CO₂ / ppm")
_ = ax.legend()

# %% [markdown]
# For two and a half years the months are where they were predicted; then they rise
# above the band. The El Niño of 2015 and 2016 brought faster growth than any in the 25
# years before, and the band is too narrow for another reason too: the fit treats the
# parabola and the hyperparameters as known. `gp.sample(key, model, x, y, init=fit)`
# draws them as well, with the processes integrated out.
