"""Counts of events in bins of time and space."""

from io import StringIO
from typing import NamedTuple

import numpy as np

from svgp_ppl.datasets.stored import fetch, stored

__all__ = ["Counts", "GridCounts", "SplitCounts", "coal", "coal_split", "pines"]

# Jarrett (1979), "A note on the intervals between coal-mining disasters", Biometrika
# 66:191-193: disasters with ten or more deaths in British coal mines, counted by year.
_COAL_DISASTERS = """
4 5 4 1 0 4 3 4 0 6 3 3 4 0 2 6 3 3 5 4 5 3 1 4 4 1 5 5 3 4 2 5 2 2 3 4 2 1 3 2 2 1 1 1
1 3 0 0 1 0 1 1 0 0 3 1 0 3 2 2 0 1 1 1 0 1 0 1 0 0 0 2 1 0 0 0 1 1 0 2 3 3 1 1 2 1 1 1
1 2 3 3 0 0 0 1 4 0 0 0 1 0 0 0 0 0 1 0 0 1 0 1
"""


class Counts(NamedTuple):
    """Counts in bins: centres ``x`` [N, 1], counts ``y`` [N], ``width`` of a bin."""

    x: np.ndarray
    y: np.ndarray
    width: float


def coal() -> Counts:
    """British coal-mining disasters per year, 1851 to 1962: 112 counts, 191 disasters.

    Embedded in the package. Source: Jarrett (1979), Biometrika 66:191.

    Returns:
        The years, [112, 1], the disasters in each, [112], and the width of a bin, 1.

    Example:
        >>> from svgp_ppl import datasets
        >>> int(datasets.coal().y.sum())
        191
    """
    y = np.array(_COAL_DISASTERS.split(), dtype=int)
    return Counts(np.arange(1851.0, 1963.0)[:, None], y, 1.0)


# The data of Hensman et al. (2015), from the repository of their code.
_NIPS_SOURCE = (
    "https://raw.githubusercontent.com/sparseMCMC/NIPS2015/master/experiments/{path}"
)


class SplitCounts(NamedTuple):
    """Two halves of the same events, counted in the same bins.

    Inputs ``x`` [N, D] (middles of the bins), counts ``y`` and ``y_test`` [N], and the
    ``size`` of a bin, its length or area.
    """

    x: np.ndarray
    y: np.ndarray
    y_test: np.ndarray
    size: float


class GridCounts(NamedTuple):
    """Counts in the cells of a grid: middles ``x`` [N, 2], ``y`` [N], ``area``."""

    x: np.ndarray
    y: np.ndarray
    area: float


def coal_split(split: int = 0, num_bins: int = 100) -> SplitCounts:
    """A random half of the 191 coal-mining disasters against the other half.

    Hensman et al. (2015): bins of equal width from the first disaster to the last, 95
    of the disasters for training, the others for testing.

    Args:
        split: Seed of the legacy generator that shuffles the disasters; the paper uses
            0 to 9.
        num_bins: Number of bins.

    Raises:
        OSError: The dates are not in the folder and cannot be downloaded.
    """
    url = _NIPS_SOURCE.format(path="coal/coal.csv")

    def download() -> dict[str, np.ndarray]:
        return {
            "event_years": np.ravel(np.loadtxt(StringIO(fetch(url)), delimiter=","))
        }

    years = stored("coal", "event_years [191]", url, download)["event_years"]
    edges = np.linspace(years.min(), years.max(), num_bins + 1)
    order = np.random.RandomState(split).permutation(len(years))
    train, test = (
        np.histogram(years[rows], edges)[0] for rows in (order[:95], order[95:])
    )
    middles = (edges[:-1] + edges[1:])[:, None] / 2
    return SplitCounts(middles, train, test, float(edges[1] - edges[0]))


def pines(num_cells: int = 32) -> GridCounts:
    """126 Scots pine saplings on 10 m by 10 m, counted in the cells of a square grid.

    Møller, Syversveen & Waagepetersen (1998). The file of Hensman et al. (2015) lists
    the first tree twice; it is counted once here.

    Args:
        num_cells: Cells along each side.

    Returns:
        Counts, first coordinate slowest; lengths in metres.

    Raises:
        OSError: The trees are not in the folder and cannot be downloaded.
    """
    url = _NIPS_SOURCE.format(path="spatial/pines.np")

    def download() -> dict[str, np.ndarray]:
        return {"X": np.loadtxt(StringIO(fetch(url)))}

    trees = 10.0 * np.unique(stored("pines", "X [126, 2]", url, download)["X"], axis=0)
    edges = np.linspace(0.0, 10.0, num_cells + 1)
    counts = np.histogram2d(trees[:, 0], trees[:, 1], [edges, edges])[0].astype(int)
    middles = (edges[:-1] + edges[1:]) / 2
    x = np.stack(np.meshgrid(middles, middles, indexing="ij"), axis=-1).reshape(-1, 2)
    return GridCounts(x, counts.ravel(), (10.0 / num_cells) ** 2)
