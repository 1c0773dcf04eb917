"""log E_q p(y|f) and probabilities of labels, for predictions.

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
from svgp_ppl.expectations.importance import log_average_by_importance
from svgp_ppl.expectations.log_average import (
    highest_peaks,
    is_log_concave,
    log_average_by_trapezoid,
)
from svgp_ppl.expectations.mixtures import by_components
from svgp_ppl.expectations.modes import mode_of_integrand, of_normals
from svgp_ppl.expectations.nodes import (
    QuasiMonteCarlo,
    hermite_grid,
    normal_nodes,
    num_components,
    points,
)
from svgp_ppl.expectations.trapezoid import nearest_singularity
from svgp_ppl.linalg import small_product
from svgp_ppl.marginals import Marginal
from svgp_ppl.rows import in_batches

__all__ = [
    "closed_form_log_predictive",
    "log_predictive_density",
    "predictive_probabilities",
]

# Points for probabilities of labels with four and more components, in blocks to bound
# the memory.
_NUM_POINTS, _POINTS_AT_A_TIME = 4096, 256
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
    for more, importance sampling with 2048 points. A mixture is taken apart first.
    """
    return _log_average(likelihood, y, marginal, log_average_by_importance)


def _log_average(likelihood, y: Array, marginal: Marginal, of_many: Callable) -> Array:
    """log E_q p(y_n | f_n), [N], with a rule for four and more components."""
    value = closed_form_log_predictive(likelihood, y, marginal)
    if value is None:
        few = {1: _by_trapezoid, 2: _by_hermite_or_box, 3: _by_hermite_or_box}
        rule = few.get(num_components(marginal), of_many)
        value = by_components(rule, likelihood, y, marginal)
    return marginal.log_average(value)


def _by_trapezoid(likelihood: Callable, y: Array, marginal: Marginal) -> Array:
    return log_average_by_trapezoid(likelihood, y, marginal, _starts(likelihood, y))


def _starts(likelihood, y: Array) -> Callable[[Marginal], Array] | None:
    """Finds peaks from which to climb, where nothing is registered of the likelihood.

    One of a user may have several modes, such as N(y; f², σ²).
    """
    if is_log_concave(likelihood) or nearest_singularity(likelihood, y) is not None:
        return None
    return lambda marginal: highest_peaks(likelihood, y, marginal, _NUM_PEAKS)


def _by_hermite_or_box(likelihood: Callable, y: Array, marginal: Marginal) -> Array:
    """The box rule, in two or three components that may have several modes and ridges.

    Standard normals may be rotated: here to the principal axes of the curvature at a
    mode, so that a ridge such as that of p(y | f + g) is narrow along an axis.

    Where p(y|f) changes little within q(f), as under most draws of v, two grids of
    Gauss–Hermite show that the integrand is near to a Gaussian, and are enough: that is
    found for each datum, whatever the others are, and the box left out if for all.
    """
    log_likelihood, like = of_normals(likelihood, y, marginal), marginal.mean
    width, mode = like.shape[-1], mode_of_integrand(likelihood, y, marginal)
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


def _integrand(log_likelihood: Callable) -> Callable:
    """ℓ(e) − ‖e‖²/2."""
    return lambda e: log_likelihood(e) - 0.5 * jnp.sum(jnp.square(e), axis=-1)


def _by_quasi_monte_carlo(likelihood, y, marginal: Marginal) -> Array:
    """The same points for all labels, whose probabilities then sum to one."""
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
        value = _log_average(likelihood, y, marginal, _by_quasi_monte_carlo)
        return jnp.exp(value)

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
