"""Rows of Arrow and Parquet files, by pyarrow: ``pip install svgp_ppl[arrow]``.

The columns of an uncompressed Arrow file are arrays of numbers in the file. Seen as one
array of such numbers, the file has value d of row n at position

    offset[chunk(n), d] + n,

so that any rows are read by one indexing operation per column, and nothing else of the
file is. Many rows are best read together: in the order of the file, those of many steps
touch each of its pages once.
"""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["ArrowRows", "arrow_rows"]

# The system maps some 16 pages around every one that is read.
_MAPPED_TOGETHER = 2**16
_MOST_WINDOWS = 64
_HOW = "pyarrow.ipc.new_file(path, schema) writes one without compression"


class ArrowRows:
    """Columns of an uncompressed Arrow file as an array [N, D], or [N], read by rows.

    An argument of ``fit(batch_size=)`` and of ``predict_batches``, like a memory map of
    NumPy. Indexed by a slice or by integers it gives an array of NumPy.

    Attributes:
        shape: (N, D), or (N,) for a single column.
        dtype: The type that can hold all columns.
        pages: The mapped file.
    """

    def __init__(self, path: str | os.PathLike, columns: str | Sequence[str]):
        arrow = _pyarrow()
        with open(path, "rb") as file:
            self.pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        buffer = arrow.py_buffer(self.pages)
        try:
            reader = arrow.ipc.open_file(buffer)
        except arrow.ArrowInvalid as error:
            raise ValueError(
                f"{os.fspath(path)} is no Arrow file ({error}): {_HOW}."
            ) from None
        names = _require_columns(reader.schema, columns)
        types = [reader.schema.field(name).type for name in names]
        self._kinds = [np.dtype(kind.to_pandas_dtype()) for kind in types]
        offsets, lengths = [], []
        for number in range(reader.num_record_batches):
            batch, first = reader.get_batch(number), sum(lengths)
            lengths.append(batch.num_rows)
            offsets.append(
                [
                    _position(batch.column(name), name, kind, buffer) - first
                    for name, kind in zip(names, self._kinds)
                ]
            )
        self._ends, self._offsets = np.cumsum(lengths), np.array(offsets)
        self.dtype = np.result_type(*self._kinds)
        self.shape = (sum(lengths), len(names))
        if isinstance(columns, str):
            self.shape = self.shape[:1]

    ndim = property(lambda self: len(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows by a slice, by integers or by a mask, read from the file.

        Raises:
            IndexError: There is no such row, or it is no number.
        """
        rows = self._numbers(rows)
        out = np.empty((*rows.shape, *self.shape[1:]), self.dtype)
        self.read(rows.ravel(), out.reshape(rows.size, *self.shape[1:]))
        return out

    def _numbers(self, rows: Any) -> np.ndarray:
        """The numbers of rows, none negative, that NumPy would take."""
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        if rows.dtype == bool:
            return np.arange(len(self))[rows]
        if not rows.size:
            return rows.astype(np.intp)
        if not np.issubdtype(rows.dtype, np.integer):
            raise IndexError(f"rows are numbered by integers, not by {rows.dtype}.")
        for row in (rows.min(), rows.max()):
            if not -len(self) <= row < len(self):
                raise IndexError(f"row {row} is not one of {len(self)} rows.")
        return np.where(rows < 0, rows + len(self), rows)

    def read(self, rows: np.ndarray, out: np.ndarray) -> None:
        """Copy rows, a column at a time in the order of the file.

        Pages are released when some megabytes of them have been mapped.

        Args:
            rows: Numbers of rows, from 0 on, [n].
            out: [n, D], or [n] for a single column.
        """
        order = np.argsort(rows)
        rows = rows[order]
        batch = np.searchsorted(self._ends, rows, side="right")
        columns = out.reshape(len(rows), len(self._kinds))
        for column, kind in enumerate(self._kinds):
            whole = np.frombuffer(self.pages, kind, len(self.pages) // kind.itemsize)
            at = self._offsets[batch, column] + rows
            window = at * kind.itemsize // _MAPPED_TOGETHER
            # Number of windows that have been touched before a row.
            before = np.cumsum(np.diff(window, prepend=window[:1]) != 0)
            turns = np.flatnonzero(np.diff(before // _MOST_WINDOWS)) + 1
            ends = [*map(int, turns), len(rows)]
            for start, end in zip([0, *ends], ends):
                columns[order[start:end], column] = whole[at[start:end]]
                if hasattr(mmap, "MADV_DONTNEED"):
                    self.pages.madvise(mmap.MADV_DONTNEED)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """All rows, in memory."""
        return np.asarray(self[:], dtype)


def arrow_rows(
    path: str | os.PathLike,
    columns: str | Sequence[str],
    *,
    copy: str | os.PathLike | None = None,
) -> Any:
    """Columns of an Arrow or Parquet file as rows for minibatches, not held in memory.

    An uncompressed Arrow file is mapped, and rows are read in place. Parquet and
    compressed Arrow files cannot be read row by row: they are decoded once, a piece at
    a time, into a NumPy file ``copy``, which is mapped. That form is also faster for
    many columns, since the values of a row are next to each other.

    Args:
        path: The file, ``.parquet`` or Arrow (``.arrow``, ``.feather``).
        columns: Name of a column, for an array [N], or several for an array [N, D].
        copy: Name of a NumPy file (``.npy``) to be written, or None.

    Returns:
        Rows that ``fit(batch_size=)`` and ``predict_batches`` take like any array.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: There is no such column, or it has missing values or does not hold
            numbers; the file is compressed, and there is no ``copy``; or ``copy`` is
            the file.
        OSError: The copy cannot be written; a former one is then still there.

    Example:
        >>> import pyarrow as pa
        >>> from pyarrow import feather
        >>> table = pa.table({"a": x[:, 0], "b": x[:, 0] ** 2})
        >>> feather.write_feather(table, "rows.arrow", compression="uncompressed")
        >>> rows = gp.arrow_rows("rows.arrow", ["a", "b"])
        >>> rows[[0, 2]].shape
        (2, 2)
    """
    _pyarrow()
    if copy is None:
        if _is_parquet(path):
            raise ValueError(
                f"{os.fspath(path)} is a Parquet file, whose rows cannot be read one "
                'by one: say copy="rows.npy", which is written once and then mapped.'
            )
        return ArrowRows(path, columns)
    if os.path.exists(copy) and os.path.samefile(path, copy):
        raise ValueError(f"copy={os.fspath(copy)} would replace the file itself.")
    return _copied(path, columns, Path(copy))


def _copied(path: str | os.PathLike, columns: str | Sequence[str], copy: Path) -> Any:
    """The columns in a mapped NumPy file."""
    arrow = _pyarrow()
    if _is_parquet(path):
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]

        file: Any = parquet.ParquetFile(path, memory_map=True)
        schema, total = file.schema_arrow, file.metadata.num_rows
        names = _require_columns(schema, columns)
        batches = file.iter_batches(columns=names)
    else:
        file = arrow.ipc.open_file(arrow.memory_map(os.fspath(path)))
        schema, number = file.schema, file.num_record_batches
        names = _require_columns(schema, columns)
        total = sum(file.get_batch(i).num_rows for i in range(number))
        batches = (file.get_batch(i) for i in range(number))
    kinds = [schema.field(name).type.to_pandas_dtype() for name in names]
    shape = (total,) if isinstance(columns, str) else (total, len(names))
    part = copy.with_name(f".{copy.name}.{os.getpid()}.unfinished")
    try:
        out = _reserved(part, np.result_type(*kinds), shape)
        first = 0
        for batch in batches:
            last = first + batch.num_rows
            for d, name in enumerate(names):
                values = batch.column(name)
                _require_numbers(values, name)
                out.reshape(total, -1)[first:last, d] = values.to_numpy(False)
            first = last
        out.flush()
        del out
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)
    return np.load(copy, mmap_mode="r")


def _reserved(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A new NumPy file, mapped, with its place on the disk.

    Without the place, writing into the map of a full disk would end the process.
    """
    out = np.lib.format.open_memmap(path, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
    return out


def _pyarrow() -> Any:
    try:
        import pyarrow  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError(
            "Arrow and Parquet files need pyarrow: pip install svgp_ppl[arrow]."
        ) from None
    return pyarrow


def _is_parquet(path: str | os.PathLike) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _require_columns(schema: Any, columns: str | Sequence[str]) -> list[str]:
    """The names of the columns, if they hold numbers."""
    names = [columns] if isinstance(columns, str) else list(columns)
    if wrong := [name for name in names if name not in schema.names]:
        raise ValueError(f"the file has no columns {wrong}, and has {schema.names}.")
    if not names:
        raise ValueError(f"no columns are named; the file has {schema.names}.")
    for name in names:
        kind = schema.field(name).type
        dtype = np.dtype(kind.to_pandas_dtype())
        if dtype.kind not in "iuf":
            raise ValueError(f"column '{name}' has values of type {kind}, not numbers.")
    return names


def _require_numbers(values: Any, name: str) -> None:
    if values.null_count:
        raise ValueError(
            f"column '{name}' has {values.null_count} missing values: fill or drop "
            "them first, with pyarrow.compute.fill_null."
        )


def _position(values: Any, name: str, kind: np.dtype, whole: Any) -> int:
    """Position of the first value of a column of a batch, in the file as an array."""
    _require_numbers(values, name)
    _, buffer = values.buffers()
    place = buffer.address - whole.address
    if not 0 <= place <= whole.size - buffer.size:
        raise ValueError(
            f"the file is compressed, so that rows cannot be read one by one: {_HOW}, "
            'or say copy="rows.npy", which is written once and then mapped.'
        )
    if place % kind.itemsize:
        raise ValueError(
            f"column '{name}' is not aligned: {_HOW}, or say copy=\"rows.npy\"."
        )
    return place // kind.itemsize + values.offset
