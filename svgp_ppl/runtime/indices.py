"""Rows that a model takes from beyond the end of an array, in its traced operations.

JAX takes the last row in place of one beyond the end, without a word: ``b[3]`` of three
values is ``b[2]``. With codes of groups that do not count from 0, or new ones in a
prediction, the last group would lend its value to others.
"""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.lax import GatherScatterMode

__all__ = ["warn_of_rows_beyond"]

_UNKNOWN = object()


class _Beyond(NamedTuple):
    """An axis of ``size``, and the index farthest from it."""

    index: int
    size: int
    shape: tuple[int, ...]


def warn_of_rows_beyond(traced: Any) -> None:
    """Warn of ``array[indices]`` with indices that are known and that it has not.

    What asks for it, ``jnp.take`` or ``array.at[indices].get(mode="clip")``, is not
    looked at.

    Args:
        traced: What ``jax.make_jaxpr`` gives; its constants are known, its arguments
            are not.
    """
    for index, size, shape in _found_in(traced):
        taken = 0 if index < 0 else size - 1
        warnings.warn(
            f"the model takes row {index} of an axis of {size}, of an array of shape "
            f"{shape}: there is none, and JAX takes row {taken} in its place. Do the "
            "levels of a group count from 0, and are there new ones? An array needs a "
            f"row for each; .at[...].get(mode='clip') takes row {taken} on purpose.",
            stacklevel=2,
        )


def _found_in(traced: Any) -> set[_Beyond]:
    values = _Values(traced)
    found = set()
    for operation in traced.jaxpr.eqns:
        mode = operation.params.get("mode")
        # That of array[indices]; jnp.take and vmap have others.
        is_plain = mode is GatherScatterMode.PROMISE_IN_BOUNDS
        if operation.primitive.name != "gather" or not is_plain:
            continue
        array, indices = operation.invars
        known = values.of(indices)
        if known is _UNKNOWN:
            continue
        shape, sizes = array.aval.shape, operation.params["slice_sizes"]
        axes = operation.params["dimension_numbers"].start_index_map
        for axis, of_axis in zip(axes, np.moveaxis(np.asarray(known), -1, 0)):
            size = shape[axis]
            for index in (np.min(of_axis, initial=0), np.max(of_axis, initial=0)):
                if not 0 <= index <= size - sizes[axis]:
                    found.add(_Beyond(int(index), size, shape))
    return found


class _Values:
    """Whole numbers among traced operations that do not depend on their arguments."""

    def __init__(self, traced: Any):
        self._known = dict(zip(traced.jaxpr.constvars, traced.consts))
        self._known |= dict.fromkeys(traced.jaxpr.invars, _UNKNOWN)
        self._made_by = {v: e for e in traced.jaxpr.eqns for v in e.outvars}

    def of(self, variable: Any) -> Any:
        """The value, or ``_UNKNOWN``."""
        if hasattr(variable, "val"):  # a literal
            return variable.val
        if variable not in self._known:
            self._compute(self._made_by[variable])
        value = self._known[variable]
        return _UNKNOWN if isinstance(value, Tracer) else value

    def _compute(self, operation: Any) -> None:
        results: Any = [_UNKNOWN] * len(operation.outvars)
        given = [_UNKNOWN]
        # What makes an index is cheap; a distance, say, may not be.
        if all(map(_is_whole, operation.outvars)):
            given = [self.of(variable) for variable in operation.invars]
        if not any(value is _UNKNOWN for value in given):
            primitive = operation.primitive
            options = primitive.get_bind_params(operation.params)
            with jax.ensure_compile_time_eval():
                results = primitive.bind(*given, **options)
            results = results if primitive.multiple_results else [results]
        self._known |= dict(zip(operation.outvars, results))


def _is_whole(variable: Any) -> bool:
    dtype = variable.aval.dtype
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.integer, jnp.bool_))
