"""log E p(y|f) for four and more components, by importance sampling at a mode.

Points of the marginal itself do not find a p(y|f) that is much narrower, or far out.
With standard normals e, f = m + C e, a mode c of N(e; 0, I) p(y|e) and its curvature Λ,

    E p = ∫ r(e) q(e) de,    r(e) = p(y|e) N(e; 0, I) / q(e),
    q(e) = ¼ [ N(e; 0, I) + N(e; c, I) + N(e; c, Λ^(−1/2)) + N(e; c, Λ⁻¹) ],

a mixture with as many points from each part (Owen & Zhou 2000). Whatever p is, r is at
most four times p by the first part. If p is log-concave, the second bounds r by a value
at c: log p(y|e) − cᵀe is concave, with a slope of zero there. If p is Gaussian in e, r
is at most four times E p by the last. The third is for tails along some axes alone.
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

# In blocks to bound the memory. A quarter of Sobol' points of a power of two is spread
# as evenly as the whole.
_NUM_POINTS, _BLOCK = 2048, 256
# Of the parts about the mode: the power of Λ⁻¹ that is the covariance.
_POWERS = (0.0, 0.5, 1.0)


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
    height = 0.5 * jnp.log(values)

    def log_part(a, power):
        """Logarithm of a part of q about the mode over N(e; 0, I)."""
        change = jnp.square(a) - values**power * jnp.square(a - centre)
        return jnp.sum(0.5 * change + power * height, axis=-1)

    def add(total, block):
        noise, is_about_mode, power = block
        noise = noise.reshape(_BLOCK, *(1,) * (centre.ndim - 1), -1)
        a = is_about_mode * centre + noise * values ** (-0.5 * power)
        parts = [log_part(a, power) for power in _POWERS]
        parts = jnp.stack([jnp.zeros_like(parts[0]), *parts], axis=-1)
        log_q = logsumexp(parts, axis=-1) - jnp.log(1.0 + len(_POWERS))
        log_r = log_likelihood(small_product(vectors, a)) - log_q
        return jnp.logaddexp(total, logsumexp(log_r, axis=0)), None

    nodes, _ = normal_nodes(QuasiMonteCarlo(_NUM_POINTS), num_components(marginal))
    blocks = nodes.astype(centre.dtype).reshape(-1, _BLOCK, nodes.shape[-1])
    of_parts = np.array([(0.0, 0.0), *((1.0, power) for power in _POWERS)])
    of_blocks = np.repeat(of_parts, len(blocks) // len(of_parts), axis=0)
    is_about_mode, powers = jnp.asarray(of_blocks.T, centre.dtype)
    start = jnp.full(centre.shape[:-1], -jnp.inf, centre.dtype)
    total, _ = jax.lax.scan(add, start, (blocks, is_about_mode, powers))
    return total - jnp.log(_NUM_POINTS)
