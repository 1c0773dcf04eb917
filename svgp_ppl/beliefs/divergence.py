"""KL( q(v) ‖ N(0, I) ) of every belief."""

from functools import singledispatch
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from svgp_ppl import lapack
from svgp_ppl.beliefs.joint import Block, log_mixing
from svgp_ppl.beliefs.projection import (
    full_scale_tril,
    loc_and_scale,
    outputs_first,
)
from svgp_ppl.linalg import matmul, solve_lower

__all__ = ["Entropy", "kl_to_white"]

Entropy = Literal["jensen", "monte_carlo"]


@singledispatch
def kl_to_white(
    belief, *, entropy: Entropy = "jensen", key=None, num_draws: int = 16
) -> Float[Array, ""]:
    """KL( q(v) ‖ N(0, I) ) in nats, summed over outputs.

    For a point the entropy has no finite value and is left out: −log N(v; 0, I), the
    second reading of the bound. For a mixture the cross term is exact and the entropy
    is either bounded from below, −Σ_k π_k log Σ_j π_j N(m_k; m_j, S_k + S_j) (Dezfouli
    & Bonilla 2015, eq. 19), or estimated without bias from draws of each component.

    Args:
        belief: The belief over v.
        entropy: ``"jensen"`` or ``"monte_carlo"``; only read for mixtures.
        key: Random key, needed for ``"monte_carlo"``.
        num_draws: Draws per component for ``"monte_carlo"``.
    """
    raise ValueError(f"no KL to N(0, I) is known for a {type(belief).__name__}")


@kl_to_white.register
def _(belief: dist.Delta, **options):
    return -jnp.sum(dist.Normal(0.0, 1.0).log_prob(belief.v))


@kl_to_white.register
def _(belief: dist.Independent, **options):
    base: Any = belief.base_dist
    if isinstance(base, dist.Normal):
        loc, scale = loc_and_scale(belief)
        return jnp.sum(
            0.5 * (jnp.square(scale) + jnp.square(loc) - 1.0) - jnp.log(scale)
        )
    return kl_to_white(base, **options)


@kl_to_white.register
def _(belief: dist.MultivariateNormal, **options):
    return jnp.sum(_kl_full(belief.loc, full_scale_tril(belief)))


def _kl_full(loc: ArrayLike, scale_tril: ArrayLike) -> Array:
    """½ (‖S‖² + ‖m‖² − M) − Σ log diag S, for every leading axis."""
    loc, scale_tril = jnp.asarray(loc), jnp.asarray(scale_tril)
    log_diagonal = jnp.log(jnp.diagonal(scale_tril, axis1=-2, axis2=-1))
    squares = jnp.sum(jnp.square(scale_tril), (-2, -1)) + jnp.sum(jnp.square(loc), -1)
    return 0.5 * (squares - loc.shape[-1]) - jnp.sum(log_diagonal, -1)


@kl_to_white.register
def _(belief: Block, **options):
    return kl_to_white(belief.joint, **options)


@kl_to_white.register
def _(
    belief: dist.MixtureSameFamily,
    *,
    entropy: Entropy = "jensen",
    key=None,
    num_draws: int = 16,
):
    components = belief.component_distribution
    log_pi = log_mixing(belief)
    loc, square = components.mean, components.variance + jnp.square(components.mean)
    size = loc[0].size
    # −E log N(v; 0, I) under each component, exactly.
    cross = 0.5 * (
        size * jnp.log(2 * jnp.pi) + jnp.sum(square.reshape(len(loc), -1), 1)
    )
    if len(loc) == 1:  # the exact entropy of the one Gaussian
        negative_entropy = -jnp.sum(_entropies(components))
        return cross[0] + negative_entropy
    if entropy == "jensen":
        overlap = _log_overlap(components)  # [K, K]
        negative_entropy = logsumexp(log_pi[None, :] + overlap, axis=1)  # [K]
    elif entropy == "monte_carlo":
        if key is None:
            raise ValueError("entropy='monte_carlo' needs a random key")
        draws = components.sample(key, (num_draws,))  # [S, K, ...]
        values = outputs_first(draws, components.event_shape, 1)  # [S, K, P, M]
        each = jax.vmap(_log_density, (None, 0, 0))  # [K]
        log_q = jax.vmap(jax.vmap(each, (0, None, None)), (0, None, None))(
            values, *_moments(components)
        )
        negative_entropy = jnp.mean(logsumexp(log_pi + log_q, axis=-1), axis=0)
    else:
        raise ValueError(
            f"entropy must be 'jensen' or 'monte_carlo', and not {entropy!r}"
        )
    return jnp.sum(jnp.exp(log_pi) * (cross + negative_entropy))


def _moments(components: dist.Distribution) -> tuple[Array, Array]:
    """Means [K, P, M] and covariance factors, [K, P, M, M] or diagonal [K, P, M]."""
    base: Any = components
    if isinstance(components, dist.Independent):
        base = components.base_dist
    shape = components.event_shape
    if isinstance(base, dist.Normal):
        loc, scale = loc_and_scale(components)
        return outputs_first(loc, shape, 1), outputs_first(scale, shape, 1)
    loc = outputs_first(base.loc, shape, 1)
    return loc, outputs_first(full_scale_tril(base), shape, 2)


def _entropies(components: dist.Distribution) -> Array:
    """Entropy of every Gaussian component, [K]."""
    loc, factor = _moments(components)
    if factor.ndim > loc.ndim:
        factor = jnp.diagonal(factor, axis1=-2, axis2=-1)
    constant = 0.5 * (1 + jnp.log(2 * jnp.pi))
    return jnp.sum(jnp.log(factor) + constant, axis=(-2, -1))


def _log_overlap(components: dist.Distribution) -> Array:
    """log N(m_k; m_j, S_k + S_j) for every pair of components, [K, K]."""
    loc, factor = _moments(components)

    def pair(m, s, n, t):
        if factor.ndim == loc.ndim:
            return _log_density(m, n, jnp.sqrt(s * s + t * t))
        covariance = matmul(s, jnp.swapaxes(s, -1, -2)) + matmul(
            t, jnp.swapaxes(t, -1, -2)
        )
        return _log_density(m, n, jax.vmap(lapack.factor)(covariance))

    rows = jax.vmap(pair, (None, None, 0, 0))
    return jax.vmap(rows, (0, 0, None, None))(loc, factor, loc, factor)


def _log_density(
    v: Float[Array, "P M"],
    loc: Float[Array, "P M"],
    factor: Float[Array, "P M M"] | Float[Array, "P M"],
) -> Float[Array, ""]:
    """log N(v; loc, factor factorᵀ) over all outputs; a diagonal may stand alone."""
    scale = factor
    if factor.ndim > loc.ndim:
        white = jax.vmap(solve_lower)(factor, (v - loc)[..., None])[..., 0]
        scale = jnp.diagonal(factor, axis1=-2, axis2=-1)
    else:
        white = (v - loc) / factor
    return jnp.sum(dist.Normal(0.0, 1.0).log_prob(white) - jnp.log(scale))
