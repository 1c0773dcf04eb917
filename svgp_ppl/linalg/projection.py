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
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl.linalg.factors import CholeskyFactor, column_sums, matmul
from svgp_ppl.linalg.triangular import solve_by_inverse

__all__ = ["gaussian_moments", "whiten"]


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
    a, _, c = _projected(factor, k, q_tril)
    return matmul(loc, a), column_sums(a * c)


@gaussian_moments.defjvp
def _(primals, tangents):
    factor, k, loc, q_tril = primals
    d_factor, d_k, d_loc, d_tril = tangents
    a, centre, c = _projected(factor, k, q_tril)
    change = d_factor.change
    moved = solve_by_inverse(factor.tril, factor.inverse, d_k)
    d_mean = matmul(loc, moved) + matmul(d_loc - matmul(loc, change), a)
    # The quadratic form sees the symmetric part only.
    inner = 2 * (matmul(d_tril, _transposed(q_tril)) - matmul(centre, change))
    d_excess = 2 * jnp.sum(c * moved, axis=-2) + jnp.sum(a * matmul(inner, a), axis=-2)
    return (matmul(loc, a), column_sums(a * c)), (d_mean, d_excess)


def _projected(factor: CholeskyFactor, k: Array, q_tril: Array):
    """a, C = S Sᵀ − I and C a."""
    a = whiten(factor, k)
    centre = matmul(q_tril, _transposed(q_tril)) - jnp.eye(len(k), dtype=k.dtype)
    return a, centre, matmul(centre, a)


def _transposed(a: Array) -> Array:
    return jnp.swapaxes(a, -1, -2)
