"""The maximum of the posterior of θ near a fit, its curvature, and how ξ follows θ.

A fit that was stopped early leaves θ̂ on a slope. The curvature there is not that of
the region in which the chains will be, and need not be positive: Newton steps continue
from there.

Under the sites of a fit ξ of a process is standard normal at any θ, if what θ changes
is the prior of the process. What else moves with v is not in them. An intercept β
beside a process, y = β + f(x) + ε, is known to a small part of its sd once f is: β and
f would move together, in small steps. With the blocks of the negative Hessian of the
log density at (0, θ̂),

    A = −∂²ℓ/∂ξ∂ξᵀ ≈ I,    G = −∂²ℓ/∂ξ∂θᵀ,    D = −∂²ℓ/∂θ∂θᵀ,

the density at θ is highest at ξ = B (θ − θ̂), B = −A⁻¹ G, and the curvature of the
posterior of θ is the Schur complement D − Gᵀ A⁻¹ G. The pseudo-data y of the sites are
made to move with θ so that B is zero, by y + K (θ − θ̂), K = (∂ξ/∂y)⁺ B: at any θ the
sites then have the posterior of f at its intercept. A and G come from differences of
gradients.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy.sparse.linalg import LinearOperator, cg

from svgp_ppl.mcmc.affine import Coordinates, with_pseudo_data
from svgp_ppl.mcmc.sites import base_of
from svgp_ppl.mcmc.target import Data, Target
from svgp_ppl.runtime.compilation import call
from svgp_ppl.variational.sites import data_that_move

__all__ = ["curved"]

# An evaluation takes two gradients per dimension, up to so many dimensions.
_MOST_DIMENSIONS = 100
# Step of the first differences on the unconstrained scale (logarithms, mostly); later
# ones are half a standard deviation.
_STEP = 0.03
# The sd of an unconstrained value is taken to be in this range.
_LEAST_SD, _MOST_SD = 1e-3, 3.0
# In standard deviations: a place this close to the highest one is as good, and a longer
# step than _LONGEST leaves the region in which its quadratic form holds.
_CLOSE, _LONGEST = 1.0, 2.0
# With more θ than that, the maximum, which random effects share with their scale, is
# far from the bulk of θ: its density is higher by half a nat per dimension.
_MOST_TO_CLIMB = 30
# Evaluations before the search is given up: it has no end if there is no maximum.
_MOST_LOOKS = 20
# ξ follows θ if an sd of some θ would move its maximum by more sd than that.
_FOLLOWED = 0.5
# Corrections of K, each at the sd that θ has with the last, products with A in one, and
# how much the sd of a θ has to grow by one.
_MOST_CORRECTIONS, _MOST_PRODUCTS, _GROWTH = 4, 6, 1.2
# Step along ξ in sd, and the residual at which A⁻¹ is accurate enough.
_STEP_OF_XI, _RESIDUAL = 0.3, 0.1


class _Look(NamedTuple):
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


def curved(
    target: Target,
    data: Data,
    loc: dict,
    middle: dict,
    scale_trils: Mapping[str, Any],
) -> Coordinates | None:
    """Coordinates about θ̂, or the maximum near it if θ̂ is more than one sd away.

    With many θ, such as random effects, it is θ̂.

    At ξ = 0, log p(ξ = 0, θ | y) = log p(θ | y) + log p(ξ = 0 | θ, y), and the second
    term is nearly the same for all θ: maximum and curvature are those of the posterior
    of θ.

    Args:
        target: The log density.
        data: Its second argument.
        loc: θ̂ by site, unconstrained.
        middle: ξ = 0 of every process with sites.
        scale_trils: L at θ̂ of these processes, by name.

    Returns:
        None if there are no θ or too many, or the density is not finite.
    """
    size = sum(np.size(x) for x in loc.values())
    if not 0 < size <= _MOST_DIMENSIONS:
        return None
    density = _Density(target, data, loc, middle)
    start = np.zeros(size)
    slopes = density.no_slopes
    first = density.look(slopes, start, np.full(size, _STEP))
    seen = density.look(slopes, start, np.nan_to_num(first.sd(), nan=1.0) / 2)
    if not seen.is_finite():
        return None
    slopes, seen = _followed(density, start, seen, scale_trils)
    place = start
    if size <= _MOST_TO_CLIMB:
        place, seen = _climbed(partial(density.look, slopes), start, seen)
    return density.coordinates(place, seen.scale_tril(), slopes)


class _Density:
    """The log density of (ξ, θ − θ̂) in one row, by differences of its gradients."""

    def __init__(self, target: Target, data: Data, loc: dict, middle: dict):
        self._data, self._values = data, (middle, loc)
        self._dtype = np.result_type(*loc.values())
        self._made_of = ("curvature", *target.made_of)
        self._logdensity_fn = target.logdensity_fn
        self.num_xi = sum(np.size(x) for x in middle.values())
        self.pseudo_data = {n: np.asarray(s.data) for n, s in data.sites.items()}
        size = sum(np.size(x) for x in loc.values())
        self.no_slopes = {
            n: np.zeros((*y.shape, size)) for n, y in self.pseudo_data.items()
        }

    def gradients(self, slopes: dict, offsets: np.ndarray) -> tuple:
        """ℓ [R] and its gradients [R, T + D], at offsets from (0, θ̂), [R, T + D].

        Args:
            slopes: K by process, [B, R, D].
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
            lambda a: np.asarray(a, self._dtype), (offsets, slopes)
        )
        given = (offsets, slopes, self.pseudo_data, self._values, self._data)
        values, rows = call(of_rows, self._made_of, *given, runs_once=True)
        return np.asarray(values, float), np.asarray(rows, float)

    def look(self, slopes: dict, place: np.ndarray, steps: np.ndarray) -> _Look:
        """What is seen at (0, θ̂ + place), with differences of these steps in θ."""
        around = np.concatenate([np.zeros((1, len(steps))), np.diag(steps)])
        offsets = place + np.concatenate([around, -np.diag(steps)])
        rows = np.pad(offsets, ((0, 0), (self.num_xi, 0)))
        values, rows = self.gradients(slopes, rows)
        ahead, behind = np.split(rows[1:], 2)
        pull, found = np.split((behind - ahead).T / (2 * steps), [self.num_xi])
        gradient = rows[0, self.num_xi :]
        return _Look(float(values[0]), gradient, (found + found.T) / 2, pull)

    def times_curvature(self, slopes: dict, xi: np.ndarray) -> np.ndarray:
        """A ξ for D columns, [T, D], by as many evaluations as a look takes."""
        size = np.linalg.norm(xi, axis=0)
        steps = _STEP_OF_XI * xi / np.where(size > 0, size, 1.0)
        rows = np.concatenate([np.zeros((1, len(xi))), steps.T, -steps.T])
        rows = np.pad(rows, ((0, 0), (0, xi.shape[1])))
        rows = self.gradients(slopes, rows)[1][1:, : self.num_xi]
        ahead, behind = np.split(rows, 2)
        return (behind - ahead).T * size / (2 * _STEP_OF_XI)

    def slopes_of(self, by_xi: np.ndarray, scale_trils: Mapping[str, Any]) -> dict:
        """K by process, from B [T, D] of all."""
        middle, _ = self._values
        stops = np.cumsum([np.size(middle[name]) for name in sorted(middle)])
        rows = dict(zip(sorted(middle), np.split(by_xi, stops[:-1])))
        slopes = {}
        for name, sites in self._data.sites.items():
            shape = (len(sites.data), -1, by_xi.shape[1])
            xi = rows[base_of(name)].reshape(shape)
            slopes[name] = data_that_move(sites, scale_trils[name], xi)
        return slopes

    def coordinates(self, place, scale_tril, slopes: dict) -> Coordinates:
        """Those of θ = θ̂ + place + scale_tril η."""
        _, loc = self._values
        follow = {n: k.astype(self._dtype) for n, k in slopes.items() if np.any(k)}
        pseudo_data = {name: self.pseudo_data[name] for name in follow}
        eye = np.eye(len(place), dtype=self._dtype)
        at_fit = Coordinates(loc, eye, pseudo_data, follow)
        return at_fit.moved(place, scale_tril)


def _followed(
    density: _Density, start: np.ndarray, seen: _Look, scale_trils: Mapping[str, Any]
) -> tuple[dict, _Look]:
    """K, and what is seen at θ̂ with it; zero, if ξ need not follow or cannot.

    A column of K is taken if the sd of its θ grows by it, as that of an intercept does
    when f follows. The kernel, which the sites follow, is left alone.
    """
    slopes, sd = density.no_slopes, seen.sd()
    growth = np.full(len(start), _GROWTH)
    for _ in range(_MOST_CORRECTIONS if slopes else 0):
        pull = seen.pull * sd  # of an sd of θ
        wanted = np.linalg.norm(pull, axis=0) > _FOLLOWED
        if not np.any(wanted):
            break
        by_xi = -_solved(partial(density.times_curvature, slopes), pull) / sd
        while np.any(wanted):
            more = density.slopes_of(by_xi * wanted, scale_trils)
            new = {name: slopes[name] + more[name] for name in slopes}
            # θ is known less once ξ follows: differences are taken there again.
            found = density.look(new, start, sd / 2)
            found = density.look(new, start, np.nan_to_num(found.sd(), nan=1.0) / 2)
            grows = found.sd() > growth * sd
            if not np.any(wanted & ~grows):
                break
            wanted &= grows
        else:  # no sd grows
            break
        if not found.is_finite():
            break
        slopes, seen, sd = new, found, found.sd()
        growth[wanted] = 1.0  # the rest of what is followed
    return slopes, seen


def _solved(times: Callable, right: np.ndarray) -> np.ndarray:
    """A⁻¹ right, by conjugate gradients on all columns together."""

    def product(row: np.ndarray) -> np.ndarray:
        return times(row.reshape(right.shape)).ravel()

    shape = (right.size, right.size)
    a: Any = LinearOperator(shape, matvec=product, dtype=float)  # type: ignore
    found, _ = cg(a, right.ravel(), rtol=_RESIDUAL, maxiter=_MOST_PRODUCTS)
    return found.reshape(right.shape)


def _climbed(look: Callable, start: np.ndarray, first: _Look) -> tuple:
    """The maximum, and the evaluation there; the start, if there is none nearby."""
    place, seen, length = start, first, _LONGEST
    for _ in range(_MOST_LOOKS):
        tril = seen.scale_tril()
        sd = np.linalg.norm(tril, axis=1)
        step = tril.T @ seen.gradient
        far = np.max(np.abs(step))
        if far <= _CLOSE:
            # The last differences were as long as the sd of the previous place.
            last = first if place is start else look(place, sd / 2)
            return (place, last) if last.is_finite() else (start, first)
        ahead = place + tril @ step * min(1.0, length / far)
        found = look(ahead, sd / 2)
        if found.is_finite() and found.value > seen.value:
            place, seen, length = ahead, found, _LONGEST
        else:
            length = min(length, far) / 4
    return start, first
