"""One look: readable at half of a page's width, colours of Okabe & Ito (2008)."""

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

BLUE, RED, GREEN, PINK, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
COLOURS = (BLUE, RED, GREEN, PINK, ORANGE, SKY)
LOOK = {
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "svgp_ppl",
}


def subplots(num_rows: int, num_columns: int, height: float = 3.2, **options):
    """Axes of a figure 6.4 inches wide."""
    with mpl.rc_context(LOOK):
        return plt.subplots(
            num_rows,
            num_columns,
            figsize=(6.4, height * num_rows),
            layout="constrained",
            **options,
        )
