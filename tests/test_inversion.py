"""Quantiles from distribution functions, against SciPy's."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import special, stats

import svgp_ppl as gp
from svgp_ppl.prediction.inversion import inverted
from tests.conftest import single_first

LEVELS = np.array([0.001, 0.05, 0.5, 0.95, 0.999])


def quantiles(exact, moments=None):
    """Of a distribution of SciPy, and how often F was evaluated for them."""
    count = 0

    def cdf(places):
        nonlocal count
        count += 1
        return exact.cdf(places), exact.pdf(places)

    mean, variance = exact.stats("mv") if moments is None else moments
    found = inverted(cdf, LEVELS, np.array([mean], float), np.array([variance], float))
    return found[:, 0], count


@pytest.mark.parametrize("s", [0.1, 1.0, 4.0, 8.0, 15.0, 25.0])
def test_the_standard_deviation_is_of_another_order_than_the_quantiles(s):
    # sd = e^s² where quantiles are e^(±3 s): with s of 15 it is 1e97 times the median,
    # with one of 25 infinite.
    exact = stats.lognorm(s)
    with np.errstate(over="ignore"):
        found, count = quantiles(exact)
    np.testing.assert_allclose(found, exact.ppf(LEVELS), rtol=1e-4)
    assert count < 40


@pytest.mark.parametrize("moments", [None, (1e30, np.inf), (np.inf, np.nan)])
def test_moments_are_only_a_place_to_start_from(moments):
    for exact in (stats.norm(3.0, 2.0), stats.gamma(0.05), stats.beta(20.0, 1e-2)):
        found, count = quantiles(exact, moments)
        # Shares above 1 - 1e-16 are 1.
        np.testing.assert_allclose(found, exact.ppf(LEVELS), rtol=1e-5, atol=1e-7)
        assert count < 80


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_tails_in_both_precisions(dtype):
    # F rounded as in that precision: upper tails are only known to the last digit.
    exact, p = stats.logistic(), np.array([1e-12, 1e-6, 1.0 - 1e-5])

    def cdf(places):
        return exact.cdf(places).astype(dtype).astype(float), exact.pdf(places)

    found = inverted(cdf, p, np.zeros(1, dtype), np.ones(1, dtype))[:, 0]
    np.testing.assert_allclose(found, exact.ppf(p), rtol=1e-3)


def test_a_jump_at_zero():
    class Rain:
        def cdf(self, y):
            return np.where(y < 0, 0.0, 0.6 + 0.4 * stats.gamma(2.0).cdf(y))

        def pdf(self, y):
            return np.where(y < 0, 0.0, 0.4 * stats.gamma(2.0).pdf(y))

    found, count = quantiles(Rain(), (0.8, 1.5))
    assert np.all(found[:3] == 0.0)
    later = stats.gamma(2.0).ppf((LEVELS[3:] - 0.6) / 0.4)
    np.testing.assert_allclose(found[3:], later, rtol=1e-6)
    assert count < 40


def at_variance(likelihood, variance):
    dtype = jnp.zeros(()).dtype
    x = np.zeros((1, 1), dtype)

    def model(x, y=None):
        kernel = gp.kernels.RBF(jnp.asarray(variance, dtype), 1.0)
        f = gp.sparse_gp("f", kernel, np.full((1, 1), 100.0, dtype))
        with numpyro.plate("data", len(x)):
            gp.observe("y", likelihood, f(x), obs=y)

    return gp.predict(model, {"f": np.zeros((1, 1), dtype)}, x)["y"]


@pytest.mark.thorough
@single_first
@pytest.mark.parametrize(
    "variance",
    [*(pytest.param(v, marks=pytest.mark.thorough) for v in (9.0, 25.0)), 60.0],
)
def test_positive_data_with_a_wide_latent(variance, precision):
    # log y = f + log(e), e ~ Exponential(1): F(a) = E[1 - exp(-a e^-f)].
    nodes = np.sqrt(variance) * np.linspace(-9.0, 9.0, 4001)
    weights = special.softmax(-0.5 * nodes**2 / variance)
    likelihood = gp.likelihoods.Exponential()
    found = at_variance(likelihood, variance).quantile(LEVELS)[:, 0]
    cdf = -np.expm1(-found[:, None] * np.exp(-nodes)) @ weights
    np.testing.assert_allclose(cdf, LEVELS, rtol=1e-4)


@single_first
@pytest.mark.thorough
def test_quantiles_of_shares_are_shares(precision):
    at = at_variance(lambda f: dist.Beta(20.0, jnp.exp(f - 5.0)), 25.0)
    found = at.quantile(LEVELS)[:, 0]
    assert np.all(np.diff(found) >= 0.0) and found[0] > 0.0 and found[-1] == 1.0
