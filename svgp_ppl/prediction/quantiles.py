"""Quantiles of a predictive distribution, from its cumulative distribution function.

    F(a) = mean over draws of E_q P(y <= a | f),     quantile(p) = min { a : F(a) >= p }

F can be evaluated anywhere, but at a price, so the root is bracketed and sought at
several places at once, for all inputs and all levels together. Between the ends of the
last bracket a continuous F is treated as a line.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from svgp_ppl.expectations.cumulative import within_support
from svgp_ppl.handlers import unwrapped

__all__ = ["cdf_of", "inverted", "negligible", "of_labels"]

# Width of the last bracket in standard deviations. The error of a line through its ends
# is an eighth of its square times F''/F', 1e-7 standard deviations for a Gaussian. If a
# long tail makes sd large, such a bracket holds much: F may rise in it by no more than
# this share of min(p, 1 - p), unless it jumps within so many sd.
_WIDTH, _RISE, _JUMP = 1e-3, 2e-3, 1e-16
# Numbers that one evaluation of F may take, over draws, places, levels and inputs.
_NUMBERS_AT_A_TIME = 2**22
# A bracket that has been widened 8-fold this often holds no quantile: F is not a cdf.
_MOST_WIDENINGS = 40


def inverted(
    cdf: Callable[[np.ndarray], np.ndarray],
    levels: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    num_draws: int,
    is_discrete: bool,
) -> np.ndarray:
    """Quantiles of every entry, [levels, ...].

    Args:
        cdf: F at [A, ...] places.
        levels: Probabilities in (0, 1), [levels].
        mean: Mean of the quantity, [...]; only a place to start from.
        variance: Its variance; may be infinite.
        num_draws: Draws that F is an average over.
        is_discrete: Whether the values are whole numbers.
    """
    p = levels.reshape(-1, *(1,) * mean.ndim)
    mean = np.where(np.isfinite(mean), mean, 0.0)
    sd = np.sqrt(np.where(np.isfinite(variance) & (variance > 0), variance, 1.0))
    # Cantelli: a quantile is no further from the mean than so many standard deviations.
    low = mean - sd * np.sqrt((1.0 - p) / p) - is_discrete
    high = mean + sd * np.sqrt(p / (1.0 - p)) + is_discrete
    if is_discrete:
        low, high = np.floor(low), np.ceil(high)
    sides = _bracketed(cdf, p, low, high)
    num_places = _NUMBERS_AT_A_TIME // (num_draws * sides[0].size)
    # Evaluating F is what costs: three places quarter a bracket, fifteen take a 16th.
    share = np.linspace(0.0, 1.0, int(np.clip(num_places, 1, 3)) + 2)[1:-1]
    share = share.reshape(-1, *(1,) * p.ndim)
    while np.any(_is_wide(p, sd, sides, is_discrete)):
        sides = _narrowed(cdf, p, *sides, share, is_discrete)
    low, high, at_low, at_high = sides
    if is_discrete:
        return high + 0.0  # rounding also gives -0.0, which is shown with its sign
    rise = at_high - at_low
    return low + (high - low) * np.where(rise > 0, (p - at_low) / rise, 0.5)


def _is_wide(p, sd, sides: tuple[np.ndarray, ...], is_discrete: bool) -> np.ndarray:
    """Whether brackets are to be narrowed."""
    low, high, at_low, at_high = sides
    width = high - low
    if is_discrete:
        return width > 1.0 + 1e-9
    smallest = 4.0 * np.finfo(sd.dtype).eps * np.maximum(abs(low), abs(high))
    rises = at_high - at_low > _RISE * np.minimum(p, 1.0 - p)
    rises &= width > np.maximum(smallest, _JUMP * sd)
    return (width > _WIDTH * sd * (1.0 + 1e-9)) | rises


def negligible(levels: np.ndarray) -> float:
    """An error of F that no quantile of these levels feels."""
    return float(_RISE * np.min(np.minimum(levels, 1.0 - levels)))


def of_labels(cumulative: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The smallest label with F >= p, [levels, N], from F of every label, [N, C]."""
    # The last is 1 up to rounding.
    reached = cumulative[None, :, :-1] >= levels[:, None, None]
    return np.where(
        reached.any(axis=-1), reached.argmax(axis=-1), cumulative.shape[-1] - 1
    )


def cdf_of(distribution: Any, value: Any) -> Any:
    """P(y <= value) of every entry, whatever wraps the distribution.

    Raises:
        NotImplementedError: The distribution has no cdf.
    """
    inner, _ = unwrapped(distribution)
    if type(inner).cdf is dist.TransformedDistribution.cdf:
        return _through(inner.transforms, inner.base_dist, value)
    try:
        below = inner.cdf(value)
    except NotImplementedError:
        below = _summed(inner, value)
    return within_support(inner.support, value, below)


def _summed(distribution: Any, value: Any) -> Any:
    """The cdf as a sum over labels, if these are the same for all data."""
    support: Any = distribution.support
    if not isinstance(support, type(dist.constraints.integer_interval(0, 1))):
        raise NotImplementedError
    low, high = support.lower_bound, support.upper_bound
    if np.ndim(low) or np.ndim(high):
        raise NotImplementedError
    shape = jnp.broadcast_shapes(distribution.batch_shape, jnp.shape(value))

    def add(label, total):
        p = jnp.exp(distribution.log_prob(jnp.full(jnp.shape(value), label)))
        return total + jnp.where(label <= value, p, 0.0)

    return jax.lax.fori_loop(low, high + 1, add, jnp.zeros(shape))


def _through(transforms: list, base: Any, value: Any) -> Any:
    """The cdf of a transformed distribution, whose inverses may leave the support."""
    if not transforms:
        return cdf_of(base, value)
    *earlier, last = transforms
    below = _through(earlier, base, last.inv(value))
    below = jnp.where(last.sign < 0, 1.0 - below, below)
    return within_support(last.codomain, value, below)


def _at(cdf: Callable, places: np.ndarray) -> np.ndarray:
    """F at [A, levels, ...]; one call for all.

    Raises:
        ValueError: It is NaN.
    """
    flat = places.reshape(-1, *places.shape[2:])
    values = np.asarray(cdf(flat), np.float64).reshape(places.shape)
    if np.any(np.isnan(values)):
        raise ValueError(
            "the quantiles are not known: the cdf of the prediction is NaN, at "
            f"{places[np.isnan(values)][0]:.4g} for one. Where moments are finite, the "
            "formula of the likelihood's distribution underflows: pass "
            "key=jax.random.key(...), and the quantiles are those of draws."
        )
    return values


def _bracketed(cdf: Callable, p, low, high) -> tuple[np.ndarray, ...]:
    """Ends with F(low) < p <= F(high), and F there."""
    centre = 0.5 * (low + high)
    for _ in range(_MOST_WIDENINGS):
        at_low, at_high = _at(cdf, np.stack([low, high]))
        is_above, is_below = at_low >= p, at_high < p
        if not np.any(is_above | is_below):
            return low, high, at_low, at_high
        low = np.where(is_above, centre - 8.0 * (centre - low), low)
        high = np.where(is_below, centre + 8.0 * (high - centre), high)
    raise ValueError(
        "the quantiles are not finite: the cdf of the prediction does not rise from 0 "
        "to 1."
    )


def _narrowed(
    cdf: Callable, p, low, high, at_low, at_high, share, is_discrete: bool
) -> tuple[np.ndarray, ...]:
    """The part of a bracket between two neighbouring places that holds the quantile."""
    places = low + share * (high - low)
    if is_discrete:
        places = np.round(places)  # if the width is two or more, one is inside
    values = _at(cdf, places)
    places = np.concatenate([low[None], places, high[None]])
    values = np.concatenate([at_low[None], values, at_high[None]])
    is_below = values < p
    is_below[0], is_below[-1] = True, False
    last = is_below.shape[0] - 1 - np.argmax(is_below[::-1], axis=0)
    ends = [
        np.take_along_axis(a, (last + k)[None], 0)[0]
        for a in (places, values)
        for k in (0, 1)
    ]
    return ends[0], ends[1], ends[2], ends[3]
