"""Where the posterior of θ is highest near a fit, and its curvature there.

A fit that was stopped early leaves θ̂ on a slope. The curvature there is not that of
the region in which the chains will be, and need not be positive: Newton steps continue
from there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from svgp_ppl.mcmc.target import Data, Target
from svgp_ppl.runtime.compilation import call

__all__ = ["Curved", "curved"]

# An evaluation takes two gradients per dimension, up to so many dimensions.
_MOST_DIMENSIONS = 100
# Step of the first differences on the unconstrained scale (logarithms, mostly); later
# ones are half a standard deviation.
_STEP = 0.03
# The sd of an unconstrained value is taken to be in this range.
_LEAST_SD, _MOST_SD = 1e-3, 3.0
# In standard deviations: a place this close to the highest one is as good, and a longer
# step than _LONGEST leaves the region in which its quadratic form holds.
_CLOSE, _LONGEST = 1.0, 2.0
# With more θ than that, the maximum, which random effects share with their scale, is
# far from the bulk of θ: its density is higher by half a nat per dimension.
_MOST_TO_CLIMB = 30
# Evaluations before the search is given up: it has no end if there is no maximum.
_MOST_LOOKS = 20


class Curved(NamedTuple):
    """A normal approximation of θ, the unconstrained values in one row.

    Attributes:
        loc: θ by site, where the curvature was taken.
        scale_tril: Factor of the inverse curvature of the log density.
    """

    loc: dict[str, Any]
    scale_tril: np.ndarray


class _Look(NamedTuple):
    """The log density, its gradient and its curvature at a place."""

    value: float
    gradient: np.ndarray
    curvature: np.ndarray

    def is_finite(self) -> bool:
        """Whether all of these are finite."""
        return all(np.all(np.isfinite(part)) for part in self)

    def scale_tril(self) -> np.ndarray:
        """Factor of the inverse curvature, in the range of an sd."""
        values, vectors = np.linalg.eigh(self.curvature)
        values = np.clip(values, _MOST_SD**-2, _LEAST_SD**-2)
        return np.linalg.cholesky((vectors / values) @ vectors.T)


def curved(target: Target, data: Data, loc: dict, middle: dict) -> Curved | None:
    """θ̂, or the maximum near it if θ̂ is more than one sd away; scaled there.

    With many θ, such as random effects, it is θ̂.

    At ξ = 0, log p(ξ = 0, θ | y) = log p(θ | y) + log p(ξ = 0 | θ, y), and the second
    term is nearly the same for all θ: maximum and curvature are those of the posterior
    of θ.

    Args:
        target: The log density.
        data: Its second argument.
        loc: θ̂ by site, unconstrained.
        middle: ξ = 0 of every process with sites.

    Returns:
        None if there are no θ or too many, or the density is not finite.
    """
    size = sum(np.size(x) for x in loc.values())
    if not 0 < size <= _MOST_DIMENSIONS:
        return None
    look = _looks(target, data, loc, middle)
    start = np.zeros(size)
    first = np.diag(look(start, np.full(size, _STEP)).curvature)
    sd = 1 / np.sqrt(np.clip(first, _MOST_SD**-2, _LEAST_SD**-2))
    seen = look(start, np.nan_to_num(sd, nan=1.0) / 2)
    if not seen.is_finite():
        return None
    place = start
    if size <= _MOST_TO_CLIMB:
        place, seen = _climbed(look, start, seen)
    unravel: Any
    flat, unravel = ravel_pytree(jax.device_get(loc))
    moved = jax.device_get(unravel(np.asarray(flat + place, flat.dtype)))
    return Curved(moved, seen.scale_tril().astype(flat.dtype))


def _climbed(look: Callable, start: np.ndarray, first: _Look) -> tuple:
    """The maximum, and the evaluation there; the start, if there is none nearby."""
    place, seen, length = start, first, _LONGEST
    for _ in range(_MOST_LOOKS):
        tril = seen.scale_tril()
        sd = np.linalg.norm(tril, axis=1)
        step = tril.T @ seen.gradient
        far = np.max(np.abs(step))
        if far <= _CLOSE:
            # The last differences were as long as the sd of the previous place.
            last = first if place is start else look(place, sd / 2)
            return (place, last) if last.is_finite() else (start, first)
        ahead = place + tril @ step * min(1.0, length / far)
        found = look(ahead, sd / 2)
        if found.is_finite() and found.value > seen.value:
            place, seen, length = ahead, found, _LONGEST
        else:
            length = min(length, far) / 4
    return start, first


def _looks(target: Target, data: Data, loc: dict, middle: dict) -> Callable:
    """(place − θ̂, steps of the differences) → the evaluation there."""

    def slopes(offsets, loc, middle, data):
        flat, unravel = ravel_pytree(loc)

        def density(theta):
            return target.logdensity_fn({**middle, **unravel(theta)}, data)

        return jax.lax.map(jax.value_and_grad(density), flat + offsets)

    dtype = np.result_type(*loc.values())
    made_of = ("curvature", *target.made_of)

    def look(place: np.ndarray, steps: np.ndarray) -> _Look:
        around = np.concatenate([np.zeros((1, len(steps))), np.diag(steps)])
        offsets = place + np.concatenate([around, -np.diag(steps)])
        given = (offsets.astype(dtype), loc, middle, data)
        values, rows = call(slopes, made_of, *given, runs_once=True)
        rows = np.asarray(rows, float)
        ahead, behind = np.split(rows[1:], 2)
        found = (behind - ahead) / (2 * steps[:, None])
        return _Look(float(values[0]), rows[0], (found + found.T) / 2)

    return look
