"""Climbs to a maximum, of all data at once.

A latent of one component is written as f = m + s e, with e in standard deviations.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from svgp_ppl.expectations.nodes import shifted
from svgp_ppl.marginals import Marginal

__all__ = ["best_of_likelihood", "climb", "derivatives", "log_likelihood_at"]

_NEWTON_STEPS = 25
# The longest step towards the data, in standard deviations of the marginal.
_LEAP = 1000.0


def climb(objective: Callable, direction: Callable, start: Array) -> Array:
    """Follow a direction uphill; a datum's step is halved if it would go down."""

    def step(carry, _):
        e, length, height = carry
        along = direction(e)
        wide = length.reshape(*length.shape, *(1,) * (e.ndim - length.ndim))
        moved = e + wide * along
        reached = objective(moved)
        better = reached > height
        e = jnp.where(better.reshape(wide.shape), moved, e)
        length = jnp.where(better, jnp.minimum(2.0 * length, 1.0), 0.5 * length)
        return (e, length, jnp.where(better, reached, height)), None

    height = objective(start)
    first = start, jnp.ones_like(height), height
    (end, *_), _ = jax.lax.scan(step, first, length=_NEWTON_STEPS)
    return end


def derivatives(function: Callable, e: Array) -> tuple[Array, Array]:
    """First and second derivative of an elementwise function."""
    slope = jax.grad(lambda e: jnp.sum(function(e)))
    return jax.jvp(slope, (e,), (jnp.ones_like(e),))


def log_likelihood_at(likelihood: Callable, y: Array, marginal: Marginal) -> Callable:
    """e -> log p(y | m + s e), −∞ where it is NaN or +∞."""

    def log_likelihood(e):
        log_p = likelihood(shifted(marginal, e)).log_prob(y)
        return jnp.where(log_p < jnp.inf, log_p, -jnp.inf)

    return log_likelihood


def best_of_likelihood(log_likelihood: Callable, start: Array) -> Array:
    """A maximum of ℓ(e), in reach of ``start``."""

    def towards_the_data(e):
        slope, curvature = derivatives(log_likelihood, e)
        # A flat likelihood has no maximum: no step is longer than the whole marginal.
        step = slope / jnp.maximum(jnp.abs(curvature), jnp.finfo(e.dtype).tiny)
        return jnp.clip(jnp.nan_to_num(step), -_LEAP, _LEAP)

    return climb(log_likelihood, towards_the_data, start)
