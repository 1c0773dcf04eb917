"""The posterior in one form: a fit, a guide, draws, or the prior."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array

from svgp_ppl.checks import warn_of_other_precision
from svgp_ppl.diagnostics import group
from svgp_ppl.diagnostics.kept import kept_by
from svgp_ppl.diagnostics.posterior import require_sampled_axes
from svgp_ppl.guides.fitted import Guide, as_guide
from svgp_ppl.runtime.nested import rebuilt

__all__ = ["Prior", "Samples", "choose_draws", "take_posterior"]


class Samples(NamedTuple):
    """Draws of the latent sites, [draws, ...], and the frozen parameters."""

    values: dict[str, Array]
    params: dict[str, Any]

    @property
    def num_draws(self) -> int:
        """Number of draws."""
        return len(next(iter(self.values.values())))


class Prior(NamedTuple):
    """No posterior: latent sites are drawn by the model.

    Attributes:
        params: Values of ``param`` sites; the others keep their initial ones.
    """

    params: dict[str, Any]


def take_posterior(posterior, params: Mapping[str, Any] | None) -> Samples | Guide:
    """What ``fit`` or ``sample`` returns, (guide, params) or a dict of samples.

    Raises:
        ValueError: It is none of these, or its sites differ in the number of draws.
    """
    guide = as_guide(posterior)
    if guide is not None:
        return guide
    if isinstance(posterior, dict) and posterior:
        values = {n: jnp.asarray(v) for n, v in posterior.items()}
        return _samples(values, params or {})
    draws = group(posterior, "posterior") if isinstance(posterior, Mapping) else {}
    if not draws:
        came = f"is of type {type(posterior).__name__}: the model comes before it"
        if isinstance(posterior, Mapping) and "warmup_posterior" in posterior:
            came = "has no draws: its warm-up was interrupted"
        elif getattr(posterior, "data_vars", None):
            came = "is a posterior by itself: give the whole object, draws and not "
            came += "draws.posterior, which lacks the parameters that were frozen"
        raise ValueError(
            "posterior must be what gp.fit or gp.sample returns, (guide, params), or a "
            f"dict of samples, and {came}."
        )
    require_sampled_axes(posterior)
    kept = kept_by(posterior)
    if kept and kept.whitened_sites:
        warn_of_other_precision("the posterior", kept.precision)
    flat = {n: jnp.asarray(v.reshape(-1, *v.shape[2:])) for n, v in draws.items()}
    frozen = params if params is not None else _frozen_of(posterior)
    return _samples(flat, frozen)


def _frozen_of(posterior: Any) -> dict[str, Any]:
    """The parameters that were frozen under a sampler, from its draws."""
    kept = kept_by(posterior)
    layouts = kept.param_layouts if kept else {}
    return rebuilt(group(posterior, "constant_data"), layouts)


def _samples(values: dict[str, Array], params: Mapping[str, Any]) -> Samples:
    lengths = {name: jnp.shape(value)[:1] for name, value in values.items()}
    if len(set(lengths.values())) > 1 or () in lengths.values():
        raise ValueError(
            "the samples need the same leading axis of draws at every site, and have "
            f"shapes { ({n: jnp.shape(v) for n, v in values.items()}) }."
        )
    if 0 in next(iter(lengths.values())):
        raise ValueError("the posterior has no draws: its arrays have length 0.")
    return Samples(values, jax.tree.map(jnp.asarray, dict(params)))


def choose_draws(key, num_draws: int, n: int) -> Array:
    """Indices of n draws of the posterior, [n].

    Without replacement, in as many rounds as needed: no draw is favoured.
    """
    return random.permutation(key, num_draws)[jnp.arange(n) % num_draws]
