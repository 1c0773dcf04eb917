"""Deep Gaussian processes on kin8nm and energy (Salimbeni & Deisenroth 2017).

    python benchmarks/papers/deep.py kin8nm [--layers 1 2 3] [--steps 5000]
    python benchmarks/papers/deep.py energy [--split 0] [--steps 20000]

One published split, standardised with training statistics; RBF kernels with a
lengthscale a column (``--isotropic``: one a layer), M = 100 inducing inputs a layer,
linear means, inner scales 1e-5, Adam 0.01, minibatches of 1000, one draw of the layers
a step. Kernels start at 1 (as in the authors' notebooks; ``--start 2`` is the paper's
text). Test log density and RMSE in the original units, from mixtures over 100 draws.
float32.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from numpyro.distributions import constraints

import svgp_ppl as gp


def model_of(layers, batch_size: int | None, start: float, isotropic: bool):
    """Layers with an RBF kernel each; every value a trained parameter."""

    def positive(name, value):
        return numpyro.param(name, value, constraint=constraints.softplus_positive)

    def model(x, y=None):
        size = None if y is None else batch_size
        data = numpyro.plate("data", len(x), subsample_size=size)
        with data as rows:
            x, y = x[rows], None if y is None else y[rows]
        kernels = []
        for i, layer in enumerate(layers):
            shape = () if isotropic else layer.z.shape[1:]
            lengthscale = positive(f"lengthscale_{i}", jnp.full(shape, start))
            variance = positive(f"variance_{i}", start)
            kernels.append(gp.kernels.RBF(variance, lengthscale))
        f = gp.deep.compose("f", layers, kernels, x)
        noise = gp.likelihoods.Gaussian(positive("noise", 0.3))
        with data:
            gp.observe("y", noise, f, obs=y)

    return model


def fitted(data, num_layers: int, options) -> dict[str, float]:
    """Bound, test log density and RMSE, and the seconds that the fit took."""
    x, y, x_test, y_test = (jnp.asarray(a, jnp.float32) for a in data[:4])
    layers = gp.deep.layers(np.asarray(x), num_layers, options.m)
    batch = options.batch if options.batch < len(x) else None
    model = model_of(layers, batch, options.start, options.isotropic)
    begin = time.perf_counter()
    fit = gp.fit(
        jax.random.key(0),
        model,
        gp.AutoDeep(model),
        x,
        y,
        optimizer=optax.adam(0.01),
        num_steps=options.steps,
    )
    seconds = time.perf_counter() - begin
    at_test = gp.predict(model, fit, x_test, key=jax.random.key(1))["y"]
    error = jnp.sqrt(jnp.mean((at_test.mean - y_test) ** 2))
    density = jnp.mean(at_test.log_prob(y_test)) - np.log(data.y_scale)
    return {
        "bound": -float(np.mean(fit.losses[-200:])),
        "log density": float(density),
        "RMSE": float(error) * data.y_scale,
        "seconds": seconds,
    }


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="kin8nm")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--start", type=float, default=1.0)
    parser.add_argument("--isotropic", action="store_true")
    return parser.parse_args(arguments)


def main():
    options = parse()
    data = gp.datasets.uci(options.name, options.split)
    print("layers      bound  log density     RMSE  seconds")
    for num_layers in options.layers:
        row = fitted(data, num_layers, options)
        print(
            f"{num_layers:6d}{row['bound']:11.1f}{row['log density']:13.4f}"
            f"{row['RMSE']:9.4f}{row['seconds']:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
