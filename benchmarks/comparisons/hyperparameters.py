"""Hyperparameters at the maximum of the bound, and sampled with v integrated out.

Lalchand, Bruinsma, Burt & Rasmussen (2022) sample the hyperparameters of sparse
regression on the bound of Titsias (2009). The model, the priors, M = 100 and random
splits with 80 % of the rows for training are those of their released code
(github.com/vr308/Generalised-Gaussian-Processes). Two densities of test rows, both in
the units of the data:

- ``nlpd``: of each row, with the probabilities averaged over draws.
- ``joint``: as in that code, of all test rows together, by their number, with the
  logarithms averaged over draws.

Runs that are in the file of results are not repeated: delete it to begin anew.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp
from benchmarks.comparisons import tables
from svgp_ppl.linalg import cholesky, solve_lower

SETS = ("boston", "concrete", "energy", "wine_red")
NUM_INDUCING, NUM_PAIRS = 100, 1000
CHAINS = {"num_chains": 4, "num_warmup": 200, "num_samples": 200}
# Draws of the hyperparameters in the joint density, each with an O(N_test³) factor.
NUM_JOINT = 200
# SGPR and SGPR + HMC: benchmarks_nlpd_main.csv of the released code.
PUBLISHED = {
    "boston": {"maximum": 2.539, "draws": 2.524},
    "concrete": {"maximum": 3.097, "draws": 3.065},
    "energy": {"maximum": 0.670, "draws": 0.644},
    "wine_red": {"maximum": 0.961, "draws": 0.961},
}


class Parts(NamedTuple):
    """Standardised rows for training and testing, and the sd of the training y."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    y_scale: float


def runs(seeds):
    """The scores at the maximum and of draws, on each set and split."""
    held = tables.kept("hyperparameters")
    yield from held
    done = {(run["set"], run["seed"]) for run in held}
    for seed in range(seeds):
        for name in SETS:
            if (name, seed) not in done:
                yield {"set": name, "seed": seed, **run(name, seed)}


def run(name, seed):
    """The scores of one split."""
    parts = split(name, seed)
    z_start = gp.inducing.kmeans(parts.x, NUM_INDUCING)
    flat = model_of(z_start, has_priors=False)
    begun = time.perf_counter()
    adam = optax.adam(optax.cosine_decay_schedule(0.03, NUM_PAIRS))
    # One natural step more than of Adam: q(v) is optimal at the end.
    options = {"optimizer": gp.natural_gradient(1.0, adam), "progress": False}
    options["num_steps"] = 2 * NUM_PAIRS + 1
    guide = gp.AutoGaussian(flat)
    fit = gp.fit(random.key(seed), flat, guide, parts.x, parts.y, **options)
    seconds_fit = time.perf_counter() - begun
    begun = time.perf_counter()
    key, model = random.key(seed + 100), model_of(z_start, has_priors=True)
    draws = gp.sample(key, model, parts.x, parts.y, init=fit, progress=False, **CHAINS)
    seconds_draws = time.perf_counter() - begun
    at_fit = gp.predict(flat, fit, parts.x_test)["y"]
    at_draws = gp.predict(model, draws, parts.x_test, params=fit.params)["y"]
    point = {site: fit.params[f"{site}_auto_loc"][None] for site in SITES}
    posterior = gp.diagnostics.group(draws, "posterior")
    stacked = {s: posterior[s].reshape(-1, *posterior[s].shape[2:]) for s in SITES}
    thinned = {s: v[:: len(v) // NUM_JOINT] for s, v in stacked.items()}
    z = fit.params["z"]
    ess, r_hat = gp.diagnostics.ess(draws), gp.diagnostics.rhat(draws)
    diverging = gp.diagnostics.group(draws, "sample_stats")["diverging"]
    return {
        "bound": float(-fit.losses[-1]),
        "maximum": scores(at_fit, parts) | {"joint": joint(point, z, parts)},
        "draws": scores(at_draws, parts) | {"joint": joint(thinned, z, parts)},
        "published": PUBLISHED[name],
        "ess": float(min(np.min(np.asarray(ess[site])) for site in SITES)),
        "r_hat": float(max(np.max(np.asarray(r_hat[site])) for site in SITES)),
        "divergences": int(np.sum(diverging)),
        "seconds_fit": seconds_fit,
        "seconds_draws": seconds_draws,
    }


def split(name, seed):
    """80 % of the rows at random, and the rest, standardised by the former."""
    held = gp.datasets.uci(name)
    x = np.concatenate([held.x, held.x_test])
    y = np.concatenate([held.y, held.y_test]) * held.y_scale
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = np.split(order, [int(0.8 * len(y))])
    mean, scale = x[train].mean(0), x[train].std(0)
    x = (x - mean) / np.where(scale > 0, scale, 1.0)
    y_scale = float(y[train].std())
    y = (y - y[train].mean()) / y_scale
    return Parts(x[train], y[train], x[test], y[test], y_scale)


SITES = ("lengthscale", "amplitude", "noise")


def model_of(z_start, has_priors):
    """Sparse regression; without priors the maximum is that of the bound alone."""

    def model(x, y=None):
        lengthscales = dist.Gamma(2.0, 1.0).expand([x.shape[1]]).to_event(1)
        half_cauchy = dist.HalfCauchy(1.0)
        lengthscale = numpyro.sample("lengthscale", lengthscales.mask(has_priors))
        amplitude = numpyro.sample("amplitude", half_cauchy.mask(has_priors))
        noise = numpyro.sample("noise", half_cauchy.mask(has_priors))
        kernel = gp.kernels.RBF(amplitude**2, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z_start))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)

    return model


def scores(at_test, parts):
    """Row by row, in the units of the data."""
    density = np.asarray(at_test.log_prob(jnp.asarray(parts.y_test)))
    error = np.asarray(at_test.mean) - parts.y_test
    return {
        "nlpd": float(np.log(parts.y_scale) - np.mean(density)),
        "rmse": float(parts.y_scale * np.sqrt(np.mean(error**2))),
    }


def joint(theta, z, parts):
    """−log N(y_test; E, Cov) / N_test, averaged over hyperparameters."""
    density = jax.lax.map(lambda one: _log_joint(one, z, parts), theta)
    return float(np.log(parts.y_scale) - np.mean(density) / len(parts.y_test))


def _log_joint(theta, z, parts):
    """The log density of the test rows together, with q(v) optimal (Titsias 2009)."""
    kernel = gp.kernels.RBF(theta["amplitude"] ** 2, theta["lengthscale"])
    variance = theta["noise"] ** 2
    tril = cholesky(kernel(z))
    a, a_test = (solve_lower(tril, kernel(z, x)) for x in (parts.x, parts.x_test))
    # B = I + A Aᵀ / σ², C = A_testᵀ B⁻¹ᐟ²
    tril_b = cholesky(jnp.eye(len(z)) + a @ a.T / variance, 0.0)
    c = solve_lower(tril_b, a_test)
    mean = c.T @ solve_lower(tril_b, (a @ parts.y)[:, None])[:, 0] / variance
    covariance = kernel(parts.x_test) - a_test.T @ a_test + c.T @ c
    covariance += variance * jnp.eye(len(mean))
    return dist.MultivariateNormal(mean, covariance).log_prob(parts.y_test)
