"""L⁻¹ b where L⁻¹ is at hand: products, as accurate as triangular solves.

In float64 this is the product with L⁻¹, whose error is far below the jitter. In float32
that would lose digits that a triangular solve keeps. There forward substitution goes by
blocks of rows i, with X the inverse of the block L_ii, which is a block of L⁻¹:

    r = b_i − Σ_{j<i} L_ij x_j,    x_i = X r + X (r − L_ii X r),

where the last term is a step of iterative refinement (Higham 2002, Accuracy and
Stability of Numerical Algorithms, chapter 12); likewise backwards for L⁻ᵀ b.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl.linalg.products import matmul

__all__ = ["solve_by_inverse"]

# Rows of a block: enough for products to run at full speed, few enough that the
# refinement costs little.
_MOST_ROWS = 64


def solve_by_inverse(
    tril: Float[Array, "M M"], inverse: Float[Array, "M M"], b: Float[Array, "M N"]
) -> Float[Array, "M N"]:
    """L⁻¹ b by products; linear in b, and differentiable in L any number of times."""
    is_double = b.dtype == jnp.float64

    def solve(_, b):
        return matmul(inverse, b) if is_double else _refined(tril, inverse, b)

    def transpose_solve(_, b):
        if is_double:
            # Written out: XLA multiplies with it twice as fast as with a transpose.
            return matmul(jax.lax.optimization_barrier(inverse.T), b)
        return _refined_transposed(tril, inverse, b)

    return jax.lax.custom_linear_solve(
        lambda x: matmul(tril, x), b, solve=solve, transpose_solve=transpose_solve
    )


def _refined(tril: Array, inverse: Array, b: Array) -> Array:
    x = b[:0]
    for block in _blocks(len(tril)):
        rest = b[block]
        if block.start:
            rest = rest - matmul(tril[block, : block.start], x)
        part = _one_block(tril[block, block], inverse[block, block], rest)
        x = jnp.concatenate([x, part])
    return x


def _refined_transposed(tril: Array, inverse: Array, b: Array) -> Array:
    size = len(tril)
    x = b[:0]
    for block in reversed(_blocks(size)):
        rest = b[block]
        if block.stop < size:
            rest = rest - matmul(tril[block.stop :, block].T, x)
        part = _one_block(tril[block, block].T, inverse[block, block].T, rest)
        x = jnp.concatenate([part, x])
    return x


def _one_block(matrix: Array, inverse: Array, rest: Array) -> Array:
    x = matmul(inverse, rest)
    return x + matmul(inverse, rest - matmul(matrix, x))


def _blocks(size: int) -> list[slice]:
    rows = -(-size // -(-size // _MOST_ROWS))  # all but the last of equal size
    return [slice(start, min(start + rows, size)) for start in range(0, size, rows)]
