"""The command: a measurement, written as JSON, or the page that is made of all.

python -m benchmarks.speed [--cases S1 S4b] [--x64] [--rounds 9] [--out DIR]
    [--beside gpflow gpytorch=/path/to/python gpflux]
python -m benchmarks.speed scaling
python -m benchmarks.speed chains --cases coal labels
python -m benchmarks.speed page
"""

import argparse
import importlib
from pathlib import Path

from benchmarks.speed.results import RESULTS, write

MEASUREMENTS = (
    "steps",
    "scaling",
    "chains",
    "predictions",
    "minibatches",
    "density",
    "expectations",
)


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*MEASUREMENTS, "page"]
    parser.add_argument("name", nargs="?", choices=names, default="steps")
    parser.add_argument("--cases", nargs="+", help="all without it")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--beside",
        nargs="+",
        default=[],
        metavar="PEER",
        help="gpflow, gpytorch, gpflux; =PYTHON where another interpreter has it",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def main():
    options = parse()
    if options.name == "page":
        from benchmarks.speed import pages

        pages.write(options.out)
        return
    module = importlib.import_module(f"benchmarks.speed.{options.name}")
    for row in module.rows(options):
        write(options.out, options.name, [row])
        print(*module.in_words(row), sep="\n", flush=True)


if __name__ == "__main__":
    main()
