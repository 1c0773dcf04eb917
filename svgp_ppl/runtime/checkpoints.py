"""Long work as files: arrays and one line of JSON, no pickle.

The state of an optimiser or of a sampler is a tree whose shape only its owner knows. A
file holds its leaves and a description of the tree; they are restored into the state
with which the same owner starts, and compared with it. A file is always whole: it is
written beside its destination, and then replaces it.
"""

import codecs
import contextlib
import glob
import json
import os
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed anyway
    fcntl = None

__all__ = ["Checkpoint", "Kind", "Stored", "as_stored", "read", "restored", "write"]

_FORMAT = 1
_SECONDS_BETWEEN = 30.0
# A write that takes longer delays the next one, so that large files cost at most a
# twentieth of the time.
_SECONDS_OF_A_WRITE = 0.05 * _SECONDS_BETWEEN

Kind = Literal["fit", "chains"]
_WRITERS = {"fit": "Fit.save", "chains": "sample(checkpoint=...)"}
# First bytes of these files, and of other kinds.
_ARCHIVE = b"PK\x03\x04"
_OTHERS = {
    b"\x93NUMPY": "a single array (numpy.save)",
    b"\x89HDF": "a netCDF or HDF5 file",
    b"CDF": "a netCDF file",
    b"\x1f\x8b": "a gzip archive",
    **{bytes([0x80, protocol]): "a pickle" for protocol in range(2, 6)},
}


class Stored(NamedTuple):
    """A state without the optimiser or sampler that could read it.

    Attributes:
        leaves: Its arrays, random keys as keys.
        structure: Description of the tree.
    """

    leaves: list
    structure: str


def as_stored(state: Any) -> Stored:
    """Leaves and description of a state."""
    if isinstance(state, Stored):
        return state
    leaves, structure = jax.tree.flatten(state)
    return Stored(leaves, str(structure))


# ----------------------------------------------------------------------------- writing


def write(
    path: str | os.PathLike, kind: Kind, record: dict[str, Any], state: Any
) -> None:
    """Write a record and a state, so that the file is always whole.

    Args:
        path: File name, used unchanged; for a link, the file that it points to.
        kind: Kind of the file.
        record: Name -> array, dict of arrays by name, or plain value.
        state: Tree of arrays, or :class:`Stored`.

    Raises:
        OSError: The file cannot be written; a former one is then still there.
        ValueError: The path is that of something other than a file.
    """
    stored = as_stored(state)
    head: dict[str, Any] = {"format": _FORMAT, "kind": kind}
    head |= {"structure": stored.structure, "leaves": len(stored.leaves)}
    head |= {"views": {}, "plain": {}, "names": {}}
    arrays = {}

    def put(name: str, value) -> None:
        value = value if hasattr(value, "dtype") else jnp.asarray(value)
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            head["views"][name] = ["key", str(random.key_impl(value))]
            value = random.key_data(value)
        value = np.asarray(value)
        if value.dtype.kind == "V":  # bfloat16 and the like: NumPy's files forget them
            head["views"][name] = ["dtype", value.dtype.name]
            value = value.view(f"u{value.dtype.itemsize}")
        arrays[name] = value

    for i, leaf in enumerate(stored.leaves):
        put(f"leaf {i}", leaf)
    for name, value in record.items():
        if isinstance(value, dict):
            head["names"][name] = list(value)
            for key, entry in value.items():
                put(f"{name} {key}", entry)
        elif isinstance(value, np.ndarray | jax.Array):
            put(name, value)
        else:
            head["plain"][name] = value

    path = _place(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {path.parent} to write {path.name}."
        )
    with _part_of(path) as (part, file):
        np.savez(file, head=np.array(json.dumps(head)), **arrays)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        require_plain(path)
        os.replace(part, path)


def require_plain(path: Path) -> None:
    """Raise if there is something at a path that a file must not replace.

    Raises:
        ValueError: It is a folder, a device, a pipe or a socket.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "not an ordinary file"
        raise ValueError(f"{path} is {kind}: give the name of a file.")


def _place(path: str | os.PathLike) -> Path:
    """The path of a file, not of a link to it, which would be replaced."""
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def _part_of(path: Path) -> Iterator[tuple[Path, Any]]:
    """A file beside another one, for one thread; locked, and removed afterwards."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with open(part, "wb") as file:
            _lock(file)
            yield part, file
    finally:
        part.unlink(missing_ok=True)


def _remove_parts(path: Path) -> None:
    """Remove the half-written files of killed processes beside a file."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*-*.part"):
        # The system keeps the lock of a process only as long as it lives.
        with contextlib.suppress(OSError), open(left, "ab") as file:
            if _lock(file):
                left.unlink(missing_ok=True)


def _lock(file: Any) -> bool:
    """Lock a file; returns whether nobody else holds its lock."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked, or on a file system without locks
        return False
    return True


class Checkpoint:
    """The file of work in progress, written every half minute.

    Args:
        path: Its name. Half-written files of killed processes beside it are removed.
        kind: Its kind; a file of another kind is not overwritten.
        afterwards: The consequence of a failed write, for the warning.

    Attributes:
        path: The file, not a link to it.
        seconds_between: Seconds between two writes.

    Raises:
        ValueError: No file can be written there, or there is one of another kind.
    """

    def __init__(self, path: str | os.PathLike, kind: Kind, afterwards: str):
        if not isinstance(path, str | os.PathLike):
            raise ValueError(f"checkpoint must be the name of a file, and is {path!r}.")
        self.path, self._afterwards = _place(path), afterwards
        if not self.path.parent.is_dir():
            raise ValueError(f"checkpoint={path}: there is no such folder.")
        try:
            require_plain(self.path)
            _remove_parts(self.path)
            with _part_of(self.path):
                pass
        except OSError as error:
            raise ValueError(
                f"checkpoint={path}: no file can be written there ({error})."
            ) from error
        if self.exists():
            _require_kind(self.path, kind)
        self._saved, self.seconds_between = time.monotonic(), _SECONDS_BETWEEN

    def exists(self) -> bool:
        """Whether the file exists and is not empty."""
        return self.path.exists() and self.path.stat().st_size > 0

    def is_due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._saved > self.seconds_between

    def save(self, write_to: Callable[[Path], None]) -> bool:
        """Write; a failure is a warning, and the work continues.

        Args:
            write_to: Function that writes a file of a given name.

        Returns:
            Whether it was written.
        """
        began, is_written = time.monotonic(), False
        try:
            write_to(self.path)
            is_written = True
        except (OSError, ValueError) as error:
            warnings.warn(
                f"the checkpoint could not be written ({error}); {self._afterwards}",
                stacklevel=4,
            )
        self._saved = time.monotonic()
        share = (self._saved - began) / _SECONDS_OF_A_WRITE
        self.seconds_between = _SECONDS_BETWEEN * max(1.0, share)
        return is_written


# ----------------------------------------------------------------------------- reading


def read(path: str | os.PathLike, kind: Kind) -> tuple[dict[str, Any], Stored]:
    """The record and the state of a file.

    Raises:
        ValueError: The file is not one of these; says what it is.
        FileNotFoundError: There is no such file.
    """
    with _opened(path) as file:
        return _contents(_head(path, file, kind), file)


def _require_kind(path: str | os.PathLike, kind: Kind) -> None:
    """Raise unless a file is of this kind, judged by its head.

    Raises:
        ValueError: It is not; says what it is.
    """
    with _opened(path) as file:
        _head(path, file, kind)


@contextlib.contextmanager
def _opened(path: str | os.PathLike) -> Iterator[Any]:
    """The arrays of a file.

    Raises:
        ValueError: It is no archive of arrays, or is damaged; says what it is.
    """
    require_plain(Path(path))
    with open(path, "rb") as file:
        begin = file.read(512)
    if not begin:
        raise ValueError(f"{path} is empty.")
    if not (begin.startswith(_ARCHIVE) and zipfile.is_zipfile(path)):
        raise ValueError(f"{path} is {_description(begin)}.")
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            yield file
    except _AnotherFileError as error:
        raise ValueError(str(error)) from error.__cause__
    except Exception as error:
        # NumPy's own words would advise to unpickle it.
        what = type(error).__name__
        raise ValueError(f"{path} is damaged: reading it gives {what}.") from error


class _AnotherFileError(ValueError):
    """An archive of arrays, but not one of these."""


def _description(begin: bytes) -> str:
    """The kind of a file that is not even an archive of arrays."""
    if begin.startswith(_ARCHIVE):
        return "truncated: its end is missing, as of a copy that was interrupted"
    found = [what for mark, what in _OTHERS.items() if begin.startswith(mark)]
    if not found:
        try:
            codecs.getincrementaldecoder("utf-8")().decode(begin)
            found = ["a text file" if b"\0" not in begin else "a binary file"]
        except UnicodeDecodeError:
            found = ["a binary file"]
    return (
        f"{found[0]}, and not a file that Fit.save or sample(checkpoint=) has written"
    )


def _head(path: str | os.PathLike, file: Any, kind: Kind) -> dict[str, Any]:
    """The description of the arrays of a file."""
    if "head" not in file:
        raise _AnotherFileError(
            f"{path} holds the arrays {file.files[:5]}, and is not a file that "
            f"{_WRITERS[kind]} has written."
        )
    try:
        head = json.loads(str(file["head"]))
        version, found = head["format"], head.get("kind", "fit")
    except (ValueError, TypeError, AttributeError) as error:
        raise _AnotherFileError(
            f"{path} has an array 'head' of its own, and is not a file that "
            f"{_WRITERS[kind]} has written."
        ) from error
    if version != _FORMAT:
        raise _AnotherFileError(
            f"{path} has format {version}; this version reads {_FORMAT}."
        )
    if found != kind:
        raise _AnotherFileError(
            f"{path} was written by {_WRITERS.get(found, found)}, and not by "
            f"{_WRITERS[kind]}."
        )
    return head


def _contents(head: dict[str, Any], file: Any) -> tuple[dict[str, Any], Stored]:
    def take(name: str):
        value = file[name]
        match head["views"].get(name):
            case ["key", kind]:
                return random.wrap_key_data(jnp.asarray(value), impl=kind)
            case ["dtype", kind]:
                return value.view(jnp.dtype(kind))
        return value

    leaves = [take(f"leaf {i}") for i in range(head["leaves"])]
    record = dict(head["plain"])
    for name, keys in head["names"].items():
        record[name] = {key: take(f"{name} {key}") for key in keys}
    parts = {"head", *(f"leaf {i}" for i in range(head["leaves"]))}
    parts |= {f"{n} {key}" for n, keys in head["names"].items() for key in keys}
    record |= {name: take(name) for name in file.files if name not in parts}
    return record, Stored(leaves, head["structure"])


def restored(state: Any, fresh: Any, refusal: str) -> Any:
    """A state, put into the tree of a newly made one.

    Args:
        state: A state or :class:`Stored`.
        fresh: State with which the same optimiser or sampler starts, or its shapes.
        refusal: Error message, with ``{}`` for what differs.

    Raises:
        ValueError: They are not the same; says what differs.
    """
    stored = as_stored(state)
    leaves, structure = jax.tree_util.tree_flatten_with_path(fresh)
    if stored.structure != str(structure):
        differs = f"its state is {stored.structure}, and should be {structure}"
        raise ValueError(refusal.format(differs))
    for leaf, (path, expected) in zip(stored.leaves, leaves):
        came, wanted = _shape_and_dtype(leaf), _shape_and_dtype(expected)
        if came != wanted:
            name = jax.tree_util.keystr(path)
            differs = f"state{name} is {came}, and should be {wanted}"
            raise ValueError(refusal.format(differs))
    return structure.unflatten(stored.leaves)


def _shape_and_dtype(leaf) -> str:
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    return f"{leaf.dtype}{list(leaf.shape)}"
