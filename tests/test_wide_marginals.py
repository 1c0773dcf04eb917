"""E log p and log E p where the marginal is much wider than the likelihood.

Every number by a second route: Gauss–Legendre panels that end at the middle of both the
marginal and the likelihood, and shrink towards them. Errors are relative to one nat and
the value, 1e-4 is promised.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from scipy.optimize import brentq
from scipy.special import erfcx, gammaln, log_ndtr, logsumexp, ndtri

from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations import (
    ClosedForm,
    Trapezoid,
    average,
    is_log_concave,
    log_average,
    nearest_singularity,
    variational_expectation,
)
from svgp_ppl.expectations.box import log_average_on_box
from svgp_ppl.expectations.climb import best_of_likelihood
from svgp_ppl.expectations.predictive import log_predictive_density
from svgp_ppl.likelihoods import counts
from svgp_ppl.likelihoods.gaussian import mean_log_one_plus_square
from svgp_ppl.likelihoods.logistic import mean_log_sigmoid
from svgp_ppl.likelihoods.probit import mean_log_ndtr
from svgp_ppl.marginals import Marginal
from tests.conftest import both_precisions, mostly_double, mostly_single

# Means to ±100 and variances from 1e-8 to 1e4, all exact in float32; every third mean
# is within two standard deviations of the bend.
N = 48
_RNG = np.random.default_rng(0)
VARIANCES = np.geomspace(1e-8, 1e4, N).astype(np.float32).astype(float)
MEANS = np.where(
    np.arange(N) % 3 == 0,
    _RNG.uniform(-2, 2, N) * np.sqrt(VARIANCES),
    _RNG.uniform(-1, 1, N) * 10.0 ** _RNG.uniform(0, 2, N),
)
MEANS = MEANS.astype(np.float32).astype(float)
LABELS = np.arange(N) // 2 % 2
SIGNS = np.where(LABELS == 1, 1.0, -1.0)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def _panels(mean, sd, place, width, num=113):
    """Points and weights for f, over 14 standard deviations."""
    wide = np.sinh(np.linspace(-20, 20, 241))
    ends = np.concatenate([mean + sd * np.linspace(-14, 14, num), place + width * wide])
    ends = np.unique(ends[np.abs(ends - mean) <= 14 * sd])
    half = 0.5 * np.diff(ends)[:, None]
    f = 0.5 * (ends[1:] + ends[:-1])[:, None] + half * _NODES
    return f.ravel(), (half * _WEIGHTS).ravel()


def _by_panels(log_p, place, width):
    """E log p and log E p of every datum; log_p(f, n), place and width [N]."""
    both = []
    for n, (m, sd) in enumerate(zip(MEANS, np.sqrt(VARIANCES))):
        f, weights = _panels(m, sd, place[n], width)
        log_q, values = st.norm.logpdf(f, m, sd) + np.log(weights), log_p(f, n)
        both.append((np.sum(np.exp(log_q) * values), logsumexp(log_q + values)))
    return np.array(both).T


def _ours(make, values, y, method=None):
    """E log p, log E p, and the derivatives of both by everything."""
    mean = jnp.asarray(MEANS)
    values = tuple(jnp.asarray(value, mean.dtype) for value in values)
    return _run(make, method, jnp.asarray(y), mean, jnp.asarray(VARIANCES), values)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(make, method, y, mean, variance, values):
    def both(mean, variance, values):
        likelihood, at = make(*values), Marginal(mean, variance)
        return jnp.stack(
            [
                variational_expectation(likelihood, y, at, method=method),
                log_predictive_density(likelihood, y, at),
            ]
        )

    out, pull_back = jax.vjp(both, mean, variance, values)
    row = jnp.ones(N)
    slopes = [pull_back(jnp.stack(rows)) for rows in ((row, 0 * row), (0 * row, row))]
    return out, slopes


def _agree(ours, exact, wanted=1e-4):
    values, slopes = ours
    error = np.abs(np.asarray(values, float) - exact) / (1.0 + np.abs(exact))
    assert np.all(error < wanted), np.max(error, axis=1)
    assert all(np.all(np.isfinite(slope)) for slope in jax.tree.leaves(slopes))
    # Jensen, up to the rounding of the values.
    slack = (1e-8 if values.dtype == np.float64 else 1e-5) * (1.0 + np.abs(exact[0]))
    tolerance = slack + wanted / 10 * np.abs(exact[0])
    assert np.all(values[0] <= values[1] + tolerance)


@mostly_single
@pytest.mark.parametrize("link", ["logit", "probit"])
def test_bernoulli(link, precision):
    log_g = log_ndtr if link == "probit" else lambda f: -np.logaddexp(0, -f)
    exact = _by_panels(lambda f, n: log_g(SIGNS[n] * f), np.zeros(N), 1.0)
    ours = _ours(lambda: lk.Bernoulli(link), (), LABELS)
    _agree(ours, exact, 1e-5 if precision == 32 else 2e-6)


@pytest.mark.thorough
@mostly_single
def test_additive_noise_inside_the_logarithm(precision):
    """The rule asked for by name; the default is the bound with the noise outside."""
    for noise, flip in ((1.0, 1e-3), (2.897, 1e-8), (1e-4, 0.3)):
        sd = noise**0.5
        exact = _by_panels(
            lambda f, n, sd=sd, flip=flip: np.logaddexp(
                np.log(flip) + log_ndtr(-SIGNS[n] * f / sd),
                np.log1p(-flip) + log_ndtr(SIGNS[n] * f / sd),
            ),
            SIGNS * sd * ndtri(flip),
            sd,
        )

        def make(flip, noise=noise):
            return lk.AdditiveNoiseBernoulli(noise, flip)

        _agree(_ours(make, (flip,), LABELS, Trapezoid()), exact)


@pytest.mark.thorough
@mostly_single
def test_student_t(precision):
    """Data near the mean, outliers of the marginal and outliers of the noise."""
    away = _RNG.normal(size=N) * np.where(np.arange(N) % 4 == 0, 4.0, 0.5)
    for df, scale in ((1.0, 0.01), (4.0, 0.3), (30.0, 10.0)):
        y = (MEANS + away * (np.sqrt(VARIANCES) + scale)).astype(np.float32)
        y = y.astype(float)
        exact = _by_panels(
            lambda f, n, y=y, df=df, scale=scale: st.t.logpdf(y[n], df, f, scale),
            y,
            scale * df**0.5,
        )
        # In float32 the latent near 100 has a rounding of 4e-6, 4e-4 of this scale.
        wanted = 1e-3 if precision == 32 and scale == 0.01 else 1e-4
        _agree(_ours(lk.StudentT, (df, scale), y), exact, wanted)


@mostly_single
@pytest.mark.parametrize("df", [1e3, 1e4, 1e6])
def test_student_t_of_many_degrees_of_freedom(df, precision):
    mean, sd, scale = np.array([0.0, 0.7, -3.0]), np.array([1e-6, 0.8, 2.0]), 0.9
    y, likelihood = np.array([0.0, 1.0, 2.0]), lk.StudentT(df, scale)
    at = Marginal(jnp.asarray(mean), jnp.asarray(sd**2))
    exact = []
    for m, s, datum in zip(mean, sd, y):
        f, weights = _panels(m, s, datum, scale)
        log_q = st.norm.logpdf(f, m, s) + np.log(weights)
        log_p = st.t.logpdf(datum, df, f, scale)
        exact.append((np.sum(np.exp(log_q) * log_p), logsumexp(log_q + log_p)))
    expected, density = (
        jax.jit(functools.partial(function, likelihood))(jnp.asarray(y), at)
        for function in (variational_expectation, log_predictive_density)
    )
    np.testing.assert_allclose(expected, np.array(exact)[:, 0], rtol=1e-5)
    np.testing.assert_allclose(density, np.array(exact)[:, 1], rtol=2e-5)


def test_the_logarithm_of_one_plus_a_square():
    """5e-6 for E x² up to 1e10, by the trapezoidal rule in asinh x."""
    s = np.linspace(-35.0, 35.0, 40_001)
    x, width = np.sinh(s), np.cosh(s) * (s[1] - s[0])
    mean, variance = np.meshgrid([0.0, 0.3, 20.0, 1e4], [1e-2, 1.0, 1e3, 1e9])
    mean, variance = mean.ravel(), variance.ravel()
    exact = [
        np.sum(width * np.log1p(x**2) * st.norm.pdf(x, m, v**0.5))
        for m, v in zip(mean, variance)
    ]
    is_resolved = mean < 1e3 * variance**0.5  # by the steps in asinh x
    find = jax.jit(mean_log_one_plus_square)
    ours = np.asarray(find(mean, variance))
    np.testing.assert_allclose(
        ours[is_resolved], np.asarray(exact)[is_resolved], rtol=0, atol=5e-6
    )
    known = find(mean, np.zeros(len(mean)))
    np.testing.assert_allclose(known, np.log1p(mean**2), rtol=1e-13, atol=1e-14)


@jax.jit
def _density_of_counts(y, mean, variance, exposure):
    """log E p alone: E log p is minus infinity, and rightly so."""

    def value(mean, variance, exposure):
        at = Marginal(mean, variance)
        return log_predictive_density(lk.Poisson(exposure), y, at)

    out, pull_back = jax.vjp(value, mean, variance, exposure)
    return out, pull_back(jnp.ones(N))


@mostly_single
def test_poisson_is_finite(precision):
    """And right where it is not absurdly improbable."""
    for count in (0, 3, 200):
        y, data = jnp.full(N, count), map(jnp.asarray, (MEANS, VARIANCES, 1.0))
        values, slopes = _density_of_counts(y, *data)
        assert np.all(np.isfinite(values))
        assert all(np.all(np.isfinite(slope)) for slope in slopes)
        with np.errstate(over="ignore"):
            exact = _by_panels(
                lambda f, n, count=count: count * f - np.exp(f) - gammaln(count + 1.0),
                np.full(N, np.log(count + 0.5)),
                (count + 0.5) ** -0.5,
            )[1]
        sane = exact > -50.0
        assert np.sum(sane) > 10
        found = np.asarray(values)[sane]
        np.testing.assert_allclose(found, exact[sane], atol=1e-4, rtol=1e-5)


@pytest.mark.thorough
def test_a_climb_does_not_go_back_and_forth():
    """Between two points of one height, as here a step of its own length once did."""
    at = Marginal(jnp.array([450.0]), jnp.array([900.0]))
    # The mass is about the step, 15 standard deviations away.
    f = np.linspace(-900.0, 500.0, 400_001)
    exact = logsumexp(st.norm.logpdf(f, 450.0, 30.0) - np.logaddexp(0, f))
    exact += np.log(f[1] - f[0])
    found = log_predictive_density(lk.Bernoulli(), jnp.array([0]), at)
    np.testing.assert_allclose(found, exact, rtol=1e-6)


@mostly_double
@pytest.mark.parametrize("gap", [5.0, 100.0, 600.0])
def test_the_probability_of_a_wide_class(gap, precision):
    ends = np.array([-gap / 2, gap / 2])
    mean = np.array([0.0, 0.4 * gap, -0.6 * gap, 0.1 * gap])
    sd = np.array([0.3, 0.5, 0.5, 1.0]) * gap
    exact = []
    for m, s in zip(mean, sd):
        f = np.linspace(m - 12 * s, m + 12 * s, 400_001)
        log_p = -np.logaddexp(0, f - ends[1]) - np.logaddexp(0, ends[0] - f)
        log_p = log_p + np.log(-np.expm1(-gap)) + st.norm.logpdf(f, m, s)
        exact.append(logsumexp(log_p) + np.log(f[1] - f[0]))
    at = Marginal(jnp.asarray(mean), jnp.asarray(sd**2))
    likelihood = lk.Ordinal(ends)
    density = jax.jit(lambda k: log_predictive_density(likelihood, k, at))
    each = [density(jnp.full(4, k)) for k in range(3)]
    tolerance = 1e-4 if precision == 32 else 1e-6
    np.testing.assert_allclose(each[1], exact, atol=tolerance)
    np.testing.assert_allclose(np.sum(np.exp(each), axis=0), 1.0, atol=tolerance)


@pytest.mark.thorough
@mostly_double
def test_the_density_of_a_likelihood_with_two_modes(precision):
    """One written by a user, of which nothing is registered."""

    def of_square(f):
        return dist.Normal(jnp.square(f), 0.1)

    def of_sign(f):
        weights = dist.Categorical(jnp.array([0.3, 0.7]))
        parts = dist.Normal(jnp.stack([f, -f], -1), 0.1)
        return dist.MixtureSameFamily(weights, parts)

    mean, sd = np.array([0.0, 0.0, 1.0]), np.array([10.0, 1.0, 0.1])
    at = Marginal(jnp.asarray(mean), jnp.asarray(sd**2))
    for likelihood, y in ((of_square, 4.0), (of_sign, 2.0)):
        exact = []
        for m, s in zip(mean, sd):
            sides = [_panels(m, s, place, 0.1) for place in (-2.0, 2.0)]
            halves = [(f[f * c > 0], w[f * c > 0]) for (f, w), c in zip(sides, (-1, 1))]
            f, weights = map(np.concatenate, zip(*halves))
            log_p = np.asarray(likelihood(jnp.asarray(f)).log_prob(y), float)
            exact.append(logsumexp(log_p + st.norm.logpdf(f, m, s) + np.log(weights)))
        found = log_predictive_density(likelihood, jnp.full(3, y), at)
        np.testing.assert_allclose(found, exact, atol=1e-4)


def test_the_density_of_a_tiny_positive_number():
    """y e^{−f} stops to matter far from the mean and from f = 0, at log (c y)."""
    y, mean, variance = np.array([1e-12, 1e9]), np.zeros(2), np.full(2, 900.0)

    @jax.jit
    def density(y, *moments):
        return log_predictive_density(lk.Gamma(0.02), y, Marginal(*moments))

    ours = density(y, mean, variance)
    f = np.linspace(-300.0, 300.0, 60_001)[:, None]
    terms = st.gamma.logpdf(y, 0.02, scale=np.exp(f) / 0.02) + st.norm.logpdf(f, 0, 30)
    exact = logsumexp(terms, axis=0) + np.log(0.01)
    np.testing.assert_allclose(ours, exact, atol=1e-5)


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_the_mode_of_counts_in_single_precision(precision):
    """Within a tenth of the width of the integrand, by bisection of its slope."""
    y, mean = 2964.0, [3.76, 8.0, -90.0, 8.0, 3.0]
    variance = [7821.0, 1e4, 1e4, 0.1, 1e-6]
    marginal = Marginal(jnp.asarray(mean), jnp.asarray(variance))
    ours = np.asarray(jax.jit(counts.mode_below_exponential)(y, 1.0, 0.0, marginal))
    for e, m, sd in zip(ours, mean, np.sqrt(variance)):

        def slope(e, m=m, sd=sd):
            return -e + sd * (y - np.exp(m + sd * e))

        exact = brentq(slope, -9.0, min(9.0, (20.0 - m) / sd))
        width = 1.0 / np.sqrt(1.0 + sd**2 * np.exp(m + sd * exact))
        assert abs(e - exact) < 0.1 * width


@both_precisions
@pytest.mark.parametrize("censored", [False, True])
def test_times_far_beyond_what_is_expected(censored, precision):
    """Where the hazard falls by e at every step of a climb, or overflows."""
    k, sd = np.array([20.0, 10.0, 5.0, 20.0, 2.0]), np.array([0.1, 0.1, 0.1, 1.0, 0.3])
    distance = np.array([4.0, 6.0, 11.0, 6.0, -2.0])
    y, marginal = np.exp(distance), Marginal(jnp.zeros(5), jnp.asarray(sd**2))
    density = functools.partial(log_predictive_density, lk.Weibull(k, censored))
    ours = jax.jit(density)(jnp.asarray(y), marginal)
    f = np.linspace(-15.0, 15.0, 300_001)[:, None]
    log_hazard = k * (np.log(y) - f)
    log_p = -np.exp(np.minimum(log_hazard, 700.0))
    log_p += 0.0 if censored else np.log(k / y) + log_hazard
    exact = logsumexp(log_p + st.norm.logpdf(f, 0.0, sd), axis=0) + np.log(1e-4)
    np.testing.assert_allclose(ours, exact, rtol=2e-5, atol=1e-5)


# What is registered as log-concave, and data for it.
LOG_CONCAVE = {
    lk.Bernoulli: (lk.Bernoulli(), [0, 1]),
    lk.Binomial: (lk.Binomial(9), [0, 4, 9]),
    lk.Exponential: (lk.Exponential(), [1e-3, 1.0, 50.0]),
    lk.Gamma: (lk.Gamma(3.0), [1e-3, 1.0, 50.0]),
    lk.NegativeBinomial: (lk.NegativeBinomial(2.0), [0, 7, 300]),
    lk.Ordinal: (lk.Ordinal(jnp.array([-9.0, 0.0, 1.0])), [0, 1, 2, 3]),
    lk.Poisson: (lk.Poisson(2.0), [0, 7, 300]),
    lk.Weibull: (lk.Weibull(jnp.array([0.5, 3.0]), jnp.array([0, 1])), [0.1, 9.0]),
}


def test_what_is_called_log_concave_is():
    """Second differences of log p(y|f) in f, for everything that is registered."""
    assert {*LOG_CONCAVE, lk.Softmax} == set(is_log_concave.registry) - {object}
    f = np.linspace(-15.0, 15.0, 301)[:, None]
    for likelihood, y in LOG_CONCAVE.values():
        assert is_log_concave(likelihood)
        log_p = jax.jit(lambda f, y, of=likelihood: of(f).log_prob(y))
        values = np.asarray(log_p(f + np.zeros(len(y)), np.array(y)))
        assert np.all(np.isfinite(values))
        bends = np.diff(values, 2, axis=0)
        assert np.all(bends <= 1e-9 * (1.0 + np.abs(values[1:-1])))
    assert not is_log_concave(lk.StudentT(4.0, 1.0))


def test_softmax_is_log_concave():
    """Along lines through its three components."""
    start, along = np.random.default_rng(0).normal(size=(2, 50, 3))
    f = start + np.linspace(-15.0, 15.0, 301)[:, None, None] * along
    likelihood = lk.Softmax(3)
    assert is_log_concave(likelihood)
    log_p = jax.jit(lambda f: [likelihood(f).log_prob(y) for y in range(3)])
    for values in map(np.asarray, log_p(f)):
        bends = np.diff(values, 2, axis=0)
        assert np.all(bends <= 1e-9 * (1.0 + np.abs(values[1:-1])))


# Likelihood and data, and what is zero at the singularities of log p(y|f), or at ∓ i,
# a quarter of a turn on, where exp of it is a step.
AMOUNT, TIMES = 3.0, np.array([1e-3, 0.7, 40.0])
SINGULARITIES = {
    "Bernoulli": (lk.Bernoulli(), [0, 1], lambda f, y: 1 + np.exp(f)),
    "Binomial": (lk.Binomial(9), [0, 4, 9], lambda f, y: 1 + np.exp(f)),
    "Beta": (lk.Beta(3.0), [0.1, 0.9], lambda f, y: 1 + np.exp(f)),
    "NegativeBinomial": (
        lk.NegativeBinomial(2.0, AMOUNT),
        [0, 7],
        lambda f, y: 1 + AMOUNT * np.exp(f) / 2,
    ),
    "StudentT": (
        lk.StudentT(4.0, 0.3),
        [0.7, -2.0],
        lambda f, y: 1 + ((y - f) / 0.3) ** 2 / 4,
    ),
    "zero": (
        lk.ZeroInflatedPoisson(0.2, AMOUNT),
        [0],
        lambda f, y: 0.2 + 0.8 * np.exp(-AMOUNT * np.exp(f)),
    ),
    "not zero": (
        lk.ZeroInflatedPoisson(0.2, AMOUNT),
        [1, 7],
        lambda f, y: AMOUNT * np.exp(f) - 1j,
    ),
    "Poisson": (lk.Poisson(AMOUNT), [0, 7], lambda f, y: AMOUNT * np.exp(f) - 1j),
    "Exponential": (lk.Exponential(), TIMES, lambda f, y: y * np.exp(-f) + 1j),
    "Gamma": (lk.Gamma(0.4), TIMES, lambda f, y: 0.4 * y * np.exp(-f) + 1j),
    "Weibull": (lk.Weibull(1.7), TIMES, lambda f, y: (y * np.exp(-f)) ** 1.7 + 1j),
    "lowest": (lk.Ordinal([-1.0, 2.0]), [0], lambda f, y: 1 + np.exp(f + 1)),
    "highest": (lk.Ordinal([-1.0, 2.0]), [2], lambda f, y: 1 + np.exp(f - 2)),
    "between": (lk.Ordinal([-1.0, 2.0]), [1], lambda f, y: 1 + np.exp(f - 0.5)),
}


@pytest.mark.parametrize("name", SINGULARITIES)
def test_singularities_are_some(name):
    """About them rules place their nodes; between two cutpoints it is halfway."""
    likelihood, y, zero = SINGULARITIES[name]
    place, width = map(np.asarray, nearest_singularity(likelihood, jnp.asarray(y)))
    assert np.all(width > 0.0)
    np.testing.assert_allclose(zero(place + 1j * width, np.asarray(y)), 0.0, atol=1e-6)


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_slopes_of_additive_noise_at_extremes(precision):
    """Finite where one side of the label has all the probability."""
    mean = jnp.array([-1e3, -30.0, 0.0, 30.0, 1e3])
    y = jnp.array([1, 1, 1, 0, 1])
    for flip in (1e-8, 1e-3):

        def total(mean, variance, flip):
            likelihood = lk.AdditiveNoiseBernoulli("probit", flip)
            return jnp.sum(
                log_predictive_density(likelihood, y, Marginal(mean, variance))
            )

        slopes = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(
            mean, jnp.full(5, 1e-4), jnp.float32(flip)
        )
        assert all(np.all(np.isfinite(slope)) for slope in slopes)


# --------------------------------------------------------------------- invariants


@pytest.mark.thorough
@mostly_single
def test_a_latent_known_exactly(precision):
    """Both quantities are log p at the mean, and the slope is its slope."""
    mean = jnp.array([-30.0, -2.0, 0.1, 0.7, 8.0])
    at, y = Marginal(mean, jnp.zeros(5)), jnp.array([0, 1, 1, 0, 1])
    cases = [(lk.Bernoulli(), None), (lk.Bernoulli("probit"), None)]
    cases += [
        (lk.StudentT(3.0, 0.1), None),
        (lk.AdditiveNoiseBernoulli(1.0), Trapezoid()),
    ]

    @jax.jit
    def run(mean):
        def expectations(mean):
            held = Marginal(mean, jnp.zeros(5))
            return [
                variational_expectation(likelihood, y, held, method=method)
                for likelihood, method in cases
            ]

        def exact(mean):
            return [likelihood(mean).log_prob(y) for likelihood, _ in cases]

        tangent = (jnp.ones(5),)
        densities = [
            log_predictive_density(likelihood, y, at) for likelihood, _ in cases
        ]
        return (
            jax.jvp(expectations, (mean,), tangent),
            jax.jvp(exact, (mean,), tangent),
            densities,
        )

    (values, slopes), (exact, exact_slopes), densities = run(mean)
    tolerance = 1e-12 if precision == 64 else 2e-6
    np.testing.assert_allclose(values, exact, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        slopes, exact_slopes, rtol=10 * tolerance, atol=10 * tolerance
    )
    np.testing.assert_allclose(densities, exact, rtol=max(tolerance, 1e-9), atol=1e-6)


def _hazard(f):
    return np.sqrt(2 / np.pi) / erfcx(-f / np.sqrt(2))


@mostly_single
def test_slopes_of_the_probit_keep_their_digits(precision):
    """E h and −½ E h (h + f) with h = φ/Φ: far below zero nearly all cancels."""
    exact = []
    for mean, sd in zip(MEANS, np.sqrt(VARIANCES)):
        f, weights = _panels(mean, sd, 0.0, 1.0)
        weights = weights * st.norm.pdf(f, mean, sd)
        hazard = _hazard(f)
        exact.append([weights @ hazard, weights @ (-0.5 * hazard * (hazard + f))])
    mean, variance = jnp.asarray(MEANS), jnp.asarray(VARIANCES)
    slopes = jax.jit(jax.grad(lambda *at: jnp.sum(mean_log_ndtr(*at)), (0, 1)))
    found = np.stack(slopes(mean, variance), axis=1)
    tolerance = 1e-4 if precision == 32 else 1e-5  # of 40 nodes: 3e-6
    np.testing.assert_allclose(found, exact, rtol=tolerance, atol=tolerance)


@mostly_single
def test_derivatives_of_a_censored_density_far_out(precision):
    f = np.array([-3e4, -1e3, -100.0, -5.1, -4.9, 0.0, 4.0])

    def log_p(f):
        return lk.CensoredGaussian(1.0, 1)(f).log_prob(0.0)

    slope = jax.jit(jax.vmap(jax.grad(log_p)))(jnp.asarray(f))
    bend = jax.jit(jax.vmap(jax.grad(jax.grad(log_p))))(jnp.asarray(f))
    hazard = _hazard(f)
    np.testing.assert_allclose(slope, hazard, rtol=1e-5)
    # The other route has seven digits of h + f at −30,000.
    np.testing.assert_allclose(bend, -hazard * (hazard + f), rtol=1e-4)


def test_slopes_are_those_of_the_value():
    """The nodes move with the marginal and must not be felt: difference quotients."""
    mean, variance = (
        jnp.array([-40.0, -1.0, 0.3, 20.0]),
        jnp.array([900.0, 4.0, 50.0, 9]),
    )
    y, step = jnp.array([1, 0, 1, 0]), 1e-4
    for make, method in (
        (lk.Bernoulli, None),
        (lambda: lk.Bernoulli("probit"), None),
        (lambda: lk.StudentT(3.0, 0.3), None),
        (lambda: lk.AdditiveNoiseBernoulli(1.0, 0.01), Trapezoid(96)),
    ):

        @jax.jit
        def run(mean, variance, make=make, method=method):
            def value(mean, variance):
                at = Marginal(mean, variance)
                return variational_expectation(make(), y, at, method=method)

            out, pull_back = jax.vjp(value, mean, variance)
            return out, *pull_back(jnp.ones(4))

        _, by_mean, by_variance = run(mean, variance)
        up, down = (run(mean + sign * step, variance)[0] for sign in (1, -1))
        np.testing.assert_allclose(by_mean, (up - down) / (2 * step), atol=2e-5)
        up, down = (run(mean, variance + sign * step)[0] for sign in (1, -1))
        np.testing.assert_allclose(by_variance, (up - down) / (2 * step), atol=2e-5)


def test_the_logistic_function_as_a_mixture():
    """20 normal distribution functions, to 3e-13 at zero variance."""
    m = np.linspace(-60.0, 60.0, 2001)
    found = jax.jit(mean_log_sigmoid)(m, 0.0 * m)
    np.testing.assert_allclose(found, -np.logaddexp(0.0, -m), atol=5e-13)


def test_the_method_by_name():
    """Without a singularity it is a plain rule; for several components an error."""
    at, y = Marginal(jnp.array([0.3, -1.0]), jnp.array([0.5, 2.0])), jnp.zeros(2)

    def normal(f):
        return dist.Normal(f, 1.0)

    @jax.jit
    def run(y, at):
        return (
            average(jnp.square, at, Trapezoid()),
            variational_expectation(normal, y, at, method=Trapezoid()),
            variational_expectation(lk.Gaussian(1.0), y, at, method=ClosedForm()),
        )

    second, value, exact = run(y, at)
    mean, variance = np.asarray(at.mean), np.asarray(at.variance)
    np.testing.assert_allclose(second, mean**2 + variance, rtol=1e-13)
    assert nearest_singularity(normal, y) is None
    np.testing.assert_allclose(value, exact, rtol=1e-12)
    two = Marginal(jnp.zeros((2, 2)), jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="for one component, and this latent has 2"):
        variational_expectation(lk.Softmax(2), y, two, method=Trapezoid())


# ----------------------------------------------------------- networks, several modes


def _network(num_outputs, num_nodes, spread, noise, correlated, num=16):
    """Means [N, Q (1 + P)], covariances and data; every fourth datum an outlier."""
    rng, width = np.random.default_rng(5), num_nodes * (1 + num_outputs)
    factor = rng.normal(size=(num, width, width)) * (spread / width) ** 0.5
    if not correlated:
        sd = np.sqrt(spread * rng.uniform(0.2, 1.0, size=(num, 1, width)))
        factor = sd * np.eye(width)
    mean = rng.normal(size=(num, width)) * rng.choice([0, 0.3, 1, 2.0], size=(num, 1))
    h = mean + np.einsum("nij,nj->ni", factor, rng.normal(size=(num, width)))
    w = h[:, num_nodes:].reshape(num, num_outputs, num_nodes)
    away = np.where(np.arange(num) % 4 == 0, 4.0, 1.0)[:, None]
    y = np.einsum("npq,nq->np", w, h[:, :num_nodes])
    y = y + noise * away * rng.normal(size=y.shape)
    covariance = factor @ np.swapaxes(factor, 1, 2)
    return tuple(a.astype(np.float32).astype(float) for a in (mean, covariance, y))


def _network_by_panels(mean, covariance, y, noise, e, log_weights):
    """log E p of one datum, f = m + F e at the points e [S, Q], weights integrated."""
    q, p = e.shape[1], len(y)
    f_cov, cross = covariance[:q, :q], covariance[q:, :q]
    gain = cross @ np.linalg.inv(f_cov)
    rest = (covariance[q:, q:] - gain @ cross.T).reshape(p, q, p, q)
    shift = e @ np.linalg.cholesky(f_cov).T
    f = mean[:q] + shift
    w = (mean[q:] + shift @ gain.T).reshape(-1, p, q)
    residual = y - np.einsum("spq,sq->sp", w, f)
    spread = np.einsum("si,piqj,sj->spq", f, rest, f) + noise**2 * np.eye(p)
    inside = np.einsum(
        "sp,sp->s", residual, np.linalg.solve(spread, residual[..., None])[..., 0]
    )
    log_p = -0.5 * (inside + np.linalg.slogdet(2 * np.pi * spread)[1])
    return logsumexp(log_weights + log_p + np.sum(st.norm.logpdf(e), axis=1))


def _network_ours(num_nodes, mean, covariance, y, noise, correlated):
    data = map(jnp.asarray, (mean, covariance, y, noise))
    value, slopes = _network_run(num_nodes, correlated, *data)
    assert all(np.all(np.isfinite(slope)) for slope in slopes)
    return value


@functools.partial(jax.jit, static_argnums=(0, 1))
def _network_run(num_nodes, correlated, mean, covariance, y, noise):
    def value(mean, covariance):
        variance = jnp.diagonal(covariance, axis1=1, axis2=2)
        at = Marginal(mean, variance, covariance if correlated else None)
        return log_predictive_density(lk.GPRN(y.shape[1], num_nodes, noise), y, at)

    out, pull_back = jax.vjp(value, mean, covariance)
    return out, pull_back(jnp.ones(len(y)))


@pytest.mark.parametrize(
    ("correlated", "precision"),
    [
        (True, 32),
        pytest.param(False, 64, marks=pytest.mark.slow),
        pytest.param(False, 32, marks=pytest.mark.slow),
        pytest.param(True, 64, marks=pytest.mark.slow),
    ],
    indirect=["precision"],
)
def test_a_network_of_one_node(correlated, precision):
    """Up to covariances of 4: two signs, two roots, and the mode of the marginal."""
    for spread, noise in ((0.5, 0.1), (4.0, 0.1), (4.0, 0.7)):
        mean, covariance, y = _network(2, 1, spread, noise, correlated)
        exact = []
        for m, c, data in zip(mean, covariance, y):
            sd = c[0, 0] ** 0.5
            f, weights = _panels(m[0], sd, 0.0, 0.01, 1121)
            e, log_weights = ((f - m[0]) / sd)[:, None], np.log(weights / sd)
            exact.append(_network_by_panels(m, c, data, noise, e, log_weights))
        ours = _network_ours(1, mean, covariance, y, noise, correlated)
        np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("correlated", [False, True])
def test_a_network_of_two_nodes(correlated):
    """1e-4 at covariances up to 4 and noise of 0.3 and more; 2e-3 at noise of 0.1."""
    for spread, noise, atol, side in (
        (1.0, 0.3, 1e-4, 401),
        (4.0, 1.0, 1e-4, 401),
        (4.0, 0.3, 1e-4, 401),
        (4.0, 0.1, 2e-3, 801),
    ):
        t = np.linspace(-10.0, 10.0, side)
        e = np.stack(np.meshgrid(t, t), axis=-1).reshape(-1, 2)
        log_weights = np.full(len(e), 2 * np.log(t[1] - t[0]))
        mean, covariance, y = _network(1, 2, spread, noise, correlated, 8)
        exact = [
            _network_by_panels(m, c, data, noise, e, log_weights)
            for m, c, data in zip(mean, covariance, y)
        ]
        ours = _network_ours(2, mean, covariance, y, noise, correlated)
        np.testing.assert_allclose(ours, exact, rtol=0, atol=atol)


def test_a_box_around_narrow_peaks():
    """Σ of two Gaussians, 0.02 wide and nine standard deviations apart; three axes."""
    for centres, width in (
        ([[5.0, -3.0], [-4.0, 2.0]], 0.2),
        ([[0.3, 0.1, -2.0]], 0.02),
    ):
        centres = jnp.asarray(centres)

        def log_g(e, centres=centres, width=width):
            squares = jnp.sum(jnp.square(e[..., None, :] - centres), axis=-1)
            return jax.scipy.special.logsumexp(-0.5 * squares / width**2, axis=-1)

        ours = jax.jit(lambda f=log_g, c=centres: log_average_on_box(f, c[:1]))()
        total = 1.0 + width**2
        each = -0.5 * np.sum(np.square(centres), axis=1) / total
        each = each + 0.5 * centres.shape[1] * np.log(width**2 / total)
        np.testing.assert_allclose(ours, logsumexp(each), atol=1e-4)


class TwoPeaks(NamedTuple):
    """Two narrow peaks at 1 and −1.5, the first one higher."""

    f: Any

    def log_prob(self, y):
        peaks = [dist.Normal(self.f, 0.2).log_prob(at) for at in (1.0, -1.5)]
        return jnp.logaddexp(peaks[0] + 1.0, peaks[1]) + 0.0 * y


class Kinked(NamedTuple):
    """N(y; |f| + g, 1): enough for Gauss–Hermite at some data, and not at others."""

    f: Any

    def log_prob(self, y):
        return dist.Normal(jnp.abs(self.f[..., 0]) + self.f[..., 1], 1.0).log_prob(y)


def test_the_density_of_a_row_does_not_depend_on_the_others():
    mean = np.array([[-0.52, -0.94], [0.5, -0.3], [-0.1, 0.2], [30.0, 1.0]])
    variance = np.array([[0.17, 0.16], [0.3, 0.5], [40.0, 9.0], [0.1, 0.2]])
    covariance = variance[..., None] * np.eye(2)
    y = np.array([-0.78, 2.0, 15.0, 29.0])

    @jax.jit
    def density(y, *moments):
        return log_predictive_density(Kinked, y, Marginal(*moments))

    data = y, mean, variance, covariance
    alone = [density(*(each[n : n + 1] for each in data)) for n in range(4)]
    together = density(*data)
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=0, atol=2e-6)


def test_peaks_are_local_maxima_and_not_slopes_of_the_highest():
    marginal, y = Marginal(jnp.zeros(3), jnp.ones(3)), jnp.zeros(3)
    find = jax.jit(lambda *data: log_average.highest_peaks(TwoPeaks, *data, 2))
    peaks = find(y, marginal)
    expected = np.outer([1.0, -1.5], np.ones(3)) / (1.0 + 0.2**2)
    np.testing.assert_allclose(peaks, expected, atol=0.1)


def test_peaks_near_a_singularity_are_seen_however_close(monkeypatch):
    """At 0.29 and 0.31, where cells of the grid are an eighth elsewhere."""

    class Close(NamedTuple):
        f: Any

        def log_prob(self, y):
            peaks = [dist.Normal(self.f, 0.003).log_prob(at) for at in (0.31, 0.29)]
            return jnp.logaddexp(peaks[0] + 1.0, peaks[1]) + 0.0 * y

    monkeypatch.setattr(log_average, "nearest_singularity", lambda *_: (0.3, 0.01))
    marginal, y = Marginal(jnp.zeros(1), jnp.ones(1)), jnp.zeros(1)
    find = jax.jit(lambda *data: log_average.highest_peaks(Close, *data, 2))
    peaks = np.asarray(find(y, marginal))
    np.testing.assert_allclose(peaks[:, 0], [0.31, 0.29], atol=0.002)


def test_where_a_likelihood_is_not_a_number_it_has_no_maximum():
    def log_likelihood(e):
        return jnp.where(e < 0.0, jnp.nan, -100.0 - jnp.square(e - 3.0))

    @jax.jit
    def find(like):
        start = log_average._best_of_grid(log_likelihood, like)
        return best_of_likelihood(log_likelihood, start)

    np.testing.assert_allclose(find(np.ones(2)), 3.0, atol=1e-3)


@pytest.mark.parametrize(("link", "exact"), [("probit", -2 / np.pi), ("logit", -0.25)])
def test_without_variance_the_curvature_is_that_of_the_likelihood(link, exact):
    def expected(mean):
        marginal = Marginal(jnp.atleast_1d(mean), jnp.zeros(1))
        return variational_expectation(lk.Bernoulli(link), jnp.ones(1), marginal)[0]

    found = jax.jit(jax.grad(jax.grad(expected)))(0.0)
    np.testing.assert_allclose(found, exact, rtol=1e-6)
