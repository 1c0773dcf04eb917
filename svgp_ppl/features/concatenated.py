"""Features of several kinds for one process, such as values and derivatives."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl.features.interface import LinearFunctional
from svgp_ppl.kernels import Kernel
from svgp_ppl.pytrees import register_dataclass

__all__ = ["Concatenated"]


@register_dataclass
@dataclass(frozen=True)
class Concatenated(LinearFunctional):
    """The features of all parts, one after the other.

    ``f(features)`` has the values of all of them, but takes no ``chunk_size``; data of
    several kinds may also be separate ``observe`` sites.

    Attributes:
        parts: Linear functionals: ``Points``, ``Derivative``, ``Integral``.

    Example:
        >>> import jax.numpy as jnp
        >>> import svgp_ppl as gp
        >>> z = jnp.linspace(0.0, 1.0, 4)[:, None]
        >>> parts = (gp.features.Points(z), gp.features.Derivative(z))
        >>> len(gp.features.Concatenated(parts))
        8
    """

    parts: Any

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def of(self, function: Callable[[Array], Array]) -> Float[Array, "*K M"]:
        """ℒ g of the first part, then of the second, and so on."""
        return jnp.concatenate([part.of(function) for part in self.parts], axis=-1)

    def checked(self, what: str) -> "Concatenated":
        """The same with all parts checked.

        Raises:
            ValueError: There is no part, or one is not a linear functional.
        """
        is_sequence = isinstance(self.parts, Sequence) and len(self.parts)
        if not is_sequence or not all(
            isinstance(part, LinearFunctional) for part in self.parts
        ):
            raise ValueError(
                f"{what} are Concatenated, whose parts must be a tuple of Points, "
                f"Derivative and Integral, and are {self.parts!r}: write an array z "
                "as Points(z)."
            )
        return Concatenated(tuple(part.checked(what) for part in self.parts))

    def require_kernel(self, kernel: Kernel, what: str) -> None:
        """Raise a ``ValueError`` if a part does not exist for this kernel."""
        for part in self.parts:
            part.require_kernel(kernel, what)

    def variance(self, kernel: Kernel) -> Float[Array, " M"]:
        """Variances of every part."""
        return jnp.concatenate([part.variance(kernel) for part in self.parts])

    def k_uu(self, kernel: Kernel) -> Float[Array, "M M"]:
        """The matrix of every part on the diagonal, with the white noise of points."""
        matrix, start = super().k_uu(kernel), 0
        for part in self.parts:
            block = slice(start, start + len(part))
            matrix, start = matrix.at[block, block].set(part.k_uu(kernel)), block.stop
        return matrix
