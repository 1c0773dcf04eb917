"""Classification sets with the splits of the papers; labels are 0 to C − 1."""

from typing import NamedTuple

import numpy as np

from svgp_ppl.datasets.stored import fetch, stored

__all__ = ["Labelled", "banana", "image", "three_classes", "uci_classes"]

# The collection of Fernández-Delgado et al. (2014), JMLR 15:3133-3181: a table with a
# header, and a row number, the standardised columns and the class in every line.
_SOURCE = (
    "https://raw.githubusercontent.com/CameronDiao/"
    "GLVQ-For-Classification-In-Randomized-NN-And-HDC/master/data/{folder}/{file}_R.dat"
)
_NAMES = (
    "adult",
    "chess_krvk",
    "letter",
    "magic",
    "mushroom",
    "nursery",
    "page_blocks",
    "pendigits",
    "ringnorm",
    "statlog_landsat",
    "statlog_shuttle",
    "thyroid",
    "twonorm",
    "wall_following",
    "waveform",
    "waveform_noise",
    "wine_quality_white",
)
# Sets whose test rows are in a second file; they come after the others here.
_IN_TWO_FILES = (
    "adult",
    "pendigits",
    "statlog_landsat",
    "statlog_shuttle",
    "thyroid",
)
_BANANA_SOURCE = (
    "https://github.com/AaltoML/t-SVGP (docs/notebooks/data, the 400 training points) "
    "and the benchmarks of Rätsch et al. (2001)"
)


class Labelled(NamedTuple):
    """A split of labelled data: inputs standardised by the training rows.

    ``x`` [N, D], labels ``y`` [N] from 0 to ``num_classes`` − 1.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int


def uci_classes(name: str, split: int = 0) -> Labelled:
    """A set of Fernández-Delgado et al. (2014) with a split of Liu et al. (2019).

    The files number their rows in a first column, which the published runs used as an
    input; where rows are sorted by class it reveals the class. It is left out here.

    Args:
        name: "adult", "letter", "waveform", "wine_quality_white" and others.
        split: Seed of the legacy generator that shuffles the rows; the paper uses 0 to
            9.

    Returns:
        90 % of the rows for training and the rest for testing.

    Raises:
        ValueError: There is no such set.
        OSError: It is not in the folder and cannot be downloaded.
    """
    if name not in _NAMES:
        raise ValueError(f"name must be one of {list(_NAMES)}, and is {name!r}.")
    source = _SOURCE.format(folder=_folder(name), file=_folder(name))
    held = stored(f"cls_{name}", "X [N, D] and y [N]", source, lambda: _download(name))
    order = np.arange(len(held["y"]))
    np.random.RandomState(split).shuffle(order)
    num_train = int(0.9 * len(order))
    return _labelled(held["X"], held["y"], order[:num_train], order[num_train:])


def banana() -> Labelled:
    """The banana set of Rätsch et al. (2001): two columns, two classes.

    Returns:
        The 400 training points of the Gaussian process papers, and the other 4900.

    Raises:
        OSError: It is not in the folder; the source has to be converted by hand.
    """
    holds = "X [5300, 2], y [5300], train_idx [400] and test_idx [4900]"
    held = stored("banana", holds, _BANANA_SOURCE)
    return _labelled(held["X"], held["y"], held["train_idx"], held["test_idx"])


def image(split: int = 0) -> Labelled:
    """Segments of images in two groups (Rätsch et al. 2001): 2086 rows, 18 columns.

    Args:
        split: Seed of the legacy generator that shuffles the rows; Hensman et al.
            (2015) use 0 to 9, the first 1000 rows for training.

    Raises:
        OSError: It is not in the folder; the source has to be converted by hand.
    """
    source = "the benchmarks of Rätsch et al. (2001), 'image' without repeated rows"
    held = stored("image", "X [2086, 18] and y [2086]", source)
    order = np.random.RandomState(split).permutation(len(held["y"]))
    return _labelled(held["X"], held["y"], order[:1000], order[1000:])


def three_classes() -> Labelled:
    """The toy of Hensman et al. (2015): three long Gaussian clouds, 750 + 750 points.

    Drawn here, with the generator and the order of their code; not standardised.

    Example:
        >>> gp.datasets.three_classes().x.shape
        (750, 2)
    """
    turn = np.array([[1.0, 1.0], [-1.0, 1.0]]) / np.sqrt(2.0)
    means = np.array([[0.0, 0.5], [-1.5, 0.0], [1.5, 0.0]])
    covariances = [
        np.diag([5.0, 0.1]),
        np.diag([0.05, 3.0]),
        turn.T @ np.diag([3.0, 0.1]) @ turn,
    ]
    factors = [np.linalg.cholesky(c) for c in covariances]
    random = np.random.RandomState(1)
    points, labels = [], []
    for _ in range(1500):
        label = random.choice(3)
        points.append(means[label] + factors[label] @ random.randn(2))
        labels.append(label)
    x, y = np.array(points), np.array(labels)
    return Labelled(x[:750], y[:750], x[750:], y[750:], 3)


def _labelled(x, y, train, test) -> Labelled:
    x, y = x.astype(float), y.astype(int)
    mean, scale = x[train].mean(0), x[train].std(0)
    x = (x - mean) / np.where(scale > 0, scale, 1.0)
    return Labelled(x[train], y[train], x[test], y[test], int(y.max()) + 1)


def _folder(name: str) -> str:
    return name.replace("_", "-")


def _download(name: str) -> dict[str, np.ndarray]:
    folder = _folder(name)
    files = [folder]
    if name in _IN_TWO_FILES:
        files = [f"{folder}_train", f"{folder}_test"]
    tables = []
    for file in files:
        lines = fetch(_SOURCE.format(folder=folder, file=file)).splitlines()[1:]
        rows = [line.replace('"', "").split() for line in lines if line.strip()]
        tables.append(np.array(rows, dtype=float))
    table = np.concatenate(tables)
    # The first column is the number of the row, and not an input.
    return {"X": table[:, 1:-1].astype(np.float32), "y": table[:, -1].astype(int)}
