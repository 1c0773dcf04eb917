"""The one Cholesky, the one jitter, triangular solves, safe square roots."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl.linalg import lapack

__all__ = [
    "CholeskyFactor",
    "cholesky",
    "default_jitter",
    "factorised",
    "floored_sqrt",
    "safe_sqrt",
    "small_cholesky",
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
def safe_sqrt(x: Array | float) -> Array:
    """√x clamped at zero, with derivative zero (not infinite) there.

    The value does not need a stand-in for x ≤ 0: XLA may compute x twice, as 1e-33 to
    compare it and as 0 to take the root, and would return the root of the stand-in.
    """
    return jnp.sqrt(jnp.where(x > 0, x, 0.0))


@safe_sqrt.defjvp
def _(primals, tangents):
    root = safe_sqrt(*primals)
    positive = root > 0
    slope = 0.5 / jnp.where(positive, root, 1.0)
    return root, jnp.where(positive, slope, 0.0) * tangents[0]


def floored_sqrt(x: Array) -> Array:
    """√x, at least 3e-10 (1e-77 in float64), to divide by: Φ(m / √v) at v = 0.

    The ratio is then a finite step in m, with derivative zero with respect to v.
    """
    return jnp.sqrt(jnp.maximum(x, jnp.finfo(x.dtype).tiny ** 0.5))


def small_cholesky(covariance: Float[Array, "*batch Q Q"]) -> Array:
    """Lower factor of many small covariance matrices, singular ones included.

    A pivot that is zero (up to rounding) gives a zero column, so that the covariance of
    a latent that is known exactly has the factor 0 and finite derivatives. NaN stays.
    """
    size = covariance.shape[-1]
    tolerance = 4 * jnp.finfo(covariance.dtype).eps
    columns: list[Array] = []
    rest = covariance
    for q in range(size):
        pivot = rest[..., q, q]
        keep = ~(pivot <= tolerance * covariance[..., q, q])
        root = jnp.sqrt(jnp.where(keep, pivot, 1.0))
        column = jnp.where(keep[..., None], rest[..., :, q] / root[..., None], 0.0)
        column = jnp.where(jnp.arange(size) >= q, column, 0.0)
        columns.append(column)
        rest = rest - column[..., :, None] * column[..., None, :]
    return jnp.stack(columns, axis=-1)
