"""Predictions where the support of the data, or the moments, are none of the usual.

Exact values are sums of SciPy's distribution functions over a dense grid of f.
"""

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.distributions import constraints, transforms
from scipy import stats
from scipy.special import expit

import svgp_ppl as gp
from svgp_ppl.expectations import log_predictive_density
from svgp_ppl.expectations.cumulative import predictive_cdf
from svgp_ppl.marginals import Marginal
from tests.conftest import both_precisions

LEVELS = [0.05, 0.5, 0.95]
MEANS = np.array([2.0, 0.5, 0.0])
FAR = np.array([[0.0], [50.0], [100.0]])  # where f has no correlation


def observed_by(likelihood):
    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), FAR)
        with numpyro.plate("data", len(x)):
            gp.observe("y", likelihood, f(x), obs=y)

    return model


def predicted(likelihood, means=MEANS, sd=0.6):
    """The prediction of data given f_n ~ N(mean_n, sd²)."""

    def guide(*args, **kwargs):
        numpyro.sample("f", dist.Normal(jnp.asarray(means), sd).to_event(1))

    return gp.predict(observed_by(likelihood), (guide, {}), FAR)["y"]


def require_levels(at_new, cdf, means=MEANS, sd=0.6, atol=2e-4):
    """That P(y <= quantile) is the level, with ``cdf(y, f)`` of SciPy."""
    e = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)[:, None]
    for level, values in zip(LEVELS, at_new.quantile(LEVELS), strict=True):
        reached = cdf(values, means + sd * e).mean(axis=0)
        np.testing.assert_allclose(reached, level, atol=atol)


def truncated(f):
    return dist.TruncatedNormal(f, 0.3, low=0.0)


def truncated_cdf(y, f):
    return stats.truncnorm.cdf(y, -f / 0.3, np.inf, f, 0.3)


# ----------------------------------------------------------- cdfs that are NaN far out


@pytest.mark.thorough
def test_nodes_far_out_at_which_a_cdf_is_nan_do_not_matter():
    assert np.isnan(truncated(-3.0).cdf(1.0))  # seven deviations out, for the mean 1
    require_levels(predicted(truncated), truncated_cdf)


def test_a_cdf_that_is_nan_where_it_matters_is_refused():
    at_new = predicted(truncated, means=MEANS - 2.0)
    with pytest.raises(ValueError, match=r"cdf of the prediction is NaN, at .*key="):
        at_new.interval(0.9)
    low, high = at_new.interval(0.9, key=random.key(0))
    assert np.all((low > 0.0) & (high - low > 0.1))


@pytest.mark.thorough
@both_precisions
def test_nodes_at_which_a_density_is_infinite_do_not_matter(precision):
    # p(y | f) rises to one side of f, where a tail in its denominator underflows
    y, means, sds = np.array([0.01, 0.3, 9.0]), np.array([0.0, 1.0, 0.5]), 0.3
    given = truncated(jnp.full(3, -1e4)).log_prob(jnp.asarray(y))
    assert not np.any(np.isfinite(given))
    marginal = Marginal(jnp.asarray(means), jnp.full(3, sds**2))
    density = jax.jit(partial(log_predictive_density, truncated))
    f = means + sds * np.linspace(-20.0, 20.0, 20_001)[:, None]
    weights = stats.norm.pdf(f, means, sds)
    densities = stats.truncnorm.pdf(y, -f / 0.3, np.inf, f, 0.3)
    exact = np.log((weights * densities).sum(axis=0) / weights.sum(axis=0))
    np.testing.assert_allclose(density(jnp.asarray(y), marginal), exact, atol=2e-5)


def test_a_density_that_is_infinite_where_it_matters_is_unknown():
    marginal = Marginal(jnp.array([-30.0]), jnp.array([1.0]))
    density = jax.jit(partial(log_predictive_density, truncated))
    assert np.isnan(density(jnp.array([0.3]), marginal))


@pytest.mark.parametrize("width", [1, 2])
def test_what_is_left_out_of_a_cdf_is_bounded(width):
    shape = (3,) if width == 1 else (3, width)
    marginal = Marginal(jnp.zeros(shape), jnp.ones(shape))

    def of(f):
        return dist.Normal(f if width == 1 else f[..., 0], 1.0)

    def cdf(given, y):  # a number where f < 2, all but 0.0228
        return jnp.where(given.loc < 2.0, given.cdf(y), jnp.nan)

    @jax.jit
    def run(y, marginal):
        return [
            predictive_cdf(of, cdf, y, marginal, 512, random.key(0), lost)
            for lost in (0.03, 0.01)
        ]

    lenient, strict = run(np.zeros((1, 3)), marginal)
    # P(y <= 0 | f < 2), for f and y − f of variance 1
    grid = np.linspace(-9.0, 2.0, 4001)
    weight = stats.norm.pdf(grid)
    exact = weight @ stats.norm.cdf(-grid) / weight.sum()
    np.testing.assert_allclose(lenient, exact, atol=2e-3)
    assert np.all(np.isnan(strict))


# ------------------------------------------------------ supports that depend on f


@pytest.mark.parametrize(
    ("likelihood", "cdf"),
    [
        pytest.param(
            lambda f: dist.Uniform(f - 1.0, f + 1.0),
            lambda y, f: stats.uniform.cdf(y, f - 1.0, 2.0),
            marks=pytest.mark.thorough,
        ),
        (
            lambda f: dist.Uniform(0.0, jnp.exp(f)),
            lambda y, f: stats.uniform.cdf(y, 0.0, np.exp(f)),
        ),
        pytest.param(
            lambda f: dist.Pareto(jnp.exp(f), 5.0),
            lambda y, f: stats.pareto.cdf(y, 5.0, scale=np.exp(f)),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_quantiles_where_the_support_depends_on_f(likelihood, cdf):
    require_levels(predicted(likelihood), cdf)


def test_quantiles_where_the_support_ends_at_a_latent_site():
    """Each draw has an end of its own, on either side of the mean of all."""
    ends = np.array([1.0, 3.0])

    def model(x, y=None):
        high = numpyro.sample("high", dist.Exponential(1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), FAR)
        with numpyro.plate("data", len(x)):
            likelihood = lambda f: dist.Uniform(jnp.zeros_like(f), high)  # noqa: E731
            gp.observe("y", likelihood, f(x), obs=y)

    draws = {"high": ends, "f": np.zeros((2, 3))}
    found = gp.predict(model, draws, FAR)["y"].quantile(LEVELS)
    for level, values in zip(LEVELS, found, strict=True):
        reached = stats.uniform.cdf(values[:, None], 0.0, ends).mean(axis=1)
        np.testing.assert_allclose(reached, level, atol=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "is_fixed"),
    [
        (lambda f: dist.Uniform(0.0, jnp.exp(f)), False),
        (
            lambda f: dist.Uniform(0.0, jnp.clip(f, 1.0, 10.0)),
            False,
        ),  # alike at 0 and 1
        (lambda f: dist.Uniform(jnp.zeros_like(f), 1.0), True),
        (truncated, True),
        (lambda f: dist.Binomial(np.array([3, 4, 5]), logits=f), True),
        (lambda f: dist.Gamma(2.0, jnp.exp(f)), True),
        (gp.likelihoods.Poisson(), True),
    ],
)
def test_what_a_support_depends_on(likelihood, is_fixed):
    def look(scale):
        f = gp.sparse_gp("f", gp.kernels.RBF(scale, 1.0), FAR)(FAR)
        return gp.Expected(likelihood, f).has_fixed_support

    seeded = numpyro.handlers.seed(look, random.key(0))
    found = []
    jax.jit(lambda scale: found.append(seeded(scale)))(1.0)
    assert [seeded(1.0), *found] == [is_fixed, is_fixed]


def test_data_that_some_f_allows_are_not_refused():
    def likelihood(f):
        return dist.Uniform(0.0, jnp.exp(f))

    def given(likelihood, y):
        numpyro.handlers.seed(observed_by(likelihood), random.key(0))(FAR, np.array(y))

    given(likelihood, [5.0, 0.5, 2.0])  # exp(0) = 1
    assert predicted(likelihood).log_prob([5.0, 0.5, 2.0]).shape == (3,)
    for refuse in (predicted(truncated).log_prob, lambda y: given(truncated, y)):
        with pytest.raises(ValueError, match=r"must lie in the support.*\(row 1\)"):
            refuse([1.0, -1.0, 1.0])


# --------------------------------------------------------------------------- labels


class Sign(dist.Distribution):
    """−1, 0 or 1, without a cdf."""

    arg_constraints: ClassVar[dict] = {}
    support = constraints.integer_interval(-1, 1)
    pytree_data_fields = ("f",)

    def __init__(self, f):
        self.f = f
        super().__init__(jnp.shape(f), ())

    def log_prob(self, value, intermediates=None):
        return dist.Binomial(2, logits=self.f).log_prob(value + 1)

    def sample(self, key, sample_shape=()):
        return dist.Binomial(2, logits=self.f).sample(key, sample_shape) - 1

    @property
    def mean(self):
        return 2.0 * jax.nn.sigmoid(self.f) - 1.0

    @property
    def variance(self):
        return 2.0 * jax.nn.sigmoid(self.f) * jax.nn.sigmoid(-self.f)


def dice(f):
    return dist.DiscreteUniform(1, 5).expand(jnp.shape(f))


@pytest.mark.parametrize(
    ("likelihood", "first", "cdf"),
    [
        (
            lambda f: Sign(f),
            -1,
            lambda y, f: stats.binom.cdf(y + 1, 2, expit(f)),
        ),
        (dice, 1, lambda y, f: stats.randint.cdf(y, 1, 6) + 0.0 * f),
    ],
)
def test_labels_that_start_elsewhere_than_at_0(likelihood, first, cdf):
    means = np.array([-1.0, 0.0, 2.5])
    at_new = predicted(likelihood, means, 0.3)
    assert at_new.probs is None
    e = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)[:, None]
    labels = np.arange(first, first + 8)
    rises = [cdf(label, means + 0.3 * e).mean(axis=0) for label in labels]
    exact = [labels[np.argmax(np.array(rises) >= p, axis=0)] for p in LEVELS]
    np.testing.assert_array_equal(at_new.quantile(LEVELS), exact)


def test_an_error_names_the_likelihood_that_has_no_cdf():
    totals = np.array([30_000, 40_000, 50_000])
    at_new = predicted(lambda f: dist.BetaBinomial(jnp.exp(f), 2.0, totals))
    match = r"site 'y', a BetaBinomial, has no cum.*key="
    with pytest.raises(ValueError, match=match):
        at_new.quantile(0.5)


def test_quantiles_of_counts_that_are_drawn_as_floats():
    def likelihood(f):
        return dist.Multinomial(10, logits=jnp.stack([f, -f], axis=-1))

    levels = np.linspace(0.01, 0.99, 99)
    found = predicted(likelihood).quantile(levels, key=random.key(0), n=300)
    assert found.shape == (99, 3, 2)
    np.testing.assert_array_equal(found, np.round(found))


# --------------------------------------------- distributions without moments in NumPyro


def transformed(base, *maps):
    return dist.TransformedDistribution(base, list(maps))


@pytest.mark.parametrize(
    ("likelihood", "cdf"),
    [
        (
            lambda f: transformed(dist.Normal(f, 0.5), transforms.SigmoidTransform()),
            lambda y, f: stats.norm.cdf(np.log(y / (1.0 - y)), f, 0.5),
        ),
        (  # NumPyro takes its support for the real line
            lambda f: transformed(
                dist.Exponential(1.0).expand(jnp.shape(f)),
                transforms.AffineTransform(f, 1.0),
            ),
            lambda y, f: stats.expon.cdf(y, f),
        ),
        pytest.param(
            lambda f: transformed(
                dist.Beta(2.0 * jnp.exp(f), 2.0), transforms.AffineTransform(1.0, -2.0)
            ),
            lambda y, f: stats.beta.sf((1.0 - y) / 2.0, 2.0 * np.exp(f), 2.0),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            lambda f: transformed(
                dist.Normal(f, 0.5),
                transforms.SigmoidTransform(),
                transforms.AffineTransform(3.0, 1e4),
            ),
            lambda y, f: stats.norm.cdf(np.log((y - 3.0) / (1e4 + 3.0 - y)), f, 0.5),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_quantiles_without_moments(likelihood, cdf):
    at_new = predicted(likelihood)
    require_levels(at_new, cdf, atol=5e-4)
    low, high = at_new.interval(0.9)
    y = at_new.sample(random.key(0), 4000)
    inside = np.mean((y >= low) & (y <= high), axis=0)
    np.testing.assert_allclose(inside, 0.9, atol=0.02)


def test_what_is_known_without_moments_and_what_is_not():
    def likelihood(f):
        return transformed(dist.Normal(f, 0.5), transforms.SigmoidTransform())

    at_new = predicted(likelihood)
    np.testing.assert_allclose(at_new.latent_mean, MEANS, atol=1e-6)
    assert at_new.probs is None and "latent_mean [3]: 0 to 2" in repr(at_new)
    for moment in ("mean", "variance", "std"):
        words = r"site 'y' is not known: .* a TransformedDistribution, .*sample\(key\)"
        with pytest.raises(ValueError, match=words):
            getattr(at_new, moment)


def mixture_of_angles(f):
    weights = dist.Categorical(jnp.array([0.3, 0.7]))
    angles = dist.VonMises(jnp.stack([f, f], axis=-1), 3.0)
    return dist.MixtureSameFamily(weights, angles)


@pytest.mark.parametrize(
    "likelihood", [lambda f: dist.VonMises(f, 3.0), mixture_of_angles]
)
def test_the_direction_of_an_angle_is_no_mean(likelihood):
    """NumPyro has a direction in (−π, π], and a variance below 1."""
    at_new = predicted(likelihood, means=np.array([3.1, 0.0, -3.1]))
    with pytest.raises(ValueError, match="those of an angle"):
        _ = at_new.mean


@pytest.mark.parametrize("in_a_table", [False, True])
def test_labels_of_ones_own_have_the_moments_of_their_numbers(in_a_table):
    """Those of NumPyro's categorical distributions are NaN."""
    cutpoints = np.array([-1.0, 0.2, 1.5])

    def likelihood(f):
        if in_a_table:
            of_row = dist.OrderedLogistic(f[..., None], jnp.asarray(cutpoints))
            return of_row.mask(True).to_event(1)
        return dist.OrderedLogistic(f, jnp.asarray(cutpoints))

    at_new = predicted(likelihood)
    e = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)[:, None, None]
    above = np.mean(expit(MEANS[:, None] + 0.6 * e - cutpoints), axis=0)  # P(y > k)
    mean = above.sum(axis=1)
    variance = (above * np.array([1, 3, 5])).sum(axis=1) - mean**2
    np.testing.assert_allclose(np.ravel(at_new.mean), mean, atol=1e-4)
    np.testing.assert_allclose(np.ravel(at_new.variance), variance, atol=2e-4)
