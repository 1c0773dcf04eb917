"""Reports on fits: the numbers by a second route, and faults that are named.

Most fits here are not fitted: the posterior of v is known in closed form where the
likelihood is Gaussian, for any hyperparameters, good or bad.
"""

import re
from types import SimpleNamespace

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax import random
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.svi import SVIState
from scipy.special import logsumexp
from scipy.stats import genpareto, multivariate_normal

import svgp_ppl as gp
from svgp_ppl.diagnostics import report
from svgp_ppl.diagnostics.findings_of_fits import heavy_tail
from svgp_ppl.diagnostics.findings_of_processes import _of_neighbours, _open
from svgp_ppl.diagnostics.fitted import Inputs, Site
from svgp_ppl.diagnostics.gains import gains_of
from svgp_ppl.diagnostics.pareto import good_shape, pareto_shape
from svgp_ppl.diagnostics.trend import trend_of
from svgp_ppl.fitting import fitted_of
from svgp_ppl.handlers import set_up
from svgp_ppl.runtime.compilation import call
from tests.conftest import mostly_double
from tests.models import projection
from tests.test_compilation import compilations

NO_STATE = SVIState(None, None, None)
LONG = np.full(500, 40.0)  # the losses of a fit that has settled


def made(model, guide, params, *args, losses=LONG, **kwargs):
    """A fit with these parameters."""
    guide = guide(model) if isinstance(guide, type) else guide
    set_up(guide, random.key(0), args, kwargs)
    params = {name: jnp.asarray(value, float) for name, value in params.items()}
    return gp.Fit(params, losses, guide, NO_STATE, model=model)


# ------------------------------------------------- one process, all of it an argument

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(0.0, 6.0, 60))[:, None]
SMOOTH = np.sin(X[:, 0]) + 0.2 * RNG.normal(size=60)
PERIODS = np.sin(2 * np.pi * X[:, 0]) + 0.2 * RNG.normal(size=60)
THETA = {"variance": 0.8, "lengthscale": 1.5, "noise": 0.2}


def regression(x, y, z, theta):
    kernel = gp.kernels.RBF(theta["variance"], theta["lengthscale"])
    f = gp.sparse_gp("f", kernel, z, jitter=1e-6 * theta["variance"])
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(theta["noise"]), f(x), obs=y)


def grid(low, high, m):
    return np.linspace(low, high, m)[:, None]


def posterior(x, y, z, theta):
    """Mean and covariance of v: S = (I + AᵀA/σ²)⁻¹, m = S Aᵀ y/σ²."""
    a, _ = projection(x, z, theta["variance"], theta["lengthscale"])
    covariance = np.linalg.inv(np.eye(len(z)) + a.T @ a / theta["noise"] ** 2)
    return covariance @ a.T @ y / theta["noise"] ** 2, covariance


def settled(y=SMOOTH, z=None, moved=None, **theta):
    """A fit at the best q(v) of the hyperparameters, or at another, and its data."""
    z, theta = grid(0.0, 6.0, 12) if z is None else z, {**THETA, **theta}
    loc, covariance = posterior(X, y, z, theta) if moved is None else moved
    params = {"auto_f_loc": loc, "auto_f_scale_tril": np.linalg.cholesky(covariance)}
    arrays = {name: jnp.asarray(value) for name, value in theta.items()}
    args = (X, y, z, arrays)
    return made(regression, gp.AutoGaussian, params, *args), args


def log_evidence(x, y, z, theta):
    """log N(y; 0, AAᵀ + σ² I) − ½ Σ residual/σ² (Titsias 2009, eq. 9)."""
    a, residual = projection(x, z, theta["variance"], theta["lengthscale"])
    covariance = a @ a.T + theta["noise"] ** 2 * np.eye(len(x))
    trace = 0.5 * np.sum(residual) / theta["noise"] ** 2
    return multivariate_normal(cov=covariance).logpdf(y) - trace, trace


def bound(fit, *args, num_particles=1):
    loss = gp.MarginalELBO(num_particles).loss

    def value(params, key, args):
        return -loss(key, params, fit.model, fit.guide, *args)

    made_of = ("a test's bound", fit.model, fit.guide, num_particles)
    return float(call(value, made_of, fit.params, random.key(1), args, runs_once=True))


def off(shift, factor):
    loc, covariance = posterior(X, SMOOTH, grid(0.0, 6.0, 12), THETA)
    return loc + shift, factor * covariance


@pytest.mark.thorough
def test_what_a_better_q_gains():
    # KL(q ‖ posterior) = log ∫ exp E(v) p(v) dv − bound, where E is quadratic.
    fit, args = settled(moved=off(0.1, 1.3))
    gains = gains_of(fitted_of(fit, *args).facts)
    best, _ = log_evidence(*args)
    assert best - bound(fit, *args) > 1.0
    np.testing.assert_allclose(gains.own, best - bound(fit, *args), rtol=1e-5)
    assert abs(gains.family) < 1e-9 and gains.understated == {"f": pytest.approx(1.0)}


def test_weights_average_to_the_bound_and_to_the_evidence():
    # E log w = the bound, log E w = log ∫ p(y | v) p(v) dv.
    fit, args = settled(moved=off(0.01, 1.2))
    log_weights = fitted_of(fit, *args).facts.log_weights
    error = np.std(log_weights) / np.sqrt(len(log_weights))
    assert abs(np.mean(log_weights) - bound(fit, *args)) < 5 * error
    best, _ = log_evidence(*args)
    average = logsumexp(log_weights) - np.log(len(log_weights))
    assert abs(average - best) < 0.1 < np.std(log_weights)


def test_the_trace_term():
    fit, args = settled(z=grid(0.0, 6.0, 5), lengthscale=0.9)
    site = fitted_of(fit, *args).facts.sites["y"]
    np.testing.assert_allclose(site.curvature.ravel(), 1 / 0.2**2)
    _, trace = log_evidence(*args)
    assert trace > 3.0
    assert f"costs {trace:.3g} nats" in str(report(fit, *args))


def kinked(x, y=None, z=None, scale=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(), z, jitter=1e-6)
    with numpyro.plate("data", len(x)):
        gp.observe("y", lambda f: dist.Laplace(f, scale), f(x), obs=y)


def at_the_prior(scale):
    """A fit of the kinked model whose q(v) is the prior, and its arguments."""
    params = {"f_loc": np.zeros((1, 12)), "f_scale_tril": np.eye(12)[None]}
    args = (X, SMOOTH, grid(0.0, 6.0, 12), scale)
    return made(kinked, gp.AutoGaussian, params, *args), args


def test_the_error_of_quadrature():
    fit, args = at_the_prior(0.02)

    def by(num_nodes):
        nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
        errors = np.abs(SMOOTH[:, None] - nodes) @ weights / weights.sum()
        return -np.sum(errors) / 0.02

    off = by(60) - by(20)
    assert off > 3.0
    change, *numbers = fitted_of(fit, *args).facts.sites["y"].quadrature
    np.testing.assert_allclose(change, off, rtol=1e-3)
    assert numbers == [20, 60]
    words = f"off: with 60 quadrature nodes in place of 20 it is {off:.3g} nats higher"
    assert words in str(report(fit, *args))
    fit, args = at_the_prior(5.0)
    assert "quadrature" not in str(report(fit, *args))


@pytest.mark.parametrize(
    ("short", "num_nodes", "is_coarse"),
    [
        pytest.param(0.1, 10, False, marks=pytest.mark.thorough),
        (0.05, 10, True),
        (0.05, 20, False),
    ],
)
def test_the_nodes_of_integrals(short, num_nodes, is_coarse):
    def model(corner, y):
        areas = gp.features.average(corner, corner + 1.0, num_nodes)
        kernel = gp.kernels.RBF(1.0, jnp.array([2.0, short]))
        f = gp.sparse_gp("f", kernel, corner + 0.5)
        with numpyro.plate("areas", len(y)):
            gp.observe("y", gp.likelihoods.Gaussian(1.0), f(areas), obs=y)

    args = np.array([[0.0, 0.0], [1.0, 3.0]]), np.zeros(2)
    params = {"auto_f_loc": np.zeros(2), "auto_f_scale_tril": np.eye(2)}
    fit = made(model, gp.AutoGaussian, params, *args)
    (inputs,) = fitted_of(fit, *args).facts.inputs.values()
    nodes, _ = np.polynomial.legendre.leggauss(num_nodes)
    correlation = np.exp(-0.5 * (0.5 * np.median(np.diff(nodes)) / short) ** 2)
    np.testing.assert_allclose(inputs.between_nodes, correlation, rtol=1e-6)
    words = f"neighbouring nodes is {correlation:.2g} (lengthscale = 2 {short},"
    assert (words in str(report(fit, *args))) == is_coarse


ADAPTED = {"lengthscale": 2.5, "noise": 0.75, "variance": 0.3}
BAD = {
    "z far away": (lambda: settled(z=grid(100.0, 106.0, 12)), "'f' explain 0%.* away"),
    "z at one half": (lambda: settled(z=grid(0.0, 2.5, 12)), "at 17% of the rows.* aw"),
    "M = 5 for six periods": (
        lambda: settled(PERIODS, grid(0.0, 6.0, 5), lengthscale=0.25),
        "M = 5 are too few for lengthscale = 0.25, variance = 0.8",
    ),
    "M = 5, explained as noise": (
        lambda: settled(PERIODS, grid(0.0, 6.0, 5), **ADAPTED),
        "leaves over at site 'y' is not noise.* more inducing inputs than M = 5",
    ),
    "tiny lengthscale": (
        lambda: settled(lengthscale=1e-3),
        "next to white noise.* inputs scaled to a range of a few units",
    ),
    "huge lengthscale": (lambda: settled(lengthscale=300.0), "next to constant"),
    "q(v) where it starts": (
        lambda: settled(moved=(np.zeros(12), np.eye(12))),
        r"q\(v\) is \d+ nats below the best one of its family",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_fault_is_named(name):
    make, words = BAD[name]
    fit, args = make()
    text = str(report(fit, *args))
    assert re.search(words, text, re.DOTALL), text
    assert "Nothing wrong" not in text


def test_of_a_process_at_one_row_it_is_not_said_that_it_is_constant():
    fit, (*_, z, arrays) = settled()
    text = str(report(fit, X[:1], SMOOTH[:1], z, arrays))
    assert "1 row;" in text and "next to constant" not in text


@pytest.mark.thorough
@mostly_double
def test_there_is_no_false_alarm(precision):
    for y, options in (
        (SMOOTH, {}),
        (PERIODS, {"z": grid(0.0, 6.0, 30), "lengthscale": 0.3}),
    ):
        fit, args = settled(y, **options)
        found = report(fit, *args)
        assert found.is_healthy, str(found)
        # In single precision rounding may make them differ a little.
        alike = (
            "is exact given θ" if precision == 64 else "(is exact given θ|k-hat -?0.0)"
        )
        assert re.search(
            f"500 steps, bound -40.000 nats; 60 rows; .*{alike}", str(found)
        )


@pytest.mark.thorough
def test_rows_of_tables_are_counted():
    fit, (x, y, z, theta) = settled(SMOOTH)
    as_tables = (pd.DataFrame(x), pd.Series(y), z, theta)
    assert str(report(fit, *as_tables)) == str(report(fit, x, y, z, theta))


def test_a_second_report_compiles_nothing():
    fit, args = settled()
    report(fit, *args)
    other, its_args = settled(PERIODS, lengthscale=0.7)
    other = gp.Fit(other.params, LONG, fit.guide, NO_STATE, model=regression)
    _, number = compilations(lambda: report(other, *its_args).summary)
    assert number == 0


# --------------------------------------------------------------------- families of q(v)

X2 = RNG.uniform(-3.0, 3.0, size=(80, 2))
Y2 = np.sin(X2[:, 0]) + np.cos(2 * X2[:, 1]) + 0.5 * RNG.normal(size=80)
Z2 = grid(-3.0, 3.0, 8)


def additive(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(0.5, 1.0), Z2)
    g = gp.sparse_gp("g", gp.kernels.RBF(0.5, 0.8), Z2)
    with numpyro.plate("data", len(x)):
        total = f(x[:, :1]) + g(x[:, 1:])
        gp.observe("y", gp.likelihoods.Gaussian(0.5), total, obs=y)


def of_the_sum():
    """Means, precision of the coupled q(v), and its bound, by NumPy."""
    parts = [
        projection(X2[:, i : i + 1], Z2, 0.5, ell) for i, ell in ((0, 1), (1, 0.8))
    ]
    a = np.concatenate([part for part, _ in parts], axis=1)
    precision = np.eye(16) + a.T @ a / 0.25
    residual = parts[0][1] + parts[1][1]
    evidence = multivariate_normal(cov=a @ a.T + 0.25 * np.eye(80)).logpdf(Y2)
    loc = np.linalg.solve(precision, a.T @ Y2 / 0.25)
    return loc, precision, evidence - 0.5 * np.sum(residual) / 0.25


def best_of_family(family):
    loc, precision, _ = of_the_sum()
    if family == "coupled":
        tril = np.linalg.cholesky(np.linalg.inv(precision))
        params = {"auto_f_g_loc": loc, "auto_f_g_scale_tril": tril}
        return made(additive, gp.AutoCoupled, params, X2, Y2)
    params = {"auto_f_loc": loc[:8], "auto_g_loc": loc[8:]}
    for name, own in (("f", slice(8)), ("g", slice(8, 16))):
        block = precision[own, own]
        if family == "diagonal":
            params[f"auto_{name}_scale"] = 1 / np.sqrt(np.diagonal(block))
        else:
            tril = np.linalg.cholesky(np.linalg.inv(block))
            params[f"auto_{name}_scale_tril"] = tril
    return made(additive, gp.AutoGaussian(additive, family), params, X2, Y2)


@pytest.mark.parametrize("family", ["coupled", "full", "diagonal"])
def test_the_family_of_q(family):
    fit = best_of_family(family)
    gains, found = gains_of(fitted_of(fit, X2, Y2).facts), report(fit, X2, Y2)
    _, precision, best = of_the_sum()
    np.testing.assert_allclose(gains.family, best - bound(fit, X2, Y2), atol=1e-4)
    assert abs(gains.own) < 1e-4
    if family == "coupled":
        assert found.is_healthy, str(found)
        return
    price, sd = f"{gains.family:.3g}", gains.understated
    assert re.search(
        rf"independent .* {price} nats.*AutoCoupled", str(found), re.DOTALL
    )
    assert len(found.findings) == 1 and min(sd.values()) > 1.25
    if family == "full":  # the posterior variance of f at the data, against its block's
        a, residual = projection(X2[:, :1], Z2, 0.5, 1)
        whole, block = (
            np.linalg.inv(precision)[:8, :8],
            np.linalg.inv(precision[:8, :8]),
        )
        variances = [residual + np.sum(a * (a @ c), axis=1) for c in (whole, block)]
        ratio = np.sqrt(np.mean(variances[0]) / np.mean(variances[1]))
        np.testing.assert_allclose(sd["f"], ratio, rtol=1e-4)


def test_gains_where_sites_outputs_and_families_are_mixed():
    """KL to the posterior, by NumPy: full for f, diagonal for e; masks and weights."""
    rng, z = np.random.default_rng(2), grid(-3.0, 3.0, 3)
    x, later = X2[:30, :1], X2[30:60, :1]
    on, known = rng.uniform(size=30) * (X2[:30, 0] > 0), np.arange(30) % 3 > 0
    loc, tril = rng.normal(size=(2, 3)), np.tril(0.3 + 0.2 * rng.normal(size=(2, 3, 3)))
    mixing = np.array([1.0, 0.4])

    def model(y):
        e = gp.sparse_gp("e", gp.kernels.RBF(0.5, 0.8), z)
        f = gp.sparse_gp("f", gp.kernels.RBF(0.5, 1.0), z, num_outputs=2)
        gp.observe("both", lambda f: dist.Normal(f @ mixing, 0.4), f(x), obs=y)
        one = f(x)[..., 0] - 0.6 * f(later)[..., 0] + on * e(x)
        with numpyro.handlers.mask(mask=jnp.asarray(known)):
            gp.observe("one", gp.likelihoods.Gaussian(0.5), one, obs=y)

    def guide(*args):
        qv = dist.MultivariateNormal(jnp.asarray(loc), scale_tril=jnp.asarray(tril))
        numpyro.sample("f", qv.to_event(1))
        numpyro.sample("e", dist.Normal(jnp.full(3, 0.3), 0.7).to_event(1))

    (a, of_f), (b, of_b) = (projection(at, z, 0.5, 1.0) for at in (x, later))
    c, of_e = projection(x, z, 0.5, 0.8)
    one = np.concatenate([a - 0.6 * b, 0 * a, on[:, None] * c], axis=1)[known] / 0.5
    both = np.concatenate([a, 0.4 * a, 0 * c], axis=1) / 0.4
    rows, y = np.concatenate([one, both]), Y2[:30]
    precision = np.eye(9) + rows.T @ rows
    best = np.linalg.solve(precision, rows.T @ np.append(y[known] / 0.5, y / 0.4))

    def divergence(mean, covariance):
        trace = np.trace(precision @ covariance) - 9
        log_det = np.linalg.slogdet(precision @ covariance)[1]
        away = mean - best
        return 0.5 * (away @ precision @ away + trace - log_det)

    covariance, own = np.diag(np.full(9, 0.49)), np.diag(1 / np.diagonal(precision))
    for p, here in enumerate((slice(3), slice(3, 6))):
        covariance[here, here] = tril[p] @ tril[p].T
        own[here, here] = np.linalg.inv(precision[here, here])
    family = divergence(best, own)
    total = divergence(np.append(loc, np.full(3, 0.3)), covariance)
    gains = gains_of(fitted_of(made(model, guide, {}, y), y).facts)
    np.testing.assert_allclose(gains.family, family, rtol=1e-4)
    np.testing.assert_allclose(gains.own, total - family, rtol=1e-4)

    def ratio(a, residual, here):
        of_each = (
            np.mean(residual + np.sum(a * (a @ s[here, here]), axis=1))
            for s in (np.linalg.inv(precision), own)
        )
        return np.sqrt(np.divide(*of_each))

    seen = ((a, of_f, slice(3)), (b, of_b, slice(3)), (a, of_f, slice(3, 6)))
    largest = max(ratio(*each) for each in seen)
    of_e = ratio(c[on > 0], of_e[on > 0], slice(6, 9))
    assert gains.understated == pytest.approx({"f": largest, "e": of_e}, rel=1e-4)


# ------------------------------------------------------------------- everything unknown


def unknown(x, y=None):
    variance = numpyro.sample("variance", dist.Gamma(2.0, 2.0))
    lengthscale = numpyro.sample("lengthscale", dist.Uniform(0.5, 3.0))
    kernel = gp.kernels.RBF(variance, lengthscale)
    f = gp.sparse_gp("f", kernel, numpyro.param("z", grid(0.0, 6.0, 8)))
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.2), f(x), obs=y)


@pytest.fixture(scope="module")
def three_steps():
    with jax.enable_x64(True):
        return gp.fit(random.key(0), unknown, X, SMOOTH, num_steps=3, progress=False)


@pytest.mark.thorough
def test_three_steps_are_too_few(three_steps):
    found = report(three_steps, X, SMOOTH)
    assert found.findings[0].what.startswith("3 steps are too few to tell")
    assert re.search(r"q\(v\) is \d+ nats below", found.findings[1].what)
    assert repr(three_steps).endswith("\n  " + found.findings[0].what)


def test_without_data_the_losses_are_judged(three_steps):
    found = report(three_steps)
    assert len(found.findings) == 1 and "report(fit, x, y), add" in found.summary


@pytest.mark.parametrize("y", [SMOOTH, 500.0 + SMOOTH, 0.01 * SMOOTH])
def test_edges_of_priors(three_steps, y):
    z = grid(0.0, 6.0, 8)
    theta = {"variance": 1e-4, "lengthscale": 2.99, "noise": 0.2}
    loc, covariance = posterior(X, y, z, theta)
    params = {
        "auto_f_loc": loc,
        "auto_f_scale_tril": np.linalg.cholesky(covariance),
        "variance_auto_loc": 1e-4,
        "lengthscale_auto_loc": 2.99,
        "z": z,
    }
    fit = made(unknown, three_steps.guide, params, X, y)
    found = report(fit, X, y)
    text = str(found)
    # Named first where the data cause it, and after what may cause it elsewhere.
    assert ("edge of its prior" in found.findings[0].what) == (y is not SMOOTH)
    scaled = f"have {np.mean(y):.3g} and {np.std(y):.3g} about the offset"
    assert (scaled in text) == (y is not SMOOTH)
    assert "'variance' is at the lower edge of its prior, which has 2e-08 of" in text
    assert "'lengthscale' is at the upper edge of its prior, which has 0.004 " in text


def test_scores_of_a_mixture_are_those_of_its_components():
    """∂E/∂f = Σ_k w_k (y − m_k) / σ², and the curvature 1/σ²."""
    z, weights = grid(0.0, 6.0, 3), np.array([0.3, 0.7])
    loc = np.array([[0.5, -1.0, 2.0], [0.0, 1.5, -0.5]])

    def guide(*args):
        components = dist.Normal(loc, 0.4).to_event(1)
        choice = dist.Categorical(probs=weights)
        numpyro.sample("f", dist.MixtureSameFamily(choice, components))

    args = X, SMOOTH, z, THETA
    site = fitted_of(made(regression, guide, {}, *args), *args).facts.sites["y"]
    a, _ = projection(X, z, THETA["variance"], THETA["lengthscale"])
    exact = weights @ (SMOOTH - loc @ a.T) / 0.2**2
    np.testing.assert_allclose(site.score[:, 0], exact, rtol=1e-6)
    np.testing.assert_allclose(site.curvature, np.full((60, 1, 1), 1 / 0.2**2))


def steps(x, y):
    """tau, at and levels have no slope; width, of a prior alone, is not read."""
    tau = numpyro.sample("tau", dist.Uniform(0.0, 6.0))
    at = numpyro.sample("at", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    levels = numpyro.param("levels", jnp.array([0.6, 1.6]))
    width = numpyro.sample("width", dist.HalfNormal(1.0))
    jump = numpyro.sample("jump", dist.Normal(0.0, width))
    smooth = numpyro.sample("smooth", dist.Normal(0.0, 1.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(0.8, 1.5), grid(0.0, 6.0, 4))
    mean = jnp.where(X[:, 0] < tau, jump, 0.1 * jnp.sum(jnp.round(levels)))
    mean += jax.nn.sigmoid(smooth - X[:, 0]) + 0.1 * jnp.sum(jax.lax.stop_gradient(at))
    numpyro.factor("linear", 3.0 * numpyro.sample("slope", dist.Normal(0.0, 1.0)))
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.2), f(x) + mean, obs=y)


def test_sites_that_a_fit_cannot_move():
    params = {"auto_f_loc": np.zeros(4), "auto_f_scale_tril": np.eye(4)}
    points = {"tau": 3.0, "at": [0.1, 0.2], "width": 1.0, "jump": 0.5, "smooth": 2.0}
    params |= {f"{n}_auto_loc": v for n, v in {**points, "slope": 0.1}.items()}
    fit = made(steps, gp.AutoGaussian, params | {"levels": [0.6, 1.6]}, X, SMOOTH)
    found = [f.what for f in report(fit, X, SMOOTH).findings[:3]]
    names = [re.match("The data do not move '(.*)':", what)[1] for what in found]
    assert names == ["at", "levels", "tau"]
    assert "do not move" not in str(report(fit, X, SMOOTH).findings[3:])


@pytest.mark.slow
def test_weights_of_drawn_hyperparameters():
    # Their mean is the bound, as above, with v and θ drawn.
    guide = gp.AutoGaussian(unknown, rest=AutoNormal)
    params = {"auto_f_loc": np.zeros(8), "auto_f_scale_tril": 0.2 * np.eye(8)}
    for name in ("variance", "lengthscale"):
        params |= {f"{name}_auto_loc": 0.1, f"{name}_auto_scale": 0.1}
    fit = made(unknown, guide, params | {"z": grid(0.0, 6.0, 8)}, X, SMOOTH)
    data = fitted_of(fit, X, SMOOTH).facts
    error = np.std(data.log_weights) / np.sqrt(len(data.log_weights))
    value = bound(fit, X, SMOOTH, num_particles=500)
    assert abs(np.mean(data.log_weights) - value) < 6 * error
    assert 0 < data.cdf["variance", "positive"] < 1 and not data.is_point


# --------------------------------------------------------------- many rows, deep models


def test_many_rows_are_represented_by_some():
    x = np.sort(np.random.default_rng(1).uniform(0.0, 6.0, 1500))[:, None]
    y = np.sin(x[:, 0]) + 0.2 * np.random.default_rng(2).normal(size=1500)
    z = grid(0.0, 6.0, 12)
    loc, covariance = posterior(x, y, z, THETA)
    params = {"auto_f_loc": loc, "auto_f_scale_tril": np.linalg.cholesky(covariance)}

    def in_batches(x, y, z, theta):
        kernel = gp.kernels.RBF(theta["variance"], theta["lengthscale"])
        f = gp.sparse_gp("f", kernel, z)
        with numpyro.plate("data", 1500, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(theta["noise"]), f(x), obs=y)

    args = (x, y, z, {name: jnp.asarray(value) for name, value in THETA.items()})
    for model in (regression, in_batches):
        fit = made(model, gp.AutoGaussian, params, *args)
        found = report(fit, *args)
        assert found.is_healthy, str(found)
        assert found.summary.endswith("; 1500 rows, 1000 of them seen.")
        curvature = fitted_of(fit, *args).facts.sites["y"].curvature
        np.testing.assert_allclose(curvature, 1.5 / 0.2**2)

    def of_each(x, y, z, theta):
        kernel = gp.kernels.RBF(theta["variance"], theta["lengthscale"])
        f = gp.sparse_gp("f", kernel, z)
        with numpyro.plate("data", 1500, subsample_size=len(x)):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
            likelihood = gp.likelihoods.Gaussian(theta["noise"])
            gp.observe("y", likelihood, f(x) + effect, obs=y)

    params["effect_auto_loc"] = jnp.zeros(1500)
    found = report(made(of_each, gp.AutoGaussian, params, *args), *args)
    assert "; 1500 rows; " in found.summary  # each has a value of its own


def test_all_rows_are_seen_where_a_plate_takes_them_of_another_array():
    # Of some rows, numbered from 0, they would be the first ones of that array.
    x = np.random.default_rng(1).uniform(0.0, 6.0, (1500, 1))
    offset = jnp.sin(x[:, 0])

    def of_offset(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), grid(0.0, 6.0, 5))
        with numpyro.plate("data", len(x)) as rows:
            gp.observe("y", gp.likelihoods.Gaussian(0.5), f(x) + offset[rows], obs=y)

    q = {"auto_f_loc": np.zeros(5), "auto_f_scale_tril": np.eye(5)}
    fit = made(of_offset, gp.AutoGaussian, q, x, offset)
    site = fitted_of(fit, x, offset).facts.sites["y"]
    np.testing.assert_allclose(site.score, np.zeros((1500, 1)), atol=1e-8)


@pytest.mark.parametrize(
    "num_others", [60, pytest.param(1000, marks=pytest.mark.thorough)]
)
def test_rows_of_a_site_that_are_all_seen_stand_for_themselves(num_others):
    """Of 4000 rows a thousand are seen, and of the other site all."""
    rng = np.random.default_rng(1)
    sizes = 4000, num_others
    xs = [rng.uniform(0.0, 6.0, (size, 1)) for size in sizes]
    z = grid(0.0, 6.0, 5)

    def two_sites(*xs):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), z)
        for i, x in enumerate(xs):
            with numpyro.plate(f"data {i}", len(x)):
                gaussian = gp.likelihoods.Gaussian(0.5)
                gp.observe(f"y{i}", gaussian, f(x), obs=jnp.sin(x[:, 0]))

    q = {"auto_f_loc": np.zeros(5), "auto_f_scale_tril": np.eye(5)}
    fit = made(two_sites, gp.AutoGaussian, q, *xs)
    for name, size in zip(("y0", "y1"), sizes):
        site = fitted_of(fit, *xs).facts.sites[name]
        np.testing.assert_allclose(np.sum(site.curvature), size / 0.5**2)
        np.testing.assert_allclose(site.stands_for * len(site.counts), size)


@pytest.mark.thorough
def test_layers_of_a_deep_model():
    def deep(x, y=None):
        inner = gp.sparse_gp("inner", gp.kernels.RBF(1.0, 1.0), grid(0.0, 2.0, 4))
        h = gp.propagate("h", inner(x))
        outer = gp.sparse_gp("outer", gp.kernels.RBF(1.0, 2.0), grid(-3.0, 3.0, 8))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.2), outer(h), obs=y)

    params = {
        f"auto_{name}_{what}": value
        for name, m in (("inner", 4), ("outer", 8))
        for what, value in (("loc", np.zeros(m)), ("scale_tril", 0.1 * np.eye(m)))
    }
    fit = made(deep, gp.AutoDeep, params, X, SMOOTH)
    data = fitted_of(fit, X, SMOOTH).facts
    assert data.is_deep and gains_of(data) is None and len(data.log_weights) == 0
    assert set(data.inputs) == {("h", "inner", 0), ("y", "outer", 0)}
    text = str(report(fit, X, SMOOTH))
    assert re.search("'inner' explain .* lie away from z", text), text
    assert "'outer' explain" not in text


# -------------------------------------------------------------------------- statistics


def autoregressive(rng, rho, size):
    noise = rng.normal(size=size)
    for t in range(1, size):
        noise[t] += rho * noise[t - 1]
    return noise


def test_a_trend_is_told_from_noise():
    # 3 standard errors: 0.3% of independent errors; four times as many are allowed.
    rng, alarms = np.random.default_rng(3), 0
    for _ in range(200):
        losses = 100 + 20 * autoregressive(rng, 0.5, 2000)
        alarms += trend_of(losses).further > 0
    assert alarms <= 6
    steps = np.arange(2000)
    rising = -0.05 * steps + autoregressive(rng, 0.5, 2000)
    found = trend_of(rising)
    assert abs(found.rise - 0.05 * 199) < 4 * found.error < 4
    assert found.further == pytest.approx(3 * found.rise, rel=0.3)
    # A bound that decays like exp(−t/τ) has as much to gain as it says.
    tau = 200 / np.log(2)
    found = trend_of(1000 * np.exp(-steps / tau))
    np.testing.assert_allclose(found.further, 1000 * np.exp(-2000 / tau), rtol=0.02)


def test_a_bound_that_was_higher():
    losses = np.r_[np.linspace(100, 10, 400), np.full(100, 10.0), np.full(500, 60.0)]
    assert trend_of(losses).lost == pytest.approx(50.0)
    text = str(report(gp.Fit({}, losses, unknown, NO_STATE)))
    assert re.search(r"The bound is 50 nats below where it has been", text), text
    assert trend_of(losses[:500]).lost == 0.0


def test_a_bound_that_stands_still():
    # To the last bits, as after natural steps: no rise in the last window but one.
    losses = np.full(60, 8.0)
    losses[-2] += 2e-15
    assert trend_of(losses).further == 0.0
    assert re.search("Nothing", str(report(gp.Fit({}, losses, unknown, NO_STATE))))


def test_rises_that_noise_hides():
    """Of minibatches the losses say little, and the report how little."""
    noise = np.random.default_rng(8).normal(size=len(LONG))
    for scale, is_hidden in ((0.01, False), (1000.0, True)):
        found = str(report(gp.Fit({}, LONG + scale * noise, unknown, NO_STATE)))
        hidden = re.search(
            r"a rise of less than (\d+) nats in the last 50 steps", found
        )
        assert bool(hidden) == is_hidden, found
    # Three standard errors of the slope of 50 independent losses, by 49 steps.
    assert abs(float(hidden[1]) / (3000 * 49 * np.sqrt(12 / 50**3)) - 1) < 0.5


def test_what_is_open_at_a_row_has_the_squares_of_the_weights():
    """tr(W Cov) of f = Σ_p w_p g_p, whose g_p are independent with one residual."""
    rng = np.random.default_rng(0)
    weights, residual = rng.normal(size=(3, 2, 4)), rng.gamma(2.0, size=4)
    curvature = np.apply_along_axis(np.diag, 1, rng.gamma(2.0, size=(4, 2)))
    counts = np.array([True, False, True, True])
    site = Site(counts, None, curvature, None, (None, None), None, (None,) * 3)
    none = dict.fromkeys(Inputs._fields) | {"values": {}}
    found = _open(site, Inputs(**none | {"weights": weights, "residual": residual}))
    exact = [
        residual[n] * np.trace(curvature[n] @ weights[..., n].T @ weights[..., n])
        for n in np.flatnonzero(counts)
    ]
    np.testing.assert_allclose(found, exact)


def test_scores_of_neighbours():
    rng = np.random.default_rng(4)
    x = np.sort(rng.uniform(size=150))
    gap = np.abs(x[:, None] - x) + np.diag(np.full(150, np.inf))
    nearest, rows = np.argmin(gap, axis=1), np.arange(150)
    null = [_of_neighbours(rng.normal(size=150), nearest, rows)[0] for _ in range(400)]
    assert abs(np.mean(null)) < 5 / 20 and 0.85 < np.std(null) < 1.15
    statistic, correlation = _of_neighbours(np.sin(20 * x), nearest, rows)
    assert statistic > 6 and correlation > 0.9


def test_scores_of_a_few_neighbours():
    """Rows 0 and 1 are each other's nearest, 2 has 1; that of 3 does not count."""
    score = np.array([1.0, 2.0, -3.0, 4.0, 5.0])
    nearest, rows = np.array([1, 0, 1, 4, 3]), np.arange(4)
    product = np.array([1.0 * 2.0, 2.0 * 1.0, -3.0 * 2.0])
    statistic, correlation = _of_neighbours(score, nearest, rows)
    assert correlation == pytest.approx(product.sum() / (1.0 + 4.0 + 9.0))
    variance = (product[0] + product[1]) ** 2 + product[2] ** 2
    assert statistic == pytest.approx(product.sum() / variance**0.5)


def test_pareto_shape_is_that_of_others():
    rng = np.random.default_rng(5)
    for k in (-0.2, 0.3, 0.9):
        log_weights = np.log(genpareto.rvs(k, size=4000, random_state=rng) + 1)
        assert abs(pareto_shape(log_weights) - k) < 0.25
        if hasattr(arviz, "psislw"):  # before version 1.0
            shape = float(arviz.psislw(log_weights)[1])
            np.testing.assert_allclose(pareto_shape(log_weights), shape, rtol=1e-6)
    assert pareto_shape(1e-9 * rng.normal(size=1000)) == -np.inf
    assert pareto_shape(np.array([-0.5])) == np.inf  # nothing is known of one draw
    assert good_shape(1000) == pytest.approx(2 / 3) and good_shape(10**6) == 0.7


@pytest.mark.usefixtures("as_users_call")
def test_tail_of_weights_that_hardly_differ():
    """k̂ has no scale; weights that all but agree say that q(v) is the posterior."""
    excess = genpareto.rvs(0.9, size=1000, random_state=np.random.default_rng(6))
    for scale, number in ((1.0, 1), (1e-3, 0)):
        log_weights = np.log1p(scale * excess)
        assert pareto_shape(log_weights) > good_shape(1000)
        facts = SimpleNamespace(log_weights=log_weights, is_point=True)
        assert len(heavy_tail(facts)) == number


# ---------------------------------------------------------------------- what is refused


def test_draws_have_no_arguments():
    with pytest.raises(ValueError, match="a fit only"):
        report({"x": np.zeros((4, 100))}, X)


def test_a_fit_has_to_know_its_model_and_its_data(three_steps, tmp_path):
    three_steps.save(tmp_path / "fit.npz")

    def by_hand(x, y=None):
        return three_steps.guide(x, y)

    loaded = gp.Fit.load(tmp_path / "fit.npz", by_hand)
    with pytest.raises(ValueError, match=r"load\(path, guide, model\)"):
        report(loaded, X, SMOOTH)
    with pytest.raises(ValueError, match="'y' has no data"):
        report(three_steps, X)
    for of in (three_steps.guide, by_hand):
        loaded = gp.Fit.load(tmp_path / "fit.npz", of, unknown)
        assert "3 steps are too few" in str(report(loaded, X, SMOOTH))
    loaded = gp.Fit.load(tmp_path / "fit.npz", three_steps.guide)
    assert "3 steps are too few" in str(report(loaded, X, SMOOTH))
