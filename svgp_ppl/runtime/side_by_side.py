"""Calls of compiled programs at once, each in a thread of its own."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax

__all__ = ["devices_of", "on_one_cpu", "side_by_side"]


@contextmanager
def side_by_side(number: int) -> Iterator[Callable[[list[Callable]], list]]:
    """A function that makes ``number`` calls at once, as far as there are cores.

    Compiled programs run outside Python's lock. An error or an interrupt cancels calls
    that have not begun, and waits for those that have.
    """
    if number == 1:
        yield lambda calls: [call() for call in calls]
        return
    config: Any = jax.config
    is_double = config.jax_enable_x64

    def as_here(call: Callable) -> Any:
        # Callbacks of a program need the precision, which belongs to a thread.
        with jax.enable_x64(is_double):
            return call()

    with ThreadPoolExecutor(min(number, _num_cores()), "thread") as threads:

        def run(calls: list[Callable]) -> list:
            futures = [threads.submit(as_here, call) for call in calls]
            try:
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()

        yield run


def _num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def on_one_cpu(arrays: Any) -> bool:
    """Whether programs of these arrays can run at once, each in a thread of its own."""
    return [device.platform for device in devices_of(arrays)] == ["cpu"]


def devices_of(arrays: Any) -> list:
    """Devices of arrays, and of those that are not yet on any."""
    found = set()
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.Array):
            found |= leaf.devices()
    return list(found) or jax.devices()[:1]
