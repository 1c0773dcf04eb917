"""How far importance weights can be trusted: the shape of their tail."""

import numpy as np
from jaxtyping import Float

__all__ = ["good_shape", "pareto_shape"]

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
    x = np.sort(np.asarray(log_weights, np.float64))
    x = x - x[-1]
    if -x[0] < _EQUAL:
        return -np.inf
    size = int(np.ceil(min(len(x) / 5, 3 * np.sqrt(len(x)))))
    cutoff = max(x[-size - 1], np.log(np.finfo(np.float64).tiny))
    tail = np.exp(x[x > cutoff]) - np.exp(cutoff)
    return _shape_of(tail) if len(tail) >= _FEWEST_IN_TAIL else np.inf


def good_shape(num_draws: int) -> float:
    """The largest k̂ of weights that S draws are enough for: min(1 − 1/log₁₀ S, 0.7)."""
    return float(min(1 - 1 / np.log10(num_draws), 0.7)) if num_draws > 1 else 0.0


def _shape_of(tail: Float[np.ndarray, " n"]) -> float:
    """The posterior mean of k, by Zhang & Stephens' profile likelihood of −k/σ."""
    n, candidates = len(tail), 30 + int(np.sqrt(len(tail)))
    steps = np.arange(1, candidates + 1) - 0.5
    quartile = tail[int(n / 4 + 0.5) - 1]
    b = (1 - np.sqrt(candidates / steps)) / (3 * quartile) + 1 / tail[-1]
    k = np.log1p(-b[:, None] * tail).mean(axis=1)
    log_likelihood = n * (np.log(-b / k) - k - 1)
    weights = np.exp(log_likelihood - log_likelihood.max())
    k = np.log1p(-np.average(b, weights=weights) * tail).mean()
    return float((n * k + 10 * 0.5) / (n + 10))
