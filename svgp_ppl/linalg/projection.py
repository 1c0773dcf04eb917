"""The projection a = L⁻¹ k of many data, and the moments of a Gaussian q(v) there.

These products of M × M with M × N are where the time of a fit and of a sampler goes.
Both functions have derivatives of their own: a tangent that is linear in the tangents
of its arguments and cheap in either direction. With ω = L⁻¹ dL (the ``change`` of a
``CholeskyFactor``) and bars for cotangents,

    da = L⁻¹ dk − ω a;              backwards  k̄ = L⁻ᵀ ā,   ω̄ = −ā aᵀ,

two products of M × M with M × N. The moments of q(v_p) = N(m_p, S_p S_pᵀ) are

    mean_p = m_pᵀ a,   excess_p = aᵀ C_p a,   C_p = S_p S_pᵀ − I,

so that Var f_p(x_n) = k(x_n, x_n) + excess_pn. There ω̄ needs no product of its own: in

    d mean_p   = m_pᵀ L⁻¹ dk + (dm_p − ωᵀ m_p)ᵀ a,
    d excess_p = 2 (C_p a)ᵀ L⁻¹ dk + aᵀ B_p a,   B_p = 2 (dS_p S_pᵀ − C_p ω),

all but dk stands in matrices M × M, whose cotangent is B̄_p = a diag(ḡ_p) aᵀ. That makes
two products backwards (P + 1 for P outputs) after two forwards; plain autodiff takes
four. Both rules can be differentiated again, any number of times.

Where S_p S_pᵀ ≤ (1 + δ) I and many data share one q(v), a single product is enough:

    mean_p = w_pᵀ k,                          w_p = L⁻ᵀ m_p,
    Var f_p = (1 + δ) k(x, x) − ‖W_p k‖²,     W_p = U_pᵀ L⁻¹,
    U_p U_pᵀ = (1 + δ) I − S_p S_pᵀ,          U_p upper, W_p lower triangular.

δ covers the rounding of eigenvalues of S_p S_pᵀ that are 1, where the data say nothing.
It adds δ (k(x, x) − ‖a‖²), at most δ Var f_p. Unlike in k(x, x) − kᵀ (W_pᵀ W_p) k, no
terms as large as the condition number of k(z, z) cancel: the error of W_p k is that of
solving W_p L = U_pᵀ, as in a triangular solve, and of rounding a product, ε ‖W_p‖ ‖k‖.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from svgp_ppl.linalg import lapack
from svgp_ppl.linalg.factors import CholeskyFactor, solve_lower_transposed
from svgp_ppl.linalg.products import column_dots, matmul
from svgp_ppl.linalg.triangular import solve_by_inverse

__all__ = [
    "PosteriorCache",
    "cached_moments",
    "gaussian_moments",
    "posterior_cache",
    "whiten",
]


@jax.custom_jvp
def whiten(factor: CholeskyFactor, k: Float[Array, "M N"]) -> Float[Array, "M N"]:
    """a = L⁻¹ k, by products (``linalg.triangular``)."""
    return solve_by_inverse(factor.tril, factor.inverse, k)


@whiten.defjvp
def _(primals, tangents):
    (factor, k), (factor_tangent, k_tangent) = primals, tangents
    a = whiten(factor, k)
    moved = solve_by_inverse(factor.tril, factor.inverse, k_tangent)
    return a, moved - matmul(factor_tangent.change, a)


@jax.custom_jvp
def gaussian_moments(
    factor: CholeskyFactor,
    k: Float[Array, "M N"],
    loc: Float[Array, "*K P M"],
    q_tril: Float[Array, "*K P M M"],
) -> tuple[Float[Array, "*K P N"], Float[Array, "*K P N"]]:
    """m_pᵀ a and aᵀ (S_p S_pᵀ − I) a with a = L⁻¹ k, for every output p."""
    a = whiten(factor, k)
    half = matmul(_transposed(q_tril), a)
    excess = column_dots(half, half) - column_dots(a, a)
    return matmul(loc, a), excess


@gaussian_moments.defjvp
def _(primals, tangents):
    factor, k, loc, q_tril = primals
    d_factor, d_k, d_loc, d_tril = tangents
    a, centre, c = _projected(factor, k, q_tril)
    change = d_factor.change
    moved = solve_by_inverse(factor.tril, factor.inverse, d_k)
    d_mean = matmul(loc, moved) + matmul(d_loc - matmul(loc, change), a)
    # The quadratic form sees the symmetric part only: ωᵀ C is as good as C ω, and its
    # cotangent needs no product of two transposed matrices, XLA's slowest.
    inner = 2 * (matmul(d_tril, _transposed(q_tril)) - matmul(change.T, centre))
    d_excess = 2 * _with_each(c, moved) + jnp.sum(a * matmul(inner, a), axis=-2)
    return (matmul(loc, a), column_dots(a, c)), (d_mean, d_excess)


def _with_each(c: Float[Array, "*K P M N"], moved: Float[Array, "M N"]) -> Array:
    """Σ_m c_p moved for every output p, one after the other.

    Backwards the sum over p is then one pass over c; XLA's own, over the first of three
    axes, takes a third of a step with eight outputs (jaxlib 0.10.2, on a CPU).
    """
    *leading, size, num_data = c.shape
    if math.prod(leading) > _MOST_OUTPUTS:
        return jnp.sum(c * moved, axis=-2)
    each = [jnp.sum(one * moved, axis=-2) for one in c.reshape(-1, size, num_data)]
    return jnp.stack(each).reshape(*leading, num_data)


# The program grows with the number of outputs.
_MOST_OUTPUTS = 32


def _projected(factor: CholeskyFactor, k: Array, q_tril: Array):
    """a, C = S Sᵀ − I and C a."""
    a = whiten(factor, k)
    centre = matmul(q_tril, _transposed(q_tril)) - jnp.eye(len(k), dtype=k.dtype)
    return a, centre, matmul(centre, a)


class PosteriorCache(NamedTuple):
    """What the moments of q(v_p) at all data share.

    Attributes:
        weights: w_p.
        root: W_p, lower triangular.
        exists: Whether S_p S_pᵀ ≤ (1 + δ) I for every p, without which ``root`` is NaN,
            and ``root`` small enough for a product with it in this precision.
    """

    weights: Float[Array, "*K P M"]
    root: Float[Array, "*K P M M"]
    exists: Bool[Array, ""]


def posterior_cache(
    factor: CholeskyFactor,
    loc: Float[Array, "*K P M"],
    q_tril: Float[Array, "*K P M M"],
) -> PosteriorCache:
    """The cache of q(v_p) = N(m_p, S_p S_pᵀ), a constant to derivatives."""
    tril, loc, q_tril = jax.lax.stop_gradient((factor.tril, loc, q_tril))
    size = len(tril)
    eye = (1 + _slack(tril.dtype)) * jnp.eye(size, dtype=tril.dtype)
    rest = eye - matmul(q_tril, _transposed(q_tril))
    # The Cholesky factor from the last row up is the upper one.
    flipped = rest.reshape(-1, size, size)[:, ::-1, ::-1]
    upper = jax.vmap(lapack.factor)(flipped)[:, ::-1, ::-1]
    columns = jnp.concatenate([upper, loc.reshape(-1, size, 1)], axis=-1)
    solved = jax.vmap(lambda b: solve_lower_transposed(tril, b))(columns)
    root = _transposed(solved[..., :-1]).reshape(q_tril.shape)
    # Free of units, and NaN where there is no root.
    condition = jnp.linalg.norm(root, axis=(-2, -1)) * jnp.linalg.norm(tril) / size**0.5
    exists = jnp.all(jnp.finfo(root.dtype).eps * condition <= _MOST_ROUNDING)
    return PosteriorCache(solved[..., -1].reshape(loc.shape), root, exists)


# Of ε ‖W‖ σ, with σ² the mean of k(z, z): in float32 the product then adds an error of
# about 2e-6 σ², a fifth of the jitter. In float64 nothing comes near.
_MOST_ROUNDING = 4e-5


def _slack(dtype: jnp.dtype) -> float:
    """δ: far below the jitter, far above the rounding of S Sᵀ."""
    return 1e-11 if jnp.finfo(dtype).bits >= 64 else 1e-6


@jax.custom_jvp
def cached_moments(
    cache: PosteriorCache,
    variance: Float[Array, " N"],
    factor: CholeskyFactor,
    k: Float[Array, "M N"],
    loc: Float[Array, "*K P M"],
    q_tril: Float[Array, "*K P M M"],
) -> tuple[Float[Array, "*K P N"], Float[Array, "*K P N"]]:
    """``gaussian_moments``, by one product where the cache exists.

    Derivatives are those of ``gaussian_moments``.

    Args:
        cache: Of the same ``factor``, ``loc`` and ``q_tril``.
        variance: k(x, x).
        factor: L.
        k: k(z, x).
        loc: m_p.
        q_tril: S_p.
    """

    def one_product():
        mean = matmul(cache.weights, k)
        return mean, _slack(k.dtype) * variance - _squares(cache.root, k)

    def two_products():
        return gaussian_moments(factor, k, loc, q_tril)

    return jax.lax.cond(cache.exists, one_product, two_products)


@cached_moments.defjvp
def _(primals, tangents):
    return jax.jvp(gaussian_moments, primals[2:], tangents[2:])


def _squares(root: Float[Array, "*K P M M"], k: Float[Array, "M N"]) -> Array:
    """‖W k‖² for every column of k, by blocks of rows of W without their zeros."""
    size = len(k)
    rows = -(-size // min(_MOST_BLOCKS, max(1, size // _FEWEST_ROWS)))
    total = jnp.zeros((), k.dtype)
    for start in range(0, size, rows):
        stop = min(start + rows, size)
        part = matmul(root[..., start:stop, :stop], k[:stop])
        total = total + column_dots(part, part)
    return total


# More blocks save multiplications, but products of few rows are slow.
_MOST_BLOCKS, _FEWEST_ROWS = 4, 50


def _transposed(a: Array) -> Array:
    return jnp.swapaxes(a, -1, -2)
