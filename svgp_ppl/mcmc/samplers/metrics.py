"""The metric of a dense mass matrix: its estimate, and its factor one matrix at a time.

BlackJAX's own calls LAPACK with the matrices of all chains together, which can hang for
ever on a CPU (docs/decisions/0009).
"""

from typing import Any

import jax.numpy as jnp
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from svgp_ppl.linalg import matmul, solve_lower, solve_lower_transposed
from svgp_ppl.linalg.lapack import factor
from svgp_ppl.mcmc.samplers.blackjax_parts import Metric, MetricCore

__all__ = ["dense_metric", "with_shrunk_correlations"]


def dense_metric(inverse_mass_matrix: Float[Array, "D D"]) -> Metric:
    """Momenta p ~ N(0, M), kinetic energy pᵀ M⁻¹ p / 2; M⁻¹ = L Lᵀ, so p = L⁻ᵀ ε.

    Like ``blackjax.mcmc.metrics.gaussian_euclidean``, including generalised U-turns
    (Betancourt 2013).

    Args:
        inverse_mass_matrix: M⁻¹, symmetric and positive definite.
    """
    tril = factor(inverse_mass_matrix)

    def sample_momentum(key: Any, position: Any) -> Any:
        flat, unflatten = ravel_pytree(position)
        noise = random.normal(key, flat.shape, flat.dtype)
        return unflatten(solve_lower_transposed(tril, noise[:, None])[:, 0])

    def velocity(momentum) -> Array:
        return matmul(inverse_mass_matrix, ravel_pytree(momentum)[0])

    def kinetic_energy(momentum, position=None):
        del position
        return 0.5 * jnp.dot(velocity(momentum), ravel_pytree(momentum)[0])

    def check_turning(left, right, total, position_left=None, position_right=None):
        del position_left, position_right
        ends = [ravel_pytree(end)[0] for end in (left, right)]
        rho = ravel_pytree(total)[0] - (ends[0] + ends[1]) / 2
        at_left, at_right = (jnp.dot(velocity(end), rho) <= 0 for end in (left, right))
        return at_left | at_right

    def scale(position, element, *, inv, trans):
        # The square root of M⁻¹ is L, that of M is L⁻ᵀ.
        del position
        flat, unflatten = ravel_pytree(element)
        if inv:
            scaled = matmul(tril.T if trans else tril, flat)
        else:
            solve = solve_lower if trans else solve_lower_transposed
            scaled = solve(tril, flat[:, None])[:, 0]
        return unflatten(scaled)

    turning: Any = check_turning
    return Metric(sample_momentum, kinetic_energy, turning, scale)


def with_shrunk_correlations(core: MetricCore) -> MetricCore:
    """Stan's variances, with correlations as far as that many draws tell them.

    The covariance of fewer draws than dimensions is singular: Stan's regularisation
    leaves 0.005 / (n + 5) along its null space, and steps are short by the root of it.
    """

    def final(state: Any) -> Any:
        new = core.final(state)
        shrunk = _shrunk(new.inverse_mass_matrix, state.wc_state.sample_size)
        return new._replace(inverse_mass_matrix=shrunk)

    return core._replace(final=final)


def _shrunk(
    covariance: Float[Array, "D D"], num_draws: int | Array
) -> Float[Array, "D D"]:
    """Variances as they are, and correlations R as (1 − ρ) R + ρ I.

    ρ = (tr R² + D²) / [(n + 1)(tr R² − D)], at most 1, for n draws of D numbers: the
    oracle approximating shrinkage towards I (Chen, Wiesel, Eldar & Hero 2010, eq. 23
    without its terms 2/D, as in ``sklearn.covariance.oas``).
    """
    sd = jnp.sqrt(jnp.diag(covariance))
    correlations = covariance / jnp.outer(sd, sd)
    squares = jnp.sum(correlations**2)
    above = squares + len(sd) ** 2
    below = (num_draws + 1) * (squares - len(sd))
    shrinkage = jnp.where(above < below, above / below, 1.0)
    diagonal = jnp.diag(sd**2)
    return diagonal + (1 - shrinkage) * (covariance - diagonal)
