"""Where a cumulative distribution function F reaches a probability p.

    quantile(p) = min { a : F(a) >= p }

F can be evaluated anywhere, but at a price, for all inputs and all levels together. A
quantile is bracketed first. A continuous F then meets p by Newton's method for

    z(a) = Φ⁻¹(F(a)) = Φ⁻¹(p),     z'(a) = F'(a) / φ(z(a)),

which is a line for a Gaussian; where a step leaves the bracket or does not halve the
one before, the bracket is halved (as rtsafe of Press et al. 2007, section 9.4), in
turns by length and in orders of size: the standard deviation of exp(f) may be e^s²
where a quantile is e^s. Among whole numbers brackets are quartered until two neighbours
are left.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri

__all__ = ["about", "inverted", "inverted_among_whole", "negligible", "of_labels"]

# How far z may be from Φ⁻¹(p), and a place from the next in standard deviations, before
# the last step of Newton's method; the error that is left is of the order of its
# square. Each alone passes over much, between modes or where a long tail makes sd
# large. Where F is rounded, more is allowed.
_OFF, _OFF_IF_ROUNDED = 1e-4, 1e-2
# An error of F, as a share of min(p, 1 - p), that no quantile feels.
_SHARE = 2e-3
# F jumps where a bracket of this width is left: at a zero.
_JUMP = float(np.finfo(np.float32).tiny)
# After so many steps brackets are halved only: rounding errors keep Newton's from
# ending.
_MOST_STEPS = 30
# One beyond, that of exp(f) with an enormous variance, is no place to start from.
_LARGEST_MEAN = 1e150
# Numbers that one evaluation of F may take, over draws, places, levels and inputs.
_NUMBERS_AT_A_TIME = 2**22
# A bracket that has been widened 8-fold this often holds no quantile: F is not a cdf.
_MOST_WIDENINGS = 40


def inverted(
    cdf: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    levels: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
) -> np.ndarray:
    """Quantiles of every entry, [levels, ...].

    Args:
        cdf: F and its derivative at [A, ...] places.
        levels: Probabilities in (0, 1), [levels].
        mean: Mean of the quantity, [...]; only a place to start from.
        variance: Its variance; may be infinite.
    """
    eps = np.finfo(mean.dtype).eps
    p, mean, sd, low, high = _begin(levels, mean, variance)
    low, high = _bracketed(lambda places: cdf(places)[0], p, low, high)
    goal = ndtri(p)
    allowed = np.clip(eps * p / _normal_density(goal), _OFF, _OFF_IF_ROUNDED)
    place, before = np.clip(mean + sd * goal, low, high), np.inf
    is_done, number = np.zeros(place.shape, bool), 0
    while not np.all(is_done):
        value, slope = cdf(place)
        _require_known(value, place)
        low = np.where(value < p, place, low)
        high = np.where(value < p, high, place)
        newton, off = _newton(place, value, slope, goal)
        step = abs(newton - place)
        with np.errstate(invalid="ignore"):
            is_inside = (newton >= low) & (newton <= high)
            is_near = is_inside & (off <= allowed) & (step <= allowed * sd)
            holds = is_inside & (step <= 0.5 * before) & (number < _MOST_STEPS)
        holds |= is_near
        smallest = 4.0 * eps * np.maximum(abs(low), abs(high))
        is_narrow = high - low <= np.maximum(smallest, _JUMP)
        half = _halfway(low, high, in_size=number % 2 == 1)
        ahead = np.where(is_narrow, _end(low, high), np.where(holds, newton, half))
        place = np.where(is_done, place, ahead)
        before = np.where(holds, step, high - low)
        is_done, number = is_done | is_near | is_narrow, number + 1
    return place


def _newton(place, value, slope, goal) -> tuple[np.ndarray, np.ndarray]:
    """The next place of every entry, and how far Φ⁻¹(F) is off.

    Anything where F is 0 or 1, or has no slope.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = ndtri(value)
        return place + (goal - z) * _normal_density(z) / slope, abs(goal - z)


def _normal_density(z: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)


def _end(low, high) -> np.ndarray:
    """The quantile in a narrow bracket: its upper end, or 0, if F jumps there."""
    return np.where((low <= 0.0) & (high >= 0.0), 0.0, high)


def _halfway(low, high, in_size: bool) -> np.ndarray:
    """Between the ends of brackets, by length or in orders of size."""
    if not in_size:
        return 0.5 * (low + high)
    ends = np.arcsinh(low / _JUMP), np.arcsinh(high / _JUMP)
    return np.clip(_JUMP * np.sinh(0.5 * (ends[0] + ends[1])), low, high)


def inverted_among_whole(
    cdf: Callable[[np.ndarray], np.ndarray],
    levels: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    num_draws: int,
) -> np.ndarray:
    """The same, where the values are whole numbers.

    Args:
        cdf: F at [A, ...] places.
        levels: Probabilities in (0, 1), [levels].
        mean: Mean of the quantity, [...]; only a place to start from.
        variance: Its variance; may be infinite.
        num_draws: Draws that F is an average over.
    """
    p, _, _, low, high = _begin(levels, mean, variance)
    low, high = _bracketed(cdf, p, np.floor(low - 1.0), np.ceil(high + 1.0))
    num_places = _NUMBERS_AT_A_TIME // (num_draws * low.size)
    # Evaluating F is what costs: three places quarter a bracket, fifteen take a 16th.
    share = np.linspace(0.0, 1.0, int(np.clip(num_places, 1, 3)) + 2)[1:-1]
    share = share.reshape(-1, *(1,) * low.ndim)
    while np.any(high - low > 1.0 + 1e-9):
        # If the width is two or more, one of these is inside.
        places = np.round(low + share * (high - low))
        is_below = _at(cdf, places) < p
        low = np.maximum(low, np.where(is_below, places, -np.inf).max(axis=0))
        high = np.minimum(high, np.where(is_below, np.inf, places).min(axis=0))
    return high + 0.0  # rounding also gives -0.0, which is shown with its sign


def about(level: float, mean: np.ndarray, variance: np.ndarray) -> float:
    """What the largest quantile is likely to stay below."""
    p, mean, sd, _, _ = _begin(np.array([level]), mean, variance)
    return float(np.max(mean + sd * (ndtri(p) + 1.0)))


def negligible(levels: np.ndarray) -> float:
    """An error of F that no quantile of these levels feels."""
    return float(_SHARE * np.min(np.minimum(levels, 1.0 - levels)))


def of_labels(cumulative: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The smallest label with F >= p, [levels, ...], from F of every label, [..., C].

    The last one where F reaches p nowhere: F of all labels is 1 up to rounding.
    """
    p = levels.reshape(-1, *(1,) * cumulative.ndim)
    reached = cumulative[None, ..., :-1] >= p
    last = cumulative.shape[-1] - 1
    return np.where(reached.any(axis=-1), reached.argmax(axis=-1), last)


def _begin(levels, mean, variance) -> tuple[np.ndarray, ...]:
    """p, mean, sd, and between what a quantile lies by Cantelli's inequality.

    It is no further from the mean than √(p/(1 − p)) standard deviations above, and
    √((1 − p)/p) below.
    """
    p = levels.reshape(-1, *(1,) * mean.ndim)
    mean = np.asarray(mean, np.float64)
    mean = np.where(abs(mean) < _LARGEST_MEAN, mean, 0.0)
    is_known = np.isfinite(variance) & (variance > 0)
    sd = np.where(is_known, np.sqrt(np.where(is_known, variance, 1.0)), 1 + abs(mean))
    low, high = mean - sd * np.sqrt((1.0 - p) / p), mean + sd * np.sqrt(p / (1.0 - p))
    return p, mean, sd, low, high


def _require_known(values: np.ndarray, places: np.ndarray) -> None:
    """Refuse an F that is NaN somewhere."""
    if np.any(np.isnan(values)):
        raise ValueError(
            "the quantiles are not known: the cdf of the prediction is NaN, at "
            f"{places[np.isnan(values)][0]:.4g} for one. Where moments are finite, the "
            "formula of the likelihood's distribution underflows: pass "
            "key=jax.random.key(...), and the quantiles are those of draws."
        )


def _at(cdf: Callable, places: np.ndarray) -> np.ndarray:
    """F at [A, levels, ...]; one call for all."""
    flat = places.reshape(-1, *places.shape[2:])
    values = np.asarray(cdf(flat), np.float64).reshape(places.shape)
    _require_known(values, places)
    return values


def _bracketed(cdf: Callable, p, low, high) -> tuple[np.ndarray, np.ndarray]:
    """Ends with F(low) < p <= F(high)."""
    centre = 0.5 * (low + high)
    for _ in range(_MOST_WIDENINGS):
        at_low, at_high = _at(cdf, np.stack([low, high]))
        is_above, is_below = at_low >= p, at_high < p
        if not np.any(is_above | is_below):
            return low, high
        low = np.where(is_above, centre - 8.0 * (centre - low), low)
        high = np.where(is_below, centre + 8.0 * (high - centre), high)
    raise ValueError(
        "the quantiles are not finite: the cdf of the prediction does not rise from 0 "
        "to 1."
    )
