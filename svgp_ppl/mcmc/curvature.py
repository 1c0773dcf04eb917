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
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from svgp_ppl.mcmc.affine import Coordinates
from svgp_ppl.mcmc.differences import Density, Look
from svgp_ppl.mcmc.sites import base_of
from svgp_ppl.mcmc.target import Data, Target
from svgp_ppl.variational.sites import Sites, data_that_move

__all__ = ["curved"]

# An evaluation takes two gradients per dimension, up to so many dimensions.
_MOST_DIMENSIONS = 100
# Step of the first differences on the unconstrained scale (logarithms, mostly); later
# ones are half a standard deviation.
_STEP = 0.03
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
    density = Density(target, data, loc, middle)
    start = np.zeros(size)
    slopes = density.no_slopes
    first = density.look(slopes, start, np.full(size, _STEP))
    seen = density.look(slopes, start, np.nan_to_num(first.sd(), nan=1.0) / 2)
    if not seen.is_finite():
        return None
    slopes_of = partial(_slopes_of, data.sites, middle, scale_trils)
    slopes, seen = _followed(density, start, seen, slopes_of)
    place = start
    if size <= _MOST_TO_CLIMB:
        place, seen = _climbed(partial(density.look, slopes), start, seen)
    return _coordinates(density, place, seen.scale_tril(), slopes)


def _coordinates(
    density: Density, place: np.ndarray, scale_tril: np.ndarray, slopes: dict
) -> Coordinates:
    """Those of θ = θ̂ + place + scale_tril η."""
    dtype = density.dtype
    follow = {n: k.astype(dtype) for n, k in slopes.items() if np.any(k)}
    pseudo_data = {name: density.pseudo_data[name] for name in follow}
    eye = np.eye(len(place), dtype=dtype)
    at_fit = Coordinates(density.loc, eye, pseudo_data, follow)
    return at_fit.moved(place, scale_tril)


def _followed(
    density: Density, start: np.ndarray, seen: Look, slopes_of: Callable
) -> tuple[dict, Look]:
    """K, and what is seen at θ̂ with it; zero, if ξ need not follow or cannot.

    A column of K is taken if the sd of its θ grows by it, as that of an intercept does
    when f follows. The kernel, which the sites follow, is left alone.

    Args:
        density: The log density around the fit.
        start: θ̂ − θ̂.
        seen: What is seen there without K.
        slopes_of: K by process of B [T, D].
    """
    slopes, sd = density.no_slopes, seen.sd()
    growth = np.full(len(start), _GROWTH)
    for _ in range(_MOST_CORRECTIONS if slopes else 0):
        pull = seen.pull * sd  # of an sd of θ
        wanted = np.linalg.norm(pull, axis=0) > _FOLLOWED
        if not np.any(wanted):
            break
        by_xi = -_solved(density, slopes, pull) / sd
        while np.any(wanted):
            more = slopes_of(by_xi * wanted)
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


def _slopes_of(
    sites: Mapping[str, Sites],
    middle: Mapping[str, Any],
    scale_trils: Mapping[str, Any],
    by_xi: np.ndarray,
) -> dict[str, np.ndarray]:
    """K by process, from B [T, D] of all."""
    stops = np.cumsum([np.size(middle[name]) for name in sorted(middle)])
    rows = dict(zip(sorted(middle), np.split(by_xi, stops[:-1])))
    slopes = {}
    for name, of_one in sites.items():
        shape = (len(of_one.data), -1, by_xi.shape[1])
        xi = rows[base_of(name)].reshape(shape)
        slopes[name] = data_that_move(of_one, scale_trils[name], xi)
    return slopes


def _solved(density: Density, slopes: dict, right: np.ndarray) -> np.ndarray:
    """A⁻¹ right, by conjugate gradients on all columns together."""

    def product(row: np.ndarray) -> np.ndarray:
        xi = row.reshape(right.shape)
        size = np.linalg.norm(xi, axis=0)
        steps = _STEP_OF_XI * xi / np.where(size > 0, size, 1.0)
        return np.ravel(density.times_curvature(slopes, steps) * size / _STEP_OF_XI)

    shape = (right.size, right.size)
    a: Any = LinearOperator(shape, matvec=product, dtype=float)  # type: ignore
    found, _ = cg(a, right.ravel(), rtol=_RESIDUAL, maxiter=_MOST_PRODUCTS)
    return found.reshape(right.shape)


def _climbed(look: Callable, start: np.ndarray, first: Look) -> tuple:
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
