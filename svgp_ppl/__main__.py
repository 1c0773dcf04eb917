"""The main job: coal-mining disasters as a log Gaussian Cox process, start to finish.

Gaussian approximation by SVI, hybrid HMC over v and the hyperparameters started from it
(Hensman et al. 2015), an ArviZ summary, a figure.
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random

import svgp_ppl as gp
from svgp_ppl.diagnostics import group, rhat, summary
from svgp_ppl.plots import density, function_band, subplots

_PROBABILITIES = jnp.array([0.05, 0.5, 0.95])


def main(argv: list[str] | None = None) -> None:
    """Run the job with the command-line arguments."""
    options = _options(argv)
    data = gp.datasets.coal()
    model = coal_model(gp.inducing.grid(data.x, options.m))
    key = random.key(options.seed)
    key_fit, key_sample, key_from_fit, key_from_draws = random.split(key, 4)

    print(f"{int(data.y.sum())} disasters in {len(data.y)} years, M = {options.m}")
    guide = gp.AutoGaussian(model)
    fit = gp.fit(key_fit, model, guide, data.x, data.y, num_steps=3000)
    draws = gp.sample(
        key_sample,
        model,
        data.x,
        data.y,
        # The variance has a heavy tail, which needs smaller steps than usual.
        sampler=gp.mcmc.NUTS(target_acceptance_rate=0.9),
        init=fit,
        num_chains=options.chains,
        num_warmup=300,
        num_samples=options.samples,
    )
    print("\nGaussian approximation (hyperparameters at their posterior mode)")
    point = {n: float(fit.params[f"{n}_auto_loc"]) for n in _HYPERPARAMETERS}
    print("\n".join(f"{name:12s} {value:.3f}" for name, value in point.items()))
    print("\nHybrid HMC")
    print(summary(draws, list(_HYPERPARAMETERS)).to_string())
    stats = group(draws, "sample_stats")
    worst = max(float(np.max(value)) for value in rhat(draws).values())
    print(
        f"divergences {int(stats['diverging'].sum())}, largest R-hat {worst:.3f} "
        "(over v too)"
    )
    bands = {
        "Gaussian": _intensity(model, fit, data, key_from_fit),
        "HMC": _intensity(model, draws, data, key_from_draws),
    }
    figure = _figure(data, bands, point, group(draws, "posterior"))
    figure.savefig(options.output, dpi=150)
    print(f"figure: {options.output}")


_HYPERPARAMETERS = {"lengthscale": "years", "variance": "of the log intensity"}


def coal_model(z_start):
    """The model: y_n ~ Poisson(exp(f(x_n))), priors as in Hensman et al. (2015)."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(1.0, 0.3))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.1, 0.1))
        kernel = gp.kernels.RBF(variance=variance, lengthscale=lengthscale)
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", kernel, z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    return model


def _intensity(model, posterior, data, key):
    """Quantiles of the intensity exp(f) at the years, [3, N]."""
    prediction = gp.predict(model, posterior, data.x)["y"]
    draws = jnp.exp(prediction.sample_latent(key, 8000))
    return jnp.quantile(draws, _PROBABILITIES, axis=0)


def _figure(data, bands, point, posterior):
    figure, axes = subplots(1, 3, figsize=(13, 4), width_ratios=[2.2, 1, 1])
    left, *right = axes
    left.bar(data.x[:, 0], data.y, width=data.width, color="0.85", label="disasters")
    for name, (low, middle, high) in bands.items():
        function_band(data.x, low, middle, high, ax=left, label=f"{name}, 90 % band")
    left.set(xlabel="year", ylabel="disasters a year", xlim=(1850, 1963))
    left.legend()
    for axis, (name, unit) in zip(right, _HYPERPARAMETERS.items()):
        density(posterior[name], ax=axis, label="HMC", color="C1")
        axis.axvline(point[name], color="C0", linestyle="--", label="Gaussian (mode)")
        axis.set(xlabel=f"{name} / {unit}" if unit == "years" else f"{name} {unit}")
        axis.set(ylabel="posterior density", ylim=(0, None))
        axis.legend(loc="upper right")
    return figure


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m svgp_ppl",
        description="Coal-mining disasters 1851-1962: a sparse log Gaussian Cox "
        "process fitted by variational inference, then sampled by HMC.",
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("coal.png"), help="figure (%(default)s)")
    add("--chains", type=_positive, default=4, help="HMC chains (%(default)s)")
    add(
        "--samples",
        type=_positive,
        default=1000,
        help="draws per chain, after 300 steps of warm-up (%(default)s)",
    )
    add("--seed", type=int, default=0, help="random seed (%(default)s)")
    add("--m", type=_positive, default=30, help="inducing inputs (%(default)s)")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text}")
    return value


if __name__ == "__main__":
    gp.cache_compilations()
    main()
