"""Products in full precision, and those that XLA does badly on a CPU.

By default accelerators multiply float32 matrices in reduced precision, which a
covariance matrix does not survive; on a CPU this changes nothing.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from svgp_ppl.linalg.platforms import by_platform

__all__ = ["column_dots", "matmul", "small_product", "weighted_sum"]

_HIGHEST = jax.lax.Precision.HIGHEST

# The program grows with their number.
_MOST_MATRICES = 32


def matmul(a: ArrayLike, b: ArrayLike) -> Array:
    """a @ b."""
    return jnp.matmul(a, b, precision=_HIGHEST)


def weighted_sum(weights: ArrayLike, values: ArrayLike) -> Array:
    """Σ_s w_s values_s over the first axis."""
    return jnp.tensordot(weights, values, axes=1, precision=_HIGHEST)


@jax.custom_jvp
def column_dots(a: Float[Array, "*K M N"], b: Float[Array, "*L M N"]) -> Array:
    """Σ_m a[.., m, n] b[.., m, n], the shape broadcast.

    On a CPU the products are multiplied with a row of ones, one matrix after the other.
    XLA's own sums take up to ten times as long over a matrix of float64 (jaxlib
    0.10.2), and 50 to 200 times over the middle one of three long axes.
    """

    def together(a, b):
        return jnp.sum(a * b, axis=-2)

    return by_platform(_column_dots, together, a, b)


@column_dots.defjvp
def _(primals, tangents):
    (a, b), (da, db) = primals, tangents
    return column_dots(a, b), jnp.sum(da * b + a * db, axis=-2)


def _column_dots(a: Array, b: Array) -> Array:
    products = a * b
    *leading, size, num_columns = products.shape
    if math.prod(leading) > _MOST_MATRICES:
        return jnp.sum(products, axis=-2)
    ones = jnp.ones((1, size), products.dtype)
    each = [matmul(ones, one) for one in products.reshape(-1, size, num_columns)]
    return jnp.stack(each).reshape(*leading, num_columns)


def small_product(
    matrix: Float[Array, "... R Q"], vector: Float[Array, "... Q"]
) -> Array:
    """matrix @ vector for many small matrices, [*batch, R]; the batches broadcast.

    A sum of columns: written as one reduction of the products, XLA (jaxlib 0.10.2) on a
    CPU compiles it wrongly in float32 when the first axis exceeds 1024.
    """
    total = matrix[..., 0] * vector[..., 0, None]
    for q in range(1, matrix.shape[-1]):
        total = total + matrix[..., q] * vector[..., q, None]
    return total
