"""Regression networks: moments of a product of Gaussians, by two routes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy.special import logsumexp

import svgp_ppl as gp
from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations import (
    MonteCarlo,
    log_predictive_density,
    predictive_mean_and_variance,
    variational_expectation,
)
from svgp_ppl.marginals import Marginal
from tests.conftest import mostly_double

N, P, Q = 4, 2, 2
SCALE = np.array([0.4, 0.9])
Y = np.random.default_rng(1).normal(size=(N, P))


def _marginal(kind, num_nodes=Q, spread=1.0):
    rng = np.random.default_rng(0)
    width = num_nodes * (1 + P)
    factor = spread * rng.normal(size=(N, width, width)) / width**0.5
    if kind == "independent":
        factor = factor * np.eye(width) * width**0.5
    covariance = factor @ np.swapaxes(factor, 1, 2)
    mean = rng.normal(size=(N, width))
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    held = None if kind == "independent" else jnp.asarray(covariance)
    return Marginal(jnp.asarray(mean), jnp.asarray(variance), held), factor


def _draws(marginal, factor, num, num_nodes=Q):
    """f_q and w_pq of every draw, taken apart by hand."""
    e = np.random.default_rng(2).normal(size=(num, *marginal.mean.shape))
    h = np.asarray(marginal.mean) + np.einsum("nqr,snr->snq", factor, e)
    return h, h[..., :num_nodes], h[..., num_nodes:].reshape(num, N, P, num_nodes)


@pytest.mark.parametrize("kind", ["independent", "correlated"])
def test_by_draws(kind):
    """Expectation, moments and covariance of y; 5 standard errors, 6e-7 a number."""
    marginal, factor = _marginal(kind)
    h, f, w = _draws(marginal, factor, 200_000)
    product = np.einsum("snpq,snq->snp", w, f)

    @jax.jit
    def run(h):
        likelihood = lk.GPRN(P, Q, jnp.asarray(SCALE))
        return (
            variational_expectation(likelihood, jnp.asarray(Y), marginal),
            *predictive_mean_and_variance(likelihood, marginal),
            likelihood.covariance(marginal),
            likelihood(h).log_prob(Y),
        )

    value, mean, variance, covariance, log_p = map(np.asarray, run(jnp.asarray(h)))
    by_hand = -0.5 * ((Y - product) / SCALE) ** 2 - np.log(SCALE * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(log_p, by_hand.sum(-1), rtol=1e-9)

    def agrees(ours, drawn):
        assert np.all(
            np.abs(ours - drawn.mean(0)) < 5 * drawn.std(0) / len(drawn) ** 0.5
        )

    agrees(value, log_p)
    agrees(mean, product)
    shift = product - product.mean(0)
    agrees(variance - SCALE**2, shift**2)
    agrees(covariance - np.diag(SCALE**2), shift[..., :, None] * shift[..., None, :])
    np.testing.assert_allclose(np.diagonal(covariance, 0, 1, 2), variance, rtol=1e-10)


@mostly_double
def test_independent_components_are_a_diagonal_covariance(precision):
    """Two formulas for one number, with derivatives; and a mixture of the two."""
    marginal, _ = _marginal("independent")

    @jax.jit
    def run(mean, variance, as_covariance):
        def value(mean, variance):
            covariance = variance[..., None] * jnp.eye(mean.shape[-1])
            covariance = covariance * as_covariance
            held = Marginal(mean, variance, covariance)
            return variational_expectation(
                lk.GPRN(P, Q, jnp.asarray(SCALE)), jnp.asarray(Y), held
            )

        slopes = jax.grad(lambda *a: jnp.sum(value(*a)), argnums=(0, 1))
        return value(mean, variance), *slopes(mean, variance)

    @jax.jit
    def plain(mean, variance):
        def value(mean, variance):
            held = Marginal(mean, variance)
            return variational_expectation(
                lk.GPRN(P, Q, jnp.asarray(SCALE)), jnp.asarray(Y), held
            )

        slopes = jax.grad(lambda *a: jnp.sum(value(*a)), argnums=(0, 1))
        return value(mean, variance), *slopes(mean, variance)

    ours = plain(marginal.mean, marginal.variance)
    tolerance = 1e-10 if precision == 64 else 1e-4
    for a, b in zip(ours, run(marginal.mean, marginal.variance, 1.0)):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_expectation_is_that_of_its_callable():
    marginal, _ = _marginal("correlated")
    likelihood = lk.GPRN(P, Q, jnp.asarray(SCALE))

    @jax.jit
    def run():
        y = jnp.asarray(Y)
        drawn = MonteCarlo(100_000)
        return [
            variational_expectation(likelihood, y, marginal, method=m)
            for m in (None, drawn)
        ]

    closed, drawn = run()
    np.testing.assert_allclose(closed, drawn, rtol=0.03)


@pytest.mark.parametrize(
    ("num_nodes", "noise"),
    [
        (2, 0.3),
        *(
            pytest.param(n, noise, marks=pytest.mark.slow)
            for n, noise in [(1, 0.3), (4, 0.3), (1, 1.0), (2, 1.0), (4, 1.0)]
        ),
    ],
)
def test_log_predictive_density_by_draws(num_nodes, noise):
    """W integrated out; draws of the nodes alone would be the same integral."""
    marginal, factor = _marginal("independent", num_nodes, 0.5)
    _, f, _ = _draws(marginal, factor, 400_000, num_nodes)
    ours = jax.jit(
        lambda: log_predictive_density(
            lk.GPRN(P, num_nodes, noise), jnp.asarray(Y), marginal
        )
    )()
    m = np.asarray(marginal.mean)[:, num_nodes:].reshape(N, P, num_nodes)
    v = np.asarray(marginal.variance)[:, num_nodes:].reshape(N, P, num_nodes)
    mean = np.einsum("npq,snq->snp", m, f)
    variance = np.einsum("npq,snq->snp", v, f**2) + noise**2
    log_p = np.sum(
        -0.5 * (Y - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance), axis=-1
    )
    top = log_p.max(0)
    error = np.exp(log_p - top).std(0) / len(f) ** 0.5
    error = error / np.exp(log_p - top).mean(0)
    drawn = logsumexp(log_p, axis=0) - np.log(len(f))
    assert np.all(np.abs(ours - drawn) < 5 * error + TOLERANCE[num_nodes])


KNOWN = np.array([[True, False], [False, True], [True, True], [False, False]])


@pytest.mark.parametrize(
    "kind",
    [pytest.param("independent", marks=pytest.mark.thorough), "correlated"],
)
def test_of_known_entries_is_that_of_the_outputs_known(kind):
    """By a network of those alone, row by row; without any it is 0."""
    marginal, _ = _marginal(kind)
    both = variational_expectation, log_predictive_density
    masked = lk.GPRN(P, Q, jnp.asarray(SCALE)).of_entries(jnp.asarray(KNOWN))
    y = jnp.where(KNOWN, Y, 0.0)
    found = np.array(jax.jit(lambda: [f(masked, y, marginal) for f in both])())
    moments = marginal.mean, marginal.variance, marginal.covariance
    mean, variance, covariance = map(np.asarray, moments)
    for n, known in enumerate(KNOWN[:3]):
        rows = np.flatnonzero(np.repeat([True, *known], Q))
        together = None
        if kind == "correlated":
            together = covariance[n][None, rows[:, None], rows]
        part = Marginal(mean[n][None, rows], variance[n][None, rows], together)
        few = lk.GPRN(int(known.sum()), Q, SCALE[known])
        own = jnp.asarray(Y[n][None, known])
        each = [jax.jit(partial(function, few)) for function in both]
        exact = [function(own, part)[0] for function in each]
        np.testing.assert_allclose(found[:, n], exact, rtol=1e-6)
    np.testing.assert_allclose(found[:, 3], 0.0, atol=1e-9)


def test_a_table_with_holes_is_a_network_of_each_output():
    """Which has no draws, in chunks either."""
    x = np.linspace(0.0, 1.0, N)[:, None]

    def latents():
        return [
            gp.sparse_gp(name, gp.kernels.RBF(1.0, 0.5), x[::2], num_outputs=number)(x)
            for name, number in (("f", Q), ("w", P * Q))
        ]

    def table(chunk_size=None):
        both = gp.stack(latents())
        options = {"obs": Y, "mask": KNOWN, "chunk_size": chunk_size}
        with numpyro.plate("data", N):
            gp.observe("y", lk.GPRN(P, Q, SCALE), both, **options)

    def apart():
        f, w = latents()
        for p in range(P):
            each = gp.stack([f, w[..., p * Q : (p + 1) * Q]])
            options = {"obs": Y[:, p, None], "mask": KNOWN[:, p]}
            with numpyro.plate(f"data {p}", N):
                gp.observe(f"y{p}", lk.GPRN(1, Q, SCALE[p]), each, **options)

    @jax.jit
    def densities(v):
        return log_density(apart, (), {}, v)[0], [
            log_density(handlers.seed(table, key), (chunk_size,), {}, v)[0]
            for chunk_size, key in ((None, 0), (None, 1), (2, 0))
        ]

    v = {"f": np.ones((Q, 2)), "w": np.linspace(-1.0, 1.0, 8).reshape(P * Q, 2)}
    density, found = densities(v)
    np.testing.assert_allclose(found, density, rtol=1e-9)


# Error in nats of the rule over the nodes: trapezoid, a box of such, points. The last
# miss improbable data: one here has a log density of −10.
TOLERANCE = {1: 1e-6, 2: 1e-4, 4: 0.5}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: lk.GPRN(0, 1, 0.1), "num_outputs must be a positive integer"),
        (lambda: lk.GPRN(1, 0, 0.1), "num_nodes must be .* integer, and is 0"),
        (
            lambda: lk.GPRN(2, 2, 0.1)(jnp.zeros((5, 4))),
            r"shape \[N, 6\], num_nodes \* \(1 \+ num_outputs\), and got \(5, 4\)",
        ),
    ],
)
def test_refusals(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.thorough
def test_predictions_of_many_data_are_right_when_compiled():
    """XLA 0.10 on a CPU summed products over small axes wrongly: up to 28 nats."""
    rng = np.random.default_rng(0)
    mean, y = rng.normal(size=(500, 6)), rng.normal(size=(500, 2))
    variance = rng.uniform(0.01, 0.2, size=(500, 6))
    held = {}
    for bits in (32, 64):
        with jax.enable_x64(bits == 64):
            density = jax.jit(
                lambda mean, variance, y: log_predictive_density(
                    lk.GPRN(2, 2, 0.2), y, Marginal(mean, variance)
                )
            )
            held[bits] = density(*(jnp.asarray(v) for v in (mean, variance, y)))
    np.testing.assert_allclose(held[32], held[64], atol=0.01)
