"""Steps and gradients of the forms by hand, in compiled loops; one LAPACK thread."""

import time

import jax
import jax.numpy as jnp
import optax

from svgp_ppl.expectations import closed_form_expectation
from svgp_ppl.likelihoods import Bernoulli, Gaussian, Poisson
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.marginals import Marginal

__all__ = ["density", "fitting"]


def fitting(form, case, data, dtype):
    """Adam on everything."""
    jax.config.update("jax_enable_x64", dtype == "float64")
    x, y, z = map(jnp.asarray, data)
    gradient = form(_expectation(case.kind))

    def free(value):
        return jnp.log(jnp.expm1(jnp.asarray(value)))

    params = {
        "variance": free(1.0),
        "lengthscale": free(jnp.ones(case.d)),
        "z": z,
        "m": jnp.zeros(case.m),
        "s": jnp.eye(case.m),
    }
    if case.kind == "S1":
        params["noise"] = free(0.3)
    adam = optax.adam(1e-2)

    @jax.jit
    def loop(carry, x, y):
        def step(i, carry):
            params, state = carry
            _, slopes = gradient(params, x, y, {})
            updates, state = adam.update(slopes, state)
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, case.steps, step, carry)

    carry = (params, adam.init(params))
    return _timed(lambda: loop(carry, x, y))


def density(form, case, data, dtype):
    """Gradients one after the other, each at a place that the last one decides."""
    jax.config.update("jax_enable_x64", dtype == "float64")
    x, y, z = map(jnp.asarray, data)
    gradient = form(_expectation(case.kind))
    position = {
        "variance": jnp.zeros(()),
        "lengthscale": jnp.ones(case.d),
        "m": jnp.zeros(case.m),
    }

    def slopes(p, x, y, z):
        _, found = gradient(p, x, y, {"z": z})
        # The priors of the hyperparameters.
        return {n: -s - (0 if n == "m" else p[n]) for n, s in found.items()}

    @jax.jit
    def loop(position, x, y, z):
        def step(i, p):
            return jax.tree.map(lambda p, g: p + 1e-6 * g, p, slopes(p, x, y, z))

        return jax.lax.fori_loop(0, case.steps, step, position)

    return _timed(lambda: loop(position, x, y, z))


def _expectation(kind: str):
    """Expected log likelihood from moments."""

    def likelihood(p):
        match kind:
            case "S1":
                return Gaussian(jax.nn.softplus(p["noise"]))
            case "S4p":
                return Poisson()
        return Bernoulli("logit")

    def total(mean, spread, y, p):
        values = closed_form_expectation(likelihood(p), y, Marginal(mean, spread))
        return jnp.sum(values)

    return total


def _timed(run):
    def block() -> float:
        with single_threaded_lapack():
            began = time.perf_counter()
            jax.block_until_ready(run())
            return time.perf_counter() - began

    return block
