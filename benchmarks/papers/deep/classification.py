"""Deep classifiers: rectangles, MNIST, HIGGS, SUSY (Salimbeni & Deisenroth 2017).

Robust max with 1e-3 for several classes, probit for two. M = 100 a layer, inner layers
of up to 30 columns, one draw of the layers a step. float32.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from scipy.stats import rankdata

import svgp_ppl as gp
from benchmarks.papers import data, scores
from benchmarks.papers.deep.regression import DEEP, LARGE, SINGLE
from benchmarks.papers.experiment import Budget, Experiment, Measure
from benchmarks.papers.params import positive
from svgp_ppl.datasets.stored import stored


def model_of(layers, num_classes: int, batch: int | None):
    """Layers, the last one with an output a class; one output for two classes."""

    def kernel(i: int, num_columns: int):
        lengthscale = positive(f"lengthscale_{i}", jnp.full(num_columns, 2.0))
        return gp.kernels.RBF(positive(f"variance_{i}", 2.0), lengthscale)

    def model(x, y=None):
        size = None if y is None else batch
        plate = numpyro.plate("data", len(x), subsample_size=size)
        with plate as rows:
            x, y = x[rows], None if y is None else y[rows]
        kernels = [kernel(i, layer.z.shape[-1]) for i, layer in enumerate(layers)]
        f = gp.deep.compose("f", layers, kernels, x)
        if num_classes == 2:
            noise = gp.likelihoods.Bernoulli("probit")
        else:
            noise = gp.likelihoods.AdditiveNoiseCategorical(num_classes, "step", 1e-3)
        with plate:
            gp.observe("y", noise, f, obs=y)

    return model


def scored(load):
    """Settings and split to the scores on the set that ``load(settings)`` gives."""

    def run(settings, split):
        held = load(settings)
        x, x_test = (jnp.asarray(a, jnp.float32) for a in (held.x, held.x_test))
        num_outputs = None if held.num_classes == 2 else held.num_classes
        layers = gp.deep.layers(
            np.asarray(x), settings["layers"], settings["M"], num_outputs=num_outputs
        )
        batch = settings["batch"] if settings["batch"] < len(x) else None
        model = model_of(layers, held.num_classes, batch)
        fit = gp.fit(
            jax.random.key(0),
            model,
            gp.AutoDeep(model),
            x,
            jnp.asarray(held.y),
            optimizer=optax.adam(0.01),
            num_steps=settings["steps"],
            checkpoint=settings.get("checkpoint"),
            progress=False,
        )
        at_test = gp.predict(model, fit, x_test, key=jax.random.key(1))["y"]
        probs = np.asarray(at_test.probs)
        row = scores.of_classes(probs, held.y_test)
        return row | ({"AUC": area(probs, held.y_test)} if probs.ndim == 1 else {})

    return run


def area(probs, y) -> float:
    """Area under the curve of true against false positives, by ranks."""
    ranks, is_one = rankdata(probs), np.asarray(y) == 1
    num_ones, num_zeros = is_one.sum(), (~is_one).sum()
    return (ranks[is_one].sum() - num_ones * (num_ones + 1) / 2) / (
        num_ones * num_zeros
    )


def from_folder(name: str, settings):
    """A labelled set that no package gives: X, y and train_idx."""
    held = stored(name.replace("-", "_"), "X, y and train_idx", "its public source")
    is_train = np.zeros(len(held["y"]), bool)
    is_train[held["train_idx"]] = True
    return data.labelled(held["X"], held["y"], is_train, ~is_train)


SCORES = (Measure("accuracy", 2, "higher"), Measure("log probability", 3, "higher"))
FULL = {"steps": 100_000, "batch": 10_000}
MNIST = Experiment(
    "deep-2017",
    "mnist",
    scored(lambda settings: data.mnist(settings["rows"])),
    cases=(SINGLE, LARGE, DEEP[0], DEEP[1]),
    measures=SCORES,
    quick=Budget((0,), {"rows": 10_000, "steps": 300, "batch": 200}, (SINGLE, DEEP[0])),
    full=Budget((0,), {"rows": 60_000, **FULL}),
    differs="The quick budget trains on the first 10,000 images.",
)
RECTANGLES = Experiment(
    "deep-2017",
    "rectangles-images",
    scored(partial(from_folder, "rectangles-images")),
    cases=(SINGLE, LARGE, *DEEP[:3]),
    measures=SCORES,
    quick=Budget((0,), {"steps": 500, "batch": 500}, (SINGLE, DEEP[0])),
    full=Budget((0,), FULL),
    differs=data.NOT_HELD,
)
PHYSICS = tuple(
    Experiment(
        "deep-2017",
        name,
        scored(partial(from_folder, name)),
        cases=(SINGLE, LARGE, *DEEP),
        measures=(Measure("AUC", 3, "higher"),),
        quick=Budget((0,), {"steps": 500, "batch": 500}, (SINGLE, DEEP[0])),
        full=Budget((0,), FULL),
        differs=data.NOT_HELD,
    )
    for name in ("higgs", "susy")
)
