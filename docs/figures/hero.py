"""The figure of the README: one model, two inferences.

python docs/figures/hero.py    writes hero.svg beside this file
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp

# Okabe and Ito (2008), told apart with every kind of colour vision.
BLUE, ORANGE = "#0072B2", "#D55E00"


def model(x, y=None):
    """Counts with a rate that varies; the priors are those of Hensman et al. (2015)."""
    variance = numpyro.sample("variance", dist.Gamma(1.0, 0.3))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.1, 0.1))
    z = numpyro.param("z", gp.inducing.grid(np.array([[1851.0], [1962.0]]), 30))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


def rates(posterior, x):
    """Quantiles of the rate exp f(x): 5 %, 50 % and 95 %."""
    at_x = gp.predict(model, posterior, x)["y"]
    drawn = np.exp(np.asarray(at_x.sample_latent(random.key(2), 8000)))
    return np.quantile(drawn, [0.05, 0.5, 0.95], axis=0)


def draw(coal, x, fitted, sampled):
    """Two bands, told apart by colour, by line and by a label at each."""
    plt.rcParams.update({"font.size": 13, "svg.hashsalt": "hero"})
    figure, ax = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    ax.bar(coal.x[:, 0], coal.y, width=coal.width, color="0.84")
    years = x[:, 0]
    ax.fill_between(years, sampled[0], sampled[2], color=ORANGE, alpha=0.3, lw=0)
    ax.plot(years, sampled[1], color=ORANGE, lw=2.6)
    for bound in (fitted[0], fitted[2]):
        ax.plot(years, bound, color=BLUE, lw=1.3, ls=(0, (4, 2)))
    ax.plot(years, fitted[1], color=BLUE, lw=2.6, ls=(0, (4, 1.5)))
    ax.text(1888, 5.4, "counts of a year", color="0.45")
    ax.text(1888, 4.9, "their rate, median and 90 %, by", color="0.2")
    ax.text(1888, 4.4, "variational inference (dashed)", color=BLUE, weight="bold")
    ax.text(1888, 3.9, "Markov chain Monte Carlo", color=ORANGE, weight="bold")
    ax.set(xlim=(1850, 1963), ylim=(0, 6.3), ylabel="disasters a year")
    ax.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    numpyro.enable_x64()
    coal = gp.datasets.coal()
    fit = gp.fit(random.key(0), model, coal.x, coal.y, num_steps=4000)
    draws = gp.sample(random.key(1), model, coal.x, coal.y, init=fit)
    print(gp.diagnostics.report(draws))
    x = np.linspace(1851.0, 1962.0, 150)[:, None]
    figure = draw(coal, x, rates(fit, x), rates(draws, x))
    file = Path(__file__).with_suffix(".svg")
    figure.savefig(file, metadata={"Date": None})
