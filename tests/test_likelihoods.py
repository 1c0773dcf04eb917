"""Every likelihood object: closed forms, quadrature and brute force give one number."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.distributions.transforms import ExpTransform, IdentityTransform
from numpyro.handlers import seed, trace

from svgp_ppl import kernels, observe, predict, sparse_gp
from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations import (
    GaussHermite,
    MonteCarlo,
    variational_expectation,
)
from svgp_ppl.expectations.predictive import log_predictive_density
from svgp_ppl.likelihoods import (
    Bernoulli,
    Gaussian,
    HeteroscedasticGaussian,
    Poisson,
    StudentT,
)
from svgp_ppl.marginals import Marginal
from tests.conftest import mostly_double
from tests.test_more_likelihoods import CASES as MORE

# Every mean with every variance; the data go round.
MEANS, VARIANCES = (
    a.ravel() for a in np.meshgrid([-1.6, -0.3, 0.7, 2.1], [1e-4, 0.05, 0.4, 1.3])
)
N = len(MEANS)
REAL = np.linspace(-2.0, 3.0, N)
COUNTS = np.arange(N) % 5
LABELS = np.arange(N) % 2
EXPOSURE = np.linspace(0.3, 4.0, N)

# Name -> likelihood, data, components, relative error of its default rule in float64.
CASES = {
    "Gaussian": (lambda: Gaussian(EXPOSURE), REAL, 1, 1e-12),
    "HeteroscedasticGaussian": (lambda: HeteroscedasticGaussian(), REAL, 2, 1e-9),
    "Poisson": (lambda: Poisson(EXPOSURE), COUNTS, 1, 1e-12),
    "Bernoulli logit": (lambda: Bernoulli("logit"), LABELS, 1, 1e-6),
    "Bernoulli probit": (lambda: Bernoulli("probit"), LABELS, 1, 1e-5),
    # Nodes a sd/4 apart cannot follow a Student-t of scale sd/4: see the last column.
    "StudentT": (lambda: StudentT(4.0, 0.8), REAL, 1, 2e-2),
    "Warped log": (
        lambda: lk.Warped(ExpTransform().inv, 0.7),
        np.exp(REAL),
        1,
        1e-12,
    ),
    "Softmax": (lambda: lk.Softmax(2), LABELS, 2, 1e-6),
}


# The classes whose expectation is not that of their own callable, or whose data have an
# event axis, have files of their own: test_noisy_labels, test_warped and
# test_regression_network. Here each goes once through a model and a prediction.
TANH = lk.warped.TanhSum(*map(np.array, ([0.7], [1.5], [0.2])))
THREE_LABELS = np.arange(6) % 3
# Name -> likelihood, data, components.
EVERY = {
    "Gaussian": (lambda: Gaussian(0.3), REAL[:6], None),
    "HeteroscedasticGaussian": (lambda: HeteroscedasticGaussian(), REAL[:6], 2),
    "Poisson": (lambda: Poisson(), COUNTS[:6], None),
    "Bernoulli": (lambda: Bernoulli(), LABELS[:6], None),
    "StudentT": (lambda: StudentT(4.0, 0.8), REAL[:6], None),
    "AdditiveNoiseBernoulli": (
        lambda: lk.AdditiveNoiseBernoulli(
            "probit", numpyro.sample("flip", dist.Beta(1.0, 9.0))
        ),
        LABELS[:6],
        None,
    ),
    "AdditiveNoiseCategorical": (
        lambda: lk.AdditiveNoiseCategorical(
            3, "logit", numpyro.sample("flip", dist.Beta(1.0, 9.0))
        ),
        THREE_LABELS,
        3,
    ),
    "Softmax": (lambda: lk.Softmax(3, "gumbel"), THREE_LABELS, 3),
    "Warped": (lambda: lk.Warped(TANH, 0.3), REAL[:6], None),
    "GPRN": (lambda: lk.GPRN(2, 1, 0.3), np.stack([REAL[:6], -REAL[:6]], axis=1), 3),
}


def test_every_likelihood_is_tested():
    assert set(EVERY) | set(MORE) == set(lk.__all__)
    assert all(type(seed(make, 0)()).__name__ == n for n, (make, *_) in EVERY.items())


# Others of the same shape stand for them by default.
ALIKE = set(EVERY) - {"Softmax"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in EVERY],
)
def test_a_model_and_a_prediction(name):
    """Data in a plate, log density finite, and a prediction from draws."""
    make, y, components = EVERY[name]
    x, shape = jnp.linspace(0.0, 2.0, 6)[:, None], (6, *y.shape[1:])

    def model(x, y=None):
        kernel, z = kernels.RBF(1.0, 0.7), jnp.array([[0.0], [2.0]])
        f = sparse_gp("f", kernel, z, num_outputs=components)
        likelihood = make()
        with numpyro.plate("data", len(x)):
            observe("y", likelihood, f(x), obs=y)

    v = np.random.default_rng(1).normal(size=(4, components or 1, 2))
    samples = {"f": v if components else v[:, 0], "flip": np.full(4, 0.1)}
    names = set()

    @jax.jit
    def log_prob():
        sites = trace(seed(model, 0)).get_trace(x, y)
        names.update(sites)
        return sites["y"]["fn"].log_prob(y)

    assert np.all(np.isfinite(log_prob()))
    samples = {site: values for site, values in samples.items() if site in names}
    at = predict(model, samples, x)["y"]
    assert at.mean.shape == at.variance.shape == shape
    assert np.all(np.isfinite(at.mean)) and np.all(at.variance > 0)
    density = at.log_prob(y)
    assert density.shape == (6,) and np.all(np.isfinite(density))
    assert at.sample(random.key(3), 5).shape == (5, *shape)
    if "Bernoulli" in name:
        assert at.probs.shape == (6,)
    elif components == 3 and y.ndim == 1:
        np.testing.assert_allclose(np.sum(at.probs, axis=1), 1.0, atol=1e-4)
        at_y = at.probs[np.arange(6), y]
        np.testing.assert_allclose(np.log(at_y), density, atol=1e-4)
    else:
        assert at.probs is None
    with pytest.raises(ValueError, match="site 'y' must"):
        at.log_prob(np.where(y == y[0], np.nan, y))


def _marginal(components, mean, variance):
    """One component; or two that are correlated, the second with a third of both."""
    if components == 1:
        return Marginal(mean, variance)
    mean = jnp.stack([mean, mean / 3], axis=-1)
    variance = jnp.stack([variance, variance / 3], axis=-1)
    off = 0.6 / 3**0.5 * variance[:, 0]
    covariance = jnp.stack(
        [
            jnp.stack([variance[:, 0], off], axis=-1),
            jnp.stack([off, variance[:, 1]], axis=-1),
        ],
        axis=-2,
    )
    return Marginal(mean, variance, covariance)


def _value_and_slopes(name, method, mean=MEANS, variance=VARIANCES):
    """E log p [N], and its derivatives by mean and variance [N]."""
    make, y, components, _ = CASES[name]
    y = jnp.asarray(y)

    @jax.jit
    def run(mean, variance):
        likelihood = make()

        def value(mean, variance):
            marginal = _marginal(components, mean, variance)
            return variational_expectation(likelihood, y, marginal, method=method)

        slopes = jax.grad(lambda *a: jnp.sum(value(*a)), argnums=(0, 1))
        return value(mean, variance), *slopes(mean, variance)

    return run(jnp.asarray(mean), jnp.asarray(variance))


@mostly_double
@pytest.mark.parametrize("name", CASES)
def test_expectation_is_that_of_many_nodes(name, precision):
    nodes = {1: 150, 2: 40}[CASES[name][2]]
    exact = _value_and_slopes(name, GaussHermite(nodes))
    ours = _value_and_slopes(name, None)
    tolerance = max(CASES[name][-1], 0.0 if precision == 64 else 1e-4)
    for a, b, what in zip(ours, exact, ("value", "by mean", "by variance")):
        # A derivative loses digits: by the mean a few, by the variance more.
        loss = {"value": 1, "by mean": 10, "by variance": 100}[what]
        if name == "StudentT" and what != "value":
            continue  # Gauss–Hermite is converged nowhere near the derivatives
        scale = np.max(np.abs(b))
        np.testing.assert_allclose(
            a, b, rtol=tolerance * loss, atol=tolerance * loss * scale, err_msg=what
        )


@pytest.mark.parametrize("name", CASES)
def test_expectation_is_that_of_brute_force(name):
    make, y, components, _ = CASES[name]
    marginal = _marginal(components, jnp.asarray(MEANS), jnp.asarray(VARIANCES))
    rng, draws = np.random.default_rng(3), 40_000
    noise = rng.normal(size=(draws, N, components))
    if components == 1:
        f = MEANS + np.sqrt(VARIANCES) * noise[..., 0]
    else:
        factor = np.linalg.cholesky(marginal.covariance)
        f = np.asarray(marginal.mean) + np.einsum("nqr,snr->snq", factor, noise)

    @jax.jit
    def run(f):
        log_p = make()(f).log_prob(y)
        return variational_expectation(make(), jnp.asarray(y), marginal), log_p

    ours, log_p = map(np.asarray, run(f))
    error = np.std(log_p, axis=0) / draws**0.5
    bias = CASES[name][-1] * np.abs(ours)  # of the rule, zero where it is exact
    assert np.all(np.abs(ours - np.mean(log_p, axis=0)) < 5 * error + bias)


@pytest.mark.thorough
@mostly_double
@pytest.mark.parametrize("name", CASES)
def test_a_latent_known_exactly(name, precision):
    """Zero variance: log p itself, and no infinite derivative."""
    make, y, components, _ = CASES[name]
    methods = [None] if components == 1 else [None, GaussHermite(), MonteCarlo()]

    @jax.jit
    def log_prob(mean, y):
        marginal = _marginal(components, mean, jnp.zeros(N))
        return make()(marginal.mean).log_prob(y)

    exact = log_prob(MEANS, y)
    for method in methods:
        values = _value_and_slopes(name, method, variance=np.zeros(N))
        tolerance = 1e-12 if precision == 64 else 2e-6
        np.testing.assert_allclose(values[0], exact, rtol=tolerance, atol=tolerance)
        assert all(np.all(np.isfinite(value)) for value in values)


@pytest.mark.parametrize("name", CASES)
def test_expectation_bounds_the_predictive_density(name):
    """Jensen: E log p <= log E p, with equality for a latent known exactly."""
    make, y, components, _ = CASES[name]

    @jax.jit
    def run(variance):
        marginal = _marginal(components, jnp.asarray(MEANS), variance)
        likelihood, data = make(), jnp.asarray(y)
        lower = variational_expectation(likelihood, data, marginal)
        return lower, log_predictive_density(likelihood, data, marginal)

    lower, upper = run(jnp.asarray(VARIANCES))
    assert np.all(lower < upper)
    np.testing.assert_allclose(*run(jnp.zeros(N)), rtol=1e-8)


@pytest.mark.thorough
def test_mixtures_average_their_components():
    means, variances = np.stack([MEANS, -MEANS]), np.stack([VARIANCES, 0.5 * VARIANCES])
    y, log_pi = jnp.asarray(COUNTS), jnp.log(jnp.array([0.3, 0.7]))
    marginal = Marginal(jnp.asarray(means), jnp.asarray(variances), None, log_pi)

    def likelihood(f):  # without closed forms
        return dist.Poisson(jnp.exp(f))

    @jax.jit
    def both(marginal):
        value = variational_expectation(likelihood, y, marginal)
        return value, log_predictive_density(likelihood, y, marginal)

    value, density = both(marginal)
    parts = [both(marginal.component(k)) for k in range(2)]
    mean = 0.3 * parts[0][0] + 0.7 * parts[1][0]
    np.testing.assert_allclose(value, mean, rtol=1e-12)
    mixed = np.log(0.3 * np.exp(parts[0][1]) + 0.7 * np.exp(parts[1][1]))
    np.testing.assert_allclose(density, mixed, rtol=1e-10)


def test_bernoulli_refuses_other_links():
    likelihood = Bernoulli()
    # Around the check of the annotation, which only the tests have.
    object.__setattr__(likelihood, "link", "log")
    with pytest.raises(ValueError, match="must be 'logit' or 'probit', and not 'log'"):
        likelihood.__post_init__()


@mostly_double
def test_bernoulli_far_out(precision):
    """No overflow forty units away from zero, in either link."""
    f = jnp.array([-40.0, 40.0, -40.0, 40.0])
    y = jnp.array([1, 1, 0, 0])
    for link in ("logit", "probit"):
        value, slope = jax.jit(
            lambda f, link=link: (
                Bernoulli(link)(f).log_prob(y),
                jax.grad(lambda f: jnp.sum(Bernoulli(link)(f).log_prob(y)))(f),
            )
        )(f)
        assert np.all(np.isfinite(value)) and np.all(np.isfinite(slope))
        tail = -40.0 if link == "logit" else -804.6084420137538  # log Φ(−40)
        np.testing.assert_allclose(value, [tail, 0.0, 0.0, tail], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("precision", [32], indirect=True)
@pytest.mark.parametrize(
    "make",
    [
        Gaussian,
        *(
            pytest.param(make, marks=pytest.mark.thorough)
            for make in (
                lambda scale: StudentT(4.0, scale),
                lambda scale: lk.CensoredGaussian(scale, np.array([0, 1])),
                lambda scale: lk.Warped(IdentityTransform(), scale),
            )
        ),
    ],
)
def test_scales_that_are_whole_numbers_may_be_squared(make, precision):
    """The square of 100,000 wraps around in 32 bits, that of 200 in 16."""
    marginal = Marginal(jnp.array([1.5, 4.0]) * 1e5, jnp.full(2, 1e8))
    y = jnp.array([1e5, 3e5])

    def moments(made, y, marginal):
        functions = variational_expectation, log_predictive_density
        return [[function(one, y, marginal) for function in functions] for one in made]

    for scale, dtype in ((100_000, "int32"), (200, "int16"), (200, "uint8")):
        whole = scale, np.full(2, scale, dtype), jnp.full(2, scale, dtype)
        made = [make(given) for given in (float(scale), *whole)]
        exact, *found = jax.jit(partial(moments, made))(y, marginal)
        for one in found:
            np.testing.assert_allclose(one, exact, 1e-5)
    assert make(np.full(2, 0.3)).scale.dtype == np.float64  # and no word of JAX
    assert make(np.full(2, 0.3, np.float16)).scale.dtype == np.float32


@pytest.mark.parametrize(
    ("make", "y", "dtypes"),
    [
        (Poisson, 5, ("uint8", "int32", "float16")),
        (lk.Weibull, 2, ("uint8", "int32", "float16")),
        (lambda a: lk.AdditiveNoiseBernoulli("probit", 1 / a), 1, ("float16",)),
        *(
            pytest.param(make, 5, dtypes, marks=pytest.mark.thorough)
            for make, dtypes in (
                (
                    lambda a: lk.NegativeBinomial(a, 3 * a),
                    ("uint8", "int32", "float16"),
                ),
                (lambda a: lk.ZeroInflatedPoisson(1 / a, a), ("uint8", "float16")),
                (lambda df: StudentT(df, 0.5), ("uint8", "float16")),
            )
        ),
    ],
)
def test_values_of_few_bits_count_for_what_they_are(make, y, dtypes):
    """Their logarithms are in single precision, or half, where the latent is double."""
    marginal, data = Marginal(jnp.array([0.5]), jnp.array([0.3])), jnp.array([y])

    @jax.jit
    def moments(data, marginal):
        made = [make(np.array([8]).astype(of)) for of in (float, *dtypes)]
        functions = variational_expectation, log_predictive_density
        return [
            [function(one, data, marginal) for one in made] for function in functions
        ]

    for exact, *found in moments(data, marginal):
        for dtype, few in zip(dtypes, found):
            rtol = 1e-6 if dtype == "float16" else 1e-12
            np.testing.assert_allclose(few, exact, rtol)


def test_draws_have_the_moments_of_the_likelihood():
    f = np.full(20_000, 0.4)
    for likelihood, mean, variance in (
        (Gaussian(0.3), 0.4, 0.09),
        (Poisson(2.0), 2 * np.exp(0.4), 2 * np.exp(0.4)),
        (Bernoulli("probit"), 0.6554217416103242, 0.2258440826),
        (StudentT(8.0, 0.5), 0.4, 0.25 * 8 / 6),
    ):
        sample = jax.jit(lambda f, of=likelihood: of(f).sample(random.key(0)))
        draws = np.asarray(sample(f), float)
        assert abs(draws.mean() - mean) < 5 * (variance / len(draws)) ** 0.5
        np.testing.assert_allclose(draws.var(), variance, rtol=0.1)
