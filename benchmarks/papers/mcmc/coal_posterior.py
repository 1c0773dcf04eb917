"""Disasters: sparse posteriors against the exact process (Hensman et al. 2015, fig. 3).

All 191 disasters in 100 bins, the priors of ``coal``; M = 30 evenly spaced inducing
inputs by a Gaussian approximation and by draws, and an inducing input in every bin by
draws, which is the process without approximation. Rates a year: mean, and the interval
of 90 per cent. float64.
"""

import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import svgp_ppl as gp
from benchmarks.papers.experiment import Budget, Experiment, Measure
from benchmarks.papers.hybrid import chains_from
from benchmarks.papers.mcmc.coal import model_of
from benchmarks.papers.mixing import mixing
from svgp_ppl.diagnostics import group


def problem(num_inducing: int):
    """Bins, counts, width, and inducing inputs: the bins themselves for 100."""
    held = gp.datasets.coal_split(0)
    z = held.x if num_inducing == 100 else gp.inducing.grid(held.x, num_inducing)
    return jnp.asarray(held.x), jnp.asarray(held.y + held.y_test), held.size, z


def run(settings, split):
    """Means of the hyperparameters, and the rate with its interval."""
    x, y, width, z = problem(settings["M"])
    model = model_of(z, width, "natural")
    fit = gp.fit(
        random.key(split),
        model,
        gp.AutoGaussian(model),
        x,
        y,
        optimizer=optax.lbfgs(),
        num_steps=settings["steps"],
        progress=False,
    )
    posterior, numbers = fit, {}
    if settings["posterior"] == "Gaussian":
        held = {n: fit.params[f"{n}_auto_loc"] for n in ("variance", "lengthscale")}
    else:
        sampler = gp.mcmc.NUTS(target_acceptance_rate=0.9)
        key = random.key(split)
        posterior = chains_from(fit, key, model, x, y, settings, sampler)
        held, numbers = group(posterior, "posterior"), mixing(posterior)
    prediction = gp.predict(model, posterior, x)["y"]
    f = np.asarray(prediction.sample_latent(random.key(1), 2000))
    rate = np.exp(f)
    low, high = np.quantile(rate, (0.05, 0.95), axis=0)
    means = {n: float(np.mean(held[n])) for n in ("variance", "lengthscale")}
    curves = {"year": x[:, 0], "count": y, "mean": rate.mean(0)}
    return means | numbers | {"curves": curves | {"low": low, "high": high}}


POSTERIOR = Experiment(
    "mcmc-2015",
    "coal-posterior",
    run,
    cases=(
        {"posterior": "Gaussian", "M": 30},
        {"posterior": "draws", "M": 30},
        {"posterior": "draws", "M": 100},
    ),
    measures=(
        Measure("variance", 2),
        Measure("lengthscale", 2),
        Measure("ESS", 0),
        Measure("R-hat", 3),
    ),
    quick=Budget((0,), {"steps": 300, "chains": 2, "warmup": 300, "draws": 400}),
    full=Budget((0,), {"steps": 1000, "chains": 4, "warmup": 1000, "draws": 2500}),
    x64=True,
    differs="All disasters. The figure of the paper has 50 bins, M = 20 and a bias "
    "kernel, its text 30 inducing inputs: here 100 bins and M = 30, and M = 100 with "
    "an inducing input in every bin, the exact process. Hyperparameters of the "
    "Gaussian are at their mode, those of draws are means.",
)
