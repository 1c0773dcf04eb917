"""Scots pines on a map: sparse against full (Hensman et al. 2015, section 5.3).

    python benchmarks/papers/pines.py --cells 32 [--full] [--samples 1000]

A log Gaussian Cox process on a grid of cells over 10 m by 10 m, RBF with one
lengthscale, Gamma(1.75, 1) on it and Gamma(1.2, 1) on the variance. Sparse: 15 × 15
inducing inputs, a Gaussian fit, then HMC from it. Full: f = L v at all cells (L Lᵀ =
k(x, x), jitter 1e-3), HMC from a random start. Seconds by effective draw of the slowest
parameter, warm-up and compilation apart, and with ``--full`` how well the maps of the
posterior mean of the intensity agree. Published: 3.4 s (sparse, 32 × 32), 4.7 s
(sparse, 64 × 64), 554 s (full, 32 × 32).
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp
from svgp_ppl.diagnostics import ess, group, rhat
from svgp_ppl.linalg import cholesky, single_threaded_lapack


def kernel():
    """RBF, its values from their priors."""
    variance = numpyro.sample("variance", dist.Gamma(1.2, 1.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.75, 1.0))
    return gp.kernels.RBF(variance, lengthscale)


def sparse_model(z_start, area: float):
    """The sparse process."""

    def model(x, y=None):
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", kernel(), z)
        with numpyro.plate("cells", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(area), f(x), obs=y)

    return model


def full_model(area: float):
    """The process at all cells, whitened."""

    def model(x, y=None):
        scale_tril = cholesky(kernel()(x), 1e-3)
        v = numpyro.sample("v", dist.Normal(jnp.zeros(len(x)), 1.0).to_event(1))
        f = numpyro.deterministic("f", scale_tril @ v)
        with numpyro.plate("cells", len(x)):
            numpyro.sample("y", dist.Poisson(area * jnp.exp(f)), obs=y)

    return model


def report(name: str, draws, names) -> None:
    """A line: time and mixing over the parameters of these names."""
    held = group(draws, "posterior")
    sizes = ess({n: held[n] for n in names})
    smallest = min(float(np.min(v)) for v in sizes.values())
    worst = max(float(np.max(v)) for v in rhat({n: held[n] for n in names}).values())
    attributes = draws["posterior"].attrs
    seconds = attributes["sampling_seconds"]
    gradients = attributes["num_gradients"] / held["variance"].size
    print(
        f"{name:8s}{seconds:9.1f}{gradients:12.1f}{smallest:9.0f}{worst:8.3f}"
        f"{seconds / smallest:17.3f}",
        flush=True,
    )


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description="Scots pines, sparse and full.")
    parser.add_argument("--cells", type=int, default=32, help="along a side")
    parser.add_argument("--side", type=int, default=15, help="inducing inputs a side")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--steps", type=int, default=1000, help="of the Gaussian fit")
    parser.add_argument("--warmup", type=int, default=900)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--full-warmup", type=int, default=300)
    parser.add_argument("--full-samples", type=int, default=300)
    parser.add_argument("--chains", type=int, default=2)
    return parser.parse_args(arguments)


def main():
    options = parse()
    data = gp.datasets.pines(options.cells)
    x, y = jnp.asarray(data.x, jnp.float32), jnp.asarray(data.y)
    side = (np.arange(options.side) + 0.5) * 10.0 / options.side
    z = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    sampler = gp.mcmc.HMC(step_size_bounds=(0.02, 0.5), max_steps_bounds=(5, 40))
    print("scheme    seconds  gradients      ESS   R-hat  seconds an ESS")
    with single_threaded_lapack():
        hybrid = gp.fit_and_sample(
            random.key(0),
            sparse_model(z.astype(np.float32), data.area),
            x,
            y,
            fit_options={"optimizer": optax.adam(0.02), "num_steps": options.steps},
            sampler=sampler,
            num_chains=options.chains,
            num_warmup=options.warmup,
            num_samples=options.samples,
            progress=False,
        )
    report("sparse", hybrid.draws, ("f", "variance", "lengthscale"))
    if not options.full:
        return
    held = group(hybrid.draws, "posterior")
    with single_threaded_lapack():
        draws = gp.sample(
            random.key(1),
            full_model(data.area),
            x,
            y,
            sampler=sampler,
            num_chains=options.chains,
            num_warmup=options.full_warmup,
            num_samples=options.full_samples,
            progress=True,
        )
    report("full", draws, ("v", "variance", "lengthscale"))
    full = np.exp(group(draws, "posterior")["f"]).mean((0, 1))
    at = hybrid.predict(x)["y"]
    sparse = np.asarray(at.mean) / data.area
    error = np.max(np.abs(sparse - full) / full)
    correlation = np.corrcoef(sparse, full)[0, 1]
    print(
        f"maps: correlation {correlation:.4f}, largest relative difference {error:.3f}"
    )
    print(f"hyperparameters, sparse: {[float(held[n].mean()) for n in NAMES]}")
    held = group(draws, "posterior")
    print(f"hyperparameters, full:   {[float(held[n].mean()) for n in NAMES]}")


NAMES = ("variance", "lengthscale")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", False)
    main()
