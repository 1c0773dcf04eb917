"""Peak memory of sampling a model of 100,000 data with 200 inducing inputs.

    python benchmarks/speed/memory.py [--n 100000] [--chunk 5000] [--chains 4]

The full-data log density is evaluated in chunks of data, recomputed on the way back, so
that memory grows with chunk × M × chains and not with N. Prints the seconds of a
gradient of all chains and the peak resident memory of the process. Linux, float32.
"""

import argparse
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from svgp_ppl.linalg import single_threaded_lapack


def model_of(z, chunk_size: int | None):
    """Labels of a function of four columns."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(2.0, 1.0))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 2.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
        with numpyro.plate("data", len(x)):
            likelihood = gp.likelihoods.Bernoulli("probit")
            gp.observe("y", likelihood, f(x), obs=y, chunk_size=chunk_size)

    return model


def main():
    parser = argparse.ArgumentParser(description="Memory of sampling many data.")
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--m", type=int, default=200)
    parser.add_argument("--chunk", type=int, default=5000, help="0 for no chunks")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--draws", type=int, default=4)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(options.n, 4)).astype(np.float32)
    f = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    y = jnp.asarray(rng.normal(size=options.n) < f, int)
    model = model_of(x[: options.m], options.chunk or None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    began = time.perf_counter()
    with single_threaded_lapack():
        draws = gp.sample(
            random.key(0),
            model,
            jnp.asarray(x),
            y,
            sampler=gp.mcmc.HMC((1e-3, 1e-3), (5, 5), num_rounds=1),
            num_chains=options.chains,
            num_warmup=2,
            num_samples=options.draws,
            progress=False,
        )
    jax.block_until_ready(y)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    steps = group(draws, "sample_stats")["n_steps"].max(axis=0).sum()
    seconds = draws["posterior"].attrs["sampling_seconds"]
    print(f"seconds, all in all      {time.perf_counter() - began:8.1f}")
    print(f"seconds a gradient step  {seconds / steps:8.2f}  ({options.chains} chains)")
    print(f"GiB before sampling      {before:8.2f}")
    print(f"GiB at the peak          {peak:8.2f}")


if __name__ == "__main__":
    main()
