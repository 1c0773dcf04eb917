"""SIGKILL at random moments of fits and of chains; resumed, they give the same numbers.

    python benchmarks/reliability/kill.py [--kills 20] [--seed 0] [--only fit nuts]

Each job is run once without a checkpoint. Then it is started anew with one (written
every few steps), killed at a random moment, started again with the same arguments,
killed again, and so on; after four kills it may finish, and is compared with the first
run: losses and parameters of a fit; draws and statistics of chains. One kill in five is
at a moment before the first write of its process, the others while it takes steps.
Prints a line for each job: the kills, how many runs were resumed to the same bits, the
largest difference, the phases in which they were hit, and the files that were left
behind beside the checkpoint. Linux or macOS.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Imported once, and then forked. BlackJAX starts the threads of JAX, which do not
# survive a fork: it comes with the jobs, in each process of its own.
import arviz  # noqa: F401
import jax
import matplotlib.pyplot  # noqa: F401
import numpy as np
import numpyro.infer  # noqa: F401
import optax  # noqa: F401
import sklearn.gaussian_process  # noqa: F401

KILLS_A_RUN = 4
JOBS = ("fit", "nuts", "hmc", "gibbs", "sghmc")


def work(name: str, path: Path | None, result: Path) -> None:
    """A process of its own: the job, and its numbers as a file."""
    jax.config.update("jax_enable_x64", True)
    import jobs

    numbers = jobs.run(name, path)
    part = result.with_suffix(".writing")
    with open(part, "wb") as file:
        np.savez(file, **{key: np.asarray(value) for key, value in numbers.items()})
    os.replace(part, result)


def start(*args) -> Any:
    process = multiprocessing.get_context("fork").Process(target=work, args=args)
    process.start()
    return process


def finish(*args) -> None:
    process = start(*args)
    process.join()
    if process.exitcode:
        sys.exit(f"{args[0]} failed with exit status {process.exitcode}")


def number_of(path: Path) -> int:
    """Tells a file from the one that was written in its place."""
    return path.stat().st_ino if path.exists() else 0


def until_written(path: Path, process: Any, before: int) -> float:
    """When the process has written its first checkpoint."""
    while number_of(path) == before and process.is_alive():
        time.sleep(0.001)
    return time.perf_counter()


def difference(one: Path, other: Path) -> float:
    """Largest relative difference of two files of numbers; 0 where all bits agree."""
    with np.load(one) as a, np.load(other) as b:
        assert a.files == b.files
        pairs = [(a[key], b[key]) for key in a.files]
    if any(x.shape != y.shape for x, y in pairs):
        return np.inf
    if all(x.tobytes() == y.tobytes() for x, y in pairs):
        return 0.0
    sizes = [np.max(np.abs(x - y) / (np.abs(x) + 1e-300)) for x, y in pairs if x.size]
    return max(float(np.max(sizes)), 1e-300)


def kill(name: str, number: int, rng, folder: Path) -> None:
    whole, moments, differences, left = folder / f"{name}.npz", [], [], 0
    finish(name, None, whole)
    began = time.perf_counter()
    process = start(name, folder / f"{name}.chk", folder / "unused.npz")
    early = until_written(folder / f"{name}.chk", process, 0) - began
    process.join()
    seconds = time.perf_counter() - began - early
    while len(moments) < number:
        here = Path(tempfile.mkdtemp(dir=folder))
        path, result = here / "checkpoint", here / "result.npz"
        for _ in range(min(KILLS_A_RUN, number - len(moments))):
            before = number_of(path)
            process = start(name, path, result)
            if len(moments) % 5:
                until_written(path, process, before)
                time.sleep(rng.uniform(0.0, 1.5 * seconds / KILLS_A_RUN))
            else:
                time.sleep(rng.uniform(0.0, early))
            was_alive = process.is_alive()
            process.kill()
            process.join()
            moments.append(moment(name, path) if was_alive else "finished")
        result.unlink(missing_ok=True)
        finish(name, path, result)
        differences.append(difference(whole, result))
        left += len(list(here.iterdir())) - 2
        shutil.rmtree(here)
    same = sum(d == 0.0 for d in differences)
    where = ", ".join(f"{moments.count(m)} {m}" for m in dict.fromkeys(sorted(moments)))
    print(
        f"{name:6} {len(moments):3} kills, {same} of {len(differences)} runs the same, "
        f"largest difference {max(differences):.1e}, files left {left} ({where})",
        flush=True,
    )


def moment(name: str, path: Path) -> str:
    """Where the work stood when it was killed, as far as its file says."""
    if not path.exists():
        return "no file yet"
    with np.load(path) as file:
        head = json.loads(str(file["head"]))
    return "fit" if name == "fit" else head["plain"]["phase"]


def main():
    parser = argparse.ArgumentParser(description="Kill fits and chains; resume them.")
    parser.add_argument("--kills", type=int, default=20, help="of each job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=JOBS, default=JOBS)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", f"{folder}/cache")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        for name in options.only:
            kill(name, options.kills, rng, Path(folder))


if __name__ == "__main__":
    main()
