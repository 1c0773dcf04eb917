"""Differences of components: the own one of each datum less those of other classes."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from svgp_ppl.marginals import Marginal

__all__ = ["own_less_others"]


def own_less_others(
    y: Int[Array, "*batch N"], others: Int[Array, "*batch N E"], marginal: Marginal
) -> tuple[Array, Array]:
    """Mean and covariance of d_c = f_y − f_c for Gaussian f.

        E d_c = m_y − m_c,   Cov(d_c, d_e) = Σ_yy − Σ_cy − Σ_ye + Σ_ce.

    Args:
        y: The class of each datum, 0 to C − 1.
        others: Classes c, in the order of the result.
        marginal: Distribution of C components.

    Returns:
        Mean [.., N, E] and covariance [.., N, E, E].
    """
    mean, variance, own = marginal.mean, marginal.variance, y[..., None]
    shift = _of(mean, own) - _of(mean, others)
    own_variance = _of(variance, own)[..., None]
    if marginal.covariance is None:
        eye = jnp.eye(others.shape[-1], dtype=mean.dtype)
        return shift, own_variance + _of(variance, others)[..., None] * eye
    rows = jnp.take_along_axis(marginal.covariance, others[..., None], axis=-2)
    both = _of(rows, others[..., None, :])
    shared = _of(rows, own[..., None])  # [.., N, E, 1]
    return shift, own_variance - shared - jnp.swapaxes(shared, -1, -2) + both


def _of(values: Array, classes: Array) -> Array:
    return jnp.take_along_axis(values, classes, axis=-1)
