"""Image segments: Gaussian against free form (Hensman et al. 2015, section 5.1).

1000 of 2086 segments with 18 attributes, standardised by the training rows, are
labelled; the others are held out. Probit link, RBF with one lengthscale or one a column
(ARD), Gamma(1.1, 1) on the lengthscales and on the variance; z by k-means, where it
stays or from where it is fitted. A Gaussian fit with its hyperparameters at the mode,
then NUTS from it with z frozen. float32.
"""

from itertools import product

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp
from benchmarks.papers.experiment import Budget, Experiment, Measure
from benchmarks.papers.hybrid import fit_then_sample
from benchmarks.papers.mixing import mixing
from benchmarks.papers.scores import error_of


def model_of(z_start, is_ard: bool, moves_z: bool):
    """The classifier."""

    def model(x, y=None):
        z = numpyro.param("z", z_start) if moves_z else z_start
        shape = (z_start.shape[-1],) if is_ard else ()
        prior = dist.Gamma(1.1, 1.0)
        variance = numpyro.sample("variance", prior)
        event = prior.expand(shape).to_event(len(shape))
        kernel = gp.kernels.RBF(variance, numpyro.sample("lengthscale", event))
        f = gp.sparse_gp("f", kernel, z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Bernoulli("probit"), f(x), obs=y)

    return model


def hybrid(settings, split, sampler, coordinates=None):
    """The Gaussian fit and the chains from it."""
    held = gp.datasets.image(split)
    x = jnp.asarray(held.x, jnp.float32)
    z_start = gp.inducing.kmeans(np.asarray(x), settings["M"])
    is_ard, is_fitted = settings["kernel"] == "ARD", settings["z"] == "fitted"
    model = model_of(z_start, is_ard, is_fitted)
    y = jnp.asarray(held.y)
    both = fit_then_sample(
        random.key(split), model, x, y, settings, sampler, coordinates
    )
    return held, both


def compared(settings, split):
    """Held-out log probability by both posteriors; how the chains mixed."""
    held, both = hybrid(settings, split, gp.mcmc.NUTS())
    x_test = jnp.asarray(held.x_test, jnp.float32)
    numbers, each = {}, {}
    for name, posterior in (("Gaussian", both.fit), ("draws", both.draws)):
        at_test = gp.predict(both.model, posterior, x_test)["y"]
        each[name] = np.asarray(at_test.log_prob(jnp.asarray(held.y_test)))
        numbers[name] = each[name].mean()
    numbers["gain"] = numbers["draws"] - numbers["Gaussian"]
    errors = {name: error_of(values) for name, values in each.items()}
    errors["gain"] = error_of(each["draws"] - each["Gaussian"])
    return numbers | mixing(both.draws) | {"errors": errors}


def case(m: int, kernel: str, z: str):
    """A row of the table."""
    return {"M": m, "kernel": kernel, "z": z}


IMAGE = Experiment(
    "mcmc-2015",
    "image",
    compared,
    cases=tuple(
        case(*one)
        for one in product(
            (5, 10, 20, 50, 100), ("isotropic", "ARD"), ("k-means", "fitted")
        )
    ),
    measures=(
        Measure("Gaussian", 3, "higher"),
        Measure("draws", 3, "higher"),
        Measure("gain", 4, "higher"),
        Measure("ESS", 0),
        Measure("R-hat", 3),
    ),
    quick=Budget(
        (0,),
        {"steps": 1000, "chains": 2, "warmup": 150, "draws": 150},
        tuple(
            case(m, kernel, z)
            for m in (5, 10, 20)
            for kernel in ("isotropic", "ARD")
            for z in ("k-means", "fitted")
        ),
    ),
    full=Budget(
        tuple(range(10)), {"steps": 5000, "chains": 4, "warmup": 500, "draws": 2500}
    ),
    differs="NUTS in place of the tuned HMC. 1086 rows are held out, as in the "
    "released code; the text says 1019. With M = 5 from k-means and one lengthscale "
    "this has two modes, at 2 and at 11, and one of four chains went over: a large "
    "R-hat.",
)
