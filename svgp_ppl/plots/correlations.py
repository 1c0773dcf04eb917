"""Figures of posterior correlations between the values of a site."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from svgp_ppl.plots.values import values_of

__all__ = ["correlated_inputs", "correlation"]


def correlation(posterior: Any, name: str, *, ax: Axes | None = None) -> Axes:
    """Posterior correlations of all values of a site, outputs in blocks.

    Args:
        posterior: An ArviZ object, or arrays [chains, draws, ...] by name.
        name: Name of a site with values [M] or [Q, M].
        ax: Axes to draw on, new ones if None.

    Raises:
        ValueError: There is no such site, or it is one number per draw.

    Example:
        >>> ax = gp.plots.correlation(draws, "f")
    """
    matrix, size = _correlations(posterior, name)
    ax = plt.subplots()[1] if ax is None else ax
    image = ax.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
    for edge in range(size, len(matrix), size):
        ax.axhline(edge - 0.5, color="0.3", lw=0.8)
        ax.axvline(edge - 0.5, color="0.3", lw=0.8)
    ax.figure.colorbar(image, ax=ax, label="posterior correlation")
    ax.set(xlabel=f"value of {name}", ylabel=f"value of {name}")
    return ax


def correlated_inputs(
    posterior: Any,
    name: str,
    z: ArrayLike,
    *,
    threshold: float = 0.4,
    ax: Axes | None = None,
) -> Axes:
    """Edges between inducing inputs whose values are strongly correlated.

    The middle of the multi-class figure of Hensman et al. (2015). An edge in the colour
    of an output joins two of its values; a grey one (or a ring, where both are at the
    same input) joins values of two outputs. Wider edges are stronger. Chains that have
    not mixed are full of meaningless edges: check ``diagnostics.report`` first.

    Args:
        posterior: An ArviZ object, or arrays [chains, draws, ...] by name.
        name: Name of a site with values [M] or [Q, M].
        z: Inducing inputs, [M, 2].
        threshold: Smallest absolute correlation that is drawn, between 0 and 1.
        ax: Axes to draw on, new ones if None.

    Raises:
        ValueError: As in :func:`correlation`; or z has another shape, or the threshold
            is out of range.

    Example:
        >>> ax = gp.plots.correlated_inputs(draws, "f", np.hstack([z, z]))
    """
    matrix, size = _correlations(posterior, name)
    z = np.asarray(z)
    if z.shape != (size, 2):
        raise ValueError(
            f"z must be the [{size}, 2] inducing inputs of '{name}', and has shape "
            f"{z.shape}."
        )
    if not 0 < threshold < 1:
        raise ValueError(f"threshold must lie between 0 and 1, and is {threshold}.")
    ax = plt.subplots()[1] if ax is None else ax
    pairs = np.argwhere(np.triu(np.abs(matrix) > threshold, 1))
    for i, j in pairs:
        (output, start), (other, end) = divmod(i, size), divmod(j, size)
        color = f"C{output}" if output == other else "0.5"
        width = 3.0 * (abs(matrix[i, j]) - threshold) / (1.0 - threshold) + 0.5
        if start == end:
            ax.plot(*z[start], "o", mfc="none", ms=9, color=color, mew=width)
        else:
            ax.plot(*z[[start, end]].T, color=color, lw=width)
    ax.plot(*z.T, "k.", ms=4)
    ax.set(
        xlabel="x, column 0",
        ylabel="x, column 1",
        title=f"|correlation| > {threshold}: {len(pairs)}",
    )
    return ax


def _correlations(posterior: Any, name: str) -> tuple[np.ndarray, int]:
    """The matrix over all values of a site, [QM, QM], and M."""
    values = values_of(posterior, name)
    if values.ndim < 3:
        raise ValueError(f"'{name}' is one number per draw: it has no correlations.")
    flat = values.reshape(-1, int(np.prod(values.shape[2:])))
    return np.corrcoef(flat.T), values.shape[-1]
