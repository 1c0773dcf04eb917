"""Figures of functions of one and two inputs."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from svgp_ppl.prediction.prediction import Of, Prediction

__all__ = [
    "chain_bands",
    "class_contours",
    "function_band",
    "prediction_band",
    "subplots",
]


def subplots(*args, **kwargs) -> tuple[Figure, Any]:
    """``matplotlib.pyplot.subplots`` with a constrained layout.

    Example:
        >>> figure, axes = gp.plots.subplots(1, 2)
    """
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
        ValueError: x has more than one column, or the others another length.

    Example:
        >>> ax = gp.plots.function_band(x[:, 0], y - 1, y, y + 1)
    """
    x = np.asarray(x)
    if x.ndim == 2 and x.shape[1] == 1:
        x = x[:, 0]
    if x.ndim != 1:
        raise ValueError(
            f"a band is drawn over one column, and x has shape {x.shape}; pick "
            "a column or slice the inputs."
        )
    edges = tuple(map(np.asarray, (low, middle, high)))
    if any(edge.shape != x.shape for edge in edges):
        shapes = [edge.shape for edge in edges]
        raise ValueError(
            f"a band has a value at each of the {len(x)} inputs x, and the shapes of "
            f"low, middle and high are {shapes}."
        )
    order = np.argsort(x)
    x, low, middle, high = (v[order] for v in (x, *edges))
    ax = plt.subplots()[1] if ax is None else ax
    (line,) = ax.plot(x, middle, label=label, color=color)
    ax.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    return ax


def prediction_band(
    x: ArrayLike,
    prediction: Prediction,
    mass: float = 0.9,
    *,
    of: Of = "data",
    key=None,
    ax: Axes | None = None,
    label: str | None = None,
    color: Any = None,
) -> Axes:
    """Median and central interval of a prediction over one input.

    Args:
        x: The inputs of the prediction, [N] or [N, 1], in any order.
        prediction: What ``gp.predict`` gives for a site.
        mass: Probability of the interval.
        of: ``"data"`` for y, ``"latent"`` for f.
        key: Random key, for a likelihood without a cumulative distribution function.
        ax: Axes to draw on, new ones if None.
        label: Label of the line.
        color: Any matplotlib colour, the next of the cycle if None.

    Raises:
        ValueError: x has more than one column, or y or f more than one component; or
            it is the predictions of all sites.

    Example:
        >>> import svgp_ppl as gp
        >>> at_x = gp.predict(model, fitted, x)["y"]
        >>> ax = gp.plots.prediction_band(x, at_x)
    """
    if isinstance(prediction, dict):
        raise ValueError(
            "a band is drawn of the prediction at one site, and is given a dict: take "
            f"one of {list(prediction)}, such as gp.predict(model, fit, x)['y']."
        )
    levels = [0.5 - 0.5 * mass, 0.5, 0.5 + 0.5 * mass]
    edges = prediction.quantile(levels, of=of, key=key)
    if edges.ndim > 2:
        raise ValueError(
            f"a band is drawn of one component, and there are {edges.shape[2:]} at "
            "each input: take those of prediction.quantile(...) to function_band."
        )
    return function_band(x, *edges, ax=ax, label=label, color=color)


def chain_bands(
    x: ArrayLike,
    draws: ArrayLike,
    *,
    probabilities: tuple[float, float] = (0.05, 0.95),
    ax: Axes | None = None,
) -> Axes:
    """Median and band of a function, pooled, and the edges of every chain alone.

    Chains that agree have their edges on those of the pooled band.

    Args:
        x: Inputs, [N] or [N, 1].
        draws: Values of the function, [chains, draws, N].
        probabilities: Lower and upper edge.
        ax: Axes to draw on, new ones if None.

    Raises:
        ValueError: The draws have another shape.

    Example:
        >>> ax = gp.plots.chain_bands(x_new[:, 0], np.zeros((4, 100, 2)))
    """
    draws, x = np.asarray(draws), np.ravel(np.asarray(x))
    if draws.ndim != 3 or draws.shape[-1] != len(x):
        raise ValueError(
            f"draws must have shape [chains, draws, {len(x)}] and have {draws.shape}."
        )
    low, high = probabilities
    pooled = draws.reshape(-1, len(x))
    edges = np.quantile(pooled, [low, 0.5, high], axis=0)
    label = f"pooled, {100 * (high - low):.0f} % band"
    ax = function_band(x, *edges, ax=ax, label=label, color="C0")
    order = np.argsort(x)
    for chain, values in enumerate(draws):
        for edge in np.quantile(values, [low, high], axis=0):
            (line,) = ax.plot(x[order], edge[order], color=f"C{chain + 1}", lw=0.8)
        line.set_label(f"chain {chain}")
    ax.legend()
    return ax


def class_contours(
    x: ArrayLike,
    probs: ArrayLike,
    *,
    levels: Sequence[float] = (0.5, 0.95, 0.99),
    ax: Axes | None = None,
    linestyles: str = "solid",
) -> Axes:
    """Contours of the probability of every class over two inputs, one colour each.

    Args:
        x: Points of a grid, [N, 2]: every pair of the values of its columns.
        probs: Class probabilities there, [N, C], or [N], those of a 1.
        levels: Probabilities to draw, increasing.
        ax: Axes to draw on, new ones if None.
        linestyles: Style of all contours, to overlay two posteriors.

    Raises:
        ValueError: The points are not a grid, or the probabilities not as many.

    Example:
        >>> pairs = gp.inducing.grid(np.array([[-2.0, -2.0], [2.0, 2.0]]), 100)
        >>> probs = np.asarray(jax.nn.softmax(4 * pairs))
        >>> ax = gp.plots.class_contours(pairs, probs)
    """
    x, probs = np.asarray(x), np.asarray(probs)
    first, second = (np.unique(column) for column in x.T)
    if not len(first) * len(second) == len(x) == len(np.unique(x, axis=0)):
        raise ValueError(
            f"x must hold every pair of {len(first)} and {len(second)} values, "
            f"{len(first) * len(second)} points, and holds {len(x)}."
        )
    if len(probs) != len(x):
        raise ValueError(
            f"probs must have a row for each of {len(x)} points, and have {len(probs)}."
        )
    if probs.ndim == 1:
        probs = np.stack([1 - probs, probs], axis=1)
    order = np.lexsort((x[:, 1], x[:, 0]))
    ax = plt.subplots()[1] if ax is None else ax
    for label, column in enumerate(probs[order].T):
        heights = column.reshape(len(first), len(second)).T
        options: Any = {"colors": f"C{label}", "linestyles": linestyles}
        ax.contour(first, second, heights, levels=list(levels), **options)
    ax.set(xlabel="x, column 0", ylabel="x, column 1")
    return ax
