"""GPflow as installed; steps compiled by ``tf.function``, as its pages show."""

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras

from benchmarks.speed import cases

__all__ = ["CASES"]


def _settings(dtype):
    """The precision; jitter as ours has it."""
    tf.random.set_seed(0)
    gpflow.config.set_default_float(np.dtype(dtype).type)
    gpflow.config.set_default_jitter(1e-6 if dtype == "float64" else 1e-5)


def _steps(case, objective, variables):
    """Blocks of Adam."""
    adam = tf_keras.optimizers.Adam(1e-2)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = objective()
        adam.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def block():
        for _ in range(case.steps):
            loss = step()
        loss.numpy()

    return block


def _two_axes(data, dtype):
    y = data.y if data.y.ndim == 2 else data.y[:, None]
    return tf.constant(data.x), tf.constant(y.astype(dtype))


def fitting(case, data, dtype):
    """SVGP, whitened, full covariance."""
    _settings(dtype)
    likelihood, outputs = gpflow.likelihoods.Gaussian(0.09), 1
    if case.kind == "S2":
        likelihood = gpflow.likelihoods.Bernoulli(invlink=tf.sigmoid)
    if case.kind == "S3":
        outputs = cases.NUM_CLASSES
        likelihood = gpflow.likelihoods.MultiClass(outputs)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(case.d))
    model = gpflow.models.SVGP(
        kernel, likelihood, data.z, num_latent_gps=outputs, num_data=case.n
    )
    arrays = _two_axes(data, dtype)
    return _steps(case, lambda: model.training_loss(arrays), model.trainable_variables)


def minibatches(case, data, dtype):
    """``tf.data`` shuffles all rows; the loop over batches is compiled too."""
    _settings(dtype)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(case.d))
    likelihood = gpflow.likelihoods.Gaussian(0.09)
    model = gpflow.models.SVGP(kernel, likelihood, data.z, num_data=case.n)
    variables = model.trainable_variables
    rows = tf.data.Dataset.from_tensor_slices(_two_axes(data, dtype))
    rows = rows.shuffle(case.n).repeat().batch(cases.BATCH).prefetch(2)
    batches, adam = iter(rows), tf_keras.optimizers.Adam(1e-2)

    @tf.function
    def step(batch):
        with tf.GradientTape() as tape:
            loss = model.training_loss(batch)
        adam.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    def block():
        for _ in range(case.steps):
            loss = step(next(batches))
        loss.numpy()

    return block


def density(case, data, dtype):
    """SGPMC: gradients of what its samplers move in."""
    _settings(dtype)
    likelihood = gpflow.likelihoods.Poisson()
    if case.kind == "S4b":
        likelihood = gpflow.likelihoods.Bernoulli(invlink=tf.sigmoid)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(case.d))
    arrays = _two_axes(data, dtype)
    model = gpflow.models.SGPMC(arrays, kernel, likelihood, inducing_variable=data.z)
    gpflow.set_trainable(model.inducing_variable, False)
    variables = model.trainable_variables

    @tf.function
    def moved():
        with tf.GradientTape() as tape:
            value = model.log_posterior_density()
        for variable, slope in zip(variables, tape.gradient(value, variables)):
            variable.assign_add(1e-6 * slope)
        return value

    def block():
        for _ in range(case.steps):
            value = moved()
        value.numpy()

    return block


def prediction(case, data, dtype):
    """Cached posterior."""
    _settings(dtype)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(case.d))
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Gaussian(0.09), data.z)
    posterior, x = model.posterior(), tf.constant(data.x)

    @tf.function
    def moments(x):
        mean, variance = posterior.predict_f(x)
        return model.likelihood.predict_mean_and_var(x, mean, variance)

    def block():
        for _ in range(case.steps):
            mean, _ = moments(x)
        mean.numpy()

    return block


def coregionalised(case, data, dtype):
    _settings(dtype)
    rng = np.random.default_rng(1)
    mixing = rng.normal(size=(cases.NUM_OUTPUTS, cases.NUM_LATENTS)).astype(dtype)
    kernels = [
        gpflow.kernels.SquaredExponential(lengthscales=np.ones(case.d))
        for _ in range(cases.NUM_LATENTS)
    ]
    model = gpflow.models.SVGP(
        gpflow.kernels.LinearCoregionalization(kernels, W=mixing),
        gpflow.likelihoods.Gaussian(0.09),
        gpflow.inducing_variables.SharedIndependentInducingVariables(
            gpflow.inducing_variables.InducingPoints(data.z)
        ),
        num_latent_gps=cases.NUM_LATENTS,
        num_data=case.n,
    )
    arrays = _two_axes(data, dtype)
    return _steps(case, lambda: model.training_loss(arrays), model.trainable_variables)


CASES = {
    "S1": fitting,
    "S2": fitting,
    "S3": fitting,
    "S4b": density,
    "S4p": density,
    "S6": prediction,
    "S7": coregionalised,
    "S8": minibatches,
}
