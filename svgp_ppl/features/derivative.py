"""Derivatives of f along a column: gradients as data, and inducing derivatives."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from svgp_ppl.checks import checked_inputs
from svgp_ppl.features.interface import LinearFunctional
from svgp_ppl.kernels import ArcCosine, Kernel, Matern12, TinygpKernel, White
from svgp_ppl.pytrees import register_dataclass

__all__ = ["Derivative"]


@register_dataclass
@dataclass(frozen=True)
class Derivative(LinearFunctional):
    """∂f(x_n) / ∂x_nd, with Cov(∂f(x), f(x')) = ∂k(x, x') / ∂x_d and so on.

    By automatic differentiation of any kernel: Rasmussen & Williams (2006), equation
    9.1; as inducing features, Lázaro-Gredilla & Figueiras-Vidal (2009). The functions
    of the kernel must have a derivative: not ``Matern12``, ``White`` or ``ArcCosine``
    of order 0; nor, of several columns, a Matérn kernel of tinygp.

    Attributes:
        x: Inputs, [N, D].
        column: d, the column of the derivative.

    Example:
        >>> import svgp_ppl as gp
        >>> def model(x, y, slope):
        ...     f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), x)
        ...     with numpyro.plate("values", len(x)):
        ...         gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)
        ...     slopes = f(gp.features.Derivative(x))
        ...     with numpyro.plate("slopes", len(x)):
        ...         gp.observe("dy", gp.likelihoods.Gaussian(0.1), slopes, obs=slope)
    """

    x: Any
    column: int = field(default=0, metadata={"static": True})

    def __len__(self) -> int:
        return len(self.x)

    def of(self, function: Callable[[Array], Array]) -> Float[Array, "*K N"]:
        """∂g(x_n) / ∂x_nd: rows do not interact, so one tangent serves for all."""
        along = jnp.zeros_like(self.x).at[:, self.column].set(1.0)
        return jax.jvp(function, (self.x,), (along,))[1]

    def checked(self, what: str) -> "Derivative":
        """The same with x a floating point array [N, D].

        Raises:
            ValueError: ``x`` is not a finite [N, D], or has no such column.
        """
        x = checked_inputs(self.x, what)
        is_column = isinstance(self.column, int | np.integer) and (
            not isinstance(self.column, bool) and 0 <= self.column < x.shape[1]
        )
        if not is_column:
            raise ValueError(
                f"{what} are derivatives along column {self.column!r}, and x has the "
                f"columns 0 to {x.shape[1] - 1}: Derivative(x, column=0)."
            )
        return Derivative(x, int(self.column))

    def require_kernel(self, kernel: Kernel, what: str) -> None:
        """Refuse kernels of functions without a derivative."""
        for part in _parts(kernel):
            is_step = isinstance(part, ArcCosine) and part.order == 0
            if is_step or isinstance(part, Matern12 | White):
                raise ValueError(
                    f"{what} are derivatives, which functions of the kernel "
                    f"{type(part).__name__} do not have. Kernels with a derivative are "
                    "RBF, RationalQuadratic, Matern32 and Matern52; noise belongs in "
                    "the likelihood."
                )
            if isinstance(part, TinygpKernel):
                _require_smooth(part, self.x.shape[1], what)


def _require_smooth(kernel: TinygpKernel, width: int, what: str) -> None:
    if not kernel.has_derivatives(width):
        raise ValueError(
            f"{what} are derivatives, which {type(kernel.kernel).__name__} of tinygp "
            f"does not give for x of {width} column(s): Exp has none, and of several "
            "columns only kernels of the square of L2Distance have them. Use RBF, "
            "RationalQuadratic, Matern32 or Matern52 of gp.kernels."
        )


def _parts(kernel: Any) -> list[Any]:
    """A kernel and the kernels that it is made of."""
    if not isinstance(kernel, Kernel):
        return []
    values = [getattr(kernel, part.name) for part in dataclasses.fields(kernel)]
    return [kernel, *(part for value in values for part in _parts(value))]
