"""The cost of a step of ``fit`` against one size at a time, and its exponent.

Adam on everything, Gaussian likelihood, full covariance q(v), float32, from N = 4000,
M = 100, D = 8. The exponent is that between the last two values, which is where a
single term of the cost is the largest.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax import random
from numpyro.distributions import constraints

import svgp_ppl as gp

__all__ = ["ALONG", "exponent", "in_words", "rows"]

BASE = {"N": 4000, "M": 100, "D": 8, "outputs": 1, "components": 1, "layers": 1}
ALONG = {
    "N": (1000, 4000, 16_000, 64_000),
    "M": (50, 100, 200, 400, 800),
    "D": (2, 4, 8, 16, 32, 64),
    "outputs": (1, 2, 4, 8, 16),
    "components": (1, 2, 4, 8),
    "layers": (1, 2, 3, 4),
}
_BLOCK_SECONDS = 0.4


def rows(options) -> Iterator[dict[str, Any]]:
    """A row for every value of every size."""
    jax.config.update("jax_enable_x64", options.x64)
    for along in options.cases or ALONG:
        for value in ALONG[along]:
            times = step_times({**BASE, along: value}, options.rounds)
            dtype = "float64" if options.x64 else "float32"
            yield {
                "along": along,
                "value": value,
                "dtype": dtype,
                "milliseconds": [float(f"{1e3 * t:.4g}") for t in times],
            }


def step_times(sizes: dict[str, int], rounds: int) -> list[float]:
    """Seconds a step, one for each block."""
    model, guide, arrays = problem(sizes)
    adam, steps = optax.adam(1e-2), 3

    def block() -> float:
        options = {"optimizer": adam, "num_steps": steps, "progress": False}
        fit = gp.fit(random.key(0), model, guide, *arrays, **options)
        return fit.seconds / steps

    block()
    # The number of steps is part of a program: one more is compiled.
    steps = int(np.clip(_BLOCK_SECONDS / block(), 3, 200))
    block()
    return [block() for _ in range(rounds)]


def problem(sizes: dict[str, int]) -> tuple:
    """Model, guide and data of such sizes."""
    n, d, m, outputs = (sizes[name] for name in ("N", "D", "M", "outputs"))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    y = np.sin(x[:, :2].sum(1))[:, None] + 0.1 * rng.normal(size=(n, outputs))
    z, real = x[:m], jnp.result_type(float)

    def positive(name, start):
        return numpyro.param(name, start, constraint=constraints.softplus_positive)

    def kernel(name):
        each = positive(f"lengthscale{name}", jnp.ones(d))
        return gp.kernels.RBF(positive(f"variance{name}", 1.0), each)

    def model(x, y):
        for layer in range(sizes["layers"] - 1):
            name = f"inner{layer}"
            inner = gp.sparse_gp(
                name,
                kernel(name),
                numpyro.param(f"z_{name}", z),
                mean=lambda x: x,
                num_outputs=d,
            )
            x = gp.propagate(f"h{layer}", inner(x))
        z_last = numpyro.param("z", z)
        f = gp.sparse_gp("f", kernel(""), z_last, num_outputs=outputs)(x)
        noise = gp.likelihoods.Gaussian(positive("noise", 0.3))
        for p in range(outputs):
            with numpyro.plate(f"data{p}", n):
                gp.observe(f"y{p}", noise, f[..., p], obs=y[:, p])

    number = sizes["components"]
    guide = gp.AutoGaussian(model)
    if number > 1:
        guide = gp.AutoMixture(model, number, covariance="full")
    if sizes["layers"] > 1:
        guide = gp.AutoDeep(model)
    return model, guide, (jnp.asarray(x, real), jnp.asarray(y, real))


def exponent(rows: list[dict[str, Any]]) -> float:
    """Of the cost against the size, between its last two values."""
    (before, early), (after, late) = (
        (row["value"], np.median(row["milliseconds"])) for row in rows[-2:]
    )
    return float(np.log(late / early) / np.log(after / before))


def in_words(row: dict[str, Any]) -> Iterator[str]:
    """A line."""
    time = np.median(row["milliseconds"])
    yield f"{row['along']:12s}{row['value']:8d}{time:12.3f} ms"
