"""Coordinates in which the belief of a fit is standard normal."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.handlers import seed, substitute, trace

from svgp_ppl.beliefs import full_gaussian
from svgp_ppl.linalg import solve_lower
from svgp_ppl.mcmc.target import Target

__all__ = ["Frame", "belief_frame"]


class Frame(NamedTuple):
    """v = m + S ξ for some sites, in their place the sampler moves ξ.

    The density of ξ is that of v up to a constant. Under a belief N(m, S Sᵀ) that is
    near the posterior, ξ is near N(0, I): the metric of the sampler starts there.

    Attributes:
        loc: m by site, [P, M].
        scale_tril: S by site, [P, M, M].
    """

    loc: dict[str, jax.Array]
    scale_tril: dict[str, jax.Array]

    def to_values(self, position: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The sites at ξ."""

        def value(name, xi):
            if name not in self.loc:
                return xi
            rows = jnp.reshape(xi, self.loc[name].shape)
            moved = jnp.einsum("pij,pj->pi", self.scale_tril[name], rows)
            return jnp.reshape(self.loc[name] + moved, jnp.shape(xi))

        return {name: value(name, xi) for name, xi in position.items()}

    def from_values(self, values: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """ξ of the sites."""

        def position(name, v):
            if name not in self.loc:
                return v
            rows = jnp.reshape(v, self.loc[name].shape) - self.loc[name]
            xi = jax.vmap(solve_lower)(self.scale_tril[name], rows[..., None])
            return jnp.reshape(xi, jnp.shape(v))

        return {name: position(name, v) for name, v in values.items()}


def belief_frame(
    key, guide: Callable, params: Mapping[str, Any], target: Target
) -> Frame:
    """The frame of the Gaussian beliefs with full covariance that a guide has."""
    run = substitute(seed(guide, key), data=dict(params))
    sites = trace(run).get_trace(*target.args, **target.kwargs)
    loc, scale_tril = {}, {}
    for name in target.whitened_names():
        moments = full_gaussian(sites[name]["fn"])
        if moments is not None:
            loc[name], scale_tril[name] = moments
    return Frame(loc, scale_tril)
