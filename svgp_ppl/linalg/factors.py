"""The one Cholesky, the one jitter, triangular solves, square roots that are safe."""

from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from threadpoolctl import threadpool_limits

from svgp_ppl.linalg import lapack

__all__ = [
    "cholesky",
    "default_jitter",
    "floored_sqrt",
    "inverse_lower",
    "matmul",
    "safe_sqrt",
    "single_threaded_lapack",
    "small_cholesky",
    "small_product",
    "solve_lower",
    "solve_lower_transposed",
]


def matmul(a: Array, b: Array) -> Array:
    """a @ b in full precision.

    Accelerators multiply float32 matrices in reduced precision unless told otherwise,
    which a covariance matrix does not survive; on a CPU this changes nothing.
    """
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def default_jitter(dtype: jnp.dtype) -> float:
    """Jitter relative to the mean of the diagonal: 1e-6 in float64, 1e-5 in float32.

    In float32 the rounding of an RBF Gram matrix of a few hundred points has
    eigenvalues down to about -1e-6 of the mean diagonal, which 1e-5 covers.
    """
    return 1e-6 if jnp.finfo(dtype).bits >= 64 else 1e-5


def cholesky(
    gram: Float[Array, "M M"], jitter: float | Array | None = None
) -> Float[Array, "M M"]:
    """Lower L with L Lᵀ = gram + jitter I.

    Args:
        gram: Symmetric positive semi-definite matrix.
        jitter: Absolute amount added to the diagonal. ``None`` adds
            :func:`default_jitter` times the mean of the diagonal.

    Returns:
        The factor, NaN where the factorisation fails: a failure is never escalated
        silently, ``fit`` and ``sample`` report it in words.
    """
    if jitter is None:
        scale = jax.lax.stop_gradient(jnp.mean(jnp.diagonal(gram)))
        jitter = default_jitter(gram.dtype) * scale
    return lapack.factor(gram + jitter * jnp.eye(len(gram), dtype=gram.dtype))


def single_threaded_lapack() -> AbstractContextManager:
    """One thread for LAPACK, for as long as the context lasts.

    On a CPU, JAX's Cholesky and triangular solves run in an OpenBLAS whose threads
    compete with XLA's own; one thread there can be faster. Opt-in, because it changes
    a setting of the whole process.

    Example:
        >>> with single_threaded_lapack():
        ...     factor = cholesky(jnp.eye(3))
    """
    return threadpool_limits(limits=1, user_api="blas")


def solve_lower(scale_tril: Float[Array, "M M"], b: Float[Array, "M N"]) -> Array:
    """L⁻¹ b for a lower triangular L."""
    return lapack.solve(scale_tril, b)


def solve_lower_transposed(
    scale_tril: Float[Array, "M M"], b: Float[Array, "M N"]
) -> Array:
    """L⁻ᵀ b for a lower triangular L, the transpose of :func:`solve_lower`."""
    transposed = jax.linear_transpose(lambda b: solve_lower(scale_tril, b), b)
    return transposed(b)[0]


def inverse_lower(scale_tril: Float[Array, "M M"]) -> Array:
    """L⁻¹, for products that replace many triangular solves (float64 only)."""
    return solve_lower(scale_tril, jnp.eye(len(scale_tril), dtype=scale_tril.dtype))


def safe_sqrt(x: Array) -> Array:
    """√x with the clamp at zero, and derivative zero (not infinite) there.

    The one place where a variance that rounding made negative is clamped.
    """
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def floored_sqrt(x: Array) -> Array:
    """√x, at least 1e-10 (1e-77 in float64), to divide by: Φ(m / √v) at v = 0.

    The ratio is then a step in m and finite, and its derivative by v is zero.
    """
    return jnp.sqrt(jnp.maximum(x, jnp.finfo(x.dtype).tiny ** 0.5))


def small_cholesky(covariance: Float[Array, "*batch Q Q"]) -> Array:
    """Lower factor of many small covariance matrices, singular ones included.

    A pivot that is zero (up to rounding) gives a zero column, so that the covariance of
    a latent that is known exactly has the factor 0 and finite derivatives.
    """
    size = covariance.shape[-1]
    tolerance = 4 * jnp.finfo(covariance.dtype).eps
    columns: list[Array] = []
    rest = covariance
    for q in range(size):
        pivot = rest[..., q, q]
        keep = pivot > tolerance * covariance[..., q, q]
        root = jnp.sqrt(jnp.where(keep, pivot, 1.0))
        column = jnp.where(keep[..., None], rest[..., :, q] / root[..., None], 0.0)
        column = jnp.where(jnp.arange(size) >= q, column, 0.0)
        columns.append(column)
        rest = rest - column[..., :, None] * column[..., None, :]
    return jnp.stack(columns, axis=-1)


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
