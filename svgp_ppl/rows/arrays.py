"""Which arguments are arrays, which have rows, and the memory pages of files."""

import copy
import mmap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from svgp_ppl.rows.arrow import ArrowRows
from svgp_ppl.rows.sharding import automatic, is_sharded

__all__ = [
    "as_it_is_now",
    "is_array",
    "is_table",
    "named_rows",
    "pages_of",
    "with_rows",
]


def is_array(leaf: Any) -> bool:
    """Whether a leaf of the arguments is an array that JAX can hold.

    Strings, dates, objects and masked arrays are left for the model to use.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        return False
    if isinstance(leaf, np.ndarray):
        kind = leaf.dtype.kind
        is_half = kind == "V" and jnp.issubdtype(leaf.dtype, np.number)
        return kind in "biufc" or is_half  # bfloat16 and the like have the kind V
    return isinstance(leaf, jax.Array | ArrowRows)


def as_it_is_now(leaf: Any) -> Any:
    """A leaf of the arguments that stays as it is, whatever is written into it later.

    A copy of an array of NumPy or a table, for what is computed later; JAX, too, may
    read the memory of such an array without a copy. Others are returned unchanged.
    """
    can_be_written_into = hasattr(type(leaf), "__array__") and not (
        isinstance(leaf, jax.Array | np.generic | ArrowRows)
        or (isinstance(leaf, np.ndarray) and not leaf.flags.writeable)
    )
    return copy.deepcopy(leaf) if can_be_written_into else leaf


def named_rows(leaf: Any) -> tuple[Any, Any] | None:
    """Name and labels of the first axis of a pandas table or an xarray array.

    Returns:
        Each None if the axis has none; None for everything else.
    """
    home = type(leaf).__module__.split(".")[0]
    if home == "pandas" and hasattr(leaf, "index"):
        return leaf.index.name, leaf.index
    if home == "xarray" and hasattr(leaf, "dtype") and leaf.dims:
        return leaf.dims[0], leaf.indexes.get(leaf.dims[0])
    return None


def with_rows(arguments: Any) -> dict[int, Any]:
    """Leaf -> array, for the arrays that are as long as the first one.

    Args:
        arguments: Arguments of a model.

    Returns:
        The arrays, in the order of the arguments.

    Raises:
        ValueError: There are none; or a table or a list of numbers is as long, which
            the model would get whole.
    """
    leaves = jax.tree.leaves(arguments)
    arrays = {i: x for i, x in enumerate(leaves) if is_array(x) and np.ndim(x)}
    seen = jax.tree.leaves(arguments, is_leaf=_is_list)
    tables = [x for x in seen if is_table(x) or _is_list(x)]
    if not arrays:
        came = ", ".join(sorted({type(x).__name__ for x in tables or leaves}))
        raise ValueError(
            "batch_size needs an array among the arguments to cut, and their types are "
            f"{came or 'none'}: pass x.to_numpy() of a table, np.asarray(x) of a list."
        )
    first = next(iter(arrays.values()))
    for table in tables:
        if len(table) == len(first):
            instead = "np.asarray(x)" if _is_list(table) else "x.to_numpy()"
            raise ValueError(
                f"batch_size cuts arrays, and a {type(table).__name__} with as many "
                f"rows, {len(first)}, would be passed whole: pass {instead} of it."
            )
    arrays = {i: x for i, x in arrays.items() if len(x) == len(first)}
    return {i: _in_place(x) for i, x in arrays.items()}


def is_table(leaf: Any) -> bool:
    """Whether a leaf is a table or a column of it, or a labelled array."""
    is_known = isinstance(leaf, np.ndarray | np.generic | jax.Array | ArrowRows)
    return hasattr(type(leaf), "__array__") and not is_known and np.ndim(leaf) > 0


def _is_list(leaf: Any) -> bool:
    """Whether it is a list of numbers, or of such lists, which JAX takes for a tree."""
    plain = int | float | np.generic
    return isinstance(leaf, list) and all(
        isinstance(x, plain) or _is_list(x) for x in leaf
    )


def _in_place(array: Any) -> Any:
    """A source of rows: not copied if it is on several devices, or in a file."""
    if isinstance(array, ArrowRows):
        return array
    return automatic(array) if is_sharded(array) else np.asanyarray(array)


def pages_of(array: Any) -> mmap.mmap | None:
    """The mapping of a file behind a read-only array, if it can be advised.

    Not that of a writable one: pages of a copy-on-write mapping that are released
    forget what was written.
    """
    if isinstance(array, ArrowRows):
        return array.pages if hasattr(mmap, "MADV_DONTNEED") else None
    reads_only = False
    while array is not None and not isinstance(array, mmap.mmap):
        reads_only |= isinstance(array, np.memmap) and array.mode == "r"
        array = getattr(array, "base", None)
    return array if reads_only and hasattr(mmap, "MADV_DONTNEED") else None
