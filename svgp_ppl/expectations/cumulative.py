"""P(y <= a) of a datum whose latent is known up to its q(v)."""

from collections.abc import Callable
from functools import singledispatch

import jax
from jax.scipy.special import ndtr
from jaxtyping import Array

from svgp_ppl.expectations.nodes import (
    Method,
    QuasiMonteCarlo,
    Trapezoid,
    average,
    default_method,
    num_components,
)
from svgp_ppl.linalg import floored_sqrt
from svgp_ppl.marginals import Marginal

__all__ = ["closed_form_cdf", "latent_cdf", "predictive_cdf"]

# Points used if there are too many components for quadrature.
_NUM_POINTS = 1024


@singledispatch
def closed_form_cdf(likelihood, y: Array, marginal: Marginal) -> Array | None:
    """P(y_n <= a_n) under each Gaussian component, [N] or [K, N]; None if unknown."""
    return None


def predictive_cdf(
    likelihood: Callable,
    cdf: Callable,
    y: Array,
    marginal: Marginal,
    num_nodes: int,
) -> Array:
    """E_q P(y_n <= a_n | f_n) at every a, [A, N] (and event axes).

    For one latent component, the trapezoidal rule on evenly spaced nodes: accurate if
    the likelihood is at least as wide as their spacing, 17/``num_nodes`` standard
    deviations of the latent; a narrower one makes steps of at most 7/``num_nodes``.

    Args:
        likelihood: f -> NumPyro distribution.
        cdf: Function of such a distribution and a [N] (and event axes).
        y: The places a, [A, N] (and event axes).
        marginal: Distribution of the latent.
        num_nodes: Number of nodes of the rule for one component.
    """
    width = num_components(marginal)
    method: Method = default_method(width)
    if width == 1:
        method = Trapezoid(num_nodes)
    elif isinstance(method, QuasiMonteCarlo):
        method = QuasiMonteCarlo(_NUM_POINTS)

    def at(y):
        value = closed_form_cdf(likelihood, y, marginal)
        if value is None:
            value = average(lambda f: cdf(likelihood(f), y), marginal, method)
        return marginal.average(value)

    return jax.vmap(at)(y)


def latent_cdf(values: Array, marginal: Marginal) -> Array:
    """P(f_n <= a_n) at every a, [A, N] or [A, N, Q]."""

    def at(a):
        sd = floored_sqrt(marginal.variance)
        return marginal.average(ndtr((a - marginal.mean) / sd))

    return jax.vmap(at)(values)
