"""Kernels of the inner product xᵀx': linear maps, polynomials, wide neural networks."""

from dataclasses import dataclass, field
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from svgp_ppl.kernels.kernel import Kernel, Value, per_column, single
from svgp_ppl.kernels.pairs import Pairs
from svgp_ppl.linalg import safe_sqrt
from svgp_ppl.pytrees import register_dataclass

__all__ = ["ArcCosine", "Linear", "Polynomial"]


def _weighted(pairs: Pairs, variance: Value) -> Array:
    """Σ_d σ²_d x_d x'_d for every pair."""
    return pairs.inner_product(per_column("variance", variance, pairs.x.shape[1]))


def _weighted_square(x: Float[Array, "N D"], variance: Value) -> Array:
    """Σ_d σ²_d x_d² for every row."""
    variance = per_column("variance", variance, x.shape[1])
    return jnp.sum(variance * jnp.square(x), axis=-1)


@register_dataclass
@dataclass(frozen=True)
class Linear(Kernel):
    """Σ_d σ²_d x_d x'_d: linear functions through the origin.

    Attributes:
        variance: σ², one number or one for each active column.

    Example:
        >>> gp.kernels.Linear(1.0)(x, z).shape
        (20, 5)
    """

    variance: Value = 1.0

    def _evaluate(self, pairs: Pairs) -> Array:
        return _weighted(pairs, self.variance)

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return _weighted_square(x, self.variance)


@register_dataclass
@dataclass(frozen=True)
class Polynomial(Kernel):
    """(Σ_d σ²_d x_d x'_d + offset)^degree: polynomials of that degree.

    Attributes:
        degree: A positive integer.
        variance: σ², one number or one for each active column.
        offset: Not negative; 0 leaves the terms of highest degree only.

    Example:
        >>> gp.kernels.Polynomial()(x, z).shape
        (20, 5)
    """

    degree: int = field(default=3, metadata={"static": True})
    variance: Value = 1.0
    offset: Value = 1.0

    not_negative: ClassVar = ("offset",)

    def __post_init__(self):
        is_whole = isinstance(self.degree, int | np.integer)
        if not is_whole or isinstance(self.degree, bool) or self.degree < 1:
            raise ValueError(
                f"expected a positive integer for degree, got {self.degree!r}"
            )

    def _evaluate(self, pairs: Pairs) -> Array:
        offset = single("offset", self.offset)
        return (_weighted(pairs, self.variance) + offset) ** self.degree

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        offset = single("offset", self.offset)
        return (_weighted_square(x, self.variance) + offset) ** self.degree


@register_dataclass
@dataclass(frozen=True)
class ArcCosine(Kernel):
    """(σ²/π) (‖a‖ ‖a'‖)^order J_order(θ), θ the angle between a and a'.

    a = (√w_1 x_1, …, √w_D x_D, √b): an infinitely wide network with one layer of
    activations max(0, ·)^order. Cho & Saul (2009), equations 4 to 7:
    J_0 = π − θ, J_1 = sin θ + (π − θ) cos θ,
    J_2 = 3 sin θ cos θ + (π − θ)(1 + 2 cos² θ).

    Attributes:
        order: 0 (steps), 1 (rectified linear) or 2 (rectified quadratic).
        variance: σ².
        weight_variances: w, one number or one for each active column.
        bias_variance: b.

    Example:
        >>> gp.kernels.ArcCosine()(x, z).shape
        (20, 5)
    """

    order: int = field(default=0, metadata={"static": True})
    variance: Value = 1.0
    weight_variances: Value = 1.0
    bias_variance: Value = 1.0

    not_negative: ClassVar = ("weight_variances", "bias_variance")

    def __post_init__(self):
        if self.order not in (0, 1, 2):
            raise ValueError(f"expected 0, 1 or 2 for order, got {self.order!r}")

    def _evaluate(self, pairs: Pairs) -> Array:
        pairs = pairs.map(self._augment)
        # cos θ = 1 − r²/2 with r the distance of the unit vectors: unlike acos of the
        # normalised inner product it keeps small angles, and r = 0 exactly for θ = 0.
        squares = jnp.minimum(pairs.map(_normalise).squared_distance(), 4.0)
        cosine = 1.0 - 0.5 * squares
        # Of equal rows r may be a rounding error, and the slope of θ another over it:
        # they take no part in θ. The cosine has what derivatives see at θ = 0.
        least = (8 * jnp.finfo(squares.dtype).eps) ** 2
        squares = jnp.where(squares > least, squares, 0.0)
        sine = safe_sqrt(squares * (1.0 - 0.25 * squares))
        angle = 2 * jnp.arctan2(safe_sqrt(squares), safe_sqrt(4.0 - squares))
        variance = single("variance", self.variance) / jnp.pi
        if self.order == 0:
            return variance * (jnp.pi - angle)
        lengths = pairs.map(_length).inner_product()
        if self.order == 1:
            return variance * lengths * (sine + (jnp.pi - angle) * cosine)
        family = 3 * sine * cosine + (jnp.pi - angle) * (1 + 2 * cosine * cosine)
        return variance * lengths * lengths * family

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        # J(0) = π, π, 3π.
        squares = jnp.sum(jnp.square(self._augment(x)), axis=-1)
        ratio = 3.0 if self.order == 2 else 1.0
        return single("variance", self.variance) * ratio * squares**self.order

    def _augment(self, x: Float[Array, "N D"]) -> Float[Array, "N E"]:
        weights = per_column("weight_variances", self.weight_variances, x.shape[1])
        bias = safe_sqrt(single("bias_variance", self.bias_variance))
        bias = bias * jnp.ones((len(x), 1), x.dtype)
        return jnp.concatenate([x * safe_sqrt(weights), bias], axis=1)


def _length(a: Float[Array, "N E"]) -> Float[Array, "N 1"]:
    return safe_sqrt(jnp.sum(jnp.square(a), axis=-1, keepdims=True))


def _normalise(a: Float[Array, "N E"]) -> Float[Array, "N E"]:
    # Without a bias the origin has no direction; its length 0 decides orders 1 and 2.
    length = _length(a)
    return a / jnp.where(length > 0, length, 1.0)
