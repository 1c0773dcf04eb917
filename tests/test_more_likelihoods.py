"""Counts, shares, positive numbers, ordered classes, censored data: second routes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from scipy import stats
from scipy.special import expit, gammaln, logsumexp

import svgp_ppl as gp
from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations import (
    log_predictive_density,
    predictive_mean_and_variance,
    variational_expectation,
)
from svgp_ppl.marginals import Marginal
from tests.conftest import both_precisions, single_first

# Every mean with every variance; the data go round.
MEANS, VARIANCES = (
    a.ravel() for a in np.meshgrid([-1.6, -0.3, 0.7, 2.1], [1e-4, 0.05, 0.4, 1.3, 4.0])
)
N = len(MEANS)
AMOUNTS = np.linspace(0.3, 4.0, N)
COUNTS = np.arange(N) % 7
POSITIVE = np.geomspace(0.05, 20.0, N)
SHARES = np.linspace(0.02, 0.97, N)
TOTALS = 6 + np.arange(N) % 3
REAL = np.linspace(-2.0, 3.0, N)
CUTPOINTS = np.array([-1.2, 0.1, 1.9])
CENSORED = np.arange(N) % 3 - 1  # below, known, above


def ordered(f, y):
    edges = np.concatenate([[-np.inf], CUTPOINTS, [np.inf]])
    return np.log(expit(edges[y + 1] - f) - expit(edges[y] - f))


def censored_gaussian(f, y):
    z = (f - y) / 0.7
    tails = np.where(CENSORED > 0, stats.norm.logcdf(z), stats.norm.logsf(z))
    return np.where(CENSORED == 0, stats.norm.logpdf(y, f, 0.7), tails)


def censored_weibull(f, y):
    scale = np.exp(f)
    late = stats.weibull_min.logsf(y, 1.7, scale=scale)
    return np.where(CENSORED > 0, late, stats.weibull_min.logpdf(y, 1.7, scale=scale))


def zero_inflated(f, y):
    count = stats.poisson.logpmf(y, AMOUNTS * np.exp(f)) + np.log(0.7)
    return np.where(y == 0, np.logaddexp(count, np.log(0.3)), count)


def negative_binomial(f, y):
    mean = AMOUNTS * np.exp(f)
    return stats.nbinom.logpmf(y, 1.4, 1.4 / (1.4 + mean))


# Class -> likelihood, data, log p(y | f) by SciPy, E y and Var y given f.
CASES = {
    "NegativeBinomial": (
        lk.NegativeBinomial(1.4, AMOUNTS),
        COUNTS,
        negative_binomial,
        lambda f: (
            AMOUNTS * np.exp(f),
            AMOUNTS * np.exp(f) * (1 + AMOUNTS * np.exp(f) / 1.4),
        ),
    ),
    "ZeroInflatedPoisson": (
        lk.ZeroInflatedPoisson(0.3, AMOUNTS),
        COUNTS,
        zero_inflated,
        lambda f: (
            0.7 * AMOUNTS * np.exp(f),
            0.7 * AMOUNTS * np.exp(f) * (1 + 0.3 * AMOUNTS * np.exp(f)),
        ),
    ),
    "Binomial": (
        lk.Binomial(TOTALS),
        COUNTS,
        lambda f, y: stats.binom.logpmf(y, TOTALS, expit(f)),
        lambda f: (TOTALS * expit(f), TOTALS * expit(f) * expit(-f)),
    ),
    "Beta": (
        lk.Beta(5.0),
        SHARES,
        lambda f, y: stats.beta.logpdf(y, 5.0 * expit(f), 5.0 * expit(-f)),
        lambda f: (expit(f), expit(f) * expit(-f) / 6.0),
    ),
    "Gamma": (
        lk.Gamma(2.5),
        POSITIVE,
        lambda f, y: stats.gamma.logpdf(y, 2.5, scale=np.exp(f) / 2.5),
        lambda f: (np.exp(f), np.exp(2 * f) / 2.5),
    ),
    "Exponential": (
        lk.Exponential(),
        POSITIVE,
        lambda f, y: stats.expon.logpdf(y, scale=np.exp(f)),
        lambda f: (np.exp(f), np.exp(2 * f)),
    ),
    "Ordinal": (lk.Ordinal(CUTPOINTS), COUNTS % 4, ordered, None),
    "CensoredGaussian": (
        lk.CensoredGaussian(0.7, CENSORED),
        REAL,
        censored_gaussian,
        lambda f: (f, 0.49 + 0.0 * f),
    ),
    "Weibull": (
        lk.Weibull(1.7, CENSORED > 0),
        POSITIVE,
        censored_weibull,
        lambda f: tuple(
            np.exp(power * f) * value
            for power, value in zip((1, 2), stats.weibull_min.stats(1.7))
        ),
    ),
}

# The trapezoidal rule in 4001 nodes, 12 standard deviations on either side.
NODES = np.linspace(-12.0, 12.0, 4001)[:, None]
WEIGHTS = stats.norm.pdf(NODES) / np.sum(stats.norm.pdf(NODES))
DENSE = MEANS + np.sqrt(VARIANCES) * NODES


@pytest.mark.parametrize("name", ["CensoredGaussian", "Weibull"])
def test_censored_distributions_are_trees_of_arrays(name):
    likelihood = CASES[name][0]
    f, y = jnp.asarray(np.linspace(-1.0, 1.0, N)), np.full(N, 0.7)
    one, other = likelihood(f), likelihood(f + 0.0)
    assert jax.tree.structure(one) == jax.tree.structure(other)
    made = jax.jit(lambda f: likelihood(f))(f)
    log_prob = jax.jit(lambda distribution, y: distribution.log_prob(y))
    np.testing.assert_allclose(log_prob(made, y), log_prob(one, y), rtol=1e-12)


@pytest.fixture(scope="module")
def computed():
    """Expectation, log predictive density and moments of every case; one program."""
    marginal = Marginal(MEANS, VARIANCES)

    def run(mean, variance):
        marginal, found = Marginal(mean, variance), {}
        for name, (likelihood, y, *_) in CASES.items():
            y = jnp.asarray(y)
            found[name] = (
                variational_expectation(likelihood, y, marginal),
                log_predictive_density(likelihood, y, marginal),
                predictive_mean_and_variance(likelihood, marginal),
                likelihood(mean).log_prob(y),
            )
        return found

    with jax.enable_x64(True):
        return jax.jit(run)(jnp.asarray(marginal.mean), jnp.asarray(marginal.variance))


@pytest.mark.parametrize("name", CASES)
def test_log_probability_is_that_of_scipy(name, computed):
    _, y, log_p, _ = CASES[name]
    np.testing.assert_allclose(computed[name][3], log_p(MEANS, y), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_expectation_is_that_of_dense_nodes(name, computed):
    _, y, log_p, _ = CASES[name]
    exact = np.sum(WEIGHTS * log_p(DENSE, y), axis=0)
    np.testing.assert_allclose(computed[name][0], exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_log_predictive_density_is_that_of_dense_nodes(name, computed):
    _, y, log_p, _ = CASES[name]
    exact = logsumexp(log_p(DENSE, y), b=WEIGHTS, axis=0)
    np.testing.assert_allclose(computed[name][1], exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_dense_nodes(name, computed):
    if name == "Ordinal":
        each = [np.exp(ordered(DENSE, np.full(N, k))) for k in range(4)]
        means = sum(k * p for k, p in enumerate(each))
        variances = sum(k * k * p for k, p in enumerate(each)) - means**2
    else:
        means, variances = CASES[name][3](DENSE)
    mean = np.sum(WEIGHTS * means, axis=0)
    variance = np.sum(WEIGHTS * (variances + (means - mean) ** 2), axis=0)
    np.testing.assert_allclose(computed[name][2][0], mean, rtol=1e-6)
    np.testing.assert_allclose(computed[name][2][1], variance, rtol=1e-5)


@pytest.mark.parametrize("mean", [3.0, 5000.0])
def test_variances_do_not_cancel_far_from_zero(mean):
    marginal = Marginal(jnp.full(1, mean, "float32"), jnp.full(1, 0.01, "float32"))
    # P(y <= k) is σ(c_k − f), here its exponential, and Var y Σ_k (39 − 2 k) P(y <= k).
    k = np.arange(20.0)
    tiny = np.sum((39.0 - 2.0 * k) * np.exp(k - 36.0 - mean + 0.005))
    for likelihood, variance in (
        (lk.StudentT(4.0, 0.1), 0.03),
        (lambda f: dist.Normal(f, 0.1), 0.02),
        (lk.Ordinal(np.arange(20.0, dtype="float32") - 36.0), tiny),
    ):
        moments = jax.jit(partial(predictive_mean_and_variance, likelihood))
        found = moments(marginal)[1]
        np.testing.assert_allclose(found, variance, rtol=1e-3, atol=1e-20)


def test_narrow_variances_are_those_of_small_changes():
    # To first order in v: Var y = μ²(1/c + v), and for Weibull μ²(π²/(6 k²) + v).
    marginal = Marginal(jnp.full(1, 3.0, "float32"), jnp.full(1, 1e-6, "float32"))
    for likelihood, relative in (
        (lk.Gamma(1e6), 2e-6),
        (lk.Weibull(200.0), np.pi**2 / 6.0 / 200.0**2),
        (lk.Poisson(1e8), 1e-6),
        (lk.NegativeBinomial(1e6, 1e8), 2e-6),
        (lk.ZeroInflatedPoisson(1e-6, 1e8), 2e-6),
    ):
        moments = jax.jit(partial(predictive_mean_and_variance, likelihood))
        mean, variance = map(np.asarray, moments(marginal))
        found = variance / np.square(mean)
        np.testing.assert_allclose(found, relative, rtol=0.03)


@pytest.mark.parametrize(
    "make, of_share, scale",
    [
        (lk.Binomial, lambda n: n, lambda n: n**2),
        (lk.Beta, lambda c: 1 / (1 + c), lambda _: 1.0),
    ],
)
def test_variances_of_large_totals_in_single_precision(make, of_share, scale):
    """E Var(y | f) + Var E(y | f), the second from differences of σ."""
    size, nodes = 1e5, np.linspace(-14.0, 14.0, 4001)
    weights = np.exp(-0.5 * nodes**2)
    weights /= weights.sum()
    mean, variance = (
        np.float32(a.ravel())
        for a in np.meshgrid([-6.0, 0.5, 6.0], [0.0, 3e-6, 1e-3, 0.5, 3.9, 4.1])
    )
    away = np.sqrt(np.float64(variance))[:, None] * nodes
    shares, rest = expit(mean[:, None] + away), expit(-mean[:, None] - away)
    rise = -shares * expit(-np.float64(mean))[:, None] * np.expm1(-away)
    of_rise = (rise - (rise @ weights)[:, None]) ** 2
    expected = (shares * rest * of_share(size) + scale(size) * of_rise) @ weights
    with jax.enable_x64(False):
        marginal = Marginal(jnp.asarray(mean), jnp.asarray(variance))
        moments = jax.jit(partial(predictive_mean_and_variance, make(size)))
        found = moments(marginal)[1]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_variances_of_nearly_certain_labels_in_single_precision():
    """p (1 − p), of labels at the last cutpoint, with 1 − p far below the rounding."""
    f = np.float32([-20.0, 20.0])
    by_logit, by_probit = expit(f.astype(float)), stats.norm.cdf(f.astype(float) / 2)
    for likelihood, p in (
        (lk.Bernoulli(), by_logit),
        (lk.Bernoulli("probit"), by_probit),
        (lk.Ordinal([0.0]), by_logit),
    ):
        spread = 0.0 if p is by_logit else 3.0
        with jax.enable_x64(False):
            marginal = Marginal(jnp.asarray(f), jnp.full(2, spread, jnp.float32))
            moments = jax.jit(partial(predictive_mean_and_variance, likelihood))
            found = moments(marginal)[1]
        np.testing.assert_allclose(found, p * p[::-1], rtol=1e-4)


@both_precisions
def test_relative_variances_of_sharp_times(precision):
    """y = t^{1/k} = e^{g/k} with t exponential, by quadrature over g."""
    k = np.float32([0.5, 2.0, 3.9, 4.1, 50.0, 1e3, 1e5])
    g, step = np.linspace(-45.0, 6.0, 20_001, retstep=True)
    rise = np.expm1(g / k.astype(float)[:, None])
    weights = step * np.exp(g - np.exp(g))
    mean = rise @ weights
    exact = np.square(rise - mean[:, None]) @ weights / np.square(1.0 + mean)
    marginal = Marginal(jnp.zeros(len(k)), jnp.zeros(len(k)))
    likelihood = lk.Weibull(jnp.asarray(k, float))
    moments = jax.jit(predictive_mean_and_variance)(likelihood, marginal)
    mean, variance = map(np.asarray, moments)
    rtol = 3e-5 if precision == 32 else 1e-11
    np.testing.assert_allclose(variance / np.square(mean), exact, rtol=rtol)


def test_a_zero_of_a_high_rate_has_a_derivative():
    def expected(mean):
        marginal = Marginal(jnp.full(1, mean), jnp.full(1, 0.5))
        likelihood = lk.ZeroInflatedPoisson(0.3)
        return variational_expectation(likelihood, jnp.zeros(1), marginal)[0]

    value, slope = jax.jit(jax.value_and_grad(expected))(np.float32(90.0))
    np.testing.assert_allclose(value, np.log(0.3), rtol=1e-6)
    assert slope == 0.0


# Their random numbers take seconds to compile.
LONG = {"NegativeBinomial", "Beta", "Exponential", "Gamma", "Binomial"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in CASES],
)
def test_draws_have_the_moments_and_the_cdf(name):
    likelihood, _, _, moments = CASES[name]

    @jax.jit
    def run(f):
        distribution = likelihood(f)
        draws = distribution.sample(random.key(0), (20_000,))
        return draws.astype(float), distribution.mean, distribution.variance

    f = np.full(N, 0.4)
    draws, mean, variance = map(np.asarray, run(f))
    if moments is not None:
        exact = moments(f)
        np.testing.assert_allclose(mean, np.broadcast_to(exact[0], N), rtol=1e-6)
        np.testing.assert_allclose(variance, np.broadcast_to(exact[1], N), rtol=1e-6)
    error = np.sqrt(variance / len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5.0 * error)
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.15)
    try:
        share = np.asarray(
            jax.jit(lambda f, y: likelihood(f).cdf(y))(f, np.round(mean))
        )
    except NotImplementedError:
        assert name in ("Binomial",)
        return
    below = np.mean(draws <= np.round(mean), axis=0)
    assert np.all(np.abs(below - share) < 5.0 * 0.5 / np.sqrt(len(draws)))


@pytest.mark.parametrize("name", CASES)
def test_no_overflow_far_out(name):
    """Log probabilities and their slopes are numbers a hundred units away."""
    likelihood, y, *_ = CASES[name]
    for f in (-100.0, 100.0):
        value = lambda f: jnp.sum(likelihood(f).log_prob(jnp.asarray(y)))  # noqa: E731
        found = jax.jit(jax.value_and_grad(value))(jnp.full(N, f))
        assert np.isfinite(found[0]) and np.all(np.isfinite(found[1]))


def test_a_large_concentration_in_single_precision():
    """Differences of log Γ near each other would be off by 0.1 here."""
    with jax.enable_x64(False):
        f, y = jnp.asarray(MEANS, jnp.float32), jnp.asarray(COUNTS)
        # An array that a live program holds keeps its precision there, in JAX too.
        likelihood = lk.NegativeBinomial(3e5, AMOUNTS.copy())
        value = jax.jit(lambda f, y: likelihood(f).log_prob(y))(f, y)
    mean = AMOUNTS * np.exp(MEANS)
    exact = stats.nbinom.logpmf(COUNTS, 3e5, 3e5 / (3e5 + mean))
    np.testing.assert_allclose(value, exact, rtol=1e-4, atol=2e-4)


def test_limits_are_the_likelihoods_they_become():
    def log_probs(y, *likelihoods):
        return jax.jit(lambda f, y: [of(f).log_prob(y) for of in likelihoods])(MEANS, y)

    poisson, *near = log_probs(
        COUNTS,
        lk.Poisson(AMOUNTS),
        lk.NegativeBinomial(1e8, AMOUNTS),
        lk.ZeroInflatedPoisson(1e-13, AMOUNTS),
    )
    for one in near:
        np.testing.assert_allclose(one, poisson, atol=1e-5)
    exponential, *same = log_probs(
        POSITIVE, lk.Exponential(), lk.Gamma(1.0), lk.Weibull(1.0)
    )
    for one in same:
        np.testing.assert_allclose(one, exponential, rtol=1e-12)
    bernoulli, ordinal, binomial = log_probs(
        COUNTS % 2, lk.Bernoulli(), lk.Ordinal([0.0]), lk.Binomial(1)
    )
    np.testing.assert_allclose(ordinal, bernoulli, rtol=1e-12)
    np.testing.assert_allclose(binomial, bernoulli, rtol=1e-9)


# ---------------------------------------------------------------- in a model


def model(x, y=None, censored=False):
    cut = dist.TransformedDistribution(
        dist.Normal(0.0, 2.0).expand([3]).to_event(1),
        dist.transforms.OrderedTransform(),
    )
    cutpoints = numpyro.sample("cutpoints", cut)
    concentration = numpyro.sample("concentration", dist.LogNormal(0.0, 1.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), jnp.array([[0.0], [2.0]]))(x)
    y = {} if y is None else y
    with numpyro.plate("data", len(x)):
        gp.observe("grade", lk.Ordinal(cutpoints), f, obs=y.get("grade"))
        time = lk.Weibull(concentration, censored)
        gp.observe("time", time, f, obs=y.get("time"))
        gp.observe("wins", lk.Binomial(TOTALS[0]), f, obs=y.get("wins"))


X = np.linspace(0.0, 2.0, 6)[:, None]
Y = {"grade": COUNTS[:6] % 4, "time": POSITIVE[:6], "wins": COUNTS[:6]}


def test_trials_of_few_bits_can_be_drawn():
    trials, f = np.array([200, 3], np.uint8), jnp.zeros(2)
    drawn = lk.Binomial(trials)(f).sample(random.key(0))
    np.testing.assert_array_equal(
        drawn, lk.Binomial(trials.astype(int))(f).sample(random.key(0))
    )


def test_a_model_is_fitted_and_predicted():
    """Cutpoints and shapes as sites; censored data in the fit, none in predictions."""
    late = np.arange(6) > 3
    fitted = gp.fit(random.key(0), model, None, X, Y, late, num_steps=5, progress=False)
    assert np.all(np.isfinite(fitted.losses))
    at_new = fitted.predict(X[:3] + 0.1)
    probs = np.asarray(at_new["grade"].probs)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(at_new["grade"].mean, probs @ np.arange(4), atol=1e-6)
    assert at_new["wins"].probs is None
    assert np.all(at_new["time"].interval(0.5)[0] > 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lk.NegativeBinomial(-1.0), "concentration of a NegativeBinomial"),
        (lambda: lk.NegativeBinomial(1.0, 0.0), "exposure of a NegativeBinomial"),
        (lambda: lk.ZeroInflatedPoisson(0.0), "gate .* strictly between 0 and 1"),
        (lambda: lk.ZeroInflatedPoisson(1.0), "gate .* strictly between 0 and 1"),
        (lambda: lk.Binomial(2.5), "must be whole numbers"),
        (lambda: lk.Binomial(0), "total_count of a Binomial"),
        (lambda: lk.Beta(0.0), "concentration of a Beta"),
        (lambda: lk.Gamma(np.nan), "concentration of a Gamma"),
        (lambda: lk.Ordinal(np.array([1.0, 1.0])), "increasing numbers"),
        (lambda: lk.Ordinal([0.0, np.inf]), "increasing numbers"),
        (lambda: lk.Ordinal([]), "increasing numbers"),
        (lambda: lk.Ordinal(1.0), "increasing numbers"),
        (lambda: lk.CensoredGaussian(1.0, 2), "must hold −1"),
        (lambda: lk.CensoredGaussian(0.0), "scale of a CensoredGaussian"),
        (lambda: lk.Weibull(1.0, np.array([-1])), "must hold 0"),
        (lambda: lk.Weibull(1.0, "yes"), "censored of a Weibull"),
    ],
)
def test_values_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("site", "value", "words"),
    [
        ("grade", 4, "the integers 0 to 3"),
        ("time", 0.0, "the positive numbers"),
        ("wins", 7, "the integers 0 to total_count"),
        ("wins", 0.5, "the integers 0 to total_count"),
    ],
)
def test_data_outside_of_the_support_are_refused(site, value, words):
    data = {**Y, site: np.where(np.arange(6) == 2, value, Y[site])}
    with pytest.raises(ValueError, match=rf"{words}.*row 2"):
        gp.fit(random.key(0), model, None, X, data, num_steps=1, progress=False)


def test_shares_do_not_include_the_ends():
    def of_shares(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), X[::3])
        gp.observe("y", lk.Beta(2.0), f(x), obs=y)

    with pytest.raises(ValueError, match="the numbers strictly between 0 and 1"):
        gp.fit(random.key(0), of_shares, None, X, np.arange(6) / 5, num_steps=1)


def test_the_recipe_of_a_multinomial():
    """dist.Multinomial by the generic rule, against its sum over dense nodes."""
    total, y = 5, np.array([[2, 3], [0, 5]])
    mean, variance = (
        np.array([[0.3, -0.2], [1.0, 0.4]]),
        np.array([[0.4, 0.1], [1.0, 0.3]]),
    )
    marginal = Marginal(jnp.asarray(mean), jnp.asarray(variance))
    recipe = lambda f: dist.Multinomial(total, logits=f)  # noqa: E731
    found = jax.jit(variational_expectation, static_argnums=0)(recipe, y, marginal)
    # With two classes only the difference counts.
    sd = np.sqrt(variance.sum(axis=1))
    f = mean[:, 0] - mean[:, 1] + sd * NODES
    exact = np.sum(WEIGHTS * stats.binom.logpmf(y[:, 0], total, expit(f)), axis=0)
    np.testing.assert_allclose(found, exact, atol=1e-6)


@pytest.mark.parametrize(
    ("total", "mean", "variance"),
    [
        (100, 0.0, 4.0),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in ((10**5, 0.0, 16.0), (10**4, -2.0, 4.0))
        ),
    ],
)
def test_a_binomial_of_half_the_trials(total, mean, variance):
    """The mode of p(y | f) is at 0, where NumPyro's log density has no curvature."""
    y, sd = total // 2, variance**0.5
    narrow = np.linspace(-40, 40, 20_001) / total**0.5
    f = np.unique(np.concatenate([mean + sd * np.linspace(-9, 9, 20_001), narrow]))
    log_prob = stats.binom.logpmf(y, total, expit(f)) + stats.norm.logpdf(f, mean, sd)
    marginal = Marginal(jnp.array([mean]), jnp.array([variance]))
    density = jax.jit(partial(log_predictive_density, lk.Binomial(total)))
    found = density(jnp.array([y]), marginal)
    expected = logsumexp(log_prob, b=np.gradient(f))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_share_at_the_end_of_single_precision():
    @jax.jit
    def find(y, mean, variance):
        return variational_expectation(lk.Beta(0.1), y, Marginal(mean, variance))

    data = np.array([[0.3], [-10.0], [121.0]])
    found, expected = find(*np.float32(data)), find(*data)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("count", [20.0, 1e4, 1e6])
def test_large_counts_in_single_precision(count):
    """Nearly all of y log r, r and log y! cancels."""
    sd = np.array([0.01, 0.1, 1.0])
    mean = np.float32(np.log(count) + 0.5 * sd)
    variance = np.float32(sd**2)
    single = Marginal(jnp.asarray(mean), jnp.asarray(variance))
    double = Marginal(jnp.float64(mean), jnp.float64(variance))
    m, v = mean.astype(float), variance.astype(float)
    expected = count * m - np.exp(m + v / 2) - gammaln(count + 1)
    predictive = jax.jit(partial(log_predictive_density, lk.Poisson()))
    density = predictive(np.full(3, count), double)
    y = np.full(3, count, np.float32)
    found = jax.jit(partial(variational_expectation, lk.Poisson()))(y, single)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(predictive(y, single), density, rtol=1e-4, atol=1e-4)


def test_slopes_where_successes_and_failures_are_as_many():
    # Both parameters of a Beta variable are the same at f = 0, and y = c = 2.
    def of_beta(f):
        return lk.Beta(6.0)(f).log_prob(0.3)

    def of_concentration(c):
        return lk.NegativeBinomial(c)(jnp.asarray(0.4)).log_prob(2.0)

    def bound_of_binomial(mean):
        marginal = Marginal(mean[None], jnp.full(1, 0.3))
        return variational_expectation(lk.Binomial(4), jnp.full(1, 2.0), marginal)[0]

    curvature = jax.grad(bound_of_binomial), 0.0
    for function, at in ((of_beta, 0.0), (of_concentration, 2.0), curvature):
        at, h = jnp.asarray(at), 1e-5
        low, high = map(jax.jit(function), (at - h, at + h))
        slope = jax.jit(jax.grad(function))(at)
        np.testing.assert_allclose(slope, (high - low) / (2 * h), rtol=1e-6)


@both_precisions
def test_degrees_of_freedom(precision):
    """Few and many, and on either side of where Stirling's series takes over."""
    df = np.concatenate([np.linspace(0.25, 80.0, 320), np.geomspace(100.0, 1e8, 25)])
    df = np.float32(df).astype(float)
    log_prob = jax.jit(lambda df, f: lk.StudentT(df, 0.5)(f).log_prob(1.0))
    found = log_prob(df, np.zeros(len(df)))
    expected = stats.t.logpdf(1.0, df, scale=0.5)
    atol = 3e-6 if precision == 32 else 2e-10
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=atol)


SHARE = np.repeat([1e-4, 0.01, 0.5, 0.7, 0.999], 3)
LARGE = {  # the likelihood, data about the mean, log p, and the variance of log data
    "Binomial": lambda n: (
        lk.Binomial(n),
        np.round(n * SHARE),
        lambda f, y: stats.binom.logpmf(y, n, expit(f)),
        1 / (n * SHARE * (1 - SHARE)),
    ),
    "NegativeBinomial": lambda c: (
        lk.NegativeBinomial(c, c),
        np.round(c * SHARE / (1 - SHARE)),
        lambda f, y: stats.nbinom.logpmf(y, c, expit(-f)),
        1 / (c * SHARE),
    ),
    "Beta": lambda c: (
        lk.Beta(c),
        np.float32(SHARE).astype(float),
        lambda f, y: stats.beta.logpdf(y, c * expit(f), c * expit(-f)),
        1 / (c * SHARE * (1 - SHARE)),
    ),
    "Gamma": lambda c: (
        lk.Gamma(c),
        np.float32(SHARE / (1 - SHARE)).astype(float),
        lambda f, y: stats.gamma.logpdf(y, c, scale=np.exp(f) / c),
        np.full(SHARE.shape, 1 / c),
    ),
}


@pytest.mark.thorough
@single_first
@pytest.mark.parametrize("name", LARGE)
def test_large_totals_and_concentrations(name, precision):
    """Of log factorials and powers of a million nearly all cancels."""
    likelihood, y, log_p, v = LARGE[name](1e6)
    f = np.log(SHARE / (1 - SHARE)) + np.tile([-2.0, 0.3, 3.0], 5) * np.sqrt(v)
    f, v = (np.float32(value).astype(float) for value in (f, np.minimum(v, 0.5)))
    marginal, data = Marginal(jnp.asarray(f), jnp.asarray(v)), jnp.asarray(y)
    close = (
        {"rtol": 1e-4, "atol": 1e-3}
        if precision == 32
        else {"rtol": 1e-7, "atol": 1e-12}
    )

    @jax.jit
    def of_ours(data, marginal):
        of = likelihood, data, marginal
        density = likelihood(marginal.mean).log_prob(data)
        return density, variational_expectation(*of), log_predictive_density(*of)

    density, expectation, predictive = of_ours(data, marginal)
    np.testing.assert_allclose(density, log_p(f, y), **close)
    dense = log_p(f + np.sqrt(v) * NODES, y)
    np.testing.assert_allclose(expectation, WEIGHTS[:, 0] @ dense, **close)
    expected = logsumexp(dense, axis=0, b=WEIGHTS)
    atol = 1e-3 if precision == 32 else 1e-6
    np.testing.assert_allclose(predictive, expected, atol=atol)
