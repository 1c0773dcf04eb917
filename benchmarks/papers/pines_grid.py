"""Scots pines: sparse posteriors against the full one by a second route.

    python benchmarks/papers/pines_grid.py [--sides 15 20]

The model of ``pines.py`` at all cells mixes slowly (about 500 gradients an effective
draw, most of them for the hyperparameters θ). Here θ is integrated on a grid of
logarithms. At each point natural gradients give the best Gaussian q(v), f = L v, with
an inducing input in every cell, and draws of it are weighted to the exact posterior:

    w_s = p(y | L v_s) p(v_s) / q(v_s),    v_s ~ q
    p(y | θ) ≈ mean w_s,    E[exp f | y, θ] ≈ Σ w_s exp(L v_s) / Σ w_s

Beside it, for each number of inducing inputs a side: the hyperparameters by NUTS, the
correlation of the maps of the mean intensity and their largest relative difference.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax import random
from pines import NAMES, sparse_model
from scipy.special import logsumexp, softmax
from scipy.stats import gamma
from tqdm import tqdm

import svgp_ppl as gp
from svgp_ppl.diagnostics import ess, group
from svgp_ppl.linalg import cholesky, single_threaded_lapack


def weighted(data, variance: float, lengthscale: float, num_draws: int):
    """Log evidence, mean intensity [N] and the effective number of draws."""
    x, y = jnp.asarray(data.x, float), np.asarray(data.y, float)
    kernel = gp.kernels.RBF(variance, lengthscale)

    def model(x, y=None):
        f = gp.sparse_gp("f", kernel, x, jitter=1e-3)
        with numpyro.plate("cells", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(data.area), f(x), obs=y)

    fitted = gp.fit(
        random.key(0),
        model,
        gp.AutoGaussian(model),
        x,
        jnp.asarray(data.y),
        optimizer=gp.natural_gradient(1.0),
        num_steps=10,
        progress=False,
    )
    mean = np.asarray(fitted.params["auto_f_loc"])
    root = np.asarray(fitted.params["auto_f_scale_tril"])
    e = np.random.default_rng(0).standard_normal((len(mean), num_draws))
    v = mean[:, None] + root @ e
    f = np.asarray(cholesky(kernel(x), 1e-3)) @ v
    log_weights = y @ f - data.area * np.exp(f).sum(0)
    log_weights += 0.5 * np.sum(e**2 - v**2, axis=0) + np.log(np.diag(root)).sum()
    evidence = logsumexp(log_weights) - np.log(num_draws)
    weights = softmax(log_weights)
    return evidence, np.exp(f) @ weights, 1.0 / np.sum(weights**2)


def on_grid(data, variances, lengthscales, num_draws: int):
    """Weights of the grid [V, L], mean intensity [N], effective draws [V, L]."""
    log_weights = np.empty((len(variances), len(lengthscales)))
    maps = np.empty((*log_weights.shape, len(data.x)))
    sizes = np.empty_like(log_weights)
    for i, j in tqdm(list(np.ndindex(log_weights.shape)), desc="grid"):
        variance, lengthscale = variances[i], lengthscales[j]
        evidence, maps[i, j], sizes[i, j] = weighted(
            data, variance, lengthscale, num_draws
        )
        prior = gamma(1.2).logpdf(variance) + gamma(1.75).logpdf(lengthscale)
        # The points are even in the logarithms.
        log_weights[i, j] = evidence + prior + np.log(variance * lengthscale)
    weights = softmax(log_weights)
    return weights, np.tensordot(weights, maps, 2), sizes


def sampled(data, side: int, options):
    """Mean intensity [N] and means of the hyperparameters, from side² inputs."""
    x, y = jnp.asarray(data.x, jnp.float32), jnp.asarray(data.y)
    middle = (np.arange(side) + 0.5) * 10.0 / side
    z = np.stack(np.meshgrid(middle, middle, indexing="ij"), axis=-1)
    with single_threaded_lapack():
        hybrid = gp.fit_and_sample(
            random.key(0),
            sparse_model(z.reshape(-1, 2).astype(np.float32), data.area),
            x,
            y,
            fit_options={"optimizer": optax.adam(0.02), "num_steps": 1000},
            num_chains=2,
            num_warmup=options.warmup,
            num_samples=options.samples,
            progress=False,
        )
    held = group(hybrid.draws, "posterior")
    sizes = {n: float(np.min(v)) for n, v in ess(hybrid.draws).items()}
    values = [float(held[n].mean()) for n in NAMES]
    return (
        np.asarray(hybrid.predict(x)["y"].mean) / data.area,
        values,
        min(sizes.values()),
    )


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description="Scots pines, sparse against a grid.")
    parser.add_argument("--cells", type=int, default=32, help="along a side")
    parser.add_argument("--sides", type=int, nargs="+", default=[15, 20])
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument(
        "--draws", type=int, default=8000, help="at a point of the grid"
    )
    parser.add_argument("--keep", help="file for the weights and the map")
    return parser.parse_args(arguments)


def main():
    options = parse()
    data = gp.datasets.pines(options.cells)
    variances, lengthscales = np.geomspace(0.35, 2.2, 5), np.geomspace(0.22, 0.8, 6)
    with jax.enable_x64(True), single_threaded_lapack():
        weights, full, sizes = on_grid(data, variances, lengthscales, options.draws)
    if options.keep:
        np.savez(options.keep, weights=weights, map=full)
    fewest = sizes[weights > 0.01].min()
    print(f"effective draws where the weight is above 0.01: {fewest:.0f} or more")
    print("weights of the lengthscales:", np.round(weights.sum(0), 3))
    print("weights of the variances:", np.round(weights.sum(1), 3))
    print("       variance  lengthscale  ESS  correlation  largest relative difference")
    print(
        f"full{weights.sum(1) @ variances:11.3f}{weights.sum(0) @ lengthscales:13.3f}",
        flush=True,
    )
    for side in options.sides:
        sparse, (variance, lengthscale), size = sampled(data, side, options)
        correlation = np.corrcoef(sparse, full)[0, 1]
        gap = np.max(np.abs(sparse - full) / full)
        print(
            f"{side:2d}²{variance:12.3f}{lengthscale:13.3f}{size:5.0f}"
            f"{correlation:13.4f}{gap:11.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
