"""Gradient evaluations a second inside `sample`, against calling the density in a loop.

The coal-mining Cox process (N = 112, M = 30), four chains. The loops evaluate value
and gradient of the same log density: one call from Python at a time, one chain in a
compiled loop, and all four chains vectorised in a compiled loop, which is what
`sample` could reach if NUTS cost nothing and no chain ever waited for another.

    python benchmarks/speed/gradients.py [--x64]
"""

import argparse
import time

import jax
import jax.numpy as jnp
from jax import random

import svgp_ppl as gp
from svgp_ppl.__main__ import coal_model
from svgp_ppl.diagnostics import group
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.target import Target


def seconds(run):
    run()
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--evaluations", type=int, default=4000)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    data = gp.datasets.coal()
    model = coal_model(gp.inducing.grid(data.x, 30))
    target = Target(random.key(0), model, (data.x, data.y), {}, {})
    positions = target.initial_positions(random.key(1), 4)
    one = jax.tree.map(lambda leaf: leaf[0], positions)
    gradient = jax.value_and_grad(target.logdensity_fn)
    count = options.evaluations

    def in_a_loop(function, start):
        @jax.jit
        def run(position, data):
            def step(i, carry):
                position, total = carry
                value, slope = function(position, data)
                moved = jax.tree.map(lambda p, g: p + 1e-9 * g, position, slope)
                return moved, total + jnp.sum(value)

            return jax.lax.fori_loop(0, count, step, (position, jnp.zeros(())))

        return lambda: jax.block_until_ready(run(start, target.data))

    jitted = jax.jit(gradient)

    def from_python():
        for _ in range(count):
            jax.block_until_ready(jitted(one, target.data))

    with single_threaded_lapack():
        fit = gp.fit(random.key(2), model, gp.AutoGaussian(model), *data[:2])
        draws = gp.sample(random.key(3), model, *data[:2], init=fit)
        attrs = draws["posterior"].attrs
        chains = jax.vmap(gradient, (0, None))
        rates = {
            "called from Python": count / seconds(from_python),
            "one chain, compiled loop": count / seconds(in_a_loop(gradient, one)),
            "four chains, compiled loop": 4
            * count
            / seconds(in_a_loop(chains, positions)),
            "gp.sample": attrs["num_gradients"] / attrs["sampling_seconds"],
        }
    steps = group(draws, "sample_stats")["n_steps"]
    print(f"kept in lockstep: {steps.sum() / (4 * steps.max(axis=0).sum()):.2f}")
    for name, rate in rates.items():
        print(f"{name:28s} {rate:10.0f} gradients a second")


if __name__ == "__main__":
    main()
