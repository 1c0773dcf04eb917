"""The fits and chains that ``kill.py`` kills, and the numbers that come of them."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from svgp_ppl.runtime import checkpoints

X = np.linspace(0.0, 5.0, 40)[:, None]
Y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
Z = np.linspace(0.2, 4.8, 6)[:, None]
NUM_STEPS = 3000
SAMPLERS = {
    "nuts": gp.mcmc.NUTS(),
    "hmc": gp.mcmc.HMC(num_rounds=10),
    "gibbs": gp.mcmc.Gibbs(num_rounds=10),
    "sghmc": gp.mcmc.SGHMC(),
}
# Draws of each phase, so that the steps take a few seconds.
NUM_DRAWS = {"nuts": 150, "hmc": 200, "gibbs": 200, "sghmc": 500}


def of_batches(x, y=None, num_data=None):
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 3.0))
    z = numpyro.param("z", jnp.asarray(Z, float))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


def subsampled(x, y=None, batch_size=None):
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 3.0))
    z = numpyro.param("z", jnp.asarray(Z, float))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", len(x), subsample_size=batch_size) as rows:
        gp.observe("y", gp.likelihoods.Poisson(), f(x[rows]), obs=y[rows])


def run_fit(path: Path | None) -> dict:
    guide, options = gp.AutoGaussian(of_batches), {"num_steps": NUM_STEPS}
    fitted = None
    if path is not None and path.exists():
        fitted = gp.Fit.load(path, guide)
        options = {"num_steps": NUM_STEPS - len(fitted.losses), "init": fitted}
    if options["num_steps"]:
        data = {"batch_size": 10, "num_data": len(X), "progress": False}
        fitted = gp.fit(
            random.key(0), of_batches, guide, X, Y, checkpoint=path, **data, **options
        )
    return {"losses": fitted.losses, **fitted.params}


def run_chains(name: str, path: Path | None) -> dict:
    is_stochastic = name == "sghmc"
    draws = gp.sample(
        random.key(1),
        subsampled if is_stochastic else of_batches,
        X,
        Y,
        sampler=SAMPLERS[name],
        num_chains=2,
        num_warmup=NUM_DRAWS[name],
        num_samples=NUM_DRAWS[name],
        checkpoint=path,
        progress=False,
        **({"batch_size": 10} if is_stochastic else {}),
    )
    return {
        f"{part} {key}": values
        for part in ("posterior", "sample_stats")
        for key, values in group(draws, part).items()
    }


def run(name: str, path: Path | None) -> dict:
    """Do the work, or what is left of it, with a write after every few steps."""
    checkpoints._SECONDS_BETWEEN = 0.02  # type: ignore[attr-defined]
    return run_fit(path) if name == "fit" else run_chains(name, path)
