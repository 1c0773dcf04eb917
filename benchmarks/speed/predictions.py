"""Moments at many new inputs: points a second, processor time, memory.

``fit`` predicts from a Gaussian q(v) with M = 500 at 100,000 points, ``draws`` from 200
or 1000 draws of v and hyperparameters with M = 100 at 10,000 points or more, ``file``
from a fit with M = 100 at inputs of a memory map, by ``gp.predict_batches`` into
another. Each in a process of its own, because of the memory. D = 8, Gaussian
likelihood.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.speed.worker import memory

__all__ = ["CASES", "in_words", "rows"]

NUM_COLUMNS, BATCH = 8, 100_000


class Task(NamedTuple):
    """What is predicted from: draws, or a fit where there are none."""

    m: int
    n: int
    draws: int = 0


CASES = {
    "fit": Task(500, 100_000),
    "fit-100": Task(100, 100_000),
    "200 draws": Task(100, 10_000, 200),
    "1000 draws": Task(100, 10_000, 1000),
    "1000 draws, more points": Task(100, 100_000, 1000),
    "file": Task(100, 500_000),
    "file, more rows": Task(100, 4_000_000),
}


def rows(options) -> Iterator[dict[str, Any]]:
    """A row for every task."""
    dtype = "float64" if options.x64 else "float32"
    for name in options.cases or CASES:
        context = get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as process:
            task = process.submit(measured, name, dtype, options.rounds)
            yield {"case": name, "dtype": dtype, **task.result()}


def measured(name: str, dtype: str, rounds: int) -> dict[str, Any]:
    """Seconds of each round, processor time and memory."""
    import jax
    import jax.numpy as jnp

    import svgp_ppl as gp

    jax.config.update("jax_enable_x64", dtype == "float64")
    task, rng = CASES[name], np.random.default_rng(0)
    z = rng.normal(size=(task.m, NUM_COLUMNS)).astype(dtype)
    model = regression(z)
    posterior, params = posterior_of(task, model, z, rng, dtype)
    with tempfile.TemporaryDirectory() as folder:
        if name.startswith("file"):
            predicted = from_file(task, model, posterior, rng, dtype, Path(folder))
        else:
            x = jnp.asarray(rng.normal(size=(task.n, NUM_COLUMNS)), dtype)

            def predicted():
                at = gp.predict(model, posterior, x, params=params)["y"]
                jax.block_until_ready((at.mean, at.variance))

        before, seconds, processor = memory()["resident"], [], []
        predicted()
        for _ in range(rounds):
            used, began = time.process_time(), time.perf_counter()
            predicted()
            seconds.append(float(f"{time.perf_counter() - began:.4g}"))
            processor.append(float(f"{time.process_time() - used:.4g}"))
    return {
        **task._asdict(),
        "seconds": seconds,
        "processor_seconds": processor,
        "gained_gib": round(memory()["peak"] - before, 3),
    }


def regression(z):
    """A Gaussian likelihood of one process."""
    import numpyro
    import numpyro.distributions as dist

    import svgp_ppl as gp

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)

    return model


def posterior_of(task: Task, model, z, rng, dtype) -> tuple:
    """A fit or draws, made up: what they are costs nothing less; and ``params``."""
    import jax.numpy as jnp

    import svgp_ppl as gp

    m, number = task.m, task.draws
    if number:
        return {
            "variance": rng.gamma(10.0, 0.1, number).astype(dtype),
            "lengthscale": rng.gamma(40.0, 0.05, number).astype(dtype),
            "f": rng.normal(size=(number, m)).astype(dtype),
        }, {"z": z}
    params = {
        "auto_f_loc": rng.normal(size=m),
        "auto_f_scale_tril": np.tril(0.01 * rng.normal(size=(m, m)), -1)
        + 0.3 * np.eye(m),
        "variance_auto_loc": 1.0,
        "lengthscale_auto_loc": 2.0,
        "z": z,
    }
    fitted = gp.AutoGaussian(model), {n: jnp.asarray(v) for n, v in params.items()}
    return fitted, None


def from_file(task: Task, model, posterior, rng, dtype, folder: Path):
    """Predictions from one memory map into another."""
    import svgp_ppl as gp

    shape = (task.n, NUM_COLUMNS)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", dtype, shape)
    for start in range(0, task.n, BATCH):
        part = x[start : start + BATCH]
        part[:] = rng.normal(size=part.shape)
    x.flush()
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    mean = np.lib.format.open_memmap(folder / "mean.npy", "w+", dtype, (task.n,))

    def predicted():
        options = {"batch_size": BATCH}
        for at_rows, at in gp.predict_batches(model, posterior, mapped, **options):
            mean[at_rows] = at["y"].mean

    return predicted


def in_words(row: dict[str, Any]) -> Iterator[str]:
    """A line."""
    seconds = np.median(row["seconds"])
    used = 1e6 * np.median(row["processor_seconds"]) / row["n"]
    yield (
        f"{row['case']:24s}{row['dtype']:8s}{seconds:8.2f} s"
        f"{row['n'] / seconds:10.0f} points/s{used:8.2f} µs of processor a point"
        f"{row['gained_gib']:8.2f} GiB gained"
    )
