"""log E p(y|f) of a mixture of distributions, by its components.

    p(y|f) = Σ_k w_k(f) p_k(y|f),    E p = Σ_k E w_k p_k.

Each term has modes of its own: that of a narrow component is not seen on the floor of a
wide one, and a sum of several narrow ones has more modes than are looked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array

from svgp_ppl.marginals import Marginal

__all__ = ["by_components"]


@dataclass(frozen=True)
class _Component:
    """Component k of a mixture, with its weight."""

    mixture: Any
    k: Any

    def log_prob(self, value) -> Array:
        each = self.mixture.component_log_probs(value)
        return jnp.take(each, self.k, axis=-1)


def by_components(
    rule: Callable, likelihood: Callable, y: Array, marginal: Marginal
) -> Array:
    """``rule(likelihood, y, marginal)``, log E p(y_n | f_n), over any components of p.

    Args:
        rule: The rule.
        likelihood: f -> NumPyro distribution, a mixture of which is taken apart.
        y: Data, [N] and event axes.
        marginal: Distribution of a latent.
    """
    mixture = likelihood(marginal.mean)
    if not isinstance(mixture, dist.MixtureSameFamily | dist.MixtureGeneral):
        return rule(likelihood, y, marginal)

    def of_component(k):
        return rule(lambda f: _Component(likelihood(f), k), y, marginal)

    # One after the other: a program for one component.
    each = jax.lax.map(of_component, jnp.arange(mixture.mixture_size))
    return logsumexp(each, axis=0)
