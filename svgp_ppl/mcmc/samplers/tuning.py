"""Tuned parameters of a sampler by Bayesian optimisation, separately for each chain.

Wang, Mohamed & de Freitas (2013), with the criterion of Hensman et al. (2015): after a
round of draws with tuning γ and at most L leapfrog steps,

    g(γ) = log( 1 + ESJD(γ) / √L ),   ESJD = mean ‖θ_{t+1} − θ_t‖²,

is known up to noise. A Gaussian process from scikit-learn models g on a grid, and the
next round is run where the expected improvement is the largest; after the last round
the grid point with the highest mean is taken.
"""

import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from scipy.special import ndtr

__all__ = [
    "BayesianOptimisation",
    "jump_for_steps",
    "log_grid",
    "middle",
    "require_bounds",
    "rounds",
    "searching",
    "step_grid",
]

# In units of the range of each coordinate, as in the authors' code.
_LENGTHSCALE = 0.3


def log_grid(bounds: tuple[float, float], num: int = 20) -> np.ndarray:
    """Points evenly spaced on the log scale, both ends included."""
    low, high = bounds
    # Rounding would turn equal bounds into two points, which would then be searched.
    return np.unique(np.geomspace(low, high, num if low < high else 1))


def step_grid(bounds: tuple[int, int], num: int = 13) -> np.ndarray:
    """Whole numbers about evenly spaced, both ends included."""
    return np.unique(np.round(np.linspace(*bounds, num)).astype(int))


def middle(coordinates: Sequence[np.ndarray]) -> list:
    """The point in the middle of the grid, where a search starts."""
    return [values[len(values) // 2] for values in coordinates]


def rounds(num_warmup: int, num_rounds: int) -> tuple[int, int]:
    """Length and number of the equal rounds of a warm-up."""
    length = max(1, num_warmup // num_rounds)
    return length, num_warmup // length


def require_bounds(name: str, bounds: Any) -> None:
    """Refuse bounds that are not an interval of positive numbers."""
    is_pair = isinstance(bounds, tuple | list) and len(bounds) == 2
    if not is_pair or not 0 < bounds[0] <= bounds[1] < np.inf:
        raise ValueError(
            f"{name} must be two positive numbers, the smaller one first; got {bounds}."
        )


def jump_for_steps(stats: dict[str, np.ndarray]) -> np.ndarray:
    """log( 1 + ESJD/√L_max ) of a round for each chain, [chains]."""
    jump = np.mean(stats["squared_jump"], axis=0)
    return np.log1p(jump / np.sqrt(stats["max_steps"][0]))


def searching(
    coordinates: Sequence[np.ndarray],
    criterion: Callable[[dict], np.ndarray],
    num_chains: int,
    num_rounds: int,
) -> Callable[[dict], np.ndarray]:
    """One search for each chain, given the statistics of one round at a time.

    Args:
        coordinates: Values of each coordinate.
        criterion: Statistics of a round, [draws, chains] by name, to [chains].
        num_chains: Number of searches, independent of each other.
        num_rounds: Number of rounds after which the best points are returned.

    Returns:
        Statistics of a round to the next points, [coordinates, chains].
    """
    searches = [BayesianOptimisation(coordinates) for _ in range(num_chains)]
    rounds_left = reversed(range(num_rounds))

    def update(stats: dict) -> np.ndarray:
        is_last = next(rounds_left) == 0
        points = []
        for search, outcome in zip(searches, criterion(stats), strict=True):
            search.tell(float(outcome))
            points.append(search.best() if is_last else search.point)
        return np.stack(points, axis=1)

    return update


class BayesianOptimisation:
    """Maximises a noisy function on the grid spanned by its coordinates.

    :attr:`point` is where to evaluate, :meth:`tell` takes the outcome, and :meth:`best`
    gives the result at the end.

    Args:
        coordinates: Values of each coordinate, in increasing order; a coordinate is
            scaled to [0, 1] by the index of the value, so that a geometric grid is
            modelled on the log scale.
    """

    def __init__(self, coordinates: Sequence[np.ndarray]):
        # Not imported with the package: it takes a second, and only tuning needs it.
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import (
            RBF,
            ConstantKernel,
            WhiteKernel,
        )

        self._values = [np.asarray(c) for c in coordinates]
        axes = [np.linspace(0.0, 1.0, len(c)) for c in self._values]
        self._unit = np.array(list(product(*axes)))
        self._grid = np.array(list(product(*self._values)))
        scale: Any = np.full(len(axes), _LENGTHSCALE)
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * RBF(
            scale, length_scale_bounds="fixed"
        ) + WhiteKernel(0.1, (1e-3, 10.0))
        self._model = GaussianProcessRegressor(kernel, normalize_y=True)
        centre = [len(c) // 2 for c in self._values]
        self._at = int(np.ravel_multi_index(centre, [len(c) for c in self._values]))
        self._best = self._at
        self._seen: list[int] = []
        self._outcomes: list[float] = []

    @property
    def point(self) -> np.ndarray:
        """Where to evaluate next: the middle of the grid at first."""
        return self._grid[self._at]

    def tell(self, outcome: float) -> None:
        """Record the outcome at :attr:`point`, which moves on."""
        if len(self._grid) == 1:
            return
        self._seen.append(self._at)
        self._outcomes.append(float(outcome))
        mean, sd = self._predict()
        # E max(g − g_best, 0); g_best is a mean, because the outcomes are noisy.
        excess = mean - np.max(mean[self._seen])
        z = excess / sd
        density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
        self._at = int(np.argmax(excess * ndtr(z) + sd * density))
        self._best = int(np.argmax(mean))

    def best(self) -> np.ndarray:
        """The point with the highest mean so far."""
        return self._grid[self._best]

    def _predict(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the function on the grid."""
        with warnings.catch_warnings():
            # Its bounds may well be reached: few points say little about the noise.
            warnings.simplefilter("ignore")
            self._model.fit(self._unit[self._seen], np.asarray(self._outcomes))
            moments: Any = self._model.predict(self._unit, return_std=True)
        # The spread of the function, without the noise of another outcome.
        fitted: Any = self._model.kernel_
        noise = fitted.k2.noise_level * np.var(self._outcomes)
        mean, sd = moments
        return mean, np.sqrt(np.maximum(sd**2 - noise, 1e-12))
