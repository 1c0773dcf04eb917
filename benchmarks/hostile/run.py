"""Arguments that people get wrong, and data at the edge of what numbers can do.

    python benchmarks/hostile/run.py [--bits 32 64] [--only WORDS ...] [--all]

Each case is either refused, by a ValueError of this package before anything of size is
compiled, or right, within the stated tolerance of a second route: the bound by NumPy
in float64, with dense trapezoidal rules in place of closed forms and quadrature. An
error of another package, a value where an error was due, a compilation before the
error, and a value beyond its tolerance are printed; the exit status is then 1.
"""

import argparse
import subprocess
import sys
import time

import jax
from cases import outcome, watch_compilations
from edges import accepted, right
from refusals import REFUSED


def main():
    parser = argparse.ArgumentParser(description="Hostile arguments and data.")
    parser.add_argument("--bits", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--only", nargs="+", help="words of a group or name")
    parser.add_argument("--all", action="store_true", help="print every case")
    options = parser.parse_args()
    first, *others = options.bits
    failed = run(first, options)
    for bits in others:
        # In a process of its own: JAX 0.10 may keep an array of the other precision.
        given = ["--only", *options.only] if options.only else []
        given += ["--all"] if options.all else []
        command = [sys.executable, __file__, "--bits", str(bits), *given]
        failed |= subprocess.run(command).returncode != 0
    sys.exit(failed)


def run(bits: int, options: argparse.Namespace) -> bool:
    """All cases in one precision; whether one was neither refused nor right."""
    watch_compilations()
    counts: dict[str, int] = {}
    with jax.enable_x64(bits == 64):
        for case in (c for make in (*REFUSED, right, accepted) for c in make()):
            words = f"{case.group}: {case.name}"
            if options.only and not all(word in words for word in options.only):
                continue
            began = time.perf_counter()
            found, details = outcome(case)
            seconds = time.perf_counter() - began
            counts[found] = counts.get(found, 0) + 1
            if options.all or found.isupper():
                row = f"{bits} {found:8s} {seconds:5.1f} s  {words} | {details}"
                print(row, flush=True)
    for found, count in sorted(counts.items()):
        print(f"float{bits} {found:8s} {count:5d}", flush=True)
    return any(map(str.isupper, counts))


if __name__ == "__main__":
    main()
