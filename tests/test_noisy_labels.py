"""Additive noise and the softmax bound: each number by two routes.

The expectation of a likelihood with additive noise averages the noise outside the
logarithm; it is compared with integrals and draws of the noisy latent g = f + ε, and
predictions with those of f.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax import random
from scipy.special import log_ndtr, logsumexp, ndtr
from scipy.stats import norm

from svgp_ppl import likelihoods as lk
from svgp_ppl import observe, sparse_gp
from svgp_ppl.expectations import GaussHermite, variational_expectation
from svgp_ppl.expectations.predictive import (
    log_predictive_density,
    predictive_probabilities,
)
from svgp_ppl.likelihoods.largest import probability_of_largest
from svgp_ppl.likelihoods.values import noise_variance
from svgp_ppl.marginals import Marginal
from tests.conftest import mostly_double

NOISES = ("step", "probit", "logit", 0.3)
FLIPS = (1e-3, 0.05, 0.4)


def _tolerance(precision):
    return 1e-5 if precision == 32 else 1e-10


# ------------------------------------------------------------------------------ binary

MEANS, VARIANCES = (
    a.ravel() for a in np.meshgrid([-9.0, -1.6, 0.0, 0.7, 4.0], [1e-4, 0.3, 1.3, 30.0])
)
# Of one type in both precisions: in a trace JAX keeps what a constant was converted to.
LABELS = (np.arange(len(MEANS)) % 2).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def _binary_run(noise, mean, variance, flip):
    """Expectation, log predictive density, and slopes by mean, variance, flip."""

    def both(mean, variance, flip):
        likelihood = lk.AdditiveNoiseBernoulli(noise, flip)
        marginal, y = Marginal(mean, variance), jnp.asarray(LABELS)
        return (
            variational_expectation(likelihood, y, marginal),
            log_predictive_density(likelihood, y, marginal),
        )

    def total(mean, variance, flip):
        return jnp.sum(both(mean, variance, flip)[0])

    slopes = jax.grad(total, argnums=(0, 1, 2))(mean, variance, flip)
    return *both(mean, variance, flip), *slopes


def _binary(noise, flip):
    return _binary_run(noise, *map(jnp.asarray, (MEANS, VARIANCES, flip)))


@mostly_double
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("flip", FLIPS)
def test_binary_by_integration_over_the_noisy_latent(noise, flip, precision):
    """g ~ N(m, a + v); the integrand jumps at g = 0, which is an end of the panels."""
    ours, predictive, by_mean, by_variance, by_flip = _binary(noise, flip)
    total = VARIANCES + noise_variance(noise)
    sign = np.where(LABELS == 1, 1.0, -1.0)
    x, w = np.polynomial.legendre.leggauss(200)
    inside = []
    for m, v, s in zip(MEANS, total, sign):
        # The mass on the right side of zero, over at most 12 standard deviations.
        low, high = max(0.0, s * m - 12 * v**0.5), s * m + 12 * v**0.5
        g = 0.5 * (low + high) + 0.5 * (high - low) * x
        density = np.exp(-0.5 * (g - s * m) ** 2 / v) / np.sqrt(2 * np.pi * v)
        inside.append(0.5 * (high - low) * np.sum(w * density) if high > 0 else 0.0)
    inside = np.array(inside)
    exact = inside * np.log1p(-flip) + (1 - inside) * np.log(flip)
    close = functools.partial(np.testing.assert_allclose, rtol=_tolerance(precision))
    close(ours, exact, atol=1e-12)
    close(predictive, np.log(inside * (1 - flip) + (1 - inside) * flip), atol=1e-12)
    # The slopes by hand: dΦ(z) = φ(z) dz with z = ± m/√(a + v).
    z = sign * MEANS / np.sqrt(total)
    slope = np.log((1 - flip) / flip) * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    close(by_mean, slope * sign / np.sqrt(total), atol=1e-6 if precision == 32 else 0)
    close(by_variance, -0.5 * slope * z / total, atol=1e-6 if precision == 32 else 0)
    close(by_flip, np.sum((1 - inside) / flip - inside / (1 - flip)))


@pytest.mark.parametrize("noise", NOISES)
def test_binary_by_draws(noise):
    """5 standard errors: one failure in 10,000 runs of all 20 data, were it random."""
    rng, draws, flip = np.random.default_rng(1), 40_000, 0.05
    ours, predictive, *_ = _binary(noise, flip)
    sd = np.sqrt(VARIANCES + noise_variance(noise))
    share = ndtr(np.where(LABELS == 1, 1, -1) * MEANS / sd)
    g = MEANS + sd * rng.normal(size=(draws, len(MEANS)))
    p = np.where((g > 0) == (LABELS == 1), 1 - flip, flip)
    for value, drawn in ((ours, np.log(p)), (np.exp(predictive), p)):
        jump = np.log(1 / flip - 1) if value is ours else 1 - 2 * flip
        error = jump * np.sqrt(share * (1 - share) / draws)
        # Where hardly any draw is on the other side, Poisson tails: one draw more.
        assert np.all(np.abs(value - drawn.mean(0)) <= 5 * error + jump / draws)


def test_binary_takes_its_place_among_the_expectations():
    """Noise outside the logarithm <= noise inside it <= log predictive density."""
    y, marginal = jnp.asarray(LABELS), Marginal(*map(jnp.asarray, (MEANS, VARIANCES)))

    @jax.jit
    def run():
        likelihood = lk.AdditiveNoiseBernoulli("probit", 0.05)
        outside = variational_expectation(likelihood, y, marginal)
        inside = variational_expectation(
            likelihood, y, marginal, method=GaussHermite(200)
        )
        return outside, inside, log_predictive_density(likelihood, y, marginal)

    outside, inside, predictive = run()
    assert np.all(outside < inside + 1e-12) and np.all(inside < predictive + 1e-12)
    assert np.max(inside - outside) > 0.1 and np.max(predictive - inside) > 0.1
    # At 1e-4 of variance the last two are the same, and the first is not.
    known = VARIANCES < 1e-3
    np.testing.assert_allclose(inside[known], predictive[known], atol=1e-4)
    assert np.max(predictive[known] - outside[known]) > 0.1


def test_step_is_the_limit_of_small_noise():
    step = _binary("step", 0.05)
    small = _binary(1e-9, 0.05)
    np.testing.assert_allclose(step[0], small[0], rtol=1e-5)


def test_probit_without_flips_is_the_probit():
    """δ → 0: P(y|f) = Φ(±f), also far out."""
    f = np.array([-3.0, 0.4, 2.0, 7.0])
    y = np.array([1, 0, 1, 0])
    likelihood = lk.AdditiveNoiseBernoulli("probit", 1e-15)
    ours = jax.jit(lambda f, y: likelihood(f).log_prob(y))(f, y)
    exact = log_ndtr(np.where(y == 1, f, -f))
    np.testing.assert_allclose(ours, exact, rtol=1e-3)


def test_best_flip_of_binary_labels():
    """1 − mean Φ(z), Liu et al. 2019, equation 27."""
    z = np.where(LABELS == 1, 1.0, -1.0) * MEANS / np.sqrt(VARIANCES + 1.0)
    best = 1 - np.mean(ndtr(z))

    @jax.jit
    @jax.vmap
    def bound(flip):
        marginal = Marginal(jnp.asarray(MEANS), jnp.asarray(VARIANCES))
        likelihood = lk.AdditiveNoiseBernoulli("probit", flip)
        return jnp.sum(
            variational_expectation(likelihood, jnp.asarray(LABELS), marginal)
        )

    flips = best + np.linspace(-0.05, 0.05, 101)
    assert np.argmax(bound(jnp.asarray(flips))) == 50


# ----------------------------------------------------------------------------- classes


def _classes(rng, num_classes, ratio, num=40):
    """Means of all sizes, and standard deviations that differ up to a factor."""
    mean = rng.normal(size=(num, num_classes)) * rng.choice([0.1, 1.0, 3.0], (num, 1))
    half = 0.5 * np.log10(ratio)
    return mean, 10 ** rng.uniform(-half, half, (num, num_classes))


def _dense_largest(mean, sd, y):
    """∫ N(e; 0, 1) Π Φ(…) de on panels that follow every factor: to 1e-10."""
    total = []
    x, w = np.polynomial.legendre.leggauss(12)
    for m, s, own in zip(mean, sd, y):
        others = np.arange(len(m)) != own
        place, width = (m[others] - m[own]) / s[own], s[others] / s[own]
        ends = np.linspace(-9, 9, 19)[:, None]
        steps = np.array([-9, -6, -4, -2.5, -1, 0, 1, 2.5, 4, 6, 9])[:, None]
        ends = np.sort(
            np.clip([*ends.ravel(), *(place + steps * width).ravel()], -9, 9)
        )
        a, b = ends[:-1, None], ends[1:, None]
        e = 0.5 * (a + b) + 0.5 * (b - a) * x
        log_p = log_ndtr((e[..., None] - place) / width).sum(-1) - 0.5 * e**2
        total.append(np.sum(0.5 * (b - a) * w * np.exp(log_p)) / np.sqrt(2 * np.pi))
    return np.array(total)


@jax.jit
def _largest(y, mean, sd):
    def value(mean, sd):
        return probability_of_largest(y, Marginal(mean, jnp.square(sd)), 0.0)

    slopes = jax.grad(lambda *a: jnp.sum(value(*a)), argnums=(0, 1))(mean, sd)
    return value(mean, sd), *slopes


# Ratio of the largest to the smallest standard deviation -> error in both precisions.
ACCURACY = {1.0: 1e-9, 10.0: 2e-6, 100.0: 1e-5, 1e4: 2e-5, 9e5: 2e-5}


@mostly_double
@pytest.mark.parametrize("num_classes", [2, 3, 10])
@pytest.mark.parametrize("ratio", ACCURACY)
def test_probability_of_the_largest(num_classes, ratio, precision):
    rng = np.random.default_rng(num_classes)
    mean, sd = _classes(rng, num_classes, ratio)
    y = np.arange(len(mean)) % num_classes
    exact = _dense_largest(mean, sd, y)
    ours, by_mean, by_sd = _largest(*map(jnp.asarray, (y, mean, sd)))
    tolerance = max(ACCURACY[ratio], 0.0 if precision == 64 else 2e-6)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=tolerance)
    # The slopes by a difference of dense integrals, along one direction for all.
    towards = rng.normal(size=(2, *mean.shape))
    moves = 1e-4 * towards[0] * sd, 1e-4 * towards[1] * sd
    up = _dense_largest(mean + moves[0], sd + moves[1], y)
    down = _dense_largest(mean - moves[0], sd - moves[1], y)
    along = np.sum(by_mean * towards[0] * sd + by_sd * towards[1] * sd, axis=-1)
    np.testing.assert_allclose(along, (up - down) / 2e-4, atol=20 * tolerance + 1e-6)


@mostly_double
def test_a_step_much_sharper_than_the_rounding_of_the_means(precision):
    """Two classes known to 1e-6 beside one of unit variance: slopes stay right."""
    mean = jnp.array([[700.0, 700.3, 699.0], [0.0, -3.0, 0.4]])
    sd = jnp.array([[1.0, 1e-6, 1e-6], [1.0, 1e-6, 1e-6]])
    ours, by_mean, by_sd = _largest(jnp.array([0, 0]), mean, sd)
    # The larger of the two others decides.
    z = np.array([-0.3, -0.4])
    np.testing.assert_allclose(ours, ndtr(z), atol=1e-3)
    slope = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(by_mean[:, 0], slope, atol=2e-3)
    np.testing.assert_allclose(np.sum(by_mean, axis=1), 0.0, atol=1e-5)
    np.testing.assert_allclose(by_sd[:, 0], slope * -z, atol=2e-3)


@mostly_double
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_classes_known_exactly(noise, precision):
    """No variance at all, as under a sampler with z = x; and extreme values."""
    mean = jnp.array([[1.0, 2.0, -1.0], [0.5, 0.4, 0.3], [1e3, -1e3, 0.0]])
    y = jnp.array([1, 0, 1])

    @jax.jit
    def run(mean, variance):
        def value(mean, variance):
            return probability_of_largest(y, Marginal(mean, variance), noise)

        slopes = jax.grad(lambda *a: jnp.sum(value(*a)), argnums=(0, 1))
        return value(mean, variance), *slopes(mean, variance)

    ours, *slopes = run(mean, jnp.zeros((3, 3)))
    sd = np.full((3, 3), max(noise, 1e-8) ** 0.5)
    np.testing.assert_allclose(ours, _dense_largest(np.asarray(mean), sd, y), atol=1e-6)
    assert all(np.all(np.isfinite(slope)) for slope in slopes)


def _correlated(rng, num_classes, num=6):
    factor = rng.normal(size=(num, num_classes, num_classes)) / num_classes**0.5
    mean = rng.normal(size=(num, num_classes))
    covariance = factor @ np.swapaxes(factor, 1, 2)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    return Marginal(*map(jnp.asarray, (mean, variance, covariance))), factor


@pytest.mark.parametrize("num_classes", [2, 3, 6])
def test_correlated_classes_by_draws(num_classes, noise=0.2):
    """5 standard errors and the error of the points, 1e-3."""
    rng, draws = np.random.default_rng(num_classes), 100_000
    marginal, factor = _correlated(rng, num_classes)
    y = np.arange(6) % num_classes
    ours = jax.jit(lambda: probability_of_largest(jnp.asarray(y), marginal, noise))()
    e = rng.normal(size=(draws, 6, num_classes))
    g = np.asarray(marginal.mean) + np.einsum("nqr,snr->snq", factor, e)
    g += noise**0.5 * rng.normal(size=g.shape)
    hit = np.argmax(g, axis=-1) == y
    error = hit.std(0) / draws**0.5
    assert np.all(np.abs(ours - hit.mean(0)) < 5 * error + 1e-3)
    # Taking the components for independent would be seen.
    wrong = Marginal(marginal.mean, marginal.variance)
    wrong = jax.jit(lambda: probability_of_largest(jnp.asarray(y), wrong, noise))()
    assert np.max(np.abs(wrong - hit.mean(0))) > 0.02


@mostly_double
@pytest.mark.parametrize("num_classes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_correlated_route_with_a_diagonal_covariance(num_classes, precision):
    """Two algorithms for one number, and for its derivatives."""
    rng = np.random.default_rng(1)
    mean, sd = _classes(rng, num_classes, 4.0)
    y = jnp.asarray(np.arange(len(mean)) % num_classes)

    @jax.jit
    def run(mean, sd):
        def value(mean, sd):
            covariance = jnp.square(sd)[..., None] * jnp.eye(num_classes)
            marginal = Marginal(mean, jnp.square(sd), covariance)
            return probability_of_largest(y, marginal, 0.0)

        slopes = jax.grad(lambda *a: jnp.sum(value(*a)), argnums=(0, 1))(mean, sd)
        return value(mean, sd), *slopes

    mean, sd = jnp.asarray(mean), jnp.asarray(sd)
    tolerance = 2e-6 if num_classes == 2 else 1e-3
    for a, b in zip(run(mean, sd), _largest(y, mean, sd)):
        np.testing.assert_allclose(a, b, atol=tolerance)


def test_correlated_classes_of_which_one_follows_from_the_others():
    """g_3 = (g_1 + g_2)/2, which is never the largest, and a singular covariance."""
    mix = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    mean, covariance = mix @ jnp.array([0.3, -0.1]), mix @ mix.T

    @jax.jit
    def run(mean, covariance):
        def one(label):
            marginal = Marginal(mean[None], jnp.ones((1, 3)), covariance[None])
            return probability_of_largest(jnp.full(1, label), marginal, 0.0)[0]

        value, pull_back = jax.vjp(lambda m, c: one(0), mean, covariance)
        return jnp.stack([one(c) for c in range(3)]), pull_back(jnp.ones_like(value))

    (p, slopes) = run(mean, covariance)
    np.testing.assert_allclose(
        p[:2], [ndtr(0.4 / 2**0.5), ndtr(-0.4 / 2**0.5)], atol=1e-3
    )
    assert p[2] < 1e-3
    assert np.all(np.isfinite(slopes[0])) and np.all(np.isfinite(slopes[1]))


def _exact_of_two_processes(y, mean, mix):
    """P(g_y is the largest) for g = mean + mix e: the interval of e_2 given e_1."""
    e = np.linspace(-8.5, 8.5, 8001)
    low, high = np.full_like(e, -np.inf), np.full_like(e, np.inf)
    for c in np.delete(np.arange(len(mean)), y):
        slope = mix[y] - mix[c]
        root = -(mean[y] - mean[c] + slope[0] * e) / slope[1]
        end, limit = (low, np.maximum) if slope[1] > 0 else (high, np.minimum)
        limit(end, root, out=end)
    inside = np.maximum(ndtr(high) - ndtr(low), 0)
    return np.sum(inside * norm.pdf(e)) * (e[1] - e[0])


@mostly_double
@pytest.mark.parametrize(
    ("rank", "num_classes"),
    [
        (1, 3),
        pytest.param(1, 5, marks=pytest.mark.thorough),
        pytest.param(2, 4, marks=pytest.mark.thorough),
        pytest.param(2, 6, marks=pytest.mark.thorough),
    ],
)
def test_classes_mixed_from_few_processes(rank, num_classes, precision):
    """Fewer processes than C − 1, value and derivatives: those were zero or wrong."""
    rng = np.random.default_rng(rank + num_classes)
    num = 12
    mean, mix = rng.normal(size=(num, num_classes)), np.zeros((num, num_classes, 2))
    mix[..., 2 - rank :] = rng.normal(size=(num, num_classes, rank))
    y = np.arange(num) % num_classes
    along = rng.normal(size=(2, num, num_classes)) / num_classes**0.5
    along = along[0], along[1][..., None] * (np.sum(np.abs(mix), axis=1) > 0)[:, None]

    @jax.jit
    def run(mean, mix, along):
        def value(mean, mix):
            covariance = mix @ jnp.swapaxes(mix, -1, -2)
            variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
            at = Marginal(mean, variance, covariance)
            return probability_of_largest(jnp.asarray(y), at, 0.0)

        slopes = [
            jax.jvp(value, (mean, mix), tangents)[1]
            for tangents in ((along[0], 0.0 * mix), (0.0 * mean, along[1]))
        ]
        pulled = jax.grad(lambda mean: jnp.sum(value(mean, mix)))(mean)
        return value(mean, mix), *slopes, jnp.sum(pulled * along[0], axis=-1)

    def exact(step, other):
        places = zip(y, mean + step * along[0], mix + other * along[1])
        return np.array([_exact_of_two_processes(*place) for place in places])

    def slope(*step):
        there, back = exact(*step), exact(*(-s for s in step))
        return (there - back) / (2 * max(step))

    value, by_mean, by_mix, pulled = run(*jax.tree.map(jnp.asarray, (mean, mix, along)))
    np.testing.assert_allclose(value, exact(0, 0), atol=1e-5 if rank == 1 else 4e-3)
    atol = 1e-4 if rank == 1 else 0.02
    np.testing.assert_allclose(pulled, by_mean, atol=1e-5)
    np.testing.assert_allclose(by_mean, slope(1e-3, 0.0), atol=atol)
    np.testing.assert_allclose(by_mix, slope(0.0, 1e-3), atol=atol)


@jax.jit
def _of_four_classes(marginal, y, flip):
    likelihood = lk.AdditiveNoiseCategorical(4, "probit", flip)
    support = likelihood(marginal.mean[0]).support
    return (
        variational_expectation(likelihood, y, marginal),
        log_predictive_density(likelihood, y, marginal),
        predictive_probabilities(likelihood, support, marginal),
    )


@mostly_double
@pytest.mark.parametrize("flip", FLIPS)
def test_classes_of_the_likelihood(flip, precision):
    """Equations 18 and 19; labels as floats; a mixture; probabilities sum to one."""
    rng = np.random.default_rng(4)
    mean, sd = _classes(rng, 4, 10.0, num=8)
    y = np.arange(8) % 4
    s = _dense_largest(mean, np.sqrt(sd**2 + 1.0), y)
    both = Marginal(
        jnp.asarray(np.stack([mean, mean + 1.0])),
        jnp.asarray(np.stack([sd**2, sd**2])),
        None,
        jnp.log(jnp.array([0.3, 0.7])),
    )
    value, predictive, probs = _of_four_classes(both, jnp.asarray(y, float), flip)
    tolerance = 2e-5 if precision == 64 else 1e-4
    exact = s * np.log(1 - flip) + (1 - s) * np.log(flip / 3)
    np.testing.assert_allclose(value, exact, atol=tolerance)
    exact = np.log(s * (1 - flip) + (1 - s) * flip / 3)
    np.testing.assert_allclose(predictive, exact, atol=5e-6 / flip)
    np.testing.assert_allclose(probs[np.arange(8), y], np.exp(exact), atol=tolerance)
    np.testing.assert_allclose(np.sum(probs, axis=1), 1.0, atol=tolerance)


def test_two_classes_are_the_binary_case():
    """f_1 − f_0 with both variances and both noises."""
    rng = np.random.default_rng(2)
    mean, sd = _classes(rng, 2, 10.0)
    y = jnp.asarray(np.arange(len(mean)) % 2)

    @jax.jit
    def run():
        two = Marginal(jnp.asarray(mean), jnp.asarray(sd**2))
        total = jnp.sum(two.variance, axis=-1)
        one = Marginal(two.mean[:, 1] - two.mean[:, 0], total)
        classes = lk.AdditiveNoiseCategorical(2, 0.5, 0.05)
        binary = lk.AdditiveNoiseBernoulli(1.0, 0.05)
        return [
            function(likelihood, y, marginal)
            for function in (variational_expectation, log_predictive_density)
            for likelihood, marginal in ((classes, two), (binary, one))
        ]

    ours = run()
    np.testing.assert_allclose(ours[0], ours[1], rtol=1e-9)
    np.testing.assert_allclose(ours[2], ours[3], rtol=1e-9)


def test_draws_of_classes_follow_their_log_probabilities():
    """And these are the prediction for a latent that is known exactly."""
    f, labels = np.array([[0.3, -0.2, 0.9, 0.1]]), np.arange(4)[:, None]
    for noise in ("step", 0.7):
        likelihood = lk.AdditiveNoiseCategorical(4, noise, 0.2)

        @jax.jit
        def run(f, labels, likelihood=likelihood):
            of_f = likelihood(f)
            return of_f.log_prob(labels), of_f.sample(random.key(0), (40_000,))

        log_p, draws = (np.asarray(each)[:, 0] for each in run(f, labels))
        np.testing.assert_allclose(np.sum(np.exp(log_p)), 1.0, atol=1e-6)
        share = np.bincount(draws, minlength=4) / 40_000
        error = np.sqrt(share * (1 - share) / 40_000)
        assert np.all(np.abs(share - np.exp(log_p)) < 5 * error)


def test_best_flip_of_classes():
    rng = np.random.default_rng(3)
    mean, sd = _classes(rng, 3, 4.0)
    y = np.arange(len(mean)) % 3
    best = 1 - np.mean(_dense_largest(mean, sd, y))

    @jax.jit
    @jax.vmap
    def bound(flip):
        marginal = Marginal(jnp.asarray(mean), jnp.asarray(sd**2))
        likelihood = lk.AdditiveNoiseCategorical(3, "step", flip)
        return jnp.sum(variational_expectation(likelihood, jnp.asarray(y), marginal))

    flips = best + np.linspace(-0.05, 0.05, 101)
    assert np.argmax(bound(jnp.asarray(flips))) == 50


# ----------------------------------------------------------------------------- softmax


def _gumbel(y, marginal):
    likelihood = lk.Softmax(marginal.mean.shape[-1], "gumbel")
    return variational_expectation(likelihood, jnp.asarray(y), marginal)


@mostly_double
@pytest.mark.parametrize("correlated", [False, True])
def test_softmax_bound_is_minus_log_of_the_mean(correlated, precision):
    """−log(1 + Σ E exp(f_c − f_y)) by draws, 5 standard errors; and the inequality."""
    rng, draws, num_classes = np.random.default_rng(5), 100_000, 4
    marginal, factor = _correlated(rng, num_classes)
    y = np.arange(6) % num_classes
    if not correlated:
        marginal = Marginal(marginal.mean, marginal.variance)
        factor = np.sqrt(marginal.variance)[..., None] * np.eye(num_classes)
    e = rng.normal(size=(draws, 6, num_classes))
    f = np.asarray(marginal.mean) + np.einsum("nqr,snr->snq", factor, e)
    own = np.take_along_axis(f, np.broadcast_to(y[:, None], (draws, 6, 1)), axis=-1)
    ratio = np.exp(f - own).sum(-1)
    error = ratio.std(0) / draws**0.5 / ratio.mean(0)
    ours = jax.jit(lambda: _gumbel(y, marginal))()
    assert np.all(np.abs(ours + np.log(ratio.mean(0))) < 5 * error + 1e-5)
    assert np.all(ours < -np.log(ratio).mean(0))


def test_softmax_bound_is_the_best_of_a_family():
    """Equation 24 is below it for every θ, and touches it at θ = 1 + P."""
    marginal, _ = _correlated(np.random.default_rng(5), 3)
    marginal, y = Marginal(marginal.mean, marginal.variance), np.arange(6) % 3
    ours = np.asarray(jax.jit(lambda: _gumbel(y, marginal))())
    m, v = np.asarray(marginal.mean), np.asarray(marginal.variance)
    p = np.array(
        [
            np.exp(v[n, k] / 2 - m[n, k])
            * sum(np.exp(v[n, c] / 2 + m[n, c]) for c in range(3) if c != k)
            for n, k in enumerate(y)
        ]
    )
    theta = np.linspace(1.0, 40.0, 40_000)[:, None]
    family = np.max(-p / theta - np.log(theta) - 1 / theta + 1, axis=0)
    assert np.all(family <= ours + 1e-12)
    np.testing.assert_allclose(family, ours, atol=1e-6)


@mostly_double
def test_softmax_bound_at_large_variance(precision):
    """No overflow; half a nat for each unit of Var(f_c − f_y); slopes are finite."""
    y = jnp.array([0, 1])

    @jax.jit
    def run(variance):
        def value(variance):
            return _gumbel(y, Marginal(jnp.zeros((2, 3)), variance))

        return value(variance), jax.grad(lambda v: jnp.sum(value(v)))(variance)

    value, slope = run(jnp.full((2, 3), 1e4))
    np.testing.assert_allclose(value, -1e4 - np.log(2.0), rtol=1e-6)
    np.testing.assert_allclose(slope[0], [-0.5, -0.25, -0.25], rtol=1e-5)
    value, slope = run(jnp.zeros((2, 3)))
    np.testing.assert_allclose(value, -np.log(3.0), rtol=1e-6)
    # Confident and right: small, and not rounded to zero.
    confident = Marginal(jnp.array([[40.0, 0.0]]), jnp.zeros((1, 2)))
    value = jax.jit(lambda: _gumbel(jnp.zeros(1), confident))()
    np.testing.assert_allclose(value, -np.exp(-40.0), rtol=1e-5)


@pytest.mark.thorough
def test_softmax_of_many_classes_sums_to_one():
    """Seven components: 4096 points for every class; a density has its own."""
    rng = np.random.default_rng(7)
    marginal, factor = _correlated(rng, 7)

    @jax.jit
    def run():
        likelihood = lk.Softmax(7)
        support = likelihood(marginal.mean).support
        y = jnp.full(6, 2)
        return (
            predictive_probabilities(likelihood, support, marginal),
            log_predictive_density(likelihood, y, marginal),
            variational_expectation(likelihood, y, marginal),
            variational_expectation(lk.Softmax(7, "gumbel"), y, marginal),
        )

    probs, density, inside, bound = run()
    np.testing.assert_allclose(np.sum(probs, axis=1), 1.0, atol=1e-9)
    np.testing.assert_allclose(np.log(probs[:, 2]), density, atol=1e-3)
    assert np.all(bound < inside) and np.all(inside < density)
    draws = 100_000
    e = rng.normal(size=(draws, 6, 7))
    f = np.asarray(marginal.mean) + np.einsum("nqr,snr->snq", factor, e)
    drawn = np.exp(f - logsumexp(f, axis=-1, keepdims=True))
    error = drawn.std(0) / draws**0.5
    assert np.all(np.abs(probs - drawn.mean(0)) < 5 * error + 2e-4)


# ----------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: lk.AdditiveNoiseBernoulli("cauchy"),
            r"noise must be 'step'.*'cauchy'",
        ),
        (lambda: lk.AdditiveNoiseBernoulli(-1.0), "finite number >= 0.*is -1.0.*Learn"),
        (lambda: lk.AdditiveNoiseBernoulli(np.inf), "finite number >= 0.*is inf"),
        (lambda: lk.AdditiveNoiseBernoulli(True), "finite number >= 0.*is True"),
        (
            lambda: lk.AdditiveNoiseBernoulli("step", 0.0),
            "between 0 and 1.*is 0.0.*1e-3",
        ),
        (lambda: lk.AdditiveNoiseBernoulli("step", 1.0), "flip must lie.*is 1.0"),
        (
            lambda: lk.AdditiveNoiseCategorical(3, "step", -0.1),
            "flip must lie.*is -0.1",
        ),
        (lambda: lk.AdditiveNoiseCategorical(1), "num_classes .* at least 2, and is 1"),
        (lambda: lk.Softmax(0), "num_classes must be an integer of at least 2"),
        (
            lambda: lk.Softmax(3)(jnp.zeros((5, 4))),
            r"shape \[N, 3\], one component for each class, and got \(5, 4\)",
        ),
        (
            lambda: lk.AdditiveNoiseCategorical(3)(jnp.zeros(3)),
            r"shape \[N, 3\].*got \(3,\).*num_outputs=3",
        ),
    ],
)
def test_refusals(as_users_call, make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_step_is_noise_of_no_variance():
    @jax.jit
    def both(f, y):
        made = map(lk.AdditiveNoiseBernoulli, (0.0, "step"))
        return [likelihood(f).log_prob(y) for likelihood in made]

    one, other = both(np.array([-0.3, 0.2, 0.0]), np.array([0, 1, 1]))
    np.testing.assert_array_equal(one, other)


def test_refusals_that_annotations_would_hide():
    likelihood = lk.Softmax(3)
    object.__setattr__(likelihood, "bound", "jensen")
    with pytest.raises(ValueError, match=r"bound must be None or 'gumbel'.*'jensen'"):
        likelihood.__post_init__()


def _observed(likelihood, y, num_outputs):
    x = np.linspace(0.0, 1.0, 4)[:, None]

    def model():
        f = sparse_gp(
            "f",
            lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2)),
            x[:2],
            num_outputs=num_outputs,
        )
        observe("y", likelihood, f(x), obs=np.asarray(y))

    return numpyro.handlers.trace(numpyro.handlers.seed(model, 0)).get_trace()


@pytest.mark.parametrize(
    ("likelihood", "y", "num_outputs", "match"),
    [
        (
            lk.AdditiveNoiseBernoulli(),
            [0, 1, -1, 1],
            None,
            r"\{0, 1\}; among them is -1",
        ),
        (lk.AdditiveNoiseCategorical(3), [0, 1, 3, 2], 3, "0 to 2; among them is 3"),
        (
            lk.AdditiveNoiseCategorical(3),
            [0, 1, 0.5, 2],
            3,
            "0 to 2; among them is 0.5",
        ),
        (lk.Softmax(3, "gumbel"), [0, 1, -1, 2], 3, "0 to 2; among them is -1"),
        (lk.Softmax(3), [1, 2, 3, 1], 3, "the integers 0 to 2; among them is 3"),
    ],
)
def test_labels_outside_the_support(likelihood, y, num_outputs, match):
    with pytest.raises(ValueError, match=r"the data of site 'y' must lie .*" + match):
        _observed(likelihood, y, num_outputs)


@mostly_double
def test_two_narrow_classes_beside_a_wide_one(precision):
    """The first two decide between them: their difference is 7 of its own sd."""
    mean = np.array([[0.0, 1e-5, -10.0], [0.0, 1e-3, -1e3]])
    sd = np.array([[1e-6, 1e-6, 1.0], [1e-4, 1e-4, 30.0]])
    second, *_ = _largest(*map(jnp.asarray, (np.array([1, 1]), mean, sd)))
    np.testing.assert_allclose(second, 1.0, atol=1e-5)


@pytest.mark.thorough
@mostly_double
@pytest.mark.parametrize("size", [1.0, 0.1])
def test_a_class_that_is_pinned(size, precision):
    """g_0 = 0 is the largest with probability Π_c Φ(−m_c / s_c)."""
    means, sd = np.array([0.0, 0.3, -0.2, 0.1]), size * np.array([0.0, 1.0, 1.2, 0.8])
    marginal = Marginal(jnp.asarray(means)[None], jnp.asarray(sd**2)[None])

    def of_all(mean):
        at = Marginal(mean, marginal.variance)
        return jnp.stack(
            [probability_of_largest(jnp.array([c]), at, 0.0) for c in range(4)]
        )

    found = np.asarray(jax.jit(of_all)(marginal.mean))[:, 0]
    tolerance = 1e-5 if precision == 32 else 1e-8
    first = np.prod(ndtr(-means[1:] / sd[1:]))
    np.testing.assert_allclose(found[0], first, rtol=100 * tolerance, atol=tolerance)
    np.testing.assert_allclose(np.sum(found), 1.0, atol=tolerance)
    slopes = np.asarray(jax.jit(jax.jacfwd(of_all))(marginal.mean))[:, 0, 0]
    scores = -norm.pdf(means[1:] / sd[1:]) / sd[1:] / ndtr(-means[1:] / sd[1:])
    close = 2e-4 if precision == 32 else 1e-5
    np.testing.assert_allclose(slopes[0, 1:], first * scores, atol=close)
    np.testing.assert_allclose(np.sum(slopes, axis=0), 0.0, atol=close)
