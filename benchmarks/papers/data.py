"""Sets and splits of the papers that the package has no function for.

Each is a file of the folder that ``SVGP_PPL_DATA`` names.
"""

import numpy as np

from svgp_ppl.datasets import Labelled, Split
from svgp_ppl.datasets.stored import stored

NOT_HELD = "The data are not at hand: the command wants them in the folder of data."
_SAVIGP = "https://github.com/adezfouli/savigp (folder data)"


def standardised(x, y, train, test) -> Split:
    """Rows ``train`` and ``test``, by the moments of the former."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    mean, scale = x[train].mean(0), x[train].std(0)
    x = (x - mean) / np.where(scale > 0, scale, 1.0)
    y_mean, y_scale = y[train].mean(0), y[train].std(0)
    y = (y - y_mean) / y_scale
    return Split(x[train], y[train], x[test], y[test], y_mean, y_scale)


def labelled(x, y, train, test) -> Labelled:
    """Rows ``train`` and ``test`` of labelled data, x by the moments of the former."""
    x, y = np.asarray(x, float), np.asarray(y, int)
    mean, scale = x[train].mean(0), x[train].std(0)
    x = (x - mean) / np.where(scale > 0, scale, 1.0)
    return Labelled(x[train], y[train], x[test], y[test], int(y.max()) + 1)


def regression(name: str, split: int) -> Split:
    """X [N, D], y [N], train_idx [n] of a large set; every other row is for testing."""
    held = stored(name, "X [N, D], y [N] and train_idx [n]", "its public source")
    is_train = np.zeros(len(held["y"]), bool)
    is_train[held["train_idx"]] = True
    return standardised(held["X"], held["y"], is_train, ~is_train)


def boston(split: int) -> Split:
    """300 rows for training and 206 for testing (Dezfouli & Bonilla 2015)."""
    held = stored("boston", "X, y, savigp_train_idx and savigp_test_idx", _SAVIGP)
    rows = held["savigp_train_idx"][split], held["savigp_test_idx"][split]
    return standardised(held["X"], held["y"].ravel(), *rows)


def wisconsin(split: int) -> Labelled:
    """Breast cancer: 300 rows for training and 383 for testing; 1 is benign."""
    held = stored("wisconsin", "X, y, train_idx and test_idx", _SAVIGP)
    rows = held["train_idx"][split], held["test_idx"][split]
    return labelled(held["X"], np.ravel(held["y"]) > 0, *rows)


def usps(split: int) -> Labelled:
    """Digits 4, 7 and 9: 1233 rows for training and 1232 for testing."""
    held = stored("usps_479", "X, y, train_idx and test_idx", _SAVIGP)
    rows = held["train_idx"][split], held["test_idx"][split]
    return labelled(held["X"], held["y"], *rows)


def mnist(num_train: int) -> Labelled:
    """The first images of the training set and the test set, pixels in [0, 1]."""
    holds = "X_train [n, 784], y_train [n], X_test and y_test"
    held = stored("mnist_10k_10k", holds, "http://yann.lecun.com/exdb/mnist")
    x, x_test = (np.float32(held[f"X_{part}"]) / 255 for part in ("train", "test"))
    y, y_test = (held[f"y_{part}"].astype(int) for part in ("train", "test"))
    return Labelled(x[:num_train], y[:num_train], x_test, y_test, 10)


def airline_delays(num_train: int) -> Split:
    """Minutes of delay, 8 columns."""
    held, train, test = _airline(num_train)
    return standardised(held["X"], held["y_delay"], train, test)


def airline_classes(num_train: int) -> Labelled:
    """On time, more than five minutes late, more than five minutes early."""
    held, train, test = _airline(num_train)
    return labelled(held["X"], held["y_class"], train, test)


def _airline(num_train: int):
    holds = "X [N, 8], y_delay [N], y_class [N] and n_train"
    source = "flights of January to April 2008, ASA Data Expo 2009"
    held = stored("airline_2008_subset", holds, source)
    rows = np.arange(len(held["X"]))
    return held, rows[:num_train], rows[-10_000:]
