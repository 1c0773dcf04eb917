"""Progress of long work: a bar if it can be seen, otherwise a few plain lines."""

import sys
import time
from typing import Any, Protocol, runtime_checkable

from tqdm.auto import tqdm

__all__ = ["Progress", "progress_bar"]

# Lines that a run writes to a file, besides the first one.
_NUM_LINES = 10


@runtime_checkable
class Progress(Protocol):
    """Progress reports of a loop; the part of tqdm's interface that is used."""

    def update(self, n: int) -> Any:
        """Record that ``n`` more steps are done."""
        ...

    def set_postfix_str(self, s: str) -> Any:
        """Set the text about the last of them."""
        ...

    def reset(self) -> Any:
        """Start the clock now."""
        ...

    def close(self) -> Any:
        """End the report: the work is done."""
        ...


def progress_bar(total: int, what: str, show: bool) -> Progress:
    """Progress of ``total`` steps of ``what``.

    Args:
        total: Number of steps.
        what: A word for the work.
        show: Whether to show anything.
    """
    is_seen = sys.stderr.isatty() or "ipykernel" in sys.modules
    if not show or is_seen:
        return tqdm(total=total, desc=what, disable=not show)
    return _Lines(total, what)


class _Lines:
    """About ten plain lines, for logs and pipes."""

    def __init__(self, total: int, what: str):
        self._total, self._what = total, what
        self._done, self._told, self._words, self._is_new = 0, 0, "", False
        self._began = time.monotonic()

    def set_postfix_str(self, s: str) -> None:
        self._words, self._is_new = s, True
        if s == "compiling":
            self._tell()

    def update(self, n: int) -> None:
        self._done += n
        tenths = self._done * _NUM_LINES // self._total
        if tenths > self._told:
            self._told = tenths
            self._tell()

    def reset(self) -> None:
        self._began = time.monotonic()

    def close(self) -> None:
        if self._is_new:
            self._tell()

    def _tell(self) -> None:
        seconds = time.monotonic() - self._began
        line = (
            f"{self._what} {self._done}/{self._total} [{seconds:.0f} s] {self._words}"
        )
        print(line, file=sys.stderr, flush=True)
        self._is_new = False
