"""Chains in threads against chains vectorised in one program.

Both alternately in one process, from the same fit: gradients a second (each chain's
own; those computed while a chain waits for another do not count), and the seconds of
processor per thousand gradients. ``first`` is a call for one draw, nothing compiled.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp
from svgp_ppl.__main__ import coal_model
from svgp_ppl.runtime.compilation import forget_programs

__all__ = ["CASES", "in_words", "ratio", "rows"]

METHODS = ("vectorized", "parallel")


class Problem(NamedTuple):
    """Sizes of a problem, and how long its chains are."""

    n: int
    m: int
    warmup: int
    samples: int


CASES = {"coal": Problem(112, 30, 300, 1000), "labels": Problem(2000, 100, 20, 30)}
_CHAINS = 4


def rows(options) -> Iterator[dict[str, Any]]:
    """A row for every problem."""
    jax.config.update("jax_enable_x64", options.x64)
    dtype = "float64" if options.x64 else "float32"
    for name in options.cases or CASES:
        size = CASES[name]
        row = {"case": name, "dtype": dtype, "n": size.n, "m": size.m}
        yield row | {"chains": _CHAINS} | measured(name, options.rounds)


def measured(name: str, rounds: int) -> dict[str, Any]:
    """Both methods in turns."""
    size = CASES[name]
    model, x, y = problem(name)
    x, y = jnp.asarray(x, jnp.result_type(float)), jnp.asarray(y)
    fit = gp.fit(random.key(0), model, None, x, y, num_steps=500, progress=False)
    chains = {"init": fit, "num_chains": _CHAINS, "progress": False}

    def draw(method, **sizes):
        began = time.perf_counter()
        options = {"chain_method": method, **chains, **sizes}
        draws = gp.sample(random.key(1), model, x, y, **options)
        return draws["posterior"].attrs, time.perf_counter() - began

    one = {"num_warmup": 1, "num_samples": 1}
    draw("vectorized", **one)  # what both share is compiled
    first = {}
    for method in METHODS:
        forget_programs()
        first[method] = draw(method, **one)[1]
    for method in METHODS:  # both compiled again, now kept
        draw(method, **one)
    found = {m: {"gradients_a_second": [], "processor_ms": []} for m in METHODS}
    share = (size.samples + size.warmup) / size.samples
    for _ in range(rounds):
        for method, kept in found.items():
            before = time.process_time()
            attrs, _ = draw(method, num_warmup=size.warmup, num_samples=size.samples)
            used, number = time.process_time() - before, attrs["num_gradients"]
            rate = number / attrs["sampling_seconds"]
            kept["gradients_a_second"].append(float(f"{rate:.4g}"))
            kept["processor_ms"].append(float(f"{1e3 * used / number / share:.4g}"))
            kept["draws_a_gradient"] = _CHAINS * size.samples / number
    for method, kept in found.items():
        kept["first_seconds"] = round(first[method], 1)
    return {"methods": found}


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


def problem(name: str) -> tuple:
    """Model and data."""
    size = CASES[name]
    if name == "coal":
        data = gp.datasets.coal()
        return coal_model(gp.inducing.grid(data.x, size.m)), data.x, data.y
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size.n, 4))
    f = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    y = (rng.normal(size=size.n) < f).astype(int)
    return labels_model(gp.inducing.kmeans(x, size.m)), x, y


def ratio(row: dict[str, Any]) -> float:
    """Gradients a second, parallel over vectorised: the median over the rounds."""
    rates = [row["methods"][m]["gradients_a_second"] for m in ("parallel", METHODS[0])]
    return float(np.median(np.divide(*rates)))


def in_words(row: dict[str, Any]) -> Iterator[str]:
    """A line for each method."""
    for method, kept in row["methods"].items():
        yield (
            f"{row['case']:8s}{method:11s}"
            f"{np.median(kept['gradients_a_second']):9.0f} gradients/s"
            f"{np.median(kept['processor_ms']):9.3f} processor ms a gradient"
            f"{kept['first_seconds']:7.1f} s first"
        )
    yield f"parallel / vectorized {ratio(row):.2f}"
