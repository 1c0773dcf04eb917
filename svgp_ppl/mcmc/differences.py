"""The log density near a fit: gradients, and curvature by differences of them.

Derivatives of second order would need those of every rule in the library, and of what a
user writes; central differences of gradients need neither.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from svgp_ppl.mcmc.affine import with_pseudo_data
from svgp_ppl.mcmc.target import Data, Target
from svgp_ppl.runtime.compilation import call

__all__ = ["Density", "Look"]

# The sd of an unconstrained value is taken to be in this range.
_LEAST_SD, _MOST_SD = 1e-3, 3.0


class Look(NamedTuple):
    """The log density, its gradient and its curvature in θ at a place.

    Attributes:
        value: ℓ.
        gradient: ∂ℓ/∂θ, [D].
        curvature: −∂²ℓ/∂θ∂θᵀ, [D, D].
        pull: −∂²ℓ/∂ξ∂θᵀ, [T, D].
    """

    value: float
    gradient: np.ndarray
    curvature: np.ndarray
    pull: np.ndarray

    def is_finite(self) -> bool:
        """Whether all of these are finite."""
        return all(np.all(np.isfinite(part)) for part in self)

    def scale_tril(self) -> np.ndarray:
        """Factor of the inverse curvature, in the range of an sd."""
        values, vectors = np.linalg.eigh(self.curvature)
        values = np.clip(values, _MOST_SD**-2, _LEAST_SD**-2)
        return np.linalg.cholesky((vectors / values) @ vectors.T)

    def sd(self) -> np.ndarray:
        """Of every θ given the others, in the same range."""
        curvature = np.clip(np.diag(self.curvature), _MOST_SD**-2, _LEAST_SD**-2)
        return 1 / np.sqrt(curvature)


class Density:
    """The log density of (ξ, θ) in one row, around a fit.

    Args:
        target: The log density.
        data: Its second argument.
        loc: θ̂ by site, unconstrained.
        middle: ξ by site, 0 of every process with sites; v of those without. Rows are
            in the order of the names, or in its own if it is an ordered dict.

    Attributes:
        loc: θ̂.
        pseudo_data: y of the sites by process, [B, R].
        no_slopes: Zero as their change with θ, [B, R, D].
        dtype: Precision of the values.
        num_xi: T, the length of ξ in a row.
        num_theta: D, that of θ.
    """

    def __init__(
        self,
        target: Target,
        data: Data,
        loc: Mapping[str, Any],
        middle: Mapping[str, Any],
    ):
        self.loc = loc
        self._data, self._values = data, (middle, dict(loc))
        self.dtype = np.result_type(*jax.tree.leaves(self._values))
        self._made_of = ("differences", *target.made_of)
        self._runs_once = not target.is_expensive
        self._logdensity_fn = target.logdensity_fn
        self.num_xi, self.num_theta = (
            sum(np.size(x) for x in values.values()) for values in self._values
        )
        self.pseudo_data = {n: np.asarray(s.data) for n, s in data.sites.items()}
        self.no_slopes = {
            n: np.zeros((*y.shape, self.num_theta)) for n, y in self.pseudo_data.items()
        }

    def gradients(
        self, slopes: Mapping[str, Any], offsets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """ℓ [R] and its gradients [R, T + D], at offsets from the fit, [R, T + D].

        Args:
            slopes: Change of the pseudo-data with θ, [B, R, D].
            offsets: Where.
        """

        def of_rows(offsets, slopes, pseudo_data, values, data):
            flat, unravel = ravel_pytree(values)

            def density(offset):
                xi, theta = unravel(flat + offset)
                shift = offset[self.num_xi :]
                moved = with_pseudo_data(data, pseudo_data, slopes, shift)
                return self._logdensity_fn({**xi, **theta}, moved)

            return jax.lax.map(jax.value_and_grad(density), offsets)

        offsets, slopes = jax.tree.map(
            lambda a: np.asarray(a, self.dtype), (offsets, dict(slopes))
        )
        given = (offsets, slopes, self.pseudo_data, self._values, self._data)
        values, rows = call(of_rows, self._made_of, *given, runs_once=self._runs_once)
        return np.asarray(values, float), np.asarray(rows, float)

    def look(
        self, slopes: Mapping[str, Any], place: np.ndarray, steps: np.ndarray
    ) -> Look:
        """What is seen at (ξ, θ̂ + place), with differences of these steps in θ."""
        around = np.concatenate([np.zeros((1, len(steps))), np.diag(steps)])
        offsets = place + np.concatenate([around, -np.diag(steps)])
        rows = np.pad(offsets, ((0, 0), (self.num_xi, 0)))
        values, rows = self.gradients(slopes, rows)
        ahead, behind = np.split(rows[1:], 2)
        pull, found = np.split((behind - ahead).T / (2 * steps), [self.num_xi])
        gradient = rows[0, self.num_xi :]
        return Look(float(values[0]), gradient, (found + found.T) / 2, pull)

    def times_curvature(
        self, slopes: Mapping[str, Any], steps: np.ndarray
    ) -> np.ndarray:
        """−∂²ℓ/∂ξ∂ξᵀ times steps in ξ, [T, K], which are those of the differences.

        With K = D it is a program that :meth:`look` has compiled.
        """
        rows = np.concatenate([np.zeros((1, len(steps))), steps.T, -steps.T])
        rows = np.pad(rows, ((0, 0), (0, self.num_theta)))
        rows = self.gradients(slopes, rows)[1][1:, : self.num_xi]
        ahead, behind = np.split(rows, 2)
        return (behind - ahead).T / 2
