"""The one Cholesky, the one jitter, triangular solves, safe square roots."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from threadpoolctl import threadpool_limits

from svgp_ppl.linalg import lapack
from svgp_ppl.linalg.platforms import by_platform
from svgp_ppl.linalg.products import matmul

__all__ = [
    "CholeskyFactor",
    "cholesky",
    "column_dots",
    "default_jitter",
    "factorised",
    "floored_sqrt",
    "safe_sqrt",
    "single_threaded_lapack",
    "small_cholesky",
    "small_product",
    "solve_lower",
    "solve_lower_transposed",
]


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
    return lapack.factor(_with_jitter(gram, jitter))


def _with_jitter(gram: Array, jitter: float | Array | None) -> Array:
    if jitter is None:
        # Not a constant to derivatives: a sampler with a gradient that is not that of
        # the log density loses energy however short its steps are.
        jitter = default_jitter(gram.dtype) * jnp.mean(jnp.diagonal(gram))
    return gram + jitter * jnp.eye(len(gram), dtype=gram.dtype)


class CholeskyFactor(NamedTuple):
    """L and L⁻¹, and the means to differentiate with respect to L.

    Attributes:
        tril: L, lower triangular.
        inverse: L⁻¹. For products that need not be accurate to the last digits, or
            that are refined: see ``linalg.projection``.
        change: Zero; its tangent is L⁻¹ dL. Since d(L⁻¹ b) = L⁻¹ db − (L⁻¹ dL) L⁻¹ b,
            derivative rules can be written in it without factors of L that cancel.
    """

    tril: Float[Array, "M M"]
    inverse: Float[Array, "M M"]
    change: Float[Array, "M M"]


def factorised(
    gram: Float[Array, "M M"], jitter: float | Array | None = None
) -> CholeskyFactor:
    """L with L Lᵀ = gram + jitter I, and L⁻¹; the jitter as in :func:`cholesky`.

    Derivatives in both modes are matrix products, and make no further LAPACK calls.
    """
    return CholeskyFactor(*lapack.factor_and_inverse(_with_jitter(gram, jitter)))


@contextmanager
def single_threaded_lapack() -> Iterator[None]:
    """One thread for LAPACK while the context lasts, in all threads.

    On a CPU, JAX's Cholesky and triangular solves run in an OpenBLAS whose threads
    compete with XLA's own; one thread there is faster. ``fit`` and ``sample`` use it
    while they run.

    Example:
        >>> with gp.linalg.single_threaded_lapack():
        ...     factor = jnp.linalg.cholesky(jnp.eye(3))
    """
    _one_thread.enter()
    try:
        yield
    finally:
        _one_thread.leave()


class _OneThread:
    """A setting of the process: the first user makes it, the last one undoes it."""

    def __init__(self):
        self._lock, self._users = threading.Lock(), 0
        self._limits: threadpool_limits | None = None

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._limits is None:
                self._limits = threadpool_limits(limits=1, user_api="blas")

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._limits is not None:
                self._limits.restore_original_limits()
                self._limits = None


_one_thread = _OneThread()


def solve_lower(scale_tril: Float[Array, "M M"], b: Float[Array, "M N"]) -> Array:
    """L⁻¹ b for a lower triangular L."""
    return lapack.solve(scale_tril, b)


def solve_lower_transposed(
    scale_tril: Float[Array, "M M"], b: Float[Array, "M N"]
) -> Array:
    """L⁻ᵀ b for a lower triangular L, the transpose of :func:`solve_lower`."""
    transposed = jax.linear_transpose(lambda b: solve_lower(scale_tril, b), b)
    return transposed(b)[0]


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


# The program grows with their number.
_MOST_MATRICES = 32


def safe_sqrt(x: Array) -> Array:
    """√x clamped at zero, with derivative zero (not infinite) there."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def floored_sqrt(x: Array) -> Array:
    """√x, at least 3e-10 (1e-77 in float64), to divide by: Φ(m / √v) at v = 0.

    The ratio is then a finite step in m, with derivative zero with respect to v.
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
