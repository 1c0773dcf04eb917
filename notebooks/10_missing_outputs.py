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
# # Several outputs, with entries missing
#
# Four things were measured in New York on each of 153 days of 1973: ozone, sunshine,
# wind and temperature (Chambers, Cleveland, Kleiner & Tukey 1983). A quarter of the
# ozone values are missing. The outputs move together, so what is known about a day's
# weather says something about its ozone. Processes that the outputs share express how
# much.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp

numpyro.enable_x64()
plt.style.use("tableau-colorblind10")

table = gp.datasets.table("air_quality")
names = ["log ozone", "sun", "wind", "temperature"]
columns = [np.log(table["Ozone"]), table["Solar.R"], table["Wind"], table["Temp"]]
measured = np.column_stack(columns)
mean, scale = np.nanmean(measured, axis=0), np.nanstd(measured, axis=0)
y = (measured - mean) / scale
x = np.arange(len(y), dtype=float)[:, None]  # days from the first of May
print("missing:", dict(zip(names, np.isnan(y).sum(axis=0).tolist())))

# %% [markdown]
# To see what the shared processes are worth, the ozone values of three blocks of twelve
# days, 31 of them known, are kept for testing.

# %%
blocks = np.zeros(len(x), bool)
for start in (15, 75, 125):
    blocks[start : start + 12] = True
is_test = blocks & ~np.isnan(y[:, 0])
known = ~np.isnan(y)
known[is_test, 0] = False
print(f"{is_test.sum()} ozone values kept, {known[:, 0].sum()} to fit")

# %% [markdown]
# ## The model
#
# This is the linear model of coregionalisation: all outputs share two processes of the
# day, one slow and one fast, mixed by a matrix of weights; each output has noise of its
# own. A mask says which entries are known; the others have no influence at all.

# %%
z_slow, z_fast = (np.linspace(-5.0, 158.0, m)[:, None] for m in (16, 55))
num_outputs = len(names)


def model(x, y=None, known=None):
    mixing = numpyro.sample(
        "mixing", dist.Normal(0.0, 1.0).expand([num_outputs, 2]).to_event(2)
    )
    days = numpyro.sample("days", dist.LogNormal(np.log([25.0, 2.0]), 0.4).to_event(1))
    slow = gp.sparse_gp("slow", gp.kernels.RBF(1.0, days[0]), z_slow)
    fast = gp.sparse_gp("fast", gp.kernels.Matern32(1.0, days[1]), z_fast)
    shared = mixing @ gp.stack([slow(x), fast(x)])
    with numpyro.plate("output", num_outputs):
        noise = numpyro.sample("noise", dist.LogNormal(np.log(0.5), 0.5))
    for p in range(num_outputs):
        with numpyro.plate(f"day_{p}", len(x)):
            gp.observe(
                f"y{p}",
                gp.likelihoods.Gaussian(noise[p]),
                shared[..., p],
                obs=None if y is None else y[:, p],
                mask=None if known is None else known[:, p],
            )


# %% [markdown]
# ## Two fits of one model
#
# The second one is not shown the other three outputs: all their entries are masked, and
# nothing else changes.


# %%
def fitted(known):
    return gp.fit(
        random.key(0),
        model,
        gp.AutoCoupled(model),
        x,
        y,
        known,
        num_steps=1500,
        progress=False,
    )


alone = known.copy()
alone[:, 1:] = False
fits = {"all outputs": fitted(known), "ozone alone": fitted(alone)}
print(gp.diagnostics.report(fits["all outputs"], x, y, known))

# %% [markdown]
# ## The ozone values that were kept

# %%
print("90 % intervals of the kept values, log ozone:")
predictions = {}
for name, fit in fits.items():
    predictions[name] = at = gp.predict(model, fit, x)["y0"]
    low, high = at.interval(0.9)
    error = scale[0] * (np.asarray(at.mean) - y[:, 0])[is_test]
    inside = np.mean(((low <= y[:, 0]) & (y[:, 0] <= high))[is_test])
    width = np.mean(scale[0] * (high - low)[is_test])
    score = np.mean(np.asarray(at.log_prob(np.nan_to_num(y[:, 0])))[is_test])
    print(
        f"  {name}: root mean squared error {np.sqrt(np.mean(error**2)):.2f}, "
        f"width {width:.2f}, {100 * inside:.0f} % inside, "
        f"log density {score - np.log(scale[0]):.2f}"
    )

# %% [markdown]
# In a block of twelve days without ozone values, the fit to ozone alone goes back to
# the mean, with a wide band. The other outputs were measured on those days, and the
# shared processes carry their information over to the ozone: the error is smaller, the
# band narrower, and the log density of the measurements higher. (Of 31 values, 90 %
# intervals contain 25 to 31 with a probability of 97 %.)

# %%
figure, axes = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
ozone = table["Ozone"]
for ax, (name, at) in zip(axes, predictions.items()):
    low, high = (np.exp(mean[0] + scale[0] * v) for v in at.interval(0.9))
    middle = np.exp(mean[0] + scale[0] * at.quantile(0.5))
    gp.plots.function_band(x, low, middle, high, ax=ax, label=f"{name}, 90 %")
    ax.plot(x[known[:, 0]], ozone[known[:, 0]], "k.", ms=4, label="fitted")
    ax.plot(x[is_test], ozone[is_test], "s", ms=5, mfc="none", color="C1", label="kept")
    ax.set(ylabel="ozone / ppb", yscale="log", ylim=(1, 400))
    ax.legend(ncols=3, fontsize="small", loc="lower right")
_ = axes[1].set(xlabel="days from the first of May 1973")

# %% [markdown]
# ## What the outputs share
#
# Changing the sign of a process and of its column of the mixing matrix changes nothing
# in the data: only the relative signs within a column have a meaning. Ozone and
# temperature go together, wind goes against them.

# %%
mixing = np.asarray(fits["all outputs"].params["mixing_auto_loc"])
noise = np.asarray(fits["all outputs"].params["noise_auto_loc"])
figure, ax = plt.subplots(figsize=(4.2, 2.8), layout="constrained")
image = ax.imshow(mixing, cmap="RdBu_r", vmin=-1.5, vmax=1.5, aspect="auto")
for (p, q), weight in np.ndenumerate(mixing):
    ax.text(q, p, f"{weight:.2f}", ha="center", va="center")
ax.set_xticks([0, 1], labels=["slow", "fast"])
ax.set_yticks(range(num_outputs), labels=names)
_ = plt.colorbar(image, ax=ax, label="weight")
for name, value in zip(names, noise):
    print(f"{name:12s} sd of the noise {value:.2f}, of the data 1")
