"""Inducing inputs that a model computes from its arguments.

``sparse_gp("f", kernel, x[::10])`` has other inducing inputs wherever the model is run
at other x, and whitened values that were found for the first ones mean nothing there.
The arguments that z is computed from are therefore remembered, and compared.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.handlers import Messenger, substitute

from svgp_ppl.diagnostics.kept import known_of
from svgp_ppl.handlers import is_inducing, trace_of
from svgp_ppl.rows import is_array
from svgp_ppl.runtime.compilation import partition
from svgp_ppl.runtime.dependence import inputs_read
from svgp_ppl.runtime.digests import digest_of_values

__all__ = ["moved", "named_arrays", "origin_of_z", "require_same_z"]


def origin_of_z(
    model: Callable, args: tuple, kwargs: dict[str, Any], values: Mapping[str, Any]
) -> dict[str, str]:
    """Digests of the arguments that inducing inputs are computed from, by their name.

    Args:
        model: The model.
        args: Its arguments.
        kwargs: Its keyword arguments.
        values: Values of the ``param`` sites: an argument that they only start from
            does not count.
    """
    arrays, combine, _ = partition(args, kwargs)

    def features(arrays) -> list:
        args, kwargs = combine(arrays)
        run: Any = {"key": jax.random.key(0), "values": values, "outer": _known}
        sites = trace_of(model, args, kwargs, **run).values()
        found = [s["infer"]["inducing"]["features"] for s in sites if is_inducing(s)]
        return [leaf for leaf in jax.tree.leaves(found) if isinstance(leaf, jax.Array)]

    used = inputs_read(jax.make_jaxpr(features)(arrays).jaxpr)
    if not any(used):
        return {}
    named = named_arrays(model, args, kwargs)
    given = zip(named.items(), used)
    return {n: digest_of_values(a) for (n, a), is_used in given if is_used}


def require_same_z(
    posterior: Any, model: Callable, args: tuple, kwargs: dict[str, Any]
) -> None:
    """Refuse other arguments than those that inducing inputs were computed from.

    Args:
        posterior: A fit or draws; nothing is known of others.
        model: The model.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    for name in moved(known_of(posterior, "inducing_origin"), model, args, kwargs):
        raise ValueError(
            f"the inducing inputs are computed from {name}, and {name} is not what it "
            "was when the posterior was found: they would be others, for which it "
            "means nothing. Choose z once, outside of the model, or make it a "
            "numpyro.param."
        )


def moved(
    origin: Mapping[str, str], model: Callable, args: tuple, kwargs: dict[str, Any]
) -> list[str]:
    """The arguments of an origin of z that are others now."""
    if not origin:
        return []
    named = named_arrays(model, args, kwargs)
    shared = {n: digest for n, digest in origin.items() if n in named}
    return [n for n, digest in shared.items() if digest_of_values(named[n]) != digest]


def _known(model: Callable) -> Callable:
    """The model with ones for its latent values, which are known elsewhere."""

    def ones(site: dict) -> Any:
        is_drawn = site["type"] == "sample" and not site["is_observed"]
        if not is_drawn or is_inducing(site):
            return None
        return jnp.ones(site["fn"].shape())

    return substitute(model, substitute_fn=ones)


def named_arrays(
    model: Callable, args: tuple, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arrays among the arguments, in their order, by name."""
    while isinstance(model, Messenger) and model.fn is not None:
        model = model.fn
    positions = [
        name
        for name, parameter in inspect.signature(model).parameters.items()
        if parameter.kind
        in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    named = {}
    for (_, which, *rest), leaf in jax.tree_util.tree_leaves_with_path((args, kwargs)):
        if is_array(leaf):
            name = getattr(which, "key", None)  # of a keyword
            if name is None:
                i = which.idx
                name = positions[i] if i < len(positions) else f"argument {i}"
            named[f"{name}{jax.tree_util.keystr(tuple(rest))}"] = leaf
    return named
