"""Which of the arrays passed to a model predictions read, and which may be inputs."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from svgp_ppl.observations import is_latent, latents_of, observe_sites

__all__ = ["may_be_inputs", "read_by_predictions"]


def may_be_inputs(
    sites: dict[str, dict], arguments: Any, arrays: Sequence[Any]
) -> list[int]:
    """Which arrays may be inputs, or measurements of them; none if some are.

    Args:
        sites: A trace of the model.
        arguments: Its arguments, as they were passed.
        arrays: The arrays among them.
    """
    views, leaves = _views(sites), jax.tree.leaves(arguments)
    if any(view.source is leaf for view in views for leaf in leaves):
        return []
    inputs = {np.shape(view.source) for view in views} - {()}
    latent = {np.shape(site["value"]) for site in sites.values() if is_latent(site)}
    # Measurements of the inputs of one process are as many as a latent site.
    meant = inputs | ({(n,) for n, *_ in inputs} & latent)
    columns = {shape[1:] for shape in meant}
    return [i for i, a in enumerate(arrays) if a.ndim and a.shape[1:] in columns]


def read_by_predictions(sites: dict[str, dict]) -> tuple[list, list]:
    """What predictions are computed of: the inputs of processes, and all the rest.

    Args:
        sites: A trace of the model.
    """
    found: list = [
        expected.likelihood(jnp.zeros(expected.latent.shape))
        for expected in observe_sites(sites).values()
    ]
    for latent in latents_of(sites).values():
        found += [latent.offsets, *map(list, map(dict.values, latent.terms))]
    views = _views(sites)
    processes = [view.process for view in views]
    found += [[p.kernel, p.features, p.qv] for p in processes]
    return _leaves([view.x for view in views]), _leaves(found)


def _views(sites: dict[str, dict]) -> list:
    """Processes at inputs, of all latents."""
    return [view for latent in latents_of(sites).values() for view in latent.views]


def _leaves(tree: Any) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
