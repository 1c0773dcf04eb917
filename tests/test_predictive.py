"""log E p(y|f) against dense integration, to 1e-4 nats; moments of y by brute force."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from numpyro.distributions.transforms import ExpTransform
from scipy.special import expit, gammaln, log_ndtr, logsumexp

from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations import (
    closed_form_cdf,
    log_predictive_density,
    predictive_cdf,
    predictive_mean_and_variance,
    predictive_probabilities,
    variational_expectation,
)
from svgp_ppl.marginals import Marginal
from tests import test_more_likelihoods
from tests.conftest import mostly_single

ATOL = 1e-4  # nats, what the library promises


@jax.jit
def _ours(likelihood, y, mean, variance):
    shape = jnp.shape(y)
    mean, variance = (jnp.broadcast_to(a, shape) for a in (mean, variance))
    return log_predictive_density(likelihood, y, Marginal(mean, variance))


def _dense(log_likelihood, y, mean, sd, centre, width):
    """log ∫ N(f; mean, sd²) p(y|f) df on 20,001 nodes that crowd around ``centre``."""
    far = np.arcsinh((150 * sd + abs(centre - mean)) / width)
    t = np.linspace(-far, far, 20_001)
    f = centre + width * np.sinh(t)
    with np.errstate(over="ignore"):
        terms = st.norm.logpdf(f, mean, sd) + log_likelihood(y, f)
    return logsumexp(terms + np.log(width * np.cosh(t) * (t[1] - t[0])))


@pytest.mark.parametrize("scale", [1e-3, 1e-2, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("df", [1.5, 4.0, 30.0])
def test_student_t(df, scale):
    """Marginal N(0.3, 1); outliers, and from 4 to 10 sd two modes that both matter."""
    y = np.array([0, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 8.5, 9, 9.5, 10, 12, 15, 20, 50, 200])
    dense = [
        _dense(lambda y, f: st.t.logpdf(y, df, f, scale), one, 0.3, 1.0, one, scale)
        for one in y
    ]
    ours = _ours(lk.StudentT(df, scale), y, 0.3, 1.0)
    np.testing.assert_allclose(ours, dense, rtol=0, atol=ATOL)


_closed_form_cdf = jax.jit(closed_form_cdf)


@pytest.mark.parametrize("variance", [0.0, 1e-4, 0.04, 1.0, 100.0])
@pytest.mark.parametrize("df", [1.0, 1.5, 4.0, 30.0, 1e3])
def test_cdf_of_student_t(df, variance):
    """Against the distribution function of SciPy, on nodes close to each other."""
    z = np.concatenate([np.linspace(-6, 6, 31), [-1e3, -50.0, 50.0, 1e3]])
    e = np.linspace(-9, 9, 4001)
    weight = st.norm.pdf(e) / st.norm.pdf(e).sum()
    f = 0.3 + np.sqrt(variance) * e
    dense = [weight @ st.t.cdf(one, df, f, 0.5) for one in z]
    marginal = Marginal(np.full(len(z), 0.3), np.full(len(z), variance))
    ours = _closed_form_cdf(lk.StudentT(df, 0.5), z, marginal)
    np.testing.assert_allclose(ours, dense, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variance", [1e-8, 0.01, 1.0, 100.0, 1e3])
def test_bernoulli_logit(variance):
    mean = np.array([-50.0, -5, -1, 0, 2, 30, 100])
    for label, sign in ((0, 1.0), (1, -1.0)):
        dense = [
            _dense(
                lambda _, f, sign=sign: -np.logaddexp(0, sign * f),
                None,
                one,
                variance**0.5,
                one,
                variance**0.5,
            )
            for one in mean
        ]
        y = np.full(len(mean), label)
        ours = _ours(lk.Bernoulli("logit"), y, mean, variance)
        np.testing.assert_allclose(ours, dense, rtol=0, atol=ATOL)


@pytest.mark.parametrize("variance", [1e-6, 0.01, 1.0, 100.0])
def test_poisson(variance):
    mean, y = (a.ravel() for a in np.meshgrid([-3.0, 0, 2, 6], [0, 1, 5, 50, 1000]))
    dense = [
        _dense(
            lambda y, f: y * f - np.exp(f) - gammaln(y + 1),
            k,
            m,
            variance**0.5,
            m,
            variance**0.5,
        )
        for m, k in zip(mean, y)
    ]
    ours = _ours(lk.Poisson(), y.astype(int), mean, variance)
    np.testing.assert_allclose(ours, dense, rtol=1e-9, atol=ATOL)


@pytest.mark.thorough
@mostly_single
def test_zero_variance_and_slopes(precision):
    y = jnp.array([0.0, 0.5, 3.0])
    likelihood = lk.StudentT(4.0, 0.5)

    @jax.jit
    def run(mean, variance):
        def value(mean, variance):
            return log_predictive_density(likelihood, y, Marginal(mean, variance))

        out, pull_back = jax.vjp(value, mean, variance)
        return out, *pull_back(jnp.ones(3))

    mean = jnp.full(3, 0.3)
    value, by_mean, by_variance = run(mean, jnp.zeros(3))
    exact = likelihood(mean).log_prob(y)
    np.testing.assert_allclose(value, exact, atol=1e-10 if precision == 64 else 1e-5)
    assert np.all(np.isfinite(by_mean)) and np.all(np.isfinite(by_variance))
    value, by_mean, _ = run(mean, jnp.full(3, 0.7))
    moved, *_ = run(mean + 1e-2, jnp.full(3, 0.7))
    # A difference quotient: the grid moves with the data and must not be felt.
    np.testing.assert_allclose(by_mean, (moved - value) / 1e-2, atol=2e-2)


HETEROSCEDASTIC = [
    (1.0, 0.1, 0.0),
    (1.0, 0.1, 0.25),
    (1.0, 1.0, 0.8),
    (1.0, 1.0, -0.5),
    (4.0, 2.0, 0.0),
    (0.01, 1.0, 0.0),
]


def _two(mean, variance, covariance, num):
    covariance = np.array([[variance[0], covariance], [covariance, variance[1]]])
    leaves = (np.array(mean), np.array(variance), covariance)
    return Marginal(*(jnp.asarray(np.stack([a] * num), float) for a in leaves))


_heteroscedastic = jax.jit(
    lambda y, marginal: log_predictive_density(
        lk.HeteroscedasticGaussian(), y, marginal
    )
)


@pytest.mark.parametrize(("v0", "v1", "c"), HETEROSCEDASTIC)
def test_heteroscedastic(v0, v1, c):
    """A dense sum over f_1; and over both, where its grid resolves the noise."""
    y = np.array([0.0, 1, 3, 6, 12])
    t = np.linspace(-12, 12, 20_001)
    for m1 in (-4.0, -2.0, 0.0):
        f1 = m1 + np.sqrt(v1) * t
        mean = 0.2 + c / v1 * (f1 - m1)
        sd = np.sqrt(v0 - c**2 / v1 + np.exp(2 * f1))
        weight = st.norm.logpdf(t) + np.log(t[1] - t[0])
        dense = [logsumexp(weight + st.norm.logpdf(one, mean, sd)) for one in y]
        ours = _heteroscedastic(y, _two((0.2, m1), (v0, v1), c, len(y)))
        np.testing.assert_allclose(ours, dense, rtol=0, atol=ATOL, err_msg=str(m1))


def test_heteroscedastic_by_a_sum_over_both():
    y, (v0, v1, c) = np.array([0.0, 1, 3]), (1.0, 0.4, -0.4)
    factor = np.linalg.cholesky([[v1, c], [c, v0]])
    t = np.linspace(-8, 8, 801)
    e1, e0 = t[:, None], t[None, :]
    f1 = factor[0, 0] * e1 - 0.3
    f0 = 0.2 + factor[1, 0] * e1 + factor[1, 1] * e0
    weight = st.norm.logpdf(e1) + st.norm.logpdf(e0) + 2 * np.log(t[1] - t[0])
    dense = [logsumexp(weight + st.norm.logpdf(one, f0, np.exp(f1))) for one in y]
    ours = _heteroscedastic(y, _two((0.2, -0.3), (v0, v1), c, len(y)))
    np.testing.assert_allclose(ours, dense, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "atol"),
    [
        (lk.HeteroscedasticGaussian(), 1e-6),
        (lambda f: dist.Normal(f[..., 0], jnp.exp(f[..., 1])), 3e-3),
    ],
    ids=["closed form", "points"],
)
@pytest.mark.parametrize("log_scale", [-4.0, -0.3])
def test_cdf_of_two_components(likelihood, atol, log_scale):
    """A dense sum over f_1, also of noise that is narrow beside q(f_0)."""
    y, (v0, v1, c) = np.array([-1.5, -0.2, 0.0, 0.7, 2.5]), (1.0, 0.1, -0.1)
    t = np.linspace(-10, 10, 20_001)
    f1 = log_scale + np.sqrt(v1) * t
    sd = np.sqrt(v0 - c**2 / v1 + np.exp(2 * f1))
    weight = st.norm.pdf(t) * (t[1] - t[0])
    below = st.norm.cdf(y[:, None], 0.2 + c / v1 * (f1 - log_scale), sd)
    marginal = _two((0.2, log_scale), (v0, v1), c, 1)
    find = jax.jit(
        lambda y: predictive_cdf(
            likelihood, lambda d, y: d.cdf(y), y, marginal, 512, jax.random.key(0)
        )
    )
    np.testing.assert_allclose(find(y[:, None])[:, 0], below @ weight, atol=atol)


class _Robust(lk.Gaussian):
    def __call__(self, f):
        return dist.StudentT(3.0, f, self.scale)


@pytest.mark.thorough
def test_another_distribution_has_other_formulas():
    y, marginal = jnp.asarray([0.3, 2.5]), Marginal(jnp.zeros(2), jnp.full(2, 0.4))
    robust, function = _Robust(0.3), lambda f: dist.StudentT(3.0, f, 0.3)
    assert closed_form_cdf(robust, y, marginal) is None
    for find in (variational_expectation, log_predictive_density):
        found, expected = find(robust, y, marginal), find(function, y, marginal)
        np.testing.assert_array_equal(found, expected)
    found = predictive_mean_and_variance(robust, marginal)
    expected = predictive_mean_and_variance(function, marginal)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.thorough
def test_a_ratio_of_two_components():
    """A callable of two components: the same density as a likelihood of one."""
    y, num = np.array([0, 1, 4, 20]), 4
    marginal = _two((0.3, -0.2), (0.6, 0.9), 0.4, num)
    ours = jax.jit(
        lambda: log_predictive_density(
            lambda f: dist.Poisson(jnp.exp(f[..., 0] - 0.5 * f[..., 1])),
            jnp.asarray(y),
            marginal,
        )
    )()
    one = _ours(lk.Poisson(), y, 0.3 + 0.1, 0.6 + 0.25 * 0.9 - 0.4)
    np.testing.assert_allclose(ours, one, atol=ATOL)


def _given_the_second(moments, log_p):
    """log E p(y | g) for g ~ N of the second component, given which f is Gaussian."""
    (mean, other), (variance, wide), covariance = moments
    e = np.linspace(-9, 9, 20_001)
    g, slope = other + wide**0.5 * e, covariance / wide
    terms = log_p(mean + slope * (g - other), variance - slope * covariance, g)
    return logsumexp(terms + st.norm.logpdf(e) + np.log(e[1] - e[0]), axis=-1)


# Name -> likelihood, log p(y | f ~ N(m, v), g), accuracy in nats.
SEVERAL_MODES = {
    "product": (
        lambda f: dist.Normal(f[..., 0] * f[..., 1], 0.3),
        lambda y, m, v, g: st.norm.logpdf(y, m * g, np.sqrt(v * g**2 + 0.09)),
        ATOL,
    ),
    "noise": (
        lambda f: dist.Normal(f[..., 0], 0.4 * jnp.exp(0.5 * f[..., 1])),
        lambda y, m, v, g: st.norm.logpdf(y, m, np.sqrt(v + 0.16 * np.exp(g))),
        2e-3,
    ),
    "ridge": (
        lambda f: dist.Normal(f[..., 0] + f[..., 1], 0.03),
        lambda y, m, v, g: st.norm.logpdf(y, m + g, np.sqrt(v + 0.03**2)),
        ATOL,
    ),
    "root": (  # without derivatives in the middle of a marginal at zero
        lambda f: dist.Normal(f[..., 0] - jnp.sqrt(jnp.square(f[..., 1])), 0.3),
        lambda y, m, v, g: st.norm.logpdf(y, m - np.abs(g), np.sqrt(v + 0.09)),
        1e-3,
    ),
}


@pytest.mark.thorough
@mostly_single
@pytest.mark.parametrize("name", SEVERAL_MODES)
def test_two_components_with_several_modes(name, precision):
    """Against a sum over one of them, the other in closed form; a mixture of q(f).

    From the one mode that was climbed to, N(y; f g, 0.3²) was off by 108 nats at 5.
    """
    likelihood, log_p, atol = SEVERAL_MODES[name]
    y, num = np.array([0.0, 2.0, 3.0, 5.0]), 4
    moments = [((0.0, 0.0), (1.0, 1.0), 0.0), ((0.3, -0.2), (1.0, 0.7), 0.4)]
    parts = [_two(*each, num) for each in moments]
    leaves = (jnp.stack(pair) for pair in zip(*(jax.tree.leaves(p) for p in parts)))
    weights = jnp.log(jnp.array([0.25, 0.75]))
    find = jax.jit(lambda m: log_predictive_density(likelihood, jnp.asarray(y), m))
    each = [
        _given_the_second(at, lambda m, v, g: log_p(y[:, None], m, v, g))
        for at in moments
    ]
    for part, exact in zip(parts, each):
        np.testing.assert_allclose(find(part), exact, atol=atol)
    whole = logsumexp(np.stack(each) + np.log([[0.25], [0.75]]), axis=0)
    np.testing.assert_allclose(find(Marginal(*leaves, weights)), whole, atol=atol)


@pytest.mark.thorough
def test_two_components_that_hardly_vary():
    """One grid at the mode is enough, and the box is not evaluated, also under vmap."""
    y, num = jnp.array([0.0, 1.0, 2.0, 5.0]), 4
    widths = jnp.array([0.02, 0.04, 0.06])
    calls = []

    def counted(f):
        jax.debug.callback(lambda: calls.extend(f.shape))
        return dist.StudentT(3.0, f[..., 0], 0.2 * jnp.exp(f[..., 1]))

    def find(width):
        mean = jnp.array([[0.3, -0.2]] * num)
        marginal = Marginal(mean, jnp.full((num, 2), width**2))
        return log_predictive_density(counted, y, marginal)

    found = jax.jit(jax.vmap(find))(widths)
    jax.effects_barrier()
    assert 192 not in calls and calls
    exact = [
        _given_the_second_of_student(np.asarray(y), 0.3, -0.2, float(width))
        for width in widths
    ]
    np.testing.assert_allclose(found, exact, atol=1e-7)
    calls.clear()
    jax.jit(find)(0.5).block_until_ready()
    jax.effects_barrier()
    assert 192 in calls


@pytest.mark.thorough
def test_small_steps_between_the_nodes_of_two_components():
    """Departures of few nats that Gauss–Hermite does not resolve: a gate, a mixture."""

    def zero_inflated(f):
        rate = jnp.exp(f[..., 0])
        return dist.ZeroInflatedDistribution(dist.Poisson(rate), gate_logits=f[..., 1])

    def mixed(f):
        half = dist.Categorical(probs=jnp.array([0.5, 0.5]))
        return dist.MixtureSameFamily(half, dist.Normal(f, 0.4))

    rng, n = np.random.default_rng(7), 40
    mean = rng.uniform(-3.0, 3.0, (n, 2))
    sd = np.exp(rng.uniform(np.log(0.05), np.log(3.0), (n, 2)))
    mean[:2], sd[:2] = [[2.97, -1.99], [2.29, -0.75]], [[2.89, 0.12], [2.73, 0.17]]
    y = mean[:, 0] + np.hypot(sd[:, 0], 0.4) * rng.normal(size=n)
    e = np.linspace(-9.0, 9.0, 4001)[:, None]
    weights = st.norm.pdf(e) * (e[1] - e[0])
    f, g = (m + s * e for m, s in zip(mean.T, sd.T))
    gate = np.sum(weights * expit(g), axis=0)
    zero = np.sum(weights * np.exp(-np.exp(f)), axis=0)
    of_each = st.norm.pdf(y[:, None], mean, np.hypot(sd, 0.4))
    exact = {
        zero_inflated: np.log(gate + (1.0 - gate) * zero),
        mixed: np.log(np.mean(of_each, axis=1)),
    }
    marginal = Marginal(jnp.asarray(mean), jnp.asarray(sd**2))
    for likelihood, data in ((zero_inflated, np.zeros(n)), (mixed, y)):

        @jax.jit
        def find(data, marginal, likelihood=likelihood):
            return log_predictive_density(likelihood, data, marginal)

        found = find(jnp.asarray(data), marginal)
        np.testing.assert_allclose(found, exact[likelihood], atol=1e-4)


def test_peaks_between_the_nodes_of_two_components():
    """Of f near y, narrower than the distance of nodes: off by up to 0.6 nats."""

    def outliers(f):
        choice = dist.Categorical(logits=jnp.stack([f[..., 1], 0.0 * f[..., 1]], -1))
        loc = jnp.stack([f[..., 0], 0.0 * f[..., 0]], axis=-1)
        return dist.MixtureSameFamily(choice, dist.Normal(loc, jnp.array([0.1, 2.0])))

    mean = np.array([[1.86, 0.36], [2.79, 0.74]])
    sd, y = np.array([[2.86, 0.88], [1.82, 0.33]]), np.array([0.29, -3.852])
    e = np.linspace(-9.0, 9.0, 4001)[:, None]
    gate = expit(mean[:, 1] + sd[:, 1] * e) * st.norm.pdf(e) * (e[1] - e[0])
    near = st.norm.pdf(y, mean[:, 0], np.hypot(sd[:, 0], 0.1))
    p = np.sum(gate, axis=0)
    exact = np.log(p * near + (1.0 - p) * st.norm.pdf(y, 0.0, 2.0))
    marginal = Marginal(jnp.asarray(mean), jnp.asarray(sd**2))
    find = jax.jit(partial(log_predictive_density, outliers))
    np.testing.assert_allclose(find(jnp.asarray(y), marginal), exact, atol=5e-3)


def _given_the_second_of_student(y, mean, other, width):
    e = np.linspace(-9, 9, 801)
    f, g = mean + width * e[:, None, None], other + width * e[:, None]
    terms = st.t.logpdf(y, 3.0, f, 0.2 * np.exp(g))
    weights = st.norm.logpdf(e)[:, None] + st.norm.logpdf(e) + 2 * np.log(e[1] - e[0])
    return logsumexp(terms + weights[..., None], axis=(0, 1))


@pytest.mark.thorough
def test_three_components_with_several_modes():
    """N(y; f g + h, 0.3²), h in closed form, and a ridge across all three."""
    y = np.array([0.0, 3.0, 8.0])
    marginal = Marginal(jnp.zeros((3, 3)), jnp.ones((3, 3)))

    def product(f):
        return dist.Normal(f[..., 0] * f[..., 1] + f[..., 2], 0.3)

    def summed(f):
        return dist.Normal(jnp.sum(f, axis=-1), 0.05)

    find = jax.jit(log_predictive_density, static_argnums=0)
    exact = _given_the_second(
        ((0.0, 0.0), (1.0, 1.0), 0.0),
        lambda m, v, g: st.norm.logpdf(y[:, None], 0, np.sqrt(v * g**2 + 1.09)),
    )
    np.testing.assert_allclose(find(product, y, marginal), exact, atol=ATOL)
    exact = st.norm.logpdf(y, 0, np.sqrt(3 + 0.05**2))
    np.testing.assert_allclose(find(summed, y, marginal), exact, atol=ATOL)


def test_mixtures():
    """log Σ_k π_k E_k p: the mean in probability and not in logarithms."""
    y = np.array([0.0, 2.0, 9.0])
    means, variances = (
        np.array([[0.0] * 3, [4.0] * 3]),
        np.array([[1.0] * 3, [0.2] * 3]),
    )
    pi = np.array([0.25, 0.75])
    marginal = Marginal(*map(jnp.asarray, (means, variances)), None, jnp.log(pi))
    for likelihood in (lk.StudentT(4.0, 0.3), lk.Gaussian(0.3)):
        ours = jax.jit(
            lambda lik=likelihood: log_predictive_density(lik, jnp.asarray(y), marginal)
        )()
        log_p = (
            (lambda y, f: st.t.logpdf(y, 4.0, f, 0.3))
            if isinstance(likelihood, lk.StudentT)
            else (lambda y, f: st.norm.logpdf(y, f, 0.3))
        )
        dense = [
            logsumexp(
                [
                    np.log(pi[k])
                    + _dense(log_p, one, means[k, n], variances[k, n] ** 0.5, one, 0.3)
                    for k in range(2)
                ]
            )
            for n, one in enumerate(y)
        ]
        np.testing.assert_allclose(ours, dense, atol=1e-6)


# --------------------------------------------------------------------- moments of y

MEAN, VARIANCE = np.array([-0.6, 0.2, 1.0]), np.array([0.3, 0.05, 0.5])
TANH = lk.warped.TanhSum(*map(np.array, ([0.7, 0.4], [1.5, 3.0], [0.2, -0.8])))
# Name -> likelihood, number of components.
MOMENTS = {
    "Gaussian": (lambda: lk.Gaussian(0.3), 1),
    "HeteroscedasticGaussian": (lambda: lk.HeteroscedasticGaussian(), 2),
    "Poisson": (lambda: lk.Poisson(2.0), 1),
    "Bernoulli logit": (lambda: lk.Bernoulli("logit"), 1),
    "Bernoulli probit": (lambda: lk.Bernoulli("probit"), 1),
    "AdditiveNoiseBernoulli step": (lambda: lk.AdditiveNoiseBernoulli("step", 0.1), 1),
    "AdditiveNoiseBernoulli": (lambda: lk.AdditiveNoiseBernoulli("logit", 0.02), 1),
    "AdditiveNoiseCategorical": (lambda: lk.AdditiveNoiseCategorical(3, 0.4, 0.1), 3),
    "AdditiveNoiseCategorical step": (
        lambda: lk.AdditiveNoiseCategorical(4, "step", 0.1),
        4,
    ),
    "Softmax": (lambda: lk.Softmax(3), 3),
    "Softmax gumbel": (lambda: lk.Softmax(4, "gumbel"), 4),
    "StudentT": (lambda: lk.StudentT(8.0, 0.5), 1),
    "Warped": (lambda: lk.Warped(ExpTransform().inv, 0.3), 1),
    "Warped tanh": (lambda: lk.Warped(TANH, 0.3), 1),
    "Warped power": (lambda: lk.Warped(lk.warped.BoxCox(0.1), 0.3), 1),
    "GPRN": (lambda: lk.GPRN(2, 2, np.array([0.3, 0.6])), 6),
    "callable": (lambda: lambda f: dist.Gamma(2.0, jnp.exp(-f)), 1),
}


# Of the same class as another, or with draws of another kind below.
ALIKE = {"Warped tanh", "Warped power", "Softmax gumbel", "Bernoulli probit"}
ALIKE |= {"AdditiveNoiseCategorical step", "AdditiveNoiseBernoulli step"}


def test_every_likelihood_has_its_moments_tested():
    here = {name.split()[0] for name in MOMENTS} - {"callable"}
    there = {name.split()[0] for name in test_more_likelihoods.CASES}
    assert here | there == set(lk.__all__)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            pytest.param(n, "mixture", marks=[pytest.mark.slow] * (n in ALIKE))
            for n in MOMENTS
        ),
        ("HeteroscedasticGaussian", "correlated"),
        ("AdditiveNoiseCategorical", "independent"),
        pytest.param(
            "AdditiveNoiseCategorical step", "independent", marks=pytest.mark.thorough
        ),
        ("Softmax gumbel", "independent"),
        pytest.param("GPRN", "independent", marks=pytest.mark.thorough),
    ],
)
def test_moments_of_the_data(name, kind):
    """Against draws; 5 standard errors: fails one time in 10,000 if nothing is wrong.

    Mixtures have correlated components.
    """
    (make, width), draws, mixture = MOMENTS[name], 50_000, kind == "mixture"
    mean, variance, covariance = MEAN, VARIANCE, None
    factor = np.sqrt(VARIANCE)[:, None, None]
    if width > 1:
        powers = 0.5 ** np.arange(width)
        mean = MEAN[:, None] * powers - np.arange(width) % 3
        variance = VARIANCE[:, None] * powers
        # Two thirds of the fully correlated limit; in some it must not matter to y.
        correlation = np.full((width, width), 0.0 if kind == "independent" else 0.66)
        np.fill_diagonal(correlation, 1.0)
        sd = np.sqrt(variance)
        full = sd[:, :, None] * sd[:, None, :] * correlation
        factor = np.linalg.cholesky(full)
        covariance = None if kind == "independent" else full
    pi = np.array([0.4, 0.6])
    parts = [mean, variance, covariance]
    if mixture:
        parts = [
            part if part is None else np.stack([part, sign * part])
            for part, sign in zip(parts, (-1.0, 1.0, 1.0))
        ]
    log_pi = jnp.log(jnp.asarray(pi)) if mixture else None
    marginal = Marginal(*[p if p is None else jnp.asarray(p) for p in parts], log_pi)

    rng = np.random.default_rng(6)
    noise = rng.normal(size=(draws, 3, width))
    f = np.einsum("nqr,snr->snq", factor, noise)
    sign = np.where(rng.random(draws) < pi[1], -1.0, 1.0) if mixture else np.ones(draws)
    f = (f.reshape(draws, *mean.shape)) + sign.reshape(-1, *[1] * mean.ndim) * mean

    @jax.jit
    def run(f):
        y = make()(f).sample(jax.random.key(0))
        return predictive_mean_and_variance(make(), marginal), y

    (first, second), y = run(f)
    y = np.asarray(y, float)
    assert np.all(np.abs(first - y.mean(0)) < 5 * y.std(0) / draws**0.5)
    squares = (y - y.mean(0)) ** 2
    error = squares.std(0) / draws**0.5
    assert np.all(np.abs(second - squares.mean(0)) < 5 * error)


def test_moments_of_a_function_with_steps():
    """Gauss–Hermite with 20 nodes was off by 0.03, and by half of the variance."""

    def steep(f):
        return dist.Bernoulli(logits=4.0 * f)

    def wave(f):
        return dist.Normal(jnp.sin(3.0 * f), 0.1)

    m, sd = np.array([-2.44, -2.62, 1.0]), np.array([2.74, 1.5, 0.3])
    e = np.linspace(-10.0, 10.0, 20_001)[:, None]
    p = np.sum(st.norm.pdf(e) * (e[1] - e[0]) * expit(4.0 * (m + sd * e)), axis=0)
    of_sin = np.exp(-4.5 * sd**2) * np.sin(3.0 * m)
    of_square = 0.5 - 0.5 * np.exp(-18.0 * sd**2) * np.cos(6.0 * m)
    exact = [(p, p * (1.0 - p)), (of_sin, 0.01 + of_square - of_sin**2)]
    marginal = Marginal(jnp.asarray(m), jnp.asarray(sd**2))
    find = jax.jit(predictive_mean_and_variance, static_argnums=0)
    for likelihood, moments in zip((steep, wave), exact):
        np.testing.assert_allclose(find(likelihood, marginal), moments, atol=1e-4)


@mostly_single
def test_moments_of_a_rate_on_a_wide_log_scale(precision):
    """Far out its square is beyond single precision, and has no weight."""
    m, s = jnp.array([0.3, 0.0]), jnp.array([3.0, 5.0])
    find = jax.jit(
        partial(predictive_mean_and_variance, lambda f: dist.Poisson(jnp.exp(f)))
    )
    mean, variance = find(Marginal(m, s**2))
    rate = np.exp(m + s**2 / 2)
    np.testing.assert_allclose(mean, rate, rtol=1e-5)
    exact = rate[0] + rate[0] ** 2 * np.expm1(9.0)
    np.testing.assert_allclose(variance[0], exact, rtol=1e-3)
    assert np.isfinite(variance[1])


def test_a_variance_may_be_one_number():
    """As that of a distribution of one's own, which does not depend on f."""

    class Known(dist.Normal):
        variance = 0.09

    marginal = Marginal(np.array([0.3, -1.0]), np.array([0.5, 2.0]))
    moments = jax.jit(partial(predictive_mean_and_variance, lambda f: Known(f, 0.3)))
    mean, variance = moments(marginal)
    np.testing.assert_allclose(mean, marginal.mean, rtol=1e-9)
    np.testing.assert_allclose(variance, marginal.variance + 0.09, rtol=1e-9)


def _softmax(f):
    return dist.Categorical(logits=f)


@pytest.mark.thorough
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_three_components_in_float32(precision):
    """XLA lost the nodes after the 1024th: up to 13 nats."""
    rng = np.random.default_rng(8)
    factor = 0.7 * rng.normal(size=(64, 3, 3))
    covariance, mean = factor @ np.swapaxes(factor, 1, 2), rng.normal(size=(64, 3))
    leaves = mean, np.diagonal(covariance, axis1=1, axis2=2), covariance
    y = np.arange(64) % 3

    def run():
        marginal = Marginal(*map(jnp.asarray, leaves))
        return jax.jit(lambda m: log_predictive_density(_softmax, jnp.asarray(y), m))(
            marginal
        )

    single = run()
    with jax.enable_x64(True):
        double = run()
    assert single.dtype == np.float32 and double.dtype == np.float64
    np.testing.assert_allclose(single, double, atol=1e-5)


@pytest.mark.thorough
def test_probabilities_of_classes():
    rng = np.random.default_rng(8)
    factor = 0.7 * rng.normal(size=(5, 3, 3))
    covariance, mean = factor @ np.swapaxes(factor, 1, 2), rng.normal(size=(5, 3))
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    marginal = Marginal(*map(jnp.asarray, (mean, variance, covariance)))
    support = _softmax(jnp.zeros((5, 3))).support
    p = jax.jit(lambda: predictive_probabilities(_softmax, support, marginal))()
    np.testing.assert_allclose(np.sum(p, axis=1), 1.0, atol=1e-4)
    f = mean + np.einsum("nqr,snr->snq", factor, rng.normal(size=(200_000, 5, 3)))
    draws = np.exp(f - logsumexp(f, axis=-1, keepdims=True))
    error = draws.std(0) / len(draws) ** 0.5
    assert np.all(np.abs(p - draws.mean(0)) < 5 * error + 1e-4)


def test_probabilities_of_two_classes():
    marginal = Marginal(jnp.asarray(MEAN), jnp.asarray(VARIANCE))
    for link in ("logit", "probit"):
        likelihood = lk.Bernoulli(link)

        @jax.jit
        def run(likelihood=likelihood):
            boolean = dist.constraints.boolean
            return (
                predictive_probabilities(likelihood, boolean, marginal),
                *predictive_mean_and_variance(likelihood, marginal),
                log_predictive_density(likelihood, jnp.zeros(3), marginal),
            )

        p, mean, variance, zeros = run()
        np.testing.assert_allclose(p, mean, rtol=1e-10)
        np.testing.assert_allclose(variance, p * (1 - p), rtol=1e-10)
        np.testing.assert_allclose(p + np.exp(zeros), 1.0, rtol=1e-6)
    real = dist.constraints.real
    assert predictive_probabilities(lk.Gaussian(0.1), real, marginal) is None


def test_the_cdf_of_a_mixture_is_that_of_its_components():
    mean = np.array([[[0.1, -0.5]], [[1.0, 0.3]], [[-0.7, 0.0]]])  # [K, N, 2]
    variance = np.array([[[0.2, 0.1]], [[0.5, 0.3]], [[0.1, 0.4]]])
    covariance = np.eye(2) * variance[..., None]
    covariance[..., 0, 1] = covariance[..., 1, 0] = 0.05
    weights = np.array([0.5, 0.3, 0.2])
    likelihood, y = lk.HeteroscedasticGaussian(), np.array([0.4])
    whole = Marginal(mean, variance, covariance, np.log(weights))
    parts = [
        _closed_form_cdf(likelihood, y, Marginal(m, v, c))
        for m, v, c in zip(mean, variance, covariance)
    ]
    found = _closed_form_cdf(likelihood, y, whole)
    np.testing.assert_allclose(found, np.stack(parts), rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [0.02, 0.1, 0.5])
def test_a_mode_that_is_a_kink(scale):
    """∫ N(f; 0, 1) e^(−|y − f|/s) / (2s) df, the normal distribution function."""
    y = np.array([0.0, 0.3, 1.0, 3.0])
    marginal = Marginal(jnp.zeros(4), jnp.ones(4))
    likelihood = lambda f: dist.Laplace(f, scale)  # noqa: E731
    density = jax.jit(partial(log_predictive_density, likelihood))
    found = density(jnp.asarray(y), marginal)
    sides = [log_ndtr(sign * y - 1 / scale) - sign * y / scale for sign in (1, -1)]
    exact = logsumexp(sides, axis=0) + 0.5 / scale**2 - np.log(2 * scale)
    np.testing.assert_allclose(found, exact, atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_where_second_derivatives_overflow(precision):
    """Those of log Γ(c σ(f)) far below zero, in single precision: it was NaN."""
    y, mean = np.array([0.97, 0.01, 0.99]), np.array([-0.5, 3.6, -3.6])
    variance, concentration = np.array([4.0, 0.1, 0.1]), 1000.0

    def log_beta(y, f):
        return st.beta.logpdf(y, concentration * expit(f), concentration * expit(-f))

    exact = [
        _dense(log_beta, one, m, v**0.5, np.log(one / (1 - one)), 0.03)
        for one, m, v in zip(y, mean, variance)
    ]
    ours = _ours(lk.Beta(concentration), *map(jnp.asarray, (y, mean, variance)))
    np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-3)


@pytest.mark.thorough
def test_probabilities_of_logistic_labels_need_no_search_for_a_mode():
    """A map of 2500 cells under 300 draws took 46 processor seconds by that."""
    likelihood, support = lk.Bernoulli(), dist.constraints.boolean
    means = jnp.array([[-20.0, -2.0, 0.3, 8.0], [-18.0, 1.0, 0.0, 30.0]])
    variances = jnp.array([[0.0, 2.0, 100.0, 0.5], [1.0, 0.1, 9.0, 4.0]])
    marginal = Marginal(means, variances, log_weights=jnp.log(jnp.array([0.3, 0.7])))

    def found(marginal):
        moments = predictive_mean_and_variance(likelihood, marginal)
        return *moments, predictive_probabilities(likelihood, support, marginal)

    program = str(jax.make_jaxpr(found)(marginal))
    assert "while" not in program and "scan" not in program
    mean, variance, probs = found(marginal)
    labels = jnp.ones(4), jnp.zeros(4)
    p, rest = (np.exp(log_predictive_density(likelihood, y, marginal)) for y in labels)
    np.testing.assert_allclose(probs, p, 2e-6)
    np.testing.assert_allclose(mean, p, 2e-6)
    np.testing.assert_allclose(variance, p * rest, 2e-6, 1e-13)
