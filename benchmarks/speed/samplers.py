"""What a user waits for: every sampler on the same models, from the same fit.

    python benchmarks/speed/samplers.py coal [--samplers NUTS+ numpyro ...] [--x64]
    python benchmarks/speed/samplers.py image --samplers NUTS+ NUTS- numpyro

Four chains from the same Gaussian fit. ``+`` marks chains in the coordinates of the
fit, ``-`` those that move the whitened values. ``numpyro`` is
``numpyro.infer.MCMC(NUTS(model))`` on the same model with z frozen, from draws of the
same fit; ``numpyro+`` the same on ``gp.mcmc.reparam_sites(model, fit, ...)``; ``hsgp``
NumPyro's on its Hilbert space approximation (coal only). ``importance`` is
``gp.importance_sample``, whose effective sample size is that of its weights.
``unwhitened`` is NUTS on
u = L v in the place of v. ``--beside`` adds draws of ``gpflow_sgpmc.py``.

``to 400`` is the time from the call to 400 effective draws of the slowest parameter:
compilation, warm-up, and that part of the sampling. The effective sample size is
ArviZ's (bulk), the smallest over all parameters and in the median.
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
from numpyro.contrib.hsgp.approximation import hsgp_squared_exponential
from numpyro.handlers import block, substitute, trace
from numpyro.infer import MCMC
from numpyro.infer import NUTS as NumPyroNUTS

import svgp_ppl as gp
from svgp_ppl.__main__ import coal_model
from svgp_ppl.diagnostics import ess, group, rhat, to_arviz
from svgp_ppl.linalg import cholesky, single_threaded_lapack, solve_lower
from svgp_ppl.mcmc.target import Target

SAMPLERS = {
    "NUTS+": (gp.mcmc.NUTS(), "fitted"),
    "NUTS-": (gp.mcmc.NUTS(), "whitened"),
    "HMC+": (gp.mcmc.HMC(), "fitted"),
    "HMC-": (gp.mcmc.HMC(), "whitened"),
    "ChEES+": (gp.mcmc.ChEES(), "fitted"),
    "ChEES-": (gp.mcmc.ChEES(), "whitened"),
    "MCLMC+": (gp.mcmc.MCLMC(), "fitted"),
    "MCLMC-": (gp.mcmc.MCLMC(), "whitened"),
    "Gibbs": (gp.mcmc.Gibbs(), "whitened"),
    "slices": (gp.mcmc.Gibbs("elliptical_slice"), "whitened"),
    "importance": (None, None),
    "numpyro": (None, None),
    "numpyro+": (None, None),
    "hsgp": (None, None),
    "unwhitened": (gp.mcmc.NUTS(), "whitened"),
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


def through_numpyro(key, model, x, y, options, start=None):
    """Draws by NumPyro's own sampler, with its seconds and gradients."""
    mcmc = MCMC(
        NumPyroNUTS(model),
        num_warmup=options.warmup,
        num_samples=options.samples,
        num_chains=options.chains,
        chain_method="vectorized",
        progress_bar=True,
    )
    fields = ("num_steps", "diverging")
    to_warm_up, to_draw, to_draw_again = random.split(key, 3)
    began = time.perf_counter()
    mcmc.warmup(to_warm_up, x, y, init_params=start)
    mcmc.run(to_draw, x, y, extra_fields=fields)
    whole = time.perf_counter() - began
    began = time.perf_counter()
    mcmc.run(to_draw_again, x, y, extra_fields=fields)
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
    ), whole


def of_numpyro(name: str, key, model, fit, x, y, options):
    """The same for a model of ours, a reparameterised one, or NumPyro's own."""
    if name == "hsgp":
        return through_numpyro(key, hsgp_model, x, y, options)
    if name == "numpyro+":
        moved = gp.mcmc.reparam_sites(model, fit, x, y)
        return through_numpyro(key, moved, x, y, options)
    to_target, to_start, key = random.split(key, 3)
    frozen = substitute(model, data={"z": fit.params["z"]})
    target = Target(to_target, model, (x, y), {}, fit.params)
    start = target.positions_from(to_start, fit.guide, fit.params, options.chains)
    return through_numpyro(key, frozen, x, y, options, start)


def hsgp_model(x, y=None):
    """Coal by a Hilbert space approximation of the same process and priors."""
    (a, b), (c, d) = PRIORS["coal"]
    variance = numpyro.sample("variance", dist.Gamma(a, b))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(c, d))
    middle = (jnp.max(x) + jnp.min(x)) / 2
    half = 1.5 * (np.max(x) - np.min(x)) / 2
    f = hsgp_squared_exponential(
        x - middle, jnp.sqrt(variance), lengthscale, half, 30, non_centered=True
    )
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(f)), obs=y)


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
    target = Target(random.key(1), model, (x, y), {}, fit.params)
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


def report(name: str, draws, whole: float = float("nan")) -> None:
    """A line of the table; ``whole`` is how long the call took."""
    attributes = draws["posterior"].attrs
    sizes = np.concatenate([np.ravel(v) for v in ess(draws).values()])
    sizes = np.minimum(sizes, attributes.get("effective_sample_size", np.inf))
    worst = max(float(np.max(v)) for v in rhat(draws).values())
    seconds, gradients = attributes["sampling_seconds"], attributes["num_gradients"]
    stats = group(draws, "sample_stats")
    divergences = int(stats["diverging"].sum()) if "diverging" in stats else 0
    steps = stats["n_steps"].size if gradients else 1
    per_gradient = 1000 * sizes.min() / gradients if gradients else float("nan")
    to_400 = whole - seconds + seconds * 400 / sizes.min()
    print(
        f"{name:10s}{sizes.min():9.0f}{np.median(sizes):9.0f}{worst:8.3f}{whole:9.1f}"
        f"{seconds:9.2f}{to_400:9.1f}{sizes.min() / seconds:10.1f}"
        f"{np.median(sizes) / seconds:10.1f}{per_gradient:12.2f}"
        f"{gradients / steps:10.1f}{divergences:6d}",
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
        "sampler    ESS, min   median   R-hat     call sampling   to 400     min/s  "
        "median/s  min/1000 grad grad/draw  div"
    )
    for seed, name in itertools.product(options.seeds, options.samplers):
        key = random.key(seed)
        sampler, coordinates = SAMPLERS[name]
        with single_threaded_lapack():
            if name == "importance":
                began = time.perf_counter()
                number = {"num_chains": options.chains, "num_samples": options.samples}
                draws = gp.importance_sample(key, model, x, y, init=fit, **number)
                whole = time.perf_counter() - began
            elif sampler is None:
                draws, whole = of_numpyro(name, key, model, fit, x, y, options)
            else:
                whole_model, start = model, fit
                if name == "unwhitened":
                    whole_model, guide = unwhitened(options.name, fit)
                    start = (guide, {})
                began = time.perf_counter()
                draws = gp.sample(
                    key,
                    whole_model,
                    x,
                    y,
                    sampler=sampler,
                    init=start,
                    coordinates=coordinates,
                    num_chains=options.chains,
                    num_warmup=options.warmup,
                    num_samples=options.samples,
                    progress=False,
                )
                whole = time.perf_counter() - began
        report(name, draws, whole)
    for path in options.beside:
        report(path, loaded(path))


if __name__ == "__main__":
    main()
