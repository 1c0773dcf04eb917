"""log E p(y|f) for four and more components, by importance sampling at a mode.

Points of the marginal itself do not find a p(y|f) that is much narrower, or far out.
With standard normals e, f = m + C e, a mode c of N(e; 0, I) p(y|e) and its curvature Λ,

    E p = ∫ r(e) q(e) de,    r(e) = p(y|e) N(e; 0, I) / q(e),
    q(e) = ¼ N(e; 0, I) + ¼ N(e; c, I) + ½ N(e; c, Λ⁻¹),

a mixture with a fixed number of points from each part (Owen & Zhou 2000). Whatever p
is, r is at most four times p by the first part. If p is log-concave, the second bounds
it by a value at c: log p(y|e) − cᵀe is concave, with a slope of zero there. If p is
Gaussian in e, r is at most twice E p by the third.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array

from svgp_ppl.expectations.modes import mode_of_integrand, of_normals
from svgp_ppl.expectations.nodes import (
    QuasiMonteCarlo,
    normal_nodes,
    num_components,
)
from svgp_ppl.linalg import small_product
from svgp_ppl.marginals import Marginal

__all__ = ["log_average_by_importance"]

# Points of the parts of q, in blocks to bound the memory: a quarter of Sobol' points of
# a power of two is spread as evenly as the whole.
_NUM_POINTS, _BLOCK = 2048, 256
_SHARES = (0.25, 0.25, 0.5)


def log_average_by_importance(
    likelihood: Callable, y: Array, marginal: Marginal
) -> Array:
    """log E p(y_n | f_n) under each component of a mixture, [N] or [K, N].

    Args:
        likelihood: f [.., N, Q] -> NumPyro distribution.
        y: Data, [N] and event axes.
        marginal: Distribution of several components of a latent.
    """
    log_likelihood = of_normals(likelihood, y, marginal)
    centre, values, vectors = mode_of_integrand(likelihood, y, marginal)
    # In principal axes, where all parts of q are products.
    centre = small_product(jnp.swapaxes(vectors, -1, -2), centre)
    height = 0.5 * jnp.sum(jnp.log(values), axis=-1)

    def add(total, block):
        noise, is_at_mode, is_narrow = block
        noise = noise.reshape(_BLOCK, *(1,) * (centre.ndim - 1), -1)
        a = jnp.where(is_at_mode, centre, 0.0)
        a = a + noise * jnp.where(is_narrow, 1.0 / jnp.sqrt(values), 1.0)
        square, to_mode = jnp.square(a), jnp.square(a - centre)
        # Logarithms of the parts of q over N(e; 0, I).
        parts = [
            jnp.zeros_like(square[..., 0]),
            0.5 * jnp.sum(square - to_mode, axis=-1),
            0.5 * jnp.sum(square - values * to_mode, axis=-1) + height,
        ]
        log_q = logsumexp(
            jnp.stack(parts, -1), axis=-1, b=jnp.asarray(_SHARES, a.dtype)
        )
        log_r = log_likelihood(small_product(vectors, a)) - log_q
        return jnp.logaddexp(total, logsumexp(log_r, axis=0)), None

    nodes, _ = normal_nodes(QuasiMonteCarlo(_NUM_POINTS), num_components(marginal))
    blocks = nodes.astype(centre.dtype).reshape(-1, _BLOCK, nodes.shape[-1])
    part = np.repeat(np.arange(3), np.multiply(_SHARES, len(blocks)).astype(int))
    start = jnp.full(centre.shape[:-1], -jnp.inf, centre.dtype)
    total, _ = jax.lax.scan(add, start, (blocks, part > 0, part == 2))
    return total - jnp.log(_NUM_POINTS)
