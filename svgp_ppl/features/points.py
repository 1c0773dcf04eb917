"""Values of f at points: the inducing inputs z, and ordinary data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax.typing import ArrayLike
from jaxtyping import Array, Float

from svgp_ppl.checks import checked_inputs
from svgp_ppl.features.interface import (
    LinearFunctional,
)
from svgp_ppl.kernels import Kernel
from svgp_ppl.pytrees import register_dataclass

__all__ = ["Points"]


@register_dataclass
@dataclass(frozen=True)
class Points(LinearFunctional):
    """u_m = f(z_m), the meaning of an array z.

    Attributes:
        z: Inputs, [M, D].

    Example:
        >>> import jax.numpy as jnp
        >>> import svgp_ppl as gp
        >>> points = gp.features.Points(jnp.linspace(0.0, 1.0, 5)[:, None])
        >>> points.k_uf(gp.kernels.RBF(), jnp.zeros((3, 1))).shape
        (5, 3)
    """

    z: Any

    def __len__(self) -> int:
        return len(self.z)

    def of(self, function: Callable[[Array], Array]) -> Float[Array, "*K M"]:
        """g(z)."""
        return function(self.z)

    def checked(self, what: str) -> "Points":
        """The same with z a floating point array [M, D]."""
        return Points(checked_inputs(self.z, what))

    def k_uu(self, kernel: Kernel) -> Float[Array, "M M"]:
        """k(z, z), with the white noise of the kernel on its diagonal."""
        return kernel(self.z)

    def k_uf(self, kernel: Kernel, x: ArrayLike) -> Float[Array, "M N"]:
        """k(z, x) for inputs x [N, D]."""
        return kernel(self.z, x)

    def variance(self, kernel: Kernel) -> Float[Array, " M"]:
        """k(z_m, z_m)."""
        return kernel.diagonal(self.z)
