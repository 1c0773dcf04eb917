"""log Φ(f), and its expectation for a Gaussian f by the trapezoidal rule on two scales.

Their derivatives are those of h = φ/Φ (``mills``):

    (log Φ)' = h,   (log Φ)'' = −h (h + f).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from svgp_ppl.expectations.trapezoid import two_scale_nodes
from svgp_ppl.likelihoods.mills import tail_of_normal
from svgp_ppl.linalg import safe_sqrt, weighted_sum

__all__ = ["NEAREST_ZERO", "log_ndtr", "mean_log_ndtr"]

# The singularities of log Φ(f) nearest to the real line are at f = −1.9 ± 2.8 i. These
# are the middle and the width of the bend between −f²/2 and 0.
NEAREST_ZERO = (0.0, 2.0)
# Largest error for means to 300 and variances to 1e4: 1e-8 of the value.
_NUM_NODES = 40


def log_ndtr(f: Array) -> Array:
    """log Φ(f), elementwise, whose derivatives keep their digits at any f."""
    return tail_of_normal(f).log_cdf


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
    log_cdf, hazard, gap = tail_of_normal(f)
    each = (log_cdf, hazard, -0.5 * hazard * gap)
    # Products with ones: XLA's own sums over nodes take longer in float32.
    ones = jnp.ones(_NUM_NODES, f.dtype)
    value, by_mean, by_variance = (weighted_sum(ones, weights * one) for one in each)
    return value, by_mean, by_variance
