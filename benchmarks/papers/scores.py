"""Test scores with their standard errors over the test rows."""

import numpy as np

from benchmarks.papers.experiment import Numbers


def of_classes(probs, y_test) -> Numbers:
    """Accuracy and error rate in per cent, mean −log p, from P(label) [N, C] or [N].

    Probabilities are clipped to 1e-12, as in Liu et al. (2019).
    """
    probs, y_test = np.asarray(probs, float), np.asarray(y_test)
    if probs.ndim == 1:
        probs = np.stack([1.0 - probs, probs], axis=-1)
    right = 100.0 * (probs.argmax(-1) == y_test)
    cost = -np.log(np.clip(probs[np.arange(len(probs)), y_test], 1e-12, 1.0))
    return {
        "accuracy": right.mean(),
        "error rate": 100.0 - right.mean(),
        "nll": cost.mean(),
        "log probability": -cost.mean(),
        "errors": {
            "accuracy": error_of(right),
            "error rate": error_of(right),
            "nll": error_of(cost),
            "log probability": error_of(cost),
        },
    }


def of_regression(mean, log_density, y_test, y_train, scale: float = 1.0) -> Numbers:
    """RMSE and log density in the original units, SMSE; y is in units of ``scale``."""
    squares = (np.asarray(mean, float) - np.asarray(y_test)) ** 2
    rmse = np.sqrt(squares.mean())
    variance = np.mean((np.mean(y_train) - np.asarray(y_test)) ** 2)
    density = np.asarray(log_density, float) - np.log(scale)
    return {
        "log density": density.mean(),
        "NLPD": -density.mean(),
        "RMSE": rmse * scale,
        "SMSE": squares.mean() / variance,
        "errors": {
            "log density": error_of(density),
            "NLPD": error_of(density),
            "RMSE": error_of(squares) / (2.0 * rmse) * scale,
            "SMSE": error_of(squares) / variance,
        },
    }


def error_of(values) -> float:
    """Standard error of a mean."""
    values = np.asarray(values, float)
    return float(values.std(ddof=1) / np.sqrt(len(values)))
