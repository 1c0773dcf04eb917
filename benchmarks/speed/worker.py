"""A process of a contender: builds a case, then runs a block each time it is asked.

    python -m benchmarks.speed.worker CONTENDER CASE float32|float64

A line on the standard input is answered by a line of JSON. Peers are installed apart,
in environments without JAX, so that this imports nothing but the contender.
"""

import importlib
import json
import os
import platform
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.speed.cases import CASES, data_of

__all__ = ["main", "memory"]

PACKAGES = {
    "svgp_ppl": ("svgp_ppl", "jax", "numpyro", "numpy"),
    "limit": ("jax", "numpy"),
    "textbook": ("jax", "numpy"),
    "gpflow": ("gpflow", "tensorflow", "numpy"),
    "gpytorch": ("gpytorch", "torch", "numpy"),
    "gpflux": ("gpflux", "gpflow", "tensorflow", "numpy"),
}


def memory() -> dict[str, float]:
    """GiB: resident now, and at the peak (Linux)."""
    text = Path("/proc/self/status").read_text()

    def of(key: str) -> float:
        found = re.search(rf"{key}:\s+(\d+)", text)
        return int(found.group(1)) / 2**20 if found else float("nan")

    return {"resident": of("VmRSS"), "peak": of("VmHWM")}


def main() -> None:
    contender, name, dtype = sys.argv[1:]
    # Libraries print what they like; the answers have the first channel for themselves.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**facts) -> None:
        channel.write(json.dumps(facts) + "\n")
        channel.flush()

    case = CASES[name]
    try:
        module = importlib.import_module(f"benchmarks.speed.contenders.{contender}")
        make = module.CASES.get(case.kind)
        steps = getattr(module, "STEPS", {}).get(name, case.steps)
        case = case._replace(steps=steps)
    except ImportError as error:
        answer(missing=str(error))
        return
    if make is None:
        answer(missing="not offered")
        return
    before = memory()["resident"]
    block = make(case, data_of(case, dtype), dtype)
    began = time.process_time()
    block()
    answer(
        first=time.process_time() - began,
        versions={"python": platform.python_version()}
        | {p: version(p) for p in PACKAGES[contender]},
    )
    for _ in sys.stdin:
        began = time.perf_counter()
        seconds = block()
        seconds = time.perf_counter() - began if seconds is None else seconds
        answer(
            milliseconds=1e3 * seconds / case.steps,
            gained=memory()["peak"] - before,
            peak=memory()["peak"],
        )


if __name__ == "__main__":
    main()
