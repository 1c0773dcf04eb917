"""Time and memory of a step on minibatches from files, against the number of rows.

Made-up data on disk (float32, 8 columns and a target): memory maps of NumPy, or an
Arrow file. RBF, Gaussian noise, M = 100, Adam on everything, batches of 1000. Each
number of rows has a process of its own, because memory that was resident once stays in
the peak. ``gather`` is the time to read the rows of a step, which happens while the
steps before are computed.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.worker import memory

__all__ = ["in_words", "rows"]

NUM_COLUMNS, M, BATCH, STEPS = 8, 100, 1000, 1000
CASES = {
    f"{kind}, {n}": (kind, n)
    for kind in ("npy", "arrow")
    for n in (100_000, 1_000_000, 10_000_000)
}


def rows(options) -> Iterator[dict[str, Any]]:
    """A row for every kind of file and number of rows."""
    for name in options.cases or CASES:
        kind, n = CASES[name]
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            found = process.submit(measured, kind, n, options.rounds).result()
        yield {"case": name, "dtype": "float32", "kind": kind, "n": n, **found}


def measured(kind: str, n: int, rounds: int) -> dict[str, Any]:
    """A fit to compile everything, then blocks of steps."""
    with tempfile.TemporaryDirectory() as folder:
        x, y = written(Path(folder), kind, n)
        return steps_on(x, y, rounds)


def written(folder: Path, kind: str, n: int) -> tuple[Any, Any]:
    """Inputs [n, D] and targets [n] on disk, a piece at a time, and opened."""
    rng, piece = np.random.default_rng(0), 50_000

    def pieces():
        for start in range(0, n, piece):
            x = rng.normal(size=(min(piece, n - start), NUM_COLUMNS))
            y = np.sin(x.sum(1)) + 0.1 * rng.normal(size=len(x))
            yield start, x.astype(np.float32), y.astype(np.float32)

    if kind == "npy":
        shape = (n, NUM_COLUMNS)
        x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, shape)
        y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (n,))
        for start, some_x, some_y in pieces():
            x[start : start + piece], y[start : start + piece] = some_x, some_y
        x.flush(), y.flush()
        return tuple(np.load(folder / f, mmap_mode="r") for f in ("x.npy", "y.npy"))

    import pyarrow as pa

    import svgp_ppl as gp

    names = [f"x{d}" for d in range(NUM_COLUMNS)]
    schema = pa.schema([(name, pa.float32()) for name in [*names, "y"]])
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file:  # noqa: SIM117
        with pa.ipc.new_file(file, schema) as writer:
            for _, some_x, some_y in pieces():
                columns = [*np.ascontiguousarray(some_x.T), some_y]
                writer.write(pa.record_batch(columns, schema=schema))
    path = folder / "data.arrow"
    return gp.arrow_rows(path, names), gp.arrow_rows(path, "y")


def steps_on(x, y, rounds: int) -> dict[str, Any]:
    """Milliseconds a step for each block of steps, and memory (MB)."""
    import jax
    import numpyro
    import optax
    from numpyro.distributions import constraints

    import svgp_ppl as gp
    from svgp_ppl.fitting.minibatches import Minibatches

    z = np.array(x[:M])

    def positive(name, start):
        return numpyro.param(name, start, constraint=constraints.softplus_positive)

    def model(x, y=None, num_data=None):
        kernel = gp.kernels.RBF(positive("variance", 1.0), positive("lengthscale", 2.0))
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z))
        with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
            noise = gp.likelihoods.Gaussian(positive("noise", 0.3))
            gp.observe("y", noise, f(x), obs=y)

    guide, adam = gp.AutoGaussian(model), optax.adam(1e-2)

    def seconds(x, y, steps):
        options = {"batch_size": BATCH, "num_data": len(x), "optimizer": adam}
        sizes = {"num_steps": steps, "progress": False, **options}
        return gp.fit(jax.random.key(0), model, guide, x, y, **sizes).seconds

    # The runtime and the compiler take their memory with a small set.
    few = 10 * BATCH
    seconds(np.array(x[:few]), np.array(y[:few]), STEPS)
    before = memory()
    seconds(x, y, STEPS)
    times = [seconds(x, y, STEPS) / STEPS for _ in range(rounds)]
    after, began = memory(), time.perf_counter()
    data = Minibatches((x, y), {}, BATCH, 0)
    for first in range(0, 50, 10):
        data.block(first, 10, 10)
    return {
        "milliseconds": [float(f"{1e3 * t:.4g}") for t in times],
        "gather_ms": round(1e3 * (time.perf_counter() - began) / 50, 2),
        "gained_mb": round(1024 * (after["resident"] - before["resident"])),
        "gained_at_peak_mb": round(1024 * (after["peak"] - before["peak"])),
    }


def in_words(row: dict[str, Any]) -> Iterator[str]:
    """A line."""
    yield (
        f"{row['case']:18s}{np.median(row['milliseconds']):8.2f} ms a step"
        f"{row['gather_ms']:8.2f} ms to gather{row['gained_mb']:8d} MB gained"
        f"{row['gained_at_peak_mb']:8d} MB at the peak"
    )
