"""Counts of events in bins of time and space."""

from typing import NamedTuple

import numpy as np

__all__ = ["Counts", "coal"]

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
