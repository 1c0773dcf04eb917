"""Tables of a prediction with other columns than the fit, or in another order."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray
from jax import random

import svgp_ppl as gp
from svgp_ppl.diagnostics.kept import kept_by

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(RNG.uniform(size=(20, 2)), columns=["lon", "lat"])
Y = np.sin(6.0 * TABLE["lon"].to_numpy())
Z = gp.inducing.kmeans(TABLE, 4)
TURNED = TABLE[["lat", "lon"]]
STEPS = {"num_steps": 2, "progress": False}
IN_ANOTHER_ORDER = (
    r"process 'f' sees a table with the columns \['lat', 'lon'\], and was fitted to "
    r"\['lon', 'lat'\]: .* Pass x\[\['lon', 'lat'\]\]"
)


def model(x, y=None):
    variance = numpyro.sample("variance", dist.LogNormal())
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, 0.3), Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)


def by_name(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.3), Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x[["lon", "lat"]]), obs=y)


def as_xarray(table):
    return xarray.DataArray(table.to_numpy(), coords=[table.index, list(table)])


@pytest.fixture
def fitted():
    return gp.fit(random.key(0), model, None, TABLE, Y, **STEPS)


@pytest.mark.thorough
def test_columns_in_another_order_are_refused(fitted, tmp_path):
    assert fitted.input_columns == {"f": [["lon", "lat"]]}
    fitted.save(tmp_path / "fit")
    loaded = gp.Fit.load(tmp_path / "fit", fitted.guide, model)
    for fit in (fitted, loaded):
        assert fit.predict(TABLE).keys() == {"y"}
        for ask in (
            lambda x, fit=fit: fit.predict(x),
            lambda x, fit=fit: gp.draw_functions(random.key(1), model, fit, x),
            lambda x, fit=fit: gp.posterior_predictive(random.key(1), model, fit, x),
            lambda x, fit=fit: gp.update(random.key(1), fit, x, Y, **STEPS),
            lambda x, fit=fit: gp.sample(random.key(1), model, x, Y, init=fit),
            lambda x, fit=fit: gp.importance_sample(
                random.key(1), model, x, Y, init=fit
            ),
            lambda x, fit=fit: gp.fit(
                random.key(1), model, fit.guide, x, Y, init=fit, **STEPS
            ),
        ):
            with pytest.raises(ValueError, match=IN_ANOTHER_ORDER):
                ask(TURNED)
            with pytest.raises(ValueError, match=IN_ANOTHER_ORDER):
                ask(as_xarray(TURNED))


def test_columns_of_arrow_tables_are_compared_too(fitted):
    arrow = pytest.importorskip("pyarrow")
    turned = arrow.Table.from_pandas(TURNED)
    of_arrow = gp.fit(
        random.key(0), model, None, arrow.Table.from_pandas(TABLE), Y, **STEPS
    )
    for fit, x in ((fitted, turned), (of_arrow, TURNED), (of_arrow, turned)):
        with pytest.raises(ValueError, match=IN_ANOTHER_ORDER):
            fit.predict(x)


@pytest.mark.thorough
def test_draws_keep_the_columns(fitted):
    counts = {"num_chains": 1, "num_warmup": 2, "num_samples": 2, "progress": False}
    draws = gp.sample(random.key(1), model, TABLE, Y, init=fitted, **counts)
    of_fit = gp.posterior_predictive(random.key(1), model, fitted, TABLE, num_draws=2)
    for one in (draws, of_fit):
        assert kept_by(one).input_columns == {"f": [["lon", "lat"]]}
        gp.predict(model, one, TABLE)
        with pytest.raises(ValueError, match=IN_ANOTHER_ORDER):
            gp.predict(model, one, TURNED)
    of_array = gp.posterior_predictive(
        random.key(1), model, fitted, TABLE.to_numpy(), num_draws=2
    )
    assert kept_by(of_array).input_columns == {"f": [["lon", "lat"]]}


def test_other_columns_are_refused(fitted):
    with pytest.raises(ValueError, match=r"\['lat', 'height'\], and was fitted to"):
        fitted.predict(TABLE.assign(height=0.0)[["lat", "height"]])


@pytest.mark.thorough
def test_columns_that_the_model_takes_by_name_may_stand_anywhere():
    fitted = gp.fit(random.key(0), by_name, None, TABLE.assign(more=1.0), Y, **STEPS)
    assert fitted.input_columns == {"f": [["lon", "lat"]]}
    moved = [fitted.predict(x)["y"].mean for x in (TABLE, TURNED)]
    np.testing.assert_array_equal(*moved)


@pytest.mark.thorough
@pytest.mark.parametrize("x", [TABLE.to_numpy(), pd.DataFrame(TABLE.to_numpy())])
def test_columns_without_names_are_taken_as_they_come(fitted, x):
    fitted.predict(x)
    unnamed = gp.fit(random.key(0), model, None, x, Y, **STEPS)
    assert unnamed.input_columns == {}
    unnamed.predict(TURNED)


def test_data_in_another_order_than_their_inputs_are_refused():
    y = pd.Series(Y, index=TABLE.index)
    shuffled = y.sample(frac=1.0, random_state=0)
    message = r"index of the inputs in another order, .* y\.loc\[x\.index\]"
    with pytest.raises(ValueError, match=message):
        gp.fit(random.key(0), model, None, TABLE, shuffled, **STEPS)
    fitted = gp.fit(random.key(0), model, None, as_xarray(TABLE), y, **STEPS)
    with pytest.raises(ValueError, match=message):
        fitted.predict(TABLE)["y"].log_prob(shuffled)
    # Rows go together by their places, and other labels say nothing of them.
    pairs = pd.MultiIndex.from_product([range(4), range(5)])
    others = [y.set_axis(index) for index in (range(20, 40), pairs)]
    as_they_come = [y, shuffled.loc[TABLE.index], *others, Y]
    densities = [fitted.predict(TABLE)["y"].log_prob(one) for one in as_they_come]
    for density in densities:
        np.testing.assert_array_equal(density, densities[0])


def offset_model(x, exposure, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.3), Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.3), 2.0 - exposure * f(x), obs=y)


@pytest.mark.thorough
def test_an_offset_or_weight_in_another_order_than_its_inputs_is_refused():
    exposure = pd.Series(1.0 + np.arange(len(TABLE)) / 10, index=TABLE.index)
    labelled = gp.fit(random.key(0), offset_model, None, TABLE, exposure, Y, **STEPS)
    plain = exposure.to_numpy()
    plain = gp.fit(random.key(0), offset_model, None, TABLE, plain, Y, **STEPS)
    np.testing.assert_array_equal(labelled.losses, plain.losses)
    shuffled = exposure.sample(frac=1.0, random_state=0)
    message = r"offsets of a latent have the index of the inputs in another order"
    with pytest.raises(ValueError, match=message):
        gp.fit(random.key(0), offset_model, None, TABLE, shuffled, Y, **STEPS)


def masked_model(x, known, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.3), Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.3), f(x), obs=y, mask=known)


@pytest.mark.thorough
def test_a_mask_in_another_order_than_its_inputs_is_refused():
    known = pd.Series(Y > 0.0, index=TABLE.index)
    masked = gp.fit(random.key(0), masked_model, None, TABLE, known, Y, **STEPS)
    plain = gp.fit(random.key(0), masked_model, None, TABLE, Y > 0.0, Y, **STEPS)
    np.testing.assert_array_equal(masked.losses, plain.losses)
    shuffled = known.sample(frac=1.0, random_state=0)
    message = r"mask of site 'y' .* another order, .* mask\.loc\[x\.index\]"
    with pytest.raises(ValueError, match=message):
        gp.fit(random.key(0), masked_model, None, TABLE, shuffled, Y, **STEPS)
    with pytest.raises(ValueError, match=message):
        plain.predict(TABLE, Y > 0.0)["y"].log_prob(Y, mask=shuffled)


def noise_model(x, scale, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.3), Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(scale), f(x), obs=y)


def test_values_of_a_likelihood_may_be_a_list_or_a_column():
    scale = np.linspace(0.2, 0.5, len(Y)).astype(np.float32)
    series = pd.Series(scale, index=TABLE.index)
    fits = [
        gp.fit(random.key(0), noise_model, None, TABLE, one, Y, **STEPS)
        for one in (scale, scale.tolist(), series)
    ]
    for fitted in fits:
        np.testing.assert_allclose(fitted.losses, fits[0].losses, rtol=1e-6)
    shuffled = series.sample(frac=1.0, random_state=0)
    message = r"the scale of a Gaussian likelihood .* order, .* scale\.loc\[x\.index\]"
    with pytest.raises(ValueError, match=message):
        gp.fit(random.key(0), noise_model, None, TABLE, shuffled, Y, **STEPS)


def slope_model(x, income, y=None):
    slope = numpyro.sample("slope", dist.Normal())
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.3), Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.3), f(x) + slope * income, obs=y)


@pytest.mark.parametrize("call", [gp.fit, gp.sample, gp.prior_predictive])
def test_a_column_that_a_model_computes_with_is_named(call):
    column = pd.Series(Y, index=TABLE.index)
    message = r"that are none: DataFrame, Series\. Give it .* column\.to_numpy\(\)"
    with pytest.raises(ValueError, match=message):
        call(random.key(0), slope_model, TABLE, column)


@pytest.mark.parametrize("is_category", [False, True])
@pytest.mark.parametrize("take", [lambda level, group: level[group], jnp.take])
def test_a_column_that_a_model_indexes_with_is_named(take, is_category):
    def of_groups(x, group, y=None):
        level = numpyro.sample("level", dist.Normal().expand([2]))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.3), Z)
        with numpyro.plate("data", len(x)):
            mean = f(x) + take(level, group)
            gp.observe("y", gp.likelihoods.Gaussian(0.3), mean, obs=y)

    names = pd.Series(["a", "b"] * 10).astype("category")
    group = names if is_category else names.cat.codes
    message = r"are none: DataFrame, Series\. .* or column\.cat\.codes\.to_numpy\(\)"
    with pytest.raises(ValueError, match=message):
        gp.fit(random.key(0), of_groups, None, TABLE, group, Y, **STEPS)


def test_another_kernel_or_other_features_are_told(tmp_path):
    def of(kernel, z=Z):
        def model(x, y=None):
            f = gp.sparse_gp("f", kernel, z)
            with numpyro.plate("data", len(x)):
                gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)

        return model

    smooth = of(gp.kernels.RBF(1.0, 0.3))
    x = TABLE.to_numpy()
    gp.fit(random.key(0), smooth, None, x, Y, **STEPS).save(tmp_path / "fit")
    draws = gp.sample(
        random.key(1), smooth, x, Y, num_warmup=9, num_samples=9, progress=False
    )

    def loaded(model):
        return gp.Fit.load(tmp_path / "fit", model=model)

    assert loaded(smooth).predict(x).keys() == {"y"}
    rough = of(gp.kernels.Matern32(1.0, 0.3))
    changed = "'f' has Matern32 at Points, and had RBF at Points"
    for ask in (
        lambda: loaded(rough).predict(x),
        lambda: gp.predict(rough, draws, x),
        lambda: gp.draw_functions(random.key(1), rough, loaded(rough), x),
        lambda: gp.fit(random.key(1), rough, None, x, Y, init=loaded(rough), **STEPS),
    ):
        with pytest.warns(UserWarning, match=changed):
            ask()
    slopes = of(gp.kernels.RBF(1.0, 0.3), gp.features.Derivative(Z, 0))
    with pytest.warns(UserWarning, match="has RBF at Derivative, and had"):
        loaded(slopes).predict(x)
    elsewhere = of(gp.kernels.RBF(1.0, 0.3), Z + 0.1)
    for ask in (
        lambda: loaded(elsewhere).predict(x),
        lambda: gp.predict(elsewhere, draws, x),
    ):
        with pytest.warns(UserWarning, match="inputs of process 'f' are not those"):
            ask()
    one = of(gp.kernels.RBF(1.0, 0.3, active_columns=(1,)))
    with pytest.warns(UserWarning, match=r"has RBF\[1\] at Points, and had"):
        loaded(one).predict(x)
