"""MNIST with ten processes (Hensman et al. 2015, section 5.5).

Robust max with 1e-3, RBF with a lengthscale a pixel, a nugget of 1e-3, M = 500 from
k-means, fitted; pixels in [−1, 1]. A Gaussian fit by Adam on minibatches, then draws by
HMC on all images. How far z moves, and scores. float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import svgp_ppl as gp
from benchmarks.papers import data, scores
from benchmarks.papers.experiment import Budget, Experiment, Measure


def model_of(z_start, batch: int | None, start: float):
    """Ten processes with a common kernel; ``start``: of the lengthscales."""

    def model(x, y=None):
        size = None if y is None else batch
        plate = numpyro.plate("data", len(x), subsample_size=size)
        with plate as rows:
            x, y = x[rows], None if y is None else y[rows]
        variance = numpyro.sample("variance", dist.Gamma(4.0, 1.3))
        wide = dist.Gamma(1.0, 1.0 / start).expand(x.shape[1:]).to_event(1)
        kernel = gp.kernels.RBF(variance, numpyro.sample("lengthscale", wide))
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", kernel + gp.kernels.White(1e-3), z, num_outputs=10)
        noise = gp.likelihoods.AdditiveNoiseCategorical(10, "step", 1e-3)
        with plate:
            gp.observe("y", noise, f(x), obs=y)

    return model


def run(settings, split):
    """Scores of one posterior on the test images, and the movement of z."""
    held = data.mnist(settings["rows"])
    x, x_test = (jnp.asarray(2 * a - 1, jnp.float32) for a in (held.x, held.x_test))
    y = jnp.asarray(held.y)
    z_start = gp.inducing.kmeans(np.asarray(x[::5]), settings["M"])
    model = model_of(z_start, settings["batch"], 20.0)
    fit = gp.fit(
        jax.random.key(0),
        model,
        gp.AutoGaussian(model),
        x,
        y,
        optimizer=optax.adam(0.02),
        num_steps=settings["steps"],
        progress=False,
    )
    moved = np.linalg.norm(np.asarray(fit.params["z"] - z_start), axis=-1)
    posterior = fit
    if settings["posterior"] == "draws":
        posterior = gp.sample(
            jax.random.key(1),
            model_of(z_start, None, 20.0),
            x,
            y,
            init=fit,
            sampler=gp.mcmc.HMC((0.01, 0.01), (30, 30)),
            num_chains=1,
            num_warmup=0,
            num_samples=settings["draws"],
            progress=False,
        )
    at_test = gp.predict(model, posterior, x_test, key=jax.random.key(1))["y"]
    return scores.of_classes(at_test.probs, held.y_test) | {"z moved": moved.mean()}


GAUSSIAN, DRAWS = {"posterior": "Gaussian"}, {"posterior": "draws"}
MNIST = Experiment(
    "mcmc-2015",
    "mnist",
    run,
    cases=(GAUSSIAN, DRAWS),
    measures=(
        Measure("accuracy", 2, "higher"),
        Measure("log probability", 3, "higher"),
        Measure("z moved", 2),
    ),
    quick=Budget(
        (0,), {"rows": 10_000, "M": 100, "steps": 300, "batch": 300}, (GAUSSIAN,)
    ),
    full=Budget(
        (0,),
        {"rows": 60_000, "M": 500, "steps": 100_000, "batch": 1000, "draws": 1000},
    ),
    differs="The quick budget trains on the first 10,000 images with M = 100. Priors "
    "are those of the released sampler, but for a mean of 20 of the lengthscales.",
)
