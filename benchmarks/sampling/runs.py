"""A sampler on a problem, from a fit: a row of numbers."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential
from numpyro.handlers import substitute
from numpyro.infer import MCMC
from numpyro.infer import NUTS as NumPyroNUTS

import svgp_ppl as gp
from benchmarks.sampling.problems import Problem
from benchmarks.sampling.unwhitened import PRIORS, unwhitened
from svgp_ppl.diagnostics import ess, group, rhat, to_arviz
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.target import Target

__all__ = ["SAMPLERS", "averaged", "row_of", "run"]

OURS: dict[str, tuple[Any, str]] = {
    f"{name} {coordinates}": (sampler, coordinates)
    for name, sampler in {
        "NUTS": gp.mcmc.NUTS(),
        "HMC": gp.mcmc.HMC(),
        "ChEES": gp.mcmc.ChEES(),
        "MCLMC": gp.mcmc.MCLMC(),
    }.items()
    for coordinates in ("fitted", "whitened", "collapsed")
}
OURS["Gibbs"] = (gp.mcmc.Gibbs(), "whitened")
OURS["slices"] = (gp.mcmc.Gibbs("elliptical_slice"), "whitened")
OURS["NUTS dense"] = (gp.mcmc.NUTS(metric="dense"), "fitted")
OURS["NUTS refitted"] = (gp.mcmc.NUTS(), "fitted")
# Without a fit: where chains start.
NO_FIT = {"NUTS without a fit": None, "NUTS from Pathfinder": gp.mcmc.Pathfinder()}
OURS |= dict.fromkeys(NO_FIT, (gp.mcmc.NUTS(), "fitted"))
SAMPLERS = (*OURS, "unwhitened", "importance", "numpyro", "numpyro fitted", "hsgp")


def run(name: str, key, problem: Problem, fit, settings: Mapping[str, int]):
    """Draws, and the seconds of the call: compilation and warm-up included."""
    with single_threaded_lapack():
        if "numpyro" in name or name == "hsgp":
            return of_numpyro(name, key, problem, fit, settings)
        began = time.perf_counter()
        draws = of_ours(name, key, problem, fit, settings)
        return draws, time.perf_counter() - began


def of_ours(name: str, key, problem: Problem, fit, settings: Mapping[str, int]):
    """Draws of a sampler of this library."""
    model, x, y = problem.model, problem.x, problem.y
    number = {"num_chains": settings["chains"], "num_samples": settings["draws"]}
    if name == "importance":
        return gp.importance_sample(key, model, x, y, init=fit, **number)
    init, sampler, coordinates = fit, *OURS.get(name, (gp.mcmc.NUTS(), "whitened"))
    if name == "unwhitened":
        model, guide = unwhitened(fit)
        init = (guide, {})
    options = {"num_warmup": settings["warmup"], "coordinates": coordinates}
    options |= {"sampler": sampler, "progress": False, **number}
    if name == "NUTS refitted":
        to_pilot, to_refit, key = random.split(key, 3)
        pilot = gp.sample(to_pilot, model, x, y, init=fit, **options)
        init = gp.mcmc.refit(to_refit, model, fit, pilot, x, y, progress=False)
    init = NO_FIT.get(name, init)
    return gp.sample(key, model, x, y, init=init, **options)


def of_numpyro(name: str, key, problem: Problem, fit, settings: Mapping[str, int]):
    """The same by NumPyro's: a model of ours, a reparameterised one, or an HSGP."""
    x, y = problem.x, problem.y
    if name == "hsgp":
        # With the usual target of 0.8 some trajectories diverge.
        return through_numpyro(key, hsgp_model(x), x, y, settings, accept=0.95)
    if name == "numpyro fitted":
        moved = gp.mcmc.reparam_sites(problem.model, fit, x, y)
        return through_numpyro(key, moved, x, y, settings)
    to_target, to_start, key = random.split(key, 3)
    frozen = substitute(problem.model, data=dict(fit.params))
    target = Target(to_target, problem.model, (x, y), {}, fit.params)
    number = settings["chains"]
    start = target.positions_from(to_start, fit.guide, fit.params, number)
    return through_numpyro(key, frozen, x, y, settings, start)


def through_numpyro(key, model: Callable, x, y, settings, start=None, accept=0.8):
    """Draws, and the seconds from the first call, with those of the draws apart."""
    mcmc = MCMC(
        NumPyroNUTS(model, target_accept_prob=accept),
        num_warmup=settings["warmup"],
        num_samples=settings["draws"],
        num_chains=settings["chains"],
        chain_method=settings["numpyro chains"],
        progress_bar=True,
    )
    fields = ("num_steps", "diverging")
    to_warm_up, to_draw, to_draw_again = random.split(key, 3)
    began = time.perf_counter()
    mcmc.warmup(to_warm_up, x, y, init_params=start)
    mcmc.run(to_draw, x, y, extra_fields=fields)
    whole = time.perf_counter() - began
    began = time.perf_counter()
    mcmc.run(to_draw_again, x, y, extra_fields=fields)
    seconds = time.perf_counter() - began
    extra = mcmc.get_extra_fields(group_by_chain=True)
    stats = {
        "n_steps": np.asarray(extra["num_steps"]),
        "diverging": np.asarray(extra["diverging"]),
    }
    gradients = int(np.sum(stats["n_steps"]))
    attrs = {"sampling_seconds": seconds, "num_gradients": gradients}
    samples = mcmc.get_samples(group_by_chain=True)
    return to_arviz(samples, sample_stats=stats, attrs=attrs), whole


def hsgp_model(x_all) -> Callable:
    """Coal by a Hilbert space approximation of the same process and priors.

    By the rule of Riutort-Mayol et al. (2023) the half-width L of the box is 3.2 times
    the longest lengthscale, and there are 1.75 L over the shortest basis functions: 36
    and 6.8 years, between which 98 % of the posterior lies.
    """
    centre, half = float(np.min(x_all) + np.max(x_all)) / 2, 3.2 * 36.0
    number = math.ceil(1.75 * half / 6.8)

    def model(x, y=None):
        prior_variance, prior_lengthscale = PRIORS
        variance = numpyro.sample("variance", dist.Gamma(*prior_variance))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(*prior_lengthscale))
        f = hsgp_squared_exponential(
            x - centre,
            jnp.sqrt(variance),
            lengthscale,
            half,
            number,
            non_centered=True,
        )
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Poisson(jnp.exp(f)), obs=y)

    return model


def row_of(draws, whole: float) -> dict[str, Any]:
    """What the table shows, and posterior moments to compare samplers by.

    ``to 400``: seconds from the call to 400 effective draws of the slowest parameter.
    """
    attributes = draws["posterior"].attrs
    most = attributes.get("effective_sample_size", np.inf)
    sizes = {n: np.minimum(np.ravel(v), most) for n, v in ess(draws).items()}
    every = np.concatenate(list(sizes.values()))
    seconds = float(attributes["sampling_seconds"])
    stats = group(draws, "sample_stats")
    gradients = int(attributes["num_gradients"])
    return {
        "ESS min": float(every.min()),
        "ESS median": float(np.median(every)),
        "R-hat": max(float(np.max(v)) for v in rhat(draws).values()),
        "call": whole,
        "sampling": seconds,
        "to 400": whole - seconds + seconds * 400 / float(every.min()),
        "gradients": gradients,
        "gradients a draw": gradients / stats["n_steps"].size if gradients else 0.0,
        "divergences": int(np.sum(stats.get("diverging", 0))),
        "moments": moments(draws, sizes),
    }


def averaged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of several runs that differ in their key.

    Means over the runs; the worst R-hat, the sum of divergences, and effective draws
    of the moments together. Only the first run compiles: the time up to its first draw
    is the one that a user waits.
    """
    first = rows[0]
    means = {n: float(np.mean([row[n] for row in rows])) for n in AVERAGED}
    least = means["ESS min"]
    together = {}
    for name in first["moments"]:
        mean, sd, size = np.moveaxis([row["moments"][name] for row in rows], 1, 0)
        together[name] = np.stack([mean.mean(0), sd.mean(0), size.sum(0)]).tolist()
    return {
        **means,
        "R-hat": max(row["R-hat"] for row in rows),
        "call": first["call"],
        "to 400": first["call"] - first["sampling"] + means["sampling"] * 400 / least,
        "divergences": sum(row["divergences"] for row in rows),
        "moments": together,
        "ESS min of each run": [row["ESS min"] for row in rows],
    }


AVERAGED = ("ESS min", "ESS median", "sampling", "gradients", "gradients a draw")


def moments(draws, sizes: Mapping[str, np.ndarray]) -> dict[str, list[list[float]]]:
    """Mean, sd and effective draws of each hyperparameter, on a log scale."""
    found = {}
    for name, value in group(draws, "posterior").items():
        value = np.asarray(value, float)
        if np.all(value > 0.0):  # whitened values are of either sign
            logs = np.log(value).reshape(-1, sizes[name].size)
            found[name] = np.stack([logs.mean(0), logs.std(0), sizes[name]]).tolist()
    return found
