"""log Φ(f), and its expectation for a Gaussian f by the trapezoidal rule on two scales.

Their derivatives are those of h = φ/Φ, the inverse of Mills' ratio:

    (log Φ)' = h,   (log Φ)'' = −h (h + f).

At f = −x, far below zero, h is close to x: in −f²/2 − log Φ and in h + f nearly all
digits cancel. There (Laplace's continued fraction, Abramowitz & Stegun 1964, 26.2.14)

    h + f = 1/(x + 2/(x + 3/(x + …))).
"""

import jax
import jax.numpy as jnp
from jax.scipy import special
from jaxtyping import Array

from svgp_ppl.expectations.trapezoid import two_scale_nodes
from svgp_ppl.linalg import safe_sqrt

__all__ = ["NEAREST_ZERO", "log_ndtr", "mean_log_ndtr"]

# The singularities of log Φ(f) nearest to the real line are at f = −1.9 ± 2.8 i. These
# are the middle and the width of the bend between −f²/2 and 0.
NEAREST_ZERO = (0.0, 2.0)
# Largest error for means to 300 and variances to 1e4: 1e-8 of the value.
_NUM_NODES = 40
# Below _FAR the continued fraction: with so many terms right to 1e-8 there.
_FAR, _NUM_TERMS = -5.0, 10


@jax.custom_jvp
def log_ndtr(f: Array) -> Array:
    """log Φ(f), elementwise, whose derivatives keep their digits at any f."""
    return special.log_ndtr(f)


@log_ndtr.defjvp
def _(primals, tangents):
    (f,), (df,) = primals, tangents
    return log_ndtr(f), _hazard(f) * df


@jax.custom_jvp
def _hazard(f: Array) -> Array:
    """h = φ/Φ."""
    return _hazard_and_gap(f, special.log_ndtr(f))[0]


@_hazard.defjvp
def _(primals, tangents):
    (f,), (df,) = primals, tangents
    hazard, gap = _hazard_and_gap(f, special.log_ndtr(f))
    return hazard, -hazard * gap * df


def _hazard_and_gap(f: Array, log_cdf: Array) -> tuple[Array, Array]:
    """h and h + f, given log Φ(f)."""
    x = -jnp.minimum(f, _FAR)
    t = 1.0 / jnp.square(x)
    # The convergents of 1/(1 + 2t/(1 + 3t/(1 + …))), by their recurrence.
    above, below, next_above, next_below = 0.0, 1.0, 1.0, 1.0
    for k in range(2, _NUM_TERMS + 1):
        above, next_above = next_above, next_above + k * t * above
        below, next_below = next_below, next_below + k * t * below
    far = next_above / (next_below * x)
    is_far = f < _FAR
    log_ratio = -0.5 * jnp.square(f) - jnp.where(is_far, 0.0, log_cdf)
    near = jnp.exp(log_ratio) / (2.0 * jnp.pi) ** 0.5
    return jnp.where(is_far, x + far, near), jnp.where(is_far, far, near + f)


@jax.custom_jvp
def mean_log_ndtr(mean: Array, variance: Array) -> Array:
    """E log Φ(f) for f ~ N(mean, variance), elementwise."""
    return _with_slopes(mean, variance)[0]


@mean_log_ndtr.defjvp
def _(primals, tangents):
    value, by_mean, by_variance = _with_slopes(*primals)
    return value, by_mean * tangents[0] + by_variance * tangents[1]


def _with_slopes(mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """E g, E g' and E g''/2 for g = log Φ: g' = φ/Φ = h, g'' = −h (h + f).

    Computed together, in a third of the time that differentiating the sum takes.
    """
    mean, variance = jnp.asarray(mean), jnp.asarray(variance)
    nodes = two_scale_nodes(mean, variance, NEAREST_ZERO, _NUM_NODES)
    e, weights = jax.lax.stop_gradient(nodes)  # no variance moves them infinitely fast
    f = mean + safe_sqrt(variance) * e
    value = special.log_ndtr(f)
    hazard, gap = _hazard_and_gap(f, value)
    value, hazard, bend = (
        jnp.sum(weights * each, axis=0) for each in (value, hazard, -0.5 * hazard * gap)
    )
    return value, hazard, bend
