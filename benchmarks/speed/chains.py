"""Chains in threads against chains vectorised in one program.

    python benchmarks/speed/chains.py coal [--chains 4] [--rounds 6] [--x64]
    python benchmarks/speed/chains.py labels --warmup 40 --samples 60

Both alternately in one process, from the same fit: gradients a second (each chain's
own; those computed while a chain waits for another do not count), the ratio of each
round, and the seconds of processor per thousand gradients, which other work on the
machine disturbs least. ``first draw`` is a call for one draw with nothing compiled.
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
from svgp_ppl.__main__ import coal_model
from svgp_ppl.compilation import forget_programs

METHODS = ("vectorized", "parallel")


def labels_model(z):
    """Labels of a function of four columns."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(2.0, 1.0))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 2.0))
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Bernoulli("probit"), f(x), obs=y)

    return model


def problem(name: str, n: int, m: int):
    """Model and data."""
    if name == "coal":
        data = gp.datasets.coal()
        return coal_model(gp.inducing.grid(data.x, 30)), data.x, data.y
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    f = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    y = (rng.normal(size=n) < f).astype(int)
    return labels_model(gp.inducing.kmeans(x, m)), x, y


def processor_seconds() -> float:
    """Of this process, over all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=["coal", "labels"])
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=300)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--x64", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    model, x, y = problem(options.name, options.n, options.m)
    x, y = jnp.asarray(x, jnp.result_type(float)), jnp.asarray(y)
    guide = gp.AutoGaussian(model)
    fit = gp.fit(random.key(0), model, guide, x, y, num_steps=500, progress=False)

    def draw(method, num_warmup=options.warmup, num_samples=options.samples):
        began = time.perf_counter()
        draws = gp.sample(
            random.key(1),
            model,
            x,
            y,
            init=fit,
            chain_method=method,
            num_chains=options.chains,
            num_warmup=num_warmup,
            num_samples=num_samples,
            progress=False,
        )
        return draws.posterior.attrs, time.perf_counter() - began

    draw("vectorized", 1, 1)  # what both share is compiled
    for method in METHODS:
        forget_programs()
        print(f"first draw, {method}: {draw(method, 1, 1)[1]:.1f} s", flush=True)
    for method in METHODS:  # both compiled again, now kept
        draw(method, 1, 1)
    rates: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(options.rounds):
        for method in METHODS:
            before = processor_seconds()
            attrs, _ = draw(method)
            used = processor_seconds() - before
            seconds = attrs["sampling_seconds"]
            rates[method].append(attrs["num_gradients"] / seconds)
            share = attrs["num_gradients"] / options.samples
            share *= options.samples + options.warmup
            print(
                f"{method:11s}{rates[method][-1]:9.0f} gradients/s"
                f"{options.chains * options.samples / seconds:9.0f} draws/s"
                f"{1000 * used / share:8.3f} processor s per 1000 gradients",
                flush=True,
            )
    ratios = np.divide(rates["parallel"], rates["vectorized"])
    print("parallel / vectorized, rounds:", np.round(ratios, 2), end="; ")
    print(
        f"median {np.median(ratios):.2f}, best of both "
        f"{max(rates['parallel']) / max(rates['vectorized']):.2f}"
    )


if __name__ == "__main__":
    main()
