"""How well a model predicts new data, from the log likelihood of every draw."""

import warnings
from typing import Any, NamedTuple

import numpy as np

from svgp_ppl.diagnostics.pareto import good_shape
from svgp_ppl.diagnostics.posterior import (
    group,
    load_arviz,
    require_sampled_axes,
    to_arviz,
)

__all__ = ["LOO", "WAIC", "loo", "waic"]


class LOO(NamedTuple):
    """What :func:`loo` returns.

    Attributes:
        elpd: Expected log pointwise predictive density, nats, over all data.
        standard_error: Standard error of ``elpd``.
        num_parameters: Effective number of parameters, p_loo.
        pointwise: The terms of ``elpd``, one per datum, [N].
        pareto_k: Shape of the tail of the weights of each datum, [N]; above ``good_k``
            the term cannot be trusted. −∞ where all weights are equal.
        good_k: min(1 − 1/log₁₀ S, 0.7) for S draws (Vehtari et al. 2024).
    """

    elpd: float
    standard_error: float
    num_parameters: float
    pointwise: np.ndarray
    pareto_k: np.ndarray
    good_k: float

    def __repr__(self) -> str:
        bad = f"{np.sum(self.pareto_k > self.good_k)} of {len(self.pareto_k)}"
        return f"LOO({_in_words(self)}, {bad} with pareto_k above {self.good_k:.2f})"


class WAIC(NamedTuple):
    """What :func:`waic` returns.

    Attributes:
        elpd: Expected log pointwise predictive density, nats, over all data.
        standard_error: Standard error of ``elpd``.
        num_parameters: Effective number of parameters, p_waic.
        pointwise: The terms of ``elpd``, one per datum, [N].
    """

    elpd: float
    standard_error: float
    num_parameters: float
    pointwise: np.ndarray

    def __repr__(self) -> str:
        return f"WAIC({_in_words(self)})"


def _in_words(found: LOO | WAIC) -> str:
    """Without the terms of single data."""
    elpd = f"elpd {found.elpd:.2f} ± {found.standard_error:.2f} nats"
    return f"{elpd}, {found.num_parameters:.1f} parameters"


def loo(posterior: Any, site: str | None = None) -> LOO:
    """Σ_n log p(y_n | y_−n), by Pareto smoothed importance sampling of the draws.

    Vehtari, Gelman & Gabry (2017), computed by ArviZ from log p(y_n | v, θ) = log
    E_{p(f_n | v, θ)} p(y_n | f_n) of every draw, never from the expectation of the log,
    which is only a bound of it.

    The draws are those of a density with the expectation of the log: where the inducing
    values leave much of f_n open, LOO is too high. Do not choose their number by it.

    Args:
        posterior: What ``gp.sample(..., log_likelihood=True)`` returns.
        site: Name of the observed site; None if there is only one.

    Raises:
        ValueError: There is no log likelihood, or several sites and none was named.

    Example:
        >>> result = gp.diagnostics.loo(draws)
        >>> result.elpd < 0
        True
    """
    site, values = _log_likelihood_of(posterior, site)
    values = values.reshape(*values.shape[:2], -1)
    # ArviZ cannot fit the tail of weights that are all equal, like those of a masked
    # datum: leaving it out changes nothing.
    varies = ~(np.ptp(values, axis=(0, 1)) == 0)
    pointwise, pareto_k = values[0, 0].astype(np.float64), np.full(len(varies), -np.inf)
    num_parameters = 0.0
    if varies.any():
        found = _by_arviz(load_arviz().loo, posterior, site, values[..., varies])
        pointwise[varies] = np.ravel(_first(found, "elpd_i", "loo_i"))
        pareto_k[varies] = np.ravel(found.pareto_k)
        num_parameters = float(_first(found, "p", "p_loo"))
    num_draws = values.shape[0] * values.shape[1]
    return LOO(
        elpd=float(np.sum(pointwise)),
        standard_error=_standard_error(pointwise),
        num_parameters=num_parameters,
        pointwise=pointwise,
        pareto_k=pareto_k,
        good_k=good_shape(num_draws),
    )


def waic(posterior: Any, site: str | None = None) -> WAIC:
    """Σ_n (log E p(y_n | v, θ) − Var log p(y_n | v, θ)), moments over the draws.

    Watanabe (2010), as in Vehtari, Gelman & Gabry (2017, eqs 11 and 12), by ArviZ
    before version 1.0, which no longer has it. Prefer :func:`loo`, which shows where it
    fails.

    Args:
        posterior: What ``gp.sample(..., log_likelihood=True)`` returns.
        site: Name of the observed site; None if there is only one.

    Raises:
        ValueError: There is no log likelihood, or several sites and none was named.
        NotImplementedError: The installed ArviZ has no WAIC.

    Example:
        >>> result = gp.diagnostics.waic(draws)
        >>> result.elpd < 0
        True
    """
    arviz = load_arviz()
    if not hasattr(arviz, "waic"):
        raise NotImplementedError(
            f"ArviZ {arviz.__version__} has no WAIC (the versions before 1.0 have): "
            "use svgp_ppl.diagnostics.loo."
        )
    site, values = _log_likelihood_of(posterior, site)
    found = _by_arviz(arviz.waic, posterior, site, values)
    pointwise = np.ravel(found.waic_i)
    return WAIC(
        elpd=float(found.elpd_waic),
        standard_error=_standard_error(pointwise),
        num_parameters=float(found.p_waic),
        pointwise=pointwise,
    )


def _standard_error(pointwise: np.ndarray) -> float:
    """√(N Var) with N − 1 in Var (Vehtari, Gelman & Gabry 2017, eq. 23)."""
    num_data = len(pointwise)
    return float(np.sqrt(num_data * np.var(pointwise, ddof=num_data > 1)))


def _log_likelihood_of(posterior: Any, site: str | None) -> tuple[str, np.ndarray]:
    """Name of the observed site, and its terms [chains, draws, ...]."""
    held = group(posterior, "log_likelihood")
    require_sampled_axes(posterior)
    if not held:
        raise ValueError(
            "the posterior has no log likelihood: gp.sample(..., log_likelihood=True)."
        )
    if site is None and len(held) == 1:
        (site,) = held
    if site is None or site not in held:
        raise ValueError(f"site must be one of {sorted(held)}, and is {site!r}.")
    return site, held[site]


def _by_arviz(criterion: Any, posterior: Any, site: str, values: np.ndarray) -> Any:
    """A criterion of ArviZ with its terms, for one observed site."""
    draws = group(posterior, "posterior")
    alone = to_arviz(draws, log_likelihood={site: values})
    with warnings.catch_warnings():
        # About Pareto shapes, which are returned, and large variances of terms.
        warnings.simplefilter("ignore")
        return criterion(alone, pointwise=True)


def _first(found: Any, *names: str) -> Any:
    """A field whose name differs between the two ArviZ versions."""
    return next(getattr(found, name) for name in names if hasattr(found, name))
