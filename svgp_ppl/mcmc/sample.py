"""Draws of v and the hyperparameters together, as an ArviZ object."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import logsumexp

from svgp_ppl.checks import require_count, require_key
from svgp_ppl.compilation import call
from svgp_ppl.diagnostics import to_arviz
from svgp_ppl.fitting import Fit
from svgp_ppl.fitting.failures import explain_non_finite
from svgp_ppl.handlers import trace_of, unwrapped
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.chains import Chains, NonFiniteStartError, run_chains
from svgp_ppl.mcmc.coordinates import (
    Start,
    fitted_start,
    guide_and_params,
    plain_coordinates,
)
from svgp_ppl.mcmc.nuts import NUTS
from svgp_ppl.mcmc.sampler import Sampler, StochasticGradient
from svgp_ppl.mcmc.target import Target
from svgp_ppl.primitives import expected_of

__all__ = ["sample"]


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
    coordinates: Literal["collapsed", "fitted", "whitened"] | None = None,
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
        coordinates: What the sampler moves; the draws are those of the same posterior.
            ``"collapsed"``: the hyperparameters alone, with v integrated out and drawn
            afterwards, where every likelihood is Gaussian. ``"fitted"``: coordinates in
            which the fit of ``init`` is standard normal at any hyperparameters.
            ``"whitened"``: v and the unconstrained hyperparameters as they are. None
            takes the first of them that can be had (see the page on sampling).
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
    key_target, key_start, key_chains = random.split(key, 3)
    sampler = NUTS() if sampler is None else sampler
    guide, params = (None, {}) if init is None else guide_and_params(init)
    biased = isinstance(sampler, StochasticGradient)
    choice = _choice(coordinates, sampler, guide)
    target = Target(
        key_target,
        model,
        args,
        kwargs,
        params,
        num_noise_draws,
        minibatches=biased,
        collapse="collapsed" in choice,
    )
    start = _start(key_start, choice, guide, params, target, num_chains)
    chains = _run(key_chains, target, start, sampler, num_warmup, num_samples, progress)
    draws = _constrained(key_target, target, start, chains.draws)
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
            "coordinates": "collapsed" if target.is_collapsed else choice[-1],
            **({"bias": "stochastic gradients"} if biased else {}),
        },
    )


def _run(
    key,
    target: Target,
    start: Start,
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
        with single_threaded_lapack():
            return run_chains(
                key,
                logdensity_fn,
                start.positions,
                _with_whitened(sampler, target),
                num_warmup=num_warmup,
                num_samples=num_samples,
                data=(start.coordinates, start.data),
                progress=progress,
                made_of=target.made_of,
            )
    except NonFiniteStartError as error:
        raise _explained(error, target, start) from None


def _choice(coordinates, sampler: Any, guide) -> tuple[str, ...]:
    """The coordinates that will do, the best first."""
    known = ("collapsed", "fitted", "whitened")
    if coordinates is not None and coordinates not in known:
        raise ValueError(f"coordinates must be one of {known}; got {coordinates!r}.")
    uses_prior = hasattr(sampler, "whitened")
    if coordinates is None:
        if uses_prior:
            return ("whitened",)
        first = () if isinstance(sampler, StochasticGradient) else ("collapsed",)
        return (*first, "whitened" if guide is None else "fitted")
    if coordinates != "whitened" and uses_prior:
        raise ValueError(
            f"{type(sampler).__name__} uses the prior N(0, I) of the whitened values: "
            f'drop coordinates="{coordinates}".'
        )
    if coordinates == "fitted" and guide is None:
        raise ValueError('coordinates="fitted" needs a fit: give it as init=.')
    return (coordinates,)


def _start(
    key, choice: tuple[str, ...], guide, params, target: Target, num_chains: int
) -> Start:
    """Where the chains start, in the coordinates of the sampler."""
    if choice == ("collapsed",) and not target.is_collapsed:
        raise ValueError(
            'coordinates="collapsed" needs a latent site besides v, and at every '
            "observe site likelihoods.Gaussian, a latent of one component and no "
            "chunk_size."
        )
    if guide is None:
        positions = target.initial_positions(key, num_chains)
    elif choice == ("whitened",):
        positions = target.positions_from(key, guide, dict(params), num_chains)
    else:
        return fitted_start(key, guide, params, target, num_chains)
    return Start(plain_coordinates(), target.data, positions)


def _constrained(key, target: Target, start: Start, draws: dict) -> dict:
    """Values at the sites of the model, from positions of the chains."""
    num_chains, num_samples = jax.tree.leaves(draws)[0].shape[:2]

    def of_draw(drawn, data):
        (position, number), (key, coordinates, data) = drawn, data
        values = coordinates.to_values(position)
        return target.constrain(values, data, random.fold_in(key, number))

    numbers = np.arange(num_chains * num_samples).reshape(num_chains, num_samples)
    made_of = ("constrain", *target.made_of)
    given = (key, start.coordinates, start.data)
    return _over_draws(of_draw, made_of, (draws, numbers), given)


def _with_whitened(sampler: Any, target: Target) -> Sampler:
    """The sampler, with the names of the sites whose prior is N(0, I) where it asks."""
    if not hasattr(sampler, "whitened"):
        return sampler
    return replace(sampler, whitened=tuple(target.whitened_names))


def _explained(
    error: NonFiniteStartError, target: Target, start: Start
) -> FloatingPointError:
    """Why the log density is not finite where a chain starts."""
    first = jax.tree.map(lambda leaf: leaf[error.chains[0]], start.positions)
    try:
        values = target.constrain(start.coordinates.to_values(first), start.data)
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


def _over_draws(function: Callable, made_of: tuple, draws: Any, data: Any) -> Any:
    """``function(draw, data)`` at every draw of every chain, a few at a time."""

    def run(draws, data):
        leading = jax.tree.leaves(draws)[0].shape[:2]
        flat = jax.tree.map(lambda x: jnp.reshape(x, (-1, *x.shape[2:])), draws)
        each = jax.lax.map(lambda one: function(one, data), flat, batch_size=64)
        return jax.tree.map(lambda x: jnp.reshape(x, (*leading, *x.shape[1:])), each)

    return jax.device_get(call(run, made_of, draws, data))
