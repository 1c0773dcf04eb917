"""Time of one `fit` step against a hand-written JAX step of the same bound.

One Adam step on everything (kernel, noise, z, m, S), whitened full-covariance q(v),
Gaussian likelihood, RBF with a lengthscale per column; N = 10,000, M = 100, D = 8
unless told otherwise. Ours and theirs alternate in one run; medians.

    python benchmarks/speed/fit_step.py [--n 10000] [--m 100] [--d 8] [--x64]
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.infer import SVI

import svgp_ppl as gp
from svgp_ppl.linalg import single_threaded_lapack

POSITIVE = dist.constraints.softplus_positive


def data(n, m, d):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    y = np.sin(x.sum(axis=1)) + 0.1 * rng.normal(size=n)
    z = x[rng.choice(n, m, replace=False)]
    return jnp.asarray(x), jnp.asarray(y), jnp.asarray(z)


def ours(x, y, z, steps):
    def model(x, y=None):
        variance = numpyro.param("variance", 1.0, constraint=POSITIVE)
        ones = jnp.ones(x.shape[1])
        lengthscale = numpyro.param("lengthscale", ones, constraint=POSITIVE)
        noise = numpyro.param("noise", 0.3, constraint=POSITIVE)
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)

    svi = SVI(model, gp.AutoGaussian(model), optax.adam(1e-2), gp.MarginalELBO())
    state = svi.init(random.key(0), x, y)

    @jax.jit
    def run(state, x, y):
        return jax.lax.fori_loop(0, steps, lambda i, s: svi.update(s, x, y)[0], state)

    return lambda: jax.block_until_ready(run(state, x, y))


def by_hand(x, y, z, steps):
    """The textbook: distances by a matrix product, triangular solve, plain autodiff."""

    def negative_bound(p, x, y):
        variance, noise = jax.nn.softplus(p["variance"]), jax.nn.softplus(p["noise"])
        lengthscale = jax.nn.softplus(p["lengthscale"])

        def k(a, b):
            a, b = a / lengthscale, b / lengthscale
            squares = jnp.sum(a * a, 1)[:, None] + jnp.sum(b * b, 1) - 2 * a @ b.T
            return variance * jnp.exp(-0.5 * jnp.maximum(squares, 0.0))

        jitter = (1e-6 if x.dtype == jnp.float64 else 1e-5) * variance
        scale_tril = jnp.linalg.cholesky(k(p["z"], p["z"]) + jitter * jnp.eye(len(z)))
        a = jax.scipy.linalg.solve_triangular(scale_tril, k(p["z"], x), lower=True)
        s = jnp.tril(p["s"])
        mean = p["m"] @ a
        v = variance - jnp.sum(a * a, 0) + jnp.sum((s.T @ a) ** 2, 0)
        squares = ((y - mean) ** 2 + v) / noise**2
        fit = -0.5 * jnp.log(2 * jnp.pi * noise**2) - 0.5 * squares
        norms = jnp.sum(s * s) + p["m"] @ p["m"] - len(z)
        return 0.5 * norms - jnp.sum(jnp.log(jnp.abs(jnp.diag(s)))) - jnp.sum(fit)

    def inverse_softplus(v):
        return jnp.log(jnp.expm1(jnp.asarray(v)))

    params = {
        "variance": inverse_softplus(1.0),
        "noise": inverse_softplus(0.3),
        "lengthscale": inverse_softplus(jnp.ones(x.shape[1])),
        "z": z,
        "m": jnp.zeros(len(z)),
        "s": jnp.eye(len(z)),
    }
    adam = optax.adam(1e-2)

    @jax.jit
    def run(carry, x, y):
        def step(i, carry):
            params, state = carry
            gradient = jax.grad(negative_bound)(params, x, y)
            updates, state = adam.update(gradient, state)
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, steps, step, carry)

    carry = (params, adam.init(params))
    return lambda: jax.block_until_ready(run(carry, x, y))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--d", type=int, default=8)
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)

    arrays = data(options.n, options.m, options.d)
    with single_threaded_lapack():
        runs = {
            "svgp_ppl": ours(*arrays, options.steps),
            "by hand": by_hand(*arrays, options.steps),
        }
        times = {name: [] for name in runs}
        for run in runs.values():
            run()
        for _ in range(options.rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                times[name].append((time.perf_counter() - start) / options.steps)
    medians = {name: 1e3 * float(np.median(t)) for name, t in times.items()}
    for name, milliseconds in medians.items():
        print(f"{name:10s} {milliseconds:8.2f} ms a step")
    print(f"ratio      {medians['svgp_ppl'] / medians['by hand']:8.2f}")


if __name__ == "__main__":
    main()
