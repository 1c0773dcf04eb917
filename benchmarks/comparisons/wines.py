"""Data, start and scores of the latent variable model; NumPy and scikit-learn alone."""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_wine

NUM_LATENT, NUM_INDUCING, NUM_STEPS, NUM_DRAWS = 4, 25, 4000, 200


def data(seed):
    """Standardised columns [178, 13], which entries are known, and the cultivars."""
    wines = load_wine()
    y = (wines.data - wines.data.mean(axis=0)) / wines.data.std(axis=0)
    known = np.random.default_rng(seed).uniform(size=y.shape) >= 0.1
    return y, known, wines.target


def start(y, known):
    """Latent inputs at the principal components, inducing inputs at centres of them."""
    filled = np.where(known, y, 0.0)
    left, _, _ = np.linalg.svd(filled - filled.mean(axis=0), full_matrices=False)
    x = left[:, :NUM_LATENT] * np.sqrt(len(y))
    clusters = KMeans(NUM_INDUCING, n_init=10, random_state=0).fit(x)
    return x, clusters.cluster_centers_


def scores(case, seed, mean, variance, x, lengthscale, seconds):
    """What is compared.

    Args:
        case: What was fitted.
        seed: Of the entries that are hidden.
        mean: Of each entry, [178, 13].
        variance: Likewise, noise included.
        x: Means of the latent inputs, [178, latent columns].
        lengthscale: Of the latent columns.
        seconds: From the call to the end of the fit, compilation included.
    """
    y, known, cultivar = data(seed)
    hidden = ~known
    error = (y - mean)[hidden]
    log_density = -0.5 * (
        np.log(2 * np.pi * variance[hidden]) + error**2 / variance[hidden]
    )
    best = x[:, np.argsort(lengthscale)[:2]]
    apart = np.linalg.norm(best[:, None] - best, axis=-1)
    np.fill_diagonal(apart, np.inf)
    beside = cultivar[np.argmin(apart, axis=1)] == cultivar
    return {
        "case": case,
        "seed": seed,
        "rmse": float(np.sqrt(np.mean(error**2))),
        "nlpd": float(-np.mean(log_density)),
        "coverage": float(np.mean(np.abs(error) < 1.645 * np.sqrt(variance[hidden]))),
        "beside": float(np.mean(beside)),
        "lengthscales": sorted(float(one) for one in lengthscale),
        "seconds": seconds,
    }
