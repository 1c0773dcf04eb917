"""The latent sites of a model without the rest of it, and guides set up by them."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import jax
import numpyro
import numpyro.distributions as dist
from jax.core import Tracer
from numpyro.handlers import block, seed, substitute, trace
from numpyro.infer.autoguide import AutoGuide

from svgp_ppl.handlers import set_up
from svgp_ppl.rows.arrays import is_array
from svgp_ppl.runtime.compilation import call, inspected, partition

__all__ = ["latent_sites", "set_up_by_sites"]


def latent_sites(
    model: Callable, init: Callable, key, args: tuple, kwargs: dict[str, Any]
) -> dict[str, dict]:
    """The latent sites of a run, each with the ``sizes`` of all plates, by name.

    Args:
        model: The model.
        init: An init strategy of NumPyro, which gives the sites their values.
        key: Random key of the run.
        args: Arguments of the model.
        kwargs: Its keyword arguments.
    """
    run = substitute(seed(model, key), substitute_fn=init)
    with block():
        found = trace(run).get_trace(*args, **kwargs)
    sizes = {n: s["args"][0] for n, s in found.items() if s["type"] == "plate"}
    return {
        name: {**site, "sizes": sizes}
        for name, site in found.items()
        if site["type"] == "sample" and not site["is_observed"]
    }


def set_up_by_sites(guide: AutoGuide, key, args: tuple, kwargs: dict[str, Any]) -> None:
    """Set a guide of NumPyro up, which sees neither processes nor data.

    NumPyro runs the model some three times for that, operation by operation. Those of
    the processes, a hundred programs to compile, have no part in what is kept: values,
    supports and plates of the other sites. Those alone are run where they can be.

    Args:
        guide: The guide, of a model with processes and data hidden.
        key: Random key.
        args: Arguments of the model.
        kwargs: Its keyword arguments.
    """
    model: Any = guide.model
    arrays, combine, static = partition(args, kwargs)

    def run(key, arrays):
        return latent_sites(model, guide.init_loc_fn, key, *combine(arrays))

    def traced_leaves(key, arrays):
        fns = [site["fn"] for site in run(key, arrays).values()]
        return [leaf for leaf in jax.tree.leaves(fns) if isinstance(leaf, Tracer)]

    facts = inspected(lambda *args: _facts(run(*args)), key, arrays)
    if facts is None:
        return set_up(guide, key, args, kwargs)
    values = []
    if None in facts.leaves:
        made_of = ("latent sites", guide, static)
        values = call(traced_leaves, made_of, key, arrays, runs_once=True)
    # NumPyro keeps the model in functions of its own, for later.
    guide.model = _SitesFirst(model, facts.filled(values))
    try:
        set_up(guide, key, args, kwargs)
    finally:
        guide.model.sites = None
        guide.model = model


class _SitesFirst:
    """A model that runs sites of a given distribution alone, while it has them."""

    def __init__(self, model: Callable, sites: dict[str, tuple] | None):
        self.model, self.sites = model, sites

    def __call__(self, *args, **kwargs):
        if self.sites is None:
            return self.model(*args, **kwargs)
        plates: dict[str, Any] = {}
        for name, (fn, infer, frames, sizes) in self.sites.items():
            with ExitStack() as stack:
                for frame in frames:
                    if frame.name not in plates:
                        size = sizes[frame.name], frame.size
                        plate = numpyro.plate(frame.name, *size, dim=frame.dim)
                        plates[frame.name] = plate
                    stack.enter_context(plates[frame.name])
                numpyro.sample(name, fn, infer=infer)


class _Facts(NamedTuple):
    """The distributions, with None for what depends on others, and what is around."""

    structure: Any
    leaves: list
    around: dict[str, tuple]

    def filled(self, values: list) -> dict[str, tuple]:
        rest = iter(values)
        leaves = [next(rest) if leaf is None else leaf for leaf in self.leaves]
        fns = jax.tree.unflatten(self.structure, leaves)
        return {n: (fn, *facts) for fn, (n, facts) in zip(fns, self.around.items())}


def _facts(sites: dict[str, dict]) -> _Facts | None:
    """Of sites that can be run without the model, as they can with rare exceptions.

    Not where a support depends on other sites or on data, which NumPyro runs the model
    for; nor with discrete sites, or a distribution that is not NumPyro's own and may
    not list all of its parts.
    """
    fns = [site["fn"] for site in sites.values()]
    supports = [fn.support for fn in fns]
    is_moved = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(supports))
    leaves, structure = jax.tree.flatten(fns, is_leaf=_is_foreign)
    is_plain = all(is_array(x) or isinstance(x, int | float | complex) for x in leaves)
    if is_moved or not is_plain or any(support.is_discrete for support in supports):
        return None
    around = {
        name: (dict(site["infer"]), list(site["cond_indep_stack"]), site["sizes"])
        for name, site in sites.items()
    }
    known = [None if isinstance(leaf, Tracer) else leaf for leaf in leaves]
    return _Facts(structure, known, around)


def _is_foreign(part: Any) -> bool:
    is_numpyro = type(part).__module__.partition(".")[0] == "numpyro"
    return isinstance(part, dist.Distribution) and not is_numpyro
