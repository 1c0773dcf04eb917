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

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from svgp_ppl.mcmc.differences import Density
from svgp_ppl.mcmc.target import Target
from svgp_ppl.runtime import progress_bar
from svgp_ppl.variational.sites import Prior

__all__ = ["Coupled", "Gaussian", "coupled"]

# A takes two gradients of all data for each value of v, up to so many values.
_MOST_VALUES = 500
# Columns of A between two looks at the keyboard.
_AT_A_TIME = 50
# Step of the differences, in sd of the fit.
_STEP = 0.3
# A variance below it is one that an optimiser has lost.
_LEAST_VARIANCE = 1e-12
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
    if target.minibatches or sum(map(len, blocks)) > _MOST_VALUES:
        return Coupled(found, len(blocks))
    as_they_are = Coupled(found, min(len(blocks), 1))
    s = np.asarray(scipy.linalg.block_diag(*blocks), float)
    if np.all(s):
        return as_they_are
    loc = np.concatenate([np.ravel(one.loc) for one in found])
    priors, rows = _in_the_order_of_the_model(target, found)
    loc, s = loc[rows], s[np.ix_(rows, rows)]
    variances, directions = np.linalg.eigh(s)
    sd = np.sqrt(np.maximum(variances, _LEAST_VARIANCE))
    a = _curvature(target, centre, priors, loc, directions * sd, progress)
    if not np.all(np.isfinite(a)):
        return as_they_are
    smallest, *_, largest = np.linalg.eigvalsh(a)
    if largest <= _MOST_SPREAD * smallest:
        return as_they_are
    # Of v; the prior's at least, as where every likelihood is log-concave.
    inverse = directions / sd
    precisions, directions = np.linalg.eigh(inverse @ a @ inverse.T)
    covariance = directions / np.maximum(precisions, 1.0) @ directions.T
    return Coupled([Gaussian(loc[None], covariance[None], priors)], 1)


def _in_the_order_of_the_model(
    target: Target, found: Sequence[Gaussian]
) -> tuple[Mapping[str, Prior], np.ndarray]:
    """The processes, each after those it is conditioned on; where their values were."""
    stacked = {name: prior for one in found for name, prior in one.priors.items()}
    stops = np.cumsum([np.size(prior.mean) for prior in stacked.values()])
    rows = dict(zip(stacked, np.split(np.arange(stops[-1]), stops[:-1])))
    names = [name for name in target.whitened_names if name in stacked]
    # A program would sort the names of a plain dict.
    priors = OrderedDict((name, stacked[name]) for name in names)
    return priors, np.concatenate([rows[name] for name in names])


def _curvature(
    target: Target,
    centre: Mapping[str, Any],
    priors: Mapping[str, Prior],
    loc: np.ndarray,
    root: np.ndarray,
    progress: bool,
) -> np.ndarray:
    """A at v = loc, [T, T]."""
    stops = np.cumsum([np.size(prior.mean) for prior in priors.values()])
    v = OrderedDict(
        (name, part.reshape(np.shape(centre[name])).astype(centre[name].dtype))
        for name, part in zip(priors, np.split(loc, stops[:-1]))
    )
    rest = {name: x for name, x in centre.items() if name not in v}
    density = Density(target, target.data, rest, v)
    size = len(root)
    number = math.ceil(size / _AT_A_TIME)
    width = math.ceil(size / number)  # of all, for one program
    steps = np.pad(_STEP * root, ((0, 0), (0, number * width - size)))
    products = []
    bar = progress_bar(number, "curvature", progress and density.is_expensive)
    try:
        for some in np.split(steps, number, axis=1):
            products.append(density.times_curvature({}, some) / _STEP)
            bar.update(1)
    finally:
        bar.close()
    a = root.T @ np.concatenate(products, axis=1)[:, :size]
    return (a + a.T) / 2
