"""The curvature of the log density in v at θ̂, and Laplace's approximation with it.

With v = m + R w about a Gaussian N(m, R Rᵀ),

    A = −∂²ℓ/∂w∂wᵀ  at (m, θ̂)

is near to I where that Gaussian is right, so that differences of gradients by a part of
an sd in w find it in single precision too. Laplace's approximation of v given θ̂ is
N(v̂, R A⁻¹ Rᵀ) at the mode v̂, which Newton steps find (Rasmussen & Williams 2006,
section 3.4). It takes two gradients of all data for each value of v.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from svgp_ppl.mcmc.differences import Density
from svgp_ppl.mcmc.target import Target
from svgp_ppl.runtime import progress_bar

__all__ = ["Curvature", "covariance_from", "laplace", "root_of"]

# Up to so many values of v, with two gradients for each at every look.
_MOST_VALUES = 2000
# Columns of A between two looks at the keyboard.
_AT_A_TIME = 50
# Step of the differences, in sd.
_STEP = 0.3
# A variance below it is one that an optimiser has lost.
_LEAST_VARIANCE = 1e-12
# Places that are looked at, and the distance to the mode that is close enough, in sd
# over all values.
_MOST_LOOKS, _CLOSE = 20, 0.5


class Look(NamedTuple):
    """ℓ, ∂ℓ/∂v [T] and A [T, T] at a place."""

    value: float
    slope: np.ndarray
    a: np.ndarray

    def is_finite(self) -> bool:
        """Whether all of these are finite."""
        return all(np.all(np.isfinite(part)) for part in self)


class Curvature:
    """Gradients and curvature of the log density in v, [T], at θ̂.

    Args:
        target: The log density.
        centre: θ̂, unconstrained values by site.
        names: The processes, in the order of the stack.
        progress: Whether to show a bar if it takes a while.
    """

    def __init__(
        self,
        target: Target,
        centre: Mapping[str, Any],
        names: Iterable[str],
        progress: bool = False,
    ):
        v = OrderedDict((name, np.zeros_like(centre[name])) for name in names)
        rest = {name: x for name, x in centre.items() if name not in v}
        self._density = Density(target, target.data, rest, v)
        self._progress = progress and target.is_expensive

    @staticmethod
    def is_affordable(target: Target, size: int) -> bool:
        """Whether it can be had for T values of v."""
        return not target.minibatches and size <= _MOST_VALUES

    def look(self, loc: np.ndarray, root: np.ndarray) -> "Look":
        """What is seen at v = loc [T], with R [T, T]."""
        number = math.ceil(len(root) / _AT_A_TIME)
        width = math.ceil(len(root) / number)  # of all, for one program
        steps = np.pad(_STEP * root.T, ((0, number * width - len(root)), (0, 0)))
        columns = []
        bar = progress_bar(number, "curvature", self._progress)
        try:
            for some in np.split(steps, number):
                around = np.concatenate([np.zeros_like(loc)[None], some, -some])
                values, slopes = self._gradients(loc + around)
                ahead, behind = np.split(slopes[1:], 2)
                columns.append((behind - ahead).T / (2 * _STEP))
                bar.update(1)
        finally:
            bar.close()
        a = root.T @ np.concatenate(columns, axis=1)[:, : len(root)]
        return Look(float(values[0]), slopes[0], (a + a.T) / 2)

    def _gradients(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ℓ [K] and ∂ℓ/∂v [K, T] at some v, [K, T]."""
        rows = np.pad(v, ((0, 0), (0, self._density.num_theta)))
        values, slopes = self._density.gradients({}, rows)
        return values, slopes[:, : v.shape[1]]


def root_of(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R with R Rᵀ = S, and R⁻ᵀ; for an S that an optimiser may have left singular."""
    variances, directions = np.linalg.eigh(covariance)
    sd = np.sqrt(np.maximum(variances, _LEAST_VARIANCE))
    return directions * sd, directions / sd


def covariance_from(a: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """R A⁻¹ Rᵀ, from R⁻ᵀ.

    Its precisions are those of the prior at least, as where every likelihood is
    log-concave.
    """
    precisions, directions = np.linalg.eigh(inverse @ a @ inverse.T)
    return directions / np.maximum(precisions, 1.0) @ directions.T


def laplace(
    curvature: Curvature, loc: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mode of v at θ̂, and the covariance that Laplace's approximation has there.

    Args:
        curvature: That of the log density.
        loc: Where to start, [T].
        covariance: A rough covariance, [T, T].

    Returns:
        The last ones with a finite log density; those given, if there are none.
    """
    highest, step = -np.inf, np.zeros_like(loc)
    for _ in range(_MOST_LOOKS):
        root, inverse = root_of(covariance)
        seen = curvature.look(loc + step, root)
        if not (seen.is_finite() and seen.value > highest):
            step = step / 4
            continue
        loc, highest = loc + step, seen.value
        covariance = covariance_from(seen.a, inverse)
        step = covariance @ seen.slope
        if step @ seen.slope <= _CLOSE**2:
            break
    return loc, covariance
