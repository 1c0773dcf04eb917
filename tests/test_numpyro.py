"""Nothing of ours is compulsory: the same model under NumPyro's own inference."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, log_likelihood
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoGuideList,
    AutoMultivariateNormal,
    AutoNormal,
)
from numpyro.infer.util import log_density
from scipy import stats
from scipy.special import gammaln

import svgp_ppl as gp
from tests.models import (
    COUNTS_X,
    COUNTS_Y,
    COUNTS_Z,
    GAUSSIAN_X,
    GAUSSIAN_Y,
    GAUSSIAN_Z,
    LENGTHSCALE,
    NOISE,
    VARIANCE,
    counts_model,
    gaussian_model,
    gaussian_posterior,
    projection,
)

THETA = {"variance": 1.2, "lengthscale": 0.9}
V = np.array([1.0, -0.4, 0.3, 0.8, -1.1])


def expected_log_prob():
    """E log p(y_n|f_n) of the counts at V and THETA: y m − exp(m + s/2) − log y!."""
    a, residual = projection(COUNTS_X, COUNTS_Z, **THETA)
    mean = a @ V
    return COUNTS_Y * mean - np.exp(mean + residual / 2) - gammaln(COUNTS_Y + 1.0)


def log_prior():
    return (
        stats.gamma.logpdf(THETA["variance"], 3.0, scale=1 / 2.0)
        + stats.gamma.logpdf(THETA["lengthscale"], 4.0, scale=1 / 3.0)
        + np.sum(stats.norm.logpdf(V))
    )


def values():
    return {"f": jnp.asarray(V), **{k: jnp.asarray(v) for k, v in THETA.items()}}


# ------------------------------------------------------------------------- MCMC


def by_numpyro():
    mcmc = MCMC(
        NUTS(gaussian_model),
        num_warmup=300,
        num_samples=700,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(0), GAUSSIAN_X, GAUSSIAN_Y)
    return mcmc.get_samples(group_by_chain=True)["f"]


def by_ours():
    draws = gp.sample(
        random.key(1),
        gaussian_model,
        GAUSSIAN_X,
        GAUSSIAN_Y,
        num_chains=2,
        num_warmup=300,
        num_samples=700,
        progress=False,
    )
    return gp.diagnostics.group(draws, "posterior")["f"]


@pytest.mark.parametrize(
    "sampler", [by_numpyro, pytest.param(by_ours, marks=pytest.mark.slow)]
)
def test_samplers_recover_the_closed_form_posterior(sampler):
    # Eight comparisons at 5 standard errors: fails by chance about once in 2e5 runs.
    mean, covariance = gaussian_posterior()
    v = np.asarray(sampler())
    sd = np.sqrt(np.diag(covariance))
    ess = gp.diagnostics.ess({"v": v})["v"]
    assert np.all(ess > 400)
    np.testing.assert_array_less(
        np.abs(v.mean((0, 1)) - mean), 5 * sd / np.sqrt(ess) + 1e-12
    )
    squares = (v - mean) ** 2
    ess = gp.diagnostics.ess({"v": squares})["v"]
    assert np.all(ess > 300)
    # Var of a squared Gaussian is 2 sd⁴.
    error = np.abs(squares.mean((0, 1)) - sd**2)
    np.testing.assert_array_less(error, 5 * np.sqrt(2 / ess) * sd**2)
    correlation = np.corrcoef(v.reshape(-1, v.shape[-1]).T)
    exact = covariance / np.outer(sd, sd)
    np.testing.assert_allclose(correlation, exact, atol=5 / np.sqrt(ess.min()))


@pytest.mark.slow
def test_numpyro_nuts_runs_the_counts_model():
    mcmc = MCMC(NUTS(counts_model), num_warmup=60, num_samples=40, progress_bar=False)
    mcmc.run(random.key(0), COUNTS_X, COUNTS_Y)
    draws = mcmc.get_samples()
    assert draws["f"].shape == (40, 5)
    assert np.all(draws["lengthscale"] > 0)
    new = Predictive(counts_model, draws)(random.key(1), COUNTS_X[:7])
    assert new["y"].shape == (40, 7)


# -------------------------------------------------------------------------- SVI


def test_marginal_elbo_under_plain_svi_reaches_the_collapsed_bound():
    guide = gp.AutoGaussian(gaussian_model)
    schedule = optax.cosine_decay_schedule(0.1, 1500)
    svi = SVI(gaussian_model, guide, optax.adam(schedule), loss=gp.MarginalELBO())
    fitted = svi.run(random.key(0), 1500, GAUSSIAN_X, GAUSSIAN_Y, progress_bar=False)
    mean, covariance = gaussian_posterior()
    np.testing.assert_allclose(fitted.params["auto_f_loc"], mean, atol=1e-4)
    scale_tril = np.asarray(fitted.params["auto_f_scale_tril"])
    np.testing.assert_allclose(scale_tril @ scale_tril.T, covariance, atol=1e-4)

    # Titsias (2009): log N(y; 0, A Aᵀ + σ² I) − Σ residual / (2 σ²).
    a, residual = projection(GAUSSIAN_X, GAUSSIAN_Z, VARIANCE, LENGTHSCALE)
    covariance = a @ a.T + NOISE**2 * np.eye(len(a))
    evidence = stats.multivariate_normal.logpdf(
        GAUSSIAN_Y, np.zeros(len(a)), covariance
    )
    bound = evidence - residual.sum() / (2 * NOISE**2)
    np.testing.assert_allclose(-np.asarray(fitted.losses)[-1], bound, atol=1e-4)


def test_trace_elbo_with_auto_normal_reaches_the_mean_field_optimum():
    guide = AutoNormal(gaussian_model)
    schedule = optax.cosine_decay_schedule(0.05, 2000)
    svi = SVI(gaussian_model, guide, optax.adam(schedule), loss=Trace_ELBO(4))
    fitted = svi.run(random.key(0), 2000, GAUSSIAN_X, GAUSSIAN_Y, progress_bar=False)
    # The factorised optimum of a Gaussian has its mean, and 1/√precision as scales.
    mean, covariance = gaussian_posterior()
    np.testing.assert_allclose(fitted.params["f_auto_loc"], mean, atol=0.05)
    scales = 1 / np.sqrt(np.diag(np.linalg.inv(covariance)))
    np.testing.assert_allclose(fitted.params["f_auto_scale"], scales, rtol=0.15)


def list_of_guides(model):
    guide = AutoGuideList(model)
    guide.append(gp.AutoGaussian(handlers.block(model, hide=["variance"])))
    guide.append(AutoDelta(handlers.block(model, expose=["variance"])))
    return guide


@pytest.mark.parametrize(
    "make_guide, loss",
    [
        pytest.param(AutoNormal, Trace_ELBO(), marks=pytest.mark.slow),
        pytest.param(AutoMultivariateNormal, Trace_ELBO(), marks=pytest.mark.slow),
        pytest.param(AutoDelta, gp.MarginalELBO(), marks=pytest.mark.slow),
        (gp.AutoGaussian, Trace_ELBO()),
        pytest.param(list_of_guides, gp.MarginalELBO(), marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_guides_and_losses_combine(make_guide, loss):
    guide = make_guide(counts_model)
    svi = SVI(counts_model, guide, optax.adam(0.03), loss=loss)
    fitted = svi.run(random.key(0), 150, COUNTS_X, COUNTS_Y, progress_bar=False)
    losses = np.asarray(fitted.losses)
    assert np.all(np.isfinite(losses))
    assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 10
    assert np.any(fitted.params["z"] != COUNTS_Z)  # learned with the rest


@pytest.mark.thorough
def test_auto_delta_agrees_under_both_losses():
    # A point has nothing to marginalise: both losses are the same function.
    guide = AutoDelta(counts_model)
    losses = [
        SVI(counts_model, guide, optax.adam(0.1), loss=loss)
        .run(random.key(0), 3, COUNTS_X, COUNTS_Y, progress_bar=False)
        .losses
        for loss in (Trace_ELBO(), gp.MarginalELBO())
    ]
    np.testing.assert_allclose(*losses, rtol=1e-10)


# ------------------------------------------------------------------- Predictive


def test_predictive_draws_from_the_prior():
    draws = Predictive(gaussian_model, num_samples=4000)(random.key(0), GAUSSIAN_X)
    assert draws["f"].shape == (4000, 4)
    assert draws["y"].shape == (4000, 15)
    # The prior of y_n is N(0, variance + noise²); 15 comparisons at 5 standard errors.
    variance = VARIANCE + NOISE**2
    error = np.abs(np.mean(np.square(draws["y"]), axis=0) - variance)
    assert np.all(error < 5 * variance * np.sqrt(2 / 4000))


def test_predictive_follows_the_posterior_and_the_guide():
    guide = gp.AutoGaussian(gaussian_model)
    # Outside SVI a guide has to see the model once.
    handlers.seed(guide, random.key(0))(GAUSSIAN_X, GAUSSIAN_Y)
    mean, covariance = gaussian_posterior()
    params = {
        "auto_f_loc": jnp.asarray(mean),
        "auto_f_scale_tril": jnp.linalg.cholesky(covariance),
    }
    keys = random.split(random.key(0))
    by_guide = Predictive(gaussian_model, guide=guide, params=params, num_samples=3000)
    posterior = guide.sample_posterior(keys[1], params, sample_shape=(3000,))
    by_draws = Predictive(gaussian_model, posterior)
    a, residual = projection(GAUSSIAN_X, GAUSSIAN_Z, VARIANCE, LENGTHSCALE)
    spread = np.sqrt(residual + np.sum((a @ covariance) * a, axis=1) + NOISE**2)
    for predictive in (by_guide, by_draws):
        y = np.asarray(predictive(keys[0], GAUSSIAN_X)["y"])
        assert np.all(np.abs(y.mean(0) - a @ mean) < 5 * spread / np.sqrt(3000))
        assert np.all(np.abs(y.std(0) / spread - 1) < 5 / np.sqrt(2 * 3000))


# --------------------------------------------------------------------- handlers


def test_log_density_is_expectation_and_priors():
    names = []

    @jax.jit
    def run(values):
        value, sites = log_density(counts_model, (COUNTS_X, COUNTS_Y), {}, values)
        names.extend(sites)
        return value

    expected = log_prior() + expected_log_prob().sum()
    np.testing.assert_allclose(run(values()), expected, rtol=1e-8)
    assert names == ["variance", "lengthscale", "z", "f", "data", "y"]


def test_seed_substitute_condition_block():
    seeded = handlers.seed(counts_model, random.key(0))
    prior = handlers.trace(seeded).get_trace(COUNTS_X)
    assert prior["y"]["value"].shape == (20,)
    assert not prior["y"]["is_observed"]
    again = handlers.trace(handlers.seed(counts_model, random.key(0)))
    np.testing.assert_array_equal(
        again.get_trace(COUNTS_X)["y"]["value"], prior["y"]["value"]
    )

    conditioned = handlers.condition(seeded, data=values())
    sites = handlers.trace(conditioned).get_trace(COUNTS_X, COUNTS_Y)
    assert sites["f"]["is_observed"]
    log_prob = sites["y"]["fn"].log_prob(sites["y"]["value"])
    np.testing.assert_allclose(log_prob, expected_log_prob(), rtol=1e-8)

    moved = {**values(), "z": jnp.asarray(COUNTS_Z + 0.1)}
    substituted = handlers.substitute(seeded, data=moved)
    sites = handlers.trace(substituted).get_trace(COUNTS_X, COUNTS_Y)
    assert not sites["f"]["is_observed"]
    np.testing.assert_array_equal(sites["z"]["value"], COUNTS_Z + 0.1)
    features = sites["f"]["infer"]["inducing"]["features"]
    np.testing.assert_array_equal(features.z, COUNTS_Z + 0.1)

    hidden = handlers.block(seeded, hide=["f"])
    assert "f" not in handlers.trace(hidden).get_trace(COUNTS_X, COUNTS_Y)


def test_scale_and_mask_weigh_the_data():
    keep = np.arange(20) % 3 > 0

    def model(x, y):
        kernel = gp.kernels.RBF(**THETA)
        f = gp.sparse_gp("f", kernel, COUNTS_Z)
        weighted = handlers.scale(scale=2.5), handlers.mask(mask=jnp.asarray(keep))
        with numpyro.plate("data", len(x)), weighted[0], weighted[1]:
            gp.observe("y", lambda f: dist.Poisson(jnp.exp(f)), f(x), obs=y)

    held, given = {"f": jnp.asarray(V)}, (COUNTS_X, COUNTS_Y)
    value = jax.jit(lambda held: log_density(model, given, {}, held)[0])(held)
    prior = np.sum(stats.norm.logpdf(V))
    data = 2.5 * expected_log_prob()[keep].sum()
    np.testing.assert_allclose(value, prior + data, rtol=1e-8)
    # The bound weighs its expectations the same way.
    point = AutoDelta(model, init_loc_fn=numpyro.infer.init_to_value(values=held))
    svi = SVI(model, point, optax.sgd(0.0), loss=gp.MarginalELBO())

    @jax.jit
    def loss(*given):
        return svi.evaluate(svi.init(random.key(0), *given), *given)

    np.testing.assert_allclose(-loss(*given), prior + data, rtol=1e-8)


def test_scaled_model_and_guide_scale_the_loss():
    guide = gp.AutoGaussian(gaussian_model)
    away = {"auto_f_loc": jnp.ones(4), "auto_f_scale_tril": 0.5 * jnp.eye(4)}
    losses = []
    for scale in (1.0, 0.25):
        run = [handlers.scale(fn, scale=scale) for fn in (gaussian_model, guide)]
        svi = SVI(*run, optax.sgd(0.0), loss=gp.MarginalELBO())
        start = svi.init(random.key(0), GAUSSIAN_X, GAUSSIAN_Y, init_params=away)
        losses.append(svi.evaluate(start, GAUSSIAN_X, GAUSSIAN_Y))
    np.testing.assert_allclose(losses[1], 0.25 * losses[0], rtol=1e-10)


def test_scope_renames_a_process_and_keeps_two_apart():
    def half(x):
        return gp.sparse_gp("f", gp.kernels.RBF(**THETA), COUNTS_Z)(x)

    def model(x, y):
        left = handlers.scope(half, prefix="left")(x)
        right = handlers.scope(half, prefix="right")(x)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(1.0), left - right, obs=y)

    held = {"left/f": jnp.asarray(V), "right/f": 0.5 * jnp.asarray(V)}
    run = handlers.substitute(handlers.seed(model, random.key(0)), data=held)
    sites = handlers.trace(run).get_trace(COUNTS_X, 1.0 * COUNTS_Y)
    a, residual = projection(COUNTS_X, COUNTS_Z, **THETA)
    marginal = sites["y"]["fn"].marginal()
    np.testing.assert_allclose(marginal.mean, 0.5 * a @ V, rtol=1e-8)
    np.testing.assert_allclose(marginal.variance, 2 * residual, atol=1e-8)


def test_log_likelihood_is_the_expectation_of_each_draw():
    draws = {
        "f": jnp.stack([jnp.asarray(V), 0.0 * V]),
        **{k: jnp.full(2, v) for k, v in THETA.items()},
    }
    value = log_likelihood(counts_model, draws, COUNTS_X, COUNTS_Y)["y"]
    assert value.shape == (2, 20)
    np.testing.assert_allclose(value[0], expected_log_prob(), rtol=1e-8)


def test_render_model_draws_the_graph():
    pytest.importorskip("graphviz")
    graph = numpyro.render_model(
        counts_model, model_args=(COUNTS_X, COUNTS_Y), render_params=True
    )
    for line in ("f -> y", "variance -> y", "lengthscale -> y", "z -> y"):
        assert line in graph.source
    assert "cluster_data" in graph.source


def test_model_runs_under_jit_and_vmap():
    def density(v):
        held = {**values(), "f": v}
        return log_density(counts_model, (COUNTS_X, COUNTS_Y), {}, held)[0]

    stacked = jnp.stack([jnp.asarray(V), -jnp.asarray(V)])
    one_by_one = [density(v) for v in stacked]
    np.testing.assert_allclose(jax.jit(jax.vmap(density))(stacked), one_by_one)
