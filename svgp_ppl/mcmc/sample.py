"""Draws of v and the hyperparameters together, as an ArviZ object."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import jax
from jax import random

from svgp_ppl.checks import require_arguments, require_count, require_key
from svgp_ppl.diagnostics.posterior import load_arviz
from svgp_ppl.fitting import Fit
from svgp_ppl.fitting.failures import explain_non_finite, holes_in_arguments
from svgp_ppl.guides.fitted import Guide
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.chains.chain_method import ChainMethod, chain_method_of
from svgp_ppl.mcmc.chains.checkpoints import RunFile
from svgp_ppl.mcmc.chains.run import Chains, NonFiniteStartError, run_chains
from svgp_ppl.mcmc.coordinates import Start
from svgp_ppl.mcmc.draws import as_arviz
from svgp_ppl.mcmc.pathfinder import Pathfinder
from svgp_ppl.mcmc.samplers.nuts import NUTS
from svgp_ppl.mcmc.samplers.sampler import Sampler, UsesPrior, is_biased
from svgp_ppl.mcmc.starts import coordinates_to_try, origin_of, start_of
from svgp_ppl.mcmc.target import Target
from svgp_ppl.process_facts import require_same_processes

__all__ = ["sample"]


def sample(
    key,
    model: Callable,
    *args,
    sampler: Sampler | None = None,
    num_chains: int = 4,
    num_warmup: int = 1000,
    num_samples: int = 1000,
    chain_method: ChainMethod | None = None,
    num_noise_draws: int = 1,
    init: Fit | tuple[Callable, Any] | Pathfinder | None = None,
    coordinates: Literal["collapsed", "fitted", "whitened"] | None = None,
    log_likelihood: bool = False,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
    **kwargs,
):
    """Sample the posterior of the whitened values and all other latent sites.

    The hybrid of Hensman et al. (2015): with a Gaussian fit as ``init``, the ``param``
    sites (above all z) are frozen at their fitted values, and every chain starts from a
    draw of the q(v), with the hyperparameters at their fitted values.

    Args:
        key: Random key.
        model: NumPyro model. A subsampled plate is refused, unless the sampler is
            ``svgp_ppl.mcmc.SGHMC()`` or ``SGLD()``, whose stochastic gradients need it.
        *args: Arguments of the model, data included.
        sampler: ``svgp_ppl.mcmc.NUTS()`` if None.
        num_chains: Number of chains.
        num_warmup: Steps of adaptation per chain, not kept.
        num_samples: Draws kept per chain.
        chain_method: ``"parallel"``: one program per chain, run in threads for as many
            chains at once as there are cores. ``"vectorized"``: one program for all
            chains. None is ``"parallel"`` on a CPU, except for samplers that tune on
            all chains together (``ChEES``, ``SGHMC``, ``SGLD``), and ``"vectorized"``
            on accelerators and for data on several devices. The draws of both are the
            same up to rounding.
        num_noise_draws: Number S of draws of the fixed noise: what the model draws
            besides its sample sites (the layers of a deep model, nodes of
            ``MonteCarlo``). The log likelihood is averaged over them. They stay the
            same for the whole run, so the posterior depends on them by O(1/√S); each
            costs as much as another pass over the data.
        init: A :class:`Fit` to start from, or ``(guide, params)`` of a guide of any
            kind (``AutoNormal`` and ``AutoMultivariateNormal`` of NumPyro among them),
            with the params or the whole result of NumPyro's ``SVI``. Or
            ``svgp_ppl.mcmc.Pathfinder()``, which needs no guide. None starts each chain
            where a path of Pathfinder from a random place ends, or at that place where
            no coordinates are sought (deep models, v integrated out, ``"whitened"``).
            The last two freeze ``param`` sites at their initial values.
        coordinates: What the sampler moves; the draws are those of the same posterior.
            ``"collapsed"``: the hyperparameters alone, with v integrated out and drawn
            afterwards, where every likelihood is Gaussian. ``"fitted"``: coordinates in
            which the fit of ``init`` (or Laplace's approximation of v, where there is
            none) is standard normal at any hyperparameters.
            ``"whitened"``: v and the unconstrained hyperparameters, unchanged. None
            takes the first of these that is available (see the page on sampling).
        log_likelihood: Whether to add log p(y_n | v, θ) = log E p(y|f) of every draw,
            the group that ``arviz.loo`` reads, and the E log p(y|f) of the log density,
            ``expected_log_likelihood``, which ``gp.diagnostics.loo`` needs too.
        coords: Labels by dimension of the ArviZ object, such as ``{"data": years}``.
        dims: Names of the dimensions after chain and draw, by variable. By default an
            axis of a plate has the name of the plate.
        checkpoint: File for the run so far, in both the warm-up and the sampling phase:
            written about every half minute, at the end and at an interrupt. If it
            exists, the same call continues from it, to the numbers of a run without a
            pause; with a larger ``num_samples`` a finished run gets more draws.
        progress: Whether to show progress bars.
        **kwargs: Keyword arguments of the model.

    Returns:
        An ArviZ object (``InferenceData``, or ``DataTree`` from ArviZ 1.0) with groups
        ``posterior`` (constrained values), ``sample_stats``, ``observed_data``,
        ``constant_data`` (the frozen ``param`` values) and, on request,
        ``log_likelihood`` and ``expected_log_likelihood``. After a keyboard interrupt
        it holds the draws so far; in the warm-up there are none, and instead of
        ``posterior`` it has the groups ``warmup_posterior`` (the last position of each
        chain) and ``warmup_sample_stats``.

    Raises:
        ValueError: The model cannot be sampled (says why), a count is not positive, or
            ``coords`` or ``dims`` do not fit the model, or the checkpoint cannot be
            written or is of another run.
        FloatingPointError: The log density is not finite where the chains start; says
            which process or site. Or Pathfinder found no start.

    Example:
        >>> import svgp_ppl as gp
        >>> draws = gp.sample(random.key(1), model, x, y, init=fitted, progress=False)
        >>> draws.posterior["lengthscale"].shape
        (4, 1000)
    """
    require_key(key, of=sample)
    sampler = _checked(sampler)
    counts = {
        "num_warmup": require_count(num_warmup, "num_warmup", least=0),
        "num_samples": require_count(num_samples, "num_samples"),
    }
    num_chains = require_count(num_chains, "num_chains")
    num_noise_draws = require_count(num_noise_draws, "num_noise_draws")
    require_arguments(model, args, kwargs, sample)
    file = None if checkpoint is None else RunFile(checkpoint)
    key_target, key_start, key_chains = random.split(key, 3)
    origin = origin_of(init)
    params = origin.params if isinstance(origin, Guide) else {}
    method = chain_method_of(chain_method, sampler, (args, kwargs, params))
    to_try = coordinates_to_try(coordinates, sampler)
    biased = is_biased(sampler)
    made = (model, args, kwargs, params, num_noise_draws)
    begin = time.perf_counter()
    collapse = "collapsed" in to_try
    target = Target(key_target, *made, minibatches=biased, collapse=collapse)
    require_same_processes(init, target.processes)
    axes = target.axes(coords, dims)
    load_arviz()  # one that cannot be imported fails here, with nothing to lose
    start = start_of(key_start, to_try, origin, target, num_chains, file, progress)
    start_seconds = time.perf_counter() - begin
    options = {"chain_method": method, "progress": progress, "checkpoint": file}
    chains = _run(key_chains, target, start, sampler, counts | options)
    attrs = {
        "start_seconds": start_seconds,
        "num_warmup": counts["num_warmup"],
        "init": _NAMES[type(origin)],
        "chain_method": method,
        "coordinates": "collapsed" if target.is_collapsed else start.moved,
        **({} if target.is_deep else {"num_blocks": start.num_blocks}),
        **({"bias": "stochastic gradients"} if biased else {}),
    }
    of = _described(sampler)
    return as_arviz(key_target, chains, target, start, of, log_likelihood, axes, attrs)


def _checked(sampler: Any) -> Sampler:
    if sampler is None:
        return NUTS()
    if isinstance(sampler, type) or not isinstance(sampler, Sampler):
        raise ValueError(
            f"sampler must be an object such as gp.mcmc.NUTS(), and is {sampler!r}."
        )
    return sampler


def _described(sampler: Sampler) -> tuple[str, dict[str, Any]]:
    """The name of a sampler, and its settings."""
    settings = {n: v for n, v in vars(sampler).items() if n != "whitened"}
    return type(sampler).__name__, settings


_NAMES = {type(None): "none", Guide: "fit", Pathfinder: "pathfinder"}


def _run(
    key, target: Target, start: Start, sampler: Any, options: dict[str, Any]
) -> Chains:
    """Chains in the coordinates of the sampler."""

    @partial(jax.jit, inline=True)  # traced once for all programs of the chains
    def logdensity_fn(position, data, *key):
        coordinates, data = data
        return target.logdensity_fn(*coordinates.at(position, data), *key)

    try:
        with single_threaded_lapack():
            return run_chains(
                key,
                logdensity_fn,
                start.positions,
                _with_whitened(sampler, target),
                data=(start.coordinates, start.data),
                made_of=target.made_of,
                **options,
            )
    except NonFiniteStartError as error:
        raise _explained(error, target, start) from None


def _with_whitened(sampler: Any, target: Target) -> Sampler:
    """The sampler, given the names of the sites with prior N(0, I) if it needs them."""
    if not isinstance(sampler, UsesPrior):
        return sampler
    return replace(cast(Any, sampler), whitened=tuple(target.whitened_names))


def _explained(
    error: NonFiniteStartError, target: Target, start: Start
) -> FloatingPointError:
    """Why the log density is not finite where a chain starts."""
    first = jax.tree.map(lambda leaf: leaf[error.chains[0]], start.positions)
    try:
        position = start.coordinates.at(first, start.data)
        values = target.constrain(*position, random.key(0))
        reason = explain_non_finite(
            target.trace_at(values, start.data),
            otherwise="Every process and observed site is finite there: look at the "
            "priors of the other latent sites, or start from a fit with init=.",
        )
    except ValueError as refused:  # by a process, a likelihood or a distribution
        reason = str(refused)
    except Exception as failure:
        reason = f"(Looking for the cause failed: {type(failure).__name__}: {failure})"
    return FloatingPointError(
        f"the log density of chain(s) {error.chains.tolist()} is not finite where they "
        f"start.\n{reason}{holes_in_arguments(*target.arguments)}"
    )
