"""Data drawn by the model, and log likelihoods, for ArviZ to check the model with.

A draw of the posterior is v and θ. Given these the data are independent,

    p(y | v, θ) = Π_n E_{p(f_n | v, θ)} p(y_n | f_n),

and ``posterior_predictive`` draws from the very factors whose logarithms are in
``log_likelihood`` (and in that of ``gp.sample``). For a fit q(v) and q(θ) are drawn
first; those draws are a group too, so that importance weights and data belong together.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from svgp_ppl.checks import require_count
from svgp_ppl.observations.observed import (
    LogLikelihoods,
    log_likelihood_groups,
    log_likelihoods,
)
from svgp_ppl.prediction.groups import Groups, latent_values
from svgp_ppl.prediction.posterior import Prior

__all__ = ["log_likelihood", "posterior_predictive", "prior_predictive"]


def posterior_predictive(
    key,
    model: Callable,
    posterior,
    *args,
    num_draws: int | None = None,
    params: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    add_to: Any = None,
    **kwargs,
) -> Any:
    """Data drawn from the posterior predictive distribution, for ArviZ to plot.

    At every draw of v and θ, f_n is drawn from p(f_n | v, θ) and y_n from p(y_n | f_n),
    independently between data.

    Args:
        key: Random key.
        model: The model that was fitted or sampled.
        posterior: What ``fit``, ``sample`` or this function returns, ``(guide,
            params)``, or a dict of NumPyro samples, site -> [draws, ...].
        *args: Arguments of the model. With the data among them, they are added as
            ``observed_data``, and rows that a mask leaves out are in neither group.
        num_draws: Number of draws of a fit, one chain; 1000 if None. Of other
            posteriors every draw is used (thin them first).
        params: Values of the ``param`` sites; only needed for a dict of samples.
        coords: Labels by dimension, as for ``gp.sample``.
        dims: Names of dimensions by variable, as for ``gp.sample``.
        add_to: An ArviZ object to which the groups are added, and which is returned; a
            new one if None.
        **kwargs: Keyword arguments of the model.

    Returns:
        An ArviZ object with ``posterior_predictive``, arrays [chain, draw, N] (and
        event axes) by observed site; for a fit also ``posterior``, the draws of q, and
        ``constant_data``.

    Raises:
        ValueError: ``posterior`` is none of these or misses a process; or another
            argument does not fit it.

    Example:
        >>> import arviz, svgp_ppl as gp
        >>> checked = gp.posterior_predictive(
        ...     random.key(2), model, draws, x, y, add_to=draws
        ... )
        >>> axes = arviz.plot_ppc(checked)
    """
    run = Groups(key, model, posterior, args, kwargs, num_draws, params, add_to)
    drawn = run.known(run.over_draws("posterior predictive", run.draw))
    return run.as_arviz({"posterior_predictive": drawn}, coords, dims)


def log_likelihood(
    key,
    model: Callable,
    posterior,
    *args,
    num_draws: int | None = None,
    num_noise_draws: int = 16,
    params: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    add_to: Any = None,
    **kwargs,
) -> Any:
    """log p(y_n | v, θ) = log E_{p(f_n | v, θ)} p(y_n | f_n) of every draw and datum.

    The terms that ``gp.sample(..., log_likelihood=True)`` adds, for fits (v and θ are
    then drawn from q) and for draws without them: ``gp.diagnostics.loo`` and ArviZ read
    them. LOO of a fit takes q for the posterior: it judges the predictions of the
    fit, and is as good as q is (Magnusson et al. 2019 correct for the difference;
    ``gp.diagnostics.report`` measures it).

    Args:
        key: Random key.
        model: The model that was fitted or sampled.
        posterior: As for :func:`posterior_predictive`.
        *args: Arguments of the model, data included.
        num_draws: As for :func:`posterior_predictive`.
        num_noise_draws: Number of draws of the fixed noise of a deep model, the same
            at every draw of v and θ, over which both terms are averaged.
        params: Values of the ``param`` sites; only needed for a dict of samples.
        coords: Labels by dimension, as for ``gp.sample``.
        dims: Names of dimensions by variable, as for ``gp.sample``.
        add_to: An ArviZ object to which the groups are added, and which is returned; a
            new one if None.
        **kwargs: Keyword arguments of the model.

    Returns:
        An ArviZ object with ``log_likelihood``, arrays [chain, draw, N] by observed
        site, in nats, without the rows that a mask leaves out, and the expectations of
        the log, ``expected_log_likelihood``, as often as ``numpyro.handlers.scale`` has
        them count; and ``observed_data``, ``posterior`` and ``constant_data``.

    Raises:
        ValueError: The data are not among the arguments; or as for
            :func:`posterior_predictive`.

    Example:
        >>> import svgp_ppl as gp
        >>> terms = gp.log_likelihood(random.key(2), model, fitted, x, y)
        >>> expected = gp.diagnostics.loo(terms)
    """
    num_noise_draws = require_count(num_noise_draws, "num_noise_draws")
    run = Groups(key, model, posterior, args, kwargs, num_draws, params, add_to)
    if not run.data:
        raise ValueError(
            "the model has no observed site with these arguments: a log likelihood is "
            "that of the data, which go after the posterior as they went into the fit."
        )

    def terms(sites: dict[str, dict], key) -> dict[str, LogLikelihoods]:
        return {name: log_likelihoods(sites[name]) for name in run.data}

    if run.has_layers:
        at_noise = partial(run.over_draws, "log likelihood", terms)
        each = (at_noise((s, num_noise_draws)) for s in range(num_noise_draws))
        found = _over_noise(each, num_noise_draws)
    else:
        found = run.over_draws("log likelihood", terms)
    groups = log_likelihood_groups(found, run.data) | run.posterior_groups()
    return run.as_arviz(groups, coords, dims)


def _over_noise(
    each: Iterable[dict[str, LogLikelihoods]], number: int
) -> dict[str, LogLikelihoods]:
    """The mean of the density, and that of the terms, over draws of the fixed noise.

    They are added as they come: together they could be too large for the memory.
    """
    totals: dict[str, LogLikelihoods] = {}
    for found in each:
        for name, (density, terms) in found.items():
            sums = totals.get(name, LogLikelihoods(-np.inf, 0.0))
            totals[name] = LogLikelihoods(
                np.logaddexp(sums.log_likelihood, density),
                sums.expected_log_likelihood + terms,
            )
    return {
        name: LogLikelihoods(density - math.log(number), terms / number)
        for name, (density, terms) in totals.items()
    }


def prior_predictive(
    key,
    model: Callable,
    *args,
    num_draws: int = 500,
    params: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    add_to: Any = None,
    **kwargs,
) -> Any:
    """Draws of the prior, and data drawn given each of them, for ArviZ to plot.

    Args:
        key: Random key.
        model: NumPyro model.
        *args: Arguments of the model; data among them are not conditioned on, and are
            added as ``observed_data``.
        num_draws: Number of draws, one chain.
        params: Values of ``param`` sites, such as those of a fit; the others keep their
            initial ones.
        coords: Labels by dimension, as for ``gp.sample``.
        dims: Names of dimensions by variable, as for ``gp.sample``.
        add_to: An ArviZ object to which the groups are added, and which is returned; a
            new one if None.
        **kwargs: Keyword arguments of the model.

    Returns:
        An ArviZ object with ``prior``, the latent and deterministic sites, and
        ``prior_predictive``, arrays [chain, draw, N] by observed site.

    Raises:
        ValueError: The model cannot be run with these arguments.

    Example:
        >>> import arviz, svgp_ppl as gp
        >>> prior = gp.prior_predictive(random.key(0), model, x, y)
        >>> axes = arviz.plot_ppc(prior, group="prior")
    """
    num_draws = require_count(num_draws, "num_draws")
    run = Groups(
        key, model, Prior(dict(params or {})), args, kwargs, num_draws, None, add_to
    )

    def both(sites: dict[str, dict], key) -> tuple[dict, dict]:
        return latent_values(sites), run.draw(sites, key)

    prior, drawn = run.over_draws("prior predictive", both)
    groups = {"prior": prior, "prior_predictive": run.known(drawn)}
    return run.as_arviz(groups, coords, dims)
