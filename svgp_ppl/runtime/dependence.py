"""Which inputs the outputs of traced operations depend on."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Jaxpr, Literal

__all__ = ["inputs_read", "lengths_indexed", "outputs_zero"]


def inputs_read(jaxpr: Jaxpr, first: int | None = None) -> list[bool]:
    """Whether an output depends on each of the inputs.

    What nobody uses does not count; of an operation with operations of its own, such as
    a loop, all outputs depend on all inputs.

    Args:
        jaxpr: The operations.
        first: So many outputs, in place of all.
    """
    needed = {v for v in jaxpr.outvars[:first] if not isinstance(v, Literal)}
    for equation in reversed(jaxpr.eqns):
        if any(v in needed for v in equation.outvars):
            needed |= {v for v in equation.invars if not isinstance(v, Literal)}
    return [v in needed for v in jaxpr.invars]


def outputs_zero(jaxpr: Jaxpr) -> list[bool]:
    """Whether each output is the number 0, or an array of it, as it was traced."""
    made = {v: equation for equation in jaxpr.eqns for v in equation.outvars}

    def is_zero(v: Any) -> bool:
        if isinstance(v, Literal):
            return bool(v.val == 0)
        equation = made.get(v)
        if equation is None or equation.primitive.name != "broadcast_in_dim":
            return False
        return is_zero(equation.invars[0])

    return [is_zero(v) for v in jaxpr.outvars]


def lengths_indexed(jaxpr: Jaxpr) -> set[int]:
    """Lengths of the axes that the first input indexes, in arrays not made of others.

    What has been indexed is no index itself: of ``a[b[i]]``, i indexes b alone.
    """
    first, *others = jaxpr.invars
    found: set[int] = set()
    _follow(jaxpr, {first}, set(others), found)
    return found


def _follow(jaxpr: Any, indices: set, others: set, found: set[int]) -> None:
    """Add what the operations compute of indices and of others to these sets."""

    def any_of(known: set, variables: Iterable[Any]) -> bool:
        return any(not isinstance(v, Literal) and v in known for v in variables)

    for operation in jaxpr.eqns:
        given, made = operation.invars, operation.outvars
        inner = getattr(operation.params.get("jaxpr"), "jaxpr", None)
        if inner is not None and len(inner.invars) == len(given):  # a compiled function
            own_indices, own_others = (
                {own for own, v in zip(inner.invars, given) if any_of(known, [v])}
                for known in (indices, others)
            )
            _follow(inner, own_indices, own_others, found)
            for known, own in ((indices, own_indices), (others, own_others)):
                results = zip(made, inner.outvars)
                known |= {v for v, result in results if any_of(own, [result])}
            continue
        if any_of(others, given):
            others |= set(made)
        if operation.primitive.name == "gather":
            array, index = given
            if any_of(indices, [index]) and not any_of(others, [array]):
                axes = operation.params["dimension_numbers"].start_index_map
                found |= {array.aval.shape[axis] for axis in axes}
        elif any_of(indices, given):
            indices |= {v for v in made if jnp.issubdtype(v.aval.dtype, jnp.integer)}
