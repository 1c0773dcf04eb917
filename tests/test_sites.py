"""AutoSites: a q(v) that follows the hyperparameters."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.stats as st
from jax import random
from jax.test_util import check_grads
from numpyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from svgp_ppl.handlers import set_up
from svgp_ppl.variational.sites import Prior, gaussian_at, pseudo_data_of
from tests.conftest import mostly_double
from tests.models import COUNTS_X, COUNTS_Y, counts_model, rbf

X = np.linspace(0.0, 3.0, 12)[:, None]
Y = np.sin(2 * X[:, 0]) + 0.3 * np.cos(29.0 * np.arange(12))
TABLE = np.stack([Y, np.cos(X[:, 0])], axis=1)
NOISE, JITTER = 0.3, 1e-9


def smooth(x, y=None):
    """Regression with z at the data: the right sites make q(v | θ) exact at any θ."""
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), X, jitter=JITTER)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(NOISE), f(x), obs=y)


def level(x):
    return jnp.full(len(x), 0.7)


def additive(x, y=None):
    """The sum of a process that varies and one that does not, and has a mean."""
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), X, jitter=JITTER)
    g = gp.sparse_gp("g", gp.kernels.RBF(0.5, 3.0), X, mean=level, jitter=JITTER)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(NOISE), f(x) + g(x), obs=y)


def two_outputs(x, y=None):
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
    kernel = gp.kernels.RBF(1.0, lengthscale)
    f = gp.sparse_gp("f", kernel, X, num_outputs=2, jitter=JITTER)
    latent = f(x)
    with numpyro.plate("data", len(x)):
        for i in range(2):
            one = None if y is None else y[:, i]
            gp.observe(f"y{i}", gp.likelihoods.Gaussian(NOISE), latent[:, i], obs=one)


EYE = np.eye(len(X))
# Model, its blocks, y, H, pseudo-data, covariance without noise and mean at ℓ = 0.8.
CONJUGATE = {
    "smooth": (smooth, (), Y, EYE[None], Y[None], rbf(X, X, 1.0, 0.8), 0.0),
    "additive": (
        additive,
        None,
        Y,
        np.concatenate([EYE, EYE], axis=1)[None],
        Y[None],
        rbf(X, X, 1.0, 0.8) + rbf(X, X, 0.5, 3.0),
        0.7,
    ),
    "two_outputs": (
        two_outputs,
        (),
        TABLE,
        np.stack([EYE, EYE]),
        TABLE.T,
        rbf(X, X, 1.0, 0.8),
        0.0,
    ),
}


def params_of(guide, projection, data, theta):
    """The parameters of a guide that has seen its model, with sites of noise σ."""
    trace = numpyro.handlers.trace(numpyro.handlers.seed(guide, 0)).get_trace(X)
    params = {n: s["value"] for n, s in trace.items() if s["type"] == "param"}
    (name,) = (n for n in params if n.endswith("_projection"))
    rows, size = params[name].shape[-2:]
    padded = np.zeros((len(projection), rows, size))
    padded[:, : projection.shape[1]] = projection / NOISE
    params[name] = jnp.asarray(padded)
    values = np.zeros((len(projection), rows))
    values[:, : data.shape[1]] = data / NOISE
    params[name.replace("_projection", "_data")] = jnp.asarray(values)
    return params | {"lengthscale_auto_loc": jnp.asarray(theta)}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n == "smooth")) for n in CONJUGATE],
)
def test_with_exact_sites_the_bound_is_the_evidence_at_any_lengthscale(name):
    """log N(y; m, K + σ² I), by SciPy: the sites were not made for this lengthscale."""
    model, blocks, y, projection, data, covariance, mean = CONJUGATE[name]
    guide = gp.AutoSites(model, blocks=blocks, rest=AutoDelta)
    params = params_of(guide, projection, data, 0.8)
    run = model, guide, X, y
    loss = jax.jit(lambda params: gp.MarginalELBO().loss(random.key(0), params, *run))
    bound = -loss(params)
    of_y = st.multivariate_normal(np.full(len(X), mean), covariance + NOISE**2 * EYE)
    evidence = np.sum(of_y.logpdf(np.atleast_2d(y.T)))
    prior = st.lognorm(s=1.0).logpdf(0.8)
    np.testing.assert_allclose(bound, evidence + prior, rtol=1e-6)


def gaussian_of(size, num_groups, seed=0):
    rng = np.random.default_rng(seed)
    loc = rng.normal(size=(num_groups, size))
    factors = rng.normal(size=(num_groups, size, size))
    eye = np.eye(size)
    covariances = [np.linalg.inv(eye + a @ a.T) for a in factors]
    return loc, np.stack(covariances)


@mostly_double
def test_at_the_fit_the_sites_give_its_gaussian(precision):
    loc, covariance = gaussian_of(9, 1)
    shapes = {"g": (1, 4), "f": (1, 5)}  # not sorted: the order of the stack
    priors = OrderedDict()
    for name, (_, m) in shapes.items():
        tril = np.linalg.cholesky(rbf(*[np.arange(m)[:, None]] * 2, 1.4, 0.9))
        priors[name] = Prior(jnp.full((1, m), 0.3), jnp.asarray(tril))
    projection, data = pseudo_data_of(loc, covariance, priors, 1e-9)
    find = jax.jit(gaussian_at)
    found, tril = map(np.asarray, find(projection, data, [*priors.values()]))
    tolerance = {32: 2e-3, 64: 1e-9}[precision]
    np.testing.assert_allclose(found, loc, atol=tolerance)
    np.testing.assert_allclose(tril[0] @ tril[0].T, covariance[0], atol=tolerance)
    np.testing.assert_array_equal(np.triu(tril[0], 1), 0.0)


def test_the_gaussian_has_derivatives_by_sites_and_priors():
    loc, covariance = gaussian_of(4, 2)
    gram = rbf(*[np.arange(4.0)[:, None]] * 2, 1.4, 0.9)
    prior = Prior(jnp.full((2, 4), 0.3), jnp.asarray(np.linalg.cholesky(gram)))
    given = pseudo_data_of(loc, covariance, {"f": prior}, 1e-9)
    given = (*map(jnp.asarray, given), *prior)

    def both(projection, data, mean, scale_tril):
        given = map(jnp.asarray, (projection, data, mean, scale_tril))
        projection, data, *prior = given
        return gaussian_at(projection, data, [Prior(*prior)])

    check_grads(jax.jit(both), given, order=1, modes=["rev"])


@pytest.fixture(scope="module")
def counts_fit():
    with jax.enable_x64(True):
        return gp.fit(
            random.key(0),
            counts_model,
            COUNTS_X,
            COUNTS_Y,
            num_steps=600,
            progress=False,
        )


def first_loss(guide):
    options = {"num_steps": 1, "progress": False}
    key = random.key(1)
    return gp.fit(key, counts_model, guide, COUNTS_X, COUNTS_Y, **options).losses[0]


@pytest.mark.thorough
def test_what_the_first_data_leave_open_can_still_be_learnt():
    """Sites of zeros, where the fit had no data, would stay zeros for ever."""

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), X[::2], mean=level)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(NOISE), f(x), obs=y)

    options = {"optimizer": gp.natural_gradient(1.0), "num_steps": 2, "progress": False}
    part, whole = (
        gp.fit(random.key(0), model, gp.AutoGaussian(model), X[:n], Y[:n], **options)
        for n in (4, 12)
    )
    options = {"optimizer": optax.lbfgs(), "num_steps": 60, "progress": False}
    sites = gp.AutoSites(model, part)
    found = gp.fit(random.key(0), model, sites, X, Y, **options)
    assert abs(found.losses[-1] - whole.losses[-1]) < 1e-2


@pytest.mark.thorough
def test_started_from_a_fit_the_bound_is_its_own(counts_fit):
    start = (counts_fit.guide, counts_fit.params)
    for init in (counts_fit, start):
        loss = first_loss(gp.AutoSites(counts_model, init, rest=AutoDelta))
        assert abs(loss - counts_fit.losses[-1]) < 0.05
    assert loss < first_loss(gp.AutoSites(counts_model, rest=AutoDelta)) - 5


@pytest.fixture(scope="module")
def joint_fit(counts_fit):
    with jax.enable_x64(True):
        return gp.fit(
            random.key(2),
            counts_model,
            gp.AutoSites(counts_model, counts_fit),
            COUNTS_X,
            COUNTS_Y,
            num_steps=800,
            loss=gp.MarginalELBO(num_particles=4),
            progress=False,
        )


def spreads(draws):
    return np.array([np.std(np.log(draws[n])) for n in ("variance", "lengthscale")])


def draws_of(fitted, num=2000):
    @jax.jit
    def run(params, *data):
        key, shape = random.key(3), (num,)
        return fitted.guide.sample_posterior(key, params, *data, sample_shape=shape)

    return run(fitted.params, COUNTS_X, COUNTS_Y)


@pytest.mark.slow
def test_hyperparameters_have_the_spread_of_their_posterior(joint_fit):
    """Of importance sampling; with a q(v) that stays, half and less of it."""
    draws = gp.importance_sample(
        random.key(4), counts_model, COUNTS_X, COUNTS_Y, init=joint_fit
    )
    assert draws.posterior.attrs["pareto_k"] < 0.7
    posterior = group(draws, "posterior")
    exact = spreads({n: np.asarray(v) for n, v in posterior.items()})
    np.testing.assert_allclose(spreads(draws_of(joint_fit)), exact, rtol=0.2)
    stays = gp.fit(
        random.key(2),
        counts_model,
        gp.AutoGaussian(counts_model, rest=AutoMultivariateNormal),
        COUNTS_X,
        COUNTS_Y,
        num_steps=800,
        loss=gp.MarginalELBO(num_particles=4),
        progress=False,
    )
    assert np.all(spreads(draws_of(stays)) < 0.8 * exact)
    assert np.mean(stays.losses[-100:]) > np.mean(joint_fit.losses[-100:]) + 0.3


@pytest.mark.slow
def test_the_guide_is_used_like_any_other(joint_fit, tmp_path):
    prediction = joint_fit.predict(COUNTS_X, key=random.key(0), num_draws=50)
    assert np.all(np.isfinite(prediction["y"].mean))
    file = tmp_path / "joint.npz"
    joint_fit.save(file)
    loaded = gp.Fit.load(file, gp.AutoSites(counts_model), counts_model)
    draws = gp.sample(
        random.key(1),
        counts_model,
        COUNTS_X,
        COUNTS_Y,
        init=loaded,
        num_warmup=100,
        num_samples=20,
        num_chains=2,
        progress=False,
    )
    assert not np.any(draws.sample_stats["diverging"].values)
    report = gp.diagnostics.report(joint_fit, COUNTS_X, COUNTS_Y)
    assert report.is_healthy and "k-hat" in str(report), str(report)


def test_draws_of_v_follow_the_hyperparameters(joint_fit):
    """Given θ, v is a draw from q(v | θ): whitened by it, standard normal."""
    draws = draws_of(joint_fit, 400)
    params = joint_fit.params
    projection, data = params["auto_f_projection"], params["auto_f_data"]

    def base(v, variance, lengthscale):
        difference = params["z"] - params["z"].T
        gram = variance * jnp.exp(-0.5 * jnp.square(difference / lengthscale))
        gram = gram + 1e-6 * variance * jnp.eye(len(gram))
        prior = Prior(jnp.zeros((1, 5)), jnp.linalg.cholesky(gram))
        loc, tril = gaussian_at(projection, data, [prior])
        return jnp.linalg.solve(tril[0], v - loc[0])

    over_draws = jax.jit(jax.vmap(base))
    z = over_draws(draws["f"], draws["variance"], draws["lengthscale"])
    # 5 standard errors of 2000 values.
    assert abs(np.mean(z)) < 5 / np.sqrt(z.size)
    assert abs(np.var(z) - 1) < 5 * np.sqrt(2 / z.size)
    assert set(draws) == {"f", "variance", "lengthscale"}


@pytest.mark.parametrize(
    "rest",
    [
        AutoNormal,
        pytest.param(lambda model: AutoDelta(model), marks=pytest.mark.slow),
    ],
)
def test_other_guides_of_the_rest_and_blocks(rest):
    guide = gp.AutoSites(additive, blocks=[["g", "f"]], rest=rest)
    fitted = gp.fit(random.key(0), additive, guide, X, Y, num_steps=30, progress=False)
    assert fitted.losses[-1] < fitted.losses[0]
    names = {"auto_g_f_projection", "auto_g_f_data"}
    assert guide.variational_names(fitted.params) == names <= set(fitted.params)
    draws = guide.sample_posterior(random.key(0), fitted.params, X, Y)
    assert draws["g"].shape == (12,) and "auto_g_f" not in draws


@pytest.mark.slow
def test_a_coupled_fit_and_a_start_of_other_blocks():
    coupled = gp.fit(
        random.key(0),
        additive,
        gp.AutoCoupled(additive),
        X,
        Y,
        num_steps=300,
        progress=False,
    )
    losses = {}
    for blocks in (None, (), [["g", "f"]]):
        guide = gp.AutoSites(additive, coupled, blocks=blocks, rest=AutoDelta)
        fitted = gp.fit(
            random.key(1), additive, guide, X, Y, num_steps=1, progress=False
        )
        losses[str(blocks)] = fitted.losses[0]
    assert losses["None"] < coupled.losses[-1] + 0.05
    assert abs(losses["[['g', 'f']]"] - losses["None"]) < 1e-6
    assert losses["()"] > losses["None"] + 0.1  # without the correlation


@pytest.mark.slow
def test_minibatches():
    def model(x, y=None):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), X[::2])
        with numpyro.plate("data", 12, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(NOISE), f(x), obs=y)

    guide = gp.AutoSites(model)
    fitted = gp.fit(
        random.key(0), model, guide, X, Y, batch_size=4, num_steps=50, progress=False
    )
    assert np.all(np.isfinite(fitted.losses))


@pytest.mark.parametrize("start", [3, (counts_model, 4), "fit"])
def test_a_start_that_is_none_is_refused(start):
    with pytest.raises(ValueError, match=r"start must be what gp\.fit returns"):
        gp.AutoSites(counts_model, start)


def test_a_start_of_another_model_is_refused(counts_fit):
    options = {"num_steps": 1, "progress": False}
    other = gp.fit(random.key(0), smooth, X, Y, **options)
    for start, message in ((other, "process 'g'"), (counts_fit, "process 'f'")):
        guide = gp.AutoSites(additive, start)
        with pytest.raises(ValueError, match=message):
            set_up(guide, random.key(0), (X, Y), {})


def test_quantiles_are_refused_in_words(joint_fit):
    with pytest.raises(ValueError, match="sample_posterior"):
        joint_fit.guide.quantiles(joint_fit.params, [0.5])
