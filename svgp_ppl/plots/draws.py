"""Figures of draws that ArviZ does not have: along the run, and jointly."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike
from scipy.stats import gaussian_kde

from svgp_ppl import diagnostics
from svgp_ppl.plots.values import values_of

__all__ = ["density", "ess", "joint", "psrf"]


def density(
    draws: ArrayLike,
    *,
    ax: Axes | None = None,
    label: str | None = None,
    color: Any = None,
) -> Axes:
    """Density of the draws of one positive value, estimated on the log scale.

    The estimate on the log scale has no mass below zero, whereas a plain kernel
    estimate of a skewed variance would put some there.

    Args:
        draws: Positive draws, any shape.
        ax: Axes to draw on, new ones if None.
        label: Label of the line.
        color: Any matplotlib colour.

    Raises:
        ValueError: A draw is not positive, or all are equal.

    Example:
        >>> ax = gp.plots.density(draws.posterior["lengthscale"].values)
    """
    draws = np.ravel(np.asarray(draws, dtype=float))
    if not np.all(draws > 0):
        raise ValueError("density is for positive values; use arviz for others.")
    if len(different := np.unique(draws)) < 2:
        raise ValueError(
            f"a density needs draws that differ, and {draws.size} are given, with the "
            f"values {different.tolist()}."
        )
    ax = plt.subplots()[1] if ax is None else ax
    estimate = gaussian_kde(np.log(draws))
    low, high = np.quantile(draws, [0.001, 0.99])
    x = np.linspace(low, high, 400)
    y = estimate(np.log(x)) / x
    (line,) = ax.plot(x, y, label=label, color=color)
    ax.fill_between(x, 0, y, color=line.get_color(), alpha=0.2, linewidth=0)
    return ax


def psrf(
    posterior: Any, *, num: int = 20, num_windows: int = 20, ax: Axes | None = None
) -> Axes:
    """Potential scale reduction of the ``num`` slowest parameters along the run.

    The windows are [1, x] (Hensman et al. 2015, figures of the supplement). A line that
    stays above 1.1 is a parameter on which the chains do not agree.

    Args:
        posterior: An ArviZ object, or arrays [chains, draws, ...] by name; at least
            two chains.
        num: Number of parameters, those with the largest value in the last window.
        num_windows: Number of windows.
        ax: Axes to draw on, new ones if None.

    Example:
        >>> ax = gp.plots.psrf(draws, num=5)
    """
    windows = _windows(posterior, num_windows)
    values = diagnostics.psrf(posterior, windows)
    ax = _along(windows, values, diagnostics.slowest(values, num), ax)
    ax.axhline(1.1, color="0.4", linestyle="--", label="1.1")
    ax.set(xlabel="draws of a chain", ylabel="potential scale reduction")
    ax.legend(fontsize="small")
    return ax


def ess(
    posterior: Any, *, num: int = 20, num_windows: int = 10, ax: Axes | None = None
) -> Axes:
    """Effective draws of the ``num`` slowest parameters along the run.

    A healthy sampler gives straight lines; one that flattens has met something new.

    Args:
        posterior: An ArviZ object, or arrays [chains, draws, ...] by name.
        num: Number of parameters, those with the fewest effective draws at the end.
        num_windows: Number of windows.
        ax: Axes to draw on, new ones if None.

    Example:
        >>> ax = gp.plots.ess(draws, num=5)
    """
    windows = _windows(posterior, num_windows)
    arrays = diagnostics.arrays_of(posterior)
    each = [
        diagnostics.ess({n: x[:, :end] for n, x in arrays.items()}) for end in windows
    ]
    values = {name: np.stack([one[name] for one in each]) for name in arrays}
    fewest = diagnostics.slowest({n: -v for n, v in values.items()}, num)
    ax = _along(windows, values, fewest, ax)
    num_chains = len(next(iter(arrays.values())))
    ax.plot(
        windows, [num_chains * end for end in windows], "--", color="0.4", label="all"
    )
    ax.set(xlabel="draws of a chain", ylabel="effective draws, all chains")
    ax.legend(fontsize="small")
    return ax


def joint(
    posterior: Any,
    first: str | tuple[str, tuple],
    second: str | tuple[str, tuple],
    *,
    log: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draws of two parameters against each other, in one colour per chain.

    Lengthscale against variance shows the ridge along which both grow; two whitened
    values of different latents show correlations and edges that no Gaussian has.

    Args:
        posterior: An ArviZ object, or arrays [chains, draws, ...] by name.
        first: Name, or (name, index), of the horizontal axis.
        second: Name, or (name, index), of the vertical axis.
        log: Whether both axes are logarithmic.
        ax: Axes to draw on, new ones if None.

    Example:
        >>> ax = gp.plots.joint(draws, "lengthscale", ("f", (0,)))
    """
    x, x_label = _element(posterior, first)
    y, y_label = _element(posterior, second)
    ax = plt.subplots()[1] if ax is None else ax
    for chain, (a, b) in enumerate(zip(x, y)):
        ax.plot(a, b, ".", ms=2, alpha=0.5, color=f"C{chain}", label=f"chain {chain}")
    ax.set(xlabel=x_label, ylabel=y_label)
    if log:
        ax.set(xscale="log", yscale="log")
    ax.legend(markerscale=4)
    return ax


def _windows(posterior: Any, num_windows: int) -> list[int]:
    num_draws = next(iter(diagnostics.arrays_of(posterior).values())).shape[1]
    ends = np.linspace(num_draws / num_windows, num_draws, num_windows)
    return [int(end) for end in np.unique(np.round(ends)) if end >= 4]


def _along(windows, values, chosen, ax: Axes | None) -> Axes:
    """A line over the windows for every chosen element; the first five are named."""
    ax = plt.subplots()[1] if ax is None else ax
    for rank, (name, index) in enumerate(chosen):
        label = diagnostics.label(name, index) if rank < 5 else None
        color = f"C{rank}" if rank < 5 else "0.75"
        line = values[name][(slice(None), *index)]
        ax.plot(windows, line, color=color, lw=1, label=label, zorder=3 - (rank >= 5))
    return ax


def _element(posterior: Any, which) -> tuple[np.ndarray, str]:
    """Draws [chains, draws] of an element, and its label."""
    match which:
        case str(name):
            index = ()
        case (str(name), tuple() | list() as index):
            pass
        case _:
            raise ValueError(
                "an element is the name of a site with one number per draw, or (name, "
                f"index), such as ('f', (0,)), and is {which!r}."
            )
    every = values_of(posterior, name)
    values = every[(slice(None), slice(None), *index)]
    if values.ndim != 2:
        raise ValueError(
            f"'{name}' has an array per draw: say which element, for example "
            f"('{name}', {(0,) * (every.ndim - 2)})."
        )
    return values, diagnostics.label(name, tuple(index))
