"""Squared distances and their derivatives column by column against matrix products.

    python benchmarks/speed/squared_distances.py [--n 10000] [--m 100] [--x64]

Milliseconds for Σ w exp(−‖x/ℓ − z/ℓ‖²/2) with a lengthscale a column, alone and with
its gradient in ℓ and z, the derivative by columns (up to 16 of them) or by products;
medians of calls in turn. Then the largest error of the squared distance of standard
normal points of which one column has the values 0 and 1000 instead, among those that
share its value; and the error of the derivative in a lengthscale of 1/1024 of the
spread of its column, relative to its typical size.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

from svgp_ppl.linalg import distances

# The widest inputs that go column by column, and those whose derivatives do.
ROUTES = {"columns": (10**6, 10**6), "mixed": (10**6, 0), "products": (0, 0)}
_WIDEST_UNROLLED = 16


def by_route(route: str, x, z):
    """``linalg.squared_distance`` on one route at every width."""
    # Read when the call is traced.
    distances._MOST_EXACT_COLUMNS, distances._MOST_EXACT_DERIVATIVES = ROUTES[route]
    return distances.squared_distance(x, z)


def weighted_sum(route: str, x, z, weights, lengthscale):
    """Σ w exp(−‖x/ℓ − z/ℓ‖²/2)."""
    squares = by_route(route, x / lengthscale, z / lengthscale)
    return jnp.sum(weights * jnp.exp(-0.5 * squares))


def compiled(route: str, x, z, weights, gradient: bool):
    """A call that has run once."""

    def total(lengthscale, z):
        return weighted_sum(route, x, z, weights, lengthscale)

    arguments = 3.0 * jnp.ones(x.shape[1]), z
    call = jax.jit(jax.value_and_grad(total, (0, 1)) if gradient else total)
    jax.block_until_ready(call(*arguments))
    return lambda: jax.block_until_ready(call(*arguments))


def medians(calls, num_rounds: int = 15) -> list[float]:
    """Milliseconds of each call, all measured in turn; NaN for no call."""
    taken = [[] for _ in calls]
    for _ in range(num_rounds):
        for times, call in zip(taken, calls, strict=True):
            if call is None:
                times.append(np.nan)
                continue
            call()  # not timed: the call before left its own memory in the caches
            began = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - began))
    return [float(np.median(times)) for times in taken]


def error(width: int, route: str) -> float:
    """Largest error among points that share a column of two distant values."""
    x = np.random.default_rng(width).normal(size=(20, width))
    x[:, 0] = np.repeat([0.0, 1e3], 10)
    x = np.asarray(jnp.asarray(x))
    exact = np.square(x[:10, None].astype(float) - x[None, :10]).sum(-1)
    return float(np.max(np.abs(by_route(route, x, x)[:10, :10] - exact)))


def derivative_error(width: int, route: str) -> float:
    """Error of the derivative in a lengthscale far below the spread.

    Relative to the root of the sum of its squared terms, which have both signs. With
    many columns only equal points are near and the terms vanish: the error is left.
    """
    rng = np.random.default_rng(width)
    x = rng.integers(0, 2**12, (2000, width)) / 2**12
    lengthscale = np.ones(width)
    lengthscale[0] = 2**-10
    scaled = x / lengthscale
    squares = sum((d[:, None] - d[::20]) ** 2 for d in scaled.T)
    weights = rng.normal(size=squares.shape)
    terms = (
        weights * np.exp(-0.5 * squares) * (scaled[:, None, 0] - scaled[::20, 0]) ** 2
    )
    exact = terms.sum() / lengthscale[0]
    typical = np.linalg.norm(terms) / lengthscale[0]

    def total(lengthscale):
        arrays = (jnp.asarray(a) for a in (x, x[::20], weights))
        return weighted_sum(route, *arrays, lengthscale)

    slope = jax.grad(total)(jnp.asarray(lengthscale))[0]
    return float(abs(slope - exact) / typical)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--x64", action="store_true")
    widths = [1, 2, 4, 8, 16, 32, 64, 128, 784]
    parser.add_argument("--widths", type=int, nargs="+", default=widths)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    names = "   columns     mixed  products"
    print("       value              with gradient                 error", end="")
    print("               derivative\ncolumns   columns  products" + names, end="")
    print("   columns  products" + names)
    for width in options.widths:
        rng = np.random.default_rng(0)
        shapes = (options.n, width), (options.m, width), (options.n, options.m)
        arrays = [jnp.asarray(rng.normal(size=shape), float) for shape in shapes]
        unrolled = width <= _WIDEST_UNROLLED
        routes = [r for r in ROUTES if unrolled or r != "columns"]
        calls = [compiled(r, *arrays, gradient=False) for r in ("mixed", "products")]
        gradients = {r: compiled(r, *arrays, gradient=True) for r in routes}
        times = medians([*calls, *(gradients.get(r) for r in ROUTES)])
        errors = [error(width, r) for r in ("mixed", "products")]
        slopes = [derivative_error(width, r) if r in routes else np.nan for r in ROUTES]
        print(
            f"{width:7d}"
            + "".join(f"{t:10.2f}" for t in times)
            + "".join(f"{e:10.0e}" for e in errors + slopes),
            flush=True,
        )


if __name__ == "__main__":
    main()
