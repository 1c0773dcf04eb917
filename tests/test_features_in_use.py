"""Models with inducing features: fits, draws, predictions, functions, reports."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random

import svgp_ppl as gp
from svgp_ppl import features as ft
from tests.test_sample_paths import agree

K = gp.kernels
X = np.sort(np.random.default_rng(0).uniform(0.0, 3.0, 24))[:, None]
Y = np.sin(2 * X[:, 0]) + 0.1 * np.cos(17.0 * np.arange(24))
EDGES = np.linspace(0.0, 3.0, 25)[:, None]
AREAS = (np.cos(2 * EDGES[:-1, 0]) - np.cos(2 * EDGES[1:, 0])) / 0.25
EXACT = {"optimizer": gp.natural_gradient(1.0), "num_steps": 2, "progress": False}
FEATURES = {
    "fourier": lambda: ft.Fourier(-2.0, 5.0, 8),
    "slopes": lambda: ft.Concatenated(
        (ft.Points(EDGES[::5]), ft.Derivative(EDGES[::5]))
    ),
    "areas": lambda: ft.average(EDGES[:-1:3], EDGES[3::3]),
}
# One kind by default, the others with the slow tests.
mostly_slopes = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name, marks=[pytest.mark.slow] * (name != "slopes"))
        for name, make in FEATURES.items()
    ],
)


def regression(features):
    """Values, slopes and averages of one process."""

    def model(x, y=None):
        f = gp.sparse_gp("f", K.Matern52(1.0, 0.9), features)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.2), f(x), obs=y)

    return model


def fitted(model, *args, key=0, **options):
    options = {**EXACT, **options}
    return gp.fit(random.key(key), model, gp.AutoGaussian(model), *args, **options)


@pytest.mark.slow
@pytest.mark.parametrize("make", FEATURES.values(), ids=FEATURES)
def test_update_is_the_fit_of_all_data(make):
    model = regression(make())
    whole = fitted(model, X, Y)
    part = fitted(model, X[:10], Y[:10])
    new = gp.update(random.key(1), part, X[10:], Y[10:], **EXACT)
    for name in whole.params:
        np.testing.assert_allclose(new.params[name], whole.params[name], atol=3e-3)


def test_update_wants_features_that_stay():
    class Own:
        def __init__(self, z):
            self.z = z

        def __len__(self):
            return len(self.z)

        def k_uu(self, kernel):
            return kernel(self.z)

        def k_uf(self, kernel, x):
            return kernel(self.z, x)

    model = regression(Own(jnp.asarray(X[::4])))
    fit = fitted(model, X, Y)
    points = fitted(regression(X[::4]), X, Y)
    np.testing.assert_allclose(fit.losses[-1], points.losses[-1], atol=1e-4)
    with pytest.raises(ValueError, match="of its features, Own, only k_uu"):
        gp.update(random.key(1), fit, X, Y, **EXACT)


@pytest.mark.parametrize(
    "moving",
    [
        pytest.param("variance", marks=pytest.mark.thorough),
        pytest.param("lengthscale", marks=pytest.mark.thorough),
        "level",
    ],
)
def test_update_wants_fourier_features_that_mean_the_same(moving):
    """With another kernel or mean, the same u is another f."""

    def model(x, y=None):
        at = {"variance": 1.0, "lengthscale": 0.9, "level": 0.0}
        at[moving] = numpyro.sample(moving, dist.Uniform(0.1, 2.0))
        level = at.pop("level")
        f = gp.sparse_gp(
            "f", K.Matern52(**at), FEATURES["fourier"](),
            mean=lambda x: jnp.full(len(x), level),
        )  # fmt: skip
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.2), f(x), obs=y)

    fit = fitted(model, X[:10], Y[:10])
    with pytest.raises(
        ValueError, match=rf"\['{moving}'\] free.*process\(es\) \['f'\]"
    ):
        gp.update(random.key(1), fit, X[10:], Y[10:], **EXACT)
    still = {"freeze": {f"{moving}_auto_loc": np.inf}, **EXACT}
    new = gp.update(random.key(1), fit, X[10:], Y[10:], **still)
    assert new.params[f"{moving}_auto_loc"] == fit.params[f"{moving}_auto_loc"]


@pytest.mark.thorough
@mostly_slopes
def test_functions_have_the_law_of_the_latent(make):
    model = regression(make())
    fit = fitted(model, X, Y)
    x_new = np.array([[0.4], [1.5], [3.3]])
    prediction = gp.predict(model, fit, x_new)["y"]
    draws = gp.draw_functions(random.key(2), model, fit, x_new, num_draws=2000)["y"]
    # 5 standard errors, 3 + 9 comparisons.
    variance = np.var(draws, axis=0)
    np.testing.assert_allclose(
        np.mean(draws, axis=0),
        prediction.latent_mean,
        atol=5 * np.sqrt(np.max(variance) / 2000),
    )
    np.testing.assert_allclose(variance, prediction.latent_variance, rtol=0.16)


def several_kinds(x, centres, y=None, slopes=None, means=None):
    kernel = K.RBF(1.0, 0.9)
    f = gp.sparse_gp("f", kernel, FEATURES["slopes"]())
    likelihood = gp.likelihoods.Gaussian(0.1)
    with numpyro.plate("data", len(x)):
        gp.observe("y", likelihood, f(x), obs=y)
    with numpyro.plate("slopes", len(x)):
        gp.observe("dy", likelihood, f(ft.Derivative(x)), obs=slopes)
    with numpyro.plate("areas", len(centres)):
        seen = f(ft.average(centres - 0.25, centres + 0.25))
        gp.observe("area", likelihood, seen, obs=means)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "pathwise"])
def test_functions_are_joint_over_values_slopes_and_areas(method):
    """Mean and covariance of draws of three sites are those of one posterior."""
    fit = fitted(several_kinds, X[:3], EDGES[4:6], Y[:3], Y[:3], Y[:2])
    at = X[5:7], EDGES[3:5]
    draws = gp.draw_functions(
        random.key(3), several_kinds, fit, *at, num_draws=4000, method=method,
        num_features=100,
    )  # fmt: skip
    stacked = np.concatenate([draws[name] for name in ("y", "dy", "area")], axis=1)
    qv = dist.MultivariateNormal(
        fit.params["auto_f_loc"], scale_tril=fit.params["auto_f_scale_tril"]
    )
    with numpyro.handlers.seed(rng_seed=0):
        f = gp.sparse_gp("f", K.RBF(1.0, 0.9), FEATURES["slopes"]())
    f = type(f)(f.name, f.kernel, f.features, f.factor, qv)
    averages = ft.average(at[1] - 0.25, at[1] + 0.25)
    parts = ft.Points(at[0]), ft.Derivative(at[0]), averages
    agree(stacked, *f(ft.Concatenated(parts)).joint(), jitter=1e-4)


def draws_given_v(kernel, z, x, **options):
    """Draws at x of the function whose whitened values are zero, and its law."""

    def model(x):
        f = gp.sparse_gp("f", kernel, z)
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x))

    v = {"f": np.zeros((1, len(z)))}
    draws = gp.draw_functions(random.key(4), model, v, x, num_draws=4000, **options)
    return np.asarray(draws["y"]), gp.predict(model, v, x)["y"].latent_covariance


Z = np.array([[0.0], [1.0], [2.0]])
AROUND = ft.average(Z - 0.1, Z + 0.1)
FAR = ft.average(Z + 9.0, Z + 9.2)
BOTH = ft.Concatenated((FAR, ft.Concatenated((ft.Points(Z),))))


@pytest.mark.parametrize(
    ("z", "x"),
    [pytest.param(BOTH, AROUND, marks=pytest.mark.thorough), (Z, BOTH)],
    ids="zx",
)
def test_pathwise_functions_have_white_noise_at_points_among_others(z, x):
    # 2 × (6 + 21) comparisons at 5 standard errors: fails by chance once in 3e4 keys.
    kernel = K.RBF(1.0, 0.7) + K.White(0.5)
    options = {"method": "pathwise", "num_features": 100}
    draws, covariance = draws_given_v(kernel, z, x, **options)
    agree(draws, np.zeros(len(x)), covariance)


@pytest.mark.thorough
def test_slopes_beside_values_keep_their_variance():
    # In seconds, with a lengthscale of an hour, far from z: Var f' = 1/ℓ², less than
    # the jitter of f, and Cov(f(a), f'(b)) = k(a, b) (a − b)/ℓ².
    # 2 + 3 comparisons at 5 standard errors: fails by chance once in 3e5 keys.
    hour = 3600.0
    value, slope = ft.Points([[30 * hour]]), ft.Derivative(np.array([[30.5 * hour]]))
    x = ft.Concatenated((value, slope))
    draws, _ = draws_given_v(K.RBF(1.0, hour), hour * Z, x, method="exact")
    covariance = -0.5 * np.exp(-0.125)
    expected = np.array([[1.0, covariance], [covariance, 1.0]])
    agree(draws * [1.0, hour], np.zeros(2), expected)


def test_functions_where_a_value_is_known():
    """A row without variance has a jitter too: the factor exists."""
    x = ft.Concatenated((ft.Points([[0.0], [2.0]]), ft.Derivative(Z[:1])))
    kernel, z = K.Linear(1.0), np.array([[1.0]])
    draws, _ = draws_given_v(kernel, z, x, method="exact")
    np.testing.assert_allclose(draws, 0.0, atol=1e-2)


def test_fourier_features_have_no_pathwise_functions():
    model = regression(FEATURES["fourier"]())
    fit = fitted(model, X, Y)
    with pytest.raises(ValueError, match=r'represented by Fourier.* method="exact"'):
        gp.draw_functions(random.key(0), model, fit, X, method="pathwise")


def unknown(areas, y=None):
    """Averages as data, hyperparameters with priors, Fourier features."""
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.5))
    f = gp.sparse_gp("f", K.Matern32(1.0, lengthscale), FEATURES["fourier"]())
    with numpyro.plate("data", len(areas)):
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(areas), obs=y)


@pytest.mark.slow
def test_areas_as_data_from_the_fit_to_the_draws(tmp_path):
    """An Integral is an argument like any other; values are predicted from averages."""
    areas = ft.average(EDGES[:-1], EDGES[1:], 3)
    adam = {"optimizer": optax.adam(0.03), "num_steps": 300}
    fit = fitted(unknown, areas, AREAS, **adam)
    at_points = gp.predict(unknown, fit, X)["y"]
    error = np.asarray(at_points.mean) - np.sin(2 * X[:, 0])
    assert np.sqrt(np.mean(error**2)) < 0.2 * np.std(np.sin(2 * X[:, 0]))

    fit.save(tmp_path / "fit")
    loaded = gp.Fit.load(tmp_path / "fit", fit.guide, unknown)
    again = gp.predict(unknown, loaded, X)["y"]
    np.testing.assert_array_equal(again.mean, at_points.mean)

    draws = gp.sample(
        random.key(1), unknown, areas, AREAS, init=fit, num_chains=2, num_warmup=60,
        num_samples=60, progress=False,
    )  # fmt: skip
    from_draws = gp.predict(unknown, draws, X)["y"]
    np.testing.assert_allclose(from_draws.mean, at_points.mean, atol=0.2)
    report = str(gp.diagnostics.report(fit, areas, AREAS))
    assert "greedy_variance" not in report and "away from z" not in report


def rows(areas, y=None):
    f = gp.sparse_gp("f", K.Matern32(1.0, 0.6), FEATURES["fourier"]())
    with numpyro.plate("data", 24, subsample_size=len(areas)):
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(areas), obs=y)


@pytest.mark.thorough
def test_batches_of_areas():
    areas = ft.average(EDGES[:-1], EDGES[1:], 3)
    adam = {"optimizer": optax.adam(0.03), "num_steps": 400}
    fit = fitted(rows, areas, AREAS, batch_size=8, **adam)
    at_points = gp.predict(rows, fit, areas)["y"].mean
    assert np.sqrt(np.mean((np.asarray(at_points) - AREAS) ** 2)) < 0.1


def test_too_few_features_are_reported():
    """The report speaks of features where there are no points."""
    model = regression(ft.Fourier(-2.0, 5.0, 1))
    fit = fitted(model, X, Y)
    report = str(gp.diagnostics.report(fit, X, Y))
    assert "more inducing features" in report
    assert "more inducing inputs" not in report and "greedy_variance" not in report


def test_a_failed_factorisation_names_the_features():
    def model(x, y=None):
        areas = ft.average(np.zeros((3, 1)), np.ones((3, 1)))  # one area, three times
        f = gp.sparse_gp("f", K.RBF(1.0, 5.0), areas, jitter=0.0)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)

    with pytest.raises(gp.NonFiniteBoundError, match="k_uu of its features, Integral"):
        fitted(model, X, Y, optimizer=optax.adam(0.1))


@pytest.mark.thorough
def test_additive_fourier_features():
    """A Fourier process for each column, and a guide that couples them."""
    x = np.random.default_rng(1).uniform(0.0, 3.0, (40, 2))
    y = np.sin(2 * x[:, 0]) + np.cos(x[:, 1])

    def model(x, y=None):
        parts = [
            gp.sparse_gp(
                name, K.Matern52(1.0, 1.0, active_columns=(d,)), FEATURES["fourier"]()
            )
            for d, name in enumerate("fg")
        ]
        with numpyro.plate("data", len(x)):
            total = parts[0](x) + parts[1](x)
            gp.observe("y", gp.likelihoods.Gaussian(0.05), total, obs=y)

    fit = gp.fit(
        random.key(0), model, gp.AutoCoupled(model), x, y, progress=False,
        optimizer=optax.adam(0.03), num_steps=1000,
    )  # fmt: skip
    mean = gp.predict(model, fit, x)["y"].mean
    assert np.sqrt(np.mean((np.asarray(mean) - y) ** 2)) < 0.1


@pytest.mark.thorough
def test_features_with_parameters():
    """Areas whose borders are fitted: arrays of features are leaves of a pytree."""

    def model(x, y=None):
        edges = numpyro.param("edges", jnp.asarray(EDGES[::4]))
        areas = ft.average(edges[:-1], edges[1:])
        f = gp.sparse_gp("f", K.Matern52(1.0, 0.9), areas)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.2), f(x), obs=y)

    adam = {"optimizer": optax.adam(0.02), "num_steps": 200}
    fit = fitted(model, X, Y, **adam)
    assert not np.allclose(fit.params["edges"], EDGES[::4], atol=1e-3)
    assert jax.tree.leaves(ft.Fourier(0.0, 1.0, 3)) == []
