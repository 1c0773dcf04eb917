"""Squared distances and inner products of all pairs of rows."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from svgp_ppl.linalg.platforms import by_platform
from svgp_ppl.linalg.products import matmul
from svgp_ppl.rows.sharding import in_blocks

__all__ = ["inner_product", "squared_distance"]

# The widest inputs whose distances are summed column by column: as fast as a matrix
# product while there are few (docs/decisions/0004).
_MOST_EXACT_COLUMNS = 64
# The widest inputs whose distances are also differentiated column by column.
_MOST_EXACT_DERIVATIVES = 4
# Distances that are computed outside of a loop, and in a turn of one. In the body of a
# loop XLA (jaxlib 0.10.2) adds up many columns two to three times as fast, on one core,
# in turns of 4000 to 100,000 alike.
_MOST_ALONE, _MOST_AT_ONCE = 4000, 20_000


def inner_product(x: Float[Array, "N D"], y: Float[Array, "M D"]) -> Array:
    """xᵀy for every pair of rows, shape [N, M]."""
    return matmul(x, y.T)


def squared_distance(
    x: Float[Array, "N D"], y: Float[Array, "M D"], lengthscale: ArrayLike = 1.0
) -> Float[Array, "N M"]:
    """Σ_d ((x_nd − y_md) / ℓ_d)² for every pair of rows, shape [N, M].

    The origin is moved to the mean of ``x``. Up to 64 columns by differences, column
    after column; wider inputs go through one matrix product, ‖x‖² + ‖y‖² − 2 xᵀy. Its
    terms cancel: the error is relative to the spread of the inputs and not to the
    distance. Where a lengthscale is far below the spread of a column in which values
    repeat, float32 then treats equal points as different. From five columns on,
    derivatives are products too.

    Args:
        x: Inputs.
        y: Inputs; of the two, the one with more rows.
        lengthscale: ℓ, one number or one for each column.
    """
    return _scaled(x, y, jnp.asarray(lengthscale, x.dtype))


@jax.custom_jvp
def _scaled(x: Array, y: Array, lengthscale: Array) -> Array:
    if x.shape[-1] > _MOST_EXACT_COLUMNS:
        x, y = _about_zero(x, y, lengthscale)
        squares = jnp.sum(x * x, axis=-1)[:, None] + jnp.sum(y * y, axis=-1)
        return jnp.maximum(squares - 2 * inner_product(x, y), 0.0)
    x, y = _about_zero(x, y)
    columns = y.T  # the inner loops run along a row of it
    rates = jnp.broadcast_to(1.0 / lengthscale, x.shape[-1:])
    if len(x) * len(y) <= _MOST_ALONE:
        return _by_columns(x, columns, rates)
    rows = max(1, min(len(x) // 2, _MOST_AT_ONCE // len(y)))

    def by_blocks(x, *given):
        # In blocks an entry is written once, whatever the number of columns.
        return in_blocks(lambda block: _by_columns(block, *given), x, rows, axis=0)

    # Elsewhere the whole sum is one elementwise kernel.
    return by_platform(by_blocks, _by_columns, x, columns, rates)


def _by_columns(
    x: Float[Array, "N D"], columns: Float[Array, "D M"], rates: Float[Array, " D"]
) -> Array:
    # The difference first: of two products x/ℓ and y/ℓ in one loop, XLA rounds one, and
    # equal rows are then 1e-17 apart at one place of a program and 0 at another.
    total = jnp.zeros((len(x), columns.shape[1]), x.dtype)
    for x_d, y_d, rate in zip(x.T, columns, rates, strict=True):
        total += jnp.square((x_d[:, None] - y_d) * rate)
    return total


@partial(_scaled.defjvp, symbolic_zeros=True)
def _(primals, tangents):
    # With u = (x − y) / ℓ:  d‖u‖² = 2 uᵀ (dx/ℓ − dy/ℓ − u dℓ/ℓ).
    x, y, lengthscale = primals
    dx, dy, dl = (
        None if isinstance(t, SymbolicZero) else t / lengthscale for t in tangents
    )
    is_narrow = x.shape[-1] <= _MOST_EXACT_DERIVATIVES
    derivative = _moved_by_columns if is_narrow else _moved_by_products
    moved = derivative(*_about_zero(x, y, lengthscale), dx, dy, dl)
    return _scaled(*primals), 2 * moved


def _moved_by_columns(x, y, dx, dy, dl) -> Array:
    moved = jnp.zeros((len(x), len(y)), x.dtype)
    for d in range(x.shape[1]):
        u = x[:, d, None] - y[:, d]
        if dx is not None:
            moved += u * dx[:, d, None]
        if dy is not None:
            moved -= u * dy[:, d]
        if dl is not None:
            moved -= jnp.square(u) * jnp.broadcast_to(dl, x.shape[1:])[d]
    return moved


def _moved_by_products(x, y, dx, dy, dl) -> Array:
    # The part that does not move y is one product [N, K] by [K, M], also backwards:
    #   xᵀdx − yᵀdx − Σ_d (x_d² − 2 x_d y_d + y_d²) dℓ_d/ℓ_d.
    by_y, alone = jnp.zeros_like(x), jnp.zeros_like(x[:, 0])
    left, right = [], [y]
    if dx is not None:
        by_y, alone = by_y - dx, alone + jnp.sum(x * dx, axis=-1)
    if dl is not None:
        by_y, alone = by_y + 2 * x * dl, alone - jnp.sum(x * x * dl, axis=-1)
        left.append(jnp.broadcast_to(-dl, x.shape))
        right.append(y * y)
    left = jnp.concatenate([by_y, *left, alone[:, None]], axis=1)
    right = jnp.concatenate([*right, jnp.ones_like(y[:, :1])], axis=1)
    moved = inner_product(left, right)
    if dy is not None:
        moved = moved + jnp.sum(y * dy, axis=-1) - inner_product(x, dy)
    return moved


def _about_zero(
    x: Array, y: Array, lengthscale: Array | float = 1.0
) -> tuple[Array, Array]:
    """Both in lengthscales from the mean of x: dates in lengthscales lose digits.

    Rows without a value, NaN, do not spread to the others.
    """
    centre = jax.lax.stop_gradient(jnp.nanmean(x, axis=0))
    return (x - centre) / lengthscale, (y - centre) / lengthscale
