"""Which inputs the outputs of traced operations depend on."""

from jax.extend.core import Jaxpr, Literal

__all__ = ["inputs_read"]


def inputs_read(jaxpr: Jaxpr) -> list[bool]:
    """Whether an output depends on each of the inputs.

    What nobody uses does not count; of an operation with operations of its own, such as
    a loop, all outputs depend on all inputs.
    """
    needed = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for equation in reversed(jaxpr.eqns):
        if any(v in needed for v in equation.outvars):
            needed |= {v for v in equation.invars if not isinstance(v, Literal)}
    return [v in needed for v in jaxpr.invars]
