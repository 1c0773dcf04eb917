"""Squared distances column by column against one matrix product.

    python benchmarks/speed/squared_distances.py [--n 10000] [--m 100] [--x64]

Milliseconds for Σ w exp(−‖x/ℓ − z/ℓ‖²/2) with a lengthscale a column, alone and with
its gradient in ℓ and z; medians of calls in turn. Then, on standard normal points of
which one column has the values 0 and 1000 instead, the largest error of the squared
distance of points that share its value.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from svgp_ppl import linalg


def by_columns(x, z, most: int):
    """``linalg.squared_distance``, by the sum of columns up to ``most`` of them."""
    linalg._MOST_EXACT_COLUMNS = most  # read when the call is traced
    return linalg.squared_distance(x, z)


ROUTES = {"columns": 10**6, "product": 0}


def calls_of(most: int, x, z, weights):
    """The value and the value with its gradient, compiled."""

    def total(lengthscale, z):
        squares = by_columns(x / lengthscale, z / lengthscale, most)
        return jnp.sum(weights * jnp.exp(-0.5 * squares))

    arguments = 3.0 * jnp.ones(x.shape[1]), z
    both = [jax.jit(total), jax.jit(jax.value_and_grad(total, (0, 1)))]
    for call in both:
        jax.block_until_ready(call(*arguments))
    return [lambda call=call: jax.block_until_ready(call(*arguments)) for call in both]


def medians(calls, num_rounds: int = 15) -> list[float]:
    """Milliseconds of each call, all measured in turn."""
    taken = [[] for _ in calls]
    for _ in range(num_rounds):
        for times, call in zip(taken, calls, strict=True):
            began = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - began))
    return [float(np.median(times)) for times in taken]


def error(width: int, most: int) -> float:
    """Largest error among points that share a column of two distant values."""
    x = np.random.default_rng(width).normal(size=(20, width))
    x[:, 0] = np.repeat([0.0, 1e3], 10)
    x = np.asarray(jnp.asarray(x))
    exact = np.square(x[:10, None].astype(float) - x[None, :10]).sum(-1)
    return float(np.max(np.abs(by_columns(x, x, most)[:10, :10] - exact)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--x64", action="store_true")
    widths = [1, 2, 4, 8, 16, 32, 64, 128, 784]
    parser.add_argument("--widths", type=int, nargs="+", default=widths)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    print("          value            with gradient       error\ncolumns", end="")
    print("  columns  product" * 3)
    for width in options.widths:
        rng = np.random.default_rng(0)
        shapes = (options.n, width), (options.m, width), (options.n, options.m)
        arrays = [jnp.asarray(rng.normal(size=shape), float) for shape in shapes]
        value, gradient = zip(*(calls_of(most, *arrays) for most in ROUTES.values()))
        times = medians([*value, *gradient])
        errors = [error(width, most) for most in ROUTES.values()]
        print(
            f"{width:7d}"
            + "".join(f"{t:9.2f}" for t in times)
            + "".join(f"{e:9.0e}" for e in errors),
            flush=True,
        )


if __name__ == "__main__":
    main()
