"""The same classifier in GPflow, beside ``noise.uci`` (GPflow installed apart).

    python -m benchmarks.papers.noise.export letter letter.npz
    python benchmarks/papers/gpflow_classes.py letter.npz [--steps 1000] [--batch 256]

``SVGP`` with the step (``RobustMax``) and its flip probability trained, from the same
inducing inputs and with the same optimiser: what the settings of Liu et al. (2019) give
in the library that they used, in its present version. float64.
"""

import argparse
import time

import gpflow
import numpy as np
import tensorflow as tf


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description="A classifier in GPflow.")
    parser.add_argument("problem", help="written by noise.export")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=256)
    return parser.parse_args(arguments)


def main():
    options = parse()
    held = np.load(options.problem)
    x, y, z = held["x"].astype(float), held["y"], held["z"].astype(float)
    num_classes = int(y.max()) + 1
    link = gpflow.likelihoods.RobustMax(num_classes, epsilon=1e-3)
    gpflow.set_trainable(link.epsilon, True)
    model = gpflow.models.SVGP(
        gpflow.kernels.RBF(5.0, 0.1 * np.sqrt(x.shape[1])),
        gpflow.likelihoods.MultiClass(num_classes, invlink=link),
        z,
        num_latent_gps=num_classes,
        num_data=len(x),
    )
    data = tf.data.Dataset.from_tensor_slices((x, y[:, None]))
    data = data.repeat().shuffle(len(x), seed=0).batch(options.batch)
    loss = model.training_loss_closure(iter(data))
    optimizer = tf.keras.optimizers.Adam(0.01)
    variables = model.trainable_variables

    @tf.function
    def step():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            value = loss()
        gradients = tape.gradient(value, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    began = time.perf_counter()
    for _ in range(options.steps):
        step()
    seconds = time.perf_counter() - began
    probs, _ = model.predict_y(held["x_test"].astype(float))
    probs = np.asarray(probs)
    y_test = held["y_test"]
    own = np.clip(probs[np.arange(len(probs)), y_test], 1e-12, 1.0)
    flip, lengthscale, variance = (
        float(parameter.numpy())
        for parameter in (
            link.epsilon,
            model.kernel.lengthscales,
            model.kernel.variance,
        )
    )
    print(
        f"accuracy {100 * np.mean(probs.argmax(-1) == y_test):.2f}, "
        f"nll {-np.mean(np.log(own)):.4f}, flip {flip:.2e}, "
        f"lengthscale {lengthscale:.2f}, variance {variance:.1f}, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
