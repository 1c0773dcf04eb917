"""Value and gradient of the bound: rules of our own against 20 Gauss–Hermite nodes.

Alternately in one process, M = 50, float64 (docs/decisions/0020).
"""

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import random
from numpyro.infer import SVI

import svgp_ppl as gp
from svgp_ppl.linalg import single_threaded_lapack

__all__ = ["CASES", "in_words", "rows"]

LIKELIHOODS = {
    "logit": gp.likelihoods.Bernoulli("logit"),
    "probit": gp.likelihoods.Bernoulli("probit"),
    "Student-t": gp.likelihoods.StudentT(4.0, 0.3),
}
CASES = {f"{name}, N = {n}": (name, n) for n in (500, 2000) for name in LIKELIHOODS}


def rows(options) -> Iterator[dict[str, Any]]:
    """A row for every likelihood and number of data."""
    jax.config.update("jax_enable_x64", True)
    for case in options.cases or CASES:
        name, n = CASES[case]
        runs = [gradient_of(name, n, m) for m in (None, gp.expectations.GaussHermite())]
        with single_threaded_lapack():
            times = [[run() for run in runs] for _ in range(40)][1:]
        ratio = float(np.median([ours / fixed for ours, fixed in times]))
        found = {"likelihood": name, "n": n, "ratio": round(ratio, 2)}
        yield {"case": case, "dtype": "float64", **found}


def gradient_of(name: str, n: int, method):
    """Seconds of ten values and gradients."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(n, 2)))
    y = rng.normal(size=n)
    y = jnp.asarray(y if name == "Student-t" else (y > 0).astype(int))

    def model(x, y):
        variance = numpyro.param("variance", 1.0)
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, 1.0), x[:50])
        with numpyro.plate("data", n):
            gp.observe("y", LIKELIHOODS[name], f(x), obs=y, method=method)

    svi = SVI(
        model, gp.AutoGaussian(model), numpyro.optim.Adam(0.01), gp.MarginalELBO()
    )
    state = svi.init(random.key(0), x, y)

    @jax.jit
    def loop(state):
        return jax.lax.fori_loop(0, 10, lambda _, s: svi.update(s, x, y)[0], state)

    def run() -> float:
        began = time.perf_counter()
        jax.block_until_ready(loop(state))
        return time.perf_counter() - began

    return run


def in_words(row: dict[str, Any]) -> Iterator[str]:
    """A line."""
    yield f"{row['case']:20s}{row['ratio']:6.2f} x the time of 20 nodes"
