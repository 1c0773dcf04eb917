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


def probability_of_class(c: int, mean, sd) -> float:
    """E softmax_c: with Gumbel noise class c is the largest (McFadden 1974)."""
    e = np.linspace(-8.0, 8.0, 801)
    weights = st.norm.pdf(e) / np.sum(st.norm.pdf(e))
    t = np.linspace(np.min(mean - 9 * sd) - 5.0, np.max(mean + 9 * sd) + 30.0, 2001)
    shift = [t[:, None] - m - s * e for m, s in zip(mean, sd)]
    below = [st.gumbel_r.cdf(a) @ weights for a in shift]
    density = st.gumbel_r.pdf(shift[c]) @ weights
    others = np.prod([b for j, b in enumerate(below) if j != c], axis=0)
    return np.sum(density * others) * (t[1] - t[0])


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
        exact = [[probability_of_class(c, m, sd) for m in mean] for c in range(2)]
    for of_kind in np.exp(np.swapaxes(found, 0, 1)):
        error = 1e-4 if precision == 32 else 1e-7
        np.testing.assert_allclose(of_kind, exact, rtol=error)


def test_a_datum_that_is_not_known_leaves_the_others():
    mean, variance = np.zeros((3, 3)), np.full((3, 3), [[4.0], [np.nan], [4.0]])

    @jax.jit
    def density(mean, variance):
        marginal = Marginal(mean, variance)
        return log_predictive_density(lk.Softmax(3), jnp.arange(len(mean)), marginal)

    found = np.exp(density(jnp.asarray(mean), jnp.asarray(variance)))
    np.testing.assert_allclose(found, [1 / 3, np.nan, 1 / 3], rtol=1e-8)
    assert density(jnp.zeros((0, 3)), jnp.zeros((0, 3))).shape == (0,)


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
