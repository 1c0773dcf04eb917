"""How well a model predicts new data, from the log likelihood of every draw."""

import warnings
from typing import Any, NamedTuple

import arviz
import numpy as np

from svgp_ppl.diagnostics.posterior import group, to_arviz

__all__ = ["LOO", "WAIC", "loo", "waic"]


class LOO(NamedTuple):
    """What :func:`loo` returns.

    Attributes:
        elpd: Expected log pointwise predictive density, nats, over all data.
        standard_error: Of ``elpd``.
        num_parameters: Effective number of parameters, p_loo.
        pointwise: The terms of ``elpd``, one a datum, [N].
        pareto_k: Shape of the tail of the weights of each datum, [N]; above 0.7 the
            term cannot be trusted.
    """

    elpd: float
    standard_error: float
    num_parameters: float
    pointwise: np.ndarray
    pareto_k: np.ndarray


class WAIC(NamedTuple):
    """What :func:`waic` returns.

    Attributes:
        elpd: Expected log pointwise predictive density, nats, over all data.
        standard_error: Of ``elpd``.
        num_parameters: Effective number of parameters, p_waic.
        pointwise: The terms of ``elpd``, one a datum, [N].
    """

    elpd: float
    standard_error: float
    num_parameters: float
    pointwise: np.ndarray


def loo(posterior: Any, site: str | None = None) -> LOO:
    """Σ_n log p(y_n | y_−n), by Pareto smoothed importance sampling of the draws.

    Vehtari, Gelman & Gabry (2017), computed by ArviZ from log p(y_n | v, θ) = log
    E_{p(f_n | v, θ)} p(y_n | f_n) of every draw, never from the expectation of the log,
    which is only a bound of it.

    Args:
        posterior: What ``gp.sample(..., log_likelihood=True)`` returns.
        site: Name of the observed site; None where there is one only.

    Raises:
        ValueError: There is no log likelihood, or of several sites none was named.
    """
    found = _by_arviz(arviz.loo, posterior, site)
    return LOO(
        elpd=float(_first(found, "elpd", "elpd_loo")),
        standard_error=float(found.se),
        num_parameters=float(_first(found, "p", "p_loo")),
        pointwise=np.ravel(_first(found, "elpd_i", "loo_i")),
        pareto_k=np.ravel(found.pareto_k),
    )


def waic(posterior: Any, site: str | None = None) -> WAIC:
    """Σ_n (log E p(y_n | v, θ) − Var log p(y_n | v, θ)), moments over the draws.

    Watanabe (2010), as in Vehtari, Gelman & Gabry (2017, eqs 11 and 12), by ArviZ
    before version 1.0, which has it no longer. Prefer :func:`loo`, which says where it
    fails.

    Args:
        posterior: What ``gp.sample(..., log_likelihood=True)`` returns.
        site: Name of the observed site; None where there is one only.

    Raises:
        ValueError: There is no log likelihood, or of several sites none was named.
        NotImplementedError: The installed ArviZ has no WAIC.
    """
    if not hasattr(arviz, "waic"):
        raise NotImplementedError(
            f"ArviZ {arviz.__version__} has no WAIC (the versions before 1.0 have): "
            "use svgp_ppl.diagnostics.loo."
        )
    found = _by_arviz(arviz.waic, posterior, site)
    return WAIC(
        elpd=float(found.elpd_waic),
        standard_error=float(found.se),
        num_parameters=float(found.p_waic),
        pointwise=np.ravel(found.waic_i),
    )


def _by_arviz(criterion: Any, posterior: Any, site: str | None) -> Any:
    """A criterion of ArviZ with its terms, for one observed site."""
    held = group(posterior, "log_likelihood")
    if not held:
        raise ValueError(
            "the posterior has no log likelihood: gp.sample(..., log_likelihood=True)."
        )
    if site is None and len(held) == 1:
        (site,) = held
    if site not in held:
        raise ValueError(f"site must be one of {sorted(held)}, and is {site!r}.")
    draws = group(posterior, "posterior")
    alone = to_arviz(draws, log_likelihood={site: held[site]})
    with warnings.catch_warnings():
        # Of Pareto shapes, which are returned, and of large variances of terms.
        warnings.simplefilter("ignore")
        return criterion(alone, pointwise=True, var_name=site)


def _first(found: Any, *names: str) -> Any:
    """A field that the two ArviZ versions call by different names."""
    return next(getattr(found, name) for name in names if hasattr(found, name))
