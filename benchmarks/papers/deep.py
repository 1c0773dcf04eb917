"""Deep Gaussian processes on kin8nm and energy (Salimbeni & Deisenroth 2017).

    python benchmarks/papers/deep.py kin8nm [--layers 1 2 3] [--steps 5000]
    python benchmarks/papers/deep.py energy [--split 0] [--steps 20000]

One published split, standardised with training statistics; RBF kernels, M = 100
inducing inputs a layer, linear means, inner scales 1e-5, Adam 0.01, minibatches 1000,
one draw of the layers a step. Test log density and RMSE in the original units, from
mixtures over 100 draws.
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


def model_of(start, batch_size: int | None):
    """Layers with an RBF kernel each; every value a trained parameter."""

    def positive(name, value):
        return numpyro.param(name, value, constraint=constraints.softplus_positive)

    def model(x, y=None):
        size = None if y is None else batch_size
        data = numpyro.plate("data", len(x), subsample_size=size)
        with data as rows:
            x, y = x[rows], None if y is None else y[rows]
        kernels = [
            gp.kernels.RBF(
                positive(f"variance_{i}", 2.0),
                positive(f"lengthscale_{i}", jnp.full(layer.z.shape[1], 2.0)),
            )
            for i, layer in enumerate(start)
        ]
        f = gp.deep.compose("f", start, kernels, x)
        noise = gp.likelihoods.Gaussian(positive("noise", 0.1))
        with data:
            gp.observe("y", noise, f, obs=y)

    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="kin8nm")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--particles", type=int, default=1)
    options = parser.parse_args()

    data = gp.datasets.uci(options.name, options.split)
    x, y, x_test, y_test = (jnp.asarray(a, jnp.float32) for a in data[:4])
    batch = options.batch if options.batch < len(x) else None
    print(
        f"{'layers':>6s}{'bound':>11s}{'log density':>13s}{'RMSE':>9s}{'seconds':>9s}"
    )
    for num_layers in options.layers:
        start = gp.deep.layers(np.asarray(x), num_layers, options.m)
        model = model_of(start, batch)
        guide, begin = gp.AutoDeep(model), time.perf_counter()
        with gp.linalg.single_threaded_lapack():
            fit = gp.fit(
                jax.random.key(0),
                model,
                guide,
                x,
                y,
                optimizer=optax.adam(0.01),
                num_steps=options.steps,
                loss=gp.MarginalELBO(options.particles),
            )
        seconds = time.perf_counter() - begin
        at_test = gp.predict(model, fit, x_test, key=jax.random.key(1))["y"]
        density = float(jnp.mean(at_test.log_prob(y_test))) - np.log(data.y_scale)
        rmse = float(jnp.sqrt(jnp.mean((at_test.mean - y_test) ** 2))) * data.y_scale
        bound = -float(np.mean(fit.losses[-200:]))
        print(
            f"{num_layers:6d}{bound:11.1f}{density:13.4f}{rmse:9.4f}{seconds:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
