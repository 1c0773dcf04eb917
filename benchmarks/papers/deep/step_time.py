"""Seconds a gradient step of 10,000 rows (Salimbeni & Deisenroth 2017, table 3).

Inner layers of one column, M = 100 or 500, 8 columns. float32. The second of two fits
is timed, which compiles nothing.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import svgp_ppl as gp
from benchmarks.papers.deep.regression import DEEP, LARGE, SINGLE, gaussian, model_of
from benchmarks.papers.experiment import Budget, Experiment, Measure


def run(settings, split):
    """The time of a step."""
    rng = np.random.default_rng(split)
    x = rng.normal(size=(10_000, 8)).astype(np.float32)
    y = jnp.asarray(np.sin(x.sum(1)))
    widths = [1] * (settings["layers"] - 1)
    layers = gp.deep.layers(x, settings["layers"], settings["M"], widths=widths)
    model = model_of(layers, None, gaussian)
    guide = gp.AutoDeep(model)
    optimizer = optax.adam(0.01)
    for _ in range(2):
        begin = time.perf_counter()
        gp.fit(
            jax.random.key(0),
            model,
            guide,
            jnp.asarray(x),
            y,
            optimizer=optimizer,
            num_steps=settings["steps"],
            progress=False,
        )
        seconds = time.perf_counter() - begin
    return {"seconds a step": seconds / settings["steps"]}


STEP_TIME = Experiment(
    "deep-2017",
    "step-time",
    run,
    cases=(SINGLE, LARGE, *DEEP),
    measures=(Measure("seconds a step", 3),),
    quick=Budget((0,), {"steps": 10}),
    full=Budget((0,), {"steps": 200}),
    differs="Seconds depend on the processor; the ratios are the claim.",
)
