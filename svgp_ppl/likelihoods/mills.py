"""log Φ(f), h = φ/Φ and h + f together, elementwise, to their last digits at any f.

By what is left of the inverse of Mills' ratio, for x ≥ 0 (Laplace's continued fraction,
Abramowitz & Stegun 1964, 26.2.14):

    φ(x)/Φ(−x) = x + g(x),   g(x) = 1/(x + 2/(x + 3/(x + …))).

At f = −x, far below zero, h is close to x: in −f²/2 − log Φ and in h + f nearly all
digits cancel. Nothing does in

    f = −x:  h = x + g,            h + f = g,   log Φ = −x²/2 − log √(2π) − log(x + g),
    f = +x:  Φ = 1 − φ/(x + g),    h = φ/Φ.
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array
from numpy.polynomial import Chebyshev, Polynomial
from scipy.special import erfcx

__all__ = ["Tail", "tail_of_normal"]

# (x + 4) g(x) is a polynomial of (x − 4)/(x + 4) within so much of itself: 5e-8 in
# float32 and 2e-14 in float64.
_MIDDLE = 4.0
_DEGREES = {np.dtype(np.float64): 24}
_FEWEST = 12
# From here on 400 terms of the continued fraction are exact.
_FAR, _NUM_TERMS = 1.0, 400


class Tail(NamedTuple):
    """Of a standard normal variable: log Φ(f), h = φ(f)/Φ(f), and h + f."""

    log_cdf: Array
    hazard: Array
    gap: Array


@jax.custom_jvp
def tail_of_normal(f: ArrayLike) -> Tail:
    """log Φ(f), elementwise, and what its slopes h and −h (h + f) are made of."""
    f = jnp.asarray(f, jnp.result_type(f, float))
    x, below = jnp.abs(f), f < 0.0
    left = _left(x)
    inverse_ratio = x + left
    square = -0.5 * jnp.square(x)
    density = jnp.exp(square) / (2.0 * np.pi) ** 0.5
    beyond = density / inverse_ratio
    log = jnp.log1p(jnp.where(below, inverse_ratio - 1.0, -beyond))
    log_cdf = jnp.where(below, square - 0.5 * np.log(2.0 * np.pi) - log, log)
    hazard = jnp.where(below, inverse_ratio, density / (1.0 - beyond))
    return Tail(log_cdf, hazard, jnp.where(below, left, hazard + f))


@tail_of_normal.defjvp
def _(primals, tangents):
    (f,), (df,) = primals, tangents
    tail = tail_of_normal(f)
    product = tail.hazard * tail.gap
    x = jnp.abs(f)
    _, slope = jax.jvp(_left, (x,), (jnp.ones_like(x),))
    of_gap = jnp.where(f < 0.0, -slope, 1.0 - product)  # nearly all cancels far below
    return tail, Tail(tail.hazard * df, -product * df, of_gap * df)


def _left(x: Array) -> Array:
    """g(x), for x from 0 on."""
    inverse = 1.0 / (x + _MIDDLE)
    t = 1.0 - 2.0 * _MIDDLE * inverse
    series = jnp.zeros_like(x)
    for coefficient in _coefficients(_DEGREES.get(np.dtype(x.dtype), _FEWEST)):
        series = series * t + coefficient
    return series * inverse


@cache
def _coefficients(degree: int) -> tuple[float, ...]:
    """Of the polynomial, the highest first."""

    def scaled(t):
        x = _MIDDLE * (1.0 + t) / (1.0 - t)
        return _exactly(x) * (x + _MIDDLE)

    polynomial = Chebyshev.interpolate(scaled, degree).convert(kind=Polynomial)
    return tuple(float(value) for value in polynomial.coef[::-1])


def _exactly(x: np.ndarray) -> np.ndarray:
    """g(x), in double precision."""
    far, near = np.maximum(x, _FAR), np.minimum(x, _FAR)
    fraction = np.zeros_like(x)
    for k in range(_NUM_TERMS, 0, -1):
        fraction = k / (far + fraction)
    by_ratio = (2.0 / np.pi) ** 0.5 / erfcx(near / 2.0**0.5) - near
    return np.where(x < _FAR, by_ratio, fraction)
