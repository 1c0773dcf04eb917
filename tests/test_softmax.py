"""E log softmax over differences of components, against the rule over all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st
from jax.test_util import check_grads

from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations import (
    GaussHermite,
    log_predictive_density,
    predictive_probabilities,
    variational_expectation,
)
from svgp_ppl.likelihoods.softmax import differences
from svgp_ppl.marginals import Marginal
from tests.conftest import mostly_double

N = 12


def marginal_of(kind: str, num_classes: int, sd: float) -> Marginal:
    """Means of width 2, standard deviations of about ``sd``."""
    rng = np.random.default_rng(num_classes)
    shape = (2, N, num_classes) if kind == "mixture" else (N, num_classes)
    mean = jnp.asarray(2.0 * rng.normal(size=shape))
    factor = sd * rng.normal(size=(*shape, num_classes)) / num_classes**0.5
    covariance = jnp.asarray(factor @ np.swapaxes(factor, -1, -2))
    variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
    match kind:
        case "independent":
            return Marginal(mean, variance)
        case "correlated":
            return Marginal(mean, variance, covariance)
    return Marginal(mean, variance, covariance, jnp.log(jnp.array([0.3, 0.7])))


def expectation(marginal: Marginal, y, method=None):
    """By our formula, or by the rule over all components."""
    likelihood = lk.Softmax(marginal.mean.shape[-1])
    return variational_expectation(likelihood, y, marginal, method=method)


@pytest.mark.parametrize("kind", ["independent", "correlated", "mixture"])
@pytest.mark.parametrize(
    "num_classes", [2, pytest.param(3, marks=pytest.mark.thorough)]
)
def test_the_rule_over_all_components(kind, num_classes):
    """Values and slopes, at widths that take each number of nodes."""
    y = jnp.arange(N) % num_classes

    @jax.jit
    def both(marginal):
        def ours(marginal):
            return jnp.sum(expectation(marginal, y))

        exact = expectation(marginal, y, GaussHermite(32))
        by_rule = jax.grad(lambda m: jnp.sum(expectation(m, y, GaussHermite(32))))
        return (
            expectation(marginal, y) - exact,
            jax.grad(ours)(marginal).mean - by_rule(marginal).mean,
        )

    for sd, error in ((0.2, 1e-8), (0.45, 1e-7), (1.5, 1e-3)):
        for off in both(marginal_of(kind, num_classes, sd)):
            np.testing.assert_allclose(off, 0.0, atol=error)


def test_fewer_nodes_where_the_differences_are_narrow():
    """Every rule is taken, and agrees with the next where it ends."""
    y = jnp.arange(N) % 3
    value = jax.jit(expectation)
    exact = jax.jit(lambda m, y: expectation(m, y, GaussHermite(32)))
    mean = marginal_of("independent", 3, 1.0).mean
    rules = {0.1: 1e-12, 0.4999: 3e-10, 0.5001: 1e-12, 1.4999: 2e-6, 1.5001: 1e-7}
    for widest, error in rules.items():
        marginal = Marginal(mean, jnp.full((N, 3), widest**2 / 2))
        off = np.abs(value(marginal, y) - exact(marginal, y)).max()
        assert off < error, widest


def test_differences_have_the_covariance_of_contrasts():
    y = np.arange(N) % 4
    marginal = marginal_of("correlated", 4, 1.0)
    d = jax.jit(differences)(jnp.asarray(y), marginal)
    for n in range(N):
        others = (y[n] + np.arange(1, 4)) % 4
        contrasts = np.eye(4)[others] - np.eye(4)[y[n]]
        covariance = contrasts @ np.asarray(marginal.covariance[n]) @ contrasts.T
        np.testing.assert_allclose(d.mean[n], contrasts @ marginal.mean[n], rtol=1e-9)
        np.testing.assert_allclose(d.covariance[n], covariance, atol=1e-12)
        np.testing.assert_allclose(d.variance[n], np.diag(covariance), atol=1e-12)


@mostly_double
@pytest.mark.parametrize("num_classes", [2, 3])
def test_a_latent_that_is_known_exactly(num_classes, precision):
    """The logarithm itself, with finite slopes in the variance: half its curvature."""
    mean = jnp.asarray(marginal_of("independent", num_classes, 1.0).mean)
    y = jnp.arange(N) % num_classes

    @jax.jit
    def run(variance):
        def total(variance):
            return jnp.sum(expectation(Marginal(mean, variance), y))

        zero = jnp.zeros_like(mean)
        return expectation(Marginal(mean, zero), y), jax.grad(total)(variance)

    value, slope = run(jnp.full_like(mean, 1e-4))
    log_p = jax.nn.log_softmax(mean)
    np.testing.assert_allclose(value, log_p[jnp.arange(N), y], rtol=1e-5)
    p = jnp.exp(log_p)
    np.testing.assert_allclose(slope, -0.5 * p * (1 - p), atol=1e-3)
    assert np.all(np.isfinite(run(jnp.zeros_like(mean))[1]))


def test_forward_mode():
    y = jnp.arange(N) % 3
    mean = marginal_of("independent", 3, 1.0).mean

    def value(mean, variance):
        return expectation(Marginal(mean, variance), y)

    start = mean, 0.1 + jnp.zeros_like(mean)
    check_grads(jax.jit(value), start, order=1, modes=["fwd"])


def probabilities_of_classes(mean, sd) -> list[float]:
    """E softmax: with Gumbel noise a class is the largest (McFadden 1974)."""
    e = np.linspace(-8.0, 8.0, 801)
    weights = st.norm.pdf(e) / np.sum(st.norm.pdf(e))
    t = np.linspace(np.min(mean - 9 * sd) - 5.0, np.max(mean + 9 * sd) + 30.0, 2001)
    shift = [t[:, None] - m - s * e for m, s in zip(mean, sd)]
    below = [st.gumbel_r.cdf(a) @ weights for a in shift]
    density = [st.gumbel_r.pdf(a) @ weights for a in shift]
    others = [np.prod(below[:c] + below[c + 1 :], axis=0) for c in range(len(mean))]
    return [np.sum(d * o) * (t[1] - t[0]) for d, o in zip(density, others)]


MEANS = np.array([[3.0, -4.0, 1.0], [0.0, 0.0, -20.0]])
SDS = np.array([10.0, 6.0, 14.0])


@mostly_double
@pytest.mark.parametrize("num_classes", [2, 3])
def test_the_probability_of_a_class_under_wide_marginals(num_classes, precision):
    """By the integral over Gumbel noise; what components share changes nothing."""
    likelihood = lk.Softmax(num_classes)
    mean, sd = MEANS[:, :num_classes], SDS[:num_classes]
    variance = np.broadcast_to(sd**2, mean.shape)
    covariance = 4.0 + sd**2 * np.eye(num_classes)
    covariance = np.broadcast_to(covariance, (2, num_classes, num_classes))

    @jax.jit
    def densities(y, mean, variance, covariance):
        apart = Marginal(mean, variance)
        shared = Marginal(mean, variance + 4.0, covariance)
        return [log_predictive_density(likelihood, y, m) for m in (apart, shared)]

    given = [jnp.asarray(a) for a in (mean, variance, covariance)]
    found = [densities(jnp.full(2, c), *given) for c in range(2)]
    with np.errstate(over="ignore"):
        exact = np.transpose([probabilities_of_classes(m, sd)[:2] for m in mean])
    for of_kind in np.exp(np.swapaxes(found, 0, 1)):
        error = 1e-4 if precision == 32 else 1e-7
        np.testing.assert_allclose(of_kind, exact, rtol=error)


@mostly_double
def test_the_probability_of_any_of_five_classes(precision):
    """Wide, narrow and known components, likely and unlikely labels."""
    mean = np.array([[3.0, -4.0, 1.0, 2.5, 0.0], [0.0, 0.0, -60.0, 0.2, -0.5]])
    sd = np.array([[10.0, 6.0, 14.0, 1.0, 0.0], [0.5, 0.2, 1.5, 0.0, 0.7]])

    @jax.jit
    def density(y, mean, variance):
        return log_predictive_density(lk.Softmax(5), y, Marginal(mean, variance))

    given = [jnp.asarray(a) for a in (mean, sd**2)]
    found = np.array([density(jnp.full(2, c), *given) for c in range(5)]).T
    with np.errstate(over="ignore", under="ignore"):
        exact = [probabilities_of_classes(*row) for row in zip(mean, sd)]
    error = 2e-4 if precision == 32 else 2e-7
    np.testing.assert_allclose(found, np.log(exact), atol=error)


def test_a_class_without_a_chance_among_four():
    """The rule for three classes is another one, also on how labels are shared out."""
    marginal = marginal_of("independent", 3, 1.5)
    low = -200.0 + jnp.zeros((N, 1))
    of_four = Marginal(
        jnp.concatenate([marginal.mean, low], axis=-1),
        jnp.concatenate([marginal.variance, 1.0 + 0.0 * low], axis=-1),
    )

    @jax.jit
    def probs(marginal):
        likelihood = lk.Softmax(marginal.mean.shape[-1])
        support = likelihood(marginal.mean).support
        return predictive_probabilities(likelihood, support, marginal)

    found, exact = probs(of_four), probs(marginal)
    np.testing.assert_allclose(found[:, :3], exact, rtol=2e-7)
    np.testing.assert_allclose(np.sum(found, axis=-1), 1.0, rtol=2e-7)


@pytest.mark.parametrize("num_classes", [3, 4])
def test_a_datum_that_is_not_known_leaves_the_others(num_classes):
    mean = np.zeros((3, num_classes))
    variance = mean + np.array([[4.0], [np.nan], [4.0]])

    @jax.jit
    def density(mean, variance):
        marginal = Marginal(mean, variance)
        likelihood = lk.Softmax(num_classes)
        return log_predictive_density(likelihood, jnp.arange(len(mean)), marginal)

    found = np.exp(density(jnp.asarray(mean), jnp.asarray(variance)))
    each = 1.0 / num_classes
    np.testing.assert_allclose(found, [each, np.nan, each], rtol=1e-7)
    assert density(*[jnp.zeros((0, num_classes))] * 2).shape == (0,)


def test_slopes_of_the_log_probability_of_a_class():
    """In both modes, and once more: against finite differences."""

    @jax.jit
    def value(mean, factor):
        covariance = jnp.einsum("nij,nkj->nik", factor, factor)
        variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
        marginal = Marginal(mean, variance, covariance)
        likelihood, y = lk.Softmax(3), jnp.arange(3)
        return jnp.sum(log_predictive_density(likelihood, y, marginal))

    rng = np.random.default_rng(6)
    at = jnp.asarray(rng.normal(size=(3, 3))), jnp.asarray(rng.normal(size=(3, 3, 3)))
    check_grads(value, at, order=1, modes=["fwd", "rev"])
    second = jax.jit(jax.hessian(value))(*at)
    step = 1e-4 * jnp.eye(3)[1][None] * jnp.eye(3)[0][:, None]
    slope = jax.jit(jax.grad(value))
    moved = (slope(at[0] + step, at[1]) - slope(at[0] - step, at[1])) / 2e-4
    np.testing.assert_allclose(second[0, 1], moved, rtol=1e-5, atol=1e-8)


def test_slopes_of_the_log_probability_of_one_of_four_classes():
    """In both modes, and once more: against finite differences."""

    @jax.jit
    def value(mean, variance):
        marginal = Marginal(mean, variance)
        density = log_predictive_density(lk.Softmax(4), jnp.arange(3), marginal)
        return jnp.sum(density)

    rng = np.random.default_rng(7)
    at = jnp.asarray(rng.normal(size=(3, 4))), jnp.asarray(rng.gamma(2.0, size=(3, 4)))
    check_grads(value, at, order=1, modes=["fwd", "rev"])
    second = jax.jit(jax.hessian(value))(*at)
    step = 1e-4 * jnp.eye(3)[1][:, None] * jnp.eye(4)[0]
    slope = jax.jit(jax.grad(value))
    moved = (slope(at[0] + step, at[1]) - slope(at[0] - step, at[1])) / 2e-4
    np.testing.assert_allclose(second[1, 0], moved, rtol=1e-5, atol=1e-6)


def test_slopes_of_the_log_probability_at_latents_that_are_known():
    """In the variance they are half the curvature of p, in units of p."""
    mean, y = marginal_of("independent", 4, 1.0).mean, jnp.arange(N) % 4

    def value(mean, variance):
        marginal = Marginal(mean, variance)
        return jnp.sum(log_predictive_density(lk.Softmax(4), y, marginal))

    slopes = jax.jit(jax.grad(value, (0, 1)))(mean, jnp.zeros_like(mean))
    p, own = jax.nn.softmax(mean), np.eye(4)[y]
    np.testing.assert_allclose(slopes[0], own - p, atol=1e-6)
    curvature = (own - p) ** 2 - p * (1 - p)
    np.testing.assert_allclose(slopes[1], 0.5 * curvature, atol=5e-6)
