"""Time and memory of a step on minibatches from files, for two numbers of rows.

Generated data on disk (float32, D columns and a target), read through
``np.load(mmap_mode="r")``; RBF, Gaussian noise, M inducing inputs, Adam on everything,
batches of B. Each number of rows has a process of its own, because memory that was
resident once stays in the peak. Prints milliseconds a step, the time to gather the rows
of a step, and by how much the resident memory of the process grew from before the fit
to its end, and to its peak (VmRSS and VmHWM of /proc/self/status, Linux).

    python benchmarks/speed/minibatches.py [--n 100000 1000000] [--m 100] [--b 1000]
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def write_data(folder, n, d):
    """x.npy [n, d] and y.npy [n], a piece at a time."""
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (n, d))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (n,))
    rng, piece = np.random.default_rng(0), 50_000
    for start in range(0, n, piece):
        rows = slice(start, min(start + piece, n))
        x[rows] = rng.normal(size=x[rows].shape)
        y[rows] = np.sin(x[rows].sum(1)) + 0.1 * rng.normal(size=len(y[rows]))


def memory():
    """Megabytes: resident, of which anonymous, and the peak of the resident."""
    text = Path("/proc/self/status").read_text()
    names = ("VmRSS", "RssAnon", "VmHWM")
    return {k: int(re.search(rf"{k}:\s+(\d+)", text).group(1)) / 1024 for k in names}


def measure(folder, options):
    """One fit to compile everything, then the one that is measured."""
    import jax
    import numpyro
    import optax
    from numpyro.distributions import constraints

    import svgp_ppl as gp
    from svgp_ppl.fitting.minibatches import Minibatches

    x = np.load(folder / "x.npy", mmap_mode="r")
    y = np.load(folder / "y.npy", mmap_mode="r")
    z_start = np.array(x[: options.m])

    def positive(name, start):
        return numpyro.param(name, start, constraint=constraints.softplus_positive)

    def model(x, y=None, num_data=None):
        kernel = gp.kernels.RBF(positive("variance", 1.0), positive("lengthscale", 2.0))
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z_start))
        with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
            noise = gp.likelihoods.Gaussian(positive("noise", 0.3))
            gp.observe("y", noise, f(x), obs=y)

    def run(x, y, num_data, steps):
        return gp.fit(
            jax.random.key(0),
            model,
            gp.AutoGaussian(model),
            x,
            y,
            num_data=num_data,
            optimizer=optax.adam(1e-2),
            batch_size=options.b,
            num_steps=steps,
            progress=False,
        )

    # The runtime and the compiler take their memory with a small set.
    few = 10 * options.b
    run(np.array(x[:few]), np.array(y[:few]), few, 20)
    before = memory()
    start = time.perf_counter()
    run(x, y, len(x), 20)
    short, start = time.perf_counter() - start, time.perf_counter()
    run(x, y, len(x), 20 + options.steps)
    per_step = (time.perf_counter() - start - short) / options.steps
    after = memory()
    start = time.perf_counter()
    Minibatches((x, y), {}, options.b, 0).block(0, 50, 50)
    gather = (time.perf_counter() - start) / 50
    grown = "".join(f"{after[k] - before[k]:12.1f}" for k in after)
    print(f"{len(x):10d}{1e3 * per_step:12.2f}{1e3 * gather:12.2f}{grown}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--d", type=int, default=8)
    parser.add_argument("--b", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="used by the processes themselves")
    options = parser.parse_args()
    if options.folder is not None:
        measure(options.folder, options)
        return
    heads = ("N", "ms a step", "ms gather", "RSS + MB", "anon + MB", "peak + MB")
    print("".join(f"{head:>{10 + 2 * (i > 0)}s}" for i, head in enumerate(heads)))
    sys.stdout.flush()
    for n in options.n:
        with tempfile.TemporaryDirectory() as folder:
            write_data(Path(folder), n, options.d)
            given = [f"--m={options.m}", f"--b={options.b}", f"--steps={options.steps}"]
            command = [sys.executable, __file__, f"--folder={folder}", *given]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
