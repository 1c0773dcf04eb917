"""KL( q(v) ‖ N(0, I) )."""

from collections.abc import Callable
from functools import singledispatch
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from svgp_ppl.linalg import lapack, matmul, solve_lower
from svgp_ppl.variational.joint import Block, Stacked, log_mixing, log_weights
from svgp_ppl.variational.projection import (
    full_gaussian,
    loc_and_scale,
    loc_and_scale_tril,
    outputs_first,
    project_outputs,
)

__all__ = ["Entropy", "expected_log_prior", "prior_kl"]

Entropy = Literal["jensen", "pairwise", "monte_carlo"]


@singledispatch
def prior_kl(
    qv, *, entropy: Entropy = "jensen", key=None, num_draws: int = 16
) -> Float[Array, ""]:
    """KL( q(v) ‖ N(0, I) ) in nats, summed over outputs.

    For a point the entropy has no finite value and is left out: −log N(v; 0, I), the
    second reading of the bound. For a mixture the cross term is exact and the entropy
    is either bounded from below, −Σ_k π_k log Σ_j π_j N(m_k; m_j, S_k + S_j) (Dezfouli
    & Bonilla 2015, eq. 19), or by Σ_k π_k (H_k − log Σ_j π_j exp(−B_kj)) with the
    entropies H_k and Bhattacharyya distances B_kj of the components (Kolchinsky &
    Tracey 2017, with α = ½), or estimated without bias from draws of each
    component. The second bound is exact where the components are equal or far apart;
    the first is then too low by up to (1 − log 2)/2 nats for every whitened value.

    Any other family has −H + ½ Σ (E v² + log 2π), from its ``mean``, ``variance`` and
    ``entropy()``. The function is open: register a class that has a better formula,
    with ``**options`` for the arguments of mixtures.

    Args:
        qv: The variational distribution.
        entropy: ``"jensen"``, ``"pairwise"`` or ``"monte_carlo"``; only used for
            mixtures.
        key: Random key, needed for ``"monte_carlo"``.
        num_draws: Draws per component for ``"monte_carlo"``.

    Raises:
        ValueError: The distribution has no entropy.

    Example:
        >>> import svgp_ppl as gp
        >>> gp.variational.prior_kl(dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)))
        Array(0., dtype=float32)
    """
    try:
        entropy_of_it = jnp.sum(jnp.asarray(qv.entropy()))
    except NotImplementedError as error:
        raise ValueError(
            f"no KL to N(0, I) is known for a {type(qv).__name__}: its class needs "
            "mean, variance and entropy(), or gp.variational.prior_kl.register."
        ) from error
    square = jnp.square(qv.mean) + qv.variance
    return 0.5 * jnp.sum(square + jnp.log(2 * jnp.pi)) - entropy_of_it


def expected_log_prior(qv) -> Float[Array, ""]:
    """E log N(v; 0, I) = −½ Σ (E v² + log 2π) under q(v), in nats, summed over outputs.

    Of a :class:`Block` it is the share of its process.

    Example:
        >>> import svgp_ppl as gp
        >>> gp.variational.expected_log_prior(
        ...     dist.MultivariateNormal(jnp.zeros(1), jnp.eye(1))
        ... )
        Array(-1.4189385, dtype=float32)
    """
    mean, factor = project_outputs(qv, jnp.eye(qv.event_shape[-1]))
    square = jnp.square(mean)
    if factor is not None:
        square += jnp.sum(jnp.square(factor), axis=-2)
    value = -0.5 * jnp.sum(square + jnp.log(2 * jnp.pi), axis=(-2, -1))
    log_pi = log_weights(qv)
    return value if log_pi is None else jnp.sum(jnp.exp(log_pi) * value)


@prior_kl.register
def _(qv: dist.Delta, **options):
    return -jnp.sum(dist.Normal(0.0, 1.0).log_prob(qv.v))


@prior_kl.register
def _(qv: dist.Independent, **options):
    base: Any = qv.base_dist
    if isinstance(base, dist.Normal):
        loc, scale = loc_and_scale(qv)
        return jnp.sum(
            0.5 * (jnp.square(scale) + jnp.square(loc) - 1.0) - jnp.log(scale)
        )
    return prior_kl(base, **options)


@prior_kl.register
def _(qv: dist.MultivariateNormal, **options):
    """½ (‖S‖² + ‖m‖² − M) − Σ log diag S, summed over outputs."""
    loc, scale_tril = loc_and_scale_tril(qv)
    log_diagonal = jnp.log(jnp.diagonal(scale_tril, axis1=-2, axis2=-1))
    squares = jnp.sum(jnp.square(scale_tril), (-2, -1)) + jnp.sum(jnp.square(loc), -1)
    return jnp.sum(0.5 * (squares - loc.shape[-1]) - jnp.sum(log_diagonal, -1))


@prior_kl.register
def _(qv: Block, **options):
    return prior_kl(qv.joint, **options)


@prior_kl.register
def _(
    qv: dist.MixtureSameFamily,
    *,
    entropy: Entropy = "jensen",
    key=None,
    num_draws: int = 16,
):
    components = qv.component_distribution
    log_pi = log_mixing(qv)
    loc, square = components.mean, components.variance + jnp.square(components.mean)
    size = loc[0].size
    # −E log N(v; 0, I) under each component, exactly.
    cross = 0.5 * (
        size * jnp.log(2 * jnp.pi) + jnp.sum(square.reshape(len(loc), -1), 1)
    )
    if len(loc) == 1:  # the exact entropy of the one Gaussian
        negative_entropy = -jnp.sum(components.entropy())
        return cross[0] + negative_entropy
    if entropy == "jensen":
        overlap = _log_overlap(components)  # [K, K]
        negative_entropy = logsumexp(log_pi[None, :] + overlap, axis=1)  # [K]
    elif entropy == "pairwise":
        closeness = -_bhattacharyya(components)  # [K, K]
        negative_entropy = logsumexp(log_pi[None, :] + closeness, axis=1)
        negative_entropy -= components.entropy()
    elif entropy == "monte_carlo":
        if key is None:
            raise ValueError("entropy='monte_carlo' needs a random key")
        draws = jnp.asarray(components.sample(key, (num_draws,)))  # [S, K, ...]
        log_q = logsumexp(log_pi + _log_components(components, draws), axis=-1)
        negative_entropy = jnp.mean(log_q, axis=0)
    else:
        raise ValueError(
            "entropy must be 'jensen', 'pairwise' or 'monte_carlo', and not "
            f"{entropy!r}"
        )
    return jnp.sum(jnp.exp(log_pi) * (cross + negative_entropy))


def _parts(components: Any) -> list[dist.Distribution]:
    """Independent factors of the components: one per process, or all in one."""
    if isinstance(components, Stacked):
        return list(components.parts.values())
    return [components]


def _moments(components: dist.Distribution) -> tuple[Array, Array]:
    """Means [K, P, M] and covariance factors, [K, P, M, M] or diagonal [K, P, M]."""
    base: Any = components
    if isinstance(components, dist.Independent):
        base = components.base_dist
    shape = components.event_shape
    if isinstance(base, dist.Normal):
        loc, scale = loc_and_scale(components)
        return outputs_first(loc, shape, 1), outputs_first(scale, shape, 1)
    gaussian = full_gaussian(components)
    if gaussian is not None:
        return gaussian
    loc, factor = project_outputs(components, jnp.eye(shape[-1]))
    factor = jnp.asarray(factor)
    covariance = matmul(jnp.swapaxes(factor, -1, -2), factor)
    return loc, jax.vmap(jax.vmap(lapack.factor))(covariance)


def _log_components(components: Any, v: Float[Array, "S K *event"]) -> Array:
    """log N(v_sk; m_j, S_j) of every draw under every component, [S, K, K]."""
    values = [v]
    if isinstance(components, Stacked):
        values = list(components.unstack(v).values())
    total: Any = 0.0
    for part, value in zip(_parts(components), values):
        each = jax.vmap(_log_density, (None, 0, 0))
        rows = jax.vmap(jax.vmap(each, (0, None, None)), (0, None, None))
        total += rows(outputs_first(value, part.event_shape, 1), *_moments(part))
    return total


def _log_overlap(components: dist.Distribution) -> Array:
    """log N(m_k; m_j, S_k + S_j) for every pair of components, [K, K]."""

    def pair(m, s, n, t):
        return _log_density(m, n, _factor_of_sum(s, t))

    return _over_pairs(pair, components)


def _bhattacharyya(components: dist.Distribution) -> Array:
    """−log ∫ √(q_k q_j) dv for every pair of components, [K, K].

    ¼ Δᵀ(S_k + S_j)⁻¹Δ + ½ log|(S_k + S_j)/2| − ¼ log|S_k| − ¼ log|S_j|.
    """

    def pair(m, s, n, t):
        factor = _factor_of_sum(s, t)
        white, log_det = _whiten(m - n, factor)
        log_dets = _log_diagonal(s) + _log_diagonal(t)
        log_det -= 0.5 * m.size * jnp.log(2.0)
        return 0.25 * jnp.sum(jnp.square(white)) + log_det - 0.5 * log_dets

    return _over_pairs(pair, components)


def _over_pairs(pair: Callable, components: dist.Distribution) -> Array:
    """``pair`` of every two components, added over the independent parts, [K, K]."""
    total: Any = 0.0
    for part in _parts(components):
        moments = _moments(part)
        rows = jax.vmap(pair, (None, None, 0, 0))
        total += jax.vmap(rows, (0, 0, None, None))(*moments, *moments)
    return total


Factor = Float[Array, "P M M"] | Float[Array, "P M"]


def _factor_of_sum(s: Factor, t: Factor) -> Factor:
    """A factor of S + T, from factors of both; diagonals stay diagonals."""
    if s.ndim == 2:
        return jnp.sqrt(s * s + t * t)
    sums = matmul(s, jnp.swapaxes(s, -1, -2)) + matmul(t, jnp.swapaxes(t, -1, -2))
    return jax.vmap(lapack.factor)(sums)


def _log_diagonal(factor: Factor) -> Array:
    """½ log of the determinant, over all outputs."""
    if factor.ndim == 3:
        factor = jnp.diagonal(factor, axis1=-2, axis2=-1)
    return jnp.sum(jnp.log(factor))


def _whiten(v: Float[Array, "P M"], factor: Factor) -> tuple[Array, Array]:
    """factor⁻¹ v, and ½ log of the determinant of factor factorᵀ."""
    if factor.ndim == 2:
        return v / factor, _log_diagonal(factor)
    white = jax.vmap(solve_lower)(factor, v[..., None])[..., 0]
    return white, _log_diagonal(factor)


def _log_density(v: Float[Array, "P M"], loc: Float[Array, "P M"], factor: Factor):
    """log N(v; loc, factor factorᵀ) over all outputs."""
    white, log_det = _whiten(v - loc, factor)
    return jnp.sum(dist.Normal(0.0, 1.0).log_prob(white)) - log_det
