"""Leave-one-out densities with few inducing inputs, beside those without the datum."""

import arviz
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax import random
from numpy.polynomial.hermite_e import hermegauss
from numpyro import distributions as dist
from scipy.special import gammaln, logsumexp

import svgp_ppl as gp
from svgp_ppl.diagnostics import group, loo, to_arviz, waic

# Inducing inputs further apart than the lengthscale: much of f is left open.
X = np.linspace(0.0, 1.0, 20)[:, None]
Z = np.linspace(0.0, 1.0, 5)[:, None]
RNG = np.random.default_rng(0)
SD = 0.2


def kernel(a, b):
    return np.exp(-0.5 * np.square((a - b.T) / 0.2))


def given_whitened():
    """f_n given v is N(a_n · v, c_n): a [N, M], c [N]."""
    root = np.linalg.cholesky(kernel(Z, Z))
    a = np.linalg.solve(root, kernel(Z, X)).T
    return a, 1.0 - np.sum(a**2, axis=1)


def gaussian(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.2), Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(SD), f(x), obs=y)


def test_loo_of_a_fit_is_that_of_the_other_data():
    """The optimal q(v) ∝ N(v; 0, I) Π N(y_n; a_n·v, σ²), Titsias (2009, eq. 10)."""
    y = np.sin(6 * X[:, 0]) + SD * RNG.normal(size=len(X))
    a, c = given_whitened()

    def without(n):
        rest = np.arange(len(X)) != n
        covariance = np.linalg.inv(np.eye(len(Z)) + a[rest].T @ a[rest] / SD**2)
        mean = covariance @ a[rest].T @ y[rest] / SD**2
        variance = a[n] @ covariance @ a[n] + c[n] + SD**2
        density = dist.Normal(a[n] @ mean, np.sqrt(variance)).log_prob(y[n])
        return float(density)

    exactly = {"optimizer": gp.natural_gradient(1.0), "num_steps": 2}
    fitted = gp.fit(random.key(0), gaussian, None, X, y, **exactly, progress=False)
    draws = gp.log_likelihood(random.key(1), gaussian, fitted, X, y, num_draws=20_000)
    found = loo(draws)
    exact = np.array([without(n) for n in range(len(X))])
    assert np.all(found.pareto_k < found.good_k)
    np.testing.assert_allclose(found.pointwise, exact, atol=0.03)
    # With the weights 1/p of a density without the expectation of the log:
    held = {name: group(draws, name) for name in ("posterior", "log_likelihood")}
    without_terms = to_arviz(held["posterior"], log_likelihood=held["log_likelihood"])
    other = loo(without_terms)
    assert other.elpd - exact.sum() > 5 * abs(found.elpd - exact.sum())
    closer, error = (waic(d).elpd - exact.sum() for d in (draws, without_terms))
    assert 0 < 2 * closer < error


@pytest.mark.thorough
def test_loo_of_draws_is_that_of_the_other_data():
    """Counts, and one inducing input, so that the densities are sums over a grid."""
    x, z, y = np.array([[0.0], [0.2], [0.4], [0.6]]), np.zeros((1, 1)), [2.0, 4, 2, 1]

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.4), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    a = np.exp(-0.5 * (x[:, 0] / 0.4) ** 2)
    c, v = 1 - a**2, np.linspace(-6, 6, 2001)
    mean, y = np.outer(v, a), np.array(y)
    terms = y * mean - np.exp(mean + c / 2) - gammaln(y + 1)  # E log p, exactly
    nodes, weights = hermegauss(80)
    f = mean[..., None] + np.sqrt(c)[:, None] * nodes
    density = y[:, None] * f - np.exp(f) - gammaln(y + 1)[:, None]
    density = logsumexp(density, b=weights / weights.sum(), axis=-1)
    whole = -(v**2) / 2 + terms.sum(axis=1)
    rest = whole[:, None] - terms
    exact = logsumexp(rest + density, axis=0) - logsumexp(rest, axis=0)

    draws = gp.sample(
        random.key(0),
        model,
        x,
        jnp.asarray(y),
        num_chains=2,
        num_warmup=200,
        num_samples=4000,
        log_likelihood=True,
        progress=False,
    )
    found = loo(draws)
    assert np.all(found.pareto_k < found.good_k)
    np.testing.assert_allclose(found.pointwise, exact, atol=0.05)
    held = group(draws, "posterior")["f"][..., 0]
    kept = group(draws, "expected_log_likelihood")["y"]
    at = np.interp(held, v, terms[:, 1])
    np.testing.assert_allclose(kept[..., 1], at, atol=2e-3)


def deep(x, y=None):
    """The inner process has three inducing inputs, and much of it is left open."""
    inner = gp.sparse_gp("inner", gp.kernels.RBF(0.3, 0.2), Z[::2], mean=lambda x: x)
    h = gp.propagate("h", inner(x))
    outer = gp.sparse_gp("outer", gp.kernels.RBF(1.0, 0.2), Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(SD), outer(h), obs=y)


def test_terms_of_a_deep_fit_are_averaged_over_its_layer():
    """By Gauss–Hermite quadrature over h_n given v."""

    def projected(x, z, variance):
        root = np.linalg.cholesky(variance * kernel(z, z))
        a = np.linalg.solve(root, variance * kernel(z, x)).T
        return a, np.maximum(variance - np.sum(a**2, axis=1), 0.0)

    x, start = X[::4], {"auto_inner_loc": jnp.zeros(3), "auto_outer_loc": jnp.ones(5)}
    y = np.linspace(0.4, 1.2, 5)
    tril = {
        f"auto_{n}_scale_tril": 0.2 * jnp.eye(m)
        for n, m in (("inner", 3), ("outer", 5))
    }
    fitted = gp.AutoGaussian(deep), start | tril
    found = gp.log_likelihood(
        random.key(0), deep, fitted, x, y, num_draws=500, num_noise_draws=100
    )
    v = {n: values[0] for n, values in group(found, "posterior").items()}
    a, c = projected(x, Z[::2], 0.3)
    nodes, weights = hermegauss(40)
    h = (x[:, 0] + v["inner"] @ a.T)[..., None] + np.sqrt(c)[:, None] * nodes
    a, c = projected(h.reshape(-1, 1), Z, 1.0)
    f = np.sum(a.reshape(*h.shape, -1) * v["outer"][:, None, None], axis=-1)
    c, weights = c.reshape(h.shape), weights / weights.sum()
    total = c + SD**2
    density = -0.5 * ((y[:, None] - f) ** 2 / total + np.log(2 * np.pi * total))
    terms = -0.5 * ((y[:, None] - f) ** 2 + c) / SD**2 - np.log(SD * np.sqrt(2 * np.pi))
    exact = to_arviz(
        {n: values[None] for n, values in v.items()},
        log_likelihood={"y": logsumexp(density, b=weights, axis=-1)[None]},
        expected_log_likelihood={"y": (terms @ weights)[None]},
    )
    for criterion in (loo, waic):
        one, other = criterion(found), criterion(exact)
        np.testing.assert_allclose(one.pointwise, other.pointwise, atol=0.5)


def test_terms_stay_with_their_draws(tmp_path):
    shape = (2, 50, 3)
    density = RNG.normal(size=shape)
    terms = {"y": density - RNG.gamma(1.0, size=shape)}
    held = {"log_likelihood": {"y": density}, "expected_log_likelihood": terms}
    draws = to_arviz({"v": RNG.normal(size=shape[:2])}, **held)
    draws.to_netcdf(tmp_path / "draws.nc")
    assert loo(arviz.from_netcdf(tmp_path / "draws.nc")).elpd == loo(draws).elpd
    thinned = draws.sel(draw=slice(None, None, 2))
    assert np.isfinite(loo(thinned).elpd)
    thinned["expected_log_likelihood"] = draws["expected_log_likelihood"]
    with pytest.raises(ValueError, match=r"select or change the draws of both"):
        loo(thinned)


def test_a_datum_without_a_finite_term_has_no_density():
    density = np.zeros((2, 50, 3))
    terms = density + RNG.normal(size=density.shape)
    terms[1, 7, 2] = -np.inf
    held = {"log_likelihood": {"y": density}, "expected_log_likelihood": {"y": terms}}
    draws = to_arviz({"v": RNG.normal(size=(2, 50))}, **held)
    found = loo(draws)
    for pointwise in (found.pointwise, waic(draws).pointwise):
        assert np.isnan(pointwise).tolist() == [False, False, True]
    assert found.pareto_k[2] == np.inf


@pytest.mark.thorough
def test_a_scaled_datum_leaves_with_its_scale():
    """The optimal q(v) ∝ N(v; 0, I) exp Σ s_n ℓ_n, and a site without a latent."""
    y = np.sin(6 * X[:, 0]) + SD * RNG.normal(size=len(X))
    scale = np.linspace(0.1, 1.5, len(X))
    a, c = given_whitened()

    def scaled(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.2), Z)
        with numpyro.plate("data", len(x)), numpyro.handlers.scale(scale=scale):
            gp.observe("y", gp.likelihoods.Gaussian(SD), f(x), obs=y)
            numpyro.sample("other", dist.Normal(0.0, 1.0), obs=y)

    def without(n):
        w = np.where(np.arange(len(X)) == n, 0.0, scale) / SD**2
        covariance = np.linalg.inv(np.eye(len(Z)) + a.T @ (w[:, None] * a))
        mean = covariance @ a.T @ (w * y)
        variance = a[n] @ covariance @ a[n] + c[n] + SD**2
        return float(dist.Normal(a[n] @ mean, np.sqrt(variance)).log_prob(y[n]))

    exactly = {"optimizer": gp.natural_gradient(1.0), "num_steps": 2}
    fitted = gp.fit(random.key(0), scaled, None, X, y, **exactly, progress=False)
    draws = gp.log_likelihood(random.key(1), scaled, fitted, X, y, num_draws=20_000)
    found = loo(draws, "y")
    exact = np.array([without(n) for n in range(len(X))])
    np.testing.assert_allclose(found.pointwise, exact, atol=0.05)
    assert abs(waic(draws, "y").elpd - exact.sum()) < 1.0
    density, terms = (
        group(draws, name)["other"][0, 0]
        for name in ("log_likelihood", "expected_log_likelihood")
    )
    np.testing.assert_allclose(terms, scale * density, rtol=1e-5)


def test_unknown_entries_of_a_table_are_no_data():
    """A table of an ordinary site, [N, P], and the list of its known entries."""
    known, y = RNG.random((6, 4)) < 0.6, RNG.normal(size=(6, 4))
    known[1] = False
    which = np.nonzero(known)

    def model(y, known=True, columns=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.2), Z)
        level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        gp.observe("process", gp.likelihoods.Gaussian(SD), f(X), obs=np.zeros(20))
        mean = level if columns is None else level[columns]
        numpyro.sample("y", dist.Normal(mean, 0.5).expand(y.shape).mask(known), obs=y)

    draws = {"f": RNG.normal(size=(40, 5)), "level": RNG.normal(size=(40, 4))}
    table, listed = (
        gp.log_likelihood(random.key(0), model, draws, *arguments)
        for arguments in ((y, known), (y[which], True, which[1]))
    )
    for criterion in (loo, waic):
        found, expected = (criterion(terms, "y") for terms in (table, listed))
        np.testing.assert_allclose(found.pointwise, expected.pointwise, rtol=1e-5)
        errors = found.standard_error, expected.standard_error
        assert errors[0] == pytest.approx(errors[1], rel=1e-5)
