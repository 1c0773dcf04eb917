"""P(y <= a) of a datum whose latent is known up to its q(v)."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array

from svgp_ppl.expectations.dispatch import by_likelihood
from svgp_ppl.expectations.nodes import (
    QuasiMonteCarlo,
    Trapezoid,
    average,
    normal_nodes,
    num_components,
    points,
)
from svgp_ppl.linalg import floored_sqrt
from svgp_ppl.marginals import Marginal

__all__ = ["closed_form_cdf", "latent_cdf", "predictive_cdf"]

# Points for several components, a multiple of the nodes for one: with a likelihood like
# a step in two, 4096 miss up to 0.003 of a probability and 512 up to 0.012.
_POINTS_A_NODE, _POINTS_AT_A_TIME = 8, 256


@by_likelihood
def closed_form_cdf(likelihood, y: Array, marginal: Marginal) -> Array | None:
    """P(y_n <= a_n) under each Gaussian component, [N] or [K, N]; None if unknown."""
    return None


def predictive_cdf(
    likelihood: Callable,
    cdf: Callable,
    y: Array,
    marginal: Marginal,
    num_nodes: int,
    key: Array,
) -> Array:
    """E_q P(y_n <= a_n | f_n) at every a, [A, N] (and event axes).

    For one latent component, the trapezoidal rule on evenly spaced nodes: accurate if
    the likelihood is at least as wide as their spacing, 17/``num_nodes`` standard
    deviations of the latent; a narrower one makes steps of at most 7/``num_nodes``. For
    several, quasi-Monte Carlo with 8 ``num_nodes`` points. Over draws of a posterior,
    which shift their nodes, the errors average out.

    Args:
        likelihood: f -> NumPyro distribution.
        cdf: Function of such a distribution and a [N] (and event axes).
        y: The places a, [A, N] (and event axes).
        marginal: Distribution of the latent.
        num_nodes: Number of nodes of the rule for one component.
        key: Random key of the shift.
    """

    def at(y):
        def below(f):
            return cdf(likelihood(f), y)

        value = closed_form_cdf(likelihood, y, marginal)
        if value is None and num_components(marginal) == 1:
            value = average(below, marginal, Trapezoid(num_nodes), key)
        elif value is None:
            value = _by_quasi_monte_carlo(below, marginal, num_nodes, key)
        return marginal.average(value)

    return jax.vmap(at)(y)


def _by_quasi_monte_carlo(
    below: Callable, marginal: Marginal, num_nodes: int, key: Array
) -> Array:
    """The mean over points, block after block, in the memory of one."""
    number = 2 ** math.ceil(math.log2(_POINTS_A_NODE * num_nodes))
    nodes, _ = normal_nodes(QuasiMonteCarlo(number), num_components(marginal), key)
    blocks = nodes.astype(marginal.mean.dtype)
    blocks = blocks.reshape(-1, min(number, _POINTS_AT_A_TIME), nodes.shape[1])
    means = jax.lax.map(lambda e: jnp.mean(below(points(marginal, e)), axis=0), blocks)
    return jnp.mean(means, axis=0)


def latent_cdf(values: Array, marginal: Marginal) -> Array:
    """P(f_n <= a_n) at every a, [A, N] or [A, N, Q]."""

    def at(a):
        sd = floored_sqrt(marginal.variance)
        return marginal.average(ndtr((a - marginal.mean) / sd))

    return jax.vmap(at)(values)
