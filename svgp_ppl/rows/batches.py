"""A function at every row of arrays, a batch of rows at a time."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

__all__ = ["filled_batches", "in_batches"]


def filled_batches(number: int, size: int) -> Int[np.ndarray, "batches size"]:
    """Rows by batch; the last batch is padded with the last row."""
    size = min(size, number)
    places = np.arange(-(-number // size) * size)
    return np.minimum(places, number - 1).reshape(-1, size)


def in_batches(function: Callable, rows: Any, size: int) -> Any:
    """``function(row)`` at every row, ``size`` of them at a time.

    ``jax.lax.map`` with a ``batch_size`` that does not divide their number compiles the
    function twice, for the batches and for the remainder.

    Args:
        function: Of leaves without their first axis.
        rows: Leaves [rows, ...].
        size: Rows at a time.

    Returns:
        Leaves [rows, ...].
    """
    number = len(jax.tree.leaves(rows)[0])
    batches = filled_batches(number, size)
    if batches.shape[1] == 1:  # a branch of one row stays a branch
        return jax.lax.map(function, rows)
    if len(batches) == 1:
        return jax.vmap(function)(rows)

    def of_batch(batch):
        return jax.vmap(function)(jax.tree.map(lambda leaf: leaf[batch], rows))

    flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:number]  # noqa: E731
    return jax.tree.map(flat, jax.lax.map(of_batch, batches))
