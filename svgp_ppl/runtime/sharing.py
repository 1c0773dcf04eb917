"""Values that several latents of a model need, computed once.

Eight outputs mixed from five processes need five projections and not forty. The
compiler does not find that by itself when derivatives are taken, and would first have
to read all forty.
"""

import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer
from jax.extend.core import take_current_trace

__all__ = ["Once"]


class Once:
    """Results by key, for as long as JAX traces the same program.

    A value of one trace means nothing in another, such as that of ``jax.checkpoint`` or
    of an inner loop: results are then forgotten. Values outside any trace are not held:
    inputs of a notebook's cells would add up.
    """

    def __init__(self):
        # One object, replaced as a whole: other threads see the old one or the new.
        self._held: tuple[Any, dict] = (None, {})

    def __call__(self, key: Any, compute: Callable[[], Any]) -> Any:
        """``compute()``, or its earlier result for this key."""
        with take_current_trace() as current:
            trace = weakref.ref(current)
        held = self._held
        if held[0] != trace:
            held = self._held = (trace, {})
        if key in held[1]:
            return held[1][key]
        value = compute()
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
            held[1][key] = value
        return value
