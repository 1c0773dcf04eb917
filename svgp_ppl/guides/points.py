"""Point estimates of the latent sites that are not whitened values."""

from typing import Any

import jax.numpy as jnp
import numpyro
from numpyro.infer.autoguide import AutoDelta

from svgp_ppl.guides.latent_sites import latent_sites
from svgp_ppl.runtime.compilation import call, inspected, partition

__all__ = ["PointEstimates"]


class PointEstimates(AutoDelta):
    """NumPyro's ``AutoDelta``, set up by one compiled program.

    NumPyro runs the model operation by operation and evaluates the density with its
    gradient, which compiles some hundred programs; ``fit`` sees from the bound whether
    the start is finite. Parameters have the names and starts of those of ``AutoDelta``.
    """

    def _setup_prototype(self, *args, **kwargs):
        key = numpyro.prng_key()
        arrays, combine, static = partition(args, kwargs)

        def sites(key, arrays) -> dict[str, dict]:
            return latent_sites(self.model, self.init_loc_fn, key, *combine(arrays))

        def start(key, arrays):
            found = sites(key, arrays)
            values = {n: _of_all_rows(site) for n, site in found.items()}
            return values, {n: site["fn"] for n, site in found.items()}

        facts = inspected(
            lambda *args: {n: _facts(s) for n, s in sites(*args).items()}, key, arrays
        )
        made_of = ("point estimates", self, static)
        self._init_locs, distributions = call(
            start, made_of, key, arrays, runs_once=True
        )
        self.prototype_trace = {}
        for name, (event_dim, frames, sizes) in facts.items():
            self._event_dims[name] = event_dim
            self._prototype_frames |= {frame.name: frame for frame in frames}
            self._prototype_frame_full_sizes |= sizes
            self.prototype_trace[name] = {
                "type": "sample",
                "name": name,
                "is_observed": False,
                "fn": distributions[name],
                "cond_indep_stack": frames,
            }


def _facts(site: dict) -> tuple[int, list, dict[str, int]]:
    """Dimensions of an event, the plates around it, and their numbers of rows."""
    distribution: Any = site["fn"]
    if distribution.support.is_discrete:
        raise ValueError(
            f"latent site '{site['name']}' is discrete, and has no gradient: sum it "
            "out of the likelihood (numpyro.distributions.MixtureSameFamily)."
        )
    return distribution.event_dim, list(site["cond_indep_stack"]), site["sizes"]


def _of_all_rows(site: dict) -> Any:
    """The first value, repeated for all rows of plates that see only some of them."""
    value = site["value"]
    for frame in site["cond_indep_stack"]:
        full = site["sizes"][frame.name]
        if full != frame.size:
            rows = jnp.arange(full) % frame.size
            value = jnp.take(value, rows, axis=frame.dim - site["fn"].event_dim)
    return value
