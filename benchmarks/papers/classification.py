"""Classification with additive noise and softmax (Liu et al. 2019, tables III and IV).

    python benchmarks/papers/classification.py waveform [--splits 0 1 2] [--steps 10000]
    python benchmarks/papers/classification.py adult --noises logit --fixed

One RBF kernel for all classes (lengthscale 0.1 √D, variance 5 at the start; ``--ard``:
a lengthscale a column, on which the paper says nothing), M = 300
inducing inputs by k-means, minibatches of 1024, Adam 0.01. The flip probability starts
at 1e-3 and is trained without a prior; ``--fixed`` keeps it there too. Inputs are
standardised by the training rows and never hold the number of the row. Accuracy and
mean −log p of the test labels (clipped to 1e-12, as in the paper), and the paper's
beside them. float32 with the library's jitter (relative, 1e-5); ``--x64`` and
``--jitter 1e-6`` for what GPflow does.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from numpyro.distributions import constraints

import svgp_ppl as gp

NOISES = ("step", "probit", "logit", "softmax")
# Accuracy in per cent and mean −log p: step, probit, logit, softmax.
PUBLISHED = {
    "adult": ((85.53, 0.3971), (85.47, 0.3956), (85.55, 0.3933)),
    "ringnorm": ((98.22, 0.0568), (98.35, 0.0593), (98.34, 0.0619)),
    "twonorm": ((97.45, 0.0898), (97.49, 0.0831), (97.58, 0.0802)),
    "letter": ((96.50, 0.1685), (96.66, 0.1699), (96.49, 0.1789), (96.25, 0.1528)),
    "pendigits": ((99.50, 0.0225), (99.58, 0.0223), (99.59, 0.0232), (99.45, 0.0282)),
    "waveform": ((86.86, 0.4097), (87.02, 0.3987), (87.34, 0.3948), (87.84, 0.2832)),
    "waveform_noise": (
        (85.16, 0.4437),
        (85.30, 0.4295),
        (85.54, 0.4223),
        (86.24, 0.2999),
    ),
    "wine_quality_white": (
        (61.22, 1.2806),
        (60.65, 1.2684),
        (60.51, 1.2748),
        (57.24, 0.9953),
    ),
}


def model_of(noise: str, num_classes: int, z_start, options, is_fixed: bool):
    """Labels by one latent (two classes) or one for each class."""

    def positive(name, value):
        return numpyro.param(name, value, constraint=constraints.softplus_positive)

    def likelihood():
        if noise == "softmax":
            return gp.likelihoods.Softmax(num_classes, bound="gumbel")
        flip = 1e-3
        if not is_fixed:
            flip = numpyro.param("flip", flip, constraint=constraints.unit_interval)
        if num_classes == 2:
            return gp.likelihoods.AdditiveNoiseBernoulli(noise, flip)
        return gp.likelihoods.AdditiveNoiseCategorical(num_classes, noise, flip)

    def model(x, y=None):
        size = None if y is None or options.batch >= len(x) else options.batch
        data = numpyro.plate("data", len(x), subsample_size=size)
        with data as rows:
            x, y = x[rows], None if y is None else y[rows]
        shape = x.shape[-1:] if options.ard else ()
        start = jnp.full(shape, 0.1 * np.sqrt(x.shape[-1]))
        lengthscale = positive("lengthscale", start)
        kernel = gp.kernels.RBF(positive("variance", 5.0), lengthscale)
        num_outputs = None if num_classes == 2 and noise != "softmax" else num_classes
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", kernel, z, num_outputs=num_outputs, jitter=options.jitter)
        with data:
            gp.observe("y", likelihood(), f(x), obs=y)

    return model


def fitted(data, noise: str, is_fixed: bool, options) -> dict[str, float]:
    """Accuracy in per cent, mean −log p of the test labels, the flip probability."""
    x, x_test = (jnp.asarray(a, float) for a in (data.x, data.x_test))
    z = gp.inducing.kmeans(np.asarray(x), options.m)
    model = model_of(noise, data.num_classes, z, options, is_fixed)
    begin = time.perf_counter()
    fit = gp.fit(
        jax.random.key(0),
        model,
        gp.AutoGaussian(model),
        x,
        jnp.asarray(data.y),
        optimizer=optax.adam(0.01),
        num_steps=options.steps,
        progress=False,
    )
    seconds = time.perf_counter() - begin
    probs = np.asarray(gp.predict(model, fit, x_test, key=jax.random.key(1))["y"].probs)
    if probs.ndim == 1:
        probs = np.stack([1.0 - probs, probs], axis=-1)
    own = np.clip(probs[np.arange(len(probs)), data.y_test], 1e-12, 1.0)
    return {
        "accuracy": 100.0 * float(np.mean(probs.argmax(-1) == data.y_test)),
        "nll": -float(np.mean(np.log(own))),
        "flip": float(fit.params.get("flip", 1e-3)),
        "lengthscale": float(np.median(fit.params["lengthscale"])),
        "variance": float(fit.params["variance"]),
        "seconds": seconds,
    }


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="waveform")
    parser.add_argument("--splits", type=int, nargs="+", default=[0])
    parser.add_argument("--noises", nargs="+", default=NOISES, choices=NOISES)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--m", type=int, default=300)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--ard", action="store_true", help="a lengthscale a column")
    parser.add_argument("--x64", action="store_true", help="double precision")
    parser.add_argument("--jitter", type=float, help="absolute, on k(z, z)")
    parser.add_argument("--keep", type=Path, help="file that gets a JSON line a fit")
    parser.add_argument("--export", help="write a split for gpflow_classes.py, only")
    return parser.parse_args(arguments)


def main():
    options = parse()
    jax.config.update("jax_enable_x64", options.x64)
    if options.export:
        export(options)
        return
    print("noise    split  flip         accuracy      nll  flip at end  seconds  paper")
    for noise in options.noises:
        column = NOISES.index(noise)
        published = PUBLISHED.get(options.name, ())[column : column + 1]
        beside = "".join(f"{a:.2f} / {nll:.4f}" for a, nll in published)
        kinds = [False, True] if options.fixed and noise != "softmax" else [False]
        for split, is_fixed in product(options.splits, kinds):
            data = load(options.name, split)
            row = fitted(data, noise, is_fixed, options)
            print(
                f"{noise:8s}{split:6d}  {'fixed' if is_fixed else 'learned':8s}"
                f"{row['accuracy']:13.2f}{row['nll']:9.4f}{row['flip']:13.2e}"
                f"{row['seconds']:9.0f}  {beside}",
                flush=True,
            )
            if options.keep:
                row |= {"name": options.name, "noise": noise, "split": split}
                row |= {"fixed": is_fixed, "steps": options.steps, "m": options.m}
                row |= {"ard": options.ard, "batch": options.batch}
                row |= {"x64": options.x64, "jitter": options.jitter}
                with options.keep.open("a") as file:
                    print(json.dumps(row), file=file)


def export(options):
    """Data and inducing inputs of the first split into a file."""
    data = load(options.name, options.splits[0])
    z = gp.inducing.kmeans(np.asarray(data.x, np.float32), options.m)
    arrays = {n: getattr(data, n) for n in ("x", "y", "x_test", "y_test")}
    np.savez(options.export, z=z, **arrays)


def load(name: str, split: int):
    """The set of that name."""
    if name == "banana":
        return gp.datasets.banana()
    return gp.datasets.uci_classes(name, split)


if __name__ == "__main__":
    main()
