"""Natural gradients against Adam on kin8nm, one layer (Salimbeni et al. 2018).

    python benchmarks/papers/natural_gradients.py [--m 100] [--rate 1.0]
        [--adam 0.03 0.1]

Split 0, standardised; RBF kernel, Gaussian noise, 100 inducing inputs from k-means, all
trained. The bound after 100 and 200 alternating pairs of steps (natural, then L-BFGS or
Adam) stands beside that of Adam alone after 2000 steps, for each step size of Adam,
with test RMSE and log density in the original units. The bound is that after the last
natural step. Full batch, float32.
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


def model_of(z_start):
    """Sparse regression, maximum likelihood in kernel, noise and z."""

    def positive(name, start):
        return numpyro.param(name, start, constraint=constraints.softplus_positive)

    def model(x, y=None):
        kernel = gp.kernels.RBF(positive("variance", 1.0), positive("lengthscale", 2.0))
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z_start))
        with numpyro.plate("data", len(x)):
            noise = gp.likelihoods.Gaussian(positive("noise", 0.3))
            gp.observe("y", noise, f(x), obs=y)

    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1.0, help="natural step")
    parser.add_argument("--adam", type=float, nargs="+", default=[0.03, 0.1])
    options = parser.parse_args()

    data = gp.datasets.uci("kin8nm")
    x, y, x_test, y_test = (jnp.asarray(a, jnp.float32) for a in data[:4])
    z = jnp.asarray(gp.inducing.kmeans(np.asarray(data.x), options.m), jnp.float32)
    model = model_of(z)
    search = gp.natural_gradient(options.rate, optax.lbfgs(memory_size=100))
    runs = {
        "natural, L-BFGS, 100 pairs": (search, 200),
        "natural, L-BFGS, 200 pairs": (search, 400),
    }
    for size in options.adam:
        adam = optax.adam(size)
        natural = gp.natural_gradient(options.rate, adam)
        runs[f"natural, Adam({size}), 100 pairs"] = natural, 200
        runs[f"Adam({size}), 2000 steps"] = adam, 2000
    print(f"{'':32s}{'bound':>11s}{'RMSE':>8s}{'log density':>13s}{'seconds':>9s}")
    for name, (optimizer, steps) in runs.items():
        guide, start = gp.AutoGaussian(model), time.perf_counter()
        fit = gp.fit(
            jax.random.key(0),
            model,
            guide,
            x,
            y,
            optimizer=optimizer,
            num_steps=steps,
            progress=False,
        )
        seconds = time.perf_counter() - start
        predicted = gp.predict(model, fit, x_test)["y"]
        error = np.sqrt(np.mean(np.square(predicted.mean - y_test))) * data.y_scale
        density = np.mean(predicted.log_prob(y_test)) - np.log(data.y_scale)
        cells = f"{-fit.losses[-1]:11.1f}{error:8.4f}{density:13.4f}{seconds:9.1f}"
        print(f"{name:32s}{cells}", flush=True)


if __name__ == "__main__":
    main()
