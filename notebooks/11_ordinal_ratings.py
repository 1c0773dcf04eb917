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
# # Grades
#
# Before an election, 1525 British voters were asked to grade the state of the national
# economy from 1 to 5 (British Election Panel Study 1997 to 2001; Fox & Andersen 2006).
# How do the grades depend on age, and on what a voter thinks of Europe? Grades are
# ordered, but the distance from 2 to 3 need not be that from 4 to 5: the likelihood is
# `Ordinal`, whose cutpoints are learnt.

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

voters = gp.datasets.table("election_panel")
y = voters["economic.cond.national"].astype(int) - 1
age, europe = voters["age"], voters["Europe"]
print("voters by grade:", dict(zip(range(1, 6), np.bincount(y).tolist())))


def shares(ax, groups, grades, label):
    """Shares of the grades in each group."""
    values = np.unique(groups)
    share = [[np.mean(grades[groups == v] == k) for v in values] for k in range(5)]
    ax.stackplot(values, share, labels=[f"grade {k + 1}" for k in range(5)])
    ax.set(xlabel=label, ylabel="share", ylim=(0, 1))


figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
shares(axes[0], 10 * np.clip(age // 10, 2, 8), y, "age, in tens of years")
shares(axes[1], europe, y, "against Europe, 1 to 11")
_ = axes[0].legend(fontsize="small", loc="lower right", ncols=2)

# %% [markdown]
# ## The model
#
# A latent opinion $f$ and logistic noise; the grade is the number of cutpoints below
# their sum. A constant added to f and to all cutpoints changes nothing, so f has no
# level of its own. In one model both covariates have lines, in the other each has a
# smooth function about its line.

# %%
x = np.column_stack([(age - 50.0) / 15.0, (europe - 6.0) / 3.0])


def model(is_smooth, x, y=None):
    ordered = dist.transforms.OrderedTransform()
    base = dist.Normal(0.0, 2.0).expand([4]).to_event(1)
    cutpoints = numpyro.sample("cutpoints", dist.TransformedDistribution(base, ordered))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = dist.HalfNormal(0.5) if is_smooth else dist.Delta(0.0)
    f = 0.0
    for column, name in enumerate(("age", "europe")):
        sd = numpyro.sample(f"sd_{name}", dist.HalfNormal(0.5)) if is_smooth else 1e-3
        line = lambda x, b=slope[column], c=column: b * x[:, c]
        kernel = gp.kernels.RBF(sd**2, 1.0, active_columns=(column,))
        z = np.zeros((8, 2))
        z[:, column] = np.linspace(x[:, column].min(), x[:, column].max(), 8)
        f = f + gp.sparse_gp(f"f_{name}", kernel, z, mean=line)(x)
    with numpyro.plate("voter", len(x)):
        gp.observe("grade", gp.likelihoods.Ordinal(cutpoints), f, obs=y)
