"""Inducing inputs that are images, before and after a fit."""

import numpy as np

from benchmarks.papers.figures.style import subplots


def movement(experiment, runs):
    """Images by k-means, by the fit, and their difference: two digits a row."""
    curves = next(run["curves"] for run in runs if run["curves"])
    before, after = (np.array(curves[k]) / 127.5 - 1.0 for k in ("before", "after"))
    moved = after - before
    num_rows = -(-len(before) // 2)
    # A narrow column without axes is between the digits of a row.
    columns = {"width_ratios": (1.0, 1.0, 1.0, 0.12, 1.0, 1.0, 1.0)}
    figure, axes = subplots(num_rows, 7, height=1.15, gridspec_kw=columns)
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.0, hspace=0.0)
    for ax in axes.flat:
        ax.set_axis_off()
    top = np.ceil(10.0 * np.quantile(np.abs(moved), 0.98)) / 10.0
    grey = {"cmap": "gray", "vmin": -1.0, "vmax": 1.0}
    colours = {"cmap": "RdBu_r", "vmin": -top, "vmax": top}
    kinds = (("k-means", before, grey), ("fitted", after, grey))
    kinds += (("difference", moved, colours),)
    for c in range(len(before)):
        row, half = c % num_rows, c // num_rows
        for k, (name, images, look) in enumerate(kinds):
            ax = axes[row, 4 * half + k]
            # Raw pixels in the file: a viewer shows them sharp, at any size.
            shown = ax.imshow(images[c].reshape(28, 28), interpolation="none", **look)
            if row == 0:
                ax.set_title(name)
    bar = {"location": "bottom", "pad": 0.02, "aspect": 40, "shrink": 0.6}
    name = "difference, pixels in [−1, 1]"
    figure.colorbar(shown, ax=axes, label=name, extend="both", **bar)
    return figure
