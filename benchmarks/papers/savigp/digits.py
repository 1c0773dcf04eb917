"""MNIST by one softmax (Dezfouli & Bonilla 2015, figure 4).

FG, SF of the images as inducing inputs by k-means, RBF with variance 11 and lengthscale
9 at the start, pixels in [0, 1]; minibatches of 1000, Adam. float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax

import svgp_ppl as gp
from benchmarks.papers import data, scores
from benchmarks.papers.experiment import Budget, Experiment, Measure
from benchmarks.papers.params import positive


def model_of(z, batch: int):
    """Ten processes with a common kernel."""

    def model(x, y=None):
        size = None if y is None else batch
        plate = numpyro.plate("data", len(x), subsample_size=size)
        with plate as rows:
            x, y = x[rows], None if y is None else y[rows]
        kernel = gp.kernels.RBF(
            positive("variance", 11.0), positive("lengthscale", 9.0)
        )
        f = gp.sparse_gp("f", kernel, z, num_outputs=10)
        with plate:
            gp.observe("y", gp.likelihoods.Softmax(10, bound="gumbel"), f(x), obs=y)

    return model


def run(settings, split):
    """Scores on the test images."""
    held = data.mnist(settings["rows"])
    x, x_test = (jnp.asarray(a, jnp.float32) for a in (held.x, held.x_test))
    z = gp.inducing.kmeans(np.asarray(x), max(int(settings["SF"] * len(x)), 10))
    model = model_of(z, settings["batch"])
    steps = settings["steps"]
    fit = gp.fit(
        jax.random.key(0),
        model,
        gp.AutoGaussian(model),
        x,
        jnp.asarray(held.y),
        optimizer=optax.adam(optax.cosine_decay_schedule(0.02, steps)),
        num_steps=steps,
        progress=False,
    )
    at_test = gp.predict(model, fit, x_test, key=jax.random.key(1))["y"]
    return scores.of_classes(at_test.probs, held.y_test)


CASES = tuple({"SF": sf} for sf in (0.001, 0.004, 0.02, 0.04))
MNIST = Experiment(
    "savigp-2015",
    "mnist",
    run,
    cases=CASES,
    measures=(Measure("error rate", 2, "lower"), Measure("nll", 4, "lower")),
    quick=Budget((0,), {"rows": 10_000, "steps": 300, "batch": 500}, CASES[:3]),
    full=Budget((0,), {"rows": 60_000, "steps": 30_000, "batch": 2000}),
    differs="The quick budget trains on the first 10,000 images, so that the same SF "
    "has a sixth of the inducing inputs. The softmax by its Gumbel bound, Adam on "
    "minibatches.",
)
