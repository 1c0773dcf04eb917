"""Inducing inputs that are fixed, fitted, or sampled under a prior.

Rossi, Heinonen, Bonilla, Shen & Filippone (2021) give the inducing inputs and the
hyperparameters priors, and sample them with the inducing values. Regression on UCI
sets, RBF kernel with a lengthscale a column, M inducing inputs; the same priors in all
cases: z ~ N(0, I) in standardised inputs, where it is sampled.
"""

import time

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp

SETS = ("boston", "concrete", "energy")
NUM_INDUCING, NUM_STEPS = 20, 3000
CASES = (
    "z fixed, fit",
    "z fitted, fit",
    "z fitted, then NUTS",
    "z sampled, NUTS",
)


def runs(seeds):
    """The scores of each case on each set and split."""
    for name in SETS:
        for split in range(seeds):
            held = gp.datasets.uci(name, split)
            for case in CASES:
                yield {"set": name, **run(case, split, held)}


def model_of(z):
    """Regression with the priors of all cases; ``z()`` is run inside the model."""

    def model(x, y=None):
        with numpyro.plate("columns", x.shape[1]):
            lengthscale = numpyro.sample("lengthscale", dist.LogNormal(1.0, 1.0))
        variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
        noise = numpyro.sample("noise", dist.LogNormal(-1.5, 1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)

    return model


def run(case, seed, held):
    """The scores of one case: on the test set, in the units of the data."""
    centres = gp.inducing.kmeans(held.x, NUM_INDUCING)
    prior = dist.Normal().expand(centres.shape).to_event(2)
    how = {
        "fixed": lambda: centres,
        "fitted": lambda: numpyro.param("z", centres),
        "sampled": lambda: numpyro.sample("z", prior),
    }
    model = model_of(how[case.split()[1].strip(",")])
    begun = time.perf_counter()
    posterior, key, r_hat = None, random.key(seed), None
    if "sampled" not in case:
        optimizer = optax.adam(optax.cosine_decay_schedule(0.02, NUM_STEPS))
        options = {"optimizer": optimizer, "num_steps": NUM_STEPS, "progress": False}
        posterior = gp.fit(key, model, None, held.x, held.y, **options)
    if "NUTS" in case:
        fit = posterior
        posterior = gp.sample(
            random.fold_in(key, 1),
            model,
            held.x,
            held.y,
            init=fit,
            num_chains=2,
            num_warmup=400,
            num_samples=400,
            progress=False,
        )
        r_hat = largest_r_hat(posterior)
    seconds = time.perf_counter() - begun
    options = {"params": fit.params} if "then" in case else {}
    at_test = gp.predict(model, posterior, held.x_test, **options)["y"]
    density = np.asarray(at_test.log_prob(jnp.asarray(held.y_test)))
    error = np.asarray(at_test.mean) - held.y_test
    return {
        "case": case,
        "seed": seed,
        "rmse": float(held.y_scale * np.sqrt(np.mean(error**2))),
        "nlpd": float(np.log(held.y_scale) - np.mean(density)),
        "r_hat": r_hat,
        "seconds": seconds,
    }


def largest_r_hat(draws):
    """Of the hyperparameters: inducing inputs may change places."""
    found = gp.diagnostics.rhat(draws)
    names = ("lengthscale", "variance", "noise")
    return float(max(np.max(np.asarray(found[name])) for name in names))
