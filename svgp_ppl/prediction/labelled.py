"""A prediction as a labelled table, whose rows are named like those of the inputs."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from svgp_ppl.rows import named_rows

__all__ = ["as_dataset", "as_frame", "row_labels"]


def row_labels(arguments: Any, num_rows: int) -> tuple[Any, Any]:
    """Name and labels of the first axis of a pandas table or an xarray array.

    Args:
        arguments: Arguments of the model.
        num_rows: Length of the axis; tables of another length are ignored.

    Returns:
        The name, None if the axis has none, and the labels, None if there is no table.
    """
    for leaf in jax.tree.leaves(arguments):
        found = named_rows(leaf) if np.shape(leaf)[:1] == (num_rows,) else None
        if found is not None:
            return found
    return None, None


def as_dataset(columns: Mapping[str, tuple[str, Any]], axis: Any, labels: Any) -> Any:
    """An ``xarray.Dataset`` of arrays [N] or [N, K].

    Args:
        columns: Name of the second axis, and an array, by name.
        axis: Name of the first axis; it gets an underscore if one of these has it.
        labels: Labels of its rows; None for their numbers.
    """
    import xarray

    held, taken = {}, {*columns, *(second for second, _ in columns.values())}
    axis = _free(axis, taken)
    for name, (second, values) in columns.items():
        array = np.asarray(values)
        later = (f"{second}_{k}" for k in range(1, array.ndim - 1))
        axes = (axis, second, *later)[: array.ndim]
        held[name] = (axes, array)
    num_rows = len(next(iter(held.values()))[1])
    if labels is not None and hasattr(labels, "levels"):  # a pandas.MultiIndex
        names = [None if n is None else _free(n, {*taken, axis}) for n in labels.names]
        labels = labels.set_names(names)
        coords: Any = xarray.Coordinates.from_pandas_multiindex(labels, axis)
    else:
        coords = {axis: np.arange(num_rows) if labels is None else labels.rename(axis)}
    return xarray.Dataset(held, coords=coords)


def _free(name: Any, taken: set[str]) -> str:
    """A name for xarray that is not taken; one of pandas may be a number or a tuple."""
    return _free(f"{name}_", taken) if str(name) in taken else str(name)


def as_frame(dataset: Any) -> Any:
    """A ``pandas.DataFrame`` of it, a column for each entry of a row: ``mean[1]``."""
    flat, axis = {}, dataset["mean"].dims[0]
    for name, values in dataset.data_vars.items():
        for index in np.ndindex(values.shape[1:]):
            label = name + (f"[{', '.join(map(str, index))}]" if index else "")
            flat[label] = (axis, values.values[(slice(None), *index)])
    frame = dataset.drop_vars(list(dataset.data_vars)).assign(flat).to_dataframe()
    return frame[list(flat)]
