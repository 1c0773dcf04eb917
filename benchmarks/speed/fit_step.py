"""Time of a step of `fit`, and of a gradient of `sample`, against the limit by hand.

    S1   one Adam step on everything (kernel, noise, z, m, S), full covariance q(v),
         Gaussian likelihood, a lengthscale per column, N = 10,000, D = 8
    S2   the same for labels (logit), N = 1024, M = 300, D = 20
    S4b  log density and gradient in v and hyperparameters, labels, N = 1000, M = 100,
         D = 18
    S4p  the same for counts, N = 100, M = 30, D = 1

Ours runs through `fit` and the log density that `sample` evaluates; `by_hand.py` has
what it is compared with. All take turns in one run, each once a round. The medians are
of the ratio within a round, so that what else the machine does counts for both.

    python benchmarks/speed/fit_step.py [--x64] [--cases S1 S2] [--m 100] [--out FILE]
"""

import argparse
import json
import time
from pathlib import Path

import by_hand
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp
from svgp_ppl.expectations import closed_form_expectation
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.marginals import Marginal
from svgp_ppl.mcmc.target import Target

POSITIVE = dist.constraints.softplus_positive
SIZES = {"S1": (10_000, 100, 8), "S2": (1024, 300, 20), "S4b": (1000, 100, 18)}
SIZES["S4p"] = (100, 30, 1)


def data(case, n, m, d):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    signal = np.sin(x.sum(axis=1))
    y = signal + 0.1 * rng.normal(size=n)
    if case in ("S2", "S4b"):
        y = (y > 0).astype(int)
    if case == "S4p":
        y = rng.poisson(np.exp(signal))
    z = x[rng.choice(n, m, replace=False)]
    return jnp.asarray(x), jnp.asarray(y), jnp.asarray(z)


def likelihood_of(case, noise):
    match case:
        case "S1":
            return gp.likelihoods.Gaussian(noise)
        case "S4p":
            return gp.likelihoods.Poisson()
    return gp.likelihoods.Bernoulli("logit")


def expectation(case):
    """Expected log likelihood from moments, for the steps by hand."""

    def total(mean, spread, y, p):
        noise = jax.nn.softplus(p["noise"]) if "noise" in p else None
        likelihood = likelihood_of(case, noise)
        values = closed_form_expectation(likelihood, y, Marginal(mean, spread))
        return jnp.sum(values)

    return total


def fit_by_us(case, x, y, z, steps):
    def model(x, y):
        variance = numpyro.param("variance", 1.0, constraint=POSITIVE)
        lengthscale = numpyro.param(
            "lengthscale", jnp.ones(x.shape[1]), constraint=POSITIVE
        )
        noise = 1.0
        if case == "S1":
            noise = numpyro.param("noise", 0.3, constraint=POSITIVE)
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", likelihood_of(case, noise), f(x), obs=y)

    guide, adam = gp.AutoGaussian(model), optax.adam(1e-2)
    keywords = {"optimizer": adam, "num_steps": steps, "progress": False}

    def run():
        fit = gp.fit(random.key(0), model, guide, x, y, **keywords)
        return fit.seconds / steps

    return run


def fit_by_hand(gradient, case, x, y, z, steps):
    def free(value):
        return jnp.log(jnp.expm1(jnp.asarray(value)))

    params = {
        "variance": free(1.0),
        "lengthscale": free(jnp.ones(x.shape[1])),
        "z": z,
        "m": jnp.zeros(len(z)),
        "s": jnp.eye(len(z)),
    }
    if case == "S1":
        params["noise"] = free(0.3)
    adam = optax.adam(1e-2)

    @jax.jit
    def loop(carry, x, y):
        def step(i, carry):
            params, state = carry
            _, slopes = gradient(params, x, y, {})
            updates, state = adam.update(slopes, state)
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, steps, step, carry)

    carry = (params, adam.init(params))
    return _timed(lambda: loop(carry, x, y), steps)


def density_by_us(case, x, y, z, steps):
    def model(x, y):
        softplus = dist.transforms.SoftplusTransform()
        flat = dist.Normal(0.0, 1.0)
        positive = dist.TransformedDistribution(flat, softplus)
        variance = numpyro.sample("variance", positive)
        each = positive.expand([x.shape[1]]).to_event(1)
        lengthscale = numpyro.sample("lengthscale", each)
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", likelihood_of(case, None), f(x), obs=y)

    target = Target(random.key(0), model, (x, y), {}, {})
    positions = target.initial_positions(random.key(1), 1)
    position = jax.tree.map(lambda leaf: leaf[0], positions)
    gradient = jax.value_and_grad(target.logdensity_fn)
    data = target.data
    return _moving(lambda p, data: gradient(p, data)[1], position, data, steps)


def density_by_hand(gradient, case, x, y, z, steps):
    position = {
        "variance": jnp.zeros(()),
        "lengthscale": jnp.ones(x.shape[1]),
        "m": jnp.zeros(len(z)),
    }

    def slopes(p, data):
        x, y, z = data
        _, found = gradient(p, x, y, {"z": z})
        # The priors of the hyperparameters.
        return {n: -s - (0 if n == "m" else p[n]) for n, s in found.items()}

    return _moving(slopes, position, (x, y, z), steps)


def _moving(slopes, position, data, steps):
    """Gradients one after the other, each at a place that the last one decides."""

    @jax.jit
    def loop(position, data):
        def step(i, p):
            return jax.tree.map(lambda p, g: p + 1e-6 * g, p, slopes(p, data))

        return jax.lax.fori_loop(0, steps, step, position)

    return _timed(lambda: loop(position, data), steps)


def _timed(run, steps):
    def once():
        start = time.perf_counter()
        jax.block_until_ready(run())
        return (time.perf_counter() - start) / steps

    return once


def measured(case, size, rounds):
    arrays = data(case, *size)
    # About half a second of work a round.
    n, m, _ = size
    steps = int(np.clip(5e9 / (m * m * (n + m)), 5, 500))
    ours, hand = fit_by_us, fit_by_hand
    if case.startswith("S4"):
        ours, hand = density_by_us, density_by_hand
    limit, textbook = (
        make(expectation(case)) for make in (by_hand.limit, by_hand.textbook)
    )
    runs = {
        "svgp_ppl": ours(case, *arrays, steps),
        "limit": hand(limit, case, *arrays, steps),
        "textbook": hand(textbook, case, *arrays, steps),
    }
    for run in runs.values():
        run()
    times = np.array([[run() for run in runs.values()] for _ in range(rounds)])
    found = dict(zip(runs, 1e3 * np.median(times, axis=0)))
    return {
        "case": case,
        "size": size,
        "milliseconds": found,
        "ours / limit": float(np.median(times[:, 0] / times[:, 1])),
        "ours / textbook": float(np.median(times[:, 0] / times[:, 2])),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--n", type=int, help="in place of the N of the cases")
    parser.add_argument("--m", type=int, help="in place of the M of the cases")
    parser.add_argument("--d", type=int, help="in place of the D of the cases")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    precision = "float64" if options.x64 else "float32"

    results = []
    print(f"{precision}: milliseconds a step, medians of {options.rounds}")
    for case in options.cases:
        given = (options.n, options.m, options.d)
        size = tuple(new or old for new, old in zip(given, SIZES[case]))
        with single_threaded_lapack():
            result = measured(case, size, options.rounds)
        results.append({"precision": precision, **result})
        times = "  ".join(f"{k} {v:8.3f}" for k, v in result["milliseconds"].items())
        print(
            f"{case:4s} {size!s:18s} {times}  ours / limit "
            f"{result['ours / limit']:.2f}  ours / textbook "
            f"{result['ours / textbook']:.2f}",
            flush=True,
        )
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
