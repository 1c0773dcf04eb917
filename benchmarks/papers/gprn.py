"""Regression networks on sarcos, outputs 4 and 7 (Dezfouli & Bonilla 2015).

    python benchmarks/papers/gprn.py [--nodes 0 1 2] [--steps 3000] [--m 200]

y = W(x) f(x) + noise with one node f (as in the paper) or two, against two independent
sparse processes (``0``) with the same M and kernels. RBF kernels with a lengthscale a
column, one for each node and one for each row of W; M = 200 inducing inputs each,
from k-means, minibatches of 1000, Adam with a cosine decay. The mean of each weight is
a learned constant that starts at one (two nodes: at W = I, the independent processes);
from zero, W f = 0 would be a saddle point. SMSE an output, and the test log density of
each pair of outputs in the original units. float32.

The data are the 4449 rows of the official test file, 3949 of them for training. The
paper trains on the other file, with 44484 rows and M = 1779, and its figure shows SMSE
below 0.009 for both outputs. Linear least squares has 0.057 and 0.063 on this split.
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

OUTPUTS = (3, 6)  # joints 4 and 7


def positive(name, value):
    """A param that stays positive."""
    return numpyro.param(name, value, constraint=constraints.softplus_positive)


def model_of(num_nodes: int, z_start, options):
    """Independent processes for zero nodes, else the network."""
    num_outputs = len(OUTPUTS)
    start = jnp.eye(num_outputs) if num_nodes == num_outputs else jnp.ones((2, 1))

    def kernel(name: str, variance: float):
        lengthscale = jnp.full(z_start.shape[1:], z_start.shape[-1] ** 0.5)
        return gp.kernels.RBF(
            positive(f"variance_{name}", variance),
            positive(f"lengthscale_{name}", lengthscale),
        )

    def process(i: int):
        z = numpyro.param(f"z_{i}", z_start)
        return gp.sparse_gp(f"node_{i}", kernel(f"{i}", 1.0), z)

    def weights(p: int):
        """Row p of W, a process for each node."""
        mean = numpyro.param(f"weight_{p}", start[p])
        return gp.sparse_gp(
            f"weights_{p}",
            kernel(f"weights_{p}", 0.1),
            numpyro.param(f"z_weights_{p}", z_start),
            mean=lambda x: jnp.broadcast_to(mean, (len(x), num_nodes)),
            num_outputs=num_nodes,
        )

    def model(x, y=None):
        size = None if y is None else options.batch
        data = numpyro.plate("data", len(x), subsample_size=size)
        with data as rows:
            x, y = x[rows], None if y is None else y[rows]
        scale = positive("scale", jnp.full(num_outputs, 0.3))
        if num_nodes == 0:
            processes = [process(i) for i in range(num_outputs)]
            with data:
                for i, f in enumerate(processes):
                    obs = None if y is None else y[:, i]
                    gp.observe(f"y_{i}", gp.likelihoods.Gaussian(scale[i]), f(x), obs)
            return
        nodes = [process(i)(x) for i in range(num_nodes)]
        rows_of_w = [weights(p)(x) for p in range(num_outputs)]
        network = gp.likelihoods.GPRN(num_outputs, num_nodes, scale)
        with data:
            gp.observe("y", network, gp.stack(nodes + rows_of_w), obs=y)

    return model


def fitted(data, num_nodes: int, options) -> dict:
    """Test SMSE of each output, log density of the pair, bound and seconds."""
    x, x_test = (jnp.asarray(part, jnp.float32) for part in (data.x, data.x_test))
    y, y_test = (
        jnp.asarray(part[:, OUTPUTS], jnp.float32) for part in (data.y, data.y_test)
    )
    z = gp.inducing.kmeans(np.asarray(x), options.m)
    model = model_of(num_nodes, z, options)
    begin = time.perf_counter()
    fit = gp.fit(
        jax.random.key(0),
        model,
        gp.AutoGaussian(model),
        x,
        y,
        optimizer=optax.adam(optax.cosine_decay_schedule(0.01, options.steps)),
        num_steps=options.steps,
        progress=False,
    )
    seconds = time.perf_counter() - begin
    at_test = gp.predict(model, fit, x_test)
    if num_nodes == 0:
        each = [at_test[f"y_{i}"] for i in range(len(OUTPUTS))]
        mean = jnp.stack([one.mean for one in each], axis=-1)
        density = sum(one.log_prob(y_test[:, i]) for i, one in enumerate(each))
    else:
        mean, density = at_test["y"].mean, at_test["y"].log_prob(y_test)
    error = jnp.mean((mean - y_test) ** 2, axis=0)
    smse = error / jnp.mean((jnp.mean(y, axis=0) - y_test) ** 2, axis=0)
    log_unit = np.sum(np.log(data.y_scale[list(OUTPUTS)]))
    return {
        "bound": -float(np.mean(fit.losses[-200:])),
        "SMSE": [float(value) for value in smse],
        "log density": float(jnp.mean(density) - log_unit),
        "seconds": seconds,
        "params": {name: np.asarray(value) for name, value in fit.params.items()},
    }


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[0, 1, 2], choices=(0, 1, 2)
    )
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--m", type=int, default=200)
    return parser.parse_args(arguments)


def main():
    options = parse()
    data = gp.datasets.savigp("sarcos")
    print("nodes            bound   SMSE 4   SMSE 7  log density  seconds")
    for num_nodes in options.nodes:
        row = fitted(data, num_nodes, options)
        name = f"{num_nodes}" if num_nodes else "independent"
        print(
            f"{name:12s}{row['bound']:10.1f}{row['SMSE'][0]:9.4f}{row['SMSE'][1]:9.4f}"
            f"{row['log density']:13.4f}{row['seconds']:9.1f}",
            flush=True,
        )
    print(f"{'linear':22s}{0.057:9.3f}{0.063:9.3f}")


if __name__ == "__main__":
    main()
