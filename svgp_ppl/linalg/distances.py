"""Squared distances and inner products of all pairs of rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl.linalg.factors import matmul

__all__ = ["inner_product", "squared_distance"]

# The widest inputs whose distances are summed column by column: as fast as a matrix
# product while there are few (docs/decisions/0004).
_MOST_EXACT_COLUMNS = 64

# The widest inputs whose distances are also differentiated column by column.
_MOST_EXACT_DERIVATIVES = 4


def inner_product(x: Float[Array, "N D"], y: Float[Array, "M D"]) -> Array:
    """xᵀy for every pair of rows, shape [N, M]."""
    return matmul(x, y.T)


@jax.custom_jvp
def squared_distance(x: Float[Array, "N D"], y: Float[Array, "M D"]) -> Array:
    """‖x_n − y_m‖² for every pair of rows, shape [N, M].

    Up to 64 columns by differences, column after column. Wider inputs go through one
    matrix product, ‖x‖² + ‖y‖² − 2 xᵀy, after moving the origin to the mean of ``y``.
    Its terms cancel: the error is relative to the spread of the inputs and not to the
    distance. Where a lengthscale is far below the spread of a column in which values
    repeat, float32 then takes equal points for different ones. Derivatives are products
    in the same way from five columns on.
    """
    if x.shape[-1] > _MOST_EXACT_COLUMNS:
        x, y = _centred(x, y)
        squares = jnp.sum(x * x, axis=-1)[:, None] + jnp.sum(y * y, axis=-1)
        return jnp.maximum(squares - 2 * inner_product(x, y), 0.0)

    def add(total, columns):
        x_d, y_d = columns
        return total + jnp.square(x_d[:, None] - y_d), None

    nothing = jnp.zeros((len(x), len(y)), jnp.result_type(x, y))
    return jax.lax.scan(add, nothing, (x.T, y.T))[0]


@squared_distance.defjvp
def _(primals, tangents):
    # d‖x − y‖² = 2 (x − y)ᵀ (dx − dy)
    (x, y), (dx, dy) = primals, tangents
    if x.shape[-1] <= _MOST_EXACT_DERIVATIVES:
        moved = jnp.zeros((len(x), len(y)), jnp.result_type(x, y))
        for x_d, y_d, dx_d, dy_d in zip(x.T, y.T, dx.T, dy.T, strict=True):
            moved += (x_d[:, None] - y_d) * (dx_d[:, None] - dy_d)
    else:
        x, y = _centred(x, y)
        moved = jnp.sum(x * dx, axis=-1)[:, None] + jnp.sum(y * dy, axis=-1)
        moved = moved - inner_product(x, dy) - inner_product(dx, y)
    return squared_distance(*primals), 2 * moved


def _centred(x: Array, y: Array) -> tuple[Array, Array]:
    centre = jax.lax.stop_gradient(jnp.mean(y, axis=0))
    return x - centre, y - centre
