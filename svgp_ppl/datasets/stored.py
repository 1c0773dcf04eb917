"""Where data files are, and how they get there."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

__all__ = ["fetch", "stored"]


def stored(
    name: str,
    holds: str,
    source: str,
    download: Callable[[], Mapping[str, np.ndarray]] | None = None,
) -> dict[str, np.ndarray]:
    """Arrays of ``name.npz``, downloaded into the folder if they are not there.

    The folder is that of the environment variable ``SVGP_PPL_DATA``, by default
    ``~/.cache/svgp_ppl``.

    Args:
        name: The file without its ending.
        holds: Its arrays, in words, for the error.
        source: Where the data come from, for the error.
        download: Gives the arrays from the source; None if the source has no form that
            can be read without manual work.

    Raises:
        OSError: It is not in the folder and cannot be downloaded.
    """
    named = os.environ.get("SVGP_PPL_DATA")
    path = (Path(named) if named else Path.home() / ".cache/svgp_ppl") / f"{name}.npz"
    if not path.exists():
        try:
            if download is None:
                raise OSError("it cannot be read from there as it is")
            arrays: Mapping[str, Any] = download()
        except (URLError, TimeoutError, OSError) as error:
            raise OSError(
                f"'{name}' is not in {path.parent} and could not be downloaded from "
                f"{source} ({error}). Set the environment variable SVGP_PPL_DATA to a "
                f"folder with {path.name}, which holds {holds}."
            ) from error
        path.parent.mkdir(parents=True, exist_ok=True)
        # Never half written under its name: the next call would read it.
        part = path.with_name(f".{name}.{os.getpid()}.part")
        try:
            with open(part, "wb") as file:
                np.savez(file, **arrays)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    with np.load(path, allow_pickle=False) as held:
        return dict(held)


def fetch(url: str) -> str:
    """The text at an address."""
    with urlopen(url, timeout=60) as answer:
        return answer.read().decode()
