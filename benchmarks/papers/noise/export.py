"""Data and inducing inputs of the first split of a set, for other libraries.

python -m benchmarks.papers.noise.export letter letter.npz
"""

import argparse

import numpy as np

import svgp_ppl as gp
from benchmarks.papers.noise.uci import load


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("path")
    parser.add_argument("--m", type=int, default=300)
    options = parser.parse_args()
    held = load(options.name, 0)
    z = gp.inducing.kmeans(np.asarray(held.x, np.float32), options.m)
    arrays = {n: getattr(held, n) for n in ("x", "y", "x_test", "y_test")}
    np.savez(options.path, z=z, **arrays)


if __name__ == "__main__":
    main()
