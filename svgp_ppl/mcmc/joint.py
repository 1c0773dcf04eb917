"""One Gaussian over all unconstrained latent values, θ and v, and q(v | θ) at its mean.

NumPyro's ``AutoMultivariateNormal`` and the like have such a q, and Pathfinder finds
one. At θ̂ the conditional of v,

    q(v | θ̂) = N(m_v, S_vv − S_vθ S_θθ⁻¹ S_θv),

gives the sites from which the coordinates of a sampler follow (``mcmc.coordinates``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoContinuous

from svgp_ppl.handlers import unpacked

__all__ = ["Joint", "joint_of"]

_GAUSSIANS = (dist.Normal, dist.MultivariateNormal, dist.LowRankMultivariateNormal)


class Joint(NamedTuple):
    """N(mean, covariance) over unconstrained values.

    Attributes:
        mean: Mean by site.
        covariance: [D, D], in the order of the sorted names of the sites.
    """

    mean: Mapping[str, Any]
    covariance: np.ndarray

    def conditional(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Mean [T] and covariance [T, T] of some sites given the means of the others.

        Args:
            names: The sites, in the order in which their values are stacked.
        """
        order = sorted(self.mean)
        stops = np.cumsum([np.size(self.mean[name]) for name in order])
        rows = dict(zip(order, np.split(np.arange(stops[-1]), stops[:-1])))
        some = np.concatenate([rows[name] for name in names])
        rest = np.setdiff1d(np.arange(len(self.covariance)), some)
        s = np.asarray(self.covariance, float)
        gain = np.linalg.solve(s[np.ix_(rest, rest)], s[np.ix_(rest, some)])
        covariance = s[np.ix_(some, some)] - s[np.ix_(some, rest)] @ gain
        mean = np.concatenate([np.ravel(self.mean[name]) for name in names])
        return mean, covariance


def joint_of(guide: Callable, params: Mapping[str, Any]) -> Joint | None:
    """The Gaussian of a NumPyro guide over all latent values; None if it has none.

    Args:
        guide: A guide that has seen the model.
        params: Its parameters.
    """
    if not isinstance(guide, AutoContinuous):
        return None
    try:
        q = guide.get_posterior(dict(params))
    except (NotImplementedError, AttributeError):
        return None
    if not isinstance(q, _GAUSSIANS):
        return None
    if isinstance(q, dist.Normal):
        covariance = np.diag(np.asarray(q.scale, float) ** 2)
    else:
        covariance = np.asarray(q.covariance_matrix, float)
    places = unpacked(guide, np.arange(len(covariance)))
    order = np.concatenate([np.ravel(places[name]) for name in sorted(places)])
    mean = jax.device_get(unpacked(guide, q.mean))
    return Joint(mean, covariance[np.ix_(order, order)])
