"""Image segments: Gaussian against free form (Hensman et al. 2015, section 5.1).

    python benchmarks/papers/image.py [--m 5 10 20 50 100] [--splits 0 1 2]

1000 of 2086 segments with 18 attributes, standardised by the training rows, are
labelled; the others are held out. Probit link, RBF with one lengthscale or one a column
(``ard``), Gamma(1.1, 1) on the lengthscales and on the variance; z by k-means, where it
stays or from where it is fitted. A Gaussian fit with its hyperparameters at the mode,
then ``NUTS`` (or ``--sampler HMC``) from it with z frozen. Mean held-out log
probability of a label by both. The paper shows a figure: fitted z better than k-means,
HMC better than the Gaussian once M is large, and more so with a lengthscale a column.
float32.
"""

import argparse
import json
from itertools import product
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp
from svgp_ppl.diagnostics import ess, group, rhat

SAMPLERS = {"NUTS": gp.mcmc.NUTS(), "HMC": gp.mcmc.HMC((0.01, 0.5), (5, 30))}


def model_of(z_start, is_ard: bool, moves_z: bool):
    """The classifier."""

    def model(x, y=None):
        z = numpyro.param("z", z_start) if moves_z else z_start
        shape = (z_start.shape[-1],) if is_ard else ()
        prior = dist.Gamma(1.1, 1.0)
        variance = numpyro.sample("variance", prior)
        event = prior.expand(shape).to_event(len(shape))
        kernel = gp.kernels.RBF(variance, numpyro.sample("lengthscale", event))
        f = gp.sparse_gp("f", kernel, z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Bernoulli("probit"), f(x), obs=y)

    return model


def compared(split: int, m: int, is_ard: bool, moves_z: bool, options) -> dict:
    """Held-out log probability by both posteriors; how the chains mixed."""
    data = gp.datasets.image(split)
    x, x_test = (jnp.asarray(a, jnp.float32) for a in (data.x, data.x_test))
    z_start = gp.inducing.kmeans(np.asarray(x), m)
    model = model_of(z_start, is_ard, moves_z)
    hybrid = gp.fit_and_sample(
        random.key(split),
        model,
        x,
        jnp.asarray(data.y),
        fit_options={"optimizer": optax.adam(0.02), "num_steps": options.steps},
        sampler=SAMPLERS[options.sampler],
        num_chains=options.chains,
        num_warmup=options.warmup,
        num_samples=options.samples,
        progress=False,
    )

    def held_out(posterior):
        prediction = gp.predict(model, posterior, x_test)["y"]
        return float(jnp.mean(prediction.log_prob(jnp.asarray(data.y_test))))

    draws = hybrid.draws
    posterior = group(draws, "posterior")
    sizes = np.concatenate([np.ravel(v) for v in ess(draws).values()])
    return {
        "split": split,
        "m": m,
        "ard": is_ard,
        "moves_z": moves_z,
        "gaussian": held_out(hybrid.fit),
        "mcmc": held_out(draws),
        "ess": float(np.min(sizes)),
        "median_ess": float(np.median(sizes)),
        "rhat": max(float(np.max(v)) for v in rhat(draws).values()),
        "variance": float(posterior["variance"].mean()),
        "seconds": draws["posterior"].attrs["sampling_seconds"],
    }


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description="Image segments, held out.")
    parser.add_argument("--m", type=int, nargs="+", default=[5, 10, 20, 50, 100])
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--sampler", default="NUTS", choices=list(SAMPLERS))
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=450)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--keep", type=Path, help="file that gets a JSON line a run")
    return parser.parse_args(arguments)


def main():
    options = parse()
    print("    M  kernel     z        split  Gaussian      MCMC      gain  ESS  R-hat")
    for m, is_ard, moves_z in product(options.m, (False, True), (False, True)):
        gains = []
        for split in options.splits:
            row = compared(split, m, is_ard, moves_z, options)
            gains.append(row["mcmc"] - row["gaussian"])
            print(
                f"{m:5d}  {'ARD' if is_ard else 'isotropic':9s}  "
                f"{'fitted' if moves_z else 'k-means':7s}{split:7d}"
                f"{row['gaussian']:10.4f}{row['mcmc']:10.4f}{gains[-1]:10.4f}"
                f"{row['ess']:5.0f}{row['rhat']:7.3f}",
                flush=True,
            )
            if options.keep:
                with options.keep.open("a") as file:
                    print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
