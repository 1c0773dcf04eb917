"""Draws of v and the hyperparameters together, as an ArviZ object."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import logsumexp

from svgp_ppl.checks import require_arguments, require_count, require_key
from svgp_ppl.compilation import call
from svgp_ppl.diagnostics import to_arviz
from svgp_ppl.fitting import Fit
from svgp_ppl.fitting.failures import explain_non_finite
from svgp_ppl.handlers import trace_of, unwrapped
from svgp_ppl.mcmc.chains import Chains, NonFiniteStartError, run_chains
from svgp_ppl.mcmc.coordinates import Coordinates, variational_coordinates
from svgp_ppl.mcmc.nuts import NUTS
from svgp_ppl.mcmc.sampler import Sampler, StochasticGradient
from svgp_ppl.mcmc.target import Target
from svgp_ppl.primitives import expected_of

__all__ = ["sample"]

_NO_GAUSSIAN = (
    "precondition=True needs init= with a Gaussian q(v) of full covariance, such as "
    "that of AutoGaussian."
)


def sample(
    key,
    model: Callable,
    *args,
    sampler: Sampler | None = None,
    num_chains: int = 4,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    num_noise_draws: int = 1,
    init: Fit | tuple[Callable, Mapping[str, Any]] | None = None,
    precondition: bool = False,
    log_likelihood: bool = False,
    progress: bool = True,
    **kwargs,
):
    """Sample the posterior of the whitened values and all other latent sites.

    The hybrid of Hensman et al. (2015): with ``init`` a Gaussian fit, the ``param``
    sites (z above all) are frozen at their fitted values, and every chain starts from a
    draw of the q(v) with the hyperparameters where the fit has them.

    Args:
        key: Random key.
        model: NumPyro model. A subsampled plate is refused, unless the sampler is
            ``svgp_ppl.mcmc.SGHMC()`` or ``SGLD()``, whose stochastic gradients need it.
        *args: Arguments of the model, data included.
        sampler: ``svgp_ppl.mcmc.NUTS()`` if None.
        num_chains: Number of chains, run side by side in one compiled program.
        num_warmup: Steps of adaptation per chain, not kept.
        num_samples: Draws kept per chain.
        num_noise_draws: Number S of draws of the fixed noise: what the model draws
            besides its sample sites (the layers of a deep model, nodes of
            ``MonteCarlo``). The log likelihood is averaged over them. They stay the
            same for the whole run, so the posterior depends on them by O(1/√S); each
            costs as much as another pass over the data.
        init: A :class:`Fit` or ``(guide, params)`` to start from; None starts at random
            and freezes ``param`` sites at their initial values.
        precondition: Whether the sampler moves ξ in v = m + S ξ, with N(m, S Sᵀ) the
            q(v) of ``init``, so that its metric starts at the fit: shorter
            trajectories, more effective draws of v a second, fewer of the
            hyperparameters (see the page on choosing a sampler).
        log_likelihood: Whether to add log p(y_n | v, θ) of every draw, the group that
            ``arviz.loo`` reads (log E p(y|f), not the expectation of the bound).
        progress: Whether to show progress bars.
        **kwargs: Keyword arguments of the model.

    Returns:
        An ArviZ object (``InferenceData``, or ``DataTree`` from ArviZ 1.0) with groups
        ``posterior`` (constrained values), ``sample_stats``, ``observed_data``,
        ``constant_data`` (the frozen ``param`` values) and, on request,
        ``log_likelihood``. After a keyboard interrupt it holds the draws so far.

    Raises:
        ValueError: The model cannot be sampled (says why), or a count is not positive.
        FloatingPointError: The log density is not finite where the chains start; says
            which process or site.

    Example:
        >>> import svgp_ppl as gp
        >>> draws = gp.sample(
        ...     random.key(1), model, x, y, init=fitted
        ... )  # doctest: +SKIP
    """
    require_key(key)
    is_object = isinstance(sampler, Sampler) and not isinstance(sampler, type)
    if sampler is not None and not is_object:
        raise ValueError(
            f"sampler must be an object such as gp.mcmc.NUTS(), and is {sampler!r}."
        )
    num_chains = require_count(num_chains, "num_chains")
    num_warmup = require_count(num_warmup, "num_warmup", least=0)
    num_samples = require_count(num_samples, "num_samples")
    num_noise_draws = require_count(num_noise_draws, "num_noise_draws")
    require_arguments(model, args, kwargs)
    key_target, key_start, key_chains = random.split(key, 3)
    sampler = NUTS() if sampler is None else sampler
    guide, params = _take_init(init)
    if precondition and guide is None:
        raise ValueError(_NO_GAUSSIAN)
    biased = isinstance(sampler, StochasticGradient)
    target = Target(
        key_target, model, args, kwargs, params, num_noise_draws, minibatches=biased
    )
    if guide is None:
        positions = target.initial_positions(key_start, num_chains)
    else:
        positions = target.positions_from(key_start, guide, dict(params), num_chains)
    coordinates = _coordinates(key_target, precondition, sampler, guide, params, target)
    chains = _run(
        key_chains,
        target,
        coordinates,
        positions,
        sampler,
        num_warmup,
        num_samples,
        progress,
    )
    draws = _over_draws(
        lambda xi, data: target.constrain(data[0].to_values(xi), data[1]),
        ("constrain", *target.made_of),
        chains.draws,
        (coordinates, target.data),
    )
    likelihoods = _log_likelihoods(target, draws) if log_likelihood else None
    settings = {n: v for n, v in vars(sampler).items() if n != "whitened"}
    return to_arviz(
        draws,
        sample_stats=chains.stats,
        observed_data={n: np.asarray(v) for n, v in target.observed.items()},
        constant_data={n: np.asarray(v) for n, v in target.data.params.items()},
        log_likelihood=likelihoods,
        attrs={
            "sampling_seconds": chains.seconds,
            "warmup_seconds": chains.warmup_seconds,
            "compile_seconds": chains.compile_seconds,
            "num_gradients": int(chains.num_gradients),
            "num_warmup": num_warmup,
            "sampler": type(sampler).__name__,
            "sampler_settings": json.dumps(settings, default=str),
            "init": "none" if guide is None else "fit",
            **({"bias": "stochastic gradients"} if biased else {}),
        },
    )


def _run(
    key,
    target: Target,
    coordinates: Coordinates,
    positions: dict,
    sampler: Any,
    num_warmup: int,
    num_samples: int,
    progress: bool,
) -> Chains:
    """Chains in the coordinates of the sampler."""

    def logdensity_fn(position, data, *key):
        coordinates, data = data
        return target.logdensity_fn(coordinates.to_values(position), data, *key)

    try:
        return run_chains(
            key,
            logdensity_fn,
            jax.vmap(coordinates.from_values)(positions),
            _with_whitened(sampler, target),
            num_warmup=num_warmup,
            num_samples=num_samples,
            data=(coordinates, target.data),
            progress=progress,
            made_of=target.made_of,
        )
    except NonFiniteStartError as error:
        raise _explained(error, target, positions) from None


def _take_init(init) -> tuple[Callable | None, Mapping[str, Any]]:
    match init:
        case None:
            return None, {}
        case Fit():
            return init.guide, init.params
        case (guide, params) if callable(guide) and isinstance(params, Mapping):
            return guide, params
    raise ValueError(
        "init must be what gp.fit returns, or (guide, params) with the params of "
        f"numpyro's SVI, and is a {type(init).__name__}."
    )


def _coordinates(
    key, precondition, sampler, guide, params, target: Target
) -> Coordinates:
    """The coordinates of the sampler."""
    if not precondition:
        return Coordinates({}, {})
    if hasattr(sampler, "whitened"):
        raise ValueError(
            f"{type(sampler).__name__} uses the prior N(0, I) of the whitened values "
            "and cannot be preconditioned: drop precondition=True."
        )
    if guide is not None:
        coordinates = variational_coordinates(key, guide, params, target)
        if coordinates.loc:
            return coordinates
    raise ValueError(_NO_GAUSSIAN)


def _with_whitened(sampler: Any, target: Target) -> Sampler:
    """The sampler, with the names of the sites whose prior is N(0, I) where it asks."""
    if not hasattr(sampler, "whitened"):
        return sampler
    return replace(sampler, whitened=tuple(target.whitened_names))


def _explained(
    error: NonFiniteStartError, target: Target, positions: dict
) -> FloatingPointError:
    """Why the log density is not finite where a chain starts."""
    first = jax.tree.map(lambda leaf: leaf[error.chains[0]], positions)
    try:
        values = target.constrain(first, target.data)
        reason = explain_non_finite(
            target.trace_at(values),
            otherwise="Every process and observed site is finite there: look at the "
            "priors of the other latent sites, or start from a fit with init=.",
        )
    except Exception as failure:
        reason = f"(Looking for the cause failed: {type(failure).__name__}: {failure})"
    return FloatingPointError(
        f"the log density of chain(s) {error.chains.tolist()} is not finite where they "
        f"start.\n{reason}"
    )


def _log_likelihoods(target: Target, draws: dict) -> dict[str, np.ndarray]:
    """log p(y_n | v, θ) of every draw, without the data that a mask leaves out."""

    def of_draw(values: dict, data: Any) -> dict:
        args, kwargs = target.combine(data.arrays)

        def at_noise(key):
            model = target.with_noise(key, data.params)
            sites = trace_of(model, args, kwargs, values=values)
            return {
                name: _log_probability(site)
                for name, site in sites.items()
                if site["type"] == "sample" and site["is_observed"]
            }

        each = jax.vmap(at_noise)(data.noise_keys)
        return {
            name: (logsumexp(value, axis=0) - jnp.log(len(value)), mask[0])
            for name, (value, mask) in each.items()
        }

    found = _over_draws(
        of_draw, ("log likelihood", *target.made_of), draws, target.data
    )
    return {name: value[..., mask[0, 0]] for name, (value, mask) in found.items()}


def _log_probability(site: dict) -> tuple[jax.Array, jax.Array]:
    """Log probability of the data of a site, and which of them count."""
    _, mask = unwrapped(site["fn"])
    expected = expected_of(site)
    if expected is not None:
        value = expected.log_predictive(site["value"])
    else:
        value, mask = site["fn"].log_prob(site["value"]), True
    return value, jnp.broadcast_to(mask, jnp.shape(value))


def _over_draws(function: Callable, made_of: tuple, draws: dict, data: Any) -> Any:
    """``function(draw, data)`` at every draw of every chain, a few at a time."""

    def run(draws, data):
        leading = jax.tree.leaves(draws)[0].shape[:2]
        flat = jax.tree.map(lambda x: jnp.reshape(x, (-1, *x.shape[2:])), draws)
        each = jax.lax.map(lambda one: function(one, data), flat, batch_size=64)
        return jax.tree.map(lambda x: jnp.reshape(x, (*leading, *x.shape[1:])), each)

    return jax.device_get(call(run, made_of, dict(draws), data))
