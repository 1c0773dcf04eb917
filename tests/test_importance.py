"""Importance sampling from a fit: weights, draws, and when it says no."""

import re
import warnings

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import svgp_ppl as gp
from svgp_ppl.diagnostics.pareto import pareto_shape, smoothed
from svgp_ppl.mcmc import importance
from tests.models import (
    GAUSSIAN_X,
    GAUSSIAN_Y,
    counts_model,
    gaussian_model,
    gaussian_posterior,
    projection,
)

X = np.linspace(-0.4, 0.4, 5)[:, None]
Y = np.array([2, 0, 1, 3, 1])


def one_value(x, y=None):
    """A process known by a single value, with an unknown variance: two dimensions."""
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 0.7))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, 1.0), jnp.zeros((1, 1)))
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


def exact_moments():
    """Means and variances of log variance and v, by a fine grid."""
    v, log_s = np.meshgrid(np.linspace(-6, 6, 601), np.linspace(-4, 4, 601))
    rows = []
    for s in np.exp(log_s[:, 0]):
        a, residual = projection(X, np.zeros((1, 1)), s, 1.0)
        mean = np.multiply.outer(v[0], a[:, 0])
        rows.append((Y * mean - np.exp(mean + residual / 2)).sum(axis=1))
    log_p = np.array(rows) - v**2 / 2 - log_s**2 / (2 * 0.7**2)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    means = [np.sum(p * x) for x in (log_s, v)]
    return means, [np.sum(p * (x - m) ** 2) for x, m in zip((log_s, v), means)]


def exact_guide(x, y=None):
    """The posterior of the conjugate model itself."""
    mean, covariance = map(jnp.asarray, gaussian_posterior())
    numpyro.sample("f", dist.MultivariateNormal(mean, covariance))


def draw(model, init, *args, key=0, **options):
    sizes = {"num_samples": 500, **options}
    return gp.importance_sample(jax.random.key(key), model, *args, init=init, **sizes)


@pytest.fixture(scope="module")
def poisson_fit():
    with jax.enable_x64(True):
        guide = gp.AutoGaussian(one_value)
        options = {"num_steps": 300, "progress": False}
        return gp.fit(jax.random.key(0), one_value, guide, X, Y, **options)


def test_from_the_posterior_itself_weights_are_those_of_the_tails():
    """p(v | y) = N(m, S) and a proposal t(S^½ᵀ (v − m)): the weights in closed form."""
    draws = draw(gaussian_model, (exact_guide, {}), GAUSSIAN_X, GAUSSIAN_Y)
    mean, covariance = gaussian_posterior()
    v = draws.posterior["f"].values - mean
    squares = np.einsum("csi,ij,csj->cs", v, np.linalg.inv(covariance), v)
    degrees, size = 4 * len(mean), len(mean)
    expected = (degrees + size) / 2 * np.log1p(squares / degrees) - squares / 2
    found = draws.sample_stats["log_weight"].values
    log_ratio = expected - expected[0, 0]
    np.testing.assert_allclose(found - found[0, 0], log_ratio, atol=1e-6)
    attrs = draws.posterior.attrs
    assert attrs["pareto_k"] < 0
    assert attrs["effective_sample_size"] > 0.85 * 2000
    error = np.sqrt(np.diag(covariance) / attrs["effective_sample_size"])
    np.testing.assert_array_less(np.abs(v.mean(axis=(0, 1))), 5 * error)


@pytest.mark.slow
def test_draws_have_the_moments_of_the_posterior(poisson_fit):
    draws = draw(one_value, poisson_fit, X, Y, num_samples=5000)
    attrs = draws.posterior.attrs
    assert attrs["pareto_k"] < 0.5
    size = attrs["effective_sample_size"]
    assert 0.5 * 20_000 < size < 20_000
    values = np.log(draws.posterior["variance"].values), draws.posterior["f"].values
    for x, mean, variance in zip(values, *exact_moments()):
        assert abs(np.mean(x) - mean) < 5 * np.sqrt(variance / size)
        spread = (x - mean) ** 2
        assert abs(np.mean(spread) - variance) < 5 * np.std(spread) / np.sqrt(size)


@pytest.mark.slow
def test_the_first_round_moves_the_proposals(poisson_fit, monkeypatch):
    """A fit at six times the variance: its Gaussian is not that of the posterior.

    The start is at the maximum already, with its curvature: what is left to gain is
    the difference of the mean from the maximum.
    """
    away = {**poisson_fit.params, "variance_auto_loc": jnp.asarray(6.0)}

    def effective():
        draws = draw(one_value, (poisson_fit.guide, away), X, Y, num_proposals=8000)
        return draws.posterior.attrs["effective_sample_size"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moved = effective()
        monkeypatch.setattr(importance, "_moved", lambda start, *_: start)
        assert moved > 1.2 * effective()


class Bar:
    """Interrupts after so many blocks."""

    def __init__(self, blocks):
        self.blocks, self.done = blocks, []

    def update(self, number):
        self.done.append(number)
        if len(self.done) == self.blocks:
            raise KeyboardInterrupt

    def set_postfix_str(self, words):
        pass

    def reset(self):
        pass

    def close(self):
        self.done.append("closed")


def test_an_interrupt_in_the_second_round_keeps_its_proposals(monkeypatch, poisson_fit):
    def drawn(blocks):
        bar = Bar(blocks)
        monkeypatch.setattr(importance, "progress_bar", lambda *_: bar)
        return bar, draw(one_value, poisson_fit, X, Y, num_proposals=95)

    bar, whole = drawn(100)  # ten blocks a round
    assert bar.done == 2 * [*[10] * 9, 5] + ["closed"]
    assert whole.posterior.attrs["num_proposals"] == 95
    with pytest.warns(UserWarning, match="are from 30 of 95 proposals"):
        _, fewer = drawn(13)
    assert fewer.posterior.attrs["num_proposals"] == 30
    assert np.unique(fewer.posterior["variance"]).size <= 30
    with pytest.raises(KeyboardInterrupt):
        drawn(10)  # the first round only moves the proposals


def test_weights_that_cannot_be_trusted_are_said(poisson_fit):
    narrow = dict(poisson_fit.params)
    narrow["auto_f_loc"] = narrow["auto_f_loc"] + 1.5
    narrow["auto_f_scale_tril"] = 0.1 * narrow["auto_f_scale_tril"]
    with pytest.warns(UserWarning, match=r"k-hat of the importance weights is"):
        draws = draw(one_value, (poisson_fit.guide, narrow), X, Y)
    report = gp.diagnostics.report(draws)
    assert "importance weights" in report.findings[0].what
    assert "gp.sample" in report.findings[0].try_this
    few = draws.copy()
    few.posterior.attrs = few.posterior.attrs | {"pareto_k": 0.1}
    assert re.match(
        r"The importance weights are few draws: \d+ proposals are worth \d+ draws\.",
        gp.diagnostics.report(few).findings[0].what,
    )
    healthy = gp.diagnostics.report(draw(one_value, poisson_fit, X, Y))
    assert healthy.is_healthy, str(healthy)


@pytest.mark.slow
def test_the_result_is_used_like_draws_of_chains(poisson_fit):
    draws = draw(one_value, poisson_fit, X, Y, num_samples=100, log_likelihood=True)
    assert draws.posterior["f"].shape == (4, 100, 1)
    assert gp.predict(one_value, draws, X)["y"].mean.shape == (5,)
    assert np.isfinite(gp.diagnostics.loo(draws).elpd)
    again = draw(one_value, poisson_fit, X, Y, num_samples=100)
    np.testing.assert_array_equal(again.posterior["f"], draws.posterior["f"])


def test_a_second_call_compiles_nothing(poisson_fit):
    compilations = []

    def listen(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            compilations.append(seconds)

    draw(one_value, poisson_fit, X, Y)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        draw(one_value, poisson_fit, X, Y, key=1)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert not compilations


def many(x, y=None):
    """More values than the curvature is taken of, and no q(v) for them."""
    rest = numpyro.sample("rest", dist.Normal(0.0, 1.0).expand([101]).to_event(1))
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), jnp.zeros((1, 1)))
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x) + jnp.mean(rest), obs=y)


def guide_of_many(x, y=None):
    numpyro.sample("rest", dist.Delta(jnp.zeros(101), event_dim=1))
    numpyro.sample("f", dist.Normal(jnp.zeros(1), 1.0).to_event(1))


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ((guide_of_many, {}), r"nothing to propose \['rest'\] from"),
        (None, r"init must be what gp\.fit returns"),
    ],
)
def test_what_has_no_coordinates_is_refused(as_users_call, init, message):
    with pytest.raises(ValueError, match=message):
        draw(many, init, X, Y)


def test_sizes_are_checked(as_users_call):
    with pytest.raises(ValueError, match="num_proposals"):
        draw(counts_model, None, X, Y, num_proposals=0)


@pytest.mark.skipif(not hasattr(az, "psislw"), reason="ArviZ has it before 1.0")
@pytest.mark.parametrize("degrees", [2, 5, 50])
def test_weights_are_smoothed_as_arviz_does(degrees):
    rng = np.random.default_rng(degrees)
    log_weights = np.log(np.abs(rng.standard_t(degrees, size=1000)))
    expected, shape = az.psislw(log_weights.copy())
    found = smoothed(log_weights)
    found = found - np.log(np.sum(np.exp(found)))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(pareto_shape(log_weights), shape, atol=1e-12)
    log_weights[3] = -np.inf
    assert smoothed(log_weights)[3] == -np.inf
    np.testing.assert_array_equal(smoothed(np.array([-3.0])), 0.0)
