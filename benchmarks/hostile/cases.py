"""What a case of the table is, what came of it, and the small models of all cases."""

import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.monitoring
import numpy as np
import numpyro
from jax import random

import svgp_ppl as gp

# Seconds of compilation before an error: what JAX compiles for single operations.
_LONGEST = 1.0
_COMPILED: list[float] = []

X = np.linspace(0.0, 5.0, 20)[:, None]
Y = np.random.default_rng(0).poisson(2.0, 20)
Z = np.linspace(0.2, 4.8, 5)[:, None]
DRAWS = {"f": np.linspace(-1.0, 1.0, 10).reshape(2, 5)}
QUIET = {"num_steps": 1, "progress": False}
SHORT = {"num_warmup": 2, "num_samples": 2, "num_chains": 1, "progress": False}


@dataclass(frozen=True)
class Case:
    """What is done, and what should come of it.

    Attributes:
        group: What kind of mistake or edge.
        name: Which.
        run: Raises; or returns what was found, what was expected, and by how much they
            may differ, relative to the largest of what was expected.
        is_right: Whether it has a value.
    """

    group: str
    name: str
    run: Callable[[], Any]
    is_right: bool = False


def outcome(case: Case) -> tuple[str, str]:
    """What came of a case: "refused", "right", or what is wrong; and details."""
    before = len(_COMPILED)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = case.run()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error}".split("\n")[0]
        if not isinstance(error, ValueError) or "svgp_ppl" not in frame.filename:
            return "FOREIGN", f"{words} ({frame.filename})"
        seconds = sum(_COMPILED[before:])
        if case.is_right or seconds > _LONGEST:
            return "REFUSED" if case.is_right else "LATE", f"{seconds:.1f} s, {words}"
        return "refused", words
    if not case.is_right:
        return "SILENT", str(value)[:60]
    found, expected, tolerance = value
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    error = np.max(np.abs(found - expected)) / max(float(np.max(np.abs(expected))), 1.0)
    words = f"off by {error:.1e} of {tolerance:.0e}"
    return ("right" if error <= tolerance else "WRONG"), words


# ----------------------------------------------------------------------- small models


def model_of(likelihood=None, latent=lambda f, x: f(x), **options):
    """A model of one process, with some of its parts replaced."""
    kernel = options.pop("kernel", partial(gp.kernels.RBF, 1.0, 0.9))
    process = {k: options.pop(k) for k in ("num_outputs", "jitter") if k in options}
    z, mean = options.pop("z", Z), options.pop("mean", None)
    likelihood = gp.likelihoods.Poisson() if likelihood is None else likelihood

    def model(x, y=None, mask=None):
        f = gp.sparse_gp("f", kernel(), z, mean=mean, **process)
        at_x = latent(f, x)
        with numpyro.plate("data", len(x)):
            gp.observe("y", likelihood, at_x, obs=y, mask=mask, **options)

    return model


MODEL = model_of()


def fit(model=MODEL, x=X, y=Y, **options):
    """One step."""
    return gp.fit(random.key(0), model, None, x, y, **(QUIET | options))


def sample(model=MODEL, x=X, y=Y, **options):
    """Two draws."""
    return gp.sample(random.key(0), model, x, y, **(SHORT | options))


def predict(model=MODEL, x=X, posterior=None, **options):
    """From two draws."""
    posterior = DRAWS if posterior is None else posterior
    return gp.predict(model, posterior, x, **options)["y"].mean


def functions(model=MODEL, x=X, **options):
    """From two draws."""
    return gp.draw_functions(random.key(0), model, DRAWS, x, num_draws=2, **options)


def watch_compilations() -> None:
    """Note the seconds of every compilation from now on."""
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: (
            _COMPILED.append(seconds)
            if name == "/jax/core/compile/backend_compile_duration"
            else None
        )
    )
