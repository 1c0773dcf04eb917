"""Importance sampling from a fit: a posterior without a chain, where that suffices.

In the coordinates of a fit (``mcmc.coordinates``) the joint posterior of θ and v is
nearly standard normal. Proposals are multivariate t, with slightly wider tails,

    w_s = p(y, v_s, θ_s) |∂(v, θ)/∂(ξ, η)| / (t(ξ_s; 0, I) t(η_s; 0, I)),

and the largest weights are smoothed (Vehtari, Simpson, Gelman, Yao & Gabry 2024). A
first round moves η: to the mean and the covariance of its weighted draws, if there are
enough of them (Cappé, Guillin, Marin & Robert 2004). k̂, the shape of the tail of the
weights, says how far the result can be trusted.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from svgp_ppl.checks import require_arguments, require_count, require_key
from svgp_ppl.diagnostics.pareto import good_shape, pareto_smoothed
from svgp_ppl.diagnostics.posterior import load_arviz
from svgp_ppl.fitting import Fit
from svgp_ppl.guides.fitted import guide_and_params
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.affine import OTHERS
from svgp_ppl.mcmc.chains.run import Chains
from svgp_ppl.mcmc.coordinates import Start, fitted_start
from svgp_ppl.mcmc.draws import as_arviz
from svgp_ppl.mcmc.samplers.blackjax_parts import systematic
from svgp_ppl.mcmc.target import Target
from svgp_ppl.process_facts import require_same_processes
from svgp_ppl.rows import filled_batches, in_batches
from svgp_ppl.runtime import Progress, progress_bar
from svgp_ppl.runtime.compilation import Program, call, find

__all__ = ["importance_sample"]

# Degrees of freedom of a proposal. This many cost a few percent of the effective draws
# whatever the dimension, and keep the weights from having a heavy tail.
_DEGREES_A_DIMENSION = 4
# Proposals that are evaluated at a time on accelerators. On a CPU it is one: several
# together take every branch of a quadrature.
_BATCH = 64
# Blocks of proposals in a round, between which an interrupt is noticed.
_NUM_BLOCKS = 10
# Effective proposals per dimension of η, below which their moments are not used.
_LEAST_EFFECTIVE = 10


def importance_sample(
    key,
    model: Callable,
    *args,
    init: Fit | tuple[Callable, Mapping[str, Any]],
    num_chains: int = 4,
    num_samples: int = 1000,
    num_proposals: int | None = None,
    num_noise_draws: int = 1,
    log_likelihood: bool = False,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    progress: bool = True,
    **kwargs,
):
    """Draws of v and the hyperparameters by importance sampling from a fit.

    Takes seconds where a chain takes longer, and returns the same object as
    ``gp.sample``, for models with up to a hundred hyperparameters whose posterior is
    not far from Gaussian in the coordinates of the fit. The Pareto k̂ of the weights
    shows this (Vehtari et al. 2024): above min(1 − 1/log₁₀ S, 0.7) there is a warning;
    then use ``gp.sample(init=fit)``. Hyperparameters are proposed around the fit, at
    the curvature of the log density there, and v given them from the q(v) that follows
    them; with Gaussian likelihoods v is integrated out and drawn exactly.

    Args:
        key: Random key.
        model: NumPyro model, without a subsampled plate.
        *args: Arguments of the model, data included.
        init: A :class:`Fit` or ``(guide, params)`` with a Gaussian q(v), or a mixture.
        num_chains: Number of parts into which the draws are dealt; they are
            independent.
        num_samples: Draws kept in each, by systematic resampling with the weights. A
            proposal with a large weight occurs several times.
        num_proposals: Number S of proposals in each of two rounds, of which the second
            counts; by default as many as draws are kept.
        num_noise_draws: As for ``gp.sample``.
        log_likelihood: Whether to add log p(y_n | v, θ) of every draw.
        coords: As for ``gp.sample``.
        dims: As for ``gp.sample``.
        progress: Whether to show a progress bar if it takes a while. An interrupt
            (Ctrl-C) in the second round keeps its proposals so far, with a warning.
        **kwargs: Keyword arguments of the model.

    Returns:
        An ArviZ object as from ``gp.sample``. The attributes of its posterior include
        ``pareto_k`` and ``effective_sample_size``, (Σ w)² / Σ w² of the smoothed
        weights: the number of independent draws that the result is worth.

    Raises:
        ValueError: The model cannot be sampled, or ``init`` has a process without a
            q(v) that can be marginalised, or there are too many hyperparameters.
        FloatingPointError: No proposal has a finite density.

    Example:
        >>> import svgp_ppl as gp
        >>> draws = gp.importance_sample(random.key(1), model, x, y, init=fitted)
        >>> draws.posterior.attrs["pareto_k"] < 0.7
        True
    """
    require_key(key, of=importance_sample)
    num_chains = require_count(num_chains, "num_chains")
    num_kept = num_chains * require_count(num_samples, "num_samples")
    if num_proposals is None:
        num_proposals = num_kept
    num_proposals = require_count(num_proposals, "num_proposals")
    num_noise_draws = require_count(num_noise_draws, "num_noise_draws")
    require_arguments(model, args, kwargs, importance_sample)
    key_target, key_start, key_first, key_second, key_kept = random.split(key, 5)
    guide, params = guide_and_params(init, "init")
    made = (model, args, kwargs, params, num_noise_draws)
    with single_threaded_lapack():
        target = Target(key_target, *made, collapse=True)
        require_same_processes(init, target.processes)
        axes = target.axes(coords, dims)
        load_arviz()
        start = fitted_start(key_start, guide, params, target, 1)
        _require_standard(start)
        program = _program(key, target, start, num_proposals)
        bar = progress_bar(
            2 * num_proposals, "proposals", progress and target.is_expensive
        )
        began = time.perf_counter()
        try:
            first = _weighted(program, key_first, start, num_proposals, bar)
            start = _moved(start, *first)
            second = _weighted(program, key_second, start, num_proposals, bar, True)
        finally:
            bar.close()
        positions, log_weights = second
        seconds = time.perf_counter() - began
        weights, shape = _smoothed(log_weights)
        kept = _resampled(key_kept, weights, num_kept)
        attrs = _trust(weights, shape) | {
            "num_proposals": len(log_weights),
            "init": "fit",
            "coordinates": "collapsed" if target.is_collapsed else "fitted",
        }
        draws, kept_weights = jax.tree.map(
            lambda x: x[kept].reshape(num_chains, -1, *x.shape[1:]),
            (positions, log_weights),
        )
        chains = _as_chains(draws, kept_weights, seconds, program.seconds)
        given = (("importance", {}), log_likelihood, axes, attrs)
        return as_arviz(key_target, chains, target, start, *given)


def _require_standard(start: Start) -> None:
    """Refuse coordinates in which the fit is not standard normal."""
    whole = {OTHERS, *(name for name in start.positions if name.endswith("_base"))}
    left = sorted(set(start.positions) - whole)
    if left:
        raise ValueError(
            f"there is nothing to propose {left} from: importance sampling needs "
            "init= with a Gaussian q(v) for every process, such as that of "
            "AutoGaussian, a finite curvature of the log density at the fit, and at "
            "most 100 hyperparameters. Take gp.sample(init=...)."
        )


def _blocks(num_proposals: int) -> np.ndarray:
    """The numbers of the proposals that are evaluated between two signs of life."""
    return filled_batches(num_proposals, -(-num_proposals // _NUM_BLOCKS))


def _program(key, target: Target, start: Start, num_proposals: int) -> Program:
    """(keys [B], coordinates and data, example) -> proposals [B, ...], log weights."""

    def run(keys, of_start, example):
        coordinates, data = of_start

        def one(key):
            position, log_q = _proposal(key, example)
            log_p = target.logdensity_fn(*coordinates.at(position, data))
            return position, log_p - log_q

        return in_batches(one, keys, 1 if jax.default_backend() == "cpu" else _BATCH)

    keys = random.split(key, _blocks(num_proposals).shape[1])
    made_of = ("importance weights", *target.made_of)
    return find(run, made_of, *_arguments(keys, start))


def _arguments(keys, start: Start) -> tuple:
    example = {name: x[0] for name, x in start.positions.items()}
    return keys, (start.coordinates, start.data), example


def _weighted(
    program: Program,
    key,
    start: Start,
    num_proposals: int,
    bar: Progress,
    may_end: bool = False,
) -> tuple[dict, np.ndarray]:
    """Proposals by name, [S, ...], and their log weights [S]; on the host.

    ``may_end``: whether fewer do where the user interrupts.
    """
    keys, found = random.split(key, num_proposals), []
    try:
        for rows in _blocks(num_proposals):
            found.append(jax.device_get(program(*_arguments(keys[rows], start))))
            bar.update(min(len(rows), num_proposals - len(rows) * (len(found) - 1)))
    except KeyboardInterrupt:
        if not (may_end and found):
            raise
        number = min(len(found) * len(found[0][1]), num_proposals)
        warnings.warn(
            f"interrupted: the draws are from {number} of {num_proposals} proposals.",
            stacklevel=3,
        )
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    positions, log_weights = jax.tree.map(lambda leaf: leaf[:num_proposals], whole)
    log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    if not np.any(log_weights > -np.inf):
        raise FloatingPointError(
            f"the log density is not finite at any of {len(log_weights)} proposals "
            "around the fit: see gp.diagnostics.report(fit, ...)."
        )
    return positions, log_weights.astype(np.float64)


def _proposal(key, like: Mapping[str, Any]) -> tuple[dict, Any]:
    """A position, and its log density up to a constant.

    t_ν is N(0, I) divided by the root of a χ²_ν / ν: −(ν + D)/2 log(1 + ‖x‖²/ν).
    """
    position, log_q = {}, jnp.zeros(())
    for name, key_of in zip(like, random.split(key, len(like))):
        x = jnp.asarray(like[name])
        key_x, key_scale = random.split(key_of)
        degrees = _DEGREES_A_DIMENSION * x.size
        share = random.gamma(key_scale, degrees / 2, dtype=x.dtype) / (degrees / 2)
        x = random.normal(key_x, x.shape, x.dtype) / jnp.sqrt(share)
        tail = jnp.log1p(jnp.sum(x**2) / degrees)
        log_q = log_q - (degrees + x.size) / 2 * tail
        position[name] = x
    return position, log_q


def _moved(start: Start, positions: Mapping[str, Any], log_weights) -> Start:
    """The coordinates of θ at the mean and the covariance of the weighted draws."""
    if OTHERS not in positions:
        return start
    eta = np.asarray(positions[OTHERS], np.float64)
    weights, _ = _smoothed(log_weights)
    if 1 / np.sum(weights**2) < _LEAST_EFFECTIVE * eta.shape[1]:
        return start
    mean = weights @ eta
    covariance = (weights[:, None] * (eta - mean)).T @ (eta - mean)
    tril, coordinates = np.linalg.cholesky(covariance), start.coordinates
    return start._replace(coordinates=coordinates.moved(mean, tril))


def _resampled(key, weights: np.ndarray, number: int) -> np.ndarray:
    """Proposals to keep, in random order."""
    key_draw, key_order = random.split(key)

    def run(key_draw, key_order, weights):
        return random.permutation(key_order, systematic(key_draw, weights, number))

    made_of = ("resampling", number)
    return np.asarray(call(run, made_of, key_draw, key_order, weights, runs_once=True))


def _trust(weights: np.ndarray, shape: float) -> dict[str, float]:
    """k̂ and the effective number of draws; warns if k̂ is too large."""
    limit, effective = good_shape(len(weights)), float(1 / np.sum(weights**2))
    if shape > limit:
        warnings.warn(
            f"The Pareto k-hat of the importance weights is {shape:.2f}, above "
            f"{limit:.2f}: a few of {len(weights)} proposals decide "
            f"({effective:.0f} effective draws), and the posterior is not to be "
            "trusted. Take gp.sample(init=...), or more proposals if it is near.",
            stacklevel=3,
        )
    return {"pareto_k": shape, "good_k": limit, "effective_sample_size": effective}


def _smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Smoothed weights, which sum to one, and k̂."""
    log_weights, shape = pareto_smoothed(log_weights)
    weights = np.exp(log_weights - np.max(log_weights))
    return weights / np.sum(weights), shape


def _as_chains(draws: dict, log_weights: np.ndarray, seconds, compiling) -> Chains:
    """Draws in the form of a run of chains."""
    return Chains(
        draws=draws,
        stats={"log_weight": log_weights},
        seconds=seconds,
        warmup_seconds=0.0,
        compile_seconds=compiling,
        num_gradients=0,
        tuned=(),
        warmup_stats={},
        position=jax.tree.map(lambda x: x[:, -1], draws),
    )
