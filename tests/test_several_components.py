"""Densities by importance sampling, and moments of functions of several components."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st

from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations import (
    log_predictive_density,
    predictive_mean_and_variance,
)
from svgp_ppl.expectations.modes import mode_of_integrand
from svgp_ppl.marginals import Marginal


def correlated(width, sd, num_data=30, seed=0):
    """Random marginals with one standard deviation, [N, Q], and values from them."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(num_data, width, width))
    factor *= sd / np.linalg.norm(factor, axis=-1, keepdims=True)
    covariance = factor @ np.swapaxes(factor, -1, -2)
    mean = rng.normal(size=(num_data, width))
    f = mean + np.einsum("nij,nj->ni", factor, rng.normal(size=mean.shape))
    variance = np.diagonal(covariance, axis1=-2, axis2=-1)
    return Marginal(*map(jnp.asarray, (mean, variance, covariance))), f


def density(function):
    return jax.jit(partial(log_predictive_density, function))


def moments(function, *marginal):
    return jax.jit(partial(predictive_mean_and_variance, function))(Marginal(*marginal))


# -------------------------------------------------------------------------- densities


@pytest.mark.parametrize("sd", [0.3, 3.0])
def test_density_of_outputs_with_little_noise(sd, precision):
    """Points of the marginal alone are off by 58 nats at ten times the noise."""
    marginal, f = correlated(6, sd)
    noise = np.random.default_rng(1).normal(size=f.shape)
    y = f + 0.3 * noise
    exact = [
        st.multivariate_normal(m, c + 0.09 * np.eye(6)).logpdf(one)
        for m, c, one in zip(marginal.mean, marginal.covariance, y)
    ]
    found = density(lambda f: dist.Normal(f, 0.3).to_event(1))(jnp.asarray(y), marginal)
    np.testing.assert_allclose(found, exact, atol=0.01)


def test_density_of_correlated_classes():
    """What all classes share changes nothing; without it they are independent.

    Any label, down to log densities of −20.
    """
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(200, 5)) * 6.0, rng.uniform(1.0, 20.0, (200, 5))
    covariance = variance[..., None] * np.eye(5) + 10.0
    y = jnp.asarray(rng.integers(0, 5, 200))
    find = density(lk.Softmax(5))
    mean, variance, covariance = map(jnp.asarray, (mean, variance, covariance))
    exact = find(y, Marginal(mean, variance))
    assert jnp.min(exact) < -10.0
    found = find(y, Marginal(mean, variance + 10.0, covariance))
    np.testing.assert_allclose(found, exact, atol=0.02)


def test_density_with_two_modes_and_a_saddle_between_them():
    """p(y|f) = ½ N(y; f, ½² I) + ½ N(y; −f, ½² I) has its saddle where the climb is."""

    def either(f):
        signs = dist.Categorical(jnp.full(2, 0.5))
        both = jnp.stack([f, -f], axis=-2)
        return dist.MixtureSameFamily(signs, dist.Normal(both, 0.5).to_event(1))

    y = np.array([[1.0, 1.0, -1.0, 1.0], [0.0, 0.5, 0.0, -0.5]])
    marginal = Marginal(jnp.zeros((2, 4)), jnp.ones((2, 4)))
    exact = st.norm.logpdf(y, 0.0, np.sqrt(1.25)).sum(-1)
    np.testing.assert_allclose(density(either)(y, marginal), exact, atol=0.1)


def test_slopes_and_missing_values_of_a_density():
    """In reverse mode, of a Gaussian; a datum that is NaN is so alone."""
    marginal, f = correlated(4, 1.0, num_data=3)
    y = jnp.asarray(f + 0.2)

    def total(mean, y):
        at = Marginal(mean, marginal.variance, marginal.covariance)
        return jnp.nansum(density(lambda f: dist.Normal(f, 0.5).to_event(1))(y, at))

    slopes = jax.jit(jax.grad(total))
    noisy = marginal.covariance + 0.25 * jnp.eye(4)
    exact = jnp.linalg.solve(noisy, (y - marginal.mean)[..., None])[..., 0]
    found = slopes(marginal.mean, y)
    np.testing.assert_allclose(found, exact, atol=0.02)
    one_missing = slopes(marginal.mean, y.at[1, 2].set(jnp.nan))
    np.testing.assert_allclose(one_missing[::2], found[::2], rtol=1e-6)


def test_the_mode_and_its_curvatures(precision):
    """Of a Gaussian in e, N(y; m + C e, σ² I): I + CᵀC/σ² has what they are."""
    marginal, f = correlated(3, 1.0, num_data=4)
    find = jax.jit(
        partial(mode_of_integrand, lambda f: dist.Normal(f, 0.5).to_event(1))
    )
    centre, values, vectors = find(jnp.asarray(f), marginal)
    factor = np.linalg.cholesky(np.asarray(marginal.covariance, float))
    curvature = np.eye(3) + np.swapaxes(factor, -1, -2) @ factor / 0.25
    shift = (f - np.asarray(marginal.mean))[..., None] / 0.25
    exact = np.linalg.solve(curvature, np.swapaxes(factor, -1, -2) @ shift)[..., 0]
    tight = {"rtol": 1e-3, "atol": 1e-3} if precision == 32 else {"rtol": 1e-8}
    np.testing.assert_allclose(centre, exact, **tight)
    rebuilt = (vectors * values[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)
    np.testing.assert_allclose(rebuilt, curvature, **tight)


# ---------------------------------------------------------------------------- moments


@pytest.mark.parametrize("width", [2, 3, 5])
def test_moments_of_outputs_of_one_component_each(width, precision):
    """exp f ~ log-normal; wide marginals, whatever the correlations are."""
    marginal, _ = correlated(width, 2.0, num_data=4)
    m = np.asarray(marginal.mean, float)
    rate = np.exp(m + 2.0)
    mean, variance = moments(
        lambda f: dist.Poisson(jnp.exp(f)).to_event(1),
        marginal.mean,
        marginal.variance,
        marginal.covariance,
    )
    rtol = 1e-5 if precision == 64 else 1e-4
    np.testing.assert_allclose(mean, rate, rtol=rtol)
    np.testing.assert_allclose(variance, rate + rate**2 * np.expm1(4.0), rtol=rtol)


def test_moments_of_a_mean_and_a_scale():
    """f + exp(g) ε, and steps 1/15 of a standard deviation wide; mixtures too."""
    mean, variance = np.array([[[0.5, 0.2]], [[-1.0, 0.1]]]), np.array([9.0, 2.25])
    covariance = np.array([[9.0, 4.0], [4.0, 2.25]])
    marginal = [
        jnp.asarray(mean),
        jnp.broadcast_to(variance, mean.shape),
        jnp.broadcast_to(covariance, (2, 1, 2, 2)),
        jnp.log(jnp.array([0.25, 0.75])),
    ]
    found = moments(lambda f: dist.Normal(f[..., 0], jnp.exp(f[..., 1])), *marginal)
    pi, (m, g) = np.array([0.25, 0.75]), mean[:, 0].T
    exact = pi @ (9.0 + np.exp(2.0 * g + 4.5)) + pi @ (m - pi @ m) ** 2
    np.testing.assert_allclose(np.ravel(found), [pi @ m, exact], rtol=1e-6)

    found, _ = moments(lambda f: dist.Bernoulli(logits=5.0 * f).to_event(1), *marginal)
    e = np.linspace(-10, 10, 20_001)
    steps = [
        pi
        @ [np.average(_sigmoid(5 * (m + sd * e)), weights=st.norm.pdf(e)) for m in of]
        for of, sd in zip((m, g), (3.0, 1.5))
    ]
    np.testing.assert_allclose(found[0], steps, atol=1e-3)


def _sigmoid(x):
    return 0.5 * (1.0 + np.tanh(0.5 * x))


@pytest.mark.parametrize("width", [2, 3, 4])
def test_moments_of_a_sum_and_of_a_product(width):
    """A sum is exact; in a vector each entry has the rule that it needs."""
    marginal, _ = correlated(width, 1.0, num_data=5, seed=2)
    c, m = np.asarray(marginal.covariance), np.asarray(marginal.mean)

    def function(f):
        entries = [jnp.sum(f, -1), f[..., 0] * f[..., 1], jnp.exp(2.0 * f[..., 0])]
        return dist.Normal(jnp.stack(entries, -1), 0.1).to_event(1)

    leaves = marginal.mean, marginal.variance, marginal.covariance
    mean, variance = (np.asarray(x) for x in moments(function, *leaves))
    np.testing.assert_allclose(mean[:, 0], m.sum(-1), rtol=1e-9)
    np.testing.assert_allclose(variance[:, 0], c.sum((-2, -1)) + 0.01, rtol=1e-9)
    a, b, c_ab = m[:, 0], m[:, 1], c[:, 0, 1]
    exact = 1.0 + a**2 + b**2 + 2 * a * b * c_ab + c_ab**2 + 0.01
    tight = 1e-9 if width < 4 else 0.015
    np.testing.assert_allclose(mean[:, 1], a * b + c_ab, rtol=tight, atol=tight)
    np.testing.assert_allclose(variance[:, 1], exact, rtol=tight)
    of_exp = np.exp(2.0 * a + 2.0)
    np.testing.assert_allclose(mean[:, 2], of_exp, rtol=1e-6)
    spread = of_exp**2 * np.expm1(4.0) + 0.01
    np.testing.assert_allclose(variance[:, 2], spread, rtol=1e-4)


def test_moments_have_slopes_in_reverse_mode():
    def total(mean):
        ones = jnp.ones_like(mean)
        found = predictive_mean_and_variance(
            lambda f: dist.Poisson(jnp.exp(f)).to_event(1), Marginal(mean, ones)
        )
        return jnp.sum(jnp.stack(found))

    mean = jnp.array([[0.3, -0.2]])
    rate = jnp.exp(mean + 0.5)
    exact = 2.0 * rate + 2.0 * rate**2 * jnp.expm1(1.0)
    np.testing.assert_allclose(jax.jit(jax.grad(total))(mean), exact, rtol=1e-6)


def test_moments_that_do_not_exist():
    """The variance of a Student-t with two degrees of freedom, the mean with one."""
    ones = jnp.ones((1, 4))
    mean, variance = moments(
        lambda f: dist.StudentT(2.0, f, 1.0).to_event(1), ones, ones
    )
    np.testing.assert_allclose(mean, ones, rtol=1e-6)
    assert jnp.all(jnp.isinf(variance))
    mean, _ = moments(lambda f: dist.StudentT(1.0, f, 1.0).to_event(1), ones, ones)
    assert jnp.all(jnp.isinf(mean))
