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
# # Survival times, some of them censored
#
# How long do patients stay free of a recurrence, and what does it depend on? The data
# are the 686 women of a trial of the German Breast Cancer Study Group (see Royston &
# Altman 2013). For 387 of them the study ended before a recurrence. These times are
# *censored*: we know only that they are longer than what was seen.
#
# The model is an accelerated failure time model: a Weibull distribution of the time,
# whose scale depends on the patient. The number of positive lymph nodes, the
# progesterone receptors and the age act through smooth functions, Gaussian processes,
# because their effects are known not to be linear; the others act linearly.

# %%
import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp

numpyro.enable_x64()
plt.style.use("tableau-colorblind10")

table = gp.datasets.table("breast_cancer")
years = table["rfstime"] / 365.25
censored = (table["status"] == 0).astype(int)
print(f"{len(years)} patients, {np.sum(censored == 0)} recurrences or deaths")

smooth = {  # column -> the scale on which its process sees it
    "nodes": np.log(table["nodes"]),
    "progesterone": np.log1p(table["pgr"]),
    "age": table["age"] / 10,
}
linear = {
    "hormone therapy": table["hormon"],
    "size": (table["size"] - 30) / 10,
    "grade": table["grade"] - 2,
}
x = np.column_stack(list(smooth.values()))
w = np.column_stack(list(linear.values()))

# %% [markdown]
# ## The model
#
# With $f$ the log of the scale, P(time > t) = exp(−(t / exp f)^c). A unit of $f$
# multiplies all times by e, so effects of one or two are large, and the priors say so;
# those of `sd` keep away from zero, where a lengthscale would be meaningless. `Weibull`
# takes `censored=1` for the censored times. Each process uses one column of x, with its
# own inducing inputs.

# %%
z = [np.linspace(*np.quantile(column, [0, 1]), 8)[:, None] for column in x.T]


def model(x, w, years=None, censored=0):
    with numpyro.plate("effect", w.shape[1]):
        beta = numpyro.sample("beta", dist.Normal(0.0, 0.5))
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("process", len(z)):
        sd = numpyro.sample("sd", dist.LogNormal(-0.5, 0.5))
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.7, 0.5))

    f = 1.5 + w @ beta  # the processes have room for another level
    for d, name in enumerate(smooth):
        kernel = gp.kernels.RBF(sd[d] ** 2, lengthscale[d])
        f = f + gp.sparse_gp(name, kernel, z[d])(x[:, d : d + 1])
    with numpyro.plate("patient", len(x)):
        gp.observe("time", gp.likelihoods.Weibull(shape, censored), f, obs=years)


# %% [markdown]
# ## Fit, and draws from it
#
# The fit with `AutoCoupled` captures how the three functions depend on each other. The
# chains start from it.

# %%
hybrid = gp.fit_and_sample(
    random.key(0),
    model,
    x,
    w,
    years,
    censored,
    guide=gp.AutoCoupled(model),
    sampler=gp.mcmc.NUTS(target_acceptance_rate=0.95),
    num_warmup=250,
    num_samples=250,
    log_likelihood=True,
    coords={"process": list(smooth), "effect": list(linear)},
    progress=False,
)
print(gp.diagnostics.report(hybrid.draws))
az.summary(hybrid.draws, var_names=["beta", "shape", "sd"], kind="stats", round_to=2)

# %% [markdown]
# Positive effects are good: they lengthen the time. Hormone therapy multiplies it by
# exp(beta), a factor of about 1.3. A `shape` above one says that the hazard rises with
# time.
#
# ## The three functions
#
# The figure shows the effect of each column, as the factor by which it multiplies all
# times, with the others at their medians. Ticks at the bottom show where there are
# patients.

# %%
middle, zero = np.median(x, axis=0), np.zeros((60, w.shape[1]))
units = {
    "nodes": ("positive nodes", np.exp),
    "progesterone": ("progesterone receptors / (fmol/l)", np.expm1),
    "age": ("age / years", lambda a: 10 * a),
}
figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
for d, (ax, name) in enumerate(zip(axes, smooth)):
    grid = np.tile(middle, (60, 1))
    grid[:, d] = np.linspace(*np.quantile(x[:, d], [0.005, 0.995]), 60)
    f = gp.draw_functions(
        random.key(1), model, hybrid.draws, grid, zero, num_draws=500
    )["time"]
    # Relative to the median patient, draw by draw: the level cancels.
    at = np.argmin(np.abs(grid[:, d] - middle[d]))
    factor = np.exp(np.asarray(f) - np.asarray(f)[:, at : at + 1])
    label, back = units[name]
    low, mid, high = np.quantile(factor, [0.05, 0.5, 0.95], axis=0)
    gp.plots.function_band(back(grid[:, d]), low, mid, high, ax=ax)
    ax.plot(back(x[:, d]), np.full(len(x), 0.17), "|", color="k", alpha=0.15)
    ax.axhline(1, color="0.5", lw=0.8)
    ax.set(xlabel=label, yscale="log", xlim=back(grid[[0, -1], d]))
axes[1].set_xscale("symlog", linthresh=10)
_ = axes[0].set(ylabel="factor of the time")
axes[0].set_yticks([0.25, 0.5, 1, 2], labels=["1/4", "1/2", "1", "2"])
axes[0].minorticks_off()

# %% [markdown]
# ## Does the model fit?
#
# The Kaplan–Meier estimate of the share without recurrence needs no model. The bands
# contain 90 % of the draws of the same share in data drawn by the model, without
# censoring. The patients are split by the number of nodes, the strongest covariate.


# %%
def kaplan_meier(times, censored):
    """Times and the share that is left after each."""
    order = np.argsort(times, kind="stable")
    at_risk = np.arange(len(times), 0, -1)
    left = np.cumprod(1 - (censored[order] == 0) / at_risk)
    return np.r_[0, times[order]], np.r_[1, left]


drawn = gp.posterior_predictive(random.key(2), model, hybrid.draws, x, w)
times = gp.diagnostics.group(drawn, "posterior_predictive")["time"]
times = np.reshape(times, (-1, len(x)))
t = np.linspace(0.0, 7.0, 60)

figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
groups = {"1 to 3 nodes": (1, 3), "4 to 9": (4, 9), "10 and more": (10, 99)}
for color, (label, (first, last)) in zip(("C0", "C1", "C2"), groups.items()):
    rows = (table["nodes"] >= first) & (table["nodes"] <= last)
    left = np.mean(times[:, rows, None] > t, axis=1)
    low, mid, high = np.quantile(left, [0.05, 0.5, 0.95], axis=0)
    gp.plots.function_band(t, low, mid, high, ax=ax, color=color, label=label)
    known = kaplan_meier(years[rows], censored[rows])
    ax.step(*known, where="post", color=color, lw=0.8)
ax.set(xlabel="years", ylabel="without recurrence", xlim=(0, 7), ylim=(0, 1))
_ = ax.legend(title="bands: model; steps: Kaplan–Meier", fontsize="small")

# %% [markdown]
# The steps are within the bands or near their edges. What the model misses can be seen
# too: in the data there are fewer recurrences in the first half year, and more in the
# two years after it. The hazard of a Weibull distribution rises or falls for all times;
# here it rises, and then falls. A log-normal time, `gp.likelihoods.CensoredGaussian`
# for the log of the years, is the next model to try.
