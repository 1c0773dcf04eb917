"""Effective draws a second and a gradient: every sampler on the same models.

    python benchmarks/speed/samplers.py coal [--samplers NUTS HMC ...] [--x64]
    python benchmarks/speed/samplers.py image --samplers NUTS numpyro

Four chains from the same Gaussian fit. ``+`` marks chains that move in the coordinates
of the fit (``precondition=True``), ``-`` those that do not. ``numpyro`` is
``numpyro.infer.MCMC(NUTS(model))`` on the same model with z frozen, from the same
positions. The effective sample size is ArviZ's (bulk), the smallest over all parameters
and in the median, over all chains; warm-up and compilation are not in the seconds.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.handlers import substitute
from numpyro.infer import MCMC
from numpyro.infer import NUTS as NumPyroNUTS

import svgp_ppl as gp
from svgp_ppl.__main__ import coal_model
from svgp_ppl.diagnostics import ess, group, rhat, to_arviz
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.target import make_target

SAMPLERS = {
    "NUTS+": (gp.mcmc.NUTS(), True),
    "NUTS-": (gp.mcmc.NUTS(), False),
    "dense+": (gp.mcmc.NUTS(metric="dense"), True),
    "HMC+": (gp.mcmc.HMC(), True),
    "HMC-": (gp.mcmc.HMC(), False),
    "ChEES+": (gp.mcmc.ChEES(), True),
    "ChEES-": (gp.mcmc.ChEES(), False),
    "MCLMC+": (gp.mcmc.MCLMC(), True),
    "MCLMC-": (gp.mcmc.MCLMC(), False),
    "Gibbs": (gp.mcmc.Gibbs(), False),
    "slices": (gp.mcmc.Gibbs("elliptical_slice"), False),
    "numpyro": (None, False),
}


def image_model(z_start):
    """Labels of image segments (Rätsch), RBF with one lengthscale, probit link."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(1.1, 1.0))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.1, 1.0))
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z_start))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Bernoulli("probit"), f(x), obs=y)

    return model


def problem(name: str, m: int):
    """Model and data."""
    if name == "coal":
        data = gp.datasets.coal()
        return coal_model(gp.inducing.grid(data.x, m)), data.x, data.y
    data = gp.datasets.image()
    return image_model(gp.inducing.kmeans(data.x, m)), data.x, data.y


def through_numpyro(model, fit, x, y, options):
    """Draws by NumPyro's own sampler, with its seconds and gradients."""
    held = substitute(model, data={"z": fit.params["z"]})
    target = make_target(random.key(1), model, (x, y), {}, fit.params)
    start = target.positions_from(random.key(2), fit.guide, fit.params, options.chains)
    mcmc = MCMC(
        NumPyroNUTS(held),
        num_warmup=options.warmup,
        num_samples=options.samples,
        num_chains=options.chains,
        chain_method="vectorized",
        progress_bar=True,
    )
    mcmc.warmup(random.key(3), x, y, init_params=start)
    fields = ("num_steps", "diverging")
    mcmc.run(random.key(4), x, y, extra_fields=fields)  # compiles
    began = time.perf_counter()
    mcmc.run(random.key(5), x, y, extra_fields=fields)
    seconds = time.perf_counter() - began
    extra = mcmc.get_extra_fields(group_by_chain=True)
    return to_arviz(
        mcmc.get_samples(group_by_chain=True),
        sample_stats={
            "n_steps": np.asarray(extra["num_steps"]),
            "diverging": np.asarray(extra["diverging"]),
        },
        attrs={
            "sampling_seconds": seconds,
            "num_gradients": int(np.sum(extra["num_steps"])),
        },
    )


def report(name: str, draws) -> None:
    """A line of the table."""
    sizes = np.concatenate([np.ravel(v) for v in ess(draws).values()])
    worst = max(float(np.max(v)) for v in rhat(draws).values())
    attributes = draws["posterior"].attrs
    seconds, gradients = attributes["sampling_seconds"], attributes["num_gradients"]
    stats = group(draws, "sample_stats")
    divergences = int(stats["diverging"].sum()) if "diverging" in stats else 0
    per_gradient = 1000 * sizes.min() / gradients if gradients else float("nan")
    print(
        f"{name:8s}{sizes.min():9.0f}{np.median(sizes):9.0f}{worst:8.3f}{seconds:9.2f}"
        f"{sizes.min() / seconds:10.1f}{np.median(sizes) / seconds:10.1f}"
        f"{per_gradient:12.2f}{gradients / stats['n_steps'].size:10.1f}"
        f"{divergences:6d}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="coal", choices=["coal", "image"])
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS))
    parser.add_argument("--m", type=int)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3000, help="of the fit")
    parser.add_argument("--warmup", type=int, default=900)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--x64", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    m = options.m or (30 if options.name == "coal" else 100)
    model, x, y = problem(options.name, m)
    x, y = jnp.asarray(x, jnp.result_type(float)), jnp.asarray(y)
    guide = gp.AutoGaussian(model)
    optimizer = optax.adam(0.02)
    fit = gp.fit(
        random.key(0), model, guide, x, y, optimizer=optimizer, num_steps=options.steps
    )
    print(
        "sampler  ESS, min   median   R-hat  seconds  min/s     median/s  min/1000 grad"
        "  grad/draw  divergences"
    )
    for name in options.samplers:
        sampler, precondition = SAMPLERS[name]
        with single_threaded_lapack():
            if name == "numpyro":
                draws = through_numpyro(model, fit, x, y, options)
            else:
                draws = gp.sample(
                    random.key(1),
                    model,
                    x,
                    y,
                    sampler=sampler,
                    init=fit,
                    precondition=precondition,
                    num_chains=options.chains,
                    num_warmup=options.warmup,
                    num_samples=options.samples,
                    progress=False,
                )
        report(name, draws)


if __name__ == "__main__":
    main()
