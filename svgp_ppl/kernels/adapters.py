"""Covariance functions from elsewhere: plain functions and tinygp kernels."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl.kernels.kernel import Kernel, Value
from svgp_ppl.kernels.pairs import Pairs
from svgp_ppl.pytrees import register_dataclass

__all__ = ["FunctionKernel", "TinygpKernel", "as_kernel"]


@register_dataclass
@dataclass(frozen=True)
class FunctionKernel(Kernel):
    """function(x, x') of two points [D], a number.

    Attributes:
        function: May close over sampled values. It is a static part of the pytree, so
            values that vary under ``jit`` or ``vmap`` belong in a dataclass instead.
    """

    function: Callable[..., Any] = field(metadata={"static": True})

    def _evaluate(self, pairs: Pairs) -> Array:
        return pairs.apply(self._checked)

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return jax.vmap(lambda point: self._checked(point, point))(x)

    def _checked(self, a: Float[Array, " D"], b: Float[Array, " D"]) -> Array:
        value = jnp.asarray(self.function(a, b))
        if value.ndim != 0:
            raise ValueError(
                "expected one number from the covariance function of two points of "
                f"shape {a.shape}, got shape {value.shape}: sum over the columns"
            )
        return value


@register_dataclass
@dataclass(frozen=True)
class TinygpKernel(Kernel):
    """A tinygp kernel, unchanged; its values are leaves of the pytree."""

    kernel: Value

    def _evaluate(self, pairs: Pairs) -> Array:
        # tinygp's own constants are NumPy numbers, of double precision.
        return pairs.apply(self.kernel.evaluate).astype(pairs.x.dtype)

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return self.kernel(x).astype(x.dtype)

    def has_derivatives(self, width: int) -> bool:
        """Whether second derivatives at coincident points [width] are those of k.

        Not of ``Exp``; nor, of two columns or more, where a kernel takes a distance and
        not its square: where points coincide, that of tinygp has the slope of the sum
        of absolute differences.
        """
        tinygp: Any = sys.modules["tinygp"]
        base, rough = tinygp.kernels.Distance, tinygp.kernels.Exp
        parts = jax.tree.leaves(self.kernel, is_leaf=lambda k: isinstance(k, rough))
        if any(isinstance(part, rough) for part in parts):
            return False
        widths: list[int] = []

        class Noted(base):
            of: Any

            def distance(self, X1, X2):
                widths.append(jnp.size(X1))
                return self.of.distance(X1, X2)

            def squared_distance(self, X1, X2):
                # By its own definition, which may take the distance.
                return type(self.of).squared_distance(self, X1, X2)

        kernel = jax.tree.map(
            lambda node: Noted(node) if isinstance(node, base) else node,
            self.kernel,
            is_leaf=lambda node: isinstance(node, base),
        )
        columns = self.active_columns
        point = jnp.zeros(width if columns is None else len(columns))
        jax.eval_shape(lambda: kernel.evaluate(point, point))
        return all(width == 1 for width in widths)


def as_kernel(covariance: Any) -> Kernel:
    """Make a :class:`Kernel` of a kernel, a tinygp kernel or a function of two points.

    Args:
        covariance: A Kernel (returned as it is), a tinygp kernel, or a function
            k(x, x') of two points of shape [D] that returns one number.

    Raises:
        ValueError: If it is none of these.

    Example:
        >>> def exponential(a, b):
        ...     return jnp.exp(-jnp.sum(jnp.abs(a - b)))
        >>> kernel = gp.kernels.as_kernel(exponential)
        >>> kernel.diagonal(jnp.zeros((3, 2))).shape
        (3,)
    """
    if isinstance(covariance, Kernel):
        return covariance
    # A tinygp kernel exists only where tinygp has been imported.
    tinygp = sys.modules.get("tinygp")
    if tinygp is not None and isinstance(covariance, tinygp.kernels.Kernel):
        return TinygpKernel(covariance)
    if callable(covariance) and not isinstance(covariance, type):
        return FunctionKernel(covariance)
    advice = "a class needs its values, as in RBF(variance, lengthscale)"
    if isinstance(covariance, list | tuple):
        advice = "write a process for each kernel, and gp.stack([f(x), g(x)])"
    raise ValueError(
        "expected a kernel, a tinygp kernel, or a function k(x, x') of two points, got "
        f"{covariance!r}: {advice}"
    )
