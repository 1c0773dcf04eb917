"""Peak memory and time of the density of all data under a sampler, in chunks.

The log density is evaluated in chunks of 5000 rows, recomputed on the way back, so that
memory grows with chunk × M × chains and not with N. Labels of a function of four
columns, float32. Each number of data has a process of its own.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np

from benchmarks.speed.worker import memory

__all__ = ["CASES", "in_words", "rows"]

CHUNK = 5000


class Size(NamedTuple):
    """Of data, inducing inputs and chains."""

    n: int
    m: int
    chains: int


CASES = {
    "100,000 data": Size(100_000, 100, 1),
    "1,000,000 data": Size(1_000_000, 100, 1),
    "four chains": Size(100_000, 200, 4),
}


def rows(options) -> Iterator[dict[str, Any]]:
    """A row for every number of data."""
    for name in options.cases or CASES:
        size = CASES[name]
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            found = process.submit(measured, size).result()
        yield {"case": name, "dtype": "float32", **size._asdict(), **found}


def measured(size: Size) -> dict[str, Any]:
    """Seconds of a gradient step of all chains, and memory."""
    import jax
    import jax.numpy as jnp
    from jax import random

    import svgp_ppl as gp
    from svgp_ppl.diagnostics import group

    rng = np.random.default_rng(0)
    x = rng.normal(size=(size.n, 4)).astype(np.float32)
    f = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    y = jnp.asarray(rng.normal(size=size.n) < f, int)
    model, x = model_of(x[: size.m]), jnp.asarray(x)
    before = memory()["resident"]
    draws = gp.sample(
        random.key(0),
        model,
        jax.block_until_ready(x),
        y,
        sampler=gp.mcmc.HMC((1e-4, 1e-4), (3, 3), num_rounds=1),
        num_chains=size.chains,
        coordinates="whitened",
        num_warmup=2,
        num_samples=3,
        progress=False,
    )
    steps = group(draws, "sample_stats")["n_steps"].max(axis=0).sum()
    seconds = draws["posterior"].attrs["sampling_seconds"] / float(steps)
    return {
        "gradient_seconds": float(f"{seconds:.4g}"),
        "gained_gib": round(memory()["peak"] - before, 3),
        "data_gib": round((x.nbytes + y.nbytes) / 2**30, 3),
    }


def model_of(z):
    """Labels, in chunks."""
    import numpyro
    import numpyro.distributions as dist

    import svgp_ppl as gp

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(2.0, 1.0))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 2.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
        with numpyro.plate("data", len(x)):
            likelihood = gp.likelihoods.Bernoulli("probit")
            gp.observe("y", likelihood, f(x), obs=y, chunk_size=CHUNK)

    return model


def in_words(row: dict[str, Any]) -> Iterator[str]:
    """A line."""
    yield (
        f"{row['case']:18s}M = {row['m']}, {row['chains']} chains"
        f"{row['gradient_seconds']:8.3f} s a gradient"
        f"{row['gained_gib']:8.2f} GiB gained, data have {row['data_gib']:.2f}"
    )
