"""E y_n and Var y_n under the marginal of a latent.

By the laws of total moments,

    E y = E h,    Var y = E[ v + (h − a)² ] − (E h − a)²,    h = E(y|f), v = Var(y|f),

with any number a; here a = h(m), at the mean m of f. For one component the expectations
are a fine rule. For several they are tensor Gauss–Hermite or quasi-Monte Carlo, unless
the function is a sum of functions of single components, as all are for
``lambda f: dist.Poisson(jnp.exp(f)).to_event(1)``. The expectation of such a sum does
not depend on the correlations, so the components may as well move together: it is that
of one standard normal e, f_q = m_q + s_q e for all q. A few points f tell whether

    g(f) − g(m) = Σ_q [g(m_1, …, f_q, …, m_Q) − g(m)].
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from svgp_ppl.expectations.dispatch import by_likelihood
from svgp_ppl.expectations.nodes import (
    QuasiMonteCarlo,
    default_method,
    normal_nodes,
    num_components,
    points,
)
from svgp_ppl.linalg import safe_sqrt
from svgp_ppl.marginals import Marginal

__all__ = ["moments_of_label", "predictive_mean_and_variance"]

# Evenly spaced nodes for one component, up to so many standard deviations: those of
# σ(10 f) are right to 5e-5 for any f of unit variance, and to 0.03 by Gauss–Hermite.
_REACH, _NUM_EVEN = 10.0, 96
# Quasi-random points for four and more components.
_NUM_POINTS = 1024
# Points that tell what is a sum of functions of single components, by so many times the
# rounding error; every other one is three times as far away.
_NUM_PROBES, _ROUNDING = 8, 64


@by_likelihood
def predictive_mean_and_variance(likelihood, marginal: Marginal) -> tuple[Array, Array]:
    """E y_n and Var y_n, each [N] (and event axes)."""

    def given(f):
        return jnp.broadcast_arrays(*_moments(likelihood(f)))

    if num_components(marginal) == 1:
        return marginal.total(*_over_even_nodes(given, marginal))
    return marginal.total(*_over_several(given, marginal))


def _moments(given: Any) -> tuple[Any, Any]:
    """E(y|f) and Var(y|f); of the number of a class, for which NumPyro has NaN.

    Raises:
        NotImplementedError: They are not known, as those of an angle, for which NumPyro
            has the direction and a measure of spread between 0 and 1.
    """
    inner = given
    while isinstance(inner, dist.Independent | dist.MaskedDistribution):
        inner = inner.base_dist
    if isinstance(inner, dist.CategoricalProbs | dist.CategoricalLogits):
        return moments_of_label(jnp.asarray(inner.probs))
    support = getattr(given.support, "base_constraint", given.support)
    if support is dist.constraints.circular:
        raise NotImplementedError(
            "an angle has no mean and variance as a number has: NumPyro's are its "
            "direction and a spread between 0 and 1; take those of draws"
        )
    return given.mean, given.variance


def moments_of_label(probs: Array) -> tuple[Array, Array]:
    """Mean and variance of the number of a class, for ordered classes."""
    labels = jnp.arange(probs.shape[-1], dtype=probs.dtype)
    mean = jnp.sum(probs * labels, axis=-1)
    squares = jnp.square(labels - mean[..., None])
    return mean, jnp.sum(probs * squares, axis=-1)


# ------------------------------------------------------------------------ one component


def _even_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights, which sum to one, [S]."""
    nodes = np.linspace(-_REACH, _REACH, _NUM_EVEN)
    density = np.exp(-0.5 * np.square(nodes))
    return nodes, density / np.sum(density)


def _over_even_nodes(given: Callable, marginal: Marginal) -> tuple[Array, Array]:
    """Mean and variance over evenly spaced standard normal nodes, one after the other.

    The recursion of West (1979). What is far and unlikely is weighed before it is
    squared: in single precision its square may be infinite.
    """
    nodes, weights = _even_nodes()
    shares = weights / np.cumsum(weights)
    roots = np.sqrt(weights * (1.0 - shares))

    def of_node(e):
        f = points(marginal, e[None, None].astype(marginal.mean.dtype))
        return [value[0] for value in given(f)]

    def add(so_far, node):
        (mean, variance), (e, weight, share, root) = so_far, node
        of_mean, of_variance = of_node(e)
        shift = of_mean - mean
        variance = variance + weight * of_variance + jnp.square(root * shift)
        return (mean + share * shift, variance), None

    mean, variance = of_node(jnp.asarray(nodes[0]))
    columns = (nodes, weights, shares, roots)
    rest = [jnp.asarray(column[1:], mean.dtype) for column in columns]
    return jax.lax.scan(add, (mean, float(weights[0]) * variance), rest)[0]


# ------------------------------------------------------------------- several components


def _over_several(given: Callable, marginal: Marginal) -> tuple[Array, Array]:
    """Mean and variance under each component of a mixture."""
    anchor, _ = given(marginal.mean)
    anchor = jnp.where(jnp.isfinite(anchor), anchor, 0.0)
    sd = safe_sqrt(marginal.variance)

    def weighted(f, weight=1.0):
        """h − a and v + (h − a)² [2, ..]; what is unlikely is weighed, then squared."""
        h, v = given(f)
        square = jnp.square(weight**0.5 * (h - anchor))
        return jnp.stack([weight * (h - anchor), weight * v + square])

    def at_normals(e, weight):
        return weighted(points(marginal, e[None])[0], weight)

    def together(e, weight):
        return weighted(marginal.mean + sd * e, weight)

    is_sum = _is_sum_of_parts(weighted, marginal)
    dtype = marginal.mean.dtype
    of_parts = _sum(together, *_even_nodes(), dtype)
    whole = _sum(at_normals, *_nodes(num_components(marginal)), dtype)
    mean = anchor + jnp.where(is_sum[0], of_parts[0], whole[0])
    variances = [square - jnp.square(shift) for shift, square in (of_parts, whole)]
    variance = jnp.where(is_sum[0] & is_sum[1], *variances)
    return mean, jnp.maximum(variance, 0.0)


def _is_sum_of_parts(function: Callable, marginal: Marginal) -> Array:
    """Whether g(f) − g(m) is the sum of what single components do, elementwise."""
    centre, width = marginal.mean, num_components(marginal)
    base, units = function(centre), jnp.eye(width, dtype=centre.dtype)
    nodes, _ = normal_nodes(QuasiMonteCarlo(_NUM_PROBES), width)
    nodes = jnp.where(jnp.arange(_NUM_PROBES)[:, None] % 2, 3.0 * nodes, nodes)

    def of_node(e):
        f = points(marginal, e[None].astype(centre.dtype))[0]
        parts = jax.lax.map(
            lambda unit: function(jnp.where(unit > 0.0, f, centre)), units
        )
        whole = function(f)
        rest = whole - jnp.sum(parts, axis=0) + (width - 1) * base
        size = jnp.abs(whole) + jnp.sum(jnp.abs(parts), axis=0) + jnp.abs(base)
        return jnp.abs(rest) <= _ROUNDING * jnp.finfo(rest.dtype).eps * size

    return jnp.all(jax.lax.map(of_node, nodes), axis=0)


def _sum(function: Callable, nodes, weights, dtype) -> Array:
    """Sum of a function of a node and its weight, one node after the other."""
    nodes, weights = jnp.asarray(nodes, dtype), jnp.asarray(weights, dtype)
    shape = jax.eval_shape(function, nodes[0], weights[0])

    def add(total, node):
        return total + function(*node), None

    start = jnp.zeros(shape.shape, shape.dtype)
    return jax.lax.scan(add, start, (nodes, weights))[0]


def _nodes(width: int) -> tuple[Array, Array]:
    """Standard normal nodes [S, Q] and weights [S]; random ones have covariance I."""
    if width <= 3:
        return normal_nodes(default_method(width), width)
    nodes, weights = normal_nodes(QuasiMonteCarlo(_NUM_POINTS), width)
    nodes = nodes - jnp.mean(nodes, axis=0)
    factor = jnp.linalg.cholesky(nodes.T @ nodes / len(nodes))
    return jax.scipy.linalg.solve_triangular(factor, nodes.T, lower=True).T, weights
