"""The noise that a sparse fit finds, with p(f|u) and with its scaled covariance.

Sparse bounds explain what the inducing inputs cannot by more noise. A Gaussian
likelihood, an RBF kernel with a lengthscale a column, everything fitted (z too) on 450
standardised rows; the exact process (z = x) beside it. As in the comparisons of Titsias
(2025) and Bui, Ashman & Turner (2025).

    python benchmarks/papers/noise_bias.py [--data concrete energy boston]
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax import random
from numpyro.distributions import constraints

import svgp_ppl as gp

POSITIVE = constraints.softplus_positive


def regression(z, fixed: bool):
    """RBF with a lengthscale a column; z fitted, unless it is fixed."""

    def model(x, y=None):
        variance = numpyro.param("variance", 1.0, constraint=POSITIVE)
        ones = jnp.ones(x.shape[1])
        lengthscale = numpyro.param("lengthscale", ones, constraint=POSITIVE)
        noise = numpyro.param("noise", 0.3, constraint=POSITIVE)
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, z if fixed else numpyro.param("z", z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)

    return model


def fitted(model, x, y, conditional: str, steps: int):
    """Natural gradients of q(v), which are exact here, and Adam for the rest."""
    return gp.fit(
        random.key(0),
        model,
        gp.AutoGaussian(model),
        x,
        y,
        loss=gp.MarginalELBO(conditional=conditional),
        optimizer=gp.natural_gradient(1.0, optax.adam(0.02)),
        num_steps=steps,
        progress=False,
    )


def density(model, fit, held_out) -> float:
    """Mean negative log predictive density of held-out rows, nats."""
    x, y = held_out
    return -float(np.mean(gp.predict(model, fit, x)["y"].log_prob(y)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["concrete", "energy", "boston"]
    parser.add_argument("--data", nargs="+", default=names, choices=names)
    parser.add_argument("--m", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--rows", type=int, default=450)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print(
        "data       M      p(f|u): noise  bound    NLPD    scaled: noise  bound    NLPD"
    )
    for name in options.data:
        split = gp.datasets.uci(name)
        train = split.x[: options.rows], split.y[: options.rows]
        held_out = split.x_test, split.y_test
        for m in [*options.m, options.rows]:
            is_exact = m == options.rows
            z = train[0] if is_exact else gp.inducing.kmeans(train[0], m)
            model = regression(jnp.asarray(z), is_exact)
            row = f"{name:10s} {'all' if is_exact else m:<4}"
            for conditional in ["prior"] if is_exact else ["prior", "scaled"]:
                fit = fitted(model, *train, conditional, options.steps)
                noise, bound = float(fit.params["noise"]), -float(fit.losses[-1])
                row += f"{noise:18.3f}{bound:9.1f}{density(model, fit, held_out):8.3f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
