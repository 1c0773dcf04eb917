"""log E p(y|f) where p is a mixture of distributions, against sums of Gaussians."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st

from svgp_ppl.expectations import log_predictive_density
from svgp_ppl.marginals import Marginal

N = 200


@partial(jax.jit, static_argnums=0)
def _found(likelihood, y, mean, variance):
    return log_predictive_density(likelihood, y, Marginal(mean, variance))


def _mixed(parts, log_weights):
    return np.logaddexp.reduce([p + w for p, w in zip(parts, log_weights)])


@pytest.mark.parametrize("precision", [64, 32], indirect=True)
@pytest.mark.parametrize("scale", [0.1, 0.003])
def test_outliers_on_a_flat_floor(scale, precision):
    """Three nats off where the marginal was a hundred times as wide as the noise."""
    rng, sd = np.random.default_rng(0), np.resize([0.01, 0.3, 3.0], N)
    mean = rng.normal(size=N)
    y = mean + sd * rng.normal(size=N)

    def outliers(f):
        choice = dist.Categorical(probs=jnp.array([0.1, 0.9]))
        loc = jnp.stack([jnp.zeros_like(f), f], axis=-1)
        return dist.MixtureSameFamily(choice, dist.Normal(loc, jnp.array([3.0, scale])))

    parts = st.norm.logpdf(y, 0.0, 3.0), st.norm.logpdf(y, mean, np.hypot(sd, scale))
    arrays = map(jnp.asarray, (y, mean, sd**2))
    exact = _mixed(parts, np.log([0.1, 0.9]))
    atol = 1e-9 if precision == 64 else 3e-5
    np.testing.assert_allclose(_found(outliers, *arrays), exact, rtol=0, atol=atol)


def test_more_narrow_modes_than_are_looked_for():
    """Two nats off."""
    rng, shifts = np.random.default_rng(1), np.array([-1.0, 0.3, 1.0])
    sd, scales = np.resize([0.01, 0.3, 3.0], N), np.array([0.02, 0.05, 0.01])
    mean, weights = rng.normal(size=N), np.array([0.2, 0.3, 0.5])
    y = mean + shifts[rng.integers(0, 3, N)] + sd * rng.normal(size=N)

    def shifted(f):
        each = dist.Normal(f[..., None] + shifts, scales)
        return dist.MixtureSameFamily(dist.Categorical(probs=weights), each)

    parts = st.norm.logpdf(y, mean + shifts[:, None], np.hypot(sd, scales[:, None]))
    arrays = map(jnp.asarray, (y, mean, sd**2))
    exact = _mixed(parts, np.log(weights))
    np.testing.assert_allclose(_found(shifted, *arrays), exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("width", "atol"), [(2, 1e-6), (4, 0.02)])
def test_outliers_of_several_components(width, atol):
    """Five nats off with two, seven with four."""
    rng, sd = np.random.default_rng(2), 1.0
    mean = rng.normal(size=(50, width))
    y = mean + sd * rng.normal(size=mean.shape)

    def outliers(f):
        choice = dist.Categorical(probs=jnp.array([0.1, 0.9]))
        loc = jnp.stack([jnp.zeros_like(f), f], axis=-2)
        each = dist.Normal(loc, jnp.array([[3.0], [0.05]])).to_event(1)
        return dist.MixtureSameFamily(choice, each)

    far = st.norm.logpdf(y, 0.0, 3.0).sum(axis=1)
    near = st.norm.logpdf(y, mean, np.hypot(sd, 0.05)).sum(axis=1)
    exact = _mixed((far, near), np.log([0.1, 0.9]))
    variance = jnp.full(mean.shape, sd**2)
    found = _found(outliers, jnp.asarray(y), jnp.asarray(mean), variance)
    np.testing.assert_allclose(found, exact, rtol=0, atol=atol)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_component_without_a_chance(width):
    """Its weight is 0, or the data are outside its support."""
    y, shape = jnp.array([-1.0, 0.5]), (2, width)[: 1 + (width > 1)]

    def either(f):
        f = f if width == 1 else f[..., 0]
        choice = dist.Categorical(probs=jnp.array([0.3, 0.7, 0.0]))
        each = [dist.Exponential(jnp.exp(0.0 * f)), dist.Normal(f, 1.0)]
        each.append(dist.Normal(f, 1e-3))
        return dist.MixtureGeneral(choice, each, support=dist.constraints.real)

    found = _found(either, y, jnp.zeros(shape), jnp.full(shape, 0.25))
    near = np.log(0.7) + st.norm.logpdf(y, 0.0, 1.25**0.5)
    exact = np.logaddexp(near, [-np.inf, np.log(0.3) - 0.5])
    np.testing.assert_allclose(found, exact, atol=1e-3)


def test_slopes_in_weights_and_scales():
    rng = np.random.default_rng(3)
    mean, y = map(jnp.asarray, rng.normal(size=(2, 20)))
    variance = jnp.asarray(rng.uniform(0.01, 4.0, 20))

    def ours(logit, scale):
        def outliers(f):
            logits = jnp.stack([logit, 0.0])
            loc = jnp.stack([jnp.zeros_like(f), f], axis=-1)
            each = dist.Normal(loc, jnp.stack([3.0, scale]))
            return dist.MixtureSameFamily(dist.Categorical(logits=logits), each)

        return log_predictive_density(outliers, y, Marginal(mean, variance))

    def exact(logit, scale):
        near = dist.Normal(mean, jnp.sqrt(variance + scale**2)).log_prob(y)
        parts = jnp.stack([dist.Normal(0.0, 3.0).log_prob(y) + logit, near])
        return jax.nn.logsumexp(parts, axis=0) - jnp.logaddexp(logit, 0.0)

    slopes = (jax.jit(jax.jacrev(f, (0, 1)))(-2.0, 0.3) for f in (ours, exact))
    for found, right in zip(*slopes):
        np.testing.assert_allclose(found, right, atol=1e-7)
