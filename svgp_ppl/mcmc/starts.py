"""Where chains start, and what they move: from a fit, from Pathfinder, from neither."""

import math
from typing import Any

import jax
from jax import random

from svgp_ppl.guides.fitted import Guide, guide_and_params
from svgp_ppl.mcmc.affine import Coordinates, plain_coordinates
from svgp_ppl.mcmc.chains.checkpoints import RunFile
from svgp_ppl.mcmc.coordinates import Start, fitted_start, joint_start
from svgp_ppl.mcmc.laplace import Curvature
from svgp_ppl.mcmc.pathfinder import Pathfinder
from svgp_ppl.mcmc.samplers.sampler import Sampler, UsesPrior, is_biased
from svgp_ppl.mcmc.target import Target
from svgp_ppl.runtime.digests import digest
from svgp_ppl.variational.sites import Sites

__all__ = ["Origin", "coordinates_to_try", "origin_of", "start_of"]

Origin = Guide | Pathfinder | None

_KNOWN = ("collapsed", "fitted", "whitened")
# Paths of chains without a fit, at least and at most, and draws on each at least: the
# best Gaussian is only where Laplace's approximation is sought from.
_LEAST_PATHS, _MOST_PATHS, _LEAST_DRAWS = 2, 8, 5


def origin_of(init: Any) -> Origin:
    """What ``init`` of ``gp.sample`` gives; None for random places.

    Raises:
        ValueError: It is nothing of this kind.
    """
    if init is None or isinstance(init, Pathfinder):
        return init
    if init is Pathfinder:
        raise ValueError("init must be an object: write gp.mcmc.Pathfinder().")
    return guide_and_params(init, "init")


def coordinates_to_try(coordinates: Any, sampler: Sampler) -> tuple[str, ...]:
    """The coordinates to try, the best first.

    Raises:
        ValueError: There are none of this name, or the sampler cannot move them.
    """
    if coordinates is not None and coordinates not in _KNOWN:
        raise ValueError(f"coordinates must be one of {_KNOWN}; got {coordinates!r}.")
    uses_prior = isinstance(sampler, UsesPrior)
    if coordinates is None:
        best = _KNOWN[1:] if is_biased(sampler) else _KNOWN
        return ("whitened",) if uses_prior else best
    if coordinates != "whitened" and uses_prior:
        raise ValueError(
            f"{type(sampler).__name__} uses the prior N(0, I) of the whitened values: "
            f'drop coordinates="{coordinates}".'
        )
    return (coordinates,)


def start_of(
    key,
    to_try: tuple[str, ...],
    origin: Origin,
    target: Target,
    num_chains: int,
    file: RunFile | None,
    progress: bool,
) -> Start:
    """Where chains start, in the first coordinates that can be had.

    Args:
        key: Random key.
        to_try: Names of coordinates, the best first.
        origin: A fit, or where to look for one.
        target: The log density.
        num_chains: Number of chains.
        file: The file of the run, which keeps the start.
        progress: Whether to show bars.

    Raises:
        ValueError: None of the coordinates can be had; or the file is of another run.
        FloatingPointError: Pathfinder found no start.
    """
    if to_try == ("collapsed",) and not target.is_collapsed:
        raise ValueError(
            'coordinates="collapsed" needs a latent site besides v, and at every '
            "observe site likelihoods.Gaussian, a latent of one component and no "
            "chunk_size; no process may have a scale or a mask, and the model must not "
            "ask for moments such as f(x).mean."
        )

    def computed() -> Start:
        return _computed(key, to_try, origin, target, num_chains, progress)

    if file is None:
        return computed()
    facts = {
        "init": _fact_of(origin),
        "coordinates": list(to_try),
        "num_chains": num_chains,
        "latent sites": {n: list(target.shapes[n]) for n in target.latent_names},
    }
    return _from_dicts(file.before(facts, lambda: _as_dicts(computed())), target)


def _computed(
    key,
    to_try: tuple[str, ...],
    origin: Origin,
    target: Target,
    num_chains: int,
    progress: bool,
) -> Start:
    """The start, from the fit, or from what Pathfinder finds."""
    is_plain = to_try == ("whitened",)
    if isinstance(origin, Guide):
        guide, params = origin
        if not is_plain:
            return fitted_start(key, guide, params, target, num_chains, progress)
        positions = target.positions_from(key, guide, params, num_chains)
    elif isinstance(origin, Pathfinder):
        key_paths, key_joint = random.split(key)
        given = (key_paths, target, num_chains, progress)
        joint, positions = origin.approximate(*given)
        if not is_plain:
            return joint_start(key_joint, joint, positions, target, progress)
    else:
        found = None if is_plain else _found_start(key, target, num_chains, progress)
        if found is not None:
            return found
        positions = target.initial_positions(key, num_chains)
        if to_try == ("fitted",):
            raise ValueError(
                'coordinates="fitted" needs a fit here (a deep model, many inducing '
                "values, or no start near them): give it as init=."
            )
    return Start(plain_coordinates(), target.data, jax.device_put(positions))


def _found_start(key, target: Target, num_chains: int, progress: bool) -> Start | None:
    """Coordinates that Pathfinder finds, and where chains start in them.

    Each chain starts where its own path ends, from a random place: a second mode shows
    in R-hat.

    Returns:
        None where v has no sites or too many values, or there is no Gaussian near.
    """
    size = sum(math.prod(target.shapes[name]) for name in target.whitened_names)
    if not size or target.is_deep or not Curvature.is_affordable(target, size):
        return None
    num_paths = min(max(num_chains, _LEAST_PATHS), _MOST_PATHS)
    num_draws = max(math.ceil(num_chains / num_paths), _LEAST_DRAWS)
    key_places, key_paths, key_joint = random.split(key, 3)
    places = target.initial_positions(key_places, max(num_chains, num_paths))
    places = jax.device_get(places)
    starts = {name: x[:num_paths] for name, x in places.items()}
    finder = Pathfinder(num_paths, num_draws)
    paths = finder.paths(key_paths, starts, target, progress)
    joint = paths.best()
    if joint is None:
        return None
    values = paths.ends({n: x[:num_chains] for n, x in places.items()}, num_chains)
    return joint_start(key_joint, joint, values, target, progress, is_given=True)


# ------------------------------------------------------------------ as parts of a file


def _fact_of(origin: Origin) -> str:
    """What distinguishes it from others."""
    if isinstance(origin, Guide):
        return f"{type(origin.guide).__name__} {digest(origin.params)}"
    return repr(origin)


def _as_dicts(start: Start) -> dict[str, Any]:
    """All of a start but the data."""
    return {
        "coordinates": start.coordinates._asdict(),
        "sites": {name: sites._asdict() for name, sites in start.data.sites.items()},
        "positions": dict(start.positions),
        "num_blocks": start.num_blocks,
    }


def _from_dicts(dicts: dict[str, Any], target: Target) -> Start:
    """The start again."""
    num_blocks = int(dicts["num_blocks"])
    coordinates, sites, positions = jax.device_put(
        [dicts[name] for name in ("coordinates", "sites", "positions")]
    )
    data = target.data._replace(sites={n: Sites(**site) for n, site in sites.items()})
    return Start(Coordinates(**coordinates), data, positions, num_blocks)
