"""Which of two ways to compute something, by the platform on which it will run."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.backend import backends

__all__ = ["by_platform", "platforms"]


def platforms() -> set[str]:
    """The platforms on which this process can run programs."""
    return set(backends())


def by_platform(cpu: Callable, elsewhere: Callable, *arrays: Any) -> Any:
    """``cpu(*arrays)`` on a CPU, ``elsewhere(*arrays)`` on accelerators.

    The choice is made when a program is lowered, so that one process may have programs
    for both. If there is only a CPU it is made at once: tracing both ways takes up to
    half of the time until a first result.
    """
    if platforms() == {"cpu"}:
        return cpu(*arrays)
    return jax.lax.platform_dependent(*arrays, cpu=cpu, default=elsewhere)
