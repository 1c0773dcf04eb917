"""E g(f) for a g that bends within a marginal of any width: nodes on two scales.

Quadrature in f converges at a rate determined by the nearest singularity of g in the
complex plane (Trefethen & Weideman 2014, section 5). Gauss–Hermite nodes are a fraction
of a standard deviation apart; if the logarithm of a likelihood has a singularity at
c ± i r with r much smaller than that, it is a kink or a peak between two nodes. Here
the nodes are dense about c on the scale of r, and evenly spaced away from it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from svgp_ppl.expectations.dispatch import by_likelihood
from svgp_ppl.expectations.nodes import REACH, shifted
from svgp_ppl.marginals import Marginal

__all__ = [
    "average_about",
    "even_exponentials",
    "in_deviations",
    "nearest_singularity",
    "two_scale_nodes",
]

# L, in standard deviations: nodes are dense up to this distance from a singularity.
_LENGTH = 2.0
# Singularities closer to the real line count as this far, in standard deviations: the
# part that is missed is 1e-6 of a standard deviation wide.
_LEAST_WIDTH = 1e-6


@by_likelihood
def nearest_singularity(likelihood, y: Array) -> tuple[Any, Any] | None:
    """Where f -> log p(y_n | f) bends the most, and how sharply; None if unknown.

    log p(y|f) as a function of a complex f has singularities: poles, or zeros of
    p(y|f). The one nearest to the real line, c ± i r, is a kink of log p at c, rounded
    on the scale r. Register a function for a likelihood of your own, and its
    variational expectation is accurate for marginals much wider than r.

    Returns:
        c and r > 0, each a number or [N].
    """
    return None


def average_about(
    function: Callable[[Array], Array],
    marginal: Marginal,
    singularity: tuple[Any, Any],
    num_nodes: int,
) -> Array:
    """E function(f) under each component of a single latent, [N] or [K, N].

    The trapezoidal rule in t with, in standard deviations,

        f = c + L asinh( (r/L) sinh t ):

    for small t r sinh t, about the singularity; for large t a spacing of L dt. The
    weights are normalised: a constant is exact, as is a latent that is known exactly.
    """
    # The value does not depend on where the nodes are.
    nodes, weights = two_scale_nodes(
        *jax.lax.stop_gradient((marginal.mean, marginal.variance, singularity)),
        num_nodes,
    )
    values = function(shifted(marginal, nodes))
    return jnp.sum(weights * values, axis=0)


def two_scale_nodes(
    mean: Array, variance: Array, singularity: tuple[Any, Any], num_nodes: int
) -> tuple[Array, Array]:
    """Standard normal nodes and their weights, each [S, N] or [S, K, N]."""
    place, width = in_deviations(mean, variance, singularity)
    width = jnp.minimum(width, _LENGTH)  # a wider one makes no difference

    def to_t(e):
        return jnp.arcsinh(_LENGTH / width * jnp.sinh((e - place) / _LENGTH))

    low, high = to_t(-REACH), to_t(REACH)
    step = (high - low) / (num_nodes - 1)
    up = even_exponentials(low, step, num_nodes)
    down = 1.0 / up
    ratio = 0.5 * width / _LENGTH * (up - down)
    root = jnp.sqrt(1.0 + jnp.square(ratio))
    e = place + _LENGTH * jnp.sign(ratio) * jnp.log(jnp.abs(ratio) + root)
    weights = (up + down) / root * jnp.exp(-0.5 * jnp.square(e))
    return e, weights / jnp.sum(weights, axis=0)


def even_exponentials(low: Array, step: Array, number: int) -> Array:
    """exp(low + step · j), [number, ..], as products of two of √number.

    Half of the time of a rule would be in exponentials.
    """
    few = math.isqrt(number - 1) + 1
    j = jnp.arange(few, dtype=low.dtype).reshape(-1, *(1,) * low.ndim)
    exp = jnp.exp(low + step * few * j)[:, None] * jnp.exp(step * j)
    return exp.reshape(-1, *low.shape)[:number]


def in_deviations(
    mean: Array, variance: Array, singularity: tuple[Any, Any]
) -> tuple[Array, Array]:
    """A singularity in standard deviations from the mean, kept within the marginal."""
    place, width = (jnp.asarray(value, mean.dtype) for value in singularity)
    sd = jnp.sqrt(jnp.maximum(variance, jnp.finfo(mean.dtype).tiny))
    place = jnp.clip((place - mean) / sd, -REACH, REACH)
    return place, jnp.maximum(width / sd, _LEAST_WIDTH)
