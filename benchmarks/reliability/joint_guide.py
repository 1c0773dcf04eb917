"""Posterior sds of the hyperparameters: AutoSites against HMC, and what else there is.

    python benchmarks/reliability/joint_guide.py coal boston banana concrete

For every data set the sd of each unconstrained hyperparameter: by NUTS in the
coordinates of a fit (four chains), and as ratios to it by ``AutoSites``, by
``AutoGaussian(rest=AutoMultivariateNormal)``, whose q(v) stays where it is, and by the
curvature of the log density at the mode (a Laplace approximation at ξ = 0). Pareto k̂ is
that of ``importance_sample`` from each fit, and the sds of its draws follow. For
Gaussian likelihoods also a Gaussian q(θ) with v integrated out: what is lost by sites
that do not follow θ. Data from ``svgp_ppl.datasets``.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal
from numpyro.infer.initialization import init_to_value

import svgp_ppl as gp
from svgp_ppl.__main__ import coal_model
from svgp_ppl.diagnostics import ess, group, rhat
from svgp_ppl.mcmc.collapsed import collapsed
from svgp_ppl.mcmc.coordinates import fitted_start
from svgp_ppl.mcmc.target import Target


def regression(z):
    """One lengthscale a column, Gaussian noise; standardised data."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("columns", z.shape[1]):
            lengthscale = numpyro.sample("lengthscale", dist.LogNormal(1.0, 1.0))
        noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)

    return model


def classification(z):
    """Two classes by the logit, one lengthscale."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(1.1, 1.0))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.1, 1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Bernoulli(), f(x), obs=y)

    return model


def problem(name: str):
    """Model and data."""
    if name == "coal":
        data = gp.datasets.coal()
        return coal_model(gp.inducing.grid(data.x, 30)), data.x, data.y
    if name == "banana":
        data = gp.datasets.banana()
        return classification(gp.inducing.kmeans(data.x, 50)), data.x, data.y
    data = gp.datasets.uci(name)
    return regression(gp.inducing.kmeans(data.x, 50)), data.x, data.y


def spread(draws: dict, names: list[str]) -> np.ndarray:
    """Sds of the logarithms, in one row; chains and draws are the first axes."""
    rows = [np.log(draws[n]).reshape(-1, *draws[n].shape[2:]) for n in names]
    return np.concatenate([np.atleast_1d(row.std(axis=0)) for row in rows])


def joint(key, model, guide, x, y, num_steps):
    """A fit with a spread of θ, and draws of it."""
    key_fit, key_draws = random.split(key)
    rate = optax.exponential_decay(1e-2, num_steps, 0.02)
    fitted = gp.fit(
        key_fit,
        model,
        guide,
        x,
        y,
        optimizer=optax.adam(rate),
        num_steps=num_steps,
        loss=gp.MarginalELBO(num_particles=4),
    )
    args = (key_draws, fitted.params, x, y)
    draws = guide.sample_posterior(*args, sample_shape=(2000,))
    return fitted, {n: np.asarray(v)[None] for n, v in draws.items()}


def integrated(key, model, fitted, x, y, num_steps: int) -> dict:
    """Draws of a Gaussian q(θ) of the model with v integrated out exactly."""
    of_theta = collapsed(model)
    x, y = jnp.asarray(x, float), jnp.asarray(y, float)
    values = {
        name.removesuffix("_auto_loc"): value for name, value in fitted.params.items()
    }
    guide = AutoMultivariateNormal(of_theta, init_loc_fn=init_to_value(values=values))
    rate = optax.exponential_decay(1e-2, num_steps, 0.02)
    svi = SVI(of_theta, guide, optax.adam(rate), Trace_ELBO(num_particles=4))
    key_fit, key_draws = random.split(key)
    params = svi.run(key_fit, num_steps, x, y, progress_bar=False).params
    draws = guide.sample_posterior(key_draws, params, sample_shape=(2000,))
    return {n: np.asarray(v)[None] for n, v in draws.items()}


def weighed(key, model, fitted, x, y, names) -> tuple[float, np.ndarray]:
    """k̂ of the fit as a proposal, and the sds of its draws, weighed."""
    draws = gp.importance_sample(key, model, x, y, init=fitted)
    values = group(draws, "posterior")
    return float(draws.posterior.attrs["pareto_k"]), spread(values, names)


def curvature(key, model, fitted, x, y, names) -> np.ndarray:
    """Sds of a Laplace approximation, in the order of ``names``."""
    target = Target(key, model, (x, y), {}, fitted.params)
    guide, params = fitted.guide, fitted.params
    coordinates = fitted_start(key, guide, params, target, 4).coordinates
    sds = np.sqrt(np.sum(np.square(np.asarray(coordinates.scale_tril)), axis=1))
    stop, found = 0, {}
    for name in sorted(coordinates.loc):  # the order of the flat vector
        start, stop = stop, stop + np.size(coordinates.loc[name])
        found[name] = sds[start:stop]
    return np.concatenate([found[n] for n in names])


def main() -> None:
    """Print one block a data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in options.names:
        model, x, y = problem(name)
        keys = random.split(random.key(0), 8)
        fitted = gp.fit(keys[0], model, x, y, num_steps=2000)
        chains = gp.sample(
            keys[1], model, x, y, init=fitted, num_samples=options.samples
        )
        of_chains = {n: np.asarray(v) for n, v in group(chains, "posterior").items()}
        names = [n for n in of_chains if n != "f"]
        exact = spread(of_chains, names)
        of_theta = {n: of_chains[n] for n in names}
        worst = max(float(np.max(value)) for value in rhat(of_theta).values())
        fewest = min(float(np.min(value)) for value in ess(of_theta).values())
        print(f"{name}: {len(exact)} hyperparameters, N = {len(x)}")
        print(f"  HMC: sds {np.round(exact, 3)}, R-hat {worst:.3f}, ESS {fewest:.0f}")
        stays = gp.AutoGaussian(model, rest=AutoMultivariateNormal)
        guides = {"AutoSites": gp.AutoSites(model, fitted), "q(v) that stays": stays}
        for key, (kind, guide) in zip(keys[2:], guides.items()):
            found, draws = joint(key, model, guide, x, y, options.steps)
            ratio = spread(draws, names) / exact
            k, sds = weighed(keys[5], model, found, x, y, names)
            print(
                f"  {kind}: ratios {np.round(ratio, 2)}, k-hat {k:.2f}, weighed "
                f"{np.round(sds / exact, 2)}",
                flush=True,
            )
        if name in ("boston", "concrete"):  # Gaussian likelihoods
            draws = integrated(keys[4], model, fitted, x, y, options.steps)
            ratio = spread(draws, names) / exact
            print(f"  v integrated out: ratios {np.round(ratio, 2)}", flush=True)
        ratio = curvature(keys[6], model, fitted, x, y, names) / exact
        k, _ = weighed(keys[7], model, fitted, x, y, names)
        print(f"  curvature: ratios {np.round(ratio, 2)}, k-hat {k:.2f}", flush=True)


if __name__ == "__main__":
    main()
