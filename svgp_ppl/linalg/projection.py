"""The moments of a Gaussian q(v) at many data, with a backward pass of their own.

    a = L⁻¹ k,   mean_p = m_pᵀ a,   excess_p = aᵀ (S_p S_pᵀ − I) a,

for k = k(z, x) [M, N], so that Var f_p(x_n) = k(x_n, x_n) + excess_pn. These products
of M × M with M × N are where the time of a fit goes. Plain autodiff makes four of them
in the backward pass; with C = (S Sᵀ − I) a kept from the forward pass, two are enough:

    G = a diag(ḡ) aᵀ,   k̄ = L⁻ᵀ ā,   ā = m ḡ_meanᵀ + 2 C diag(ḡ),
    S̄ = 2 G S,   m̄ = a ḡ_mean,   L̄ = −tril( L⁻ᵀ (m m̄ᵀ + 2 (S Sᵀ − I) G) ),

with ḡ the cotangent of the excess; in L̄ stands ā aᵀ, written through G.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl.linalg.factors import inverse_lower, matmul

__all__ = ["whitened_moments"]


@jax.custom_vjp
def whitened_moments(
    scale_tril: Float[Array, "M M"],
    k: Float[Array, "M N"],
    loc: Float[Array, "P M"],
    q_tril: Float[Array, "P M M"],
) -> tuple[Float[Array, "P N"], Float[Array, "P N"]]:
    """m_pᵀ a and aᵀ (S_p S_pᵀ − I) a with a = L⁻¹ k, for every output p.

    For float64: the product with L⁻¹ loses digits that the triangular solve keeps.
    """
    return _forward(scale_tril, k, loc, q_tril)[0]


def _forward(scale_tril, k, loc, q_tril):
    inverse = inverse_lower(scale_tril)
    a = matmul(inverse, k)
    centre = matmul(q_tril, jnp.swapaxes(q_tril, -1, -2))
    centre = centre - jnp.eye(len(k), dtype=k.dtype)
    c = matmul(centre, a)
    moments = matmul(loc, a), jnp.sum(a * c, axis=-2)
    return moments, (inverse, a, centre, c, loc, q_tril)


def _backward(kept, cotangents):
    inverse, a, centre, c, loc, q_tril = kept
    d_mean, d_excess = cotangents
    weighted = matmul(a * d_excess[:, None, :], a.T)  # G, [P, M, M]
    d_loc = matmul(d_mean, a.T)
    d_q = jnp.tril(2.0 * matmul(weighted, q_tril))
    d_a = matmul(loc.T, d_mean) + 2.0 * jnp.sum(c * d_excess[:, None, :], axis=0)
    d_k = matmul(inverse.T, d_a)
    outer = matmul(loc.T, d_loc) + 2.0 * jnp.sum(matmul(centre, weighted), axis=0)
    d_scale_tril = -jnp.tril(matmul(inverse.T, outer))
    return d_scale_tril, d_k, d_loc, d_q


whitened_moments.defvjp(_forward, _backward)
