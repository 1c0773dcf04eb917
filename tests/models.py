"""Small models and samplers that several test files share."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

import svgp_ppl as gp

# ------------------------------------------------------- counts, everything unknown

COUNTS_X = np.linspace(0.0, 5.0, 20)[:, None]
COUNTS_Y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(COUNTS_X[:, 0])))
COUNTS_Z = np.linspace(0.2, 4.8, 5)[:, None]


def unseen(*arrays):
    """Copies: JAX may have kept what these arrays were converted to in float64."""
    return tuple(np.array(array) for array in arrays)


def counts_z():
    """The inducing inputs in the precision of the test.

    JAX 0.12 keeps what a NumPy constant was converted to, by object: after a test in
    float64 ``jnp.asarray(COUNTS_Z)`` may be float64 in a test in float32.
    """
    return jnp.asarray(COUNTS_Z, float)


def counts_model(x, y=None):
    """A log Gaussian Cox process in bins, with unknown hyperparameters and z."""
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 3.0))
    z = numpyro.param("z", counts_z())
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", lambda f: dist.Poisson(jnp.exp(f)), f(x), obs=y)


def rbf(x, z, variance, lengthscale):
    """The squared exponential kernel, written once more."""
    squares = np.sum((np.asarray(x)[:, None] - np.asarray(z)[None]) ** 2, axis=-1)
    return variance * np.exp(-0.5 * squares / lengthscale**2)


def projection(x, z, variance, lengthscale):
    """a [N, M] and residual [N], by NumPy."""
    gram = rbf(z, z, variance, lengthscale) + 1e-6 * variance * np.eye(len(z))
    a = np.linalg.solve(np.linalg.cholesky(gram), rbf(z, x, variance, lengthscale)).T
    return a, variance - np.sum(a**2, axis=1)


# ------------------------------------------------------------ conjugate, closed form

GAUSSIAN_X = np.linspace(-1.0, 2.0, 15)[:, None]
GAUSSIAN_Y = np.sin(2 * GAUSSIAN_X[:, 0]) + 0.5 + 0.3 * np.cos(23.0 * np.arange(15))
GAUSSIAN_Z = np.array([[-0.9], [0.1], [0.8], [1.7]])
VARIANCE, LENGTHSCALE, NOISE = 1.3, 0.7, 0.4


def gaussian_model(x, y=None):
    """Regression with fixed hyperparameters: the posterior of v is Gaussian."""
    kernel = gp.kernels.RBF(VARIANCE, LENGTHSCALE)
    f = gp.sparse_gp("f", kernel, jnp.asarray(GAUSSIAN_Z.copy(), float))
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(NOISE), f(x), obs=y)


def gaussian_posterior():
    """Mean and covariance of v: S = (I + AᵀA/σ²)⁻¹, m = S Aᵀ y/σ²."""
    a, _ = projection(GAUSSIAN_X, GAUSSIAN_Z, VARIANCE, LENGTHSCALE)
    precision = np.eye(len(GAUSSIAN_Z)) + a.T @ a / NOISE**2
    covariance = np.linalg.inv(precision)
    return covariance @ a.T @ GAUSSIAN_Y / NOISE**2, covariance


# ------------------------------------------------------------------ a cheap sampler


class WalkState(NamedTuple):
    position: dict
    logdensity: jax.Array


class WalkInfo(NamedTuple):
    n_steps: jax.Array
    lp: jax.Array


@dataclass(frozen=True)
class Walk:
    """Random-walk Metropolis: compiles in a tenth of the time of NUTS."""

    scale: float = 0.1

    def init(self, key, position, logdensity_fn):
        return WalkState(position, logdensity_fn(position))

    def schedule(self, num_warmup):
        return jnp.zeros(num_warmup)

    def warmup_step(self, key, warmup, logdensity_fn, entry):
        return self.step(key, warmup, logdensity_fn, ())

    def finish(self, warmup):
        return warmup, ()

    def step(self, key, state, logdensity_fn, tuned):
        key_move, key_accept = jax.random.split(key)
        flat, unflatten = ravel_pytree(state.position)
        noise = jax.random.normal(key_move, flat.shape, flat.dtype)
        position = unflatten(flat + self.scale * noise)
        proposed = WalkState(position, logdensity_fn(position))
        gain = proposed.logdensity - state.logdensity
        accept = jnp.log(jax.random.uniform(key_accept)) < gain
        state = jax.tree.map(lambda a, b: jnp.where(accept, a, b), proposed, state)
        return state, WalkInfo(jnp.zeros((), int), state.logdensity)
