"""The latent variable model of the notebook, by a fit."""

import time

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.infer import init_to_value
from numpyro.infer.autoguide import AutoNormal

import svgp_ppl as gp
from benchmarks.comparisons.wines import (
    NUM_DRAWS,
    NUM_LATENT,
    NUM_STEPS,
    data,
    scores,
    start,
)


def runs(seeds):
    """The scores for each seed."""
    yield from map(run, range(seeds))


def run(seed):
    """The scores of one fit of the notebook's model."""
    y, known, _ = data(seed)
    x_start, z_start = start(y, known)
    num_columns = y.shape[1]

    def gplvm(y, known):
        with numpyro.plate("row", len(y)):
            x = numpyro.sample("x", dist.Normal().expand([NUM_LATENT]).to_event(1))
        with numpyro.plate("latent", NUM_LATENT):
            lengthscale = numpyro.sample("lengthscale", dist.LogNormal(1.0, 1.0))
        variance = numpyro.sample("variance", dist.LogNormal(0.0, 0.5))
        scale = numpyro.sample("scale", dist.LogNormal(-0.5, 0.5))
        kernel = gp.kernels.RBF(variance, lengthscale)
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", kernel, z, num_outputs=num_columns)(x)
        likelihood = gp.likelihoods.Gaussian(scale)
        for d in range(num_columns):
            with numpyro.plate(f"row_{d}", len(y)):
                gp.observe(
                    f"y_{d}", likelihood, f[..., d], obs=y[:, d], mask=known[:, d]
                )

    begin = init_to_value(
        values={"x": x_start, "lengthscale": jnp.full(NUM_LATENT, 2.0)}
    )
    begun = time.perf_counter()
    guide = gp.AutoGaussian(
        gplvm, rest=lambda m: AutoNormal(m, init_loc_fn=begin, init_scale=0.1)
    )
    optimizer = optax.adam(optax.cosine_decay_schedule(0.02, NUM_STEPS))
    options = {"optimizer": optimizer, "num_steps": NUM_STEPS, "progress": False}
    fit = gp.fit(random.key(seed), gplvm, guide, y, known, **options)
    seconds = time.perf_counter() - begun
    found = fit.predict(y, known, key=random.key(seed + 100), num_draws=NUM_DRAWS)
    mean, variance = (
        np.stack(
            [np.asarray(getattr(found[f"y_{d}"], what)) for d in range(num_columns)], 1
        )
        for what in ("mean", "variance")
    )
    lengthscale = np.exp(np.asarray(fit.params["lengthscale_auto_loc"]))
    x = np.asarray(fit.params["x_auto_loc"])
    case = "`svgp_ppl`"
    return scores(case, seed, mean, variance, x, lengthscale, seconds)
