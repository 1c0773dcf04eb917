"""Two layers: inner draws, every inference, and the limits that are known."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.util import log_density
from scipy.stats import norm

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from svgp_ppl.handlers import replay_distributions
from svgp_ppl.layer_noise import evenly_spread, layer_noise
from svgp_ppl.mcmc.target import Target
from tests.models import Walk, projection

X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sign(X[:, 0]) + 0.1 * np.cos(17.0 * np.arange(12))
Z_INNER = np.linspace(-1.0, 1.0, 4)[:, None]
Z_OUTER = np.array([[-1.0, 0.5], [0.0, 0.0], [1.0, -0.5], [0.4, 0.8]])
KEYS = random.split(random.key(0), 3)


def deep_model(x, y=None):
    """x [N, 1] -> two inner components -> one outer."""
    inner = gp.sparse_gp(
        "inner",
        gp.kernels.RBF(0.3, 0.8),
        Z_INNER,
        num_outputs=2,
        mean=lambda x: jnp.tile(x, 2),
    )
    h = gp.propagate("h", inner(x))
    outer = gp.sparse_gp("outer", gp.kernels.RBF(1.0, 0.9), Z_OUTER)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.2), outer(h), obs=y)


def posterior():
    """A guide and its parameters, away from the prior."""
    return gp.AutoGaussian(deep_model), {
        "auto_inner_loc": jnp.zeros((2, 4)),
        "auto_inner_scale_tril": jnp.tile(0.5 * jnp.eye(4), (2, 1, 1)),
        "auto_outer_loc": jnp.array([-1.0, 0.0, 1.0, 0.3]),
        "auto_outer_scale_tril": 0.1 * jnp.eye(4),
    }


def held_at(qv):
    """The inner latent's draws and moments under a q(v) over its v."""

    def model(x):
        inner = gp.sparse_gp("inner", gp.kernels.RBF(0.3, 0.8), Z_INNER, num_outputs=2)
        latent = inner(x)
        moments.append((latent.mean, latent.variance))
        return gp.propagate("h", latent)

    moments = []
    site = handlers.seed(lambda: numpyro.sample("inner", qv), random.key(0))

    def draw(key):
        guide_trace = handlers.trace(site).get_trace()
        held = replay_distributions(handlers.seed(model, key), guide_trace)
        return held(X), moments[-1]

    draws, moments_of_all = jax.jit(jax.vmap(draw))(random.split(random.key(1), 4000))
    return np.asarray(draws), [np.asarray(moment)[0] for moment in moments_of_all]


def test_draws_of_a_layer_have_its_mean_and_variance():
    # 2 × 24 comparisons at 5 standard errors: fails by chance once in 3e4 keys.
    loc = np.array([[0.5, -1.0, 1.5, 0.2], [1.0, 0.0, -0.7, 0.9]])
    scale_tril = 0.4 * np.eye(4) + 0.3 * np.tril(np.ones((4, 4)))
    qv = dist.MultivariateNormal(loc, scale_tril=scale_tril).to_event(1)
    draws, (mean, variance) = held_at(qv)
    assert draws.shape == (4000, 12, 2)
    a, residual = projection(X, Z_INNER, 0.3, 0.8)
    np.testing.assert_allclose(mean, a @ loc.T, atol=1e-6)
    spread = np.sum((a @ scale_tril) ** 2, axis=1)
    np.testing.assert_allclose(variance[:, 0], residual + spread, atol=1e-6)
    assert np.all(np.abs(draws.mean(0) - mean) < 5 * np.sqrt(variance / 4000))
    error = np.abs(np.square(draws - mean).mean(0) - variance)
    assert np.all(error < 5 * variance * np.sqrt(2 / 4000))
    # One normal per datum and component: no correlation between them.
    flat = (draws - np.asarray(mean)).reshape(4000, -1)
    correlation = np.corrcoef(flat.T) - np.eye(24)
    assert np.max(np.abs(correlation)) < 5.5 / np.sqrt(4000)


def test_components_of_a_layer_that_share_a_process_are_drawn_together():
    # 6 × 4 comparisons at 5 standard errors.
    held = {"f": jnp.ones(4), "g": jnp.zeros(4)}

    def layer(x):
        f, g = (gp.sparse_gp(n, gp.kernels.RBF(0.3, 0.4), Z_INNER)(x) for n in "fg")
        latent = gp.stack([f + g, f])
        return gp.propagate("h", latent), latent.mean, latent.covariance

    def draw(key):
        return handlers.seed(handlers.substitute(layer, held), key)(X[::2])

    keys = random.split(random.key(2), 4000)
    draws, mean, covariance = map(np.asarray, jax.jit(jax.vmap(draw))(keys))
    apart, covariance = draws - mean, covariance[0]
    found = np.einsum("snq,snr->nqr", apart, apart) / 4000
    variance = np.einsum("nqq->nq", covariance)
    error = np.sqrt(variance[:, :, None] * variance[:, None] * 2 / 4000)
    assert np.all(np.abs(found - covariance) < 5 * error)
    np.testing.assert_allclose(covariance[:, 0, 1], variance[:, 1])
    np.testing.assert_allclose(variance[:, 0], 2 * variance[:, 1])


def test_layer_without_variance_is_plain_composition():
    def composed(x, y, variance):
        inner = gp.sparse_gp(
            "inner",
            gp.kernels.RBF(variance, 0.8),
            Z_INNER,
            mean=lambda x: jnp.sin(x[:, 0]),
        )
        h = gp.propagate("h", inner(x))
        outer = gp.sparse_gp("outer", gp.kernels.RBF(1.0, 0.9), Z_INNER)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.2), outer(h), obs=y)

    def plain(x, y):
        outer = gp.sparse_gp("outer", gp.kernels.RBF(1.0, 0.9), Z_INNER)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.2), outer(jnp.sin(x)), obs=y)

    v = {"inner": np.zeros(4), "outer": np.array([1.0, -0.5, 0.3, 0.8])}
    prior = np.sum(norm.logpdf(v["inner"]))
    errors = []

    @jax.jit
    def densities(variance):
        run = handlers.seed(composed, random.key(0))
        exact, _ = log_density(plain, (X, Y), {}, {"outer": v["outer"]})
        return log_density(run, (X, Y, variance), {}, v)[0], exact

    for variance in (1e-4, 1e-10):
        value, exact = map(float, densities(variance))
        errors.append(abs(value - prior - exact))
    assert errors[1] < 1e-4 < errors[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(gp.MarginalELBO(num_particles=2), marks=pytest.mark.slow),
        Trace_ELBO(2),
    ],
)
def test_deep_model_under_svi(loss):
    guide = gp.AutoGaussian(deep_model)
    svi = SVI(deep_model, guide, optax.adam(0.03), loss=loss)
    fitted = svi.run(KEYS[0], 200, X, Y, progress_bar=False)
    assert set(fitted.params) == {
        "auto_inner_loc",
        "auto_inner_scale_tril",
        "auto_outer_loc",
        "auto_outer_scale_tril",
    }
    assert fitted.params["auto_inner_scale_tril"].shape == (2, 4, 4)
    assert np.all(np.isfinite(fitted.losses))
    assert np.mean(fitted.losses[-20:]) < np.mean(fitted.losses[:20]) - 10


def test_bound_of_a_layer_is_drawn_anew_with_each_key():
    guide, params = posterior()
    bound = gp.MarginalELBO()
    losses = [  # each from a program that is traced anew
        jax.jit(lambda key: bound.loss(key, params, deep_model, guide, X, Y))(key)
        for key in (KEYS[0], KEYS[0], KEYS[1])
    ]
    assert losses[0] == losses[1]
    assert abs(losses[0] - losses[2]) > 1e-3


def test_deep_model_is_sampled_and_predicted():
    draws = gp.sample(
        KEYS[1],
        deep_model,
        X,
        Y,
        sampler=Walk(0.02),
        num_chains=2,
        num_warmup=20,
        num_samples=30,
        progress=False,
    )
    values = group(draws, "posterior")
    assert set(values) == {"inner", "outer"}
    assert values["inner"].shape == (2, 30, 2, 4)
    at_new = gp.predict(deep_model, draws, X[:5], key=KEYS[2])["y"]
    assert at_new.mean.shape == (5,)
    assert np.all(at_new.variance > 0.2**2)


def test_density_is_averaged_over_the_nodes():
    target = Target(KEYS[0], deep_model, (X, Y), {}, {}, num_noise_draws=2)
    v = {"inner": 0.1 * jnp.arange(8.0).reshape(2, 4), "outer": jnp.arange(4.0)}

    @jax.jit
    def with_layer_of(number):
        model = evenly_spread(deep_model, target.data.layer_key, number, 2)
        return log_density(model, (X, Y), {}, v)[0]

    each = [with_layer_of(number) for number in range(2)]
    assert len(set(map(float, each))) == 2
    density = jax.jit(target.logdensity_fn)(v, target.data)
    np.testing.assert_allclose(density, np.mean(each), rtol=1e-12)


def test_noise_of_layers_is_spread_evenly_and_normal():
    """Over S runs one draw in each of S intervals, over keys N(0, I) between data."""
    number, shape = 16, (2, 3)

    @jax.jit
    @jax.vmap
    def layers(key):
        def layers_of(of_run):
            with evenly_spread(None, key, of_run, number):
                two = [layer_noise(s, jnp.float64) for s in (shape, shape[:1])]
            return jnp.column_stack(two)

        return jax.vmap(layers_of)(jnp.arange(number))

    once = evenly_spread(lambda: layer_noise(shape, float), KEYS[0], 1, number)
    np.testing.assert_array_equal(once(), once())
    noise = np.asarray(layers(random.split(KEYS[0], 4000)))  # [keys, S, N, 3 + 1]
    places = np.sort(np.floor(number * norm.cdf(noise)), axis=1)
    strata = np.arange(number)[:, None, None]
    np.testing.assert_array_equal(places, np.broadcast_to(strata, places.shape))
    assert not np.allclose(noise[0, :, :, 0], noise[0, :, :, 1])
    # Together in both layers: the mean of a product is nearer to 0 than by chance.
    products = np.mean(noise[..., 0] * noise[..., 3], axis=1)
    assert np.sqrt(np.mean(products**2)) < 0.7 / np.sqrt(number)
    for run in (0, 5):
        flat = noise[:, run].reshape(4000, -1)
        covariance = flat.T @ flat / 4000
        np.testing.assert_allclose(covariance, np.eye(8), atol=5 / np.sqrt(4000))
        np.testing.assert_allclose(flat.mean(axis=0), 0.0, atol=4 / np.sqrt(4000))
        np.testing.assert_allclose(np.mean(flat**4, axis=0), 3.0, atol=1.0)


def test_prediction_of_few_draws_is_near_the_integral_over_the_layer():
    """By tensor Gauss–Hermite over both inner components."""
    qv_inner, qv_outer = 0.5, 0.1
    a, residual = projection(X, Z_INNER, 0.3, 0.8)
    scale = np.sqrt(residual + qv_inner**2 * np.sum(a**2, axis=1))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 1, 2)
    h = X + scale[:, None] * grid  # [nodes, N, 2]
    a, residual = projection(h.reshape(-1, 2), Z_OUTER, 1.0, 0.9)
    variance = residual + qv_outer**2 * np.sum(a**2, axis=1)
    mean = a @ np.array([-1.0, 0.0, 1.0, 0.3])
    mean, variance = mean.reshape(-1, len(X)), variance.reshape(-1, len(X))
    product = np.outer(weights, weights).ravel() / (2 * np.pi)
    exact = product @ mean
    at_data = gp.predict(deep_model, posterior(), X, key=KEYS[2], num_draws=128)["y"]
    # A quarter of the error of independent draws.
    one = np.sqrt(product @ (mean - exact) ** 2 / 128)
    error = np.sqrt(np.mean(((at_data.latent_mean - exact) / one) ** 2))
    assert error < 0.25
    total = product @ (mean**2 + variance) - exact**2
    np.testing.assert_allclose(at_data.latent_variance, total, rtol=0.02)


@pytest.mark.slow
def test_density_of_many_nodes_is_the_integral_over_the_layer():
    x, y = X[3:4], Y[3:4]
    v = {"inner": 0.3 * jnp.arange(8.0).reshape(2, 4) - 1, "outer": jnp.arange(4.0)}

    # h ~ N(m, s² I) in two dimensions, by tensor Gauss–Hermite.
    a, residual = projection(x, Z_INNER, 0.3, 0.8)
    centre = np.tile(x, 2) + a @ np.asarray(v["inner"]).T
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    h = centre + np.sqrt(residual) * grid
    a, residual = projection(h, Z_OUTER, 1.0, 0.9)
    mean = a @ np.asarray(v["outer"])
    inside = -0.5 * ((y - mean) ** 2 + residual) / 0.2**2 - np.log(
        0.2 * np.sqrt(2 * np.pi)
    )
    product = np.outer(weights, weights).ravel() / (2 * np.pi)
    prior = sum(dist.Normal().log_prob(value).sum() for value in v.values())

    target = Target(KEYS[1], deep_model, (x, y), {}, {}, num_noise_draws=40_000)
    density = target.logdensity_fn(v, target.data) - prior
    # A tenth of the standard error of a mean over independent nodes.
    spread = np.sqrt(product @ (inside - product @ inside) ** 2 / 40_000)
    assert abs(density - product @ inside) < 0.1 * spread


@pytest.mark.slow
def test_log_likelihood_is_averaged_over_the_nodes_in_probability():
    draws = gp.sample(
        KEYS[1],
        deep_model,
        X,
        Y,
        sampler=Walk(0.02),
        num_chains=1,
        num_warmup=1,
        num_samples=2,
        num_noise_draws=4,
        log_likelihood=True,
        progress=False,
    )
    assert "num_blocks" not in draws.posterior.attrs  # the blocks are layers
    came = group(draws, "log_likelihood")["y"][0, 1]
    v = {n: value[0, 1] for n, value in group(draws, "posterior").items()}
    key_target = random.split(KEYS[1], 3)[0]
    target = Target(key_target, deep_model, (X, Y), {}, {}, num_noise_draws=4)

    def density(number):
        model = evenly_spread(deep_model, target.data.layer_key, number, 4)
        run = handlers.substitute(model, data=v)
        site = handlers.trace(run).get_trace(X, Y)["y"]
        return site["fn"].log_predictive(Y)

    each = np.stack([density(number) for number in range(4)])
    np.testing.assert_allclose(came, np.log(np.mean(np.exp(each), axis=0)), rtol=1e-9)


@pytest.mark.thorough
def test_prediction_averages_over_the_draws_of_a_layer():
    with pytest.raises(ValueError, match=r"layers of a deep model.*pass key="):
        gp.predict(deep_model, posterior(), X)
    one, many = (
        gp.predict(deep_model, posterior(), X, key=KEYS[2], num_draws=n)["y"]
        for n in (1, 50)
    )
    # The spread of the inner draws adds to the variance of one of them.
    assert np.mean(many.latent_variance) > np.mean(one.latent_variance) + 0.01


@pytest.mark.slow
def test_posterior_of_few_nodes_is_near_that_of_many():
    # Two runs of 64 nodes differ by 0.06 sd in the means (root mean square over x).
    guide = gp.AutoDeep(deep_model)
    fit = gp.fit(KEYS[0], deep_model, guide, X, Y, num_steps=1000, progress=False)

    def moments(key, num_noise_draws, num_samples):
        draws = gp.sample(
            key,
            deep_model,
            X,
            Y,
            init=fit,
            num_noise_draws=num_noise_draws,
            num_warmup=300,
            num_samples=num_samples,
            progress=False,
        )
        at_data = gp.predict(deep_model, draws, X, key=KEYS[2])["y"]
        return np.asarray(at_data.latent_mean), np.sqrt(at_data.latent_variance)

    long_mean, long_sd = moments(KEYS[0], 64, 1000)
    mean, sd = moments(KEYS[1], 4, 500)
    assert np.sqrt(np.mean(np.square((mean - long_mean) / long_sd))) < 0.3
    assert np.all(np.abs(np.log(sd / long_sd)) < 0.25)


def test_covariance_between_inputs_of_a_deep_model_is_refused():
    at_data = gp.predict(deep_model, posterior(), X, key=KEYS[2], num_draws=2)["y"]
    with pytest.raises(ValueError, match=r"deep model.*draw_functions"):
        _ = at_data.latent_covariance


def test_a_linear_mean_of_whole_numbers():
    x = np.random.default_rng(0).integers(0, 9, size=(20, 3))
    mean = gp.deep.linear_mean(x, 2)
    np.testing.assert_allclose(mean(x), mean(x.astype(float)), rtol=1e-6)
    assert np.any(mean(x) % 1.0 != 0.0)
