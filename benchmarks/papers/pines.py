"""Scots pines on a map: sparse against full (Hensman et al. 2015, section 5.3).

    python benchmarks/papers/pines.py --cells 32 [--full] [--samples 1000]

A log Gaussian Cox process on a grid of cells over 10 m by 10 m, RBF with one
lengthscale, Gamma(1.75, 1) on it and Gamma(1.2, 1) on the variance. Sparse: 15 × 15
inducing inputs, a Gaussian fit, then HMC (or ``--sampler NUTS``) from it. Full: f =
L v at all cells (L Lᵀ = k(x, x), jitter 1e-3), from where the fit has them. The steps
of HMC are tuned (those of the released code, 0.125 and 0.1, up to 20 of them, are
mostly refused: acceptance 0.16 and 0.00, with hyperparameters on a log scale). Seconds
by effective draw of the slowest parameter: gradients by effective draw times the time
of a gradient, which is measured for both schemes in turn, at the end. With ``--full``
how well the maps of the posterior mean of the intensity agree. Published: 3.4 s
(sparse, 32 × 32), 4.7 s (sparse, 64 × 64), 554 s (full, 32 × 32).
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

import svgp_ppl as gp
from svgp_ppl.diagnostics import ess, group, rhat
from svgp_ppl.linalg import cholesky, single_threaded_lapack, solve_lower
from svgp_ppl.mcmc.target import Target

PRIORS = {"variance": dist.Gamma(1.2, 1.0), "lengthscale": dist.Gamma(1.75, 1.0)}
NAMES = tuple(PRIORS)
SAMPLERS = {
    "NUTS": {"sparse": gp.mcmc.NUTS(), "full": gp.mcmc.NUTS()},
    "HMC": {
        "sparse": gp.mcmc.HMC((0.02, 0.3), (10, 40), num_rounds=15),
        "full": gp.mcmc.HMC((0.01, 0.15), (10, 30), num_rounds=10),
    },
}


def kernel():
    """RBF, its values from their priors."""
    return gp.kernels.RBF(**{n: numpyro.sample(n, p) for n, p in PRIORS.items()})


def inducing_inputs(side: int):
    """Middles of side² cells of the map, [M, 2]."""
    middle = (np.arange(side) + 0.5) * 10.0 / side
    z = np.stack(np.meshgrid(middle, middle, indexing="ij"), axis=-1)
    return z.reshape(-1, 2).astype(np.float32)


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


def report(name: str, draws) -> float:
    """A line: time and mixing of all parameters; gradients by effective draw."""
    held = group(draws, "posterior")
    values = {n: held[n] for n in ("f", "variance", "lengthscale")}
    smallest = min(float(np.min(v)) for v in ess(values).values())
    worst = max(float(np.max(v)) for v in rhat(values).values())
    attributes = draws["posterior"].attrs
    gradients = attributes["num_gradients"]
    accepted = group(draws, "sample_stats")["acceptance_rate"].mean()
    print(
        f"{name:8s}{attributes['sampling_seconds']:9.1f}"
        f"{gradients / held['variance'].size:12.1f}{smallest:9.0f}{worst:8.3f}"
        f"{accepted:10.2f}{gradients / smallest:18.1f}",
        flush=True,
    )
    return gradients / smallest


def gradient_of(model, x, y, params):
    """A call that evaluates the gradient of one chain once."""
    target = Target(random.key(2), model, (x, y), {}, params)
    positions = target.initial_positions(random.key(3), 1)
    position = {name: values[0] for name, values in positions.items()}
    function = jax.jit(jax.value_and_grad(target.logdensity_fn))
    return lambda: jax.block_until_ready(function(position, target.data))


def seconds_in_turn(calls, num_rounds: int = 30) -> list[float]:
    """Median time of each call, all of them measured in turn."""
    taken = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(num_rounds):
        for times, call in zip(taken, calls, strict=True):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
    return [float(np.median(times)) for times in taken]


def compared(hybrid, x, y, area: float, options) -> float:
    """Sample the full model and compare the maps; gradients by effective draw."""
    at_fit = gp.predict(hybrid.model, hybrid.fit, x)["y"].latent_mean

    def start(x, y=None):
        """The hyperparameters of the fit, v = L⁻¹ f with f its latent mean."""
        values = {n: hybrid.fit.params[f"{n}_auto_loc"] for n in NAMES}
        for name, value in values.items():
            numpyro.sample(name, dist.Delta(value))
        scale_tril = cholesky(gp.kernels.RBF(**values)(x), 1e-3)
        v = solve_lower(scale_tril, at_fit[:, None])[:, 0]
        numpyro.sample("v", dist.Delta(v, event_dim=1))

    with single_threaded_lapack():
        draws = gp.sample(
            random.key(1),
            full_model(area),
            x,
            y,
            sampler=SAMPLERS[options.sampler]["full"],
            init=(start, {}),
            num_chains=options.chains,
            num_warmup=options.full_warmup,
            num_samples=options.full_samples,
        )
    gradients = report("full", draws)
    dense = np.exp(group(draws, "posterior")["f"]).mean((0, 1))
    sparse = np.asarray(hybrid.predict(x)["y"].mean) / area
    error = np.max(np.abs(sparse - dense) / dense)
    correlation = np.corrcoef(sparse, dense)[0, 1]
    print(f"maps: correlation {correlation:.4f}, largest relative gap {error:.3f}")
    for name, held in (("sparse", hybrid.draws), ("full", draws)):
        posterior = group(held, "posterior")
        print(f"{name}: {[f'{n} {posterior[n].mean():.3f}' for n in NAMES]}")
    return gradients


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description="Scots pines, sparse and full.")
    parser.add_argument("--cells", type=int, default=32, help="along a side")
    parser.add_argument("--side", type=int, default=15, help="inducing inputs a side")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--sampler", default="HMC", choices=list(SAMPLERS))
    parser.add_argument("--steps", type=int, default=5000, help="of the Gaussian fit")
    parser.add_argument("--warmup", type=int, default=450)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--full-warmup", type=int, default=100)
    parser.add_argument("--full-samples", type=int, default=200)
    parser.add_argument("--chains", type=int, default=2)
    return parser.parse_args(arguments)


def main():
    options = parse()
    data = gp.datasets.pines(options.cells)
    x, y = jnp.asarray(data.x, jnp.float32), jnp.asarray(data.y)
    print(
        "scheme    seconds   gradients     ESS   R-hat  accepted  gradients an ESS\n"
        "            (all)      a draw"
    )
    sparse = sparse_model(inducing_inputs(options.side), data.area)
    with single_threaded_lapack():
        hybrid = gp.fit_and_sample(
            random.key(0),
            sparse,
            x,
            y,
            fit_options={"optimizer": optax.adam(0.02), "num_steps": options.steps},
            sampler=SAMPLERS[options.sampler]["sparse"],
            num_chains=options.chains,
            num_warmup=options.warmup,
            num_samples=options.samples,
            progress=False,
        )
    each = [report("sparse", hybrid.draws)]
    calls = [gradient_of(sparse, x, y, hybrid.fit.params)]
    if options.full:
        each.append(compared(hybrid, x, y, data.area, options))
        calls.append(gradient_of(full_model(data.area), x, y, {}))
    with single_threaded_lapack():
        seconds = seconds_in_turn(calls)
    for name, gradients, one in zip(("sparse", "full"), each, seconds, strict=False):
        print(
            f"{name:8s}{1000 * one:8.2f} ms a gradient, "
            f"{gradients * one:.3f} s an effective draw"
        )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", False)
    main()
