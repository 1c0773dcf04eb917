"""The arguments of a model at every step: all rows, or rows without replacement.

Nothing that stays in memory grows with the number of rows. The order of an epoch is
computed position by position; the rows of a block of steps are gathered on the host;
and pages of a memory-mapped file are released after they have been read.
"""

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from svgp_ppl.rows import is_array, pages_of, with_rows
from svgp_ppl.rows.arrow import ArrowRows
from svgp_ppl.rows.sharding import is_sharded, over_same_devices
from svgp_ppl.runtime.compilation import partition, static_part

__all__ = ["Minibatches", "Whole", "blocks_of", "permuted"]

# The rows of one block of steps: large enough for long blocks of small batches.
_BYTES_IN_A_BLOCK = 2**24
# The system maps some 16 pages around every one that is read (64 kB each time):
# releasing after so many rows keeps the mapped memory below 4 MB.
_ROWS_BETWEEN_RELEASES = 64
# Four rounds are enough for a large domain and ideal rounds (Luby & Rackoff 1988);
# small domains need more.
_NUM_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Whole:
    """The same arguments at every step.

    Args:
        args: Arguments of the model.
        kwargs: Keyword arguments.
    """

    longest_block = None

    def __init__(self, args: tuple, kwargs: dict):
        self.args, self.kwargs = args, kwargs
        self._arrays, self._combine, self.made_of = partition(args, kwargs)

    def first(self) -> tuple[tuple, dict]:
        """Arguments of the model at the first step, unchanged."""
        return self.args, self.kwargs

    def block(self, first: int, count: int, length: int) -> Any:
        """Arrays for ``count`` steps, the same shapes for every ``count``."""
        return self._arrays

    def at(self, arrays: Any, index) -> tuple[tuple, dict]:
        """Arguments at step ``index`` of a block, inside compiled code."""
        return self._combine(arrays)


@dataclass(frozen=True)
class Minibatches:
    """Rows of the arrays that are as long as the first one, in a new order every epoch.

    An epoch has N // B batches; the N mod B rows left out differ from epoch to epoch,
    and no batch has a row twice. Step t is batch t mod (N // B) of epoch
    t // (N // B).

    Attributes:
        args: Arguments of the model, with all rows.
        kwargs: Keyword arguments.
        batch_size: Number of rows B per step.
        seed: Determines the order.

    Raises:
        ValueError: There is no array, or a table or a list is as long; or B is not an
            integer from 1 to N.
    """

    args: tuple
    kwargs: dict
    batch_size: int
    seed: int

    def __post_init__(self):
        size, rows = self.batch_size, self.num_rows
        if isinstance(size, bool) or not isinstance(size, int | np.integer):
            size = 0
        if not 1 <= size <= rows:
            raise ValueError(
                f"batch_size must be an integer from 1 to {rows}, the length of the "
                f"first array argument, and is {self.batch_size!r}."
            )

    @cached_property
    def _leaves(self) -> list:
        return jax.tree.leaves((self.args, self.kwargs))

    @property
    def made_of(self) -> tuple:
        """What determines the arguments, besides their arrays."""
        static = static_part(self.args, self.kwargs)
        return static, tuple(self._cut), self.batch_size, self.num_rows

    @property
    def num_rows(self) -> int:
        """Length N of the first array argument."""
        return len(next(iter(self._cut.values())))

    @cached_property
    def _cut(self) -> dict[int, Any]:
        """Leaf -> the array whose rows it is given."""
        return with_rows((self.args, self.kwargs))

    @property
    def lengths_of_others(self) -> set[int]:
        """Lengths of the arrays that the model is given whole."""
        others = [x for i, x in enumerate(self._leaves) if i not in self._cut]
        return {len(x) for x in others if is_array(x) and np.ndim(x)}

    @cached_property
    def _spread(self) -> dict[int, jax.Array]:
        """Those of them that are on several devices: their rows are taken there."""
        return {i: array for i, array in self._cut.items() if is_sharded(array)}

    @property
    def is_spread(self) -> bool:
        """Whether rows are on several devices."""
        return bool(self._spread)

    @cached_property
    def _resident(self) -> dict[int, jax.Array]:
        return self._spread | {
            i: jnp.asarray(leaf)
            for i, leaf in enumerate(self._leaves)
            if is_array(leaf) and i not in self._cut
        }

    @property
    def longest_block(self) -> int:
        """Number of steps whose rows are gathered together."""
        rows = [a.dtype.itemsize * np.prod(a.shape[1:]) for a in self._cut.values()]
        return max(1, int(_BYTES_IN_A_BLOCK // (self.batch_size * sum(rows))))

    def rows(self, first: int, count: int) -> np.ndarray:
        """Row numbers of the batches of ``count`` steps, [count, B]."""
        size, batches = self.batch_size, self.num_rows // self.batch_size
        steps = np.arange(first, first + count)
        rows = np.empty((count, size), np.int64)
        for epoch in np.unique(steps // batches):
            here = steps // batches == epoch
            starts = steps[here] % batches * size
            positions = starts[:, None] + np.arange(size)
            rows[here] = permuted(positions, self.num_rows, (self.seed, int(epoch)))
        return rows

    def first(self) -> tuple[tuple, dict]:
        """Arguments of the model with the first B rows, outside compiled code."""
        return self.rows_from(0, self.batch_size)

    def rows_from(self, start: int, count: int) -> tuple[tuple, dict]:
        """Arguments of the model with ``count`` rows in the order of the data."""
        leaves, structure = jax.tree.flatten((self.args, self.kwargs))
        for i, array in self._cut.items():
            leaves[i] = array[start : start + count]
        return structure.unflatten(leaves)

    def block(self, first: int, count: int, length: int) -> Any:
        """Rows for ``count`` steps, padded to ``length``; arrays that stay whole."""
        rows = self.rows(first, count)
        batches = {}
        numbers = np.zeros((length, *rows.shape[1:]), rows.dtype)
        numbers[:count] = rows
        for i, array in self._cut.items():
            if i in self._spread:
                continue
            batches[i] = np.zeros(
                (length, *rows.shape[1:], *array.shape[1:]),
                array.dtype.newbyteorder("="),
            )
            _gather(array, rows, out=batches[i][:count])
        return batches, self._resident, numbers if self._spread else None

    def forget_pages(self) -> None:
        """Release the pages of memory-mapped files that have been read."""
        for array in self._cut.values():
            if (pages := pages_of(array)) is not None:
                pages.madvise(mmap.MADV_DONTNEED)

    def at(self, arrays: Any, index) -> tuple[tuple, dict]:
        """Arguments at step ``index`` of a block, inside compiled code."""
        batches, resident, numbers = arrays
        given = {
            i: jnp.asarray(batch)[index] for i, batch in batches.items()
        } | resident
        for i, array in self._spread.items():
            rows = given[i][jnp.asarray(numbers)[index]]
            given[i] = over_same_devices(rows, array)
        leaves, structure = jax.tree.flatten((self.args, self.kwargs))
        return structure.unflatten(
            [given.get(i, leaf) for i, leaf in enumerate(leaves)]
        )


def blocks_of(
    data: Whole | Minibatches, first: int, count: int, length: int
) -> Iterator[tuple[int, Any]]:
    """Arrays of one block of steps after another; the next one is read meanwhile.

    A thread gathers the rows of the next block while the caller uses this one. The rows
    depend on the number of the step alone, so rows that were gathered but not used,
    after an interrupt or an early end, are simply dropped.

    Args:
        data: Arguments of the model at every step.
        first: Number of the first step.
        count: Number of steps.
        length: Steps in a block; the last one may have fewer.

    Yields:
        Number of steps of a block, and its arrays.
    """
    starts = range(first, first + count, length)
    sizes = [min(length, first + count - start) for start in starts]
    with ThreadPoolExecutor(1, "rows") as thread:
        # The first in the caller's thread, whose precision the arrays of JAX then have.
        arrays = data.block(first, sizes[0], length)
        for start, size, after in zip(starts, sizes, [*sizes[1:], None]):
            if after is None:
                yield size, arrays
                return
            ahead = thread.submit(data.block, start + length, after, length)
            yield size, arrays
            arrays = ahead.result()


def _gather(array: np.ndarray | ArrowRows, rows: np.ndarray, out: np.ndarray) -> None:
    """Copy rows, in the order of the file and without keeping its pages mapped."""
    if isinstance(array, ArrowRows):
        array.read(rows.ravel(), out.reshape(rows.size, *array.shape[1:]))
        return
    pages = pages_of(array)
    if pages is None:
        np.take(array, rows, axis=0, out=out)
        return
    flat, out = rows.ravel(), out.reshape(-1, *array.shape[1:])
    order = np.argsort(flat)
    for start in range(0, len(order), _ROWS_BETWEEN_RELEASES):
        some = order[start : start + _ROWS_BETWEEN_RELEASES]
        out[some] = array[flat[some]]
        pages.madvise(mmap.MADV_DONTNEED)


# A pseudo-random order of N rows, one position at a time, without a list of them. A
# Feistel network permutes [0, 4^b); positions that fall on N or beyond walk along their
# cycle until they are inside, which leaves a permutation of [0, N) (Black & Rogaway
# 2002, "Ciphers with arbitrary finite domains", sections 3 and 4). The domain is at
# most four times too large, so a walk takes four steps at most on average. The rounds
# mix with the finaliser of SplitMix64 (Steele, Lea & Flood 2014).


def permuted(positions: np.ndarray, size: int, key: tuple[int, int]) -> np.ndarray:
    """Rows at these positions of a pseudo-random order of ``size`` rows.

    Args:
        positions: Integers in [0, size), any shape.
        size: Number of rows N.
        key: Two integers, such as a seed and the number of the epoch. Each key gives
            its own order.

    Returns:
        Integers in [0, size), of the shape of ``positions``; distinct where those are.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    start = _mix(_mix(np.full(1, key[0], np.uint64)) ^ np.uint64(key[1]))
    round_keys = _mix(start + _GOLDEN * np.arange(1, _NUM_ROUNDS + 1, dtype=np.uint64))

    def shuffle(value):
        left, right = value >> half, value & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        return (left << half) | right

    rows = shuffle(np.asarray(positions).astype(np.uint64).ravel())
    while np.any(outside := rows >= size):
        rows[outside] = shuffle(rows[outside])
    return rows.astype(np.int64).reshape(np.shape(positions))


def _mix(value: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64, on arrays (whose overflow is silent, as wanted)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
