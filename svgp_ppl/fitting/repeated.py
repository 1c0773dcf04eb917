"""Data that a model has without its arguments: an update would count them again.

A condition at a boundary, or a factor on values of a process, is part of what a fit has
learnt of the process. Where no argument changes it, a model run on new data has it too.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import random

from svgp_ppl.handlers import is_inducing, trace_of
from svgp_ppl.rows import is_array
from svgp_ppl.runtime.compilation import look, partition
from svgp_ppl.runtime.dependence import inputs_read

__all__ = ["repeated"]


def repeated(
    model: Callable, params: Mapping[str, Any], args: tuple, kwargs: dict
) -> list[str]:
    """Observed sites that depend on the processes, and on no array of the arguments.

    None where an argument may be data that cannot be followed, such as a table.

    Args:
        model: The model.
        params: Values of its ``param`` sites.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    if not all(map(_is_followed, (*args, *kwargs.values()))):
        return []
    key, (arrays, combine, _) = random.key(0), partition(args, kwargs)

    def sizes(args, kwargs, key, params) -> dict[str, tuple]:
        sites = trace_of(model, args, kwargs, key=key, values=params)
        whitened = {n: site for n, site in sites.items() if is_inducing(site)}
        return {n: site["fn"].event_shape for n, site in whitened.items()}

    zeros = {n: jnp.zeros(s) for n, s in look(sizes, args, kwargs, key, params).items()}

    def densities(arrays, v) -> dict[str, Any]:
        args, kwargs = combine(arrays)
        sites = trace_of(model, args, kwargs, key=key, values={**params, **v})
        observed = (s for s in sites.values() if s["type"] == "sample")
        observed = [s for s in observed if s["is_observed"] and not is_inducing(s)]
        return {s["name"]: jnp.sum(s["fn"].log_prob(s["value"])) for s in observed}

    traced, shapes = jax.make_jaxpr(densities, return_shape=True)(arrays, zeros)
    num_arrays, found = len(jax.tree.leaves(arrays)), []
    for name, density in zip(shapes, traced.jaxpr.outvars):
        used = inputs_read(traced.jaxpr.replace(outvars=[density]))
        if any(used[num_arrays:]) and not any(used[:num_arrays]):
            found.append(name)
    return sorted(found)


def _is_followed(argument: Any) -> bool:
    """Whether an argument is made of arrays, or is a flag, a size or a name."""
    is_plain = isinstance(argument, bool | int | str)
    return is_plain or all(map(is_array, jax.tree.leaves(argument)))
