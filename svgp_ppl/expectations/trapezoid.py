"""E g(f) for a g that bends within a marginal of any width: nodes on two scales.

Quadrature in f converges at a rate that the nearest singularity of g in the complex
plane decides (Trefethen & Weideman 2014, section 5). Gauss–Hermite nodes are a fraction
of a standard deviation apart; where the logarithm of a likelihood has a singularity at
c ± i r with r much smaller than that, it is a kink or a peak between two nodes. Here
the nodes crowd about c on the scale of r, and are evenly spaced away from it.
"""

from collections.abc import Callable
from functools import singledispatch

import jax
import jax.numpy as jnp
from jaxtyping import Array

from svgp_ppl.expectations.nodes import REACH
from svgp_ppl.linalg import safe_sqrt
from svgp_ppl.marginals import Marginal

__all__ = ["average_about", "in_deviations", "nearest_singularity"]

# L, in standard deviations: about a singularity nodes crowd up to this distance.
_LENGTH = 2.0
# Singularities closer to the real line count as this far, in standard deviations: what
# is missed is 1e-6 of a standard deviation wide.
_LEAST_WIDTH = 1e-6


@singledispatch
def nearest_singularity(likelihood, y: Array) -> tuple[Array, Array] | None:
    """Where f -> log p(y_n | f) bends the most, and how sharply; None if unknown.

    log p(y|f) as a function of a complex f has singularities: poles, or zeros of
    p(y|f). The one that is nearest to the real line, c ± i r, is a kink of log p at c,
    rounded on the scale r. Register a function for a likelihood of your own, and its
    variational expectation is right for marginals much wider than r.

    Returns:
        c and r > 0, each a number or [N].
    """
    return None


def average_about(
    function: Callable[[Array], Array],
    marginal: Marginal,
    singularity: tuple[Array, Array],
    num_nodes: int,
) -> Array:
    """E function(f) under each component of a single latent, [N] or [K, N].

    The trapezoidal rule in t with, in standard deviations,

        f = c + L asinh( (r/L) sinh t ):

    for small t r sinh t, about the singularity; for large t a spacing of L dt. The
    weights are normalised: a constant is exact, as is a latent that is known exactly.
    """
    # The value does not depend on where the nodes are.
    nodes, weights = _two_scales(
        *jax.lax.stop_gradient((marginal.mean, marginal.variance, singularity)),
        num_nodes,
    )
    values = function(marginal.mean + safe_sqrt(marginal.variance) * nodes)
    return jnp.sum(weights * values, axis=0)


def _two_scales(
    mean: Array, variance: Array, singularity: tuple[Array, Array], num_nodes: int
) -> tuple[Array, Array]:
    """Standard normal nodes and their weights, each [S, N] or [S, K, N]."""
    place, width = in_deviations(mean, variance, singularity)
    width = jnp.minimum(width, _LENGTH)  # wider than that it asks for nothing

    def to_t(e):
        return jnp.arcsinh(_LENGTH / width * jnp.sinh((e - place) / _LENGTH))

    low, high = to_t(-REACH), to_t(REACH)
    ticks = jnp.linspace(0.0, 1.0, num_nodes, dtype=mean.dtype)
    t = low + (high - low) * ticks.reshape(-1, *(1,) * mean.ndim)
    stretched = width / _LENGTH * jnp.sinh(t)
    e = place + _LENGTH * jnp.arcsinh(stretched)
    slope = width * jnp.cosh(t) / jnp.sqrt(1.0 + jnp.square(stretched))
    weights = slope * jnp.exp(-0.5 * jnp.square(e))
    return e, weights / jnp.sum(weights, axis=0)


def in_deviations(
    mean: Array, variance: Array, singularity: tuple[Array, Array]
) -> tuple[Array, Array]:
    """A singularity in standard deviations from the mean, kept within the marginal."""
    place, width = (jnp.asarray(value, mean.dtype) for value in singularity)
    sd = jnp.sqrt(jnp.maximum(variance, jnp.finfo(mean.dtype).tiny))
    place = jnp.clip((place - mean) / sd, -REACH, REACH)
    return place, jnp.maximum(width / sd, _LEAST_WIDTH)
