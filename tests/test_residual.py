"""The bound with the covariance of p(f|u) scaled, against dense computations."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import mask, scale
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

import svgp_ppl as gp
from tests.models import (
    GAUSSIAN_X,
    GAUSSIAN_Y,
    GAUSSIAN_Z,
    LENGTHSCALE,
    NOISE,
    VARIANCE,
    gaussian_model,
    gaussian_posterior,
    projection,
    rbf,
)

# Few inducing inputs: u leaves much open.
Z = GAUSSIAN_Z[1:3]
COUNTS = np.random.default_rng(1).poisson(np.exp(GAUSSIAN_Y))


def bound_of(model, guide, *args, **options):
    loss = gp.MarginalELBO(**options)
    evaluate = jax.jit(lambda: loss.loss(jax.random.key(0), {}, model, guide, *args))
    return -float(evaluate())


def gaussian_guide(mean, covariance):
    def guide(x, y=None):
        parts = jnp.asarray(mean), jnp.asarray(covariance)
        numpyro.sample("f", dist.MultivariateNormal(*parts))

    return guide


def with_noise(scale):
    """Regression whose noise may differ from datum to datum."""

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(VARIANCE, LENGTHSCALE), jnp.asarray(Z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(scale), f(x), obs=y)

    return model


def dense(scale):
    """Bounds of Titsias (2009) and (2025), and the log evidence; the best q(v)."""
    a, residual = projection(GAUSSIAN_X, Z, VARIANCE, LENGTHSCALE)
    noise = np.broadcast_to(np.square(scale), residual.shape)
    low_rank = multivariate_normal(None, a @ a.T + np.diag(noise)).logpdf(GAUSSIAN_Y)
    gram = rbf(GAUSSIAN_X, GAUSSIAN_X, VARIANCE, LENGTHSCALE)
    exact = multivariate_normal(None, gram + np.diag(noise)).logpdf(GAUSSIAN_Y)
    covariance = np.linalg.inv(np.eye(len(Z)) + (a.T / noise) @ a)
    mean = covariance @ (a.T / noise) @ GAUSSIAN_Y
    ratio = residual / noise
    bounds = low_rank - ratio.sum() / 2, low_rank - np.log1p(ratio).sum() / 2, exact
    return bounds, gaussian_guide(mean, covariance)


@pytest.mark.parametrize("scale", [0.4, np.linspace(0.2, 0.8, 15)])
def test_gaussian_bounds_are_those_of_titsias(scale):
    (of_2009, of_2025, exact), guide = dense(scale)
    data = GAUSSIAN_X, GAUSSIAN_Y
    found = bound_of(with_noise(scale), guide, *data)
    np.testing.assert_allclose(found, of_2009, atol=1e-8)
    tighter = bound_of(with_noise(scale), guide, *data, conditional="scaled")
    np.testing.assert_allclose(tighter, of_2025, atol=1e-8)
    assert of_2009 + 1.0 < tighter < exact


@pytest.mark.thorough
@pytest.mark.parametrize("power", [0.1, np.linspace(0.2, 2.0, 15)])
def test_a_power_of_the_likelihood_is_another_noise(power):
    """N(y; f, σ²)^t is N(y; f, σ²/t) up to a constant."""
    noise = 0.4
    (_, of_2025, exact), guide = dense(noise / np.sqrt(power))
    logs = np.log(2 * np.pi * noise**2 / power) - power * np.log(2 * np.pi * noise**2)
    constant = np.sum(0.5 * np.broadcast_to(logs, len(GAUSSIAN_X)))

    def model(x, y, copies):
        f = gp.sparse_gp("f", gp.kernels.RBF(VARIANCE, LENGTHSCALE), jnp.asarray(Z))
        with numpyro.plate("data", copies * len(x), len(x)), scale(scale=power):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)

    def bounds(copies):
        found = [
            bound_of(
                model, lambda x, y, _: guide(x), GAUSSIAN_X, GAUSSIAN_Y, copies, **o
            )
            for o in ({"conditional": "scaled"}, {})
        ]
        return found[0], found[0] - found[1]

    (tighter, gain), (_, of_copies) = bounds(1), bounds(3)
    np.testing.assert_allclose(tighter, of_2025 + constant, atol=1e-8)
    np.testing.assert_allclose(of_copies, 3 * gain, atol=1e-8)
    assert of_2025 < exact


@pytest.mark.thorough
@pytest.mark.parametrize("exposure, highest", [(1.0, 0.8), (200.0, 0.01), (1e5, 2e-4)])
def test_one_scale_of_counts_is_the_best_one(exposure, highest):
    """E log Poisson(y; c e^f) = y m − c exp(m + s/2) + …, s the variance."""
    mean, root = np.array([0.5, -0.2]), np.array([[0.5, 0.0], [0.1, 0.4]])
    a, residual = projection(GAUSSIAN_X, Z, VARIANCE, LENGTHSCALE)
    known = np.sum((a @ root) ** 2, axis=1)

    def poisson(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(VARIANCE, LENGTHSCALE), jnp.asarray(Z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(exposure), f(x), obs=y)

    def gained(nu):
        less = exposure * np.exp(a @ mean + (known + nu * residual) / 2)
        more = exposure * np.exp(a @ mean + (known + residual) / 2)
        return np.sum(more - less) - len(a) / 2 * (nu - 1 - np.log(nu))

    best = minimize_scalar(lambda nu: -gained(nu), bounds=(1e-6, 1.0), method="bounded")
    assert best.x < highest
    guide, data = gaussian_guide(mean, root @ root.T), (GAUSSIAN_X, COUNTS)
    found = bound_of(poisson, guide, *data, conditional="scaled")
    np.testing.assert_allclose(
        found - bound_of(poisson, guide, *data), -best.fun, rtol=1e-3
    )


def test_a_scale_out_of_range_gains_nothing():
    """The signs of y are lost: log p has two peaks, and is convex between them.

    Its steps go to a scale below zero, whose logarithm is not a number.
    """

    def of_either_sign(f):
        parts = dist.Normal(jnp.stack([f, -f], axis=-1), 1.0)
        return dist.MixtureSameFamily(dist.Categorical(logits=jnp.zeros(2)), parts)

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(9.0, 1.0), jnp.full((1, 1), 50.0))
        with numpyro.plate("data", len(x)):
            gp.observe("y", of_either_sign, f(x), obs=y)

    guide, data = gaussian_guide(np.zeros(1), np.eye(1)), (GAUSSIAN_X, np.full(15, 1.9))
    plain = bound_of(model, guide, *data)
    assert bound_of(model, guide, *data, conditional="scaled") == plain


def test_one_scale_of_several_components_has_their_covariance():
    """y ~ N(ρ_1 + ρ_2, s²): E log p falls by the variance of the sum, over 2 s²."""
    mixing, noise = np.array([[1.0, 0.5], [-0.3, 0.8]]), 0.7

    def of_sum(f):
        return dist.Normal(f[..., 0] + f[..., 1], noise)

    def model(x, y=None):
        kernel = gp.kernels.RBF(VARIANCE, LENGTHSCALE)
        f = gp.sparse_gp("f", kernel, jnp.asarray(Z), num_outputs=2)
        with numpyro.plate("data", len(x)):
            gp.observe("y", of_sum, mixing @ f(x), obs=y)

    def guide(x, y=None):
        numpyro.sample("f", dist.Normal(jnp.zeros((2, 2)), 0.5).to_event(2))

    _, residual = projection(GAUSSIAN_X, Z, VARIANCE, LENGTHSCALE)
    ratio = np.sum(mixing.sum(axis=0) ** 2) * np.sum(residual) / noise**2
    number = 2 * len(residual)
    nu = 1 / (1 + ratio / number)
    gained = (1 - nu) * ratio / 2 - number / 2 * (nu - 1 - np.log(nu))
    data = GAUSSIAN_X, GAUSSIAN_Y
    scaled = bound_of(model, guide, *data, conditional="scaled")
    np.testing.assert_allclose(scaled - bound_of(model, guide, *data), gained)


def test_masked_rows_gain_nothing():
    known = np.arange(15) % 3 > 0
    guide = gaussian_guide(*gaussian_posterior())
    few = GAUSSIAN_X[known], GAUSSIAN_Y[known]

    def of_rows(x, y=None):
        f = gp.sparse_gp(
            "f", gp.kernels.RBF(VARIANCE, LENGTHSCALE), jnp.asarray(GAUSSIAN_Z)
        )
        with numpyro.plate("data", len(x)), mask(mask=jnp.asarray(known)):
            gp.observe("y", gp.likelihoods.Gaussian(NOISE), f(x), obs=y)

    whole = bound_of(gaussian_model, guide, *few, conditional="scaled")
    found = bound_of(of_rows, guide, GAUSSIAN_X, GAUSSIAN_Y, conditional="scaled")
    np.testing.assert_allclose(found, whole, atol=1e-9)


def in_batches(likelihood):
    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(VARIANCE, LENGTHSCALE), jnp.asarray(Z))
        with numpyro.plate("data", 15, subsample_size=5) as rows:
            gp.observe("y", likelihood, f(x[rows]), obs=y[rows])

    return model


def test_batches_gain_their_share_of_a_gaussian():
    _, guide = dense(0.4)
    model = in_batches(gp.likelihoods.Gaussian(0.4))
    data = jnp.asarray(GAUSSIAN_X), jnp.asarray(GAUSSIAN_Y)
    whole = bound_of(with_noise(0.4), guide, *data, conditional="scaled")

    def at(key):
        loss = gp.MarginalELBO(conditional="scaled").loss
        return -loss(key, {}, model, guide, *data)

    values = jax.jit(jax.vmap(at))(jax.random.split(jax.random.key(0), 4000))
    error = float(jnp.std(values)) / np.sqrt(4000)
    assert abs(float(jnp.mean(values)) - whole) < 5 * error


def test_batches_of_counts_are_refused():
    _, guide = dense(0.4)
    model = in_batches(gp.likelihoods.Poisson())
    data = jnp.asarray(GAUSSIAN_X), jnp.asarray(COUNTS)
    with pytest.raises(ValueError, match="needs all rows at every step"):
        bound_of(model, guide, *data, conditional="scaled")


def both_observed(observed):
    """A layer between processes; ``observed``: whether data see the inner one too."""

    def model(x, y=None):
        far = jnp.full((1, 1), 50.0)
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), far)
        h = gp.propagate("h", f(x))
        kernel = gp.kernels.RBF(0.01, 1.0)
        g = gp.sparse_gp("g", kernel, far, mean=lambda h: jnp.tanh(10 * h[:, 0]) ** 2)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), g(h), obs=y)
            if observed:
                at_zero = jnp.zeros(len(x))
                gp.observe("low", gp.likelihoods.Gaussian(0.01), f(x), obs=at_zero)

    return model


def test_process_that_is_observed_and_propagated_is_refused():
    # The layer is drawn without the scale: −2.8 where the log evidence is −23.9.
    def guide(x, y=None):
        for name in "fg":
            numpyro.sample(name, dist.Normal(jnp.zeros(1), 1.0).to_event(1))

    data = jnp.zeros((1, 1)), jnp.ones(1)
    plain, scaled = (
        bound_of(both_observed(False), guide, *data, conditional=c)
        for c in ("prior", "scaled")
    )
    assert scaled > plain
    assert np.isfinite(bound_of(both_observed(True), guide, *data))
    with pytest.raises(ValueError, match=r"'low' sees.*\['f'\], which go through"):
        bound_of(both_observed(True), guide, *data, conditional="scaled")


def test_another_word_is_refused(as_users_call):
    with pytest.raises(ValueError, match='conditional must be "prior" or "scaled"'):
        gp.MarginalELBO(conditional="best")
