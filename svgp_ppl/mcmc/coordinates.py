"""Coordinates in which the q(v) of a fit is standard normal."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from svgp_ppl.compilation import call
from svgp_ppl.handlers import trace_of
from svgp_ppl.linalg import solve_lower
from svgp_ppl.mcmc.target import Target
from svgp_ppl.variational import full_gaussian, simplified

__all__ = ["Coordinates", "variational_coordinates"]


class Coordinates(NamedTuple):
    """v = m + S ξ for some sites, in their place the sampler moves ξ.

    The density of ξ is that of v up to a constant. Under a q(v) N(m, S Sᵀ) that is
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


def variational_coordinates(
    key, guide: Callable, params: Mapping[str, Any], target: Target
) -> Coordinates:
    """The coordinates of the full-covariance Gaussians that a guide has."""

    def moments(key, params, data):
        args, kwargs = target.combine(data.arrays)
        sites = trace_of(guide, args, kwargs, key=key, values=params)
        found = {}
        for name in target.whitened_names:
            site = sites[name]
            found[name] = full_gaussian(simplified(site["fn"], site["value"].shape))
        return {name: pair for name, pair in found.items() if pair is not None}

    made_of = ("coordinates", guide, *target.made_of)
    found = call(moments, made_of, key, dict(params), target.data, runs_once=True)
    return Coordinates(
        {name: loc for name, (loc, _) in found.items()},
        {name: tril for name, (_, tril) in found.items()},
    )
