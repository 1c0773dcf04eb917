"""Which arguments of a model have rows, and the pages of those that are files."""

import mmap
from typing import Any

import numpy as np

from svgp_ppl.arrow import ArrowRows
from svgp_ppl.compilation import is_array
from svgp_ppl.sharding import automatic, is_sharded

__all__ = ["pages_of", "with_rows"]


def with_rows(leaves: list) -> dict[int, Any]:
    """Leaf -> array, for the arrays that are as long as the first one.

    Args:
        leaves: Leaves of the arguments of a model.

    Returns:
        In the order of the arguments; nothing where there is no array.
    """
    arrays = {i: x for i, x in enumerate(leaves) if is_array(x) and np.ndim(x)}
    first = next(iter(arrays.values()), ())
    arrays = {i: x for i, x in arrays.items() if len(x) == len(first)}
    return {i: _in_place(x) for i, x in arrays.items()}


def _in_place(array: Any) -> Any:
    """What gives rows: not copied where it is on several devices, or in a file."""
    if isinstance(array, ArrowRows):
        return array
    return automatic(array) if is_sharded(array) else np.asanyarray(array)


def pages_of(array: Any) -> mmap.mmap | None:
    """The mapping of a file behind an array that only reads, where it can be advised.

    Not behind a writable one: pages of a copy-on-write mapping that are given back
    forget what was written.
    """
    if isinstance(array, ArrowRows):
        return array.pages if hasattr(mmap, "MADV_DONTNEED") else None
    reads_only = False
    while array is not None and not isinstance(array, mmap.mmap):
        reads_only |= isinstance(array, np.memmap) and array.mode == "r"
        array = getattr(array, "base", None)
    return array if reads_only and hasattr(mmap, "MADV_DONTNEED") else None
