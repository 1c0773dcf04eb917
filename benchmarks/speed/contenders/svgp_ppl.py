"""Ours as users get it: the public interface, nothing set."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random

import svgp_ppl as gp
from benchmarks.speed import cases
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.target import Target

POSITIVE = dist.constraints.softplus_positive


def _positive(name, start):
    return numpyro.param(name, start, constraint=POSITIVE)


def _kernel(x, name=""):
    variance = _positive(f"variance{name}", 1.0)
    return gp.kernels.RBF(
        variance, _positive(f"lengthscale{name}", jnp.ones(x.shape[1]))
    )


def _fitting(case, model, arrays, **options):
    """Blocks of ``fit``, which says how long its steps took."""
    guide, adam = gp.AutoGaussian(model), optax.adam(1e-2)
    options |= {"optimizer": adam, "num_steps": case.steps, "progress": False}
    return lambda: gp.fit(random.key(0), model, guide, *arrays, **options).seconds


def regression(case, data, dtype):
    _precision(dtype)

    def model(x, y):
        f = gp.sparse_gp("f", _kernel(x), numpyro.param("z", data.z))
        noise = _positive("noise", 0.3)
        with numpyro.plate("data", case.n, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)

    options = {"batch_size": cases.BATCH} if case.kind == "S8" else {}
    return _fitting(case, model, data[:2], **options)


def labels(case, data, dtype):
    _precision(dtype)

    def model(x, y):
        f = gp.sparse_gp("f", _kernel(x), numpyro.param("z", data.z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Bernoulli("logit"), f(x), obs=y)

    return _fitting(case, model, data[:2])


def classes(case, data, dtype):
    _precision(dtype)
    number = cases.NUM_CLASSES
    robust = gp.likelihoods.AdditiveNoiseCategorical(number, noise="step", flip=1e-3)

    def model(x, y):
        z = numpyro.param("z", data.z)
        f = gp.sparse_gp("f", _kernel(x), z, num_outputs=number)
        with numpyro.plate("data", len(x)):
            gp.observe("y", robust, f(x), obs=y)

    return _fitting(case, model, data[:2])


def density(case, data, dtype):
    """Gradients of what ``sample`` moves in, one after the other in a compiled loop.

    Each at a place that the last one decides. ``sample`` gives LAPACK one thread.
    """
    _precision(dtype)
    x, y, z = map(jnp.asarray, data)
    likelihood = gp.likelihoods.Poisson()
    if case.kind == "S4b":
        likelihood = gp.likelihoods.Bernoulli("logit")

    def model(x, y):
        softplus = dist.transforms.SoftplusTransform()
        positive = dist.TransformedDistribution(dist.Normal(0.0, 1.0), softplus)
        variance = numpyro.sample("variance", positive)
        each = positive.expand([x.shape[1]]).to_event(1)
        kernel = gp.kernels.RBF(variance, numpyro.sample("lengthscale", each))
        f = gp.sparse_gp("f", kernel, z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", likelihood, f(x), obs=y)

    with single_threaded_lapack():
        target = Target(random.key(0), model, (x, y), {}, {})
        positions = target.initial_positions(random.key(1), 1)
    position = jax.tree.map(lambda leaf: leaf[0], positions)
    gradient = jax.grad(target.logdensity_fn)

    @jax.jit
    def loop(position, data):
        def step(i, p):
            return jax.tree.map(lambda p, g: p + 1e-6 * g, p, gradient(p, data))

        return jax.lax.fori_loop(0, case.steps, step, position)

    def block():
        with single_threaded_lapack():
            jax.block_until_ready(loop(position, target.data))

    return block


def deep(case, data, dtype):
    _precision(dtype)
    x, y, _ = data
    layers = gp.deep.layers(x, 2, case.m, widths=(case.width,))

    def model(x, y):
        widths = (case.d, case.width)
        kernels = [
            gp.kernels.RBF(
                _positive(f"variance_{i}", 1.0),
                _positive(f"lengthscale_{i}", jnp.ones(width)),
            )
            for i, width in enumerate(widths)
        ]
        f = gp.deep.compose("f", layers, kernels, x)
        noise = _positive("noise", 0.3)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f, obs=y)

    guide, adam = gp.AutoDeep(model), optax.adam(1e-2)
    sizes = {"optimizer": adam, "num_steps": case.steps, "progress": False}
    return lambda: gp.fit(random.key(0), model, guide, x, y, **sizes).seconds


def prediction(case, data, dtype):
    """From a fit, its parameters made up: what they are costs nothing less."""
    _precision(dtype)
    z, rng = data.z, np.random.default_rng(0)

    def model(x, y=None):
        f = gp.sparse_gp("f", _kernel(x), numpyro.param("z", z))
        noise = _positive("noise", 0.3)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)

    fitted = gp.fit(random.key(0), model, None, *data[:2], num_steps=1, progress=False)
    tril = np.tril(0.01 * rng.normal(size=(case.m, case.m)), -1) + 0.3 * np.eye(case.m)
    params = {**fitted.params, "auto_f_scale_tril": jnp.asarray(tril, dtype)}
    posterior = fitted.guide, params

    def block():
        for _ in range(case.steps):
            at = gp.predict(model, posterior, data.x)["y"]
            jax.block_until_ready((at.mean, at.variance))

    return block


def coregionalised(case, data, dtype):
    _precision(dtype)
    rng = np.random.default_rng(1)
    mixing = rng.normal(size=(cases.NUM_OUTPUTS, cases.NUM_LATENTS)).astype(dtype)

    def model(x, y):
        z = numpyro.param("z", data.z)
        latents = gp.stack(
            [
                gp.sparse_gp(f"f{i}", _kernel(x, str(i)), z)(x)
                for i in range(cases.NUM_LATENTS)
            ]
        )
        outputs = numpyro.param("mixing", mixing) @ latents
        noise = gp.likelihoods.Gaussian(_positive("noise", 0.3))
        for j in range(cases.NUM_OUTPUTS):
            with numpyro.plate(f"data{j}", len(x)):
                gp.observe(f"y{j}", noise, outputs[..., j], obs=y[:, j])

    return _fitting(case, model, data[:2])


def _precision(dtype: str) -> None:
    jax.config.update("jax_enable_x64", dtype == "float64")


CASES = {
    "S1": regression,
    "S2": labels,
    "S3": classes,
    "S4b": density,
    "S4p": density,
    "S5": deep,
    "S6": prediction,
    "S7": coregionalised,
    "S8": regression,
}
