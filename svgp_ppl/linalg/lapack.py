"""Cholesky factorisation and triangular solves that are safe under ``vmap``.

On a CPU, jaxlib 0.10 hands a *batched* LAPACK call to the thread pool of XLA in pieces
and waits for them in a thread of that same pool. As many such calls at once as the pool
has threads, two on a machine of two cores, deadlock. This happens easily: with two
processes in a model whose chains are vectorised, or with a ``batch_size`` and a
remainder in ``lax.map``. jaxlib 0.11.2 no longer does this; Python 3.11 ends at 0.10
(docs/decisions/0009).

Here every call has one matrix: under ``vmap`` the matrices follow one another in a loop
(the record gives its cost). Accelerators keep the batched call; the choice is made when
a program is lowered for a platform, so that one process may have programs for both.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from svgp_ppl.linalg.platforms import by_platform
from svgp_ppl.linalg.products import matmul
from svgp_ppl.linalg.triangular import solve_by_inverse

__all__ = ["factor", "factor_and_inverse", "lower_half", "solve"]


def _one_at_a_time(function: Callable) -> Callable:
    """``function`` of arrays, batched by a loop on a CPU."""
    mapped = custom_vmap(function)

    @mapped.def_vmap
    def rule(axis_size, is_batched, *arrays):
        axes = [0 if batched else None for batched in is_batched]

        def in_a_loop(*arrays):
            def one(batched):
                rest = iter(batched)
                each = (next(rest) if b else a for b, a in zip(is_batched, arrays))
                return mapped(*each)

            return jax.lax.map(one, [a for b, a in zip(is_batched, arrays) if b])

        at_once = jax.vmap(function, axes)
        return by_platform(in_a_loop, at_once, *arrays), True

    return mapped


_factor_one = _one_at_a_time(jnp.linalg.cholesky)
_solve_one = _one_at_a_time(lambda tril, b: solve_triangular(tril, b, lower=True))
_solve_transposed = _one_at_a_time(
    lambda tril, b: solve_triangular(tril, b, lower=True, trans=1)
)


@jax.custom_jvp
def factor(a: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower L with L Lᵀ = a; NaN where ``a`` is not positive definite."""
    return _factor_one(a)


@factor.defjvp
def _factor_tangent(primals, tangents):
    """L̇ = L Φ(L⁻¹ Ȧ L⁻ᵀ), Φ the lower triangle with half the diagonal.

    Murray (2016), Differentiation of the Cholesky decomposition, forward mode.
    """
    tril = factor(*primals)
    (tangent,) = tangents
    inner = solve(tril, solve(tril, (tangent + tangent.T) / 2).T)
    half = lower_half(inner)
    return tril, matmul(tril, half)


@jax.custom_jvp
def factor_and_inverse(
    a: Float[Array, "M M"],
) -> tuple[Float[Array, "M M"], Float[Array, "M M"], Float[Array, "M M"]]:
    """Lower L with L Lᵀ = a, L⁻¹, and a zero whose tangent is L⁻¹ L̇."""
    tril = _factor_one(a)
    inverse = _solve_one(tril, jnp.eye(len(a), dtype=a.dtype))
    return tril, inverse, jnp.zeros_like(a)


@factor_and_inverse.defjvp
def _factor_and_inverse_tangent(primals, tangents):
    """L⁻¹ L̇ = Φ(L⁻¹ Ȧ L⁻ᵀ) as in :func:`factor`, by products; d(L⁻¹) = −L⁻¹ L̇ L⁻¹."""
    tril, inverse, zero = factor_and_inverse(*primals)
    (tangent,) = tangents
    inner = solve_by_inverse(tril, inverse, (tangent + tangent.T) / 2)
    change = lower_half(solve_by_inverse(tril, inverse, inner.T))
    tangents = matmul(tril, change), -matmul(change, inverse), change
    return (tril, inverse, zero), tangents


def lower_half(a: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Φ(a): the lower triangle with half the diagonal."""
    return jnp.tril(a) - jnp.diag(jnp.diagonal(a)) / 2


def solve(tril: Float[Array, "M M"], b: Float[Array, "M N"]) -> Float[Array, "M N"]:
    """L⁻¹ b for the lower triangle L of ``tril``."""
    lower = jnp.tril(tril)
    return jax.lax.custom_linear_solve(
        lambda x: matmul(lower, x),
        b,
        solve=lambda _, b: _solve_one(lower, b),
        transpose_solve=lambda _, b: _solve_transposed(lower, b),
    )
