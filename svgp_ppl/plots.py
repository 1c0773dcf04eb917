"""Figures of what ArviZ does not draw: matplotlib axes in, axes out."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy.stats import gaussian_kde

from svgp_ppl.fit import Fit

__all__ = [
    "bound",
    "density",
    "function_band",
    "inducing_inputs",
    "subplots",
]


def subplots(*args, **kwargs) -> tuple[Figure, Any]:
    """``matplotlib.pyplot.subplots`` with a constrained layout."""
    return plt.subplots(*args, layout="constrained", **kwargs)


def function_band(
    x: ArrayLike,
    low: ArrayLike,
    middle: ArrayLike,
    high: ArrayLike,
    *,
    ax: Axes | None = None,
    label: str | None = None,
    color: Any = None,
) -> Axes:
    """A line and a shaded band of functions of one input.

    Args:
        x: Inputs, [N] or [N, 1], in any order.
        low: Lower edge of the band, [N].
        middle: The line, [N].
        high: Upper edge of the band, [N].
        ax: Axes to draw on, new ones if None.
        label: Label of the line.
        color: Any matplotlib colour, the next of the cycle if None.

    Raises:
        ValueError: x has more than one column.
    """
    x = np.asarray(x)
    if x.ndim == 2 and x.shape[1] == 1:
        x = x[:, 0]
    if x.ndim != 1:
        raise ValueError(
            f"a band is drawn over one column, and x has shape {x.shape}; pick "
            "a column or slice the inputs."
        )
    order = np.argsort(x)
    x, low, middle, high = (np.asarray(v)[order] for v in (x, low, middle, high))
    ax = plt.subplots()[1] if ax is None else ax
    (line,) = ax.plot(x, middle, label=label, color=color)
    ax.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    return ax


def density(
    draws: ArrayLike,
    *,
    ax: Axes | None = None,
    label: str | None = None,
    color: Any = None,
) -> Axes:
    """Density of the draws of one positive value, estimated on the log scale.

    The estimate on the log scale has no mass below zero, where a plain kernel estimate
    of a skewed variance would put some.

    Args:
        draws: Positive draws, any shape.
        ax: Axes to draw on, new ones if None.
        label: Label of the line.
        color: Any matplotlib colour.

    Raises:
        ValueError: A draw is not positive.
    """
    draws = np.ravel(np.asarray(draws, dtype=float))
    if not np.all(draws > 0):
        raise ValueError("density is for positive values; use arviz for others.")
    ax = plt.subplots()[1] if ax is None else ax
    estimate = gaussian_kde(np.log(draws))
    low, high = np.quantile(draws, [0.001, 0.99])
    x = np.linspace(low, high, 400)
    y = estimate(np.log(x)) / x
    (line,) = ax.plot(x, y, label=label, color=color)
    ax.fill_between(x, 0, y, color=line.get_color(), alpha=0.2, linewidth=0)
    return ax


def bound(fit: Fit, *, ax: Axes | None = None, label: str | None = None) -> Axes:
    """The bound in nats over the steps of a fit; its first steps do not set the scale.

    Args:
        fit: What ``gp.fit`` returns.
        ax: Axes to draw on, new ones if None.
        label: Label of the line.
    """
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
