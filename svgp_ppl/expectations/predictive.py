"""log E_q p(y|f) and the moments of y, for predictions.

Fixed nodes fail here when the likelihood is narrower than the marginal (Gauss–Hermite
with 20 nodes misses by up to 0.4 nats on a Student-t). The nodes therefore gather where
the integrand is: see ``log_average``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from svgp_ppl.expectations.box import log_average_on_box
from svgp_ppl.expectations.dispatch import by_likelihood
from svgp_ppl.expectations.log_average import (
    climb,
    highest_peaks,
    is_log_concave,
    log_average_by_trapezoid,
)
from svgp_ppl.expectations.nodes import (
    QuasiMonteCarlo,
    default_method,
    hermite_grid,
    normal_nodes,
    num_components,
    points,
)
from svgp_ppl.expectations.trapezoid import nearest_singularity
from svgp_ppl.linalg import safe_sqrt, small_cholesky, small_product, weighted_sum
from svgp_ppl.marginals import Marginal
from svgp_ppl.rows import in_batches

__all__ = [
    "closed_form_log_predictive",
    "log_predictive_density",
    "moments_of_label",
    "predictive_mean_and_variance",
    "predictive_probabilities",
]

# Quasi-Monte Carlo for four and more components, in blocks to bound the memory.
_NUM_POINTS = 4096
_POINTS_AT_A_TIME = 256
# Modes of the integrand that are looked for where nothing is known of a likelihood. The
# time grows like the square of their number, and that of two other grids.
_NUM_PEAKS = 2
# Nodes of Gauss–Hermite at a mode by the number of components, and of a check of it.
_NUM_NODES, _NUM_TO_CHECK = {2: 20, 3: 12}, {2: 17, 3: 11}
# The integrand is near to a Gaussian, and Gauss–Hermite enough, if its curvatures are
# at most so many times those of q, its logarithm departs from a quadratic form by at
# most so many nats within so many standard deviations, and fewer nodes agree to so many
# nats: a step, as from log p = 0 to that of a gate, is a small departure between them.
# A peak between the nodes of both shows on an axis: second differences of log p, over
# 1/8 of a standard deviation, are at most those of a curvature of 3.
_BROAD, _DEPARTURE, _NEAR, _AGREEMENT = 2.0, 3.0, 5.0, 1e-5
_NUM_ON_AXIS, _SECOND_DIFFERENCE = 81, 0.05
# Nodes for moments of data with one component, up to so many standard deviations: those
# of σ(10 f) are right to 5e-5 for any f of unit variance, and to 0.03 by Gauss–Hermite.
_MOMENT_REACH, _NUM_FOR_MOMENTS = 10.0, 96
# Labels whose probabilities are computed together, sharing the points.
_LABELS_AT_A_TIME = 16


@by_likelihood
def closed_form_log_predictive(
    likelihood, y: Array, marginal: Marginal
) -> Array | None:
    """log E p(y_n | f_n) under each Gaussian component, [N] or [K, N], or None."""
    return None


def log_predictive_density(
    likelihood: Callable, y: Array, marginal: Marginal
) -> Float[Array, " N"]:
    """log E_q p(y_n | f_n) in nats for every datum, [N].

    The likelihood's closed form if it has one; otherwise, for one component, the
    trapezoidal rule of :func:`log_average_by_trapezoid`; for two or three,
    Gauss–Hermite at the mode of q(f) p(y|f) if the integrand is near to a Gaussian, and
    a grid on the box that holds the mass if not, with derivatives in forward mode only;
    for more, quasi-Monte Carlo with 4096 points.
    """
    value = closed_form_log_predictive(likelihood, y, marginal)
    if value is None:
        width = num_components(marginal)
        if width == 1:
            starts = _starts(likelihood, y, marginal)
            value = log_average_by_trapezoid(likelihood, y, marginal, starts)
        elif width <= 3:
            log_likelihood = _of_normals(likelihood, y, marginal)
            value = _by_hermite_or_box(log_likelihood, marginal.mean)
        else:
            value = _by_quasi_monte_carlo(likelihood, y, marginal)
    return marginal.log_average(value)


def _starts(likelihood, y: Array, marginal: Marginal) -> Array | None:
    """Peaks from which to climb, where nothing is registered of the likelihood.

    One of a user may have several modes, such as N(y; f², σ²).
    """
    if is_log_concave(likelihood) or nearest_singularity(likelihood, y) is not None:
        return None
    return jax.lax.stop_gradient(highest_peaks(likelihood, y, marginal, _NUM_PEAKS))


@by_likelihood
def predictive_mean_and_variance(likelihood, marginal: Marginal) -> tuple[Array, Array]:
    """E y_n and Var y_n, each [N] (and event axes), by the laws of total moments.

    Var y = E[ Var(y|f) + (E(y|f) − E y)² ], a sum of what is not negative.
    """
    width = num_components(marginal)

    def of_nodes(e):
        at_nodes = likelihood(points(marginal, e.astype(marginal.mean.dtype)))
        return jnp.broadcast_arrays(*_moments(at_nodes))

    if width == 1:
        return marginal.total(*_over_even_nodes(of_nodes))
    nodes, weights = normal_nodes(default_method(width), width)
    means, variances = of_nodes(nodes)
    weights = weights.astype(means.dtype)
    mean = weighted_sum(weights, means)
    about_the_mean = variances + jnp.square(means - mean)
    return marginal.total(mean, weighted_sum(weights, about_the_mean))


def _over_even_nodes(of_nodes: Callable) -> tuple[Array, Array]:
    """Mean and variance over evenly spaced standard normal nodes, one after the other.

    The recursion of West (1979). What is far and unlikely is weighed before it is
    squared: in single precision its square may be infinite.

    Args:
        of_nodes: From nodes [S, 1] to means and variances given them, [S, ...].
    """
    nodes = np.linspace(-_MOMENT_REACH, _MOMENT_REACH, _NUM_FOR_MOMENTS)
    density = np.exp(-0.5 * np.square(nodes))
    weights, shares = density / np.sum(density), density / np.cumsum(density)
    roots = np.sqrt(weights * (1.0 - shares))

    def of_node(e):
        return [value[0] for value in of_nodes(e[None, None])]

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


def _of_normals(likelihood, y, marginal: Marginal) -> Callable:
    """log p(y | f = m + C e) as a function of standard normals e [.., N, Q]."""
    if marginal.covariance is None:
        eye = jnp.eye(num_components(marginal), dtype=marginal.mean.dtype)
        factor = safe_sqrt(marginal.variance)[..., None] * eye
    else:
        factor = small_cholesky(marginal.covariance)
    return lambda e: likelihood(marginal.mean + small_product(factor, e)).log_prob(y)


def _by_hermite_or_box(log_likelihood: Callable, like: Array) -> Array:
    """The box rule, in two or three components that may have several modes and ridges.

    Standard normals may be rotated: here to the principal axes of the curvature at a
    mode, so that a ridge such as that of p(y | f + g) is narrow along an axis.

    Where p(y|f) changes little within q(f), as under most draws of v, two grids of
    Gauss–Hermite show that the integrand is near to a Gaussian, and are enough: that is
    found for each datum, whatever the others are, and the box left out if for all.
    """
    width, mode = like.shape[-1], _mode(log_likelihood, like)
    _, values, vectors = mode
    near, departure = _at_mode(log_likelihood, *mode, _NUM_NODES[width])
    check, _ = _at_mode(log_likelihood, *mode, _NUM_TO_CHECK[width])
    rounding = 32 * jnp.finfo(near.dtype).eps * (1.0 + jnp.abs(near))
    is_enough = jnp.all(values <= _BROAD, axis=-1) & (departure <= _DEPARTURE)
    is_enough &= jnp.abs(near - check) <= jnp.maximum(_AGREEMENT, rounding)
    differences = _second_differences(log_likelihood, *mode)
    is_enough &= differences <= _SECOND_DIFFERENCE + rounding

    def on_box(at):
        # XLA would take what does not depend on the loop out of it, and do it always.
        axes, _ = jax.lax.optimization_barrier((vectors, at))
        rotated = partial(small_product, axes)
        value = log_average_on_box(lambda e: log_likelihood(rotated(e)), like)
        value = jnp.where(is_enough, near, value.astype(near.dtype))
        return value, jnp.array(True)

    # Under vmap over draws a cond would do both for each draw, and a loop does not.
    start = near, jnp.all(is_enough)
    return jax.lax.while_loop(lambda at: ~at[1], on_box, start)[0]


def _at_mode(
    log_likelihood: Callable,
    centre: Array,
    values: Array,
    vectors: Array,
    num_nodes: int,
) -> tuple[Array, Array]:
    """Gauss–Hermite about a mode, and how far its integrand is from a Gaussian there.

    Returns:
        The logarithm of the average, and the largest departure from a quadratic form of
        the logarithm of the integrand, within ``_NEAR`` standard deviations.
    """
    width = centre.shape[-1]
    nodes, weights = hermite_grid(num_nodes, width)
    t = jnp.asarray(nodes, centre.dtype)
    t = t.reshape(len(nodes), *(1,) * (centre.ndim - 1), width)
    e = centre + small_product(vectors / jnp.sqrt(values)[..., None, :], t)

    objective = _integrand(log_likelihood)
    # ∫ g(e) de = Σ w g(e_i) / N(t_i; 0, I) |spread|
    squares = 0.5 * jnp.sum(jnp.square(t), axis=-1)
    terms = objective(e) + squares
    log_weights = jnp.log(jnp.asarray(weights, centre.dtype))
    log_weights = log_weights.reshape(-1, *(1,) * (centre.ndim - 1))
    average = logsumexp(terms + log_weights, axis=0)
    is_near = jnp.all(jnp.abs(t) <= _NEAR, axis=-1)
    departure = jnp.where(is_near, jnp.abs(terms - objective(centre)), 0.0)
    determinant = 0.5 * jnp.sum(jnp.log(values), axis=-1)
    return average - determinant, jnp.max(departure, axis=0)


def _second_differences(
    log_likelihood: Callable, centre: Array, values: Array, vectors: Array
) -> Array:
    """The largest second difference of ℓ(e) on the principal axes through a mode."""
    width = centre.shape[-1]
    ticks = jnp.linspace(-_NEAR, _NEAR, _NUM_ON_AXIS, dtype=centre.dtype)
    t = ticks[:, None, None] * jnp.eye(width, dtype=centre.dtype)
    t = t.reshape(*t.shape[:2], *(1,) * (centre.ndim - 1), width)
    e = centre + small_product(vectors / jnp.sqrt(values)[..., None, :], t)
    return jnp.max(jnp.abs(jnp.diff(log_likelihood(e), n=2, axis=0)), axis=(0, 1))


def _mode(log_likelihood: Callable, like: Array) -> tuple[Array, Array, Array]:
    """A mode of −e²/2 + ℓ(e), and the principal curvatures and axes there.

    Newton's method from the middle of the marginal, with absolute curvatures of at
    least 1. It may end at a saddle, such as that of N(y; f g, σ²) at zero.

    Returns:
        [.., N, Q], [.., N, Q] and [.., N, Q, Q] without derivatives.
    """
    eye = jnp.eye(like.shape[-1], dtype=like.dtype)
    objective = _integrand(log_likelihood)
    slope = jax.grad(lambda e: jnp.sum(objective(e)))

    def principal(e):
        along = [jnp.broadcast_to(unit, e.shape) for unit in eye]
        columns = [jax.jvp(slope, (e,), (unit,))[1] for unit in along]
        hessian = jnp.stack(columns, axis=-1)
        is_known = jnp.all(jnp.isfinite(hessian), axis=(-2, -1), keepdims=True)
        values, vectors = jnp.linalg.eigh(jnp.where(is_known, hessian, eye))
        return jnp.maximum(jnp.abs(values), 1.0), vectors

    def newton(e):
        values, vectors = principal(e)
        rotated = small_product(jnp.swapaxes(vectors, -1, -2), slope(e)) / values
        return small_product(vectors, rotated)

    centre = climb(objective, newton, jnp.zeros_like(like))
    return jax.lax.stop_gradient((centre, *principal(centre)))


def _integrand(log_likelihood: Callable) -> Callable:
    """ℓ(e) − ‖e‖²/2."""
    return lambda e: log_likelihood(e) - 0.5 * jnp.sum(jnp.square(e), axis=-1)


def _by_quasi_monte_carlo(likelihood, y, marginal: Marginal) -> Array:
    nodes, _ = normal_nodes(QuasiMonteCarlo(_NUM_POINTS), num_components(marginal))
    blocks = nodes.astype(marginal.mean.dtype).reshape(
        -1, _POINTS_AT_A_TIME, nodes.shape[1]
    )

    def add(total, block):
        log_p = likelihood(points(marginal, block)).log_prob(y)
        return jnp.logaddexp(total, logsumexp(log_p, axis=0)), None

    batch = marginal.mean.shape[:-1]
    start = jnp.full(batch, -jnp.inf, marginal.mean.dtype)
    total, _ = jax.lax.scan(add, start, blocks)
    return total - jnp.log(_NUM_POINTS)


@by_likelihood
def predictive_probabilities(likelihood, support, marginal: Marginal) -> Array | None:
    """P(y_n = 1) [N] for y in {0, 1}, P(y_n = c) [N, C] for C classes, else None.

    Classes are the same for all data: there are none where their number is an array, or
    where labels start elsewhere than at 0.
    """
    count = marginal.mean.shape[-1 if marginal.is_single else -2]

    def probability(label) -> Array:
        y = jnp.full(count, label)
        return jnp.exp(log_predictive_density(likelihood, y, marginal))

    if support is dist.constraints.boolean:
        return probability(1)
    if isinstance(support, type(dist.constraints.integer_interval(0, 1))):
        interval: Any = support
        low, high = interval.lower_bound, interval.upper_bound
        if np.ndim(low) or np.ndim(high) or int(low) != 0:
            return None
        labels = jnp.arange(int(high) + 1)
        each = in_batches(probability, labels, _LABELS_AT_A_TIME)
        return jnp.moveaxis(each, 0, -1)
    return None
