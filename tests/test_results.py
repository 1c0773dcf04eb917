"""Quantiles, intervals, tables and bands of predictions; predictions of a fit."""

import pickle
from dataclasses import replace

import matplotlib

matplotlib.use("Agg")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from jax import random
from scipy import optimize, stats

import svgp_ppl as gp
from svgp_ppl.prediction.inversion import inverted
from svgp_ppl.prediction.quantiles import cdf_of
from svgp_ppl.runtime import compilation
from tests.models import (
    COUNTS_X,
    COUNTS_Z,
    GAUSSIAN_X,
    GAUSSIAN_Y,
    counts_model,
    gaussian_model,
    projection,
)

X_NEW = np.linspace(-1.5, 2.5, 5)[:, None]
LEVELS = [0.05, 0.5, 0.95]


@pytest.fixture(scope="module")
def fitted():
    with jax.enable_x64(True):
        return gp.fit(
            random.key(0),
            gaussian_model,
            None,
            GAUSSIAN_X,
            GAUSSIAN_Y,
            num_steps=20,
            progress=False,
        )


@pytest.fixture(scope="module")
def samples():
    """Draws of the counts, without a sampler: three different ones."""
    rng = np.random.default_rng(0)
    return {
        "variance": np.array([0.5, 1.0, 2.0]),
        "lengthscale": np.array([0.7, 0.9, 1.4]),
        "f": rng.normal(size=(3, 5)),
    }


def normal_moments(prediction):
    pairs = (
        (prediction.mean, prediction.variance),
        (prediction.latent_mean, prediction.latent_variance),
    )
    return [(np.asarray(m), np.sqrt(np.asarray(v))) for m, v in pairs]


# -------------------------------------------------------------------- quantiles


def test_quantiles_of_a_gaussian_are_those_of_scipy(fitted):
    at_new = fitted.predict(X_NEW)["y"]
    for of, (mean, sd) in zip(("data", "latent"), normal_moments(at_new)):
        exact = stats.norm.ppf(np.array(LEVELS)[:, None], mean, sd)
        np.testing.assert_allclose(at_new.quantile(LEVELS, of=of), exact, atol=1e-6)
        low, high = at_new.interval(0.9, of=of)
        np.testing.assert_allclose([low, high], exact[[0, 2]], atol=1e-6)
    assert at_new.quantile(0.5).shape == (5,)
    np.testing.assert_allclose(at_new.std, normal_moments(at_new)[0][1])


def counts_at(x, samples):
    return gp.predict(counts_model, samples, x, params={})["y"]


@pytest.mark.thorough
def test_quantiles_of_counts_over_draws_are_those_of_the_mixture(samples):
    x = COUNTS_X[::4]
    at_new = counts_at(x, samples)
    found = at_new.quantile(LEVELS)
    # P(y <= k) summed over draws and over 2000 values of f in each.
    e, f = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)[:, None], []
    for variance, lengthscale, v in zip(*samples.values()):
        a, residual = projection(x, COUNTS_Z, variance, lengthscale)
        f.append(a @ v + np.sqrt(residual) * e)
    f = np.concatenate(f)
    k = np.arange(400)[:, None, None]
    cdf = stats.poisson.cdf(k, np.exp(f)).mean(axis=1)
    exact = np.stack([np.argmax(cdf >= p, axis=0) for p in LEVELS])
    np.testing.assert_array_equal(found, exact)
    assert np.any(found == 0.0) and not np.any(np.signbit(found))  # -0 would be shown
    # Those of draws are whole numbers near them.
    drawn = at_new.quantile(LEVELS, key=random.key(0))
    np.testing.assert_allclose(drawn, exact, rtol=0.15, atol=1)
    latent = at_new.quantile(LEVELS, of="latent")
    np.testing.assert_allclose(latent, np.quantile(f, LEVELS, axis=0), atol=5e-3)


def observed_by(likelihood, num_outputs=None):
    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), X_NEW, num_outputs=num_outputs)
        with numpyro.plate("place", len(x)):
            gp.observe("y", likelihood, f(x), obs=y)

    return model


def one_draw(likelihood, x=X_NEW[1:4] + 0.3, num_outputs=None):
    shape = (1, 5) if num_outputs is None else (1, num_outputs, 5)
    v = {"f": np.random.default_rng(1).normal(size=shape)}
    return gp.predict(observed_by(likelihood, num_outputs), v, x)["y"]


@pytest.mark.thorough
def test_quantiles_on_the_positive_numbers_invert_the_cdf():
    at_new = one_draw(lambda f: dist.Gamma(2.0, 2.0 * jnp.exp(-f)))
    found = at_new.quantile(LEVELS)
    e = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)[:, None]
    f = at_new.latent_mean + np.sqrt(at_new.latent_variance) * e
    for level, values in zip(LEVELS, found):
        cdf = stats.gamma.cdf(values, 2.0, scale=np.exp(f) / 2.0).mean(axis=0)
        np.testing.assert_allclose(cdf, level, atol=2e-5)


@pytest.mark.thorough
def test_quantiles_of_a_long_tail():
    """sd and quantiles differ by orders of magnitude, and all are positive."""
    at_new = one_draw(lambda f: dist.LogNormal(4.0 * f, 0.5), x=X_NEW[1:4] + 20.0)
    m, v = np.asarray(at_new.latent_mean), np.asarray(at_new.latent_variance)
    levels = np.array([0.001, *LEVELS, 0.999])[:, None]
    exact = np.exp(4.0 * m + np.sqrt(16.0 * v + 0.25) * stats.norm.ppf(levels))
    np.testing.assert_allclose(at_new.quantile(levels[:, 0]), exact, rtol=2e-3)


@pytest.mark.thorough
def test_draws_that_are_alike_and_wide_average_their_errors():
    v = {"f": np.zeros((30, 5))}
    model = observed_by(lambda f: dist.Normal(f, 0.01))
    at_new = gp.predict(model, v, X_NEW[:2] + 20.0)["y"]
    levels = np.array([0.1, 0.3, 0.45, 0.6, 0.8])
    found = stats.norm.cdf(at_new.quantile(levels))
    np.testing.assert_allclose(found, np.stack([levels] * 2, axis=1), atol=0.01)


@pytest.mark.thorough
def test_quantiles_without_a_variance():
    at_new = one_draw(gp.likelihoods.StudentT(1.0, 0.5))
    low, high = at_new.interval(0.98)
    np.testing.assert_allclose((low + high) / 2, at_new.latent_mean, atol=1e-3)
    assert np.all(high - low > stats.t.interval(0.98, 1, scale=0.5)[1] * 2 * 0.99)


@pytest.mark.thorough
def test_quantiles_of_labels_come_from_their_probabilities():
    at_new = one_draw(gp.likelihoods.Softmax(3), num_outputs=3)
    cumulative = np.cumsum(at_new.probs, axis=-1)
    for level in (0.2, 0.6):
        exact = np.argmax(cumulative >= level, axis=-1)
        np.testing.assert_array_equal(at_new.quantile(level), exact)


def test_quantiles_of_binary_labels():
    at_new = one_draw(gp.likelihoods.Bernoulli())
    for level in (0.1, 0.5, 0.9):
        exact = np.asarray(at_new.probs) > 1.0 - level
        np.testing.assert_array_equal(at_new.quantile(level), exact)


class OneMore(dist.Poisson):
    """One more than a Poisson count."""

    support = dist.constraints.positive_integer

    def log_prob(self, value):
        return dist.Poisson(self.rate).log_prob(value - 1)


OF_COUNTS = {
    "Poisson": (gp.likelihoods.Poisson(), lambda k, f: stats.poisson.cdf(k, np.exp(f))),
    "NegativeBinomial": (
        gp.likelihoods.NegativeBinomial(2.5),
        lambda k, f: stats.nbinom.cdf(k, 2.5, 2.5 / (2.5 + np.exp(f))),
    ),
    "Binomial": (  # the number of trials differs, and there is no cdf
        gp.likelihoods.Binomial(np.array([5, 12, 40])),
        lambda k, f: stats.binom.cdf(k, [5, 12, 40], 1 / (1 + np.exp(-f))),
    ),
    "no cdf, many": (
        lambda f: dist.ZeroInflatedPoisson(0.3, 20.0 * jnp.exp(f)),
        lambda k, f: (k >= 0) * (0.3 + 0.7 * stats.poisson.cdf(k, 20.0 * np.exp(f))),
    ),
    "from one on": (
        lambda f: OneMore(jnp.exp(f)),
        lambda k, f: stats.poisson.cdf(k - 1, np.exp(f)),
    ),
    "thousands": (
        lambda f: dist.Poisson(3000.0 * jnp.exp(f)),
        lambda k, f: stats.poisson.cdf(k, 3000.0 * np.exp(f)),
    ),
}


FEW = {"Poisson", "Binomial"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * (name not in FEW))
        for name in OF_COUNTS
    ],
)
def test_quantiles_of_counts_are_the_first_to_reach_the_level(name):
    likelihood, cdf = OF_COUNTS[name]
    at_new = one_draw(likelihood)
    e = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)[:, None]
    f = np.asarray(at_new.latent_mean) + np.sqrt(at_new.latent_variance) * e
    found = at_new.quantile(LEVELS)
    assert found.dtype == np.float64 and not np.any(np.signbit(found))
    for level, k in zip(LEVELS, found):
        before, there = (cdf(place, f).mean(axis=0) for place in (k - 1, k))
        assert np.all(before < level + 1e-4) and np.all(there > level - 1e-4)


def test_quantiles_of_several_modes_are_those_of_a_search():
    """Where the slope of F changes most: between draws that lie apart."""
    rng = np.random.default_rng(0)
    levels = np.array([0.005, 0.05, 0.25, 0.5, 0.75, 0.95, 0.995])
    for apart in (0.3, 1.0, 5.0, 20.0) * 5:
        mean, sd = apart * rng.normal(size=4), np.exp(rng.normal(size=4))
        w = rng.dirichlet(np.ones(4))

        def cdf(a, mean=mean, sd=sd, w=w):
            u = (np.asarray(a)[..., None] - mean) / sd
            return stats.norm.cdf(u) @ w, stats.norm.pdf(u) @ (w / sd)

        def above(a, level, cdf=cdf):
            return cdf(a)[0] - level

        centre = w @ mean
        variance = w @ (sd**2 + (mean - centre) ** 2)
        found = inverted(cdf, levels, centre[None], variance[None])
        for level, quantile in zip(levels, found[:, 0]):
            exact = optimize.brentq(above, -500, 500, level, xtol=1e-12)
            assert abs(quantile - exact) < 1e-6 * np.sqrt(variance)


def test_cdf_of_a_sum_over_labels_and_of_a_falling_transform():
    labels = jnp.arange(-1, 7)
    found = cdf_of(dist.BetaBinomial(2.0, 3.0, 5), labels)
    exact = stats.betabinom.cdf(labels, 5, 2.0, 3.0)
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    falling = dist.TransformedDistribution(
        dist.Gamma(2.0, 3.0), dist.transforms.AffineTransform(1.0, -2.0)
    )
    y = jnp.array([-3.0, 0.2, 0.9, 1.5])  # 1 − 2 g
    exact = stats.gamma.sf((1.0 - np.asarray(y)) / 2.0, 2.0, scale=1 / 3.0)
    np.testing.assert_allclose(cdf_of(falling, y), exact, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "likelihood", [gp.likelihoods.Poisson(), gp.likelihoods.Gaussian(0.3)]
)
def test_other_levels_are_not_compiled_again(likelihood):
    at_new = one_draw(likelihood)
    at_new.interval(0.9)
    number = len(compilation._found)
    at_new.interval(0.5)
    assert len(compilation._found) == number


@pytest.mark.thorough
def test_quantiles_of_tables_and_of_likelihoods_without_cdf():
    table = one_draw(lambda f: dist.Normal(f, 0.3).to_event(1), num_outputs=2)
    sd = np.sqrt(np.asarray(table.latent_variance) + 0.09)
    exact = stats.norm.ppf(0.9, table.latent_mean, sd)
    np.testing.assert_allclose(table.quantile(0.9), exact, atol=1.5e-4)
    no_cdf = one_draw(lambda f: dist.VonMises(f, 2.0))
    with pytest.raises(ValueError, match="no cumulative distribution function"):
        no_cdf.quantile(0.5)
    assert no_cdf.quantile(0.5, key=random.key(0)).shape == (3,)


@pytest.mark.parametrize("p", [0.0, 1.0, [0.5, 2.0], [], np.nan])
def test_what_is_no_probability_is_refused(fitted, p, as_users_call):
    at_new = fitted.predict(X_NEW)["y"]
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        at_new.quantile(p)
    with pytest.raises(ValueError, match="of must be one of"):
        at_new.quantile(0.5, of="y")
    with pytest.raises(ValueError, match="one probability"):
        at_new.interval([0.5, 0.9])


# ----------------------------------------------------------------------- tables


@pytest.mark.thorough
def test_a_table_has_the_index_of_the_inputs(fitted):
    x = pd.DataFrame(X_NEW, index=pd.Index(list("abcde"), name="town"))
    at_new = fitted.predict(x)["y"]
    frame = at_new.to_pandas(0.9)
    assert frame.index.equals(x.index) and frame.index.name == "town"
    np.testing.assert_allclose(frame["mean"], at_new.mean)
    np.testing.assert_allclose(frame["low"], at_new.quantile(0.05))
    data = at_new.to_xarray()
    assert data["latent_std"].dims == ("town",) and "low" not in data
    x = xr.DataArray(
        X_NEW, dims=("time", "column"), coords={"time": 2000 + np.arange(5)}
    )
    by_time = fitted.predict(x)["y"].to_xarray()
    assert by_time["mean"].sel(time=2003).item() == pytest.approx(at_new.mean[3])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "index",
    [
        pd.date_range("2026-01-01", periods=5, tz="Europe/Berlin", name="day"),
        pd.period_range("2026-01", periods=5, freq="M", name="month"),
        pd.interval_range(0, 5, name="age"),
        pd.CategoricalIndex(list("abcab"), name="town"),
    ],
    ids=["times", "months", "intervals", "categories"],
)
def test_a_table_keeps_the_type_of_its_index(fitted, index):
    frame = fitted.predict(pd.DataFrame(X_NEW, index=index))["y"].to_pandas()
    pd.testing.assert_index_equal(frame.index, index)
    assert frame.index.dtype == index.dtype


@pytest.mark.parametrize(
    "names",
    [
        *(
            pytest.param(names, marks=pytest.mark.thorough)
            for names in ([0], ["mean"], ["data"], [("a", 1)])
        ),
        ["std", 0],
    ],
)
def test_the_name_of_an_index_may_be_any(fitted, names):
    arrays = [range(5)] * len(names)
    index = pd.MultiIndex.from_arrays(arrays, names=names)
    index = index if len(names) > 1 else index.get_level_values(0)
    frame = fitted.predict(pd.DataFrame(X_NEW, index=index))["y"].to_pandas(0.9)
    assert [name.rstrip("_") for name in frame.index.names] == list(map(str, names))
    np.testing.assert_array_equal(frame.index, index)
    assert list(frame.columns[:4]) == ["mean", "std", "low", "high"]


def test_a_table_without_labels_has_the_plate():
    table = one_draw(lambda f: dist.Normal(f, 0.3).to_event(1), num_outputs=2)
    data = table.to_xarray(0.5)
    assert data["mean"].dims == ("place", "output")
    assert data["latent_mean"].dims == ("place", "component")
    frame = table.to_pandas()
    assert list(frame.columns)[:2] == ["mean[0]", "mean[1]"] and len(frame) == 3
    rows = pd.MultiIndex.from_product([["a"], [1, 2, 3]], names=["site", "day"])
    x = pd.DataFrame(X_NEW[1:4], index=rows)
    frame = one_draw(gp.likelihoods.Gaussian(0.1), x).to_pandas()
    assert list(frame.index.get_level_values("day")) == [1, 2, 3]


def test_a_representation_shows_shapes_and_numbers(fitted):
    at_new = fitted.predict(X_NEW)["y"]
    lines = repr(at_new).splitlines()
    assert lines[0] == "Prediction of 'y' at 5 inputs"
    mean = np.asarray(at_new.mean)
    assert lines[1] == f"  mean [5]: {mean.min():.4g} to {mean.max():.4g}"


# --------------------------------------------------------------- calls of one line


def test_a_fit_predicts_its_model(fitted, tmp_path):
    with_model = fitted.predict(X_NEW, chunk_size=2)["y"]
    by_function = gp.predict(gaussian_model, fitted, X_NEW)["y"]
    np.testing.assert_allclose(with_model.mean, by_function.mean, rtol=1e-12)
    fitted.save(tmp_path / "fit.npz")
    loaded = gp.Fit.load(tmp_path / "fit.npz", gp.AutoGaussian(gaussian_model))
    with pytest.raises(ValueError, match="does not know its model"):
        loaded.predict(X_NEW)


def test_the_best_of_several_fits_is_found_among_them(fitted):
    other = replace(fitted, losses=fitted.losses - 1.0)
    fits = [fitted, other]
    assert fits.index(min(fits, key=lambda fit: fit.losses[-1])) == 1
    assert len({fitted, other}) == 2


def test_predictions_can_be_pickled(fitted):
    at_new = fitted.predict(X_NEW)["y"]
    again = pickle.loads(pickle.dumps(at_new))
    np.testing.assert_array_equal(again.mean, at_new.mean)


def test_draws_have_a_default_number(fitted):
    at_new = fitted.predict(X_NEW)["y"]
    assert at_new.sample(random.key(0)).shape == (1000, 5)
    assert at_new.sample_latent(random.key(0)).shape == (1000, 5)


def test_a_band_is_that_of_the_quantiles(fitted):
    at_new = fitted.predict(X_NEW)["y"]
    ax = gp.plots.prediction_band(X_NEW, at_new, 0.8, of="latent", label="f")
    (line,) = ax.get_lines()
    np.testing.assert_allclose(line.get_ydata(), at_new.latent_mean, atol=1e-6)
    vertices = ax.collections[0].get_paths()[0].vertices
    low, high = at_new.interval(0.8, of="latent")
    assert vertices[:, 1].min() == pytest.approx(low.min())
    assert vertices[:, 1].max() == pytest.approx(high.max())
    table = one_draw(lambda f: dist.Normal(f, 0.3).to_event(1), num_outputs=2)
    with pytest.raises(ValueError, match="a band is drawn of one component"):
        gp.plots.prediction_band(X_NEW[1:4], table)
