"""Deep Gaussian processes by a fit, and by chains with hyperparameters at the evidence.

Havasi, Hernández-Lobato & Murillo-Fuentes (2018): stochastic-gradient Hamiltonian Monte
Carlo for the inducing values of all layers, and moving-window Monte Carlo EM for the
hyperparameters and inducing inputs, against doubly stochastic variational inference
(Salimbeni & Deisenroth 2017). The model is that of the papers' experiments, with 50
inducing inputs a layer and minibatches of 200 rows.
"""

import time

import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import svgp_ppl as gp
from benchmarks.papers.deep.regression import gaussian, model_of

SETS = ("boston", "energy")
NUM_INDUCING, NUM_STEPS, BATCH_SIZE = 50, 5000, 200
ROUNDS = {"num_chains": 2, "num_steps": 600}
CHAINS = {"num_chains": 2, "num_warmup": 150, "num_samples": 150}


def runs(seeds):
    """The scores of one and two layers on each set and split."""
    for name in SETS:
        for split in range(seeds):
            held = gp.datasets.uci(name, split)
            for num_layers in (1, 2):
                for run in runs_of(num_layers, split, held):
                    yield {"set": name, **run}


def runs_of(num_layers, seed, held):
    """A fit, and chains from it."""
    layers = gp.deep.layers(held.x, num_layers, NUM_INDUCING)
    model = model_of(layers, BATCH_SIZE, gaussian)
    key = random.key(seed)
    case = f"{num_layers} layer{'s' * (num_layers > 1)}"
    begun = time.perf_counter()
    options = {"optimizer": optax.adam(0.01), "num_steps": NUM_STEPS}
    options["progress"] = False
    guide = gp.AutoDeep(model)
    fit = gp.fit(key, model, guide, held.x, held.y, **options)
    yield scored(f"{case}, fit", seed, begun, held, model, fit)
    key_em, key_sample = random.split(random.fold_in(key, 1))
    data = (held.x, held.y)
    rounds = {"init": fit, "progress": False, **ROUNDS}
    params = gp.mcmc.moving_window_em(key_em, model, *data, **rounds)
    draws = gp.sample(
        key_sample,
        model,
        *data,
        init=(guide, params),
        sampler=gp.mcmc.SGHMC(),
        progress=False,
        **CHAINS,
    )
    yield scored(f"{case}, SGHMC", seed, begun, held, model, draws, params)


def scored(case, seed, begun, held, model, posterior, params=None):
    """The scores on the test set, in the units of the data."""
    seconds = time.perf_counter() - begun
    options = {} if params is None else {"params": params}
    key = random.key(seed + 100)
    at_test = gp.predict(model, posterior, held.x_test, key=key, **options)["y"]
    density = np.asarray(at_test.log_prob(jnp.asarray(held.y_test)))
    error = np.asarray(at_test.mean) - held.y_test
    return {
        "case": case,
        "seed": seed,
        "rmse": float(held.y_scale * np.sqrt(np.mean(error**2))),
        "nlpd": float(np.log(held.y_scale) - np.mean(density)),
        "seconds": seconds,
    }
