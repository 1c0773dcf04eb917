"""Three long clouds: Gaussian against free form (Hensman et al. 2015, section 5.4).

    python benchmarks/papers/three_classes.py [--flip] [--figure three_classes.png]

750 points of three classes, one process a class with a common RBF kernel (Gamma(3, 3)
on the variance, Gamma(3, 2) on the lengthscale, a nugget of 1e-3), the label that of
the largest process with a flip probability of 1e-3 (``--flip``: Beta(1, 9) on it). M =
50 from k-means, fitted, then ``NUTS`` (or ``--sampler HMC``). How much of the square
has a class of probability above 0.95, the held-out log probability, and a figure:
contours at 0.3, 0.95 and 0.99 of both posteriors, inducing inputs before and after,
correlated values.

Chains mix with a thousand steps a draw, and not with the thirty of ``HMC`` here.
"""

import argparse

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp
from svgp_ppl import diagnostics, plots

SAMPLERS = {"NUTS": gp.mcmc.NUTS(), "HMC": gp.mcmc.HMC((0.003, 0.2), (10, 30))}


def model_of(z_start, samples_flip: bool):
    """The classifier."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(3.0, 3.0))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(3.0, 2.0))
        flip = numpyro.sample("flip", dist.Beta(1.0, 9.0)) if samples_flip else 1e-3
        kernel = gp.kernels.RBF(variance, lengthscale) + gp.kernels.White(1e-3)
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", kernel, z, num_outputs=3)
        noise = gp.likelihoods.AdditiveNoiseCategorical(3, "step", flip)
        with numpyro.plate("data", len(x)):
            gp.observe("y", noise, f(x), obs=y)

    return model


def square(x, num: int = 50):
    """Points of a grid around the data, [num², 2]."""
    ranges = zip(x.min(0) - 0.5, x.max(0) + 0.5)
    sides = [np.linspace(low, high, num) for low, high in ranges]
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)


def drawn(data, hybrid, z_start, rows):
    """Contours, inducing inputs, correlations."""
    figure, axes = plt.subplots(2, 2, figsize=(13, 11), layout="constrained")
    contours, inputs, matrix, edges = axes.flat
    for ax in (contours, inputs, edges):
        ax.scatter(*data.x.T, c=[f"C{c}" for c in data.y], s=4, alpha=0.4)
    for (name, row), style in zip(rows.items(), ("dotted", "solid"), strict=True):
        plots.class_contours(
            square(data.x),
            row["probs"],
            levels=(0.3, 0.95, 0.99),
            ax=contours,
            linestyles=style,
        )
        contours.plot([], [], color="0.3", linestyle=style, label=name)
    contours.legend()
    z = np.asarray(hybrid.fit.params["z"])
    plots.inducing_inputs(z_start, z, ax=inputs)
    plots.correlation(hybrid.draws, "f", ax=matrix)
    plots.correlated_inputs(hybrid.draws, "f", z, threshold=0.4, ax=edges)
    return figure


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description="Three classes, both posteriors.")
    parser.add_argument("--flip", action="store_true", help="sample the probability")
    parser.add_argument("--sampler", default="NUTS", choices=list(SAMPLERS))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--figure", help="file to draw into")
    return parser.parse_args(arguments)


def fitted_and_sampled(data, z_start, options):
    """The Gaussian fit and the chains from it."""
    return gp.fit_and_sample(
        random.key(0),
        model_of(z_start, options.flip),
        jnp.asarray(data.x, jnp.float32),
        jnp.asarray(data.y),
        fit_options={"optimizer": optax.adam(0.02), "num_steps": options.steps},
        sampler=SAMPLERS[options.sampler],
        num_chains=options.chains,
        num_warmup=options.warmup,
        num_samples=options.samples,
    )


def compared(data, hybrid) -> dict[str, dict]:
    """On the square and at the test points: both posteriors."""
    held = diagnostics.group(hybrid.draws, "posterior")
    every = max(held["f"].shape[1] // 100, 1)
    thinned = {n: v[:, ::every].reshape(-1, *v.shape[2:]) for n, v in held.items()}
    posteriors = {
        "Gaussian": (hybrid.fit, None),
        "free form": (thinned, {"z": hybrid.fit.params["z"]}),
    }
    rows = {}
    for name, (posterior, params) in posteriors.items():

        def predicted(x, posterior=posterior, params=params):
            x = jnp.asarray(x, jnp.float32)
            return gp.predict(hybrid.model, posterior, x, params=params)["y"]

        probs = np.asarray(predicted(square(data.x)).probs)
        at_test = predicted(data.x_test)
        labels = np.asarray(at_test.probs).argmax(-1)
        rows[name] = {
            "probs": probs,
            "sure": float(np.mean(probs.max(-1) > 0.95)),
            "log density": float(jnp.mean(at_test.log_prob(jnp.asarray(data.y_test)))),
            "accuracy": float(np.mean(labels == data.y_test)),
        }
    return rows


def main():
    options = parse()
    data = gp.datasets.three_classes()
    z_start = gp.inducing.kmeans(np.asarray(data.x, np.float32), 50)
    hybrid = fitted_and_sampled(data, z_start, options)
    print(diagnostics.report(hybrid.draws))
    rows = compared(data, hybrid)
    for name, row in rows.items():
        sure, right = 100 * row["sure"], 100 * row["accuracy"]
        print(
            f"{name:9s} above 0.95 on {sure:.1f} % of the square; held out "
            f"{row['log density']:.4f}, {right:.1f} % right"
        )
    if options.figure:
        drawn(data, hybrid, z_start, rows).savefig(options.figure, dpi=110)


if __name__ == "__main__":
    main()
