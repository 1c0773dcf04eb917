"""Intervals, rectangles and boxes, over which f is integrated or averaged."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from svgp_ppl.checks import checked_inputs, is_concrete, require_count
from svgp_ppl.features.integral import Integral

__all__ = ["average", "integral"]


def integral(lower: ArrayLike, upper: ArrayLike, num_nodes: Any = 10) -> Integral:
    """∫ f over each box [lower_n, upper_n], by Gauss–Legendre quadrature.

    With J nodes per column polynomials of degree 2J − 1 are exact, and an RBF kernel's
    f over five lengthscales is accurate to about 1e-8 (ten nodes). A Matérn f has kinks
    in some derivative and larger errors: use more nodes, or narrower boxes. ``report``
    of a fit says where the nodes are too few for the lengthscale.

    Args:
        lower: Lower corners, [N, D].
        upper: Upper corners, [N, D].
        num_nodes: Nodes along each column; the cost grows as their product.

    Raises:
        ValueError: The corners are not finite arrays [N, D] of one shape, or a lower
            one is not below its upper one.

    Example:
        >>> edges = np.linspace(0.0, 1.0, 6)[:, None]
        >>> len(gp.features.integral(edges[:-1], edges[1:]))
        5
    """
    low, high = (
        checked_inputs(corner, f"the {name} corners of the areas")
        for name, corner in (("lower", lower), ("upper", upper))
    )
    if low.shape != high.shape:
        raise ValueError(
            "the lower and upper corners of the areas must have one shape [N, D], and "
            f"have {low.shape} and {high.shape}."
        )
    if is_concrete(low) and is_concrete(high):
        _require_below(np.asarray(low), np.asarray(high))
    num_nodes = require_count(num_nodes, "num_nodes of the areas")
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    width = low.shape[1]
    # On [0, 1]^D: the grid of nodes [J, D] and its weights [J].
    grid = np.stack(np.meshgrid(*[0.5 + 0.5 * nodes] * width, indexing="ij"), axis=-1)
    products = math.prod(np.meshgrid(*[0.5 * weights] * width, indexing="ij"))
    sides = (high - low)[:, None, :]
    x = low[:, None, :] + sides * jnp.asarray(grid.reshape(-1, width), low.dtype)
    volume = jnp.prod(sides, axis=-1)
    return Integral(x, volume * jnp.asarray(np.ravel(products), low.dtype))


def average(lower: ArrayLike, upper: ArrayLike, num_nodes: Any = 10) -> Integral:
    """The mean of f over each box [lower_n, upper_n]; arguments of :func:`integral`.

    Example:
        >>> areas = gp.features.average(np.zeros((1, 2)), np.ones((1, 2)))
        >>> bool(np.isclose(np.sum(areas.weights), 1.0))
        True
    """
    total = integral(lower, upper, num_nodes)
    return Integral(
        total.x, total.weights / jnp.sum(total.weights, axis=1, keepdims=True)
    )


def _require_below(low: np.ndarray, high: np.ndarray) -> None:
    good = np.all(low < high, axis=1)
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(
            "every lower corner of the areas must be below its upper corner, in every "
            f"column, and in row {row} they are {low[row]} and {high[row]}."
        )
