"""The rules for E g(f): exact where they should be, unbiased where they are drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import seed, trace

from svgp_ppl import kernels, observe, sparse_gp, stack
from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations import (
    ClosedForm,
    GaussHermite,
    MonteCarlo,
    QuasiMonteCarlo,
    average,
    default_method,
    hermite_grid,
    is_random,
    normal_nodes,
    points,
    variational_expectation,
)
from svgp_ppl.linalg import small_cholesky
from svgp_ppl.marginals import Marginal
from tests.conftest import mostly_double

N = 3


def _correlated(width, dtype=np.float64):
    rng = np.random.default_rng(width)
    factor = 0.5 * rng.normal(size=(N, width, width)).astype(dtype)
    covariance = factor @ np.swapaxes(factor, 1, 2)
    mean = rng.normal(size=(N, width)).astype(dtype)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    return Marginal(*map(jnp.asarray, (mean, variance, covariance)))


def _softmax(f):
    return dist.Categorical(logits=f)


def _product(f):
    """Neither additive nor symmetric in the components, nor in their correlation."""
    scale = jnp.exp(0.3 * jnp.tanh(jnp.sum(f[..., 1:], axis=-1)))
    return dist.Normal(f[..., 0] * f[..., 1], scale)


@pytest.mark.parametrize("num_nodes", [3, 20])
def test_gauss_hermite_is_exact_for_polynomials(num_nodes):
    """Moments of the standard normal up to degree 2 num_nodes − 1."""
    nodes, weights = hermite_grid(num_nodes, 1)
    double_factorial = 1.0
    for degree in range(2, min(2 * num_nodes, 20), 2):
        double_factorial *= degree - 1
        np.testing.assert_allclose(
            weights @ nodes[:, 0] ** degree, double_factorial, rtol=1e-10
        )
        np.testing.assert_allclose(weights @ nodes[:, 0] ** (degree + 1), 0, atol=1e-3)


@mostly_double
def test_second_moments_of_a_tensor_grid(precision):
    for width in (2, 3):
        marginal = _correlated(width, np.float32 if precision == 32 else np.float64)
        second = jax.jit(
            lambda m: average(lambda f: f[..., :, None] * f[..., None, :], m)
        )(marginal)
        m = np.asarray(marginal.mean)
        exact = np.asarray(marginal.covariance) + m[:, :, None] * m[:, None, :]
        tolerance = 1e-12 if precision == 64 else 1e-5
        np.testing.assert_allclose(second, exact, rtol=tolerance, atol=tolerance)


def _brute_force(likelihood, y, marginal, draws=100_000):
    rng = np.random.default_rng(0)
    factor = np.linalg.cholesky(np.asarray(marginal.covariance))
    noise = rng.normal(size=(draws, *marginal.mean.shape))
    f = np.asarray(marginal.mean) + np.einsum("nqr,snr->snq", factor, noise)
    log_p = np.asarray(jax.jit(lambda f: likelihood(f).log_prob(y))(f))
    return log_p.mean(0), log_p.std(0) / draws**0.5


@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("kind", ["softmax", "product"])
def test_several_correlated_components(kind, width):
    """Tensor grids up to three components, quasi-random points for more."""
    marginal = _correlated(width)
    likelihood = _softmax if kind == "softmax" else _product
    y = jnp.arange(N) % width if kind == "softmax" else jnp.array([-0.5, 0.3, 1.0])
    value, error = _brute_force(likelihood, y, marginal)
    method = None if width <= 3 else QuasiMonteCarlo(1024)
    ours = jax.jit(
        lambda: variational_expectation(likelihood, y, marginal, method=method)
    )()
    # 1024 quasi-random points leave about 1 % of the spread of log p.
    rule = 0.0 if width <= 3 else 0.02 * error * 100_000**0.5
    assert np.all(np.abs(ours - value) < 5 * error + rule)
    uncorrelated = Marginal(marginal.mean, marginal.variance)
    without = jax.jit(
        lambda: variational_expectation(likelihood, y, uncorrelated, method=method)
    )()
    assert np.any(np.abs(without - value) > 10 * error)


@mostly_double
@pytest.mark.parametrize("method", [QuasiMonteCarlo(32), MonteCarlo(32)], ids=str)
def test_drawn_nodes_are_unbiased(method, precision):
    """The mean over keys of moments that the tails decide: E f⁴ = 3, E e^{2f} = e²."""

    @jax.jit
    def moments(keys):
        def one(key):
            nodes, weights = normal_nodes(method, 2, key)
            f, g = nodes[:, 0], nodes[:, 1]
            functions = [f**2, f**4, jnp.exp(2 * g), f * g, f * f * g]
            return jnp.stack([weights @ values for values in functions])

        return jax.vmap(one)(keys)

    draws = np.asarray(moments(random.split(random.key(0), 20_000)), np.float64)
    error = draws.std(0) / len(draws) ** 0.5
    exact = np.array([1.0, 3.0, np.exp(2.0), 0.0, 0.0])
    assert np.all(np.abs(draws.mean(0) - exact) < 5 * error)


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_compiled_nodes_are_the_nodes(precision):
    """XLA 0.10 on a CPU lost those after the 1024th, in float32 only."""
    marginal = _correlated(2, np.float32)
    tiled = Marginal(
        *(
            jnp.concatenate([a] * 6)[:16]
            for a in (marginal.mean, marginal.variance, marginal.covariance)
        )
    )
    nodes, _ = normal_nodes(MonteCarlo(1600), 2)
    factor = np.linalg.cholesky(np.asarray(tiled.covariance, np.float64))
    by_hand = np.einsum("nqr,sr->snq", factor, nodes) + np.asarray(tiled.mean)
    np.testing.assert_allclose(jax.jit(points)(tiled, nodes), by_hand, atol=1e-4)


def test_quasi_monte_carlo_beats_monte_carlo():
    marginal, y = _correlated(4), jnp.arange(N)

    @jax.jit
    def spread(keys):
        def values(method):
            return jax.vmap(
                lambda key: variational_expectation(
                    _softmax, y, marginal, method=method, key=key
                )
            )(keys)

        return [jnp.std(values(m), 0) for m in (QuasiMonteCarlo(128), MonteCarlo(128))]

    quasi, plain = spread(random.split(random.key(0), 200))
    assert np.all(np.asarray(quasi) < 0.5 * np.asarray(plain))


def test_choice_of_the_rule():
    assert default_method(1) == GaussHermite(20) and default_method(2) == GaussHermite(
        20
    )
    assert isinstance(default_method(3), GaussHermite)
    assert isinstance(default_method(4), QuasiMonteCarlo)
    assert not is_random(None, 3) and is_random(None, 4)
    assert is_random(MonteCarlo(), 1) and not is_random(ClosedForm(), 1)


def test_method_overrides_the_closed_form():
    """Three nodes miss exp(f), which the closed form has exactly."""

    def value(y, marginal, method=None, key=None):
        return variational_expectation(
            lk.Poisson(), y, marginal, method=method, key=key
        )

    @jax.jit
    def run(*data):
        methods = ClosedForm(), None, GaussHermite(3), GaussHermite(40)
        keys = None, None, random.key(1), random.key(2)
        return (
            [value(*data, method) for method in methods],
            [value(*data, MonteCarlo(), key) for key in keys],
        )

    marginal = Marginal(np.zeros(N), np.full(N, 2.0))
    (exact, default, coarse, fine), draws = run(np.arange(N), marginal)
    np.testing.assert_allclose(default, exact)
    assert np.all(np.abs(coarse - exact) > 1e-3)
    np.testing.assert_allclose(fine, exact, rtol=1e-9)
    # Without a key the nodes stay what they are; with one they are drawn.
    draws = np.asarray(draws)
    np.testing.assert_array_equal(draws[0], draws[1])
    assert np.all(draws[2] != draws[3])


def test_wrong_methods_are_explained():
    marginal, y = Marginal(jnp.zeros(N), jnp.ones(N)), jnp.zeros(N)
    with pytest.raises(ValueError, match=r"Beta has no closed-form.*GaussHermite"):
        variational_expectation(lk.Beta(4.0), y, marginal, method=ClosedForm())
    with pytest.raises(ValueError, match=r"function has no closed-form"):
        variational_expectation(
            lambda f: dist.Normal(f, 1.0), y, marginal, method=ClosedForm()
        )


def test_method_of_a_site():
    """``observe(method=...)`` is heeded, and draws anew under another seed."""
    x = np.linspace(0, 1, 4)[:, None]
    y = np.array([0.1, 0.4, -0.2, 0.3])

    def model(method):
        f = sparse_gp("f", kernels.RBF(), x[:2])
        g = sparse_gp("g", kernels.RBF(), x[1:3])
        with numpyro.plate("data", 4):
            latent = stack([f(x), g(x)])
            observe("y", lk.HeteroscedasticGaussian(), latent, obs=y, method=method)

    def value(method, key):
        sites = trace(seed(model, key)).get_trace(method)
        return sites["y"]["fn"]

    assert value(MonteCarlo(8), 0).key is not None
    assert value(GaussHermite(8), 0).key is None and value(None, 0).key is None
    assert value(MonteCarlo(8), 0).method == MonteCarlo(8)


@mostly_double
def test_factors_of_singular_covariances(precision):
    """A component that repeats another, and one that is known exactly."""
    base = np.array([[1.3, 0.4], [0.4, 0.8]])
    repeat = np.array([[1.0, 0], [0, 1], [1, 0], [0, 0]])
    covariance = jnp.asarray(repeat @ base @ repeat.T)[None]
    factor = jax.jit(small_cholesky)(covariance)
    tolerance = 1e-14 if precision == 64 else 1e-6
    np.testing.assert_allclose(
        factor @ np.swapaxes(factor, 1, 2), covariance, atol=tolerance
    )
    slope = jax.jit(jax.grad(lambda c: jnp.sum(small_cholesky(c))))(covariance)
    assert np.all(np.isfinite(slope))
