"""MNIST with ten processes (Hensman et al. 2015, section 5.5).

Robust max with 1e-3, RBF with a lengthscale a pixel, a nugget of 1e-3, M = 500 from
k-means, fitted; pixels in [−1, 1]. A Gaussian fit by Adam on minibatches, then draws by
HMC on all images. How far z moves, and scores; of each digit the z that moved the most
are kept. float32.
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


def moved_most(z_start, z, x, y):
    """Of each digit the z [C, D] that moved the most, before and after, as grey levels.

    The digit of an inducing input is that of most images nearer to its start than to
    the others'. Levels are 0 to 255 at the start; a fit may leave that range.
    """
    squares = np.sum(z_start**2, -1) - 2.0 * x @ z_start.T
    nearest, far = squares.argmin(-1), np.linalg.norm(z - z_start, axis=-1)
    counts = np.zeros((len(z), y.max() + 1), int)
    np.add.at(counts, (nearest, y), 1)
    digit = counts.argmax(-1)
    members = [np.flatnonzero(digit == c) for c in np.unique(digit)]
    most = [own[far[own].argmax()] for own in members]
    before, after = (np.rint(127.5 * (a[most] + 1.0)).astype(int) for a in (z_start, z))
    return {"before": before, "after": after}


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
    ends = np.asarray(z_start), np.asarray(fit.params["z"])
    moved = {"z moved": np.linalg.norm(ends[1] - ends[0], axis=-1).mean()}
    posterior = fit
    if settings["posterior"] == "Gaussian":  # the draws have the same z
        moved["curves"] = moved_most(*ends, np.asarray(x), held.y)
    else:
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
    return scores.of_classes(at_test.probs, held.y_test) | moved


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
    "are those of the released sampler, but for a mean of 20 of the lengthscales. *z "
    "moved* is the mean distance from k-means to fit, of pixels in [−1, 1]; the figure "
    "shows, of each digit, the inducing input that moved the most.",
)
