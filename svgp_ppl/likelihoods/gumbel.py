"""log E softmax of independent components, of any number: one integral.

With independent Gumbel noise the largest of g_c = f_c + G_c is class y with probability
exp(f_y) / Σ_c exp(f_c) (McFadden 1974). Given independent f_c ~ N(m_c, s_c²) the g_c
are independent too, and

    E p(y|f) = ∫ h_y(t) Π_{c ≠ y} H_c(t) dt,
    H_c(t) = P(g_c <= t) = E exp(−exp(m_c − t + s_c e)),    e ~ N(0, 1),
    h_c(t) = dH_c/dt = exp(x + s_c²/2) E exp(−exp(x + s_c² + s_c e)),  x = m_c − t,

where the last expectation is the first one, of the Gaussian that exp(x + s_c e) has
tilted. Both integrals have a log-concave integrand and are trapezoidal rules, exact to
about exp(−π² / spacing): exp(−exp z) is as smooth as that, whatever the means are.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from svgp_ppl.likelihoods.lambert import log_lambert
from svgp_ppl.linalg import floored_sqrt
from svgp_ppl.marginals import Marginal

__all__ = ["log_mean_softmax_of_independent"]

# Nodes in t are this far apart where a class has no variance, and in e. With as many
# as these allow, errors are below 2e-7 nats for standard deviations of up to 30.
_SPACING, _MOST_NODES = 0.5, 1024
_INNER_SPACING, _MOST_INNER_NODES = 0.7, 512
# What is left out, in nats below the largest, and in standard deviations of e.
_TAIL, _REACH = 20.0, 6.0
# exp(−exp z) is zero beyond, and exp 2z not yet infinite in single precision.
_BEYOND = 40.0
# Nodes in t that are evaluated at once.
_BLOCK = 8


def log_mean_softmax_of_independent(
    y: Int[Array, "*batch N"], marginal: Marginal
) -> Array:
    """log E p(y_n | f_n) under each component, for independent classes."""
    y = jnp.broadcast_to(y, marginal.mean.shape[:-1])
    return _log_integral(
        y, *(jnp.moveaxis(a, -1, 0) for a in (marginal.mean, marginal.variance))
    )


@jax.custom_jvp
def _log_integral(y: Array, mean: Array, variance: Array) -> Array:
    """log ∫ h_y Π H_c dt, [.., N], for means and variances [C, .., N]."""
    return _integrate(y, mean, variance, with_slopes=False)[0]


@_log_integral.defjvp
def _(primals, tangents):
    """Slopes of a logarithm are averages, under the integrand, of slopes of its own."""
    value, in_mean, in_variance = _integrate(*primals, with_slopes=True)
    _, of_mean, of_variance = tangents
    return value, jnp.sum(in_mean * of_mean + in_variance * of_variance, axis=0)


def _integrate(y: Array, mean: Array, variance: Array, *, with_slopes: bool) -> list:
    """log ∫ exp ℓ(t) dt, and averages of the slopes of ℓ in means and variances.

    As many nodes as the data of a call need, a block of them at a time.
    """
    mean = mean - jnp.max(mean, axis=0)  # all that matters, and is not rounded
    low, high = jax.lax.stop_gradient(_ends(mean, floored_sqrt(variance)))
    # At its mode ℓ has a curvature of 1/(1 + s²/C) at most, s the least of all.
    least = jax.lax.stop_gradient(jnp.min(variance, axis=0)) / len(mean)
    spaces = (high - low) / (_SPACING * jnp.sqrt(1.0 + least))
    num = _largest(spaces, _MOST_NODES) + 1
    step = (high - low) / (num - 1)

    def add(k, sums):
        node = (k * _BLOCK + jnp.arange(_BLOCK)).reshape(-1, *(1,) * low.ndim)
        x = mean - (low + step * node)[:, None]
        value, *slopes = _log_integrand(y, x, variance, with_slopes)
        value = jnp.where(node < num, value, -jnp.inf)
        peak = jnp.maximum(sums[0], jnp.max(value, axis=0))
        term = jnp.exp(value - peak)
        terms = [term, *(term[:, None] * slope for slope in slopes)]
        before = jnp.exp(sums[0] - peak)
        return [peak, *(s * before + jnp.sum(a, 0) for s, a in zip(sums[1:], terms))]

    zeros = [jnp.zeros_like(mean)] * (2 if with_slopes else 0)
    start = [jnp.full_like(low, -jnp.inf), jnp.zeros_like(low), *zeros]
    blocks = (num + _BLOCK - 1) // _BLOCK
    peak, total, *sums = jax.lax.fori_loop(0, blocks, add, start)
    return [peak + jnp.log(total * step), *(s / total for s in sums)]


def _ends(mean: Array, sd: Array) -> tuple[Array, Array]:
    """Where the integrand of any class is e⁻²⁰ of its largest at most, [.., N] each.

    With v = −d log H_c/dx > 1, Laplace's method gives x = log v + s² v, and between
    v = 1 and there the integrand, as h_y/H_y falls with a slope of 1 at most, has
    lost s² (v − 1)²/2 + v − 1 − log v nats at least. On the right 1 − H_c falls as the
    sum of a Gaussian and an exponential: by x²/(2 s²) up to s², then with a slope of 1.
    """
    spread = jnp.minimum(1.2 * _TAIL, (2.0 * _TAIL) ** 0.5 / sd)
    v = 1.0 + spread
    low = jnp.max(mean - jnp.log(v) - jnp.square(sd) * v, axis=0)
    # All other classes are below this with a probability of about a half.
    middle = jnp.max(mean + 2.0 * sd, axis=0) + jnp.log(float(len(mean)))
    square = jnp.square(sd)
    x = middle - mean
    lost = jnp.where(x <= square, 0.5 * jnp.square(x / sd), x - 0.5 * square) + _TAIL
    is_near = lost <= 0.5 * square
    x = jnp.where(is_near, sd * jnp.sqrt(2.0 * lost), lost + 0.5 * square)
    return low, jnp.max(mean + x, axis=0)


def _log_integrand(
    y: Array, x: Array, variance: Array, with_slopes: bool
) -> list[Array]:
    """ℓ = log h_y + Σ_{c ≠ y} log H_c and its slopes at x = m − t, [B, C, .., N]."""
    log_below, *slopes = _log_transform(x, variance, with_slopes)
    is_own = jnp.arange(x.shape[1]).reshape(-1, *(1,) * y.ndim) == y
    own_x, own_variance = (
        jnp.sum(jnp.where(is_own, a, 0.0), axis=-1 - y.ndim) for a in (x, variance)
    )
    log_rate, *own = _log_transform(own_x + own_variance, own_variance, with_slopes)
    others = jnp.sum(jnp.where(is_own, 0.0, log_below), axis=1)
    value = own_x + 0.5 * own_variance + log_rate + others
    if not with_slopes:
        return [value]
    of_mean, of_variance = own
    own = [1.0 + of_mean, 0.5 + of_mean + of_variance]
    pairs = zip(own, slopes)
    return [value, *(jnp.where(is_own, a[:, None], b) for a, b in pairs)]


def _log_transform(x: Array, variance: Array, with_slopes: bool) -> list[Array]:
    """log E exp(−e^z), z = x + s e, and its slopes in x and s², the second at 0 too.

    The Laplace transform of exp(s e) at exp(x). The mode of exp(−e²/2 − e^z) is
    e = −u/s with u + log u = x + log s² (Lambert's function). A move by a to the left
    loses a²/2 + u (s a − 1 + exp(−s a))/s² nats, at least a² (1/2 + u/(2 + s a)), and
    one to the right (1 + u) a²/2 at least.
    """
    sd = floored_sqrt(variance)
    u = jnp.exp(log_lambert(x + 2.0 * jnp.log(sd)))
    mode = -sd * jnp.exp(x - u)
    left = _REACH / jnp.sqrt(1.0 + 2.0 * u / (2.0 + _REACH * sd))
    right = _REACH / jnp.sqrt(1.0 + u)
    most = 2.0 * _REACH * jnp.sqrt(1.0 + 0.7 * variance) / _INNER_SPACING
    spaces = _largest(most, _MOST_INNER_NODES)
    step = (left + right) / spaces
    mode, low, step = jax.lax.stop_gradient((mode, mode - left, step))
    peak = -0.5 * jnp.square(mode) - jnp.exp(x + sd * mode)

    def add(k, sums):
        e = low + step * k
        exp_z = jnp.exp(jnp.minimum(x + sd * e, _BEYOND))
        term = jnp.exp(-0.5 * jnp.square(e) - exp_z - peak)
        powers = [term, term * exp_z, term * jnp.square(exp_z)]
        return [a + b for a, b in zip(sums, powers)]

    start = [jnp.zeros_like(x)] * (3 if with_slopes else 1)
    total, *sums = jax.lax.fori_loop(0, spaces + 1, add, start)
    value = peak + jnp.log(total * step) - 0.5 * jnp.log(2.0 * jnp.pi)
    if not with_slopes:
        return [value]
    first, second = (s / total for s in sums)
    return [value, -first, 0.5 * (second - first)]


def _largest(number: Array, most: int) -> Array:
    """Of all data of a call, rounded up; a NaN is of its datum alone."""
    largest = jnp.nanmax(number, initial=1.0)
    return jnp.minimum(jnp.ceil(largest), most).astype(int)
