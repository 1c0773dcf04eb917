"""Distribution functions with large parameters, against SciPy's in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from scipy import special, stats

import svgp_ppl as gp
from svgp_ppl.expectations import incomplete
from tests.conftest import both_precisions, single_first

AWAY = np.linspace(-4.0, 4.0, 33)  # standard deviations
cdf = jax.jit(incomplete.cdf)
slopes = jax.jit(jax.vmap(jax.grad(incomplete.cdf, 1), (None, 0)))


def error(distribution, exact, places):
    """The largest one at places that the precision can tell apart."""
    places = np.asarray(jnp.asarray(places))
    found = cdf(distribution, places)
    return np.max(np.abs(found - exact.cdf(places.astype(np.float64))))


def float_of(value):
    return float(jnp.asarray(value, float))


@both_precisions
@pytest.mark.parametrize("mean", [90.0, 1e3, 1e5, 3e6])
def test_counts(mean, precision):
    # Rounding of the places and of the parameters is what is left in float32.
    places = np.floor(mean + np.sqrt(mean) * AWAY)
    assert error(dist.Poisson(mean), stats.poisson(mean), places) < 5e-5
    for concentration in (0.5, 5.0, 400.0):
        own = dist.NegativeBinomial2(mean, concentration)
        sd = np.sqrt(mean + mean**2 / concentration)
        places = np.floor(np.maximum(mean + sd * AWAY, 0.0))
        rate = float(own.rate)
        exact = stats.nbinom(concentration, rate / (1.0 + rate))
        assert error(own, exact, places) < 1e-4


@both_precisions
@pytest.mark.parametrize("size", [120.0, 1e4, 1e7])
def test_positive_numbers_and_shares(size, precision):
    places = (size + np.sqrt(size) * AWAY) / 3.0
    gamma = dist.Gamma(size, 3.0)
    assert error(gamma, stats.gamma(size, scale=1.0 / 3.0), places) < 2e-4
    for share in (0.5, 0.02, 0.9):
        a, b = float_of(size * share), float_of(size * (1.0 - share))
        places = share + np.sqrt(share * (1.0 - share) / size) * AWAY
        places = np.clip(places, 1e-6, 1.0 - 1e-6)
        assert error(dist.Beta(a, b), stats.beta(a, b), places) < 2e-4


@single_first
@pytest.mark.parametrize(
    "total", [1, pytest.param(30, marks=pytest.mark.thorough), 5000, 2_000_000]
)
@pytest.mark.parametrize(
    "logit", [-9.0, pytest.param(-1.0, marks=pytest.mark.thorough), 0.0, 3.0]
)
def test_successes_and_failures(total, logit, precision):
    logits = float_of(logit)
    share = special.expit(logits)
    for own in (dist.BinomialLogits, dist.BinomialProbs):
        given = logits if own is dist.BinomialLogits else float_of(share)
        exact = stats.binom(total, share)
        places = np.floor(total * share + exact.std() * AWAY)
        places = np.unique(np.clip(places, 0, total))
        assert error(own(given, total), exact, places) < 3e-4
    assert cdf(dist.BinomialLogits(logits, total), total) == 1.0
    places = np.floor(np.linspace(0.0, 8.0, 20) / share)
    geometric = stats.geom(share, loc=-1)
    assert error(dist.GeometricLogits(logits), geometric, places) < 1e-5
    assert error(dist.GeometricProbs(float_of(share)), geometric, places) < 1e-5


@single_first
@pytest.mark.parametrize("df", [0.5, 4.0, 150.0, 1e4, 1e9])
def test_heavy_tails(df, precision):
    places = np.concatenate([AWAY, 1e-3 * AWAY, [-1e6, 1e6]])
    assert error(dist.StudentT(df), stats.t(df), places) < 2e-5
    slope = slopes(dist.StudentT(df), places)
    np.testing.assert_allclose(slope, stats.t.pdf(places, df), atol=2e-5)


@single_first
def test_slopes_are_densities(precision):
    # Newton's method for quantiles takes them; relative to the largest.
    size = 4e6
    for own in (dist.Gamma(size, 1.0), dist.Beta(size, 2.0 * size)):
        mean, sd = float(own.mean), float(np.sqrt(own.variance))
        exact = stats.gamma(size) if mean > 1 else stats.beta(size, 2.0 * size)
        places = np.asarray(jnp.asarray(mean + sd * AWAY))
        slope = np.asarray(slopes(own, places))
        np.testing.assert_allclose(
            sd * slope, sd * exact.pdf(places.astype(float)), atol=2e-3
        )


@single_first
def test_ends(precision):
    found = cdf(dist.Poisson(1e6), np.array([0.0, 10.0, 1e9]))
    np.testing.assert_array_equal(found, [0.0, 0.0, 1.0])
    found = cdf(dist.NegativeBinomial2(np.array([0.0, 1e-20, 1e30]), 2.0), 1e4)
    np.testing.assert_allclose(found, [1.0, 1.0, 0.0], atol=1e-6)
    found = cdf(dist.Beta(1e6, np.array([1e6, 0.5])), np.array([0.0, 1.0]))
    np.testing.assert_allclose(found, [0.0, 1.0], atol=1e-12)


def test_other_distributions_have_their_own():
    class Wider(dist.Poisson):
        def cdf(self, value):
            return 0.5 * super().cdf(value)

    assert float(incomplete.cdf(Wider(1e6), 1e9)) == 0.5
    assert float(incomplete.cdf(dist.Normal(), 0.0)) == 0.5
    with pytest.raises(NotImplementedError):
        incomplete.cdf(dist.BetaBinomial(1.0, 2.0, 5), 1)


@pytest.mark.parametrize("precision", [32], indirect=True)
@pytest.mark.thorough
def test_intervals_of_large_counts(precision):
    x, level = np.zeros((1, 1), np.float32), np.float32(np.log(3e5))

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1e-8, 1.0), np.zeros((1, 1), np.float32))
        with numpyro.plate("data", len(x)):
            likelihood = gp.likelihoods.NegativeBinomial(8.0)
            gp.observe("y", likelihood, f(x) + level, obs=y)

    at = gp.predict(model, {"f": np.zeros((1, 1), np.float32)}, x)["y"]
    exact = stats.nbinom(8.0, 8.0 / (8.0 + 3e5))
    ends = np.array([0.05, 0.5, 0.95])
    np.testing.assert_allclose(at.quantile(ends)[:, 0], exact.ppf(ends), rtol=1e-3)
    drawn = np.mean(at.sample(random.key(0), 2000)[:, 0] <= at.quantile(0.5))
    assert abs(drawn - 0.5) < 5 * np.sqrt(0.25 / 2000)  # once in 2e6 keys


@single_first
def test_intervals_of_many_trials(precision):
    # Averaged over a grid of f: the distribution function at the ends.
    dtype = jnp.zeros(()).dtype
    x, total = np.zeros((1, 1), dtype), 200_000

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(0.25, 1.0), np.full((1, 1), 100.0, dtype))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Binomial(total), f(x) - 1.0, obs=y)

    at = gp.predict(model, {"f": np.zeros((1, 1), dtype)}, x)["y"]
    levels = np.array([0.05, 0.5, 0.95])
    found = at.quantile(levels)
    nodes = np.linspace(-8.0, 8.0, 20_001)
    exact = stats.binom(total, special.expit(0.5 * nodes - 1.0)).cdf(found)
    exact = exact @ special.softmax(-0.5 * nodes**2)
    np.testing.assert_allclose(exact, levels, atol=1e-3)
