"""Figures of a fit: its bound, and where its inducing inputs went."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from svgp_ppl.fitting.fit import Fit

__all__ = ["bound", "inducing_inputs"]


def bound(fit: Fit, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    """The bound in nats over the steps of a fit; its first steps do not set the scale.

    Args:
        fit: What ``gp.fit`` returns.
        ax: Axes to draw on, new ones if None.
        label: Label of the line.

    Raises:
        ValueError: It is another object, such as draws.

    Example:
        >>> ax = gp.plots.bound(fitted)
    """
    if not hasattr(fit, "losses"):
        raise ValueError(
            "bound draws the losses of a fit, what gp.fit returns, and is given a "
            f"{type(fit).__name__}. Of draws see gp.plots.psrf and ess."
        )
    ax = plt.subplots()[1] if ax is None else ax
    values = -np.asarray(fit.losses)
    ax.plot(np.arange(1, len(values) + 1), values, label=label)
    low, high = np.quantile(values, [0.05, 1.0])
    margin = 0.1 * max(high - low, 1e-12)
    ax.set(xlabel="step", ylabel="bound / nats", ylim=(low - margin, high + margin))
    return ax


def inducing_inputs(
    before: ArrayLike, after: ArrayLike, *, ax: Axes | None = None
) -> Axes:
    """Inducing inputs before and after a fit, joined by lines.

    Args:
        before: [M, 1] or [M, 2] (of wider inputs pass two columns).
        after: The same shape.
        ax: Axes to draw on, new ones if None.

    Raises:
        ValueError: The shapes differ or have more than two columns.

    Example:
        >>> ax = gp.plots.inducing_inputs(z, z + 0.1)
    """
    before, after = np.asarray(before), np.asarray(after)
    if before.shape != after.shape or before.ndim != 2 or before.shape[1] > 2:
        raise ValueError(
            "inducing inputs are drawn in one or two columns, the same before and "
            f"after; got shapes {before.shape} and {after.shape}."
        )
    ax = plt.subplots()[1] if ax is None else ax
    if before.shape[1] == 1:
        height = np.broadcast_to([[0.0], [1.0]], (2, len(before)))
        ax.plot(np.stack([before[:, 0], after[:, 0]]), height, "-", color="0.7")
        ax.plot(before[:, 0], height[0], "o", mfc="none", color="C0", label="before")
        ax.plot(after[:, 0], height[1], "o", color="C1", label="after")
        ax.set(yticks=[0, 1], yticklabels=["before", "after"], xlabel="x")
        return ax
    for start, end in zip(before, after):
        ax.plot(*np.stack([start, end], axis=1), "-", color="0.7", zorder=1)
    ax.plot(*before.T, "o", mfc="none", color="C0", label="before")
    ax.plot(*after.T, "o", color="C1", label="after")
    ax.set(xlabel="x, column 0", ylabel="x, column 1")
    ax.legend()
    return ax
