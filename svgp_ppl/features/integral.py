"""Integrals of f, as sums over weighted points: binned and areal data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from svgp_ppl.checks import checked_inputs, data_array, require_finite
from svgp_ppl.features.interface import LinearFunctional
from svgp_ppl.pytrees import register_dataclass

__all__ = ["Integral"]


@register_dataclass
@dataclass(frozen=True)
class Integral(LinearFunctional):
    """Σ_j w_nj f(x_nj): the integral of f against J weighted points in each row.

    ``integral`` and ``average`` make them for boxes. Areas of any shape, or with
    weights such as population, are grid points inside each, padded with points of
    weight 0 if their numbers differ.

    Attributes:
        x: Points, [N, J, D].
        weights: [N, J].
    """

    x: Any
    weights: Any

    def __len__(self) -> int:
        return len(self.x)

    def of(self, function: Callable[[Array], Array]) -> Float[Array, "*K N"]:
        """Σ_j w_nj g(x_nj)."""
        rows, number, width = self.x.shape
        values = function(self.x.reshape(rows * number, width))
        values = values.reshape(*values.shape[:-1], rows, number)
        return jnp.sum(self.weights * values, axis=-1)

    def checked(self, what: str) -> "Integral":
        """The same with floating point arrays.

        Raises:
            ValueError: They are not finite [N, J, D] and [N, J].
        """
        shape, weights = np.shape(self.x), data_array(self.weights, what)
        if len(shape) != 3 or np.shape(weights) != shape[:2]:
            raise ValueError(
                f"{what} are integrals, whose points must have shape [N, J, D] and "
                f"whose weights [N, J], and have {shape} and {np.shape(weights)}."
            )
        flat = checked_inputs(jnp.reshape(self.x, (-1, shape[2])), what)
        require_finite(weights, f"the weights of {what}")
        return Integral(flat.reshape(shape), jnp.asarray(weights, flat.dtype))
