"""Draws of v and the hyperparameters together, as an ArviZ object."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import jax
import numpy as np
from jax import random

from svgp_ppl.checks import require_arguments, require_count, require_key
from svgp_ppl.diagnostics.posterior import load_arviz
from svgp_ppl.fitting import Fit
from svgp_ppl.fitting.failures import explain_non_finite
from svgp_ppl.guides.fitted import Guide, guide_and_params
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.affine import plain_coordinates
from svgp_ppl.mcmc.chains.chain_method import ChainMethod, chain_method_of
from svgp_ppl.mcmc.chains.checkpoints import RunFile
from svgp_ppl.mcmc.chains.run import Chains, NonFiniteStartError, run_chains
from svgp_ppl.mcmc.coordinates import Start, fitted_start, joint_start
from svgp_ppl.mcmc.draws import as_arviz
from svgp_ppl.mcmc.laplace import Curvature
from svgp_ppl.mcmc.pathfinder import Pathfinder
from svgp_ppl.mcmc.samplers.nuts import NUTS
from svgp_ppl.mcmc.samplers.sampler import Sampler, StochasticGradient, UsesPrior
from svgp_ppl.mcmc.target import Target

__all__ = ["sample"]


# Of chains without a fit: Laplace's approximation is sought from what it finds.
_ROUGH = Pathfinder(num_paths=2, num_draws=5)


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
            ``svgp_ppl.mcmc.Pathfinder()``, which needs no guide. None starts at random
            places. The last two freeze ``param`` sites at their initial values.
        coordinates: What the sampler moves; the draws are those of the same posterior.
            ``"collapsed"``: the hyperparameters alone, with v integrated out and drawn
            afterwards, where every likelihood is Gaussian. ``"fitted"``: coordinates in
            which the fit of ``init`` (or Laplace's approximation of v, where there is
            none) is standard normal at any hyperparameters.
            ``"whitened"``: v and the unconstrained hyperparameters, unchanged. None
            takes the first of these that is available (see the page on sampling).
        log_likelihood: Whether to add log p(y_n | v, θ) of every draw, the group that
            ``arviz.loo`` reads (log E p(y|f), not the expectation of the bound).
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
        ``log_likelihood``. After a keyboard interrupt it holds the draws so far; in the
        warm-up there are none, and instead of ``posterior`` it has the groups
        ``warmup_posterior`` (the last position of each chain) and
        ``warmup_sample_stats``.

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
    require_key(key)
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
    origin = _origin(init)
    params = origin.params if isinstance(origin, Guide) else {}
    method = chain_method_of(chain_method, sampler, (args, kwargs, params))
    choice = _choice(coordinates, sampler, origin)
    biased = _is_biased(sampler)
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
    axes = target.axes(coords, dims)
    load_arviz()  # one that cannot be imported fails here, with nothing to lose
    start = _start(key_start, choice, origin, target, num_chains, progress)
    options = {"chain_method": method, "progress": progress, "checkpoint": file}
    chains = _run(key_chains, target, start, sampler, counts | options)
    attrs = {
        "num_warmup": counts["num_warmup"],
        "init": _NAMES[type(origin)],
        "chain_method": method,
        "coordinates": _moved(choice, target, start),
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


def _is_biased(sampler: Sampler) -> bool:
    return isinstance(sampler, StochasticGradient) and sampler.takes_minibatches


def _described(sampler: Sampler) -> tuple[str, dict[str, Any]]:
    """The name of a sampler, and its settings."""
    settings = {n: v for n, v in vars(sampler).items() if n != "whitened"}
    return type(sampler).__name__, settings


_NAMES = {type(None): "none", Guide: "fit", Pathfinder: "pathfinder"}


def _origin(init: Any) -> Guide | Pathfinder | None:
    """Where chains start; None for a random start."""
    if init is None or isinstance(init, Pathfinder):
        return init
    if init is Pathfinder:
        raise ValueError("init must be an object: write gp.mcmc.Pathfinder().")
    return guide_and_params(init, "init")


def _choice(coordinates, sampler: Any, origin) -> tuple[str, ...]:
    """The coordinates to try, the best first."""
    known = ("collapsed", "fitted", "whitened")
    if coordinates is not None and coordinates not in known:
        raise ValueError(f"coordinates must be one of {known}; got {coordinates!r}.")
    uses_prior = isinstance(sampler, UsesPrior)
    if coordinates is None:
        if uses_prior:
            return ("whitened",)
        first = () if _is_biased(sampler) else ("collapsed",)
        return (*first, "fitted or whitened" if origin is None else "fitted")
    if coordinates != "whitened" and uses_prior:
        raise ValueError(
            f"{type(sampler).__name__} uses the prior N(0, I) of the whitened values: "
            f'drop coordinates="{coordinates}".'
        )
    return (coordinates,)


def _moved(choice: tuple[str, ...], target: Target, start: Start) -> str:
    """The coordinates that were taken."""
    if target.is_collapsed:
        return "collapsed"
    if choice[-1] == "fitted or whitened":
        return "fitted" if start.data.sites else "whitened"
    return choice[-1]


def _start(
    key,
    choice: tuple[str, ...],
    origin,
    target: Target,
    num_chains: int,
    progress: bool,
) -> Start:
    """Where the chains start, in the coordinates of the sampler."""
    if choice == ("collapsed",) and not target.is_collapsed:
        raise ValueError(
            'coordinates="collapsed" needs a latent site besides v, and at every '
            "observe site likelihoods.Gaussian, a latent of one component and no "
            "chunk_size; no process may have a scale or a mask, and the model must not "
            "ask for moments such as f(x).mean."
        )
    is_plain = choice == ("whitened",)
    if origin is None:
        positions = target.initial_positions(key, num_chains)
        found = None if is_plain else _found_start(key, positions, target, progress)
        if found is not None:
            return found
        if choice == ("fitted",):
            raise ValueError(
                'coordinates="fitted" needs a fit here (a deep model, many inducing '
                "values, or no start near them): give it as init=."
            )
    elif isinstance(origin, Pathfinder):
        key_paths, key_joint = random.split(key)
        joint, positions = origin.approximate(key_paths, target, num_chains)
        if not is_plain:
            return joint_start(key_joint, joint, positions, target, progress)
    else:
        guide, params = origin
        if not is_plain:
            return fitted_start(key, guide, params, target, num_chains, progress)
        positions = target.positions_from(key, guide, dict(params), num_chains)
    return Start(plain_coordinates(), target.data, jax.device_put(positions))


def _found_start(key, positions: dict, target: Target, progress: bool) -> Start | None:
    """Coordinates that Pathfinder finds, and the given positions in them.

    Returns:
        None where v has no sites or too many values, or there is no Gaussian near.
    """
    size = sum(np.size(positions[name][0]) for name in target.whitened_names)
    if not size or target.is_deep or not Curvature.is_affordable(target, size):
        return None
    key_paths, key_joint = random.split(key)
    try:
        joint, _ = _ROUGH.approximate(key_paths, target, 1)
    except FloatingPointError:
        return None
    values = jax.device_get(positions)
    return joint_start(key_joint, joint, values, target, progress, is_given=True)


def _run(
    key, target: Target, start: Start, sampler: Any, options: dict[str, Any]
) -> Chains:
    """Chains in the coordinates of the sampler."""

    @partial(jax.jit, inline=True)  # traced once for all programs of the chains
    def logdensity_fn(position, data, *key):
        coordinates, data = data
        return target.logdensity_fn(*coordinates.at(position, data), *key)

    if options["checkpoint"] is not None:
        options["checkpoint"].given = start.data._replace(sites={})
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
            target.trace_at(values),
            otherwise="Every process and observed site is finite there: look at the "
            "priors of the other latent sites, or start from a fit with init=.",
        )
    except ValueError as refused:  # by a process, a likelihood or a distribution
        reason = str(refused)
    except Exception as failure:
        reason = f"(Looking for the cause failed: {type(failure).__name__}: {failure})"
    return FloatingPointError(
        f"the log density of chain(s) {error.chains.tolist()} is not finite where they "
        f"start.\n{reason}"
    )
