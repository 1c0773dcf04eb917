"""Effective draws a second and a gradient: every sampler on the same models.

    python benchmarks/speed/samplers.py coal [--samplers NUTS HMC ...] [--x64]
    python benchmarks/speed/samplers.py image --samplers NUTS- numpyro

Four chains from the same Gaussian fit. ``+`` marks chains that move in the coordinates
of the fit (``precondition=True``), ``-`` those that do not. ``numpyro`` is
``numpyro.infer.MCMC(NUTS(model))`` on the same model with z frozen, from draws of the
same fit. ``unwhitened`` is NUTS on u = L v in the place of v. ``--beside`` adds draws
of ``gpflow_sgpmc.py``. The effective sample size is ArviZ's (bulk), the smallest over
all parameters and in the median, over all chains; warm-up and compilation are not in
the seconds.
"""

import argparse
import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.handlers import block, substitute, trace
from numpyro.infer import MCMC
from numpyro.infer import NUTS as NumPyroNUTS

import svgp_ppl as gp
from svgp_ppl.__main__ import coal_model
from svgp_ppl.diagnostics import ess, group, rhat, to_arviz
from svgp_ppl.linalg import cholesky, single_threaded_lapack, solve_lower
from svgp_ppl.mcmc.target import make_target

SAMPLERS = {
    "NUTS+": (gp.mcmc.NUTS(), True),
    "NUTS-": (gp.mcmc.NUTS(), False),
    "dense+": (gp.mcmc.NUTS(metric="dense"), True),
    "HMC+": (gp.mcmc.HMC(), True),
    "HMC-": (gp.mcmc.HMC(), False),
    "ChEES+": (gp.mcmc.ChEES(), True),
    "ChEES-": (gp.mcmc.ChEES(), False),
    "MCLMC+": (gp.mcmc.MCLMC(), True),
    "MCLMC-": (gp.mcmc.MCLMC(), False),
    "Gibbs": (gp.mcmc.Gibbs(), False),
    "slices": (gp.mcmc.Gibbs("elliptical_slice"), False),
    "numpyro": (None, False),
    "unwhitened": (gp.mcmc.NUTS(), False),
}
# Shape and rate of the variance, of the lengthscale.
PRIORS = {"coal": ((1.0, 0.3), (1.1, 0.1)), "image": ((1.1, 1.0), (1.1, 1.0))}
LIKELIHOODS = {
    "coal": gp.likelihoods.Poisson(),
    "image": gp.likelihoods.Bernoulli("probit"),
}


def image_model(z_start):
    """Labels of image segments (Rätsch), RBF with one lengthscale, probit link."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(1.1, 1.0))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.1, 1.0))
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z_start))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Bernoulli("probit"), f(x), obs=y)

    return model


def problem(name: str, m: int):
    """Model and data."""
    if name == "coal":
        data = gp.datasets.coal()
        return coal_model(gp.inducing.grid(data.x, m)), data.x, data.y
    data = gp.datasets.image()
    return image_model(gp.inducing.kmeans(data.x, m)), data.x, data.y


def through_numpyro(key, model, fit, x, y, options):
    """Draws by NumPyro's own sampler, with its seconds and gradients."""
    to_target, to_start, to_warm_up, to_compile, to_draw = random.split(key, 5)
    held = substitute(model, data={"z": fit.params["z"]})
    target = make_target(to_target, model, (x, y), {}, fit.params)
    start = target.positions_from(to_start, fit.guide, fit.params, options.chains)
    mcmc = MCMC(
        NumPyroNUTS(held),
        num_warmup=options.warmup,
        num_samples=options.samples,
        num_chains=options.chains,
        chain_method="vectorized",
        progress_bar=True,
    )
    mcmc.warmup(to_warm_up, x, y, init_params=start)
    fields = ("num_steps", "diverging")
    mcmc.run(to_compile, x, y, extra_fields=fields)
    began = time.perf_counter()
    mcmc.run(to_draw, x, y, extra_fields=fields)
    seconds = time.perf_counter() - began
    extra = mcmc.get_extra_fields(group_by_chain=True)
    return to_arviz(
        mcmc.get_samples(group_by_chain=True),
        sample_stats={
            "n_steps": np.asarray(extra["num_steps"]),
            "diverging": np.asarray(extra["diverging"]),
        },
        attrs={
            "sampling_seconds": seconds,
            "num_gradients": int(np.sum(extra["num_steps"])),
        },
    )


def unwhitened(name: str, fit):
    """The model of u = L v with z of the fit, and where it starts: a guide.

    p(u | θ) = N(L⁻¹ u; 0, I) / |L|.
    """
    z = fit.params["z"]

    def process(x, take):
        sites = zip(("variance", "lengthscale"), PRIORS[name], strict=True)
        values = {n: numpyro.sample(n, dist.Gamma(*prior)) for n, prior in sites}
        kernel = gp.kernels.RBF(**values)
        scale_tril = cholesky(kernel(jnp.asarray(z, x.dtype)))
        return kernel, scale_tril, take(scale_tril)

    def model(x, y=None):
        flat = dist.Normal().expand((len(z),)).to_event(1).mask(False)
        kernel, scale_tril, u = process(x, lambda _: numpyro.sample("u", flat))
        v = solve_lower(scale_tril, u[:, None])[:, 0]
        log_volume = jnp.sum(jnp.log(jnp.diagonal(scale_tril)))
        numpyro.factor("prior", dist.Normal().log_prob(v).sum() - log_volume)
        with block(hide=["f"]), substitute(data={"f": v}):
            f = gp.sparse_gp("f", kernel, jnp.asarray(z, x.dtype))
        with numpyro.plate("data", len(x)):
            gp.observe("y", LIKELIHOODS[name], f(x), obs=y)

    def guide(x, y=None):
        held = substitute(fit.guide, data=dict(fit.params))
        with block():
            values = {n: s["value"] for n, s in trace(held).get_trace(x, y).items()}
        v = values.pop("f")
        with substitute(data=values):
            process(x, lambda factor: numpyro.sample("u", dist.Delta(factor @ v)))

    return model, guide


def exported(path: str, name: str, model, fit, x, y) -> None:
    """The problem and the start of a chain, for samplers of other libraries."""
    target = make_target(random.key(1), model, (x, y), {}, fit.params)
    start = target.positions_from(random.key(2), fit.guide, fit.params, 1)
    values = target.constrain({n: v[0] for n, v in start.items()}, target.data)
    np.savez(
        path,
        x=np.asarray(x),
        y=np.asarray(y),
        z=np.asarray(fit.params["z"]),
        v=np.asarray(values["f"]),
        variance=float(values["variance"]),
        lengthscale=float(values["lengthscale"]),
        priors=PRIORS[name],
        likelihood="poisson" if name == "coal" else "probit",
    )


def loaded(path: str):
    """Draws of one chain of another library."""
    with np.load(path) as held:
        return to_arviz(
            {n: held[n][None] for n in ("v", "variance", "lengthscale")},
            sample_stats={"n_steps": held["n_steps"][None]},
            attrs={
                "sampling_seconds": float(held["seconds"]),
                "num_gradients": int(held["num_gradients"]),
            },
        )


def report(name: str, draws) -> None:
    """A line of the table."""
    sizes = np.concatenate([np.ravel(v) for v in ess(draws).values()])
    worst = max(float(np.max(v)) for v in rhat(draws).values())
    attributes = draws["posterior"].attrs
    seconds, gradients = attributes["sampling_seconds"], attributes["num_gradients"]
    stats = group(draws, "sample_stats")
    divergences = int(stats["diverging"].sum()) if "diverging" in stats else 0
    per_gradient = 1000 * sizes.min() / gradients if gradients else float("nan")
    print(
        f"{name:8s}{sizes.min():9.0f}{np.median(sizes):9.0f}{worst:8.3f}{seconds:9.2f}"
        f"{sizes.min() / seconds:10.1f}{np.median(sizes) / seconds:10.1f}"
        f"{per_gradient:12.2f}{gradients / stats['n_steps'].size:10.1f}"
        f"{divergences:6d}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="coal", choices=["coal", "image"])
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS))
    parser.add_argument("--m", type=int)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3000, help="of the fit")
    parser.add_argument("--warmup", type=int, default=900)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of chains")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--export", help="write the problem for gpflow_sgpmc.py, only")
    parser.add_argument("--beside", nargs="+", default=[], help="draws of it")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    m = options.m or (30 if options.name == "coal" else 100)
    model, x, y = problem(options.name, m)
    x, y = jnp.asarray(x, jnp.result_type(float)), jnp.asarray(y)
    guide = gp.AutoGaussian(model)
    optimizer = optax.adam(0.02)
    fit = gp.fit(
        random.key(0), model, guide, x, y, optimizer=optimizer, num_steps=options.steps
    )
    if options.export:
        exported(options.export, options.name, model, fit, x, y)
        return
    print(
        "sampler  ESS, min   median   R-hat  seconds  min/s     median/s  min/1000 grad"
        "  grad/draw  divergences"
    )
    for seed, name in itertools.product(options.seeds, options.samplers):
        key = random.key(seed)
        sampler, precondition = SAMPLERS[name]
        with single_threaded_lapack():
            if name == "numpyro":
                draws = through_numpyro(key, model, fit, x, y, options)
            else:
                whole, start = model, fit
                if name == "unwhitened":
                    whole, guide = unwhitened(options.name, fit)
                    start = (guide, {})
                draws = gp.sample(
                    key,
                    whole,
                    x,
                    y,
                    sampler=sampler,
                    init=start,
                    precondition=precondition,
                    num_chains=options.chains,
                    num_warmup=options.warmup,
                    num_samples=options.samples,
                    progress=False,
                )
        report(name, draws)
    for path in options.beside:
        report(path, loaded(path))


if __name__ == "__main__":
    main()
