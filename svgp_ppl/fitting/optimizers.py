"""What an optimiser is given at each step: NumPyro gives it the gradient and the value.

Optimisers that search along a line, above all ``optax.lbfgs``, evaluate the bound
themselves. Here they are given it, as optax's ``value_fn``.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from svgp_ppl.handlers import NumPyroOptimizer

__all__ = ["Informed", "as_numpyro", "is_optax", "searches"]


class Informed(NumPyroOptimizer):
    """An optax transformation that is given value, gradient and the bound itself.

    For ``numpyro.infer.SVI``. Its state is that of NumPyro's own wrapper of optax.
    """

    def __init__(self, transformation: optax.GradientTransformation):
        self.transformation = optax.with_extra_args_support(transformation)

    def init(self, params: Any) -> Any:
        """Step number, and the parameters with the state of the transformation."""
        return jnp.array(0), (params, self.transformation.init(params))

    def get_params(self, state: Any) -> Any:
        """The unconstrained parameters."""
        return state[1][0]

    def eval_and_update(
        self, fn: Callable, state: Any, forward_mode_differentiation: bool = False
    ) -> Any:
        """One step on ``fn``, params -> (loss, auxiliary values)."""
        count, (params, inner) = state
        if forward_mode_differentiation:
            raise ValueError(
                "an optimiser of optax is given gradients by reverse mode only: use "
                "one of numpyro.optim for forward_mode_differentiation=True."
            )
        (value, aux), grad = jax.value_and_grad(fn, has_aux=True)(params)
        updates, inner = self.transformation.update(
            grad, inner, params, value=value, grad=grad, value_fn=lambda p: fn(p)[0]
        )
        params = optax.apply_updates(params, updates)
        return (value, aux), (count + 1, (params, inner))


def is_optax(optimizer: Any) -> bool:
    """Whether an optimiser is a transformation of optax (others are NumPyro's)."""
    return isinstance(optimizer, optax.GradientTransformation)


def as_numpyro(optimizer: Any) -> Any:
    """An optimiser as ``numpyro.infer.SVI`` takes it."""
    return Informed(optimizer) if is_optax(optimizer) else optimizer


def searches(transformation: optax.GradientTransformation, params: Any) -> bool:
    """Whether a transformation evaluates the bound itself, found by trying it."""
    asked = []

    def value_fn(params):
        asked.append(True)
        return sum(map(jnp.sum, jax.tree.leaves(params)), jnp.zeros(()))

    def update(params):
        informed = optax.with_extra_args_support(transformation)
        return informed.update(
            params,
            informed.init(params),
            params,
            value=value_fn(params),
            grad=params,
            value_fn=value_fn,
        )

    jax.eval_shape(update, params)
    return len(asked) > 1  # once is our own call
