"""How processes depend on each other at a fit whose q(v) holds them apart.

The data see processes together, as in f(x) + g(x) or the classes of a softmax: a
constant may move from f to g. Under the best q(v) that is independent over blocks, of
processes or of outputs, each has the variance that it has given the others (Bishop
2006, section 10.1.2), and chains in its coordinates move in steps that small. With
v = m + R w, R Rᵀ = S of the fit,

    A = −∂²ℓ/∂w∂wᵀ  at (m, θ̂),

where the blocks on the diagonal are near to I, the fit's precision, and those off it
are what the fit leaves out. The Gaussian N(m, R A⁻¹ Rᵀ) over all of v, which Laplace's
approximation has at the fit, gives the sites that processes share.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from svgp_ppl.mcmc.laplace import Curvature, covariance_from, root_of
from svgp_ppl.mcmc.target import Target
from svgp_ppl.variational.sites import Prior, rows_of

__all__ = ["Coupled", "Gaussian", "coupled", "joined_or_apart"]

# Up to so many values of v have one Gaussian: beyond, its factor at every θ costs more
# than the steps that it saves.
_MOST_JOINED = 500

# The blocks are left apart if the largest eigenvalue of A is at most so many times the
# smallest: chains would gain its root at most, and a step in all of v costs more.
_MOST_SPREAD = 10.0


class Gaussian(NamedTuple):
    """The q(v) of some processes at a fit.

    Attributes:
        loc: Means, [B, T].
        covariance: Covariances, [B, T, T].
        priors: The processes at θ̂, in the order of the stack; one if B > 1.
    """

    loc: Any
    covariance: Any
    priors: Mapping[str, Prior]


class Coupled(NamedTuple):
    """What is known of v together.

    Attributes:
        gaussians: Gaussians, independent of each other.
        num_blocks: Their number; one if it was seen whether they are.
    """

    gaussians: Sequence[Gaussian]
    num_blocks: int


def coupled(
    target: Target,
    centre: Mapping[str, Any],
    found: Sequence[Gaussian],
    progress: bool = False,
) -> Coupled:
    """One Gaussian over all v, where the log density shows that they depend.

    Args:
        target: The log density.
        centre: The fit, unconstrained values by site.
        found: Its Gaussians, finite.
        progress: Whether to show a bar if it takes a while.
    """
    blocks = [block for one in found for block in one.covariance]
    size = sum(map(len, blocks))
    if size > _MOST_JOINED or not Curvature.is_affordable(target, size):
        return Coupled(found, len(blocks))
    as_they_are = Coupled(found, min(len(blocks), 1))
    s = np.asarray(scipy.linalg.block_diag(*blocks), float)
    if np.all(s):
        return as_they_are
    loc = np.concatenate([np.ravel(one.loc) for one in found])
    priors, rows = _in_the_order_of_the_model(target, found)
    loc, s = loc[rows], s[np.ix_(rows, rows)]
    root, inverse = root_of(s)
    a = Curvature(target, centre, priors, progress).look(loc, root).a
    if not np.all(np.isfinite(a)):
        return as_they_are
    smallest, *_, largest = np.linalg.eigvalsh(a)
    if largest <= _MOST_SPREAD * smallest:
        return as_they_are
    covariance = covariance_from(a, inverse)
    return Coupled([Gaussian(loc[None], covariance[None], priors)], 1)


def joined_or_apart(
    loc: np.ndarray, covariance: np.ndarray, priors: Mapping[str, Prior]
) -> Coupled:
    """A Gaussian over all v; with many values, of every output given all others.

    The precisions of those are blocks of the precision of all (Bishop 2006, 2.3.1).

    Args:
        loc: Mean, [T].
        covariance: Covariance, [T, T].
        priors: The processes, in the order of the stack.
    """
    if len(loc) <= _MOST_JOINED:
        return Coupled([Gaussian(loc[None], covariance[None], priors)], 1)
    inverse = root_of(covariance)[1]
    precision = inverse @ inverse.T
    found = []
    for name, rows in rows_of(priors).items():
        blocks = precision[rows[:, :, None], rows[:, None, :]]
        of_one = {name: priors[name]}
        found.append(Gaussian(loc[rows], np.linalg.inv(blocks), of_one))
    return Coupled(found, sum(len(one.loc) for one in found))


def _in_the_order_of_the_model(
    target: Target, found: Sequence[Gaussian]
) -> tuple[Mapping[str, Prior], np.ndarray]:
    """The processes, each after those it is conditioned on; where their values were."""
    stacked = {name: prior for one in found for name, prior in one.priors.items()}
    rows = rows_of(stacked)
    names = [name for name in target.whitened_names if name in stacked]
    priors = {name: stacked[name] for name in names}
    return priors, np.concatenate([np.ravel(rows[name]) for name in names])
