"""Pairs of rows: every one of x with every one of y, or row by row.

A kernel writes its formula once, in terms of the squared distance, inner product or
differences of a pair; the kind of pairs decides whether that gives [N, M] or [N].
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from svgp_ppl import linalg

__all__ = ["AllPairs", "Pairs", "RowPairs"]


class Pairs(abc.ABC):
    """Pairs (x_n, y_m); ``*pairs`` below is [N, M] or [N]."""

    x: Array

    @abc.abstractmethod
    def map(self, function: Callable[[Array], Array]) -> "Pairs":
        """The same pairs after ``function`` ([N, D] to [N, D']) of either side."""

    @abc.abstractmethod
    def same_row(self) -> Bool[Array, "*pairs"]:
        """Whether the two are one row of one array: by position, not by value."""

    @abc.abstractmethod
    def squared_distance(self, lengthscale: Array | float = 1.0) -> Array:
        """Σ_d ((x_d − y_d) / ℓ_d)², ``*pairs``."""

    @abc.abstractmethod
    def inner_product(self, weights: Array | float = 1.0) -> Float[Array, "*pairs"]:
        """Σ_d w_d x_d y_d."""

    @abc.abstractmethod
    def difference(self) -> Float[Array, "*pairs D"]:
        """The columns of x − y."""

    @abc.abstractmethod
    def apply(self, function: Callable[[Array, Array], Array]) -> Array:
        """``function`` of the two points [D] of every pair."""


@dataclass(frozen=True)
class AllPairs(Pairs):
    """Every row of x with every row of y, values [N, M]; without y, of x with x."""

    x: Float[Array, "N D"]
    y: Float[Array, "M D"] | None = None

    @property
    def _other(self) -> Array:
        return self.x if self.y is None else self.y

    def map(self, function: Callable[[Array], Array]) -> "AllPairs":
        """The same pairs after ``function`` of either side, once if y is x."""
        y = None if self.y is None else function(self.y)
        return AllPairs(function(self.x), y)

    def same_row(self) -> Bool[Array, "N M"]:
        """The identity where y is x, else nowhere: [N, M]."""
        shape = (len(self.x), len(self._other))
        return jnp.eye(*shape, dtype=bool) if self.y is None else jnp.zeros(shape, bool)

    def squared_distance(self, lengthscale: Array | float = 1.0) -> Float[Array, "N M"]:
        """‖x_n − y_m‖², [N, M]."""
        squares = linalg.squared_distance(self.x, self._other, lengthscale)
        if self.y is not None:
            return squares
        # The matrix product leaves rounding on the diagonal, whose root would not be
        # small: 3e-4 in float32.
        return jnp.where(self.same_row(), 0.0, squares)

    def inner_product(self, weights: Array | float = 1.0) -> Float[Array, "N M"]:
        """Σ_d w_d x_nd y_md, [N, M]."""
        return linalg.inner_product(weights * self.x, self._other)

    def difference(self) -> Float[Array, "N M D"]:
        """The columns of x_n − y_m, [N, M, D]."""
        return self.x[:, None, :] - self._other[None, :, :]

    def apply(self, function: Callable[[Array, Array], Array]) -> Array:
        """``function(x_n, y_m)``, [N, M]."""
        return jax.vmap(lambda a: jax.vmap(lambda b: function(a, b))(self._other))(
            self.x
        )


@dataclass(frozen=True)
class RowPairs(Pairs):
    """Row n of x with row n of y, values [N]; the two are different arrays."""

    x: Float[Array, "N D"]
    y: Float[Array, "N D"]

    def map(self, function: Callable[[Array], Array]) -> "RowPairs":
        """The same pairs after ``function`` of either side."""
        return RowPairs(function(self.x), function(self.y))

    def same_row(self) -> Bool[Array, " N"]:
        """Nowhere: [N]."""
        return jnp.zeros(len(self.x), bool)

    def squared_distance(self, lengthscale: Array | float = 1.0) -> Float[Array, " N"]:
        """Σ_d ((x_nd − y_nd) / ℓ_d)², [N]."""
        return jnp.sum(jnp.square((self.x - self.y) / lengthscale), axis=-1)

    def inner_product(self, weights: Array | float = 1.0) -> Float[Array, " N"]:
        """Σ_d w_d x_nd y_nd, [N]."""
        return jnp.sum(weights * self.x * self.y, axis=-1)

    def difference(self) -> Float[Array, "N D"]:
        """The columns of x_n − y_n, [N, D]."""
        return self.x - self.y

    def apply(self, function: Callable[[Array, Array], Array]) -> Array:
        """``function(x_n, y_n)``, [N]."""
        return jax.vmap(function)(self.x, self.y)
