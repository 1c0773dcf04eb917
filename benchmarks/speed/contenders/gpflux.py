"""GPflux as installed: a deep GP by ``GPLayer`` and its own loss, one draw a datum."""

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflux.helpers import construct_basic_inducing_variables, construct_basic_kernel
from gpflux.layers import GPLayer, LikelihoodLayer
from gpflux.models import DeepGP

__all__ = ["CASES"]


def deep(case, data, dtype):
    tf.random.set_seed(0)
    gpflow.config.set_default_float(np.dtype(dtype).type)
    gpflow.config.set_default_jitter(1e-6 if dtype == "float64" else 1e-5)
    tf_keras.backend.set_floatx(dtype)

    def layer(z, outputs, is_last):
        kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(z.shape[1]))
        return GPLayer(
            construct_basic_kernel(kernel, output_dim=outputs, share_hyperparams=True),
            construct_basic_inducing_variables(
                len(z), z.shape[1], output_dim=outputs, share_variables=True, z_init=z
            ),
            num_data=case.n,
            num_latent_gps=outputs,
            mean_function=gpflow.mean_functions.Zero() if is_last
            else gpflow.mean_functions.Linear(np.eye(z.shape[1], outputs)),
        )  # fmt: skip

    layers = [layer(data.z, case.width, False), layer(data.z[:, : case.width], 1, True)]
    model = DeepGP(layers, LikelihoodLayer(gpflow.likelihoods.Gaussian(0.09)))
    x, y = tf.constant(data.x), tf.constant(data.y[:, None])
    variables = model.trainable_variables
    adam = tf_keras.optimizers.Adam(1e-2)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = -model.elbo((x, y))
        adam.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def block():
        for _ in range(case.steps):
            loss = step()
        loss.numpy()

    return block


CASES = {"S5": deep}
