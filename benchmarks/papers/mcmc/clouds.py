"""Three long clouds: Gaussian against free form (Hensman et al. 2015, section 5.4).

750 points of three classes, one process a class with a common RBF kernel (Gamma(3, 3)
on the variance, Gamma(3, 2) on the lengthscale, a nugget of 1e-3), the label that of
the largest process with a flip probability of 1e-3. M = 50 from k-means, fitted, then
NUTS: chains mix with a thousand steps a draw, and not with the thirty of HMC. How much
of the square has a class of probability above 0.95, and the held-out log probability.
float32.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp
from benchmarks.papers import scores
from benchmarks.papers.experiment import Budget, Experiment, Measure
from benchmarks.papers.hybrid import fit_then_sample
from benchmarks.papers.mixing import mixing
from svgp_ppl.diagnostics import group


def model_of(z_start, flip_prior: bool = False, is_ard: bool = False):
    """The classifier."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(3.0, 3.0))
        shape = z_start.shape[-1:] if is_ard else ()
        prior = dist.Gamma(3.0, 2.0).expand(shape).to_event(len(shape))
        lengthscale = numpyro.sample("lengthscale", prior)
        flip = numpyro.sample("flip", dist.Beta(1.0, 9.0)) if flip_prior else 1e-3
        kernel = gp.kernels.RBF(variance, lengthscale) + gp.kernels.White(1e-3)
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", kernel, z, num_outputs=3)
        noise = gp.likelihoods.AdditiveNoiseCategorical(3, "step", flip)
        with numpyro.plate("data", len(x)):
            gp.observe("y", noise, f(x), obs=y)

    return model


def square(x, num: int = 50):
    """Points of a grid around the data, [num², 2], first coordinate slowest."""
    ranges = zip(x.min(0) - 0.5, x.max(0) + 0.5)
    sides = [np.linspace(low, high, num) for low, high in ranges]
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)


def hybrid(settings, sampler, is_ard: bool = False, coordinates=None):
    """The data, the Gaussian fit and the chains from it."""
    held = gp.datasets.three_classes()
    z_start = gp.inducing.kmeans(np.asarray(held.x, np.float32), 50)
    model = model_of(z_start, settings.get("flip") == "sampled", is_ard)
    x, y = jnp.asarray(held.x, jnp.float32), jnp.asarray(held.y)
    both = fit_then_sample(random.key(0), model, x, y, settings, sampler, coordinates)
    return held, both


def scored(held, model, posterior, params=None):
    """Scores at the test points, and probabilities on the square."""

    def probs(x):
        x = jnp.asarray(x, jnp.float32)
        return np.asarray(gp.predict(model, posterior, x, params=params)["y"].probs)

    on_square = probs(square(held.x))
    sure = 100.0 * np.mean(on_square.max(-1) > 0.95)
    row = scores.of_classes(probs(held.x_test), held.y_test)
    return row | {"sure": sure, "curves": {"probs": on_square}}


def compared(settings, split):
    """Scores of both posteriors, prefixed; how the chains mixed."""
    held, both = hybrid(settings, gp.mcmc.NUTS())
    posterior = group(both.draws, "posterior")
    every = max(posterior["f"].shape[1] // 100, 1)
    thinned = {n: v[:, ::every].reshape(-1, *v.shape[2:]) for n, v in posterior.items()}
    z = {"z": both.fit.params["z"]}
    rows = {
        "Gaussian": scored(held, both.model, both.fit),
        "draws": scored(held, both.model, thinned, z),
    }
    names = ("sure", "log probability", "accuracy")
    numbers = {f"{n}, {name}": rows[name][n] for n in names for name in rows}
    errors = {
        f"{n}, {name}": rows[name]["errors"][n] for n in names[1:] for name in rows
    }
    curves = {name: row["curves"]["probs"] for name, row in rows.items()} | z
    return numbers | mixing(both.draws) | {"errors": errors, "curves": curves}


CLOUDS = Experiment(
    "mcmc-2015",
    "clouds",
    compared,
    cases=({"flip": "fixed"}, {"flip": "sampled"}),
    measures=(
        Measure("sure, Gaussian", 1),
        Measure("sure, draws", 1),
        Measure("log probability, Gaussian", 3, "higher"),
        Measure("log probability, draws", 3, "higher"),
        Measure("ESS", 0),
        Measure("R-hat", 3),
    ),
    quick=Budget((0,), {"steps": 1500, "chains": 2, "warmup": 200, "draws": 300}),
    full=Budget((0,), {"steps": 5000, "chains": 2, "warmup": 500, "draws": 2000}),
    differs="NUTS in place of HMC; beside the fixed flip probability a sampled one, "
    "Beta(1, 9), which mixes faster. *sure* is the share of the square, in per cent, "
    "where a class has a probability above 0.95.",
)
