"""HMC against Gibbs: effective sizes and PSRF (Hensman et al. 2015, supplement).

Both are tuned by Bayesian optimisation, start from the Gaussian fit with z frozen, and
move whitened values; on the disasters HMC once more in the coordinates of the fit.
Smallest effective size of a chain over all parameters, averaged over the chains, and
per second of sampling, which only the files of results hold, since it depends on what
else the processor does; PSRF of Gelman & Rubin (1992) on growing windows.
"""

import jax.numpy as jnp
import numpy as np
from jax import random

import svgp_ppl as gp
from benchmarks.papers.experiment import Budget, Experiment, Measure
from benchmarks.papers.hybrid import fit_then_sample
from benchmarks.papers.mcmc import clouds, coal_posterior, image
from benchmarks.papers.mcmc.coal import model_of
from svgp_ppl.diagnostics import arrays_of, ess, psrf


def sampler_of(settings):
    """That of the name, with bounds about those of the released code."""
    rounds = settings["rounds"]
    if settings["sampler"] != "Gibbs":
        return gp.mcmc.HMC((0.005, 0.5), (5, 40), num_rounds=rounds)
    return gp.mcmc.Gibbs(
        step_size_bounds=(0.005, 0.5), max_steps_bounds=(5, 40), num_rounds=rounds
    )


def coal_draws(settings, sampler):
    """All disasters in 100 bins, M = 30."""
    x, y, width, z = coal_posterior.problem(30)
    model = model_of(z, width, "natural")
    coordinates = "whitened" if settings["sampler"] == "HMC" else None
    x = x.astype(jnp.float32)
    return fit_then_sample(
        random.key(0), model, x, y, settings, sampler, coordinates
    ).draws


def run(settings, split):
    """Effective sizes, their rate, and the PSRF of the slowest parameters."""
    sampler = sampler_of(settings)
    match settings["data"]:
        case "coal":
            draws = coal_draws(settings, sampler)
        case "image":
            options = {**settings, "M": 100, "z": "fitted"}
            draws = image.hybrid(options, 0, sampler, "whitened")[1].draws
        case "clouds":
            is_ard = settings["kernel"] == "ARD"
            draws = clouds.hybrid(settings, sampler, is_ard, "whitened")[1].draws
    values = arrays_of(draws)
    smallest = [
        min(
            float(np.min(v))
            for v in ess({n: a[[c]] for n, a in values.items()}).values()
        )
        for c in range(settings["chains"])
    ]
    seconds = float(draws["posterior"].attrs["sampling_seconds"])
    curves = shrinking(values, settings["draws"])
    return {
        "ESS": np.mean(smallest),
        "ESS a second": np.sum(smallest) / seconds,
        "largest PSRF": max(curves["psrf"][-1]),
        "curves": curves,
    }


def shrinking(values, num_draws: int, num_windows: int = 20):
    """PSRF of the five slowest parameters after so many draws."""
    ends = np.linspace(num_draws // num_windows, num_draws, num_windows).astype(int)
    found = psrf(values, windows=ends.tolist()).values()
    table = np.concatenate([v.reshape(len(ends), -1) for v in found], axis=1)
    slowest = np.argsort(table[-1])[-5:]
    return {"draws": ends, "psrf": table[:, slowest]}


FITTED = "HMC, fitted coordinates"
CASES = (
    *({"data": "coal", "sampler": s} for s in ("HMC", "Gibbs", FITTED)),
    *(
        {"data": data, "kernel": kernel, "sampler": s}
        for data in ("image", "clouds")
        for kernel in ("isotropic", "ARD")
        for s in ("HMC", "Gibbs")
    ),
)
CHAINS = Experiment(
    "mcmc-2015",
    "chains",
    run,
    cases=CASES,
    measures=(
        Measure("ESS", 1),
        Measure("largest PSRF", 2),
    ),
    quick=Budget(
        (0,),
        {"steps": 1000, "chains": 4, "rounds": 10, "warmup": 200, "draws": 1000},
        CASES[:3],
    ),
    full=Budget(
        (0,),
        {"steps": 5000, "chains": 10, "rounds": 20, "warmup": 1000, "draws": 5000},
    ),
    differs="Hyperparameters on a log scale. Published effective sizes are of 5000 "
    "draws; the quick budget has 1000. The figure has a PSRF below 1.001 as 1.001.",
)
