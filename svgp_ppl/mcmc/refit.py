"""A fit where the chains are: θ at the mean of draws, q(v) at its best there.

The coordinates of a sampler follow θ by the sites of a fit at its θ̂, a mode. With many
lengthscales the mode is far from where the draws are, and sites found there suit them
better.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax import random
from jax.core import Tracer
from numpyro.distributions import biject_to

from svgp_ppl.checks import require_arguments, require_count, require_key
from svgp_ppl.diagnostics import group
from svgp_ppl.diagnostics.posterior import require_sampled_axes
from svgp_ppl.fitting import Fit, fit, natural_gradient
from svgp_ppl.guides.fitted import guide_and_params
from svgp_ppl.guides.processes import ProcessGuide
from svgp_ppl.handlers import is_point, set_up, trace_of
from svgp_ppl.observations import is_latent
from svgp_ppl.runtime.compilation import look

__all__ = ["refit"]


def refit(
    key,
    model: Callable,
    fitted: Fit | tuple[Callable, Mapping[str, Any]],
    draws: Any,
    *args,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 100,
    progress: bool = True,
    **kwargs,
) -> Fit:
    """The fit with its point estimates at the mean of draws, and the best q(v) there.

    For ``sample(init=)``, after a short run from the first fit. The mean is that of the
    unconstrained values. Nothing but q(v) moves, by natural gradients.

    Args:
        key: Random key.
        model: The model.
        fitted: The fit that the draws started from, or ``(guide, params)``, with point
            estimates of all sites that are not processes, as by default.
        draws: What ``gp.sample`` returned.
        *args: Arguments of the model, data included.
        optimizer: ``natural_gradient(0.5)`` if None; a q(v) that is not a Gaussian with
            full covariance needs another.
        num_steps: Number of steps.
        progress: Whether to show the progress of the steps.
        **kwargs: Keyword arguments of the model.

    Returns:
        The fit.

    Raises:
        ValueError: The guide is not one of this library with point estimates; the draws
            lack a site of the model.

    Example:
        >>> import svgp_ppl as gp
        >>> quiet = {"progress": False}
        >>> moved = gp.mcmc.refit(random.key(0), model, fitted, draws, x, y, **quiet)
        >>> again = gp.sample(random.key(1), model, x, y, init=moved, **quiet)
    """
    require_key(key)
    require_arguments(model, args, kwargs, refit)
    num_steps = require_count(num_steps, "num_steps")
    guide, params = guide_and_params(fitted, "fitted")
    if not isinstance(guide, ProcessGuide):
        raise ValueError(
            "refit needs a fit of a guide of this library, such as AutoGaussian, and "
            f"the guide is a {type(guide).__name__}."
        )
    require_sampled_axes(draws)
    set_up(guide, key, args, kwargs)
    for name, support in _supports(model, guide, args, kwargs, params).items():
        params[_parameter_of(name)] = _mean(draws, name, support)
    held = set(params) - guide.variational_names(params)
    return fit(
        key,
        model,
        guide,
        *args,
        init=(guide, params),
        optimizer=natural_gradient(0.5) if optimizer is None else optimizer,
        freeze=dict.fromkeys(held, np.inf),
        num_steps=num_steps,
        progress=progress,
        **kwargs,
    )


def _parameter_of(name: str) -> str:
    """The parameter of a point estimate, as NumPyro's AutoDelta names it."""
    return f"{name}_auto_loc"


def _supports(model, guide, args: tuple, kwargs: dict, params: dict) -> dict[str, Any]:
    """Supports of the sites besides processes; the guide has a point for each."""
    run = {"key": random.key(0), "values": params}

    def found(args, kwargs) -> Any:
        """The supports; None where one is computed by traced operations."""
        points = trace_of(guide, args, kwargs, **run)
        sites = trace_of(model, args, kwargs, **run)
        supports = {n: s["fn"].support for n, s in sites.items() if is_latent(s)}
        for name in supports:
            known = name in points and is_point(points[name]["fn"])
            if not known or _parameter_of(name) not in params:
                raise ValueError(
                    f"refit needs a point estimate of '{name}', as by the default "
                    f"rest= of a guide: the parameter '{_parameter_of(name)}'."
                )
        leaves = jax.tree.leaves(supports)
        return None if any(isinstance(e, Tracer) for e in leaves) else supports

    # Ends that JAX computes from data have values outside of a trace only; operation by
    # operation, a first run takes seconds.
    supports = look(found, args, kwargs)
    return found(args, kwargs) if supports is None else supports


def _mean(draws: Any, name: str, support: Any) -> jax.Array:
    """The mean of the unconstrained draws of a site."""
    values = group(draws, "posterior")
    if name not in values:
        raise ValueError(f"the draws have no site '{name}', only {sorted(values)}.")
    transform = biject_to(support)
    unconstrained = jax.vmap(jax.vmap(transform.inv))(values[name])
    return transform(unconstrained.mean(axis=(0, 1)))
