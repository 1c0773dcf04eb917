"""Regression on positive numbers as they are, after Box–Cox, and after a learned warp.

Snelson, Rasmussen and Ghahramani (2003): y is Gaussian after a map t, whose values are
parameters. The maximum of the bound, M = 200 from k-means, a lengthscale a column.
Densities are in the units of y.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax import random

import svgp_ppl as gp
from benchmarks.papers.params import positive
from benchmarks.papers.savigp.sparsity import tanh_warp

SETS = ("creep", "abalone")
NUM_INDUCING, NUM_STEPS = 200, 3000


def as_it_is():
    """Gaussian noise."""
    return gp.likelihoods.Gaussian(positive("scale", 0.3))


def box_cox():
    """A power of y, learned."""
    power = numpyro.param("power", 0.3)
    transform = gp.likelihoods.warped.BoxCox(power)
    return gp.likelihoods.Warped(transform, positive("scale", 0.3))


CASES = {"no warp": as_it_is, "Box–Cox": box_cox, "three tanh": tanh_warp}


def runs(seeds):
    """The scores of each warp on each set and split."""
    for name in SETS:
        held = gp.datasets.savigp(name)
        for split in range(seeds):
            for case in CASES:
                yield {"set": name, **run(case, split, held)}


def dealt(held, split):
    """Rows for training and for testing: those of the set, then others at random."""
    x, y = np.vstack([held.x, held.x_test]), np.concatenate([held.y, held.y_test])
    if split:
        order = np.random.RandomState(split).permutation(len(y))
        x, y = x[order], y[order]
    number = len(held.y)
    return x[:number], y[:number], x[number:], y[number:]


def run(case, seed, held):
    """The scores of one warp at the test rows."""
    x, y, x_test, y_test = dealt(held, seed)
    if case == "Box–Cox":  # of the positive numbers, the others of standardised ones
        y, y_test = (each + held.y_mean / held.y_scale for each in (y, y_test))
    z_start = gp.inducing.kmeans(x, NUM_INDUCING)

    def model(x, y=None):
        shape = x.shape[1:]
        kernel = gp.kernels.RBF(
            positive("variance", 1.0), positive("lengthscale", jnp.full(shape, 5.0))
        )
        centre = numpyro.param("centre", 0.0)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z_start))
        noise = CASES[case]()
        with numpyro.plate("data", len(x)):
            gp.observe("y", noise, f(x) + centre, obs=y)

    optimizer = optax.adam(optax.cosine_decay_schedule(0.02, NUM_STEPS))
    options = {"optimizer": optimizer, "num_steps": NUM_STEPS, "progress": False}
    fit = gp.fit(random.key(seed), model, None, x, y, **options)
    density = np.asarray(fit.predict(x_test)["y"].log_prob(y_test))
    nlpd = float(np.log(held.y_scale) - np.mean(density))
    return {"case": case, "seed": seed, "nlpd": nlpd}
