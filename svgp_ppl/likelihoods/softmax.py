"""E log and log E softmax by differences of the components: one dimension less.

    log p(y | f) = −log(1 + Σ_{c ≠ y} exp d_c),   d_c = f_c − f_y,

depends on f through C − 1 differences, whose distribution is Gaussian
(``differences``). For two classes the expectation is that of a logistic function, for
three it is a tensor Gauss–Hermite rule in two dimensions. The logarithm has no
singularity at |Im d_c| < π/2, where all exp d_c have positive real parts, whatever the
means are: how many nodes are needed follows from the largest standard deviation of a
difference (Trefethen & Weideman 2014, section 5).

The average itself, E p(y | f), has a Gaussian times a step as its integrand, and what
Gauss–Hermite makes of a step depends on where it falls between the nodes. With a
constant spacing the trapezoidal rule is as exact as p(y | f) is smooth on the scale of
that spacing, anywhere: p has its poles where 1 + e^a + e^b is zero, π away from the
real line in one difference, and π/2 at least in both. The integrand is log-concave,
more so than the Gaussian alone, and has one mode: within so many standard deviations
of that is all.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from svgp_ppl.expectations import (
    GaussHermite,
    log_average_by_trapezoid,
    normal_nodes,
)
from svgp_ppl.expectations.log_average import climb
from svgp_ppl.likelihoods.binary import Bernoulli
from svgp_ppl.likelihoods.differences import own_less_others
from svgp_ppl.likelihoods.logistic import mean_log_sigmoid
from svgp_ppl.linalg import small_cholesky, small_product, weighted_sum
from svgp_ppl.marginals import Marginal

__all__ = ["differences", "log_mean_softmax", "mean_log_softmax"]

# Nodes a dimension, and the largest sd of a difference up to which they are taken: the
# error is below 3e-10 and 2e-6 nats there. Given v, marginals are mostly so narrow.
_RULES = ((8, 0.5), (12, 1.5), (20, jnp.inf))
# The trapezoidal rule for E p: half its width in standard deviations about the mode,
# and the largest spacing in f. Probabilities are right to 1e-9 at standard deviations
# of the classes of up to 10, and to 2e-5 at 30, where there are the most nodes.
_REACH, _SPACING = 7.0, 1.0
_LEAST_NODES, _MOST_NODES = 24, 512
# Nodes of the second difference that are evaluated at once.
_BLOCK = 32


def differences(y: Int[Array, "*batch N"], marginal: Marginal) -> Marginal:
    """The C − 1 differences f_c − f_y, c ≠ y, at each datum, with their covariance.

    Args:
        y: The class of each datum, 0 to C − 1.
        marginal: Distribution of C components.
    """
    *shape, num_classes = marginal.mean.shape
    own = jnp.broadcast_to(y, shape)
    # The next class first, then the one after it: the rules of three classes are not
    # quite the same in the other order.
    others = jnp.mod(own[..., None] + jnp.arange(1, num_classes), num_classes)
    ahead, covariance = own_less_others(own, others, marginal)
    variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
    return Marginal(-ahead, variance, covariance, marginal.log_weights)


def mean_log_softmax(y: Int[Array, "*batch N"], marginal: Marginal) -> Array:
    """E log p(y_n | f_n) under each component, for two or three classes."""
    d = differences(y, marginal)
    if d.mean.shape[-1] == 1:
        return mean_log_sigmoid(-d.mean[..., 0], d.variance[..., 0])
    widest = jnp.sqrt(jnp.max(d.variance))
    which = sum(widest > limit for _, limit in _RULES)
    return jax.lax.switch(which, [partial(_by_grid, n) for n, _ in _RULES], d)


def _by_grid(num_nodes: int, d: Marginal) -> Array:
    """−E log(1 + e^a + e^b) for two differences, on a grid of their standard normals.

    With s = log(1 + e^a) it is s + log(1 + e^(b − s)): s for the nodes of a alone.
    """
    e, weights = normal_nodes(GaussHermite(num_nodes), 1)
    e, weights = e.astype(d.mean.dtype), weights.astype(d.mean.dtype)
    e = e.reshape(-1, *(1,) * (d.mean.ndim - 1))
    factor = small_cholesky(d.covariance)
    a = d.mean[..., 0] + factor[..., 0, 0] * e[:, None]
    b = d.mean[..., 1] + factor[..., 1, 0] * e[:, None] + factor[..., 1, 1] * e
    s = jax.nn.softplus(a)
    values = s + jax.nn.softplus(b - s)
    return -weighted_sum(weights, weighted_sum(weights, jnp.swapaxes(values, 0, 1)))


# ------------------------------------------------------------------------- the average


def log_mean_softmax(y: Int[Array, "*batch N"], marginal: Marginal) -> Array:
    """log E p(y_n | f_n) under each component, for two or three classes."""
    d = differences(y, marginal)
    if d.mean.shape[-1] == 1:
        ahead = Marginal(-d.mean[..., 0], d.variance[..., 0], None, d.log_weights)
        own = jnp.ones(ahead.mean.shape[-1], int)
        return log_average_by_trapezoid(Bernoulli(), own, ahead)
    return _log_mean(d.mean, small_cholesky(d.covariance))


@jax.custom_jvp
def _log_mean(mean: Array, factor: Array) -> Array:
    """log E 1/(1 + e^a + e^b) for (a, b) = mean + factor e, e standard normal."""
    return _averages(mean, factor, lambda *_: ())[0]


@_log_mean.defjvp
def _(primals, tangents):
    """The slopes are averages under the integrand, of those of −log(1 + e^a + e^b)."""

    def slopes(e_a, e_b, a, ahead):
        of_a, of_b = jax.nn.sigmoid(a) * jax.nn.sigmoid(-ahead), jax.nn.sigmoid(ahead)
        return -of_a, -of_b, -of_a * e_a, -of_b * e_a, -of_b * e_b

    (mean, factor), (of_mean, of_factor) = primals, tangents
    value, averages = _averages(mean, factor, slopes)
    moved = [of_mean[..., 0], of_mean[..., 1]]
    moved += [of_factor[..., 0, 0], of_factor[..., 1, 0], of_factor[..., 1, 1]]
    terms = [slope * by for slope, by in zip(averages, moved)]
    return value, jnp.sum(jnp.stack(terms), axis=0)


def _averages(mean: Array, factor: Array, function: Callable) -> tuple[Array, list]:
    """log E p by the trapezoidal rule, and averages of a function by its terms.

    As many nodes as the widest difference of all data needs, in a loop.

    Args:
        mean: Mean of the two differences, [.., N, 2].
        factor: Cholesky factor of their covariance, [.., N, 2, 2].
        function: Of the two e, of a and of b − log(1 + e^a) at nodes: a tuple.
    """
    centre, peak = jax.lax.stop_gradient(_peak(mean, factor))
    variances = jnp.sum(jnp.square(factor), axis=-1)
    widest = jnp.sqrt(jnp.nanmax(variances, initial=0.0))  # a NaN is of its datum alone
    num = jnp.ceil(2.0 * _REACH * widest / _SPACING) + 1.0
    num = jnp.clip(num, _LEAST_NODES, _MOST_NODES).astype(int)
    step = (2.0 * _REACH / (num - 1)).astype(mean.dtype)
    blocks = (num + _BLOCK - 1) // _BLOCK

    def add(k, sums):
        row, column = k // blocks, k % blocks * _BLOCK + jnp.arange(_BLOCK)
        column = column.reshape(-1, *(1,) * peak.ndim)
        e_a = centre[..., 0] + (row * step - _REACH)
        e_b = centre[..., 1] + (column * step - _REACH)
        a = mean[..., 0] + factor[..., 0, 0] * e_a
        s = jax.nn.softplus(a)
        ahead = mean[..., 1] + factor[..., 1, 0] * e_a + factor[..., 1, 1] * e_b - s
        # p is exp(−s) / (1 + exp(ahead)), of which no part may overflow.
        rest = -0.5 * jnp.square(e_a) - s - peak - 0.5 * jnp.square(e_b)
        term = jnp.exp(rest - jnp.maximum(ahead, 0.0)) / (1 + jnp.exp(-jnp.abs(ahead)))
        term = jnp.where(column < num, term, 0.0)
        terms = (term, *(term * x for x in function(e_a, e_b, a, ahead)))
        return [total + jnp.sum(x, axis=0) for total, x in zip(sums, terms)]

    number = 1 + len(jax.eval_shape(function, *[peak] * 4))
    start = [jnp.zeros_like(peak)] * number
    total, *sums = jax.lax.fori_loop(0, num * blocks, add, start)
    value = peak + jnp.log(total * jnp.square(step) / (2.0 * jnp.pi))
    return value, [part / total for part in sums]


def _peak(mean: Array, factor: Array) -> tuple[Array, Array]:
    """The mode of p(e) exp(−‖e‖²/2), [.., N, 2], and its logarithm there, [.., N].

    Newton's method from the middle: with p the shares of e^a and e^b the slope is
    −Fᵀp − e, and the curvature −I − Fᵀ(diag p − p pᵀ) F.
    """
    transposed = jnp.swapaxes(factor, -1, -2)

    def objective(e):
        d = mean + small_product(factor, e)
        s = jax.nn.softplus(d[..., 0])
        log_p = -s - jax.nn.softplus(d[..., 1] - s)
        return log_p - 0.5 * jnp.sum(jnp.square(e), axis=-1)

    def newton(e):
        d = mean + small_product(factor, e)
        own = jnp.zeros_like(d[..., :1])
        p = jax.nn.softmax(jnp.concatenate([own, d], axis=-1))[..., 1:]
        slope = -small_product(transposed, p) - e
        spread = p[..., None] * (jnp.eye(2, dtype=p.dtype) - p[..., None, :])
        first, second = (
            small_product(transposed, small_product(spread, factor[..., q]))
            for q in range(2)
        )
        aa, ab, bb = 1.0 + first[..., 0], first[..., 1], 1.0 + second[..., 1]
        of_a = bb * slope[..., 0] - ab * slope[..., 1]
        of_b = aa * slope[..., 1] - ab * slope[..., 0]
        return jnp.stack([of_a, of_b], -1) / (aa * bb - jnp.square(ab))[..., None]

    centre = climb(objective, newton, jnp.zeros_like(mean))
    return centre, objective(centre)
