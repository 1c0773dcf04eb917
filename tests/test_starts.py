"""Chains from approximations that are not ours: NumPyro's guides, and Pathfinder."""

import threading
from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.optimize
import scipy.stats
from jax import random
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from svgp_ppl.handlers import set_up
from svgp_ppl.mcmc import coupling, laplace
from svgp_ppl.mcmc.coordinates import joint_start
from svgp_ppl.mcmc.joint import Joint, joint_of
from svgp_ppl.mcmc.pathfinder import Paths, _kept, _Points
from svgp_ppl.mcmc.samplers.blackjax_parts import minimize_lbfgs
from svgp_ppl.mcmc.target import Target
from svgp_ppl.runtime import side_by_side
from svgp_ppl.variational.sites import Prior
from tests.conftest import single_first
from tests.models import (
    COUNTS_X,
    COUNTS_Y,
    GAUSSIAN_X,
    GAUSSIAN_Y,
    Walk,
    counts_z,
    gaussian_model,
    gaussian_posterior,
    unseen,
)

DATA = (COUNTS_X, COUNTS_Y)
OPTIONS = {"num_chains": 2, "num_warmup": 150, "num_samples": 400, "progress": False}


def counts(x, y=None):
    """Counts, with z where it is; all chains below have one program."""
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 3.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), counts_z())
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


def joint(scale=0.3):
    """Any Gaussian over the values of ``counts``."""
    rng = np.random.default_rng(3)
    factor = scale * rng.normal(size=(7, 9))
    mean = {"f": rng.normal(size=5), "lengthscale": 0.2, "variance": -0.1}
    return Joint(mean, factor @ factor.T + 0.05 * np.eye(7))


# ------------------------------------------------------------------------ the algebra


def test_the_conditional_has_the_block_of_the_precision():
    q = joint()
    mean, covariance = q.conditional(["variance", "f"])
    rows = [6, 0, 1, 2, 3, 4]  # sites are sorted by name: f, lengthscale, variance
    precision = np.linalg.inv(q.covariance)[np.ix_(rows, rows)]
    np.testing.assert_allclose(covariance @ precision, np.eye(6), atol=1e-9)
    np.testing.assert_array_equal(mean, [-0.1, *q.mean["f"]])


def two_sites(x, y=None):
    """Sites whose order is not that of their names."""
    numpyro.sample("second", dist.Normal().expand([2]).to_event(1))
    numpyro.sample("first", dist.LogNormal())


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(AutoMultivariateNormal, marks=pytest.mark.slow),
        AutoLowRankMultivariateNormal,
    ],
)
def test_the_gaussian_of_a_guide_is_that_of_its_draws(family):
    guide, rng = family(two_sites), np.random.default_rng(0)
    set_up(guide, random.key(0), DATA, {})
    params = {"auto_loc": jnp.array([0.5, -1.0, 0.3])}
    if family is AutoMultivariateNormal:
        tril = np.tril(rng.normal(size=(3, 3)), -1) + np.diag([0.3, 0.6, 0.9])
        params["auto_scale_tril"] = jnp.asarray(tril)
    else:
        params |= {"auto_scale": jnp.array([0.3, 0.6, 0.9])}
        params["auto_cov_factor"] = jnp.asarray(rng.normal(size=(3, 1)))
    q = joint_of(guide, params)
    draws = guide.sample_posterior(random.key(1), params, sample_shape=(40_000,))
    rows = jnp.column_stack([jnp.log(draws["first"]), draws["second"]])
    sd = np.sqrt(np.diag(q.covariance))
    mean = np.r_[q.mean["first"], q.mean["second"]]
    np.testing.assert_allclose((rows.mean(0) - mean) / sd, 0.0, atol=5 / 200)
    found = np.cov(rows.T) / np.outer(sd, sd)
    np.testing.assert_allclose(found, q.covariance / np.outer(sd, sd), atol=0.04)


@pytest.mark.thorough
def test_at_the_mean_v_has_the_conditional_of_the_gaussian(monkeypatch):
    monkeypatch.setattr(laplace, "_MOST_VALUES", 0)
    # Narrower than the prior everywhere: other directions would have no site.
    q, target = joint(0.12), Target(random.key(1), counts, DATA, {}, {})
    values = {name: np.asarray(x, float)[None] for name, x in q.mean.items()}
    start = joint_start(random.key(2), q, values, target)

    def whitened(xi):
        others = {name: x for name, x in q.mean.items() if name != "f"}
        at = {**others, "f_base": xi}
        return target.constrain(at, start.data)["f"]

    mean, covariance = q.conditional(["f"])
    slopes = jax.jit(jax.jacfwd(whitened))(jnp.zeros(5))
    np.testing.assert_allclose(whitened(jnp.zeros(5)), mean, atol=1e-8)
    np.testing.assert_allclose(slopes @ slopes.T, covariance, atol=1e-8)


@single_first
@pytest.mark.parametrize("scale", [0.3, pytest.param(3.0, marks=pytest.mark.thorough)])
def test_v_has_laplaces_approximation_wherever_it_is_sought_from(precision, scale):
    """The mode by BFGS, and the Hessian there by automatic differentiation."""
    q, target = joint(scale), Target(random.key(1), counts, unseen(*DATA), {}, {})
    dtype = jnp.result_type(float)
    others = {n: np.asarray(x, dtype) for n, x in q.mean.items() if n != "f"}
    centre = {**others, "f": np.asarray(scale * q.mean["f"], dtype)}

    @jax.jit
    def energy(v):
        return -target.logdensity_fn({**others, "f": v}, target.data)

    def slope(v):
        return np.asarray(jax.grad(energy)(jnp.asarray(v, dtype)), float)

    mode = scipy.optimize.minimize(energy, np.zeros(5), jac=slope, method="BFGS").x
    assert np.max(abs(slope(mode))) < 0.01
    hessian = np.asarray(jax.jit(jax.hessian(energy))(jnp.asarray(mode, dtype)), float)
    curvature = laplace.Curvature(target, centre, ["f"])
    rough = q.conditional(["f"])[1]
    loc, covariance = laplace.laplace(curvature, centre["f"], rough)
    off = loc - mode
    assert off @ hessian @ off < 0.3
    factor = np.linalg.cholesky(hessian)
    np.testing.assert_allclose(factor.T @ covariance @ factor, np.eye(5), atol=0.2)


@pytest.mark.thorough
def test_points_of_a_path_have_gaussians_of_their_newton_steps():
    """Of N(m, I) the first mean is m from anywhere; draws and densities by SciPy."""
    mean = jnp.array([3.0, -1.0, 0.5])
    _, history = jax.jit(
        lambda: minimize_lbfgs(lambda x: 0.5 * jnp.sum((x - mean) ** 2), jnp.zeros(3))
    )()
    found, covariance = _Points.of(history, 10).at(0).gaussian()
    np.testing.assert_allclose(found, mean, atol=1e-9)
    np.testing.assert_allclose(covariance, np.eye(3), atol=1e-9)

    rng = np.random.default_rng(0)
    factor = rng.normal(size=(4, 4))
    precision = jnp.asarray(factor @ factor.T + np.eye(4))

    def energy(x):
        return 0.5 * x @ precision @ x - jnp.sum(jnp.cos(x))

    _, history = jax.jit(lambda: minimize_lbfgs(energy, jnp.ones(4), maxcor=3))()
    point = _Points.of(history, 3).at(4)
    mean, covariance = point.gaussian()
    newton = point.x - covariance @ jax.grad(energy)(point.x)
    np.testing.assert_allclose(mean, newton, atol=1e-9)
    draws, log_q = point.drawn(random.key(0), 4000)
    expected = scipy.stats.multivariate_normal(mean, covariance).logpdf(draws)
    np.testing.assert_allclose(log_q, expected, rtol=1e-8)
    off = np.linalg.solve(np.linalg.cholesky(covariance), (draws - mean).T)
    np.testing.assert_allclose(off.mean(1), 0.0, atol=5 / np.sqrt(4000))


@single_first
def test_a_path_is_followed_to_its_end(precision, monkeypatch):
    """L-BFGS takes a hundred steps here: sd from 1 to 100, in a turned basis."""
    z = jnp.linspace(0.0, 1.0, 30)[:, None]

    def model(y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.1), z)
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(z), obs=y)

    target = Target(random.key(0), model, (jnp.zeros(30),), {}, {})
    basis = scipy.stats.ortho_group.rvs(30, random_state=np.random.default_rng(1))
    root = jnp.asarray((basis / np.geomspace(1.0, 100.0, 30)).T)

    def logdensity_fn(position, data):
        return -0.5 * jnp.sum((root @ position["f"] - 1.0) ** 2)

    monkeypatch.setattr(target, "logdensity_fn", logdensity_fn)
    q, _ = gp.mcmc.Pathfinder(1, 7).approximate(random.key(1), target, 1)
    np.testing.assert_allclose(root @ q.mean["f"], 1.0, atol=0.5)


def test_of_many_values_each_output_has_its_gaussian_given_the_others(monkeypatch):
    """S_bb − S_br S_rr⁻¹ S_rb, which the code reads from the inverse."""
    rng = np.random.default_rng(4)
    factor, loc = rng.normal(size=(10, 10)), rng.normal(size=10)
    s = factor @ factor.T + np.eye(10)
    priors = OrderedDict(
        g=Prior(np.zeros((2, 3)), np.eye(3)), f=Prior(np.zeros((1, 4)), np.eye(4))
    )
    ((together,), number) = coupling.joined_or_apart(loc, s, priors)
    assert number == 1 and together.covariance.shape == (1, 10, 10)
    monkeypatch.setattr(coupling, "_MOST_JOINED", 9)
    found, number = coupling.joined_or_apart(loc, s, priors)
    blocks = [(m, c) for one in found for m, c in zip(one.loc, one.covariance)]
    assert number == len(blocks) == 3 and [*found[0].priors, *found[1].priors] == [
        "g",
        "f",
    ]
    for (m, covariance), rows in zip(blocks, np.split(np.arange(10), [3, 6])):
        rest = np.setdiff1d(np.arange(10), rows)
        gain = np.linalg.solve(s[np.ix_(rest, rest)], s[np.ix_(rest, rows)])
        expected = s[np.ix_(rows, rows)] - s[np.ix_(rows, rest)] @ gain
        np.testing.assert_allclose(covariance, expected, atol=1e-9)
        np.testing.assert_array_equal(m, loc[rows])


def test_draws_of_large_weight_are_kept():
    heavy = np.arange(3, 50, 10)
    log_weights = np.full(50, -20.0)
    log_weights[heavy] = 0.0
    np.testing.assert_array_equal(np.sort(_kept(random.key(0), log_weights, 5)), heavy)


def test_chains_take_the_draws_of_their_paths_by_weight():
    draws = np.arange(6.0).reshape(2, 3)
    log_weights = np.array([[-1.0, -np.inf, 0.0], [-3.0, -2.0, -1.0]])
    paths = Paths(*[np.zeros(2)] * 3, {"f": draws}, log_weights)
    found = paths.ends({"f": np.arange(10.0, 16.0)}, 6)
    np.testing.assert_array_equal(found["f"], [2.0, 5.0, 0.0, 4.0, 14.0, 3.0])


def test_pathfinder_finds_a_gaussian_posterior():
    data = (GAUSSIAN_X, GAUSSIAN_Y)
    target = Target(random.key(0), gaussian_model, data, {}, {})
    finder = gp.mcmc.Pathfinder(num_paths=2, num_draws=60)
    q, draws = finder.approximate(random.key(1), target, 40)
    mean, covariance = gaussian_posterior()
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(q.mean["f"], mean, atol=0.02 * np.min(sd))
    np.testing.assert_allclose(np.diag(q.covariance), sd**2, rtol=0.5)
    assert len(np.unique(draws["f"][:, 0])) == 40
    z = (draws["f"] - mean) / sd
    assert np.max(np.abs(z.mean(0))) < 5 / np.sqrt(40) and 0.5 < z.std() < 1.5


@pytest.mark.thorough
def test_paths_at_once_are_those_one_after_the_other(monkeypatch):
    data = (GAUSSIAN_X, GAUSSIAN_Y)
    target = Target(random.key(0), gaussian_model, data, {}, {})
    finder, found = gp.mcmc.Pathfinder(num_paths=3, num_draws=5, max_steps=6), []
    places, names = target.initial_positions(random.key(1), 3), []
    at_host = jax.device_get

    def seen(tree):
        names.append(threading.current_thread().name)
        return at_host(tree)

    monkeypatch.setattr(jax, "device_get", seen)
    for cores in (1, 3):
        monkeypatch.setattr(side_by_side, "_num_cores", lambda cores=cores: cores)
        found.append(finder.paths(random.key(2), places, target, False))
    assert "thread_0" in names
    one, other = (jax.tree.leaves(paths) for paths in found)
    for x, y in zip(one, other):
        np.testing.assert_array_equal(x, y)
    assert len(np.unique(found[0].elbo)) == 3


# ------------------------------------------------------------------------- the chains


def moments(draws):
    """Mean and its standard error of every value, on the log scale where positive."""
    found = {}
    for name, x in group(draws, "posterior").items():
        x = np.asarray(x) if name == "f" else np.log(x)
        size = gp.diagnostics.ess({name: x})[name]
        found[name] = x.mean(axis=(0, 1)), x.std(axis=(0, 1)) / np.sqrt(size)
    return found


@pytest.fixture(scope="module")
def ours():
    with jax.enable_x64(True):
        options = {"num_steps": 300, "optimizer": optax.adam(0.05), "progress": False}
        fit = gp.fit(random.key(0), counts, None, *DATA, **options)
        return moments(gp.sample(random.key(1), counts, *DATA, init=fit, **OPTIONS))


def init_of(kind):
    if kind is gp.mcmc.Pathfinder:
        return kind(num_paths=2, num_draws=20)
    guide = kind(counts)
    svi = SVI(counts, guide, optax.adam(0.03), Trace_ELBO())
    return guide, svi.run(random.key(2), 400, *DATA, progress_bar=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [AutoNormal, AutoMultivariateNormal, gp.mcmc.Pathfinder]
)
def test_the_posterior_is_that_of_chains_from_our_fit(kind, ours):
    draws = gp.sample(random.key(3), counts, *DATA, init=init_of(kind), **OPTIONS)
    for name, (mean, error) in moments(draws).items():
        other, other_error = ours[name]
        assert np.all(np.abs(mean - other) < 5 * np.hypot(error, other_error)), name
    attrs = draws["posterior"].attrs
    is_path = kind is gp.mcmc.Pathfinder
    assert attrs["init"] == ("pathfinder" if is_path else "fit")
    assert attrs["coordinates"] == "fitted"


def test_without_a_gaussian_to_find_chains_move_v_itself(monkeypatch):
    monkeypatch.setattr(Paths, "best", lambda self: None)
    options = {"num_warmup": 1, "num_samples": 4, "num_chains": 1, "progress": False}
    run = {"sampler": Walk(), **options}
    draws = gp.sample(random.key(0), counts, *DATA, **run)
    assert draws["posterior"].attrs["coordinates"] == "whitened"
    with pytest.raises(ValueError, match='coordinates="fitted" needs a fit here'):
        gp.sample(random.key(0), counts, *DATA, coordinates="fitted", **run)


# ----------------------------------------------------------------------- what is wrong


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    ("init", "message"),
    [
        (gp.mcmc.Pathfinder, r"write gp.mcmc.Pathfinder\(\)"),
        (AutoNormal(counts), "A guide alone has no parameters: fit it first"),
        (
            numpyro.infer.svi.SVIRunResult({}, None, None),
            r"does not know its guide: write \(guide, result\)",
        ),
        (
            (AutoNormal(counts), {"other": 1.0}),
            r"no value of the guide's parameter\(s\) \['variance_auto_loc'",
        ),
    ],
)
def test_starts_that_cannot_be_are_refused(init, message):
    with pytest.raises(ValueError, match=message):
        gp.sample(random.key(0), counts, *DATA, init=init, progress=False)


def test_settings_of_pathfinder_are_counts():
    with pytest.raises(ValueError, match="num_paths must be a positive integer"):
        gp.mcmc.Pathfinder(num_paths=0)


def test_pathfinder_without_finite_draws_says_so(monkeypatch):
    target = Target(random.key(0), gaussian_model, (GAUSSIAN_X, GAUSSIAN_Y), {}, {})
    monkeypatch.setattr(
        target, "logdensity_fn", lambda position, _: jnp.nan * position["f"][0]
    )
    with pytest.raises(FloatingPointError, match="found 0 draws of finite log density"):
        gp.mcmc.Pathfinder(1, 5).approximate(random.key(1), target, 2)
