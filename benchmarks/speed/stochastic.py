"""Stochastic gradients against NUTS on all data: time of a step, error of draws.

Generated counts: f is a sum of waves in D inputs, y ~ Poisson(exp f); RBF with a
variance and one lengthscale, frozen at the fit or sampled (--hyperparameters), M
inducing inputs by k-means, z frozen at a Gaussian fit on minibatches. Every sampler
starts from that fit. Prints, for each sampler, the milliseconds of a gradient of one
chain (four run side by side), seconds of warm-up and sampling, the effective draws of
the slowest parameter, R-hat, and against NUTS on all data: errors of the posterior
means in posterior standard deviations and ratios of standard deviations. The first line
is the second half of NUTS against the first: what the length of its chains alone
explains. While hyperparameters are frozen, NUTS projects all data once and for all.

    python benchmarks/speed/stochastic.py [--n 20000] [--m 50] [--b 1000] [--d 2]
    python benchmarks/speed/stochastic.py --n 100000 --only-time
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
from numpyro.distributions import constraints

import svgp_ppl as gp
from svgp_ppl.diagnostics import ess, group, rhat
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.target import Target

SAMPLERS = {
    "SGHMC+": (gp.mcmc.SGHMC(), "fitted"),
    "SGHMC+ half step": (gp.mcmc.SGHMC(step_size=0.05, num_steps_a_draw=20), "fitted"),
    "SGHMC+ plain": (gp.mcmc.SGHMC(control_variates=False), "fitted"),
    "SGLD+": (gp.mcmc.SGLD(), "fitted"),
    "SGLD+ plain": (gp.mcmc.SGLD(control_variates=False), "fitted"),
    "SGHMC-": (gp.mcmc.SGHMC(), "whitened"),
    "SGLD-": (gp.mcmc.SGLD(), "whitened"),
}
CHAINS = 4


def generated(n, d):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, size=(n, d))
    f = np.sin(2 * x).sum(1) + np.cos(x.sum(1))
    return jnp.asarray(x, jnp.float32), jnp.asarray(rng.poisson(np.exp(f)))


def model_from(z_start, chunk_size, hyperparameters):
    def model(x, y=None, batches=None):
        if hyperparameters:
            variance = numpyro.sample("variance", dist.Gamma(2.0, 1.0))
            lengthscale = numpyro.sample("lengthscale", dist.Gamma(2.0, 1.0))
        else:
            positive = {"constraint": constraints.softplus_positive}
            variance = numpyro.param("variance", 1.0, **positive)
            lengthscale = numpyro.param("lengthscale", 1.0, **positive)
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z_start))
        with numpyro.plate("data", len(x), subsample_size=batches) as rows:
            here = None if y is None else y[rows]
            likelihood = gp.likelihoods.Poisson()
            gp.observe("y", likelihood, f(x[rows]), obs=here, chunk_size=chunk_size)

    return model


def time_of_gradients(model, fit, x, y, b):
    """Milliseconds of a gradient over all data and over a batch, with and without."""
    target = Target(
        random.key(1), model, (x, y), {"batches": b}, fit.params, minibatches=True
    )
    start = target.positions_from(random.key(2), fit.guide, fit.params, CHAINS)
    keys = random.split(random.key(3), CHAINS)
    whole = jax.jit(jax.vmap(jax.grad(target.logdensity_fn), (0, None)))
    batch = jax.jit(jax.vmap(jax.grad(target.logdensity_fn), (0, None, 0)))
    for name, run in (
        ("all data", lambda: whole(start, target.data)),
        (f"batch of {b}", lambda: batch(start, target.data, keys)),
    ):
        jax.block_until_ready(run())
        times = []
        for _ in range(10):
            began = time.perf_counter()
            jax.block_until_ready(run())
            times.append(time.perf_counter() - began)
        print(f"gradient, {name:16s}{1e3 * np.median(times) / CHAINS:10.2f} ms a chain")


def moments(draws, half=slice(None)):
    """Means and standard deviations of all parameters, hyperparameters in logs."""
    columns = {
        name: np.log(v) if name in ("variance", "lengthscale") else v
        for name, v in group(draws, "posterior").items()
    }
    rows = [v[:, half].reshape(-1, int(np.prod(v.shape[2:]))) for v in columns.values()]
    flat = np.concatenate(rows, axis=1)
    return flat.mean(0), flat.std(0)


def line(name, draws, reference, got=None):
    mean, sd = moments(draws) if got is None else got
    error, ratio = (mean - reference[0]) / reference[1], sd / reference[1]
    attributes, stats = draws["posterior"].attrs, group(draws, "sample_stats")
    per_gradient = attributes["sampling_seconds"] / attributes["num_gradients"]
    noise = stats["gradient_noise"].mean() if "gradient_noise" in stats else np.nan
    print(
        f"{name:18s}{1e3 * per_gradient:8.2f}{attributes['warmup_seconds']:8.1f}"
        f"{attributes['sampling_seconds']:8.1f}"
        f"{min(float(np.min(v)) for v in ess(draws).values()):8.0f}"
        f"{max(float(np.max(v)) for v in rhat(draws).values()):8.3f}"
        f"{np.sqrt(np.mean(error**2)):9.3f}{np.abs(error).max():9.3f}"
        f"{np.median(ratio):9.3f}{ratio.min():8.3f}{ratio.max():8.3f}"
        f"{noise:8.3f}{int(stats['diverging'].sum()):6d}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--m", type=int, default=50)
    parser.add_argument("--d", type=int, default=2)
    parser.add_argument("--b", type=int, default=1000)
    parser.add_argument("--fit-steps", type=int, default=2000)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--nuts", type=int, default=300)
    parser.add_argument("--samplers", nargs="*", default=list(SAMPLERS))
    parser.add_argument("--only-time", action="store_true")
    parser.add_argument("--hyperparameters", action="store_true")
    options = parser.parse_args()

    x, y = generated(options.n, options.d)
    z_start = gp.inducing.kmeans(np.asarray(x[:10_000]), options.m)
    model = model_from(
        jnp.asarray(z_start, jnp.float32),
        5000 if options.n > 20_000 else None,
        options.hyperparameters,
    )
    guide = gp.AutoGaussian(model)
    began = time.perf_counter()
    # The step size falls to almost nothing: the fit ends at the mode.
    schedule = optax.cosine_decay_schedule(1e-2, options.fit_steps)
    fit = gp.fit(
        random.key(0), model, guide, x, y, batches=options.b,
        optimizer=optax.adam(schedule), num_steps=options.fit_steps, progress=False,
    )  # fmt: skip
    print(f"fit {time.perf_counter() - began:.1f} s")
    time_of_gradients(model, fit, x, y, options.b)
    if options.only_time:
        return
    shared = {"init": fit, "num_chains": CHAINS, "progress": False}
    exact = gp.sample(
        random.key(4), model, x, y, num_warmup=options.nuts,
        num_samples=options.nuts, **shared,
    )  # fmt: skip
    reference = moments(exact)
    lengths = group(exact, "sample_stats")["n_steps"]
    print(f"NUTS takes {lengths.mean():.0f} gradients a draw, {lengths.max()} at most")
    heads = ("ms/grad", "warmup", "seconds", "ESS", "R-hat", "rms err", "max err",
             "sd med", "sd min", "sd max", "noise", "div")  # fmt: skip
    widths = (8, 8, 8, 8, 8, 9, 9, 9, 8, 8, 8, 6)
    print(" " * 18 + "".join(f"{h:>{w}s}" for h, w in zip(heads, widths)))
    half = options.nuts // 2
    first, second = moments(exact, slice(half)), moments(exact, slice(half, None))
    line("NUTS+ half/half", exact, first, second)
    for name in options.samplers:
        sampler, coordinates = SAMPLERS[name]
        draws = gp.sample(
            random.key(5), model, x, y, batches=options.b, sampler=sampler,
            coordinates=coordinates, num_warmup=options.warmup,
            num_samples=options.draws, **shared,
        )  # fmt: skip
        line(name, draws, reference)


if __name__ == "__main__":
    with single_threaded_lapack():
        main()
