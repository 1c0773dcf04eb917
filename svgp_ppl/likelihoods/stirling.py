"""log p of counts by Stirling's series and a deviance, where nearly all cancels.

Loader (2000): with y! = √(2πy) (y/e)^y e^{δ(y)}, n = y + r and the log odds f,

    log (n over y) σ(f)^y σ(−f)^r
        = ½ log n/(2π y r) + δ(n) − δ(y) − δ(r) − D,
    D = n { log(1 + s (e^d − 1)) − s d },

where s is the smaller one of y/n and r/n, and d how far the log odds of it are from
those with s = σ: none of the terms is larger than the value, or not by much.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array

__all__ = ["MANY", "excess", "log_binomial", "stirling_error", "stirling_series"]

# From here on the series is right to 1e-13, and to 4e-8.
MANY = 32.0
_MANY_IN_SINGLE = 4.0


def stirling_series(y: Array) -> Array:
    """δ(y) for y >= ``MANY``, or 4 in single precision."""
    return (1 / 12 - (1 / 360 - 1 / (1260 * y**2)) / y**2) / y


def stirling_error(y: Array) -> Array:
    """δ(y) = log y! − (y + ½) log y + y − ½ log 2π for y > 0, not only whole."""
    enough = MANY if y.dtype == jnp.float64 else _MANY_IN_SINGLE
    few, many = jnp.minimum(y, enough), jnp.maximum(y, enough)
    exact = gammaln(few + 1.0) - (few + 0.5) * jnp.log(few) + few
    exact = exact - 0.5 * jnp.log(2.0 * jnp.pi)
    return jnp.where(y < enough, exact, stirling_series(many))


def excess(log_ratio: Array, ratio: Array) -> Array:
    """r − 1 from log r and r, of which one may overflow and the other cancels."""
    is_near = jnp.abs(log_ratio) < 1.0
    near = jnp.expm1(jnp.where(is_near, log_ratio, 0.0))
    return jnp.where(is_near, near, ratio - 1.0)


def log_binomial(y: Array, rest: Array, f: Array) -> Array:
    """log (n over y) + y log σ(f) + r log σ(−f), for y and r >= 0, not only whole."""
    is_edge = (y <= 0.0) | (rest <= 0.0)  # of one way only
    edge = y * jax.nn.log_sigmoid(f) + rest * jax.nn.log_sigmoid(-f)
    y, rest = (jnp.where(is_edge, 1.0, count) for count in (y, rest))
    # Not minimum and maximum, whose slopes are halves of both where y = r.
    is_less, n = y <= rest, y + rest
    less, more = jnp.where(is_less, y, rest), jnp.where(is_less, rest, y)
    root = 0.5 * (jnp.log(n / more) - jnp.log(2.0 * jnp.pi * less))
    errors = stirling_error(n) - stirling_error(more) - stirling_error(less)
    many = root + errors - _deviance(less, more, jnp.where(is_less, f, -f))
    return jnp.where(is_edge, edge, many)


def _deviance(less: Array, more: Array, f: Array) -> Array:
    """D >= 0 for the log odds f of the lesser, zero where they are log less/more."""
    n, tiny = less + more, jnp.finfo(less.dtype).tiny
    share, odds = (jnp.maximum(less / of, tiny) for of in (n, more))
    d = f - jnp.log(odds)
    is_near = d < 1.0
    near = jnp.log1p(share * jnp.expm1(jnp.where(is_near, d, 0.0)))
    far = jnp.logaddexp(jnp.log1p(-share), jnp.log(share) + d)
    return n * (jnp.where(is_near, near, far) - share * d)
