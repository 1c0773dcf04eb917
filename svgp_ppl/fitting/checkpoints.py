"""Fits as files: arrays and one line of JSON, no pickle.

The state of an optimiser is a tree whose shape only the optimiser knows. A file holds
its leaves and a description of the tree; they are put back into the state with which
the same optimiser starts, and compared with it.
"""

import glob
import json
import os
import tempfile
import threading
import time
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

__all__ = ["Checkpoint", "Stored", "as_stored", "read", "restored", "write"]

_FORMAT = 1
_SECONDS_BETWEEN = 30.0


class Stored(NamedTuple):
    """A state without the optimiser that could read it.

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


def write(path: str | os.PathLike, record: dict[str, Any], state: Any) -> None:
    """Write a record and a state, so that the file is always whole.

    Args:
        path: File name, used as it is.
        record: Name -> array, dict of arrays by name, or plain value.
        state: Tree of arrays, or :class:`Stored`.
    """
    stored = as_stored(state)
    head: dict[str, Any] = {"format": _FORMAT, "structure": stored.structure}
    head |= {"leaves": len(stored.leaves), "views": {}, "plain": {}, "names": {}}
    arrays = {}

    def put(name: str, value) -> None:
        value = value if hasattr(value, "dtype") else jnp.asarray(value)
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            head["views"][name] = ["key", str(random.key_impl(value))]
            value = random.key_data(value)
        value = np.asarray(value)
        if value.dtype.kind == "V":  # bfloat16 and its like: NumPy's files forget them
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

    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with open(beside, "wb") as file:
            np.savez(file, head=np.array(json.dumps(head)), **arrays)
            file.flush()
            os.fsync(file.fileno())
        require_plain(path)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def require_plain(path: Path) -> None:
    """Raise if something stands at a path that a file must not replace.

    Raises:
        ValueError: It is a folder, a device, a pipe or a socket.
    """
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "not an ordinary file"
        raise ValueError(f"{path} is {kind}: give the name of a file.")


class Checkpoint:
    """The file of a fit that goes on, written every half minute.

    Args:
        path: Its name. What a killed process left half written beside it is removed.

    Raises:
        ValueError: No file can be written there.
    """

    def __init__(self, path: str | os.PathLike):
        if not isinstance(path, str | os.PathLike):
            raise ValueError(f"checkpoint must be the name of a file, and is {path!r}.")
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise ValueError(f"checkpoint={path}: there is no such folder.")
        require_plain(self.path)
        for left in self.path.parent.glob(f".{glob.escape(self.path.name)}.*.part"):
            if not _is_alive(int(left.name.split(".")[-2].split("-")[0])):
                left.unlink(missing_ok=True)
        try:
            with tempfile.NamedTemporaryFile(dir=self.path.parent):
                pass
        except OSError as error:
            raise ValueError(
                f"checkpoint={path}: no file can be written there ({error})."
            ) from error
        self._saved = time.monotonic()

    def is_due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._saved > _SECONDS_BETWEEN

    def save(self, fit: Any) -> None:
        """Write the fit; a failure is a warning, and the fit goes on."""
        try:
            fit.save(self.path)
        except (OSError, ValueError) as error:
            warnings.warn(
                f"the checkpoint could not be written ({error}); the fit goes on, and "
                "is returned at the end: fit.save(another_path).",
                stacklevel=4,
            )
        self._saved = time.monotonic()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def read(path: str | os.PathLike) -> tuple[dict[str, Any], Stored]:
    """The record and the state of a file.

    Raises:
        ValueError: The file is not one of these; says what it is.
        FileNotFoundError: There is no such file.
    """
    require_plain(Path(path))
    if Path(path).stat().st_size == 0:
        raise ValueError(f"{path} is empty: the process that wrote it was interrupted.")
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            is_begun = file.read(4) == b"PK\x03\x04"
        what = "truncated" if is_begun else "not a file that Fit.save has written"
        raise ValueError(f"{path} is {what}.")
    try:
        with np.load(path, allow_pickle=False) as file:
            return _contents(path, file)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        raise ValueError(f"{path} is damaged: {error}.") from error


def _contents(path: str | os.PathLike, file: Any) -> tuple[dict[str, Any], Stored]:
    if "head" not in file:
        raise ValueError(
            f"{path} holds the arrays {file.files[:5]}, and is not a file that "
            "Fit.save has written."
        )
    head = json.loads(str(file["head"]))
    if head["format"] != _FORMAT:
        raise ValueError(
            f"{path} has format {head['format']}; this version reads {_FORMAT}."
        )

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


def restored(state: Any, fresh: Any) -> Any:
    """A state, put into the tree of one that has just been made.

    Args:
        state: A state or :class:`Stored`.
        fresh: State with which the same model, guide and optimiser start.

    Raises:
        ValueError: They are not the same; says what differs.
    """
    stored = as_stored(state)
    leaves, structure = jax.tree_util.tree_flatten_with_path(fresh)
    if stored.structure != str(structure):
        raise _differs(f"its state is {stored.structure}, and should be {structure}")
    taken = []
    for leaf, (path, expected) in zip(stored.leaves, leaves):
        came, wanted = _shape_and_dtype(leaf), _shape_and_dtype(expected)
        if came != wanted:
            name = jax.tree_util.keystr(path)
            raise _differs(f"state{name} is {came}, and should be {wanted}")
        taken.append(jnp.asarray(leaf))
    return structure.unflatten(taken)


def _shape_and_dtype(leaf) -> str:
    leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
    return f"{leaf.dtype}{list(leaf.shape)}"


def _differs(what: str) -> ValueError:
    return ValueError(
        "init= was fitted with another model, guide, optimiser, freeze= or precision: "
        f"{what}. To start a new optimiser from its parameters, pass "
        "init=(fit.guide, fit.params)."
    )
