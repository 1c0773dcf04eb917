"""P(g_y > g_c for all c ≠ y) for Gaussian g: one class ahead of all others."""

import jax
import jax.numpy as jnp
from jax.scipy.special import erfc, ndtr, ndtri
from jaxtyping import Array, Float, Int

from svgp_ppl.expectations import QuasiMonteCarlo, normal_nodes
from svgp_ppl.likelihoods.differences import own_less_others
from svgp_ppl.linalg import floored_sqrt, small_cholesky
from svgp_ppl.marginals import Marginal

__all__ = ["probability_of_largest"]

# Nodes of the one-dimensional integral. Largest error for 2 to 26 classes, random means
# and scales: 1e-6 where the scales differ by a factor of 10 at most, 1e-5 to a factor
# of 1e4, 4e-4 to one of 1e6. (20 Gauss–Hermite nodes: 1e-4, 3e-2 and 1e-1.)
_NUM_NODES = 64
# Half-width of the integral in standard deviations: 3e-12 of the mass is outside.
_REACH = 7.0
# A step, Φ of slope 1/r, counts as 0 or 1 this many r away from its middle.
_FOOT = 3.0
# Least density of nodes, relative to that about a step, per standard deviation.
_BULK = 0.25
# Iterations for the nodes: Newton's method on a convex function, from above.
_NEWTON_STEPS = 6
# Points of the integral over C − 2 dimensions when components are correlated.
_NUM_POINTS = 128
# An entry of a factor counts as zero below this many roots of a rounding.
_ROUNDING = 8.0
# Ends of an interval that has none, in standard deviations.
_BEYOND = 40.0


def probability_of_largest(
    y: Int[Array, "*batch N"], marginal: Marginal, noise: float
) -> Array:
    """P(g_y > g_c for all c ≠ y) with g ~ N(mean, covariance + noise I), [N] or [K, N].

    With independent components, conditional on g_y (Girolami & Rogers 2006; Liu et al.
    2019, equation 18),

        E_{g_y ~ N(m_y, a + v_y)} Π_{c ≠ y} Φ( (g_y − m_c) / √(a + v_c) ),

    one integral by the trapezoidal rule. Correlated components need the orthant
    probability of the C − 1 differences instead, see ``_orthant``.

    Args:
        y: The class of each datum, 0 to C − 1.
        marginal: Distribution of C components.
        noise: Variance added to each component, independently.
    """
    y = jnp.broadcast_to(y, marginal.mean.shape[:-1])
    if marginal.covariance is None:
        return _of_independent(y, marginal.mean, noise + marginal.variance)
    eye = jnp.eye(marginal.mean.shape[-1], dtype=marginal.mean.dtype)
    return _of_correlated(y, marginal.mean, marginal.covariance + noise * eye)


def _own(values: Array, y: Array) -> Array:
    """The value of the class y, [.., N, 1]."""
    return jnp.take_along_axis(values, y[..., None], axis=-1)


# ------------------------------------------------------------------------- independent


def _of_independent(y: Array, mean: Array, variance: Array) -> Array:
    # A component without variance, such as a class pinned at 0, is a step that no node
    # can be near: 1e-4 of the widest sd is as good, to 1e-8. Not so for a narrow one,
    # where another narrow one is as near.
    widest = jax.lax.stop_gradient(jnp.max(variance, axis=-1, keepdims=True))
    variance = jnp.where(variance < 1e-12 * widest, 1e-8 * widest, variance)
    sd, num_classes = floored_sqrt(variance), mean.shape[-1]
    own_mean, own_sd = _own(mean, y), _own(sd, y)
    is_other = jnp.arange(num_classes) != y[..., None]
    if num_classes == 2:
        rest = jnp.sum(jnp.where(is_other, mean, 0.0), axis=-1)
        total = floored_sqrt(jnp.sum(jnp.square(sd), axis=-1))
        return ndtr((own_mean[..., 0] - rest) / total)
    # g_y = m_y + s_y e, and the others are steps in e: Φ((e − place) / width).
    place, width = jax.lax.stop_gradient(((mean - own_mean) / own_sd, sd / own_sd))
    chosen, centre, scale = _sharpest_step(place, width, is_other)
    offset, weight = _nodes_about(centre, scale)
    # (m_y + s_y e − m_c) / s_c with e = centre + offset. At the chosen step the terms
    # without offset cancel: they are zero up to a rounding that may exceed s_c, so
    # their value is dropped and only their derivative kept.
    steady = own_mean + own_sd * centre[..., None] - mean
    steady = jnp.where(chosen, steady - jax.lax.stop_gradient(steady), steady)
    # Classes first, [C, nodes, .., N]: faster for few classes than last.
    steady, sd, is_other = (
        jnp.moveaxis(values, -1, 0)[:, None] for values in (steady, sd, is_other)
    )
    ratio = (own_sd[..., 0] * offset + steady) / sd
    weight = weight * _normal_density(centre + offset)
    return jnp.sum(weight * _product_of_ndtr(ratio, is_other), axis=0)


@jax.custom_jvp
def _product_of_ndtr(ratio: Array, is_other: Array) -> Array:
    """Π_c Φ(ratio_c) over the others, with gradient Π Φ · φ(ratio_c)/Φ(ratio_c).

    Where the product underflows so does its gradient, and neither counts in the
    integral: logarithms, at about twice the cost, would not change it.
    """
    return jnp.prod(_factors(ratio, is_other), axis=0)


@_product_of_ndtr.defjvp
def _tangent_of_product(primals, tangents):
    ratio, is_other = primals
    factors = _factors(ratio, is_other)
    product = jnp.prod(factors, axis=0)
    tiny = jnp.finfo(ratio.dtype).tiny
    hazard = _normal_density(ratio) / jnp.maximum(factors, tiny)
    slope = product * jnp.where(is_other, hazard, 0.0)
    return product, jnp.sum(slope * tangents[0], axis=0)


def _factors(ratio: Array, is_other: Array) -> Array:
    return jnp.where(is_other, 0.5 * erfc(ratio * -(0.5**0.5)), 1.0)


def _normal_density(x: Array) -> Array:
    return jnp.exp(-0.5 * jnp.square(x)) / (2.0 * jnp.pi) ** 0.5


def _sharpest_step(place: Array, width: Array, is_other: Array):
    """The sharpest step that the integrand sees: which, where and how wide.

    To the left of any step the integrand vanishes, so only steps that reach to the
    right of every other's foot matter. Wider ones are resolved by nodes whose spacing
    grows in proportion to their distance from the sharpest.

    Returns:
        Which component it is, [.., N, C] (none where none is sharper than the normal
        density itself or lies beyond the integral); its place and width, [.., N].
    """
    foot = jnp.max(
        jnp.where(is_other, place - _FOOT * width, -_REACH), axis=-1, keepdims=True
    )
    matters = is_other & (place + _FOOT * width >= jnp.maximum(foot, -_REACH))
    widths = jnp.where(matters, width, jnp.inf)
    which = jnp.argmin(widths, axis=-1)[..., None]
    scale = jnp.take_along_axis(widths, which, axis=-1)
    centre = jnp.take_along_axis(place, which, axis=-1)
    is_sharp = scale < 1.0
    inside = is_sharp & (jnp.abs(centre) < _REACH)
    chosen = inside & (jnp.arange(place.shape[-1]) == which)
    centre = jnp.where(is_sharp, jnp.clip(centre, -_REACH, _REACH), 0.0)
    return chosen, centre[..., 0], jnp.where(is_sharp, scale, 1.0)[..., 0]


def _nodes_about(centre: Array, scale: Array) -> tuple[Array, Array]:
    """Nodes over [−7, 7], less the centre, and their weights, [nodes, .., N].

    Equidistant in t = asinh(x/r) + x/4, x the distance from the centre and r the scale:
    dense about the centre, further apart in proportion to x, never sparse.
    """

    def transformed(x):
        return jnp.arcsinh(x / scale) + _BULK * x

    low, high = transformed(-_REACH - centre), transformed(_REACH - centre)
    ticks = jnp.linspace(0.0, 1.0, _NUM_NODES, dtype=centre.dtype)
    t = low + (high - low) * ticks.reshape(-1, *(1,) * centre.ndim)
    # With x = r sinh s: s + r/4 sinh s = t, by symmetry for |t|.
    size, slope = jnp.abs(t), _BULK * scale
    s = jnp.minimum(size, jnp.arcsinh(size / slope))
    for _ in range(_NEWTON_STEPS):
        up = jnp.exp(s)
        down = 1.0 / up
        excess = s + 0.5 * slope * (up - down) - size
        s = s - excess / (1.0 + 0.5 * slope * (up + down))
    x = jnp.sign(t) * scale * jnp.sinh(s)
    density = 1.0 / (scale * jnp.cosh(s)) + _BULK
    return x, (high - low) / (_NUM_NODES - 1) / density


# -------------------------------------------------------------------------- correlated


def _of_correlated(
    y: Array, mean: Array, covariance: Float[Array, "*batch C C"]
) -> Array:
    """The orthant probability of the differences d_c = g_y − g_c, c ≠ y."""
    j = jnp.arange(mean.shape[-1] - 1)
    others = j + (j >= y[..., None])  # [.., N, C − 1]
    variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
    marginal = Marginal(mean, variance, covariance)
    return _orthant(*own_less_others(y, others, marginal))


def _orthant(mean: Array, covariance: Array) -> Array:
    """P(d > 0) for d ~ N(mean, covariance), by conditioning in turn (Genz 1992).

    d = mean + L z. Given z_1 .. z_{i−1}, those d_c of which z_i is the last coordinate
    are positive for z_i in an interval: its own alone if the covariance has full rank,
    and otherwise also those that follow from z_1 .. z_i (Genz & Kwong 2000). z_i is
    drawn from its normal cut off there. The product of the probabilities of these
    intervals is averaged over 128 fixed quasi-random points in one dimension less than
    the rank (exact for rank one): a smooth function of mean and covariance.
    """
    size = mean.shape[-1]
    variances = jnp.diagonal(covariance, axis1=-2, axis2=-1)
    # The least likely first: fewer of the later factors then vary.
    order = jnp.argsort(mean / floored_sqrt(variances), axis=-1)
    mean, variances = (
        jnp.take_along_axis(values, order, axis=-1) for values in (mean, variances)
    )
    covariance = jnp.take_along_axis(covariance, order[..., :, None], axis=-2)
    covariance = jnp.take_along_axis(covariance, order[..., None, :], axis=-1)
    factor = small_cholesky(covariance)
    # Of a zero pivot, the root of a rounding may be left.
    least = _ROUNDING * (jnp.finfo(mean.dtype).eps * jnp.abs(variances)) ** 0.5
    is_zero = jnp.abs(factor) <= least[..., None]
    factor = jnp.where(is_zero, 0.0, factor)
    later = jnp.cumsum(jnp.flip(~is_zero, -1), axis=-1)
    is_last = ~is_zero & (jnp.flip(later, -1) == 1)
    known = jnp.where(jnp.all(is_zero, axis=-1), jnp.heaviside(mean, 0.5), 1.0)
    nodes, _ = normal_nodes(QuasiMonteCarlo(_NUM_POINTS), size)
    nodes = nodes if size > 1 else jnp.zeros((1, 1))
    uniform = ndtr(nodes.astype(mean.dtype)).T  # [C − 1, points]; the last is not used

    def condition(carry, given):
        d, product = carry  # [points, .., N, C − 1] and [points, .., N]
        column, is_last, uniform = given
        uniform = uniform.reshape(-1, *(1,) * (mean.ndim - 1))
        z, probability = _cut_off(uniform, *_interval(d, column, is_last))
        return (d + column * z[..., None], product * probability), None

    columns = (jnp.moveaxis(values, -1, 0) for values in (factor, is_last))
    start = jnp.broadcast_to(mean, (uniform.shape[1], *mean.shape))
    start = start, jnp.broadcast_to(jnp.prod(known, axis=-1), start.shape[:-1])
    (_, product), _ = jax.lax.scan(condition, start, (*columns, uniform))
    return jnp.mean(product, axis=0)


def _interval(d: Array, column: Array, is_last: Array) -> tuple[Array, Array]:
    """The ends of those z for which d + column · z > 0 where z comes last."""
    root = -d / jnp.where(is_last, column, 1.0)
    from_below, from_above = is_last & (column > 0), is_last & (column < 0)
    low = jnp.max(jnp.where(from_below, root, -_BEYOND), axis=-1)
    high = jnp.min(jnp.where(from_above, root, _BEYOND), axis=-1)
    return jnp.minimum(low, _BEYOND), jnp.maximum(high, -_BEYOND)


def _cut_off(uniform: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """A standard normal within an interval, and the probability of that.

    In upper tails, of the interval or of its mirror image: where it is narrow and far
    out, Φ(high) − Φ(low) is a difference of small numbers.
    """
    edge = jnp.finfo(low.dtype)
    is_left = low + high < 0.0
    low, high = jnp.where(is_left, -high, low), jnp.where(is_left, -low, high)
    beyond = ndtr(-high)
    probability = jnp.maximum(ndtr(-low) - beyond, 0.0)
    # P(Z > z) = P(Z > high) + u P(low < Z < high)
    z = -ndtri(jnp.clip(beyond + uniform * probability, edge.tiny, 1.0 - edge.eps))
    return jnp.where(is_left, -z, z), probability
