"""P(y <= a) and P(y = a) of a datum whose latent is known up to its q(v)."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Array

from svgp_ppl.expectations.dispatch import by_likelihood
from svgp_ppl.expectations.nodes import (
    QuasiMonteCarlo,
    Trapezoid,
    normal_nodes,
    num_components,
    points,
)
from svgp_ppl.linalg import floored_sqrt, weighted_sum
from svgp_ppl.marginals import Marginal

__all__ = [
    "closed_form_cdf",
    "latent_cdf",
    "predictive_cdf",
    "predictive_mass",
    "within_support",
]

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
    negligible: Any = 0.0,
) -> Array:
    """E_q P(y_n <= a_n | f_n) at every a, [A, N] (and event axes).

    For one latent component, the trapezoidal rule on evenly spaced nodes: accurate if
    the likelihood is at least as wide as their spacing, 17/``num_nodes`` standard
    deviations of the latent; a narrower one makes steps of at most 7/``num_nodes``. For
    several, quasi-Monte Carlo with 8 ``num_nodes`` points. Over draws of a posterior,
    which shift their nodes, the errors average out.

    Distribution functions may be NaN far out, where a tail underflows. Nodes at which
    this one is are left out if their weights, which bound the error, are negligible.

    Args:
        likelihood: f -> NumPyro distribution.
        cdf: Function of such a distribution and a [N] (and event axes).
        y: The places a, [A, N] (and event axes).
        marginal: Distribution of the latent.
        num_nodes: Number of nodes of the rule for one component.
        key: Random key of the shift.
        negligible: Total weight of nodes that may be left out; NaN if it is more.
    """

    def at(y):
        value = closed_form_cdf(likelihood, y, marginal)
        if value is not None:
            support = likelihood(marginal.mean).support
            return marginal.average(within_support(support, y, value))
        below = _given(likelihood, cdf, y)
        return _average_of_known(below, marginal, num_nodes, key, negligible)

    return jax.vmap(at)(y)


def predictive_mass(
    likelihood: Callable,
    mass: Callable,
    y: Array,
    marginal: Marginal,
    num_nodes: int,
    key: Array,
    negligible: Any = 0.0,
) -> Array:
    """E_q P(y_n = a_n | f_n) at every a, [A, N] (and event axes).

    By the rules of :func:`predictive_cdf`, whose arguments these are, with ``mass`` for
    P(y_n = a_n) in place of the distribution function. One a comes after the other: a
    probability takes a hundredth of the time of a continued fraction.
    """

    def at(y):
        given = _given(likelihood, mass, y)
        return _average_of_known(given, marginal, num_nodes, key, negligible)

    return jax.lax.map(at, y)


def _given(likelihood: Callable, function: Callable, y: Array) -> Callable:
    """A function of the distribution of y and of y, as a function of f."""

    def at(f):
        given = likelihood(f)
        return jnp.broadcast_to(function(given, y), given.shape())

    return at


def _average_of_known(
    function: Callable, marginal: Marginal, num_nodes: int, key: Array, negligible: Any
) -> Array:
    """E_q function(f), without the nodes at which it is NaN."""
    if num_components(marginal) == 1:
        known, lost = _by_trapezoid(function, marginal, num_nodes, key)
    else:
        known, lost = _by_quasi_monte_carlo(function, marginal, num_nodes, key)
    value = jnp.where(lost <= negligible, known / (1.0 - lost), jnp.nan)
    return marginal.average(value)


def within_support(support: Any, y: Array, cdf: Array) -> Array:
    """P(y_n <= a_n), exactly 0 below the support and 1 above it.

    Formulas of distribution functions hold on the support, and give anything elsewhere.

    Args:
        support: Constraint on an entry of y; that on a row of them counts entry by
            entry. If it holds no value that is known, it changes nothing.
        y: The places a.
        cdf: What a formula gives there, with leading axes for nodes.
    """
    support = getattr(support, "base_constraint", support)
    try:
        inside = support.feasible_like(jnp.broadcast_to(y, jnp.shape(cdf)))
    except (AttributeError, NotImplementedError):
        return cdf
    return jnp.where(support(y), cdf, y > inside)


def _known(values: Array, weights: Array) -> tuple[Array, Array]:
    """Σ w F over the nodes at which F is a number, and the weight of the others."""
    weights, is_lost = weights.astype(values.dtype), jnp.isnan(values)
    known = weighted_sum(weights, jnp.where(is_lost, 0.0, values))
    return known, weighted_sum(weights, is_lost.astype(values.dtype))


def _by_trapezoid(
    function: Callable, marginal: Marginal, num_nodes: int, key: Array
) -> tuple[Array, Array]:
    nodes, weights = normal_nodes(Trapezoid(num_nodes), 1, key)
    values = function(points(marginal, nodes.astype(marginal.mean.dtype)))
    return _known(values, weights)


def _by_quasi_monte_carlo(
    function: Callable, marginal: Marginal, num_nodes: int, key: Array
) -> tuple[Array, Array]:
    """Over points, block after block, in the memory of one."""
    number = 2 ** math.ceil(math.log2(_POINTS_A_NODE * num_nodes))
    nodes, _ = normal_nodes(QuasiMonteCarlo(number), num_components(marginal), key)
    blocks = nodes.astype(marginal.mean.dtype)
    blocks = blocks.reshape(-1, min(number, _POINTS_AT_A_TIME), nodes.shape[1])
    weights = jnp.full(blocks.shape[1], 1.0 / number)
    parts = jax.lax.map(
        lambda e: _known(function(points(marginal, e)), weights), blocks
    )
    known, lost = (jnp.sum(part, axis=0) for part in parts)
    return known, lost


def latent_cdf(values: Array, marginal: Marginal) -> Array:
    """P(f_n <= a_n) at every a, [A, N] or [A, N, Q]."""

    def at(a):
        sd = floored_sqrt(marginal.variance)
        return marginal.average(ndtr((a - marginal.mean) / sd))

    return jax.vmap(at)(values)
