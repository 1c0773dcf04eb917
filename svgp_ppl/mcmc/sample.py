"""Draws of v and the hyperparameters together, as an ArviZ object."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import logsumexp
from numpyro.handlers import substitute, trace

from svgp_ppl.diagnostics import to_arviz
from svgp_ppl.failures import explain_non_finite
from svgp_ppl.fit import Fit
from svgp_ppl.mcmc.chains import run_chains
from svgp_ppl.mcmc.frame import Frame, belief_frame
from svgp_ppl.mcmc.nuts import NUTS
from svgp_ppl.mcmc.sampler import Sampler, StochasticGradient
from svgp_ppl.mcmc.target import Target, make_target
from svgp_ppl.primitives import is_expected

__all__ = ["sample"]


def sample(
    key,
    model: Callable,
    *args,
    sampler: Sampler | None = None,
    num_chains: int = 4,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    num_nodes: int = 1,
    init: Fit | tuple[Callable, Mapping[str, Any]] | None = None,
    precondition: bool = False,
    log_likelihood: bool = False,
    progress: bool = True,
    **kwargs,
):
    """Sample the posterior of the whitened values and all other latent sites.

    The hybrid of Hensman et al. (2015): with ``init`` a Gaussian fit, the ``param``
    sites (z above all) are frozen at their fitted values, and every chain starts from a
    draw of the belief with the hyperparameters where the fit has them.

    Args:
        key: Random key.
        model: NumPyro model. A subsampled plate is refused, unless the sampler is
            ``svgp_ppl.mcmc.SGHMC()`` or ``SGLD()``, whose stochastic gradients need it.
        *args: Arguments of the model, data included.
        sampler: ``svgp_ppl.mcmc.NUTS()`` if None.
        num_chains: Number of chains, run side by side in one compiled program.
        num_warmup: Steps of adaptation per chain, not kept.
        num_samples: Draws kept per chain.
        num_nodes: Number S of fixed draws of what the model draws besides its sample
            sites (the layers of a deep model, nodes of ``MonteCarlo``), over which the
            log likelihood is averaged. They stay the same for the whole run, so the
            posterior depends on them by O(1/√S); each costs as much as another pass
            over the data.
        init: A :class:`Fit` or ``(guide, params)`` to start from; None starts at random
            and freezes ``param`` sites at their initial values.
        precondition: Whether the sampler moves ξ in v = m + S ξ, with N(m, S Sᵀ) the
            belief of ``init``, so that its metric starts at the fit: shorter
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
    counts = {"num_chains": num_chains, "num_samples": num_samples}
    for name, count in {**counts, "num_nodes": num_nodes}.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be a positive integer, and is {count!r}.")
    key_target, key_start, key_chains = random.split(key, 3)
    sampler = NUTS() if sampler is None else sampler
    guide, params = _take_init(init)
    biased = isinstance(sampler, StochasticGradient)
    target = make_target(
        key_target, model, args, kwargs, params, num_nodes, minibatches=biased
    )
    frame = _frame(key_target, precondition, sampler, guide, params, target)
    if guide is None:
        positions = target.initial_positions(key_start, num_chains)
    else:
        positions = target.positions_from(key_start, guide, dict(params), num_chains)
    _require_finite_start(target, positions)

    def logdensity_fn(position, data, *key):
        frame, data = data
        return target.logdensity_fn(frame.to_values(position), data, *key)

    def constrain(position, data):
        frame, data = data
        return target.constrain(frame.to_values(position), data)

    chains = run_chains(
        key_chains,
        logdensity_fn,
        jax.vmap(frame.from_values)(positions),
        _told_of_sites(sampler, target),
        num_warmup=num_warmup,
        num_samples=num_samples,
        data=(frame, target.data),
        progress=progress,
    )
    draws = _over_draws(constrain, chains.draws, (frame, target.data))
    likelihoods = None
    if log_likelihood:
        likelihoods = _over_draws(_log_likelihood(target), draws, target.data)
    return to_arviz(
        draws,
        sample_stats=chains.stats,
        observed_data=target.observed(),
        constant_data={n: np.asarray(v) for n, v in target.params.items()},
        log_likelihood=likelihoods,
        attrs={
            "sampling_seconds": chains.seconds,
            "warmup_seconds": chains.warmup_seconds,
            "num_gradients": int(chains.num_gradients),
            **({"bias": "stochastic gradients"} if biased else {}),
        },
    )


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


def _frame(key, precondition, sampler, guide, params, target: Target) -> Frame:
    """The coordinates of the sampler."""
    if not precondition:
        return Frame({}, {})
    if hasattr(sampler, "whitened"):
        raise ValueError(
            f"{type(sampler).__name__} uses the prior N(0, I) of the whitened values "
            "and cannot be preconditioned: drop precondition=True."
        )
    if guide is not None:
        frame = belief_frame(key, guide, params, target)
        if frame.loc:
            return frame
    raise ValueError(
        "precondition=True needs init= with a Gaussian belief of full covariance, such "
        "as that of AutoGaussian."
    )


def _told_of_sites(sampler: Any, target: Target) -> Sampler:
    """The sampler, told which sites have the prior N(0, I) where it asks for them."""
    if not hasattr(sampler, "whitened"):
        return sampler
    return replace(sampler, whitened=tuple(target.whitened_names()))


def _require_finite_start(target: Target, positions: dict) -> None:
    start = jax.jit(jax.vmap(target.logdensity_fn, (0, None)))(positions, target.data)
    bad = np.flatnonzero(~np.isfinite(np.asarray(start)))
    if len(bad) == 0:
        return
    first = jax.tree.map(lambda leaf: leaf[bad[0]], positions)
    values = target.constrain(first, target.data)
    run = trace(substitute(target.model, data=values))
    reason = explain_non_finite(
        run.get_trace(*target.args, **target.kwargs),
        otherwise="Every process and observed site is finite there: look at the priors "
        "of the other latent sites, or start from a fit with init=.",
    )
    raise FloatingPointError(
        f"the log density of chain(s) {bad.tolist()} is not finite where they start.\n"
        f"{reason}"
    )


def _log_likelihood(target: Target) -> Callable[[dict, list], dict]:
    def of_draw(values: dict, data: list) -> dict:
        args, kwargs = target.put_back(data)

        def at_nodes(key):
            run = trace(substitute(target.with_nodes(key), data=values))
            return {
                name: _log_probability(site)
                for name, site in run.get_trace(*args, **kwargs).items()
                if site["type"] == "sample" and site["is_observed"]
            }

        each = jax.vmap(at_nodes)(target.node_keys)
        return {n: logsumexp(v, axis=0) - jnp.log(len(v)) for n, v in each.items()}

    return of_draw


def _log_probability(site: dict) -> jax.Array:
    if is_expected(site):
        return site["fn"].log_predictive(site["value"])
    return site["fn"].log_prob(site["value"])


def _over_draws(function: Callable, draws: dict, data: Any) -> dict[str, np.ndarray]:
    """``function`` at every draw of every chain, a few at a time."""
    leading = next(iter(jax.tree.leaves(draws))).shape[:2]
    flat = jax.tree.map(
        lambda leaf: jnp.reshape(leaf, (-1, *np.shape(leaf)[2:])), dict(draws)
    )

    @jax.jit
    def run(flat, data):
        return jax.lax.map(lambda one: function(one, data), flat, batch_size=64)

    values = run(flat, data)
    return {n: np.asarray(v).reshape(*leading, *v.shape[1:]) for n, v in values.items()}
