"""Coordinates in which a fit is standard normal, for every sampler."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.handlers import substitute

from svgp_ppl.fitting import Fit
from svgp_ppl.guides.fitted import DRAWS_OF_CENTRE, guide_and_params
from svgp_ppl.guides.sites import gaussians_of, prior_of
from svgp_ppl.handlers import trace_of
from svgp_ppl.mcmc.affine import OTHERS, Coordinates, plain_coordinates
from svgp_ppl.mcmc.coupling import Coupled, Gaussian, coupled, joined_or_apart
from svgp_ppl.mcmc.curvature import curved
from svgp_ppl.mcmc.joint import Joint, joint_of
from svgp_ppl.mcmc.laplace import Curvature, laplace
from svgp_ppl.mcmc.sites import base_of, bases_of, in_sites
from svgp_ppl.mcmc.target import Data, Target
from svgp_ppl.runtime.compilation import call
from svgp_ppl.variational.sites import Sites, sites_of

__all__ = [
    "Start",
    "fitted_start",
    "joint_start",
    "reparam_sites",
]


class Start(NamedTuple):
    """Where chains start.

    Attributes:
        coordinates: What the sampler moves.
        data: Second argument of the log density of their values.
        positions: Of each chain, leaves [chains, ...].
        num_blocks: Number of Gaussians, independent given θ, that v has in the
            coordinates; one if it was seen whether they depend on each other.
    """

    coordinates: Coordinates
    data: Data
    positions: Mapping[str, Any]
    num_blocks: int = 0

    @property
    def moved(self) -> str:
        """The name of what the sampler moves."""
        return "fitted" if self.data.sites or self.coordinates.loc else "whitened"


def fitted_start(
    key,
    guide: Callable,
    params: dict[str, Any],
    target: Target,
    num_chains: int,
    progress: bool = False,
) -> Start:
    """Coordinates from a fit, and where chains start in them.

    Chains start from draws of q(v | θ) and of the guide of the rest.
    """
    key_draws, key_sites, key_start = random.split(key, 3)
    num_draws = max(num_chains, DRAWS_OF_CENTRE)
    values = target.positions_from(key_draws, guide, params, num_draws)
    values = jax.device_get(values)
    joint = joint_of(guide, params)
    centre = {name: np.mean(draws, axis=0) for name, draws in values.items()}
    if joint is not None:
        centre = {name: np.asarray(joint.mean[name]) for name in centre}
        found = _joint_sites(joint, target, centre, progress)
    else:
        found = _fitted_sites(key_sites, guide, params, target, centre, progress)
    values = {name: draws[:num_chains] for name, draws in values.items()}
    start = _start_in(key_start, found, target, centre, values)
    # The coordinates have the moments of a mixture, and not its modes.
    return _at_values(start, target, values) if found.is_mixture else start


def joint_start(
    key,
    joint: Joint,
    values: Mapping[str, np.ndarray],
    target: Target,
    progress: bool = False,
    is_given: bool = False,
) -> Start:
    """Coordinates from a Gaussian over all values, and where chains start in them.

    Args:
        key: Random key.
        joint: The Gaussian.
        values: Unconstrained values of each chain, [chains, ...].
        target: The log density.
        progress: Whether to show a bar if it takes a while.
        is_given: Whether v starts there too; otherwise it is drawn from q(v | θ).
    """
    _, key_start = random.split(key)
    centre = {name: np.asarray(joint.mean[name]) for name in values}
    found = _joint_sites(joint, target, centre, progress)
    start = _start_in(key_start, found, target, centre, values)
    return _at_values(start, target, values) if is_given else start


def _start_in(
    key,
    found: "_Found",
    target: Target,
    centre: Mapping[str, Any],
    values: Mapping[str, np.ndarray],
) -> Start:
    """Coordinates from sites and the centre θ̂; θ of the chains, and new ξ."""
    sites, scale_trils = found.sites, found.scale_trils
    data = target.data._replace(sites=sites)
    starts = {n: draws for n, draws in values.items() if n not in sites}
    starts |= _standard_normal(key, {base_of(name): values[name] for name in sites})
    loc = {name: x for name, x in centre.items() if name not in sites}
    middle = {n: np.zeros_like(x[0]) for n, x in starts.items() if n not in loc}
    coordinates = curved(target, data, loc, middle, scale_trils)
    coordinates = coordinates or plain_coordinates()
    positions = coordinates.from_values(starts)

    def put(leaf):  # data on several devices remain there
        return leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf)

    start = jax.tree.map(put, Start(coordinates, data, positions))
    return start._replace(num_blocks=found.num_blocks)


def _at_values(start: Start, target: Target, values: Mapping[str, Any]) -> Start:
    """The start with v of every chain at its own value."""

    def bases(values, others, coordinates, data):
        plain = data._replace(sites={})

        def of_chain(chain):
            values, others = chain
            found: dict[str, Any] = {}
            sites = coordinates.at(others, data)[1].sites
            keep = partial(bases_of, sites=sites, found=found)
            given = target.constrain(values, plain)
            target.trace_at(given, data, outer=keep)
            return found

        return jax.lax.map(of_chain, (values, others))

    others = {n: x for n, x in start.positions.items() if n == OTHERS}
    made_of = ("bases at values", *target.made_of)
    given = (dict(values), others, start.coordinates, start.data)
    found = call(bases, made_of, *given, runs_once=True)
    return start._replace(positions={**start.positions, **found})


def _standard_normal(key, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Standard normal draws in the shapes of some arrays."""

    def draw(key, like):
        keys = random.split(key, max(1, len(like)))
        pairs = zip(keys, like.items())
        return {name: random.normal(key, x.shape, x.dtype) for key, (name, x) in pairs}

    return jax.device_get(call(draw, ("standard normal",), key, like, runs_once=True))


def reparam_sites(
    model: Callable, init: tuple[Callable, Mapping[str, Any]] | Fit, *args, **kwargs
) -> Callable:
    """The model with its processes in the coordinates of a fit, for NumPyro's samplers.

    Instead of the site ``f`` the site ``f_base`` is sampled, ξ in v = m(θ) + C⁻ᵀ ξ, and
    ``f`` becomes deterministic, so that the draws are those of the model and
    ``gp.predict`` takes them. The ``param`` sites are frozen at the fit. NumPyro's
    ``scale`` and ``mask`` belong inside, around the model: around the result they would
    change the Jacobian of the map as well. Compare NumPyro's ``NeuTraReparam``, which
    learns a map that does not follow θ. An intercept that the model adds to a process
    is not followed here, other than by ``gp.sample``: make it the ``mean`` of one.

    Args:
        model: NumPyro model.
        init: A :class:`Fit` or ``(guide, params)`` with a Gaussian q(v).
        *args: Arguments of the model.
        **kwargs: Its keyword arguments.

    Returns:
        A model of the same arguments.

    Raises:
        ValueError: No process has a q(v) that is marginalised; or ``gp.sample`` refuses
            the model.

    Example:
        >>> from numpyro.infer import MCMC, NUTS
        >>> moved = gp.mcmc.reparam_sites(model, fitted, x, y)
        >>> mcmc = MCMC(NUTS(moved), num_warmup=300, num_samples=500)
    """
    guide, params = guide_and_params(init, "init")
    target = Target(random.key(0), model, args, kwargs, params)
    start = fitted_start(random.key(0), guide, params, target, 1)
    if not start.data.sites:
        raise ValueError(
            "init has no q(v) to take coordinates from: it needs a Gaussian, such as "
            "that of AutoGaussian, or a mixture of them."
        )
    return in_sites(substitute(model, data=start.data.params), start.data.sites)


def _fitted_sites(
    key,
    guide: Callable,
    params: dict[str, Any],
    target: Target,
    centre: dict[str, Any],
    progress: bool,
) -> "_Found":
    """The sites of every process whose q(v) is marginalised and not a point.

    Args:
        key: Random key.
        guide: Guide of the fit.
        params: Its parameters.
        target: The log density of the model.
        centre: θ̂, unconstrained values at the latent sites.
        progress: Whether to show a bar if it takes a while.
    """
    if not target.whitened_names:
        return _Found({}, {}, 0)

    def gaussians(key, params, centre, data):
        args, kwargs = target.combine(data.arrays)
        values = target.constrain(centre, data)
        sites = target.trace_at(values, data)
        # At θ̂ too: the q(v) of a guide may depend on θ.
        given = {**params, **values}
        return gaussians_of(sites, trace_of(guide, args, kwargs, key=key, values=given))

    made_of = ("fitted sites", guide, *target.made_of)
    given = (key, params, centre, target.data)
    found = call(gaussians, made_of, *given, runs_once=True)
    every, is_mixture = jax.device_get(found)
    finite = [one for one in starmap(Gaussian, every) if _is_finite(one)]
    sites = _sites_of_all(coupled(target, centre, finite, progress))
    return sites._replace(is_mixture=bool(is_mixture))


def _joint_sites(
    joint: Joint, target: Target, centre: dict[str, Any], progress: bool
) -> "_Found":
    """The sites of all processes, from q(v | θ̂) of a joint Gaussian.

    It is only where Laplace's approximation at θ̂ is sought from, if it can be had: such
    Gaussians are often diagonal, of low rank, or rough.
    """
    names = target.whitened_names
    if not names:
        return _Found({}, {}, 0)

    def priors_at(centre, data):
        trace = target.trace_at(target.constrain(centre, data), data)
        return OrderedDict((name, prior_of(trace[name])) for name in names)

    made_of = ("priors at a centre", *target.made_of)
    given = (centre, target.data)
    priors = jax.device_get(call(priors_at, made_of, *given, runs_once=True))
    loc, covariance = joint.conditional(names)
    if not np.all(np.isfinite(covariance)):
        return _Found({}, {}, 0)
    if Curvature.is_affordable(target, len(loc)):
        curvature = Curvature(target, centre, names, progress)
        loc, covariance = laplace(curvature, loc, covariance)
    found = joined_or_apart(loc, covariance, priors)
    if not all(map(_is_finite, found.gaussians)):
        return _Found({}, {}, 0)
    return _sites_of_all(found)


class _Found(NamedTuple):
    """Sites by process, L at θ̂, the number of independent Gaussians, and of what."""

    sites: dict[str, Sites]
    scale_trils: dict[str, Any]
    num_blocks: int
    is_mixture: bool = False


def _is_finite(gaussian: Gaussian) -> bool:
    """Whether it is one, and no point."""
    is_finite = all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gaussian))
    return is_finite and bool(np.any(gaussian.covariance))


def _sites_of_all(found: Coupled) -> _Found:
    """The sites of the processes of some Gaussians."""
    sites: dict[str, Sites] = {}
    scale_trils: dict[str, Any] = {}
    for loc, covariance, priors in found.gaussians:
        sites |= sites_of(loc, covariance, priors)
        scale_trils |= {name: prior.scale_tril for name, prior in priors.items()}
    dtype = jnp.result_type(float)
    sites = jax.tree.map(lambda array: np.asarray(array, dtype), sites)
    return _Found(sites, scale_trils, found.num_blocks)
