"""Leave-one-out predictive density from the log likelihood of every draw."""

import warnings
from typing import Any, NamedTuple

import arviz
import numpy as np

from svgp_ppl.diagnostics.posterior import group, to_arviz

__all__ = ["LOO", "loo"]


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
        # Of Pareto shapes: they are returned.
        warnings.simplefilter("ignore")
        found: Any = arviz.loo(alone, pointwise=True, var_name=site)

    def first(*names: str) -> Any:
        """A field that the two ArviZ versions call by different names."""
        return next(getattr(found, name) for name in names if hasattr(found, name))

    return LOO(
        elpd=float(first("elpd", "elpd_loo")),
        standard_error=float(first("se")),
        num_parameters=float(first("p", "p_loo")),
        pointwise=np.ravel(first("elpd_i", "loo_i")),
        pareto_k=np.ravel(first("pareto_k")),
    )
