"""From positions of chains to values at the sites of a model, in an ArviZ object."""

import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import logsumexp

from svgp_ppl.diagnostics import Axes, to_arviz
from svgp_ppl.diagnostics.kept import Kept
from svgp_ppl.mcmc.chains.run import Chains
from svgp_ppl.mcmc.coordinates import Start
from svgp_ppl.mcmc.target import Target
from svgp_ppl.observations.observed import (
    LogLikelihoods,
    known_part,
    log_likelihood_groups,
    log_likelihoods,
)
from svgp_ppl.rows import in_batches
from svgp_ppl.runtime.compilation import call

__all__ = ["as_arviz"]

_DRAWS_AT_A_TIME = 64


def as_arviz(
    key,
    chains: Chains,
    target: Target,
    start: Start,
    sampler: tuple[str, dict[str, Any]],
    log_likelihood: bool,
    axes: Axes,
    attrs: dict[str, Any],
) -> Any:
    """The ArviZ object of a run; without draws after an interrupted warm-up.

    Args:
        key: Random key, for a v that was integrated out.
        chains: Result of the run.
        target: The log density.
        start: Where the chains started, with the coordinates of their positions.
        sampler: Name and settings of the sampler.
        log_likelihood: Whether to add log p(y_n | v, θ) of every draw.
        axes: Names and labels of the axes of its variables.
        attrs: Attributes of the posterior besides those known here.
    """
    groups: dict[str, Any]
    if chains.stats:
        draws = _despite_interrupt(
            lambda: _constrained(key, target, start, chains.draws)
        )
        groups = {"sample_stats": chains.stats}
        if log_likelihood:
            begin = time.perf_counter()
            groups |= _unless_interrupted(target, draws)
            spent = time.perf_counter() - begin
            attrs = {"log_likelihood_seconds": spent} | attrs
    else:
        draws, last = None, jax.tree.map(lambda leaf: leaf[:, None], chains.position)
        groups = {"warmup_posterior": _constrained(key, target, start, last)}
        if chains.warmup_stats:
            groups["warmup_sample_stats"] = chains.warmup_stats
    of_model = target.process_names, target.layouts, target.inducing_origin
    kept = Kept(*of_model, *target.processes, jnp.result_type(float).name)
    return to_arviz(
        draws,
        observed_data={
            n: known_part(data.values, data) for n, data in target.observed.items()
        },
        constant_data=jax.device_get(target.frozen),
        **groups,
        **axes._asdict(),
        attrs={
            **kept.as_attrs(),
            "sampling_seconds": chains.seconds,
            "warmup_seconds": chains.warmup_seconds,
            "compile_seconds": chains.compile_seconds,
            "num_gradients": int(chains.num_gradients),
            "sampler": sampler[0],
            "sampler_settings": json.dumps(sampler[1], default=str),
            **attrs,
        },
    )


def _constrained(key, target: Target, start: Start, draws: dict) -> dict:
    """Values at the sites of the model, from positions of the chains."""

    def of_draw(drawn, data):
        (position, chain, number), (key, coordinates, data) = drawn, data
        values, data = coordinates.at(position, data)
        # The key does not depend on how many draws there are.
        key = random.fold_in(random.fold_in(key, chain), number)
        return target.constrain(values, data, key)

    chain, number = np.indices(jax.tree.leaves(draws)[0].shape[:2])
    made_of = ("constrain", *target.made_of)
    given = (key, start.coordinates, start.data)
    return _over_draws(of_draw, made_of, (draws, chain, number), given)


def _despite_interrupt(compute: Callable[[], dict]) -> dict:
    """What the draws are worth nothing without: a first interrupt does not end it."""
    try:
        return compute()
    except KeyboardInterrupt:
        warnings.warn(
            "interrupted: the draws would be lost, and their values at the sites of "
            "the model are computed again. A second interrupt ends it.",
            stacklevel=4,
        )
        return compute()


def _unless_interrupted(target: Target, draws: dict) -> dict[str, dict]:
    """The log likelihoods; none after an interrupt, which must not cost the draws."""
    try:
        return _log_likelihoods(target, draws)
    except KeyboardInterrupt:
        warnings.warn(
            "interrupted: returning the draws without their log likelihoods; add them "
            "by gp.log_likelihood(key, model, draws, x, y, add_to=draws).",
            stacklevel=4,
        )
        return {}


def _log_likelihoods(target: Target, draws: dict) -> dict[str, dict]:
    """The two groups of terms, without the data that a mask leaves out."""

    def of_draw(values: dict, data: Any) -> dict:
        def at_noise(number):
            sites = target.trace_at(values, data, number)
            return {n: log_likelihoods(sites[n]) for n in target.observed}

        each = jax.vmap(at_noise)(jnp.arange(len(data.noise_keys)))
        return {name: _over_noise(terms) for name, terms in each.items()}

    found = _over_draws(
        of_draw, ("log likelihood", *target.made_of), draws, target.data
    )
    return log_likelihood_groups(found, target.observed)


def _over_noise(terms: LogLikelihoods) -> LogLikelihoods:
    """The mean of the density, and that of the terms, as in the log density."""
    density, expected = terms
    mean = logsumexp(density, axis=0) - jnp.log(len(density))
    return LogLikelihoods(mean, jnp.mean(expected, axis=0))


def _over_draws(function: Callable, made_of: tuple, draws: Any, data: Any) -> Any:
    """``function(draw, data)`` at every draw of every chain, a few at a time."""

    def run(draws, data):
        leading = jax.tree.leaves(draws)[0].shape[:2]
        flat = jax.tree.map(lambda x: jnp.reshape(x, (-1, *x.shape[2:])), draws)
        each = in_batches(lambda one: function(one, data), flat, _DRAWS_AT_A_TIME)
        return jax.tree.map(lambda x: jnp.reshape(x, (*leading, *x.shape[1:])), each)

    return jax.device_get(call(run, made_of, draws, data))
