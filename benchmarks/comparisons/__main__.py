"""``python -m benchmarks.comparisons latent_inputs --seeds 3``; or ``tables`` alone."""

import argparse
import json

import jax
import numpyro

from benchmarks.comparisons import (
    deep_chains,
    hyperparameters,
    inducing_inputs,
    latent_inputs,
    tables,
    warps,
)
from svgp_ppl.runtime.compilation import forget_programs

RUNS = {
    "latent_inputs": latent_inputs.runs,
    "inducing_inputs": inducing_inputs.runs,
    "deep_chains": deep_chains.runs,
    "hyperparameters": hyperparameters.runs,
    "warps": warps.runs,
}


def main():
    """Run what is asked for, keep it, and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparisons")
    parser.add_argument("name", choices=[*RUNS, "tables"])
    parser.add_argument("--seeds", type=int, default=3, help="of the data and the keys")
    options = parser.parse_args()
    numpyro.enable_x64()
    if options.name in RUNS:
        found = []
        for run in RUNS[options.name](options.seeds):
            print(json.dumps(run), flush=True)
            found.append(run)
            tables.keep(options.name, found)
            # Every run compiles, as in a process of its own.
            forget_programs()
            jax.clear_caches()
    tables.write()


if __name__ == "__main__":
    main()
