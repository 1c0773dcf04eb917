"""draw_functions: the joint law over inputs and sites, from every kind of posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.infer.autoguide import AutoNormal
from scipy.stats import ks_2samp

import svgp_ppl as gp
from svgp_ppl.handlers import as_sample_paths
from svgp_ppl.variational import sample_path, split
from tests.conftest import mostly_double
from tests.models import COUNTS_Z, counts_model, projection
from tests.test_deep import deep_model
from tests.test_deep import posterior as deep_posterior

KERNEL = gp.kernels.RBF(1.3, 0.7)
# Tests in single precision take copies: JAX may have kept such an array in float64.
Z = np.array([[-0.9], [0.1], [0.8], [1.7]])
Z_OTHER = np.array([[-0.5], [0.4], [1.5]])
X = np.array([[-1.2], [0.1], [0.5], [2.6]])
FEW = {"num_features": 100}
METHODS = [("exact", {}), ("pathwise", FEW)]
SLOW = pytest.mark.slow
both_methods = pytest.mark.parametrize(("method", "options"), METHODS)


def agree(draws, mean, covariance, jitter=1e-5):
    """Mean and covariance within 5 standard errors, and the jitter beside them."""
    n, mean = len(draws), np.asarray(mean).reshape(-1)
    draws = np.asarray(draws).reshape(n, -1)
    covariance = np.asarray(covariance).reshape(len(mean), -1)
    spread = np.sqrt(np.diagonal(covariance))
    assert np.all(np.abs(draws.mean(0) - mean) < 5 * spread / np.sqrt(n) + jitter)
    centred = draws - mean
    products = centred[:, :, None] * centred[:, None, :]
    bound = 5 * products.std(0) / np.sqrt(n) + jitter
    assert np.all(np.abs(products.mean(0) - covariance) < bound)


# ------------------------------------- everything a latent is made of, in one model


def rich_model(x, y=None):
    """Two outputs with a mean; noise; a large jitter; differences, sums and mixing."""
    f = gp.sparse_gp(
        "f", KERNEL, Z.copy(), num_outputs=2, mean=lambda x: jnp.sin(x[:, 0])
    )
    noisy = gp.kernels.Matern32(0.8, 0.9) + gp.kernels.White(0.1)
    g = gp.sparse_gp("g", noisy, Z_OTHER.copy(), jitter=0.05)
    at_x, at_next = f(x), f(x + 0.3)
    mixing = np.array([[0.5, -1.0], [1.0, 0.3]])
    both = gp.stack([at_x[..., 0] - at_next[..., 0], at_x[..., 1] + 2.0 * g(x)])
    likelihood = gp.likelihoods.Gaussian(0.1)
    with numpyro.plate("data", len(x)):
        gp.observe("first", likelihood, at_x[..., 0])
        gp.observe("next", likelihood, at_next[..., 0])
        gp.observe("same", likelihood, at_x[..., 0] - f(x)[..., 0] + 0.0 * g(x))
        gp.observe("mixed", lambda f: dist.Normal(f[..., 0], 0.1), mixing @ both)
        everything = gp.stack([at_x[..., 0], at_next[..., 0], mixing @ both])
        gp.observe("all", lambda f: dist.Normal(f[..., 0], 0.1), everything)


def rich_guide(*args):
    """One Gaussian over all whitened values, correlated throughout."""
    size = 2 * len(Z) + len(Z_OTHER)
    rng = np.random.default_rng(5)
    scale_tril = 0.4 * np.tril(rng.normal(size=(size, size)), -1) + 0.5 * np.eye(size)
    qv = dist.MultivariateNormal(rng.normal(size=size), scale_tril=scale_tril)
    joint = numpyro.sample("joint", qv, infer={"is_auxiliary": True})
    shapes = {"f": (2, len(Z)), "g": (len(Z_OTHER),)}
    for name, share in split("joint", qv, joint, shapes).items():
        numpyro.sample(name, share)


@pytest.mark.parametrize("precision", [64, pytest.param(32, marks=SLOW)], indirect=True)
@both_methods
def test_law_of_draws_is_that_of_the_latent(method, options, precision):
    # 4 × (16 + 136) comparisons at 5 standard errors: fails by chance once in 2500
    # keys. Covariances of pathwise draws are exact too: features are drawn anew.
    posterior = (rich_guide, {})
    draws = gp.draw_functions(
        random.key(6),
        rich_model,
        posterior,
        jnp.asarray(X.copy()),
        num_draws=3000,
        method=method,
        **options,
    )
    assert draws["first"].shape == (3000, 4)
    assert draws["all"].shape == (3000, 4, 4)
    assert draws["all"].dtype == f"float{precision}"
    exact = gp.predict(rich_model, posterior, jnp.asarray(X.copy()))["all"]
    jitter = 1e-5 if precision == 64 else 1e-4
    agree(draws["all"], exact.latent_mean, exact.latent_covariance, jitter)
    # All sites see one function.
    tolerance = {"atol": 1e-9 if precision == 64 else 1e-4}
    parts = [draws["first"][..., None], draws["next"][..., None], draws["mixed"]]
    np.testing.assert_allclose(draws["all"], jnp.concatenate(parts, -1), **tolerance)
    np.testing.assert_array_equal(draws["same"], 0.0)


def test_differences_at_a_short_distance():
    # Var(f(x) − f(x')) ≈ σ² δ²/ℓ² = 2.7e-4 σ², where twice the jitter is 2e-6 σ².
    # 2 + 3 comparisons at 5 standard errors: fails by chance once in 3e5 keys.
    def model(x):
        f = gp.sparse_gp("f", KERNEL, Z)
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x) - f(x + 0.02))

    posterior = {"f": np.zeros((1, 4))}
    exact = gp.predict(model, posterior, X[::2])["y"].latent_covariance
    draws = gp.draw_functions(random.key(7), model, posterior, X[::2], num_draws=4000)
    agree(draws["y"], np.zeros(2), exact, jitter=3e-6)


def test_variance_beside_inputs_of_a_much_larger_one():
    # The trend has a variance of 1e10 at the second input: a share of the mean of both
    # would hide that of the first. Fails by chance once in 1e6 keys.
    kernel = gp.kernels.RBF(100.0, 1.0) + gp.kernels.Linear(1.0)
    x = np.array([[6.0], [1e5]])

    def model(x, y=None):
        return one_process(x, kernel)

    draws = gp.draw_functions(random.key(0), model, POINT, x, num_draws=1000)["y"]
    exact = gp.predict(model, POINT, x)["y"].latent_variance
    bound = 5 * np.sqrt(2 / len(draws))
    np.testing.assert_allclose(draws.var(axis=0) / exact, 1.0, atol=bound)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("white", "jitter"), [pytest.param(0.0, 0.5, marks=pytest.mark.slow), (0.5, None)]
)
def test_jitter_and_noise_at_z_are_part_of_the_law(white, jitter):
    # 2 × (2 + 3) comparisons at 5 standard errors: fails by chance once in 1e5 keys.
    def model(x):
        f = gp.sparse_gp("f", KERNEL + gp.kernels.White(white), Z, jitter=jitter)
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x))

    x, v = Z[:2] + 0.01, {"f": np.ones((1, 4))}
    options = {"num_draws": 4000, "method": "pathwise", **FEW}
    draws = gp.draw_functions(random.key(18), model, v, x, **options)["y"]
    exact = gp.predict(model, v, x)["y"]
    agree(draws, exact.latent_mean, exact.latent_covariance)


@pytest.mark.thorough
@both_methods
def test_processes_are_independent_given_their_values(method, options):
    # 1 comparison at 5 standard errors: fails by chance once in 2e6 keys.
    def model(x):
        for name in "fg":
            f = gp.sparse_gp(name, KERNEL, Z)
            gp.observe(f"y_{name}", gp.likelihoods.Gaussian(0.1), f(x))

    options = {"num_draws": 500, "method": method, **options}
    held = {"f": np.zeros((1, 4)), "g": np.zeros((1, 4))}
    draws = gp.draw_functions(random.key(19), model, held, X[-1:], **options)
    correlation = np.corrcoef(draws["y_f"][:, 0], draws["y_g"][:, 0])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(500)


def test_exact_draws_are_as_smooth_as_the_kernel():
    # Third differences of h³ √15/ℓ³ = 1e-5; the jitter's noise would be of 4e-3.
    draws = draw_one(np.linspace(0.0, 1.0, 101)[:, None])["y"]
    assert np.max(np.abs(np.diff(draws, n=3, axis=1))) < 1e-3


@mostly_double
@both_methods
def test_function_passes_through_the_inducing_values(method, options, precision):
    z = Z.copy()

    def model(x):
        f = gp.sparse_gp("f", KERNEL, z, mean=lambda x: jnp.cos(x[:, 0]))
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x))

    v = np.array([1.0, -0.7, 0.4, 1.6])
    draws = gp.draw_functions(
        random.key(8),
        model,
        {"f": v[None]},
        z,
        num_draws=20,
        method=method,
        **options,
    )["y"]
    u = np.cos(z[:, 0]) + np.linalg.cholesky(KERNEL(z)) @ v
    jitter = 1.3 * (1e-6 if precision == 64 else 1e-5)
    assert np.max(np.abs(draws - u)) < 6 * np.sqrt(jitter)


@pytest.mark.slow
def test_pathwise_draws_in_pieces(monkeypatch):
    def model(x):
        f = gp.sparse_gp("f", KERNEL, Z, num_outputs=2)
        gp.observe("y", lambda f: dist.Normal(f[..., 0], 0.1), f(x))

    def draw():
        x, v = np.linspace(-1.0, 2.0, 10)[:, None], {"f": np.ones((2, 2, 4))}
        options = {"method": "pathwise", "num_draws": 2, **FEW}
        return gp.draw_functions(random.key(9), model, v, x, **options)["y"]

    whole = draw()
    for size in (4, 5):
        monkeypatch.setattr(sample_path, "_ROWS_AT_A_TIME", size)
        np.testing.assert_allclose(draw(), whole, rtol=1e-10)


# ------------------------------------------------------------------ other posteriors


def mixture_guide(*args):
    mixing = dist.Categorical(probs=jnp.array([0.3, 0.7]))
    loc = jnp.stack([jnp.full(7, 4.0), jnp.full(7, -4.0)])
    parts = dist.MultivariateNormal(loc, scale_tril=0.1 * jnp.eye(7))
    qv = dist.MixtureSameFamily(mixing, parts)
    joint = numpyro.sample("joint", qv, infer={"is_auxiliary": True})
    for name, share in split("joint", qv, joint, {"f": (4,), "g": (3,)}).items():
        numpyro.sample(name, share)


@pytest.mark.thorough
def test_draws_of_a_mixture_have_its_modes():
    def model(x):
        kernel = gp.kernels.RBF(1.0, 0.3)
        f = gp.sparse_gp("f", kernel, Z)
        g = gp.sparse_gp("g", kernel, Z_OTHER)
        gp.observe("f_at_z", gp.likelihoods.Gaussian(0.1), f(Z))
        gp.observe("sum", gp.likelihoods.Gaussian(0.1), f(x) + g(x))

    x = Z_OTHER
    draws = gp.draw_functions(
        random.key(10), model, (mixture_guide, {}), x, num_draws=1000
    )
    at_z, total = np.asarray(draws["f_at_z"]), np.asarray(draws["sum"])
    # Both signs, never between; a component holds for both processes of a draw.
    assert np.min(np.abs(at_z[:, 0])) > 2.5
    up = at_z[:, 0] > 0
    assert abs(np.mean(up) - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 1000)
    assert np.min(total[up, 0]) > 2 and np.max(total[~up, 0]) < -2


def count_samples(num_draws=6):
    rng = np.random.default_rng(1)
    return {
        "variance": rng.gamma(3.0, 0.5, num_draws),
        "lengthscale": rng.gamma(4.0, 0.3, num_draws),
        "f": rng.normal(size=(num_draws, 5)),
    }


def test_functions_from_draws_visit_each_once():
    samples, params = count_samples(), {"z": COUNTS_Z}
    at_z = gp.draw_functions(
        random.key(11), counts_model, samples, COUNTS_Z, num_draws=6, params=params
    )["y"]
    values = []
    for i in range(6):
        kernel = gp.kernels.RBF(samples["variance"][i], samples["lengthscale"][i])
        values.append(np.linalg.cholesky(kernel(COUNTS_Z)) @ samples["f"][i])
    distance = np.max(np.abs(np.asarray(at_z)[:, None] - np.stack(values)), axis=-1)
    nearest = np.argmin(distance, axis=1)
    assert sorted(nearest) == list(range(6)) and list(nearest) != list(range(6))
    assert np.max(np.min(distance, axis=1)) < 0.02


@pytest.mark.thorough
def test_functions_from_draws_have_their_law():
    # 3 + 6 comparisons at 5 standard errors: fails by chance once in 2e5 keys.
    samples, params = count_samples(), {"z": COUNTS_Z}
    x = np.array([[-0.5], [1.3], [6.0]])
    draws = gp.draw_functions(
        random.key(12), counts_model, samples, x, num_draws=3000, params=params
    )["y"]
    exact = gp.predict(counts_model, samples, x, params=params)["y"]
    agree(draws, exact.latent_mean, exact.latent_covariance)


@pytest.mark.thorough
def test_other_latent_sites_are_drawn_with_the_function():
    guide = gp.AutoGaussian(counts_model, rest=AutoNormal)
    params = {
        "auto_f_loc": jnp.linspace(0.0, 1.0, 5),
        "auto_f_scale_tril": 0.3 * jnp.eye(5),
        "variance_auto_loc": jnp.asarray(0.2),
        "variance_auto_scale": jnp.asarray(1.0),
        "lengthscale_auto_loc": jnp.asarray(-0.1),
        "lengthscale_auto_scale": jnp.asarray(0.2),
        "z": jnp.asarray(COUNTS_Z),
    }
    # Far from the data the function has variance exp(ε + 0.2), ε ~ N(0, 1), of mean
    # e^0.7 and variance (e − 1) e^1.4; 1 comparison at 5 standard errors.
    x = np.array([[60.0]])
    draws = gp.draw_functions(
        random.key(13), counts_model, (guide, params), x, num_draws=4000
    )["y"]
    fourth = 3 * np.exp(0.4 + 2.0)
    error = abs(np.mean(np.square(draws)) - np.exp(0.7))
    assert error < 5 * np.sqrt((fourth - np.exp(1.4)) / 4000)


# --------------------------------------------------------------------- deep models


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "options"), [METHODS[0], pytest.param(*METHODS[1], marks=SLOW)]
)
def test_deep_draws_have_the_law_of_a_single_point(method, options):
    # A two-sample Kolmogorov–Smirnov test: fails by chance once in 1e6 keys.
    x, posterior = np.array([[0.45]]), deep_posterior()
    at_x = gp.predict(deep_model, posterior, x, key=random.key(14), num_draws=3000)
    exact = np.asarray(at_x["y"].sample_latent(random.key(15), 3000))[:, 0]
    options = {"num_draws": 3000, "method": method, **options}
    draws = gp.draw_functions(random.key(16), deep_model, posterior, x, **options)
    assert ks_2samp(np.asarray(draws["y"])[:, 0], exact).pvalue > 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "options"), [METHODS[1], pytest.param(*METHODS[0], marks=SLOW)]
)
def test_deep_draws_are_continuous(method, options):
    x = np.linspace(-0.5, 0.5, 101)[:, None]
    draws = gp.draw_functions(
        random.key(17),
        deep_model,
        deep_posterior(),
        x,
        num_draws=20,
        method=method,
        **options,
    )["y"]
    steps = np.abs(np.diff(draws, axis=1))
    # |f'| is of the order of 1/ℓ² ≈ 3, with the slope of the inner layer; steps of
    # independent draws would be of the order of the standard deviation, 0.3.
    assert np.max(steps) < 0.01 * 12
    assert np.max(np.abs(np.diff(steps, axis=1))) < 0.02
    at_x = gp.predict(deep_model, deep_posterior(), x, key=random.key(0), num_draws=20)
    independent = at_x["y"].sample_latent(random.key(1), 20)
    assert np.max(np.abs(np.diff(independent, axis=1))) > 0.3


def test_functions_have_gradients_in_the_inputs():
    # The next input of an optimisation is where a drawn function is largest.
    def first(x):
        return jnp.sum(draw_one(x, method="pathwise", **FEW)["y"][0])

    slope = jax.jit(jax.grad(first))(jnp.asarray(X))[0, 0]
    h = np.array([[1e-4], [0.0], [0.0], [0.0]])
    high, low = map(jax.jit(first), (X + h, X - h))
    np.testing.assert_allclose(slope, (high - low) / 2e-4, rtol=1e-5)
    within = jax.jit(lambda x: draw_one(x)["y"])(X)
    np.testing.assert_allclose(within, draw_one()["y"], rtol=1e-6)


# ---------------------------------------------------------------------------- errors


def one_process(x, kernel=KERNEL):
    f = gp.sparse_gp("f", kernel, Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x))


POINT = {"f": np.ones((2, 4))}


def draw_one(x=X, posterior=POINT, model=one_process, **options):
    return gp.draw_functions(random.key(0), model, posterior, x, num_draws=2, **options)


@pytest.mark.usefixtures("as_users_call")
def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"method must be one of .*is 'fourier'"):
        draw_one(method="fourier")
    with pytest.raises(ValueError, match="num_features must be a positive integer"):
        draw_one(num_features=0)
    with pytest.raises(ValueError, match="num_draws must be a positive integer"):
        gp.draw_functions(random.key(0), one_process, POINT, X, num_draws=2.0)
    with pytest.raises(ValueError, match="posterior must be what gp"):
        draw_one(posterior=3)


def test_many_rows_are_refused():
    x = np.linspace(0.0, 1.0, 4997)[:, None]
    with pytest.raises(ValueError, match=r"'f'.*5001 rows.*method=\"pathwise\""):
        draw_one(x)


def test_kernel_without_spectrum_needs_exact():
    def model(x):
        return one_process(x, lambda a, b: jnp.exp(-jnp.sum(jnp.abs(a - b))))

    with pytest.raises(ValueError, match=r'FunctionKernel.*use method="exact"'):
        draw_one(model=model, method="pathwise")
    assert draw_one(model=model)["y"].shape == (2, 4)


def test_posterior_of_another_model_is_refused():
    with pytest.raises(ValueError, match=r"no draws of \['f'\]"):
        draw_one(posterior={"g": np.ones((2, 4))})
    with pytest.raises(ValueError, match=r"'f' must have shape \(4,\)"):
        draw_one(posterior={"f": np.ones((2, 5))})

    def guide(x):
        numpyro.sample("g", dist.Normal())

    with pytest.raises(ValueError, match="no site for the process 'f'"):
        draw_one(posterior=(guide, {}))


def test_subsample_is_refused():
    def model(x):
        f = gp.sparse_gp("f", KERNEL, Z)
        with numpyro.plate("data", len(x), subsample_size=2) as rows:
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x[rows]))

    with pytest.raises(ValueError, match="plate 'data' takes 2 of 4 rows"):
        draw_one(model=model)


def test_a_model_of_minibatches_has_functions_at_any_rows():
    def batched(x):
        f = gp.sparse_gp("f", KERNEL, Z)
        with numpyro.plate("data", 1000, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x))

    np.testing.assert_allclose(draw_one(model=batched)["y"], draw_one()["y"])


def test_draws_that_are_not_finite_are_reported():
    with pytest.raises(
        ValueError, match=r"1 of 2 draws of site 'f' are NaN or infinite"
    ):
        draw_one(posterior={"f": np.stack([np.ones(4), np.full(4, np.nan)])})


def test_conditioned_values_are_the_point():
    held = numpyro.handlers.condition(one_process, {"f": jnp.full(4, 0.7)})
    run = as_sample_paths(numpyro.handlers.seed(held, 0), random.key(0), "exact", 1)
    sites = numpyro.handlers.trace(run).get_trace(Z)
    value = sites["y"]["fn"].latent.mean
    a, _ = projection(Z, Z, 1.3, 0.7)
    np.testing.assert_allclose(value, a @ np.full(4, 0.7), atol=0.01)


def test_values_that_do_gives_are_refused():
    """They are out of sight: only p(f | v) would be left out, without a word."""
    held = numpyro.handlers.do(one_process, {"f": jnp.full(4, 0.7)})
    posterior = {"f": np.zeros((2, 4))}
    with pytest.raises(ValueError, match=r"sees \['f'\].*handlers.condition"):
        gp.draw_functions(random.key(0), held, posterior, Z)
