"""Chains side by side: in threads, or vectorised in one program."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, get_args

import jax

from svgp_ppl.mcmc.samplers.sampler import tunes_together

__all__ = ["ChainMethod", "chain_method_of", "side_by_side"]

ChainMethod = Literal["parallel", "vectorized"]


def chain_method_of(
    method: ChainMethod | None, sampler: Any, arrays: Any
) -> ChainMethod:
    """The method asked for; by default ``"parallel"`` if possible, on a CPU.

    Args:
        method: The method asked for, or None.
        sampler: The sampler.
        arrays: Positions and data.

    Raises:
        ValueError: There is no such method, or chains cannot be run in parallel here.
    """
    if method not in (None, *get_args(ChainMethod)):
        raise ValueError(
            f"chain_method must be one of {get_args(ChainMethod)}, and is {method!r}."
        )
    devices = _devices(arrays)
    together = tunes_together(sampler)
    if method == "parallel":
        if together:
            raise ValueError(
                f"{type(sampler).__name__} tunes on all chains together, which have to "
                'be one program: drop chain_method="parallel".'
            )
        if len(devices) > 1:
            raise ValueError(
                f"the data are on {len(devices)} devices, which can run one program at "
                'a time: drop chain_method="parallel".'
            )
    if method is not None:
        return method
    on_one_cpu = [device.platform for device in devices] == ["cpu"]
    return "parallel" if on_one_cpu and not together else "vectorized"


def _devices(arrays: Any) -> list:
    """Devices of arrays, and of those that are not yet on any."""
    found = set()
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.Array):
            found |= leaf.devices()
    return list(found) or jax.devices()[:1]


@contextmanager
def side_by_side(number: int) -> Iterator[Callable[[list[Callable]], list]]:
    """A function that runs ``number`` calls at once, as far as there are cores.

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

    with ThreadPoolExecutor(min(number, _num_cores()), "chain") as threads:

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
