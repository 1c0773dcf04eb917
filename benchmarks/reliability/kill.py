"""SIGKILL at random moments of fits and of chains; resumed, they give the same numbers.

    python benchmarks/reliability/kill.py [--kills 20] [--seed 0] [--only fit nuts]

Each job is run once without a checkpoint. Then, for every kill, it is started anew with
one (written every few steps), killed at a random moment, started again with the same
arguments, and compared with the first run: losses and parameters of a fit; draws and
statistics of chains. Every fifth moment is uniform over the time before the first
write, the others over the time of the steps. Prints a line for each job: the kills, how
many were resumed to the same bits, the largest difference, the phases in which they
were hit, and the temporary files that were left behind. Linux or macOS.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from jax.extend import backend

import svgp_ppl as gp
from svgp_ppl import checkpoints
from svgp_ppl.diagnostics import group

X = np.linspace(0.0, 5.0, 40)[:, None]
Y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
Z = np.linspace(0.2, 4.8, 6)[:, None]
NUM_STEPS = 3000
SAMPLERS = {
    "nuts": gp.mcmc.NUTS(),
    "hmc": gp.mcmc.HMC(num_rounds=10),
    "gibbs": gp.mcmc.Gibbs(num_rounds=10),
    "sghmc": gp.mcmc.SGHMC(),
}
# Draws of each phase, so that the steps take a few seconds.
NUM_DRAWS = {"nuts": 150, "hmc": 200, "gibbs": 200, "sghmc": 500}


def of_batches(x, y=None, num_data=None):
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 3.0))
    z = numpyro.param("z", jnp.asarray(Z, float))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


def subsampled(x, y=None, batch_size=None):
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 3.0))
    z = numpyro.param("z", jnp.asarray(Z, float))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", len(x), subsample_size=batch_size) as rows:
        gp.observe("y", gp.likelihoods.Poisson(), f(x[rows]), obs=y[rows])


def run_fit(path: Path | None) -> dict:
    guide, options = gp.AutoGaussian(of_batches), {"num_steps": NUM_STEPS}
    fitted = None
    if path is not None and path.exists():
        fitted = gp.Fit.load(path, guide)
        options = {"num_steps": NUM_STEPS - len(fitted.losses), "init": fitted}
    if options["num_steps"]:
        data = {"batch_size": 10, "num_data": len(X), "progress": False}
        fitted = gp.fit(
            random.key(0), of_batches, guide, X, Y, checkpoint=path, **data, **options
        )
    return {"losses": fitted.losses, **fitted.params}


def run_chains(name: str, path: Path | None) -> dict:
    is_stochastic = name == "sghmc"
    draws = gp.sample(
        random.key(1),
        subsampled if is_stochastic else of_batches,
        X,
        Y,
        sampler=SAMPLERS[name],
        num_chains=2,
        num_warmup=NUM_DRAWS[name],
        num_samples=NUM_DRAWS[name],
        checkpoint=path,
        progress=False,
        **({"batch_size": 10} if is_stochastic else {}),
    )
    return {
        f"{part} {key}": values
        for part in ("posterior", "sample_stats")
        for key, values in group(draws, part).items()
    }


def work(name: str, path: Path | None, result: Path, cache: Path) -> None:
    """A process of its own: the job, and its numbers as a file."""
    gp.cache_compilations(cache)
    jax.config.update("jax_enable_x64", True)
    checkpoints._SECONDS_BETWEEN = 0.02  # type: ignore[attr-defined]
    numbers = run_fit(path) if name == "fit" else run_chains(name, path)
    part = result.with_suffix(".writing")
    with open(part, "wb") as file:
        np.savez(file, **{key: np.asarray(value) for key, value in numbers.items()})
    os.replace(part, result)


def start(*args) -> Any:
    """A process that does the work, forked with all modules imported."""
    process = multiprocessing.get_context("fork").Process(target=work, args=args)
    process.start()
    return process


def finish(*args) -> None:
    """Do the work to its end."""
    process = start(*args)
    process.join()
    if process.exitcode:
        sys.exit(f"{args[0]} failed with exit status {process.exitcode}")


def until_written(path: Path, process: Any) -> float:
    """When the checkpoint is there."""
    while not path.exists() and process.is_alive():
        time.sleep(0.001)
    return time.perf_counter()


def moment(name: str, path: Path) -> str:
    """Where the work stood when it was killed, as far as its file says."""
    if not path.exists():
        return "no file yet"
    record, _ = checkpoints.read(path, "fit" if name == "fit" else "chains")
    return "fit" if name == "fit" else record["phase"]


def difference(one: Path, other: Path) -> float:
    """Largest relative difference of two files of numbers; 0 where all bits agree."""
    with np.load(one) as a, np.load(other) as b:
        assert a.files == b.files
        pairs = [(a[key], b[key]) for key in a.files]
    if all(x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs):
        return 0.0
    if any(x.shape != y.shape for x, y in pairs):
        return np.inf
    sizes = [np.max(np.abs(x - y) / (np.abs(x) + 1e-300)) for x, y in pairs if x.size]
    return max(float(np.max(sizes)), 1e-300)


def kill(name: str, number: int, rng, folder: Path) -> None:
    cache, whole = folder / "cache", folder / f"{name}.npz"
    finish(name, None, whole, cache)
    # Now from the cache of compilations, to see how long it takes with a checkpoint.
    path = folder / f"{name} checkpoint"
    process = start(name, path, folder / "unused.npz", cache)
    began = time.perf_counter()
    before = until_written(path, process) - began
    process.join()
    seconds = time.perf_counter() - began - before
    differences, moments, left = [], [], 0
    for i in range(number):
        here = folder / f"{name}-{i}"
        here.mkdir()
        path, result = here / "checkpoint", here / "result.npz"
        process = start(name, path, result, cache)
        if i % 5:
            until_written(path, process)
            time.sleep(rng.uniform(0.0, seconds))
        else:
            time.sleep(rng.uniform(0.0, before))
        was_alive = process.is_alive()
        process.kill()
        process.join()
        moments.append(moment(name, path) if was_alive else "finished")
        result.unlink(missing_ok=True)
        finish(name, path, result, cache)
        differences.append(difference(whole, result))
        left += len(list(here.iterdir())) - 2
        shutil.rmtree(here)
    same = sum(d == 0.0 for d in differences)
    where = ", ".join(f"{moments.count(m)} {m}" for m in dict.fromkeys(sorted(moments)))
    print(
        f"{name:6} {number:3} kills  {same:3} same bits  "
        f"largest difference {max(differences):.1e}  files left {left}  ({where})",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description="Kill fits and chains; resume them.")
    parser.add_argument("--kills", type=int, default=20, help="of each job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=["fit", *SAMPLERS])
    options = parser.parse_args()
    # Threads of JAX do not survive a fork: each process starts its own.
    backend.clear_backends()
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            kill(name, options.kills, rng, Path(folder))


if __name__ == "__main__":
    main()
