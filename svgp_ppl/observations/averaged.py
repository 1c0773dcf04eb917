"""Sites that read moments of a latent, of which only ``observe`` takes an average.

Under q(v) the moments of a latent, such as ``f(x).mean``, are those of q(f), and
log p(y | E f) at a site of NumPyro's own is no E log p(y | f): with it the bound would
be that of no model. What a site depends on is read from its traced operations.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from numpyro.handlers import Messenger

from svgp_ppl.handlers import is_inducing, is_layer, marginalised, trace_of
from svgp_ppl.observations.expected import expected_of
from svgp_ppl.rows import is_array
from svgp_ppl.runtime.dependence import inputs_read

__all__ = ["require_averaged"]


def require_averaged(
    model_trace: dict[str, dict],
    guide_trace: dict[str, dict],
    model: Callable,
    args: tuple,
    kwargs: Mapping[str, Any],
    **run,
) -> None:
    """Refuse log probabilities at moments of q(f), inside a trace of JAX.

    Args:
        model_trace: The sites of the model.
        guide_trace: Those of its guide.
        model: The model, to be run again if one of its sites may read moments.
        args: Its arguments.
        kwargs: Its keyword arguments.
        **run: Key and values of ``trace_of``.

    Raises:
        ValueError: A site depends on q(v) other than by draws of a layer.
    """
    names = [name for name, site in model_trace.items() if _is_computed(site)]
    of_v = marginalised(model_trace) & guide_trace.keys()
    leaves, tree = jax.tree.flatten({name: guide_trace[name]["fn"] for name in of_v})
    places = [place for place, leaf in enumerate(leaves) if is_array(leaf)]

    def log_probs(arrays: list, names: tuple[str, ...]) -> list:
        of_q = leaves.copy()
        for place, array in zip(places, arrays):
            of_q[place] = array
        families = tree.unflatten(of_q).items()
        guide = guide_trace | {n: {**guide_trace[n], "fn": q} for n, q in families}
        given = {"guide_trace": guide, "outer": _without_layers, **run}
        sites = trace_of(model, args, kwargs, **given)
        return [sites[name]["fn"].log_prob(sites[name]["value"]) for name in names]

    def is_read_by(*names: str) -> bool:
        arrays = [leaves[place] for place in places]
        traced = jax.make_jaxpr(log_probs, static_argnums=1)(arrays, names)
        return any(inputs_read(traced.jaxpr))

    if not (names and places and is_read_by(*names)):
        return
    name = next(filter(is_read_by, names))
    raise ValueError(
        f"the log probability of site '{name}' depends on moments of a latent, such as "
        "f(x).mean, which are those of q(f): it is not averaged over q(v), and the "
        "bound would be wrong. Data, and what else is known of f, go into "
        f"gp.observe('{name}', lambda f: ..., f(x), obs=...). To take the site as it "
        "is, with draws of v: loss=numpyro.infer.Trace_ELBO()."
    )


def _is_computed(site: dict) -> bool:
    """Whether a site of NumPyro's own may depend on others."""
    is_own = site["type"] == "sample" and expected_of(site) is None
    if not is_own or is_inducing(site) or "memory" in site["infer"]:
        return False
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(site["fn"]))


class _without_layers(Messenger):
    """Zeros for layers: draws of q(f), and what is computed of them is averaged."""

    def process_message(self, msg: Any) -> None:
        """Give the layer its zeros."""
        if is_layer(msg):
            msg["value"] = jnp.zeros_like(msg["value"])
