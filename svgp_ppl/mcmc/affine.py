"""How the unconstrained values of a model follow from what a sampler moves."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from svgp_ppl.linalg import matmul
from svgp_ppl.mcmc.target import Data

__all__ = ["OTHERS", "Coordinates", "plain_coordinates", "with_pseudo_data"]

# The coordinate of everything except processes with sites.
OTHERS = "(others)"


class Coordinates(NamedTuple):
    """The sampler moves ξ of the processes with sites, and η of θ = loc + scale_tril η.

    θ are the unconstrained values of all other latent sites, in one row. The map of θ
    has a constant volume and is left out of the density; that of ξ to v is in the model
    (``mcmc.sites``). The pseudo-data y of its sites may move with θ, as ``pseudo_data +
    slopes η``: they then follow what is added to the process, such as an intercept.

    Attributes:
        loc: θ by site, unconstrained, at the fit or where the log density is highest
            near it; empty if the sampler moves θ itself.
        scale_tril: Factor of the inverse curvature of the log density there.
        pseudo_data: y by process at η = 0, [B, R]; empty if they do not move.
        slopes: Their change with η, [B, R, D].
    """

    loc: Mapping[str, Any]
    scale_tril: Any
    pseudo_data: Mapping[str, Any] = {}
    slopes: Mapping[str, Any] = {}

    def at(self, position: Mapping[str, Any], data: Data) -> tuple[dict, Data]:
        """Unconstrained values by site, ``f_base`` for processes with sites; the data.

        Args:
            position: What the sampler moves.
            data: Second argument of the log density of the values.
        """
        if not self.loc:
            return dict(position), data
        loc, unravel = ravel_pytree(self.loc)
        eta = position[OTHERS]
        others = unravel(loc + matmul(self.scale_tril, eta))
        values = {n: x for n, x in position.items() if n != OTHERS} | others
        return values, with_pseudo_data(data, self.pseudo_data, self.slopes, eta)

    def from_values(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The positions of values with ξ in place of v, [chains, ...]; on the host."""
        if not self.loc:
            return dict(values)
        shifts = [
            values[name] - np.asarray(self.loc[name]) for name in sorted(self.loc)
        ]
        rows = np.concatenate([x.reshape(len(x), -1) for x in shifts], axis=1)
        position = {n: x for n, x in values.items() if n not in self.loc}
        scaled = np.linalg.solve(np.asarray(self.scale_tril), rows.T).T
        position[OTHERS] = scaled.astype(rows.dtype)
        return position

    def moved(self, mean: np.ndarray, scale_tril: np.ndarray) -> "Coordinates":
        """Coordinates η' of η = mean + scale_tril η'; on the host."""
        given = jax.device_get(self)
        unravel: Any
        flat, unravel = ravel_pytree(given.loc)

        def product(slope: Any, by: np.ndarray) -> np.ndarray:
            return (np.asarray(slope, float) @ by).astype(slope.dtype)

        loc = flat + product(given.scale_tril, mean)
        slopes = given.slopes
        return Coordinates(
            jax.device_get(unravel(jnp.asarray(loc, flat.dtype))),
            product(given.scale_tril, scale_tril),
            {n: y + product(slopes[n], mean) for n, y in given.pseudo_data.items()},
            {n: product(slope, scale_tril) for n, slope in slopes.items()},
        )


def plain_coordinates() -> Coordinates:
    """Unconstrained values, unchanged."""
    return Coordinates({}, np.zeros((0, 0)))


def with_pseudo_data(
    data: Data, start: Mapping[str, Any], slopes: Mapping[str, Any], shift: Any
) -> Data:
    """The data with the pseudo-data ``start + slopes shift`` of some processes."""
    moved = {
        name: data.sites[name]._replace(data=y + matmul(slopes[name], shift))
        for name, y in start.items()
    }
    return data._replace(sites={**data.sites, **moved})
