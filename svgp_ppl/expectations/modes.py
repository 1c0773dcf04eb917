"""A mode of N(f; m, C Cᵀ) p(y|f) for several components, and the curvatures there.

In standard normals e, f = m + C e, the logarithm is −‖e‖²/2 + ℓ(m + C e) but for a
constant: with g and H the derivatives of ℓ in f, its slope is Cᵀ g − e and its
curvature I − Cᵀ H C.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from svgp_ppl.expectations.climb import climb
from svgp_ppl.expectations.nodes import num_components
from svgp_ppl.linalg import safe_sqrt, small_cholesky, small_product
from svgp_ppl.marginals import Marginal

__all__ = ["mode_of_integrand", "of_normals"]


def of_normals(likelihood: Callable, y: Array, marginal: Marginal) -> Callable:
    """log p(y | f = m + C e) as a function of standard normals e [.., N, Q]."""
    factor = _factor(marginal)
    return lambda e: likelihood(marginal.mean + small_product(factor, e)).log_prob(y)


def _factor(marginal: Marginal) -> Array:
    """C at each datum, [.., N, Q, Q]."""
    if marginal.covariance is not None:
        return small_cholesky(marginal.covariance)
    eye = jnp.eye(num_components(marginal), dtype=marginal.mean.dtype)
    return safe_sqrt(marginal.variance)[..., None] * eye


def mode_of_integrand(
    likelihood: Callable, y: Array, marginal: Marginal
) -> tuple[Array, Array, Array]:
    """A mode in standard normals, and the principal curvatures and axes there.

    Newton's method from the middle of the marginal, with absolute curvatures of at
    least 1. It may end at a saddle, such as that of N(y; f g, σ²) at zero.

    Returns:
        [.., N, Q], [.., N, Q] and [.., N, Q, Q] without derivatives.
    """
    factor = jax.lax.stop_gradient(_factor(marginal))
    transposed = jnp.swapaxes(factor, -1, -2)
    eye = jnp.eye(num_components(marginal), dtype=marginal.mean.dtype)
    slope_in_f = jax.grad(lambda f: jnp.sum(likelihood(f).log_prob(y)))
    log_likelihood = of_normals(likelihood, y, marginal)

    def objective(e):
        return log_likelihood(e) - 0.5 * jnp.sum(jnp.square(e), axis=-1)

    def derivatives(e):
        f = marginal.mean + small_product(factor, e)
        slope, along = jax.linearize(slope_in_f, f)
        sides = jnp.broadcast_to(factor, (*f.shape, f.shape[-1]))
        turned = jax.vmap(along, in_axes=-1, out_axes=-1)(sides)  # H C
        hessian = jnp.matmul(transposed, turned, precision=jax.lax.Precision.HIGHEST)
        return small_product(transposed, slope) - e, eye - hessian

    def principal(hessian):
        is_known = jnp.all(jnp.isfinite(hessian), axis=(-2, -1), keepdims=True)
        values, vectors = jnp.linalg.eigh(jnp.where(is_known, hessian, eye))
        return jnp.maximum(jnp.abs(values), 1.0), vectors

    def newton(e):
        slope, hessian = derivatives(e)
        values, vectors = principal(hessian)
        rotated = small_product(jnp.swapaxes(vectors, -1, -2), slope) / values
        return small_product(vectors, rotated)

    centre = climb(objective, newton, jnp.zeros_like(marginal.mean))
    return jax.lax.stop_gradient((centre, *principal(derivatives(centre)[1])))
