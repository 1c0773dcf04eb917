"""P(y <= a) of distributions whose function NumPyro lacks, or JAX cannot take far.

Binomial and geometric variables have none in NumPyro.

JAX's incomplete gamma and beta functions lose digits as their parameters grow. That of
a Poisson variable is wrong by 1e-3 at a mean of 1e4 in float32, by 0.04 at 1e5, and is
no probability at 1e7; in float64 this begins beyond 1e7. The uniform expansions of
Temme (DLMF 8.12.3 and 8.18.9) become better as they grow,

    P = ½ erfc(−η √(n/2)) + exp(−n η²/2) / √(2πn) (1/η − 1/ω),

where ω is the distance of the argument from its centre in √n standard deviations, and
η of the sign of ω with η²/2 the relative entropy. The rest is below 2e-5 where n, for
the beta function the smaller parameter, is 100, and falls with n^(−3/2).
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betainc, erfc, expit, gammainc, gammaincc, gammaln
from jaxtyping import Array

__all__ = ["cdf"]

# The parameter from which the expansions are better than JAX's functions.
_LARGE = {"float32": 100.0, "float64": 1e6}
# Below this smaller parameter of a beta function, a gamma function is the limit.
_SMALL = {"float32": 100.0, "float64": 1e4}
# From this |ω| √n on 1/η − 1/ω is taken as it stands, before that its limit: rounding
# errors of the one and what the other leaves out are below 1e-6.
_NEAR = 0.05
# Up to this |z| the distribution function of a Student's t is a line, to 1e-10.
_CENTRAL = 1e-3
# ω of the gamma functions: beyond, P is 0 or 1.
_LOWEST, _HIGHEST = -1.0 + 1e-6, 1e6


def cdf(distribution: Any, value: Any) -> Array:
    """P(y <= value) of a NumPyro distribution.

    Raises:
        NotImplementedError: The distribution has none.
    """
    own: Any = type(distribution).cdf
    for kind, formula in _FORMULAS.items():
        # A subclass may have a function of its own.
        if isinstance(distribution, kind) and own is kind.cdf:
            return formula(distribution, value)
    return distribution.cdf(value)


def _poisson(distribution: Any, value: Any) -> Array:
    return _gamma(jnp.floor(value) + 1.0, distribution.rate, upper=True)


def _gamma_poisson(distribution: Any, value: Any) -> Array:
    rate = distribution.rate  # infinite where the mean is 0
    share = jnp.where(jnp.isinf(rate), 1.0, rate / (1.0 + rate))
    count = jnp.floor(value) + 1.0
    return _beta(distribution.concentration, count, share, 1.0 / (1.0 + rate))


def _gamma_variable(distribution: Any, value: Any) -> Array:
    return _gamma(distribution.concentration, distribution.rate * value, upper=False)


def _beta_variable(distribution: Any, value: Any) -> Array:
    a, b = distribution.concentration1, distribution.concentration0
    return _beta(a, b, value, 1.0 - value)


def _binomial(distribution: Any, value: Any) -> Array:
    failure, success = _shares(distribution)
    count = jnp.floor(value)
    rest = distribution.total_count - count  # at 0, where all trials succeed, P is 1
    below = _beta(jnp.maximum(rest, 1.0), count + 1.0, failure, success)
    return jnp.where(rest > 0.0, below, 1.0)


def _geometric(distribution: Any, value: Any) -> Array:
    """Of the number of failures before a success: 1 − P(all of so many fail)."""
    failure, success = _shares(distribution)
    log_failure = jnp.where(success < 0.5, jnp.log1p(-success), jnp.log(failure))
    return -jnp.expm1((jnp.floor(value) + 1.0) * log_failure)


def _student_t(distribution: Any, value: Any) -> Array:
    """½ + ½ sign(z) I_y(½, ν/2) with y = z²/(ν + z²).

    NumPyro has 1 − I_{1−y}(ν/2, ½) for I: in float32 1 − y is 1 for z² below ν/10⁷, and
    P is ½ there.
    """
    df, z = _together(distribution.df, (value - distribution.loc) / distribution.scale)
    # At z = 0 the slope of I is infinite, and that of P the density.
    is_near = jnp.abs(z) < _CENTRAL
    square = jnp.square(jnp.where(is_near, _CENTRAL, z))
    y, rest = square / (df + square), df / (df + square)
    is_outer, half = y > 0.5, jnp.full_like(df, 0.5)
    a, b = jnp.where(is_outer, 0.5 * df, half), jnp.where(is_outer, half, 0.5 * df)
    inside = _beta(a, b, jnp.where(is_outer, rest, y), jnp.where(is_outer, y, rest))
    inside = jnp.where(is_outer, 1.0 - inside, inside)
    return 0.5 + 0.5 * jnp.where(is_near, z / _CENTRAL, jnp.sign(z)) * inside


def _shares(distribution: Any) -> tuple[Array, Array]:
    """Probabilities of a failure and of a success, as their distribution has them."""
    with_logits: Any = (dist.BinomialLogits, dist.GeometricLogits)
    if isinstance(distribution, with_logits):
        return expit(-distribution.logits), expit(distribution.logits)
    return 1.0 - distribution.probs, distribution.probs


_FORMULAS: dict[Any, Callable[[Any, Any], Array]] = {
    dist.Poisson: _poisson,
    dist.GammaPoisson: _gamma_poisson,
    dist.Gamma: _gamma_variable,
    dist.Beta: _beta_variable,
    dist.BinomialProbs: _binomial,
    dist.BinomialLogits: _binomial,
    dist.GeometricProbs: _geometric,
    dist.GeometricLogits: _geometric,
    dist.StudentT: _student_t,
}


def _gamma(a: Any, x: Any, *, upper: bool) -> Array:
    """The regularised incomplete gamma functions, P(a, x) and Q(a, x)."""
    a, x = _together(a, x)
    is_large = a >= _LARGE[a.dtype.name]
    n = jnp.where(is_large, a, 1.0)
    omega = jnp.clip(jnp.where(is_large, x - a, 0.0) / n, _LOWEST, _HIGHEST)
    expanded = _expanded(_entropy(omega), omega, n, 1.0 / 3.0, upper)
    exact = gammaincc if upper else gammainc
    # JAX takes many more terms where parameters are large, which are not used.
    values = exact(jnp.where(is_large, 1.0, a), jnp.where(is_large, 1.0, x))
    return jnp.where(is_large, expanded, values)


def _beta(a: Any, b: Any, x: Any, y: Any) -> Array:
    """The regularised incomplete beta function I_x(a, b), y = 1 − x."""
    a, b, x, y = _together(a, b, x, y)
    least, most = jnp.minimum(a, b), jnp.maximum(a, b)
    is_large = most >= _LARGE[a.dtype.name]
    is_central = is_large & (least >= _SMALL[a.dtype.name])
    is_skewed = is_large & ~is_central & (most >= 10.0 * least)
    central = _central_beta(*(jnp.where(is_central, v, 0.5) for v in (a, b, x, y)))
    # The smaller parameter first: I_x(a, b) = 1 − I_y(b, a).
    is_turned = b < a
    z = jnp.where(is_turned, y, x), jnp.where(is_turned, x, y)
    given = zip((least, most, *z), (1.0, 2.0, 1e-6, 1.0), strict=True)
    least, most, *z = (jnp.where(is_skewed, v, other) for v, other in given)
    skewed = _skewed_beta(least, most, *z)
    skewed = jnp.where(is_turned, 1.0 - skewed, skewed)
    is_other = ~(is_central | is_skewed)
    exact = betainc(*(jnp.where(is_other, v, 0.5) for v in (a, b, x)))
    return jnp.where(is_central, central, jnp.where(is_skewed, skewed, exact))


def _central_beta(a: Array, b: Array, x: Array, y: Array) -> Array:
    """Where both parameters are large."""
    n = a + b
    x_centre, y_centre = a / n, b / n
    # The smaller of x and y has more digits.
    away = jnp.where(x < y, x - x_centre, y_centre - y)
    sd = jnp.sqrt(x_centre * y_centre)
    entropy = x_centre * _entropy(away / x_centre) + y_centre * _entropy(
        -away / y_centre
    )
    limit = (y_centre - x_centre) / (3.0 * sd)
    inside = _expanded(entropy, away / sd, n, limit, upper=False)
    return jnp.where(x <= 0.0, 0.0, jnp.where(y <= 0.0, 1.0, inside))


def _skewed_beta(a: Array, b: Array, x: Array, y: Array) -> Array:
    """Where b is much larger than a: Wise (1950), exact for a = 1.

    I_x(a, b) = P(a, t) − (a − 1) (a + 1 + t) tᵃ e⁻ᵗ / (24 n² Γ(a)) + …,
    t = −n log y and n = b + (a − 1)/2.
    """
    n = b + 0.5 * (a - 1.0)
    # log y of the more accurate of the two.
    is_low = x < 0.5
    log_y = jnp.where(is_low, jnp.log1p(-jnp.where(is_low, x, 0.0)), jnp.log(y))
    t = jnp.clip(-n * log_y, 1e-30, 1e6)
    density = jnp.exp(a * jnp.log(t) - t - gammaln(a))
    change = (a - 1.0) * (a + 1.0 + t) * density / (24.0 * n * n)
    return gammainc(a, t) - change


def _expanded(entropy: Array, omega: Array, n: Array, limit: Any, upper: bool) -> Array:
    """Temme's expansion, from η²/2, ω and the limit of 1/η − 1/ω at ω = 0."""
    is_near = jnp.abs(omega) * jnp.sqrt(n) < _NEAR
    # Where one branch is taken, the other has numbers with finite derivatives.
    sign, away = jnp.where(omega < 0.0, -1.0, 1.0), jnp.where(is_near, 1.0, omega)
    eta = sign * jnp.sqrt(2.0 * jnp.where(is_near, 0.5, entropy))
    correction = jnp.where(is_near, limit, 1.0 / eta - 1.0 / away)
    eta = jnp.where(is_near, omega * (1.0 - limit * omega), eta)
    tail = 0.5 * erfc((eta if upper else -eta) * jnp.sqrt(0.5 * n))
    change = correction * jnp.exp(-n * entropy) / jnp.sqrt(2.0 * jnp.pi * n)
    return tail - change if upper else tail + change


def _entropy(u: Array) -> Array:
    """u − log(1 + u), without cancellation: log(1 + u) = 2 artanh r, r = u/(2 + u)."""
    u = jnp.maximum(u, _LOWEST)
    is_small = jnp.abs(u) < 0.2
    small, other = jnp.where(is_small, u, 0.0), jnp.where(is_small, 1.0, u)
    r = small / (2.0 + small)
    q = r * r
    rest = q * (
        1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q / 11.0)))
    )
    return jnp.where(is_small, r * (small - 2.0 * rest), other - jnp.log1p(other))


def _together(*values: Any) -> list[Array]:
    """Arrays of one shape and one floating dtype, at least float32."""
    arrays = jnp.broadcast_arrays(*map(jnp.asarray, values))
    dtype = jnp.promote_types(jnp.result_type(float, *arrays), jnp.float32)
    return [array.astype(dtype) for array in arrays]
