"""What distinguishes arrays, in few letters."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["as_numbers", "digest", "digest_of_values"]


def digest(data: Any) -> str:
    """What distinguishes trees of arrays: names, shapes, types and contents.

    Of rows that other processes hold, only the shape is known here.
    """
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(data)[0]:
        is_here = getattr(leaf, "is_fully_addressable", True)
        leaf = np.ascontiguousarray(as_numbers(leaf)) if is_here else leaf
        name = f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}"
        found.update(name.encode())
        if is_here:
            found.update(leaf.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def digest_of_values(array: Any) -> str:
    """What distinguishes the values of one array, in either precision.

    Of rows that other processes hold, only their number is known here.
    """
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return f"shape {array.shape}"
    values = np.ascontiguousarray(np.asarray(array), np.float32)
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


def as_numbers(leaf: Any) -> np.ndarray:
    """An array of NumPy; for random keys their numbers."""
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.atleast_1d(np.asarray(leaf))
