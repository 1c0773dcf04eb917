"""How many threads LAPACK has on a CPU."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

__all__ = ["single_threaded_lapack"]


@contextmanager
def single_threaded_lapack() -> Iterator[None]:
    """One thread for LAPACK while the context lasts, in all threads.

    On a CPU, JAX's Cholesky and triangular solves run in an OpenBLAS whose threads
    compete with XLA's own; one thread there is faster. ``fit`` and ``sample`` use it
    while they run.

    Example:
        >>> with gp.linalg.single_threaded_lapack():
        ...     factor = jnp.linalg.cholesky(jnp.eye(3))
    """
    _one_thread.enter()
    try:
        yield
    finally:
        _one_thread.leave()


class _OneThread:
    """A setting of the process: the first user makes it, the last one undoes it."""

    def __init__(self):
        self._lock, self._users = threading.Lock(), 0
        self._limits: threadpool_limits | None = None

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._limits is None:
                self._limits = threadpool_limits(limits=1, user_api="blas")

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._limits is not None:
                self._limits.restore_original_limits()
                self._limits = None


_one_thread = _OneThread()
