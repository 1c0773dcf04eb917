"""How far importance weights can be trusted: the shape of their tail."""

import numpy as np
from jaxtyping import Float

__all__ = ["good_shape", "pareto_shape", "pareto_smoothed", "smoothed"]

_FEWEST_IN_TAIL = 5
_EQUAL = 0.1  # nats between the largest and the smallest weight


def pareto_shape(log_weights: Float[np.ndarray, " S"]) -> float:
    """k̂, the shape of the generalised Pareto distribution of the largest weights.

    Vehtari, Simpson, Gelman, Yao & Gabry (2024), with the fit of Zhang & Stephens
    (2009) to the largest min(S/5, 3√S) weights and the prior of their appendix G; as
    ``arviz.psislw`` and ``numpyro.infer.psis_diagnostic`` have it. −∞ where all weights
    are nearly equal: then there is no tail, only rounding.

    Args:
        log_weights: log p(y, v) − log q(v) of S draws from q(v), up to a constant.
    """
    return pareto_smoothed(log_weights)[1]


def smoothed(log_weights: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    """Log weights, the largest ones replaced by quantiles of the fit to their tail.

    Pareto smoothed importance sampling (Vehtari et al. 2024, section 2.3). None exceeds
    the largest of the given weights, whose log weight is 0 here.

    Args:
        log_weights: Log weights of S draws, up to a constant; −∞ leaves a draw out.
    """
    return pareto_smoothed(log_weights)[0]


def pareto_smoothed(
    log_weights: Float[np.ndarray, " S"], efficiency: float = 1.0
) -> tuple[Float[np.ndarray, " S"], float]:
    """:func:`smoothed` and :func:`pareto_shape` of the same weights.

    Args:
        log_weights: Log weights of S draws.
        efficiency: Effective draws per draw of a chain, for the size of the tail.
    """
    x = np.asarray(log_weights, np.float64) - np.max(log_weights)
    if len(x) == 1:  # equal to itself, and no tail to look at
        return x, np.inf
    if np.min(x) > -_EQUAL:
        return x, -np.inf
    tail, cutoff = _tail_of(x, efficiency)
    if len(tail) < _FEWEST_IN_TAIL:
        return x, np.inf
    k, sigma = _fitted(tail)
    p = (np.arange(len(tail)) + 0.5) / len(tail)
    quantiles = -np.log1p(-p) if k == 0 else np.expm1(-k * np.log1p(-p)) / k
    in_tail = np.argsort(x)[len(x) - len(tail) :]
    x[in_tail] = np.minimum(np.log(sigma * quantiles + np.exp(cutoff)), 0.0)
    return x, k


def _tail_of(x: np.ndarray, efficiency: float) -> tuple[np.ndarray, float]:
    """Excess of the largest weights over a cutoff, sorted; and the log of the cutoff.

    The largest weight is 1.
    """
    x = np.sort(x)
    size = int(np.ceil(min(len(x) / 5, 3 * np.sqrt(len(x) / efficiency))))
    cutoff = max(x[-size - 1], np.log(np.finfo(np.float64).tiny))
    return np.exp(x[x > cutoff]) - np.exp(cutoff), cutoff


def good_shape(num_draws: int) -> float:
    """The largest k̂ for which S draws are enough: min(1 − 1/log₁₀ S, 0.7)."""
    return float(min(1 - 1 / np.log10(num_draws), 0.7)) if num_draws > 1 else 0.0


def _fitted(tail: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """k̂ and σ: the posterior mean of k/σ by Zhang & Stephens, and a prior on k."""
    n, candidates = len(tail), 30 + int(np.sqrt(len(tail)))
    steps = np.arange(1, candidates + 1) - 0.5
    quartile = tail[int(n / 4 + 0.5) - 1]
    b = (1 - np.sqrt(candidates / steps)) / (3 * quartile) + 1 / tail[-1]
    k = np.log1p(-b[:, None] * tail).mean(axis=1)
    log_likelihood = n * (np.log(-b / k) - k - 1)
    weights = np.exp(log_likelihood - log_likelihood.max())
    b_mean = np.average(b, weights=weights)
    k = np.log1p(-b_mean * tail).mean()
    return float((n * k + 10 * 0.5) / (n + 10)), float(-k / b_mean)
