"""How well a model predicts new data, from the log likelihood of every draw."""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from svgp_ppl.diagnostics.mixing import by_element
from svgp_ppl.diagnostics.pareto import good_shape, pareto_smoothed
from svgp_ppl.diagnostics.posterior import (
    EXPECTED,
    arrays_of,
    group,
    require_sampled_axes,
)

__all__ = ["LOO", "WAIC", "known_terms", "loo", "waic"]


class LOO(NamedTuple):
    """What :func:`loo` returns.

    Attributes:
        elpd: Expected log pointwise predictive density, nats, over all data.
        standard_error: Standard error of ``elpd``.
        num_parameters: Effective number of parameters, p_loo.
        pointwise: The terms of ``elpd``, one per known datum, [N]; NaN where a draw has
            no finite log likelihood.
        pareto_k: Shape of the tail of the weights of each datum, [N]; above ``good_k``
            the term cannot be trusted. −∞ where all weights are nearly equal.
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
        pointwise: The terms of ``elpd``, one per known datum, [N]; NaN where a draw has
            no finite log likelihood.
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

    The draws are of the density p(v, θ) exp Σ_n ℓ_n with the expected log likelihood
    ℓ_n = E log p(y_n | f_n), over f_n given v and θ; times s_n where
    ``numpyro.handlers.scale`` makes a datum count s_n times. Without its term,

        log p(y_n | y_−n) ≈ log Σ_s w_ns p(y_n | v_s, θ_s) / Σ_s w_ns,
        w_ns = exp(−ℓ_ns),   p(y_n | v, θ) = E p(y_n | f_n).

    With ℓ_n = log p(y_n | v, θ) in the weights this is Vehtari, Gelman & Gabry (2017,
    eq. 10), what ``arviz.loo`` returns; where the inducing values leave much of f_n
    open, that is too high.

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
    log_density, terms = _log_densities_and_terms(posterior, site)
    efficiency = _efficiency(posterior)
    left_out = [_left_out(*of, efficiency) for of in zip(log_density, terms)]
    pointwise, pareto_k = np.array(left_out).T
    with_all = _log_mean(log_density)
    return LOO(
        elpd=float(np.sum(pointwise)),
        standard_error=_standard_error(pointwise),
        num_parameters=float(np.sum(with_all - pointwise)),
        pointwise=pointwise,
        pareto_k=pareto_k,
        good_k=good_shape(log_density.shape[1]),
    )


def _left_out(
    log_density: np.ndarray, terms: np.ndarray, efficiency: float
) -> tuple[float, float]:
    """log p(y_n | y_−n) of a datum and k̂, from log p(y_n | v_s, θ_s) and ℓ_ns, [S]."""
    if not (np.isfinite(log_density).all() and np.isfinite(terms).all()):
        return np.nan, np.inf
    log_weights, shape = pareto_smoothed(-terms, efficiency)
    weighted, total = logsumexp([log_weights + log_density, log_weights], axis=1)
    return float(weighted - total), shape


def _efficiency(posterior: Any) -> float:
    """Effective draws per draw, the mean over all parameters, as ArviZ has it."""
    draws = arrays_of(posterior)
    num_chains, num_draws = next(iter(draws.values())).shape[:2]
    if num_chains == 1:
        return 1.0
    sizes = by_element("ess", draws, "mean")
    each = np.concatenate([np.ravel(size) for size in sizes.values()])
    known = each[np.isfinite(each)]
    return float(np.mean(known)) / (num_chains * num_draws) if len(known) else 1.0


def waic(posterior: Any, site: str | None = None) -> WAIC:
    """Σ_n (log E p(y_n | v, θ) − Cov(log p(y_n | v, θ), ℓ_n)), moments over the draws.

    What :func:`loo` estimates, with the logarithms of its two means to second order in
    log p and the expected log likelihood ℓ_n. With ℓ_n = log p the covariance is the
    variance, and this is Watanabe (2010), as in Vehtari, Gelman & Gabry (2017, eqs 11
    and 12). Prefer :func:`loo`, which shows where it fails.

    Args:
        posterior: What ``gp.sample(..., log_likelihood=True)`` returns.
        site: Name of the observed site; None if there is only one.

    Raises:
        ValueError: There is no log likelihood, or several sites and none was named.

    Example:
        >>> result = gp.diagnostics.waic(draws)
        >>> result.elpd < 0
        True
    """
    log_density, terms = _log_densities_and_terms(posterior, site)
    finite = np.isfinite(log_density) & np.isfinite(terms)
    log_density = np.where(finite.all(axis=1, keepdims=True), log_density, np.nan)
    apart = log_density - log_density.mean(axis=1, keepdims=True)
    covariance = np.mean(apart * terms, axis=1)
    pointwise = _log_mean(log_density) - covariance
    return WAIC(
        elpd=float(np.sum(pointwise)),
        standard_error=_standard_error(pointwise),
        num_parameters=float(np.sum(covariance)),
        pointwise=pointwise,
    )


def _log_densities_and_terms(
    posterior: Any, site: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """log p(y_n | v_s, θ_s) and ℓ_ns, both [N, S]; the same where no ℓ was kept."""
    site, values = _log_likelihood_of(posterior, site)
    expected = group(posterior, EXPECTED).get(site, values)
    if expected.shape != values.shape:
        raise ValueError(
            f"log_likelihood of site '{site}' has shape {values.shape}, and {EXPECTED} "
            f"{expected.shape}: select or change the draws of both together."
        )
    known = known_terms(posterior, site, values.shape[2:])
    log_density, terms = (
        x.reshape(x.shape[0] * x.shape[1], -1).T[known].astype(np.float64)
        for x in (values, expected)
    )
    return log_density, terms


def known_terms(posterior: Any, site: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of the terms of a site that are those of a datum.

    The term of an unknown entry of a table, whose datum is NaN, is 0 at every draw.
    """
    data = group(posterior, "observed_data").get(site)
    if data is None or data.shape != shape or data.dtype.kind != "f":
        return np.arange(math.prod(shape))
    return np.flatnonzero(~np.isnan(data))


def _log_mean(log_values: np.ndarray) -> np.ndarray:
    """log of the mean over the draws, [N], of logarithms [N, S]."""
    return logsumexp(log_values, axis=1) - np.log(log_values.shape[1])


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
