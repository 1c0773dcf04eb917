"""predict: every kind of posterior, against the closed form and sums over draws."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from jax import random
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoDelta, AutoNormal
from scipy.special import logsumexp, softmax
from scipy.stats import norm, poisson

import svgp_ppl as gp
from svgp_ppl.diagnostics import to_arviz
from svgp_ppl.prediction import averages
from svgp_ppl.prediction.observe_sites import moments_of
from svgp_ppl.prediction.posterior_model import PosteriorModel, every_draw
from tests.models import (
    COUNTS_X,
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
    rbf,
)

X_NEW = np.linspace(-1.5, 2.5, 9)[:, None]
X_COUNTS = np.linspace(0.3, 5.5, 6)[:, None]
Y_COUNTS = np.array([0, 3, 7, 2, 5, 1])


# -------------------------------------------------- a fit: the closed form is known


def gaussian_params():
    mean, covariance = gaussian_posterior()
    scale_tril = np.linalg.cholesky(covariance)
    return {
        "auto_f_loc": jnp.asarray(mean),
        "auto_f_scale_tril": jnp.asarray(scale_tril),
    }


def predict_gaussian(x=X_NEW, **options):
    posterior = (gp.AutoGaussian(gaussian_model), gaussian_params())
    return gp.predict(gaussian_model, posterior, x, **options)["y"]


def in_a_line_of_memory(x):
    """A copy of x that JAX may read in place: its address is a multiple of 64."""
    memory = np.empty(x.nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    found = memory[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
    found[:] = x
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("of", [in_a_line_of_memory, np.array, pd.DataFrame])
def test_inputs_may_be_written_into_after_the_call(of):
    x = of(X_NEW.copy())  # tables of an old pandas share its memory
    y, before = np.zeros(len(x)), predict_gaussian(X_NEW)
    at_new = predict_gaussian(x)
    x[:] = 0.0
    np.testing.assert_allclose(at_new.mean, before.mean)
    np.testing.assert_allclose(at_new.log_prob(y), before.log_prob(y))


def latent_moments(x):
    mean, covariance = gaussian_posterior()
    a, residual = projection(x, GAUSSIAN_Z, VARIANCE, LENGTHSCALE)
    return a @ mean, residual + np.sum((a @ covariance) * a, axis=1)


def test_moments_of_a_conjugate_model():
    at_new = predict_gaussian()
    mean, variance = latent_moments(X_NEW)
    np.testing.assert_allclose(at_new.latent_mean, mean, atol=1e-7)
    np.testing.assert_allclose(at_new.latent_variance, variance, atol=1e-7)
    np.testing.assert_allclose(at_new.mean, mean, atol=1e-7)
    np.testing.assert_allclose(at_new.variance, variance + NOISE**2, atol=1e-7)
    assert at_new.probs is None
    assert repr(at_new).startswith("Prediction of 'y' at 9 inputs\n  mean [9]: ")


def test_density_of_a_conjugate_model():
    y = np.sin(X_NEW[:, 0])
    mean, variance = latent_moments(X_NEW)
    exact = norm.logpdf(y, mean, np.sqrt(variance + NOISE**2))
    np.testing.assert_allclose(predict_gaussian().log_prob(y), exact, atol=1e-6)


def test_joint_covariance_of_a_conjugate_model():
    at_new = predict_gaussian()
    covariance = gaussian_posterior()[1]
    a, _ = projection(X_NEW, GAUSSIAN_Z, VARIANCE, LENGTHSCALE)
    prior = rbf(X_NEW, X_NEW, VARIANCE, LENGTHSCALE)
    exact = prior - a @ a.T + a @ covariance @ a.T
    np.testing.assert_allclose(at_new.latent_covariance, exact, atol=1e-7)
    diagonal = np.diagonal(at_new.latent_covariance)
    np.testing.assert_allclose(diagonal, at_new.latent_variance, atol=1e-7)


def test_draws_of_a_conjugate_model():
    # 4 × 9 comparisons at 5 standard errors: fails by chance once in 5e4 keys.
    at_new, n = predict_gaussian(), 4000
    mean, variance = latent_moments(X_NEW)
    for values, spread in (
        (at_new.sample_latent(random.key(0), n), variance),
        (at_new.sample(random.key(1), n), variance + NOISE**2),
    ):
        assert values.shape == (n, 9)
        assert np.all(np.abs(values.mean(0) - mean) < 5 * np.sqrt(spread / n))
        error = np.abs(np.square(values - mean).mean(0) - spread)
        assert np.all(error < 5 * spread * np.sqrt(2 / n))
        # Independent between inputs.
        correlation = np.corrcoef(np.asarray(values).T) - np.eye(9)
        assert np.max(np.abs(correlation)) < 5 / np.sqrt(n)


@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_guides_of_one_model_have_programs_of_their_own(scale):
    def guide(*args):
        size = len(GAUSSIAN_Z)
        numpyro.sample("f", dist.Normal(jnp.zeros(size), scale).to_event(1))

    found = gp.predict(gaussian_model, (guide, {}), X_NEW)["y"].latent_variance
    a, residual = projection(X_NEW, GAUSSIAN_Z, VARIANCE, LENGTHSCALE)
    exact = residual + scale**2 * np.sum(a**2, axis=1)
    np.testing.assert_allclose(found, exact, atol=1e-7)


def test_fit_predicts_like_guide_and_params():
    guide = gp.AutoGaussian(gaussian_model)
    fitted = gp.fit(
        random.key(0),
        gaussian_model,
        guide,
        GAUSSIAN_X,
        GAUSSIAN_Y,
        num_steps=5,
        progress=False,
    )
    one = gp.predict(gaussian_model, fitted, X_NEW)["y"]
    pair = (gp.AutoGaussian(gaussian_model), fitted.params)
    other = gp.predict(gaussian_model, pair, X_NEW)["y"]
    assert np.any(one.mean != 0)
    np.testing.assert_allclose(one.mean, other.mean)
    np.testing.assert_allclose(one.variance, other.variance)


@pytest.mark.slow
def test_loaded_params_need_no_guide_that_has_seen_data():
    params = {
        "auto_f_loc": jnp.linspace(0.0, 1.0, 5),
        "auto_f_scale_tril": 0.3 * jnp.eye(5),
        "variance_auto_loc": jnp.asarray(1.2),
        "lengthscale_auto_loc": jnp.asarray(0.9),
        "z": jnp.asarray(z_learned()),
    }
    guide = gp.AutoGaussian(counts_model)
    at_new = gp.predict(counts_model, (guide, params), X_COUNTS)["y"]
    a, residual = projection(X_COUNTS, z_learned(), 1.2, 0.9)
    variance = residual + 0.09 * np.sum(a**2, axis=1)
    exact = np.exp(a @ np.linspace(0.0, 1.0, 5) + variance / 2)
    np.testing.assert_allclose(at_new.mean, exact, rtol=1e-6)


# ------------------------------------------- draws: sums over them, written by hand


def draw_arrays(num_draws=6):
    rng = np.random.default_rng(1)
    return {
        "variance": rng.gamma(3.0, 0.5, num_draws),
        "lengthscale": rng.gamma(4.0, 0.3, num_draws),
        "f": rng.normal(size=(num_draws, 5)),
    }


def z_learned():
    return COUNTS_Z + 0.15


def moments_by_draw(x):
    """Latent mean and variance of each draw, [draws, N]."""
    draws = draw_arrays()
    pairs = []
    for v, variance, lengthscale in zip(
        draws["f"], draws["variance"], draws["lengthscale"]
    ):
        a, residual = projection(x, z_learned(), variance, lengthscale)
        pairs.append((a @ v, residual))
    return tuple(map(np.stack, zip(*pairs)))


def by_samples(x, **options):
    params = {"z": z_learned()}
    return gp.predict(counts_model, draw_arrays(), x, params=params, **options)["y"]


def by_arviz(x, **options):
    chains = {n: v.reshape(2, 3, *v.shape[1:]) for n, v in draw_arrays().items()}
    posterior = to_arviz(chains, constant_data={"z": z_learned()})
    return gp.predict(counts_model, posterior, x, **options)["y"]


def test_a_number_among_the_frozen_parameters():
    def model(x):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), np.array([[0.0], [1.0]]))
        gp.observe("y", gp.likelihoods.Poisson(), f(x) + numpyro.param("level", 0.0))

    v = np.array([[[0.3, -0.2], [0.1, 0.4]]])
    posterior = to_arviz({"f": v}, constant_data={"level": np.float64(0.5)})
    given = gp.predict(model, {"f": v[0]}, X_COUNTS, params={"level": 0.5})["y"]
    at_new = gp.predict(model, posterior, X_COUNTS)["y"]
    np.testing.assert_array_equal(at_new.latent_mean, given.latent_mean)


@pytest.mark.parametrize("predict", [by_samples, by_arviz])
def test_moments_are_totals_over_the_draws(predict):
    at_new = predict(X_COUNTS)
    means, variances = moments_by_draw(X_COUNTS)
    np.testing.assert_allclose(at_new.latent_mean, means.mean(0), atol=1e-6)
    total = variances.mean(0) + means.var(0)
    np.testing.assert_allclose(at_new.latent_variance, total, atol=1e-6)
    rates = np.exp(means + variances / 2)
    np.testing.assert_allclose(at_new.mean, rates.mean(0), rtol=1e-5)
    # Var y = E rate + E rate² − (E rate)², within and between the draws.
    squares = np.exp(2 * means + 2 * variances)
    exact = rates.mean(0) + squares.mean(0) - rates.mean(0) ** 2
    np.testing.assert_allclose(at_new.variance, exact, rtol=1e-5)


def log_density_by_draw(x, y):
    """log E Poisson(y | exp(f)) of each draw, on a fine grid, [draws, N]."""
    means, variances = moments_by_draw(x)
    grid = np.linspace(-9, 9, 3001)
    f = means[..., None] + np.sqrt(variances)[..., None] * grid
    terms = poisson.logpmf(y[:, None], np.exp(f)) + norm.logpdf(grid)
    return logsumexp(terms, axis=-1) + np.log(grid[1] - grid[0])


def test_log_prob_averages_probabilities_over_the_draws():
    each = log_density_by_draw(X_COUNTS, Y_COUNTS)
    exact = logsumexp(each, axis=0) - np.log(len(each))
    value = by_samples(X_COUNTS).log_prob(Y_COUNTS)
    np.testing.assert_allclose(value, exact, atol=1e-4)
    assert np.all(exact > each.mean(0) + 0.01)  # the mean of logs is another number


def test_latent_covariance_has_the_spread_of_the_draws():
    covariance = by_samples(X_COUNTS).latent_covariance
    draws = draw_arrays()
    joint, means = [], []
    for v, variance, lengthscale in zip(
        draws["f"], draws["variance"], draws["lengthscale"]
    ):
        a, _ = projection(X_COUNTS, z_learned(), variance, lengthscale)
        joint.append(rbf(X_COUNTS, X_COUNTS, variance, lengthscale) - a @ a.T)
        means.append(a @ v)
    exact = np.mean(joint, axis=0) + np.cov(np.stack(means).T, bias=True)
    np.testing.assert_allclose(covariance, exact, atol=1e-6)


@pytest.mark.thorough
def test_numbers_of_another_site_or_count_are_others():
    """Programs are found by what determines them: with nothing left out."""
    z, x, y = GAUSSIAN_Z[:2], X_NEW[:3], np.array([0.4, -1.0, 2.0])

    def model(x):
        level = numpyro.sample("level", dist.Normal(0.0, 2.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(VARIANCE, LENGTHSCALE), z)
        gp.observe("near", gp.likelihoods.Gaussian(0.1), f(x) + level)
        gp.observe("far", gp.likelihoods.Gaussian(2.0), f(x) - level)

    def guide(x):
        numpyro.sample("level", dist.Normal(0.5, 0.3))
        numpyro.sample("f", dist.Delta(jnp.ones(2), event_dim=1))

    a, residual = projection(x, z, VARIANCE, LENGTHSCALE)
    mean = a.sum(axis=1)
    found = gp.predict(model, {"f": np.ones((1, 2)), "level": np.array([0.7])}, x)
    for name, shift, scale in (("near", 0.7, 0.1), ("far", -0.7, 2.0)):
        exact = norm.logpdf(y, mean + shift, np.sqrt(residual + scale**2))
        np.testing.assert_allclose(found[name].log_prob(y), exact, rtol=1e-9)
    # With one draw of the level there is no spread of it, with more there is.
    for n, spread in ((1, 0.0), (8, 0.3**2)):
        options = {"key": random.key(1), "num_draws": n}
        at_new = gp.predict(model, (guide, {}), x, **options)["near"]
        more = at_new.latent_variance - residual
        np.testing.assert_allclose(more, more[0], rtol=1e-6, atol=1e-9)
        assert more[0] == pytest.approx(spread, rel=0.9, abs=1e-9)


def test_draws_visit_all_posterior_draws_alike():
    means, variances = moments_by_draw(X_COUNTS)
    n = 6000
    values = np.asarray(by_samples(X_COUNTS).sample_latent(random.key(3), n))
    total = variances.mean(0) + means.var(0)
    # The draws are visited in turn: only the variance within them is left to chance.
    error = np.abs(values.mean(0) - means.mean(0))
    assert np.all(error < 5 * np.sqrt(variances.mean(0) / n) + 1e-9)
    fourth = np.mean((values - means.mean(0)) ** 4, axis=0) - total**2
    error = np.abs(np.square(values - means.mean(0)).mean(0) - total)
    assert np.all(error < 5 * np.sqrt(fourth / n) + 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "chunk_size", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 100))]
)
def test_chunks_change_no_number(chunk_size):
    one = by_samples(X_COUNTS)
    other = by_samples(X_COUNTS, chunk_size=chunk_size)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-10)
    np.testing.assert_allclose(
        one.log_prob(Y_COUNTS), other.log_prob(Y_COUNTS), rtol=1e-8
    )


# ---------------------------------------------------------------------- classes


def at_point(model, v):
    return gp.predict(model, {"f": jnp.asarray(v)[None]}, GAUSSIAN_X)["y"]


V = np.array([1.0, -0.7, 0.4, 1.6])


def test_probability_of_one():
    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(VARIANCE, LENGTHSCALE), GAUSSIAN_Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Bernoulli("probit"), f(x), obs=y)

    at_new = at_point(model, V)
    a, residual = projection(GAUSSIAN_X, GAUSSIAN_Z, VARIANCE, LENGTHSCALE)
    exact = norm.cdf(a @ V / np.sqrt(1 + residual))
    np.testing.assert_allclose(at_new.probs, exact, atol=1e-7)
    np.testing.assert_allclose(at_new.mean, exact, atol=1e-7)
    labels = np.arange(15) % 2
    np.testing.assert_allclose(
        at_new.log_prob(labels), np.log(np.where(labels, exact, 1 - exact)), atol=1e-6
    )


@pytest.mark.thorough
def test_probabilities_of_three_classes():
    def model(x, y=None):
        kernel = gp.kernels.RBF(VARIANCE, LENGTHSCALE)
        f = gp.sparse_gp("f", kernel, GAUSSIAN_Z, num_outputs=3)
        with numpyro.plate("data", len(x)):
            gp.observe("y", lambda f: dist.Categorical(logits=f), f(x), obs=y)

    v = np.stack([V, -V, 0.3 * V])
    at_new = at_point(model, v)
    assert at_new.probs.shape == (15, 3)
    assert at_new.latent_mean.shape == (15, 3)
    np.testing.assert_allclose(at_new.probs.sum(-1), 1.0, atol=1e-3)
    # Three outputs with independent residuals: an average over draws of them.
    a, residual = projection(GAUSSIAN_X, GAUSSIAN_Z, VARIANCE, LENGTHSCALE)
    noise = np.random.default_rng(0).normal(size=(20_000, 15, 3))
    f = a @ v.T + np.sqrt(np.maximum(residual, 0))[:, None] * noise
    exact = softmax(f, axis=-1).mean(0)
    np.testing.assert_allclose(at_new.probs, exact, atol=5 * 0.5 / np.sqrt(20_000))


# ------------------------------------------------------------ guides that draw


def random_guide():
    guide = gp.AutoGaussian(counts_model, rest=AutoNormal)
    params = {
        "auto_f_loc": jnp.linspace(0.0, 1.0, 5),
        "auto_f_scale_tril": 0.3 * jnp.eye(5),
        "variance_auto_loc": jnp.asarray(0.2),
        "variance_auto_scale": jnp.asarray(0.3),
        "lengthscale_auto_loc": jnp.asarray(-0.1),
        "lengthscale_auto_scale": jnp.asarray(0.2),
        "z": jnp.asarray(COUNTS_Z),
    }
    return guide, params


def test_random_guide_needs_a_key():
    with pytest.raises(ValueError, match=r"draws random numbers.*pass key="):
        gp.predict(counts_model, random_guide(), X_COUNTS)


def test_what_a_guide_lacks_is_drawn_apart_from_what_it_draws():
    """One key for guide and model would give ``other`` the draw of ``level``."""

    def guide(*args):
        numpyro.sample("level", dist.Normal(0.0, 1.0))
        qv = dist.Normal(jnp.zeros(len(GAUSSIAN_Z)), 0.1)
        numpyro.sample("f", qv.to_event(1))

    def model(x, y=None):
        other, level = (
            numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("other", "level")
        )
        f = gp.sparse_gp("f", gp.kernels.RBF(1e-4, 1.0), GAUSSIAN_Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x) + level + other, obs=y)

    options = {"key": random.key(3), "num_draws": 400}
    found = gp.predict(model, (guide, {}), X_NEW, **options)["y"].latent_variance
    np.testing.assert_allclose(found, 2.0, atol=0.6)  # four standard errors, not 4


@pytest.mark.parametrize("make", [random.key, random.PRNGKey])
def test_a_key_among_the_arguments_of_the_model_is_named(make):
    with pytest.raises((TypeError, ValueError)) as caught:
        predict_gaussian(make(0))
    assert "predict takes the key by name" in "".join(caught.value.__notes__)
    with pytest.raises(ValueError) as caught:
        predict_gaussian(X_NEW[:, 0])
    assert "the key by name" not in "".join(getattr(caught.value, "__notes__", []))


def test_a_model_that_asks_for_keys_is_averaged_over_them():
    """As dropout does: half of the draws predict at zero, half at the inputs."""

    def dropped(x, y=None):
        gaussian_model(x * random.bernoulli(numpyro.prng_key()), y)

    posterior = (gp.AutoGaussian(gaussian_model), gaussian_params())
    with pytest.raises(ValueError, match="keys for which the model asks itself"):
        gp.predict(dropped, posterior, X_NEW)
    options = {"key": random.key(3), "num_draws": 200}
    mean = gp.predict(dropped, posterior, X_NEW, **options)["y"].mean
    at_x, at_zero = (predict_gaussian(x).mean for x in (X_NEW, 0 * X_NEW))
    share = (mean[0] - at_zero[0]) / (at_x[0] - at_zero[0])
    assert 0.35 < share < 0.65
    np.testing.assert_allclose(mean, share * at_x + (1 - share) * at_zero, atol=1e-9)


@pytest.mark.thorough
def test_random_guide_is_averaged_over_its_draws():
    at_new = gp.predict(
        counts_model, random_guide(), X_COUNTS, key=random.key(0), num_draws=40
    )["y"]
    assert at_new.mean.shape == (6,)
    again = gp.predict(
        counts_model, random_guide(), X_COUNTS, key=random.key(0), num_draws=40
    )["y"]
    np.testing.assert_array_equal(at_new.mean, again.mean)
    other = gp.predict(
        counts_model, random_guide(), X_COUNTS, key=random.key(1), num_draws=40
    )["y"]
    assert np.all(at_new.latent_variance != other.latent_variance)
    np.testing.assert_allclose(at_new.mean, other.mean, rtol=0.2)


# ------------------------------------------------------------------------ errors


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("posterior", [3, None, {}, (1, 2), "fit", [1.0]])
def test_other_posteriors_are_refused(posterior):
    with pytest.raises(ValueError, match="posterior must be what gp"):
        gp.predict(counts_model, posterior, X_COUNTS)


def test_draws_without_the_process_are_refused():
    draws = {"variance": np.ones(3), "lengthscale": np.ones(3)}
    with pytest.raises(
        ValueError, match=r"no draws of \['f'\], only of \['lengthscale', 'variance'\]"
    ):
        gp.predict(counts_model, draws, X_COUNTS)


def test_parameters_that_would_keep_their_initial_values_are_refused():
    guide = lambda x, y=None: numpyro.sample(  # noqa: E731
        "f", dist.Normal(numpyro.param("loc", jnp.zeros(5)), 0.1).to_event(1)
    )
    for params in ({}, {"z": COUNTS_Z}, {"z": COUNTS_Z, "auto_loc": np.ones(5)}):
        with pytest.raises(ValueError, match=r"no value of .*'loc'.*of the model"):
            gp.predict(counts_model, (guide, params), X_COUNTS, key=random.key(0))
    with pytest.raises(ValueError, match=r"no value of \['z'\], only of \['Z'\]"):
        gp.predict(counts_model, draw_arrays(), X_COUNTS, params={"Z": COUNTS_Z})
    # Draws of a model whose parameters are not learned need none.
    gp.predict(counts_model, draw_arrays(), X_COUNTS)


def test_draws_grouped_by_chain_are_joined_first():
    draws = {name: np.stack([d, d]) for name, d in draw_arrays().items()}
    with pytest.raises(ValueError, match=r"grouped by chain, .*: mcmc.get_samples\(\)"):
        gp.predict(counts_model, draws, X_COUNTS)


def test_a_chain_selected_without_its_axis_is_refused():
    draws = {name: np.stack([d, d]) for name, d in draw_arrays().items()}
    alone = to_arviz(draws).sel(chain=0)
    with pytest.raises(ValueError, match=r"no axis 'chain'.*draws\.sel\(chain=\[0\]\)"):
        gp.predict(counts_model, alone, X_COUNTS)


def test_draws_without_a_hyperparameter_are_refused():
    draws = draw_arrays()
    del draws["lengthscale"]
    with pytest.raises(ValueError, match=r"no draws of .*\['lengthscale'\]"):
        gp.predict(counts_model, draws, X_COUNTS)


def test_model_without_observe_site_is_refused():
    def model(x):
        gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), COUNTS_Z)

    with pytest.raises(ValueError, match="no observe site to predict"):
        gp.predict(model, {"f": np.ones((1, 5))}, X_COUNTS)


def test_log_prob_checks_its_data():
    at_new = by_samples(X_COUNTS)
    with pytest.raises(
        ValueError, match=r"have \(6, 1\)\. It would broadcast to \[N, N"
    ):
        at_new.log_prob(Y_COUNTS[:, None])
    with pytest.raises(
        ValueError, match=r"must have shape \(6,\) and have \(6, 2\)\.(\n|$)"
    ):
        at_new.log_prob(np.ones((6, 2)))
    with pytest.raises(ValueError, match=r"must have shape \(6,\) and have \(5,\)"):
        at_new.log_prob(Y_COUNTS[:5])
    with pytest.raises(ValueError, match=r"the integers 0, 1, 2.*among them is -1"):
        at_new.log_prob(-np.ones(6))


def test_quantiles_inside_of_a_trace_are_refused():
    for of in ("data", "latent"):
        with pytest.raises(ValueError, match=r"inside of jax\.jit.*\.sample\(key, n\)"):
            jax.jit(lambda x, of=of: by_samples(x).quantile(0.5, of=of))(X_COUNTS)
    at_new = by_samples(X_COUNTS)
    with pytest.raises(ValueError, match=r"inside of jax\.jit"):
        jax.grad(lambda p: at_new.quantile(p)[0])(0.5)


class _WithoutMean(dist.Normal):
    @property
    def mean(self):
        raise NotImplementedError


def _two_sites(likelihood):
    def model(x, y=None, z=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), COUNTS_Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)
        with numpyro.plate("others", len(x) - 3):
            gp.observe("z", likelihood, f(x[3:]) + 1.0, obs=z)

    draws = {"f": np.random.default_rng(0).normal(size=(6, 5))}
    return gp.predict(model, draws, COUNTS_X)


@pytest.mark.thorough
def test_moments_of_all_sites_come_from_one_run_of_the_model(monkeypatch):
    runs, over_draws = [], PosteriorModel.over_draws

    def counted(self, *args, **kwargs):
        runs.append(args[2])
        return over_draws(self, *args, **kwargs)

    monkeypatch.setattr(PosteriorModel, "over_draws", counted)
    found = _two_sites(gp.likelihoods.Gaussian(0.3))
    together = [(at.mean, at.variance, at.latent_mean) for at in found.values()]
    assert len(runs) == 1
    for at, values in zip(found.values(), together, strict=True):
        alone = at._sites.over_draws(at._name, "m", moments_of, averages.total_moments)
        for name, value in zip(("mean", "variance", "latent_mean"), values):
            np.testing.assert_allclose(value, alone[name], rtol=1e-12)


@pytest.mark.thorough
def test_a_site_without_moments_leaves_those_of_the_others():
    found = _two_sites(lambda f: _WithoutMean(f, 0.3))
    assert np.all(found["y"].mean > 0.0)
    with pytest.raises(ValueError, match=r"site 'z' is not known: .* a _WithoutMean,"):
        _ = found["z"].mean
    assert found["z"].log_prob(np.zeros(17)).shape == (17,)


def test_classes_whose_number_varies_have_no_probabilities():
    counts = np.arange(3, 12)

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
        with numpyro.plate("data", len(x)):
            likelihood = lambda f: dist.Binomial(counts, logits=f)  # noqa: E731
            gp.observe("y", likelihood, f(x), obs=y)

    found = gp.predict(model, {"f": jnp.zeros((2, len(GAUSSIAN_Z)))}, X_NEW)["y"]
    np.testing.assert_allclose(found.mean, counts / 2, rtol=0.2)
    assert found.probs is None


def test_concatenated_inputs_are_predicted_in_one_piece():
    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
        both = gp.features.Concatenated((gp.features.Points(x),) * 2)
        with numpyro.plate("data", len(both)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(both), obs=y)

    x = np.linspace(-1.0, 1.0, 1300)[:, None]
    draws = {"f": jnp.ones((1, len(GAUSSIAN_Z)))}
    found = gp.predict(model, draws, x)["y"].mean
    np.testing.assert_allclose(found[:1300], found[1300:], rtol=1e-5)


def test_what_svi_returns_is_predicted_from():
    guide = gp.AutoGaussian(gaussian_model)
    svi = SVI(gaussian_model, guide, optax.adam(0.1), gp.MarginalELBO())
    data = jnp.asarray(GAUSSIAN_X), jnp.asarray(GAUSSIAN_Y)
    result = svi.run(random.key(0), 3, *data, progress_bar=False)
    found = gp.predict(gaussian_model, (guide, result), X_NEW)["y"].mean
    expected = gp.predict(gaussian_model, (guide, result.params), X_NEW)["y"].mean
    np.testing.assert_array_equal(found, expected)


def test_no_two_things_of_a_draw_come_from_one_key():
    chosen = every_draw(5)(random.key(3))
    of_the_first = random.split(chosen.run_keys[0], 5)  # as the run of a draw does
    keys = jnp.concatenate([of_the_first, chosen.run_keys, chosen.keys])
    assert len(np.unique(random.key_data(keys), axis=0)) == 15


def test_a_model_with_other_names_is_refused():
    def named(name):
        def model(x, y=None):
            scale = numpyro.sample(name, dist.LogNormal())
            f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
            with numpyro.plate("data", len(x)):
                gp.observe("y", gp.likelihoods.Gaussian(scale), f(x), obs=y)

        return model

    model, renamed = named("scale"), named("sigma")
    options = {"num_steps": 2, "progress": False}
    fit = gp.fit(random.key(0), model, None, GAUSSIAN_X, GAUSSIAN_Y, **options)
    key = random.key(1)
    for ask in (
        lambda: gp.predict(renamed, fit, X_NEW, key=key)["y"].mean,
        lambda: gp.draw_functions(key, renamed, fit, X_NEW),
        lambda: gp.posterior_predictive(key, renamed, fit, X_NEW),
    ):
        with pytest.raises(
            ValueError, match=r"\['sigma'\], and .* \['scale'\], of which"
        ):
            ask()


@pytest.mark.thorough
def test_a_new_latent_site_is_drawn_from_its_prior():
    def model(x, y=None, *, is_new=False):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
        g = gp.sparse_gp("g", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
        shift = numpyro.sample("shift", dist.Normal(50.0, 0.1)) if is_new else 0.0
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x) + g(x) + shift, obs=y)

    guide = gp.AutoCoupled(model)  # it has a site of its own, for both
    options = {"num_steps": 2, "progress": False}
    fit = gp.fit(random.key(0), model, guide, GAUSSIAN_X, GAUSSIAN_Y, **options)
    found = gp.predict(model, fit, X_NEW, is_new=True, key=random.key(1))["y"]
    np.testing.assert_allclose(found.mean, 50.0, atol=3.0)


def test_rows_drawn_inside_of_the_model_are_no_prediction():
    def drawn(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
        with numpyro.plate("data", len(x), subsample_size=4) as rows:
            y = None if y is None else y[rows]
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x[rows]), obs=y)

    def batched(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
        with numpyro.plate("data", 1000, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)

    draws = {"f": jnp.ones((2, len(GAUSSIAN_Z)))}
    with pytest.raises(ValueError, match="takes 4 of 9 rows, different ones in every"):
        gp.predict(drawn, draws, jnp.asarray(X_NEW))
    assert gp.predict(batched, draws, X_NEW)["y"].mean.shape == (9,)


def test_deterministic_sites_are_computed_at_the_new_inputs():
    """Not taken from the draws, which have them at the inputs of the data."""

    def model(x, y=None):
        slopes = numpyro.sample("slopes", dist.Normal(0.0, 3.0), sample_shape=(2,))
        trend = numpyro.deterministic("trend", jnp.sum(slopes) * x[:, 0])
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x) + trend, obs=y)

    samples = {"slopes": 2.5 + np.zeros((3, 2)), "f": np.zeros((3, len(GAUSSIAN_Z)))}
    samples["trend"] = 5.0 * GAUSSIAN_X[:, 0] + np.zeros((3, 1))
    far = GAUSSIAN_X + 10.0
    found = gp.predict(model, samples, far)["y"].mean
    np.testing.assert_allclose(found, 5.0 * far[:, 0], rtol=1e-5)
    paths = gp.draw_functions(random.key(0), model, samples, far)["y"]
    assert np.max(np.abs(paths - 5.0 * far[:, 0])) < 6.0


@pytest.mark.thorough
@pytest.mark.parametrize("rest", [None, AutoNormal])
def test_a_latent_value_of_every_datum_belongs_to_these_data(rest):
    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
        with numpyro.plate("data", len(x)):
            extra = numpyro.sample("extra", dist.Normal(0.0, 2.0))
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x) + extra, obs=y)

    v = np.zeros((2000, len(GAUSSIAN_Z)))
    posterior = {"f": v, "extra": np.zeros((2000, len(GAUSSIAN_X)))}
    if rest is not None:
        guide = gp.AutoGaussian(model, rest=rest)
        options = {"num_steps": 2, "progress": False}
        posterior = gp.fit(
            random.key(0), model, guide, GAUSSIAN_X, GAUSSIAN_Y, **options
        )
    # Before the model adds 40 values to 4 rows of f.
    with pytest.raises(ValueError, match=r"needs \(4,\).*draws that leave it out"):
        gp.predict(model, posterior, GAUSSIAN_X[:4], key=random.key(1))
    anew = gp.predict(model, {"f": v}, GAUSSIAN_X[:4], key=random.key(1))["y"]
    without = gp.predict(
        numpyro.handlers.condition(model, data={"extra": jnp.zeros(4)}),
        {"f": v[:1]}, GAUSSIAN_X[:4],
    )["y"]  # fmt: skip
    more = anew.latent_variance - without.latent_variance
    np.testing.assert_allclose(more, 4.0, rtol=0.15)


@pytest.mark.parametrize(
    "rest",
    [
        None,
        pytest.param(AutoDelta, marks=pytest.mark.thorough),
        pytest.param(AutoNormal, marks=pytest.mark.thorough),
    ],
)
def test_new_groups_are_not_the_last_one(rest):
    def model(x, group, num_groups, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), GAUSSIAN_Z)
        with numpyro.plate("groups", num_groups):
            level = numpyro.sample("level", dist.Normal(0.0, 3.0))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x) + level[group], obs=y)

    posterior = {"f": np.zeros((3, len(GAUSSIAN_Z))), "level": np.zeros((3, 2))}
    if rest is not None:
        seen = np.arange(len(GAUSSIAN_X)) % 2
        posterior = gp.fit(
            random.key(0), model, gp.AutoGaussian(model, rest=rest), GAUSSIAN_X, seen,
            2, GAUSSIAN_Y, num_steps=2, progress=False,
        )  # fmt: skip
    key = None if rest is None else random.key(1)
    few = GAUSSIAN_X[:4], np.arange(4) % 2
    assert gp.predict(model, posterior, *few, 2, key=key)["y"].mean.shape == (4,)
    with pytest.raises(ValueError, match=r"shape \(2,\), and the model needs \(4,\)"):
        gp.predict(model, posterior, GAUSSIAN_X[:4], np.arange(4), 4, key=key)
