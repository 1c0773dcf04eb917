"""Data sets and their sources.

Small ones are embedded. The others are read from the folder that the environment
variable ``SVGP_PPL_DATA`` names, by default ``~/.cache/svgp_ppl``, and downloaded into
it from their public source if they are not there.
"""

from svgp_ppl.datasets.classification import (
    Labelled,
    banana,
    image,
    three_classes,
    uci_classes,
)
from svgp_ppl.datasets.counts import (
    Counts,
    GridCounts,
    SplitCounts,
    coal,
    coal_split,
    pines,
)
from svgp_ppl.datasets.regression import Split, savigp, uci
from svgp_ppl.datasets.tables import table

__all__ = [
    "Counts",
    "GridCounts",
    "Labelled",
    "Split",
    "SplitCounts",
    "banana",
    "coal",
    "coal_split",
    "image",
    "pines",
    "savigp",
    "table",
    "three_classes",
    "uci",
    "uci_classes",
]
