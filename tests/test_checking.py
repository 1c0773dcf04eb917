"""Predictive draws and log likelihoods for ArviZ, by a second route; their axes."""

import matplotlib

matplotlib.use("Agg")

import arviz as az
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from scipy.special import logsumexp
from scipy.stats import poisson

import svgp_ppl as gp
from svgp_ppl.diagnostics import group, loo, to_arviz
from svgp_ppl.prediction.posterior import take_posterior
from tests.models import COUNTS_X, COUNTS_Y, COUNTS_Z, Walk, counts_z, projection

KNOWN = np.arange(20) % 3 != 0
HOLES = np.where(KNOWN, COUNTS_Y, np.nan)
YEARS = 1900 + np.arange(20)
DATA = (COUNTS_X, COUNTS_Y)


def model(x, y=None, known=None):
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, 0.9), counts_z())
    with numpyro.plate("year", len(x)):
        numpyro.deterministic("rate", jnp.exp(f(x).mean))
        gp.observe("y", lambda f: dist.Poisson(jnp.exp(f)), f(x), obs=y, mask=known)


@pytest.fixture(scope="module")
def fitted():
    with jax.enable_x64(True):
        return gp.fit(random.key(0), model, None, *DATA, num_steps=60, progress=False)


@pytest.fixture(scope="module")
def of_fit(fitted):
    """Draws of q with both groups."""
    with jax.enable_x64(True):
        found = gp.log_likelihood(random.key(2), model, fitted, *DATA, num_draws=400)
        return gp.posterior_predictive(random.key(3), model, found, *DATA, add_to=found)


@pytest.fixture(scope="module")
def draws():
    """Two chains of a walk, with labels."""
    with jax.enable_x64(True):
        found = gp.sample(
            random.key(1),
            model,
            *DATA,
            sampler=Walk(),
            num_chains=2,
            num_warmup=50,
            num_samples=300,
            log_likelihood=True,
            coords={"year": YEARS},
            progress=False,
        )
        return gp.posterior_predictive(random.key(4), model, found, *DATA, add_to=found)


def values_of(posterior, name, site="y"):
    return posterior[name][site]


# --------------------------------------------------------------- numbers, twice


@pytest.mark.thorough
@pytest.mark.parametrize(
    "which", [pytest.param("draws", marks=pytest.mark.slow), "of_fit"]
)
def test_predictive_draws_have_the_moments_of_the_prediction(which, request):
    posterior = request.getfixturevalue(which)
    at_data = gp.predict(model, posterior, COUNTS_X)["y"]
    drawn = group(posterior, "posterior_predictive")["y"]
    drawn = drawn.reshape(-1, 20)
    # The draws of the posterior are those of the prediction: what is left is the noise
    # of y given each of them, 20 means of which one in 10⁵ is 5 errors off.
    error = np.sqrt(np.asarray(at_data.variance) / len(drawn))
    assert np.all(np.abs(drawn.mean(axis=0) - at_data.mean) < 5.0 * error)
    np.testing.assert_allclose(drawn.var(axis=0), at_data.variance, rtol=0.6)
    assert drawn.dtype.kind == "i"


def test_log_likelihood_of_a_fit_is_that_of_its_draws(of_fit):
    posterior = group(of_fit, "posterior")
    v, variance = posterior["f"][0, :5], posterior["variance"][0, :5]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    for s in range(5):
        a, residual = projection(COUNTS_X, COUNTS_Z, variance[s], 0.9)
        f = (a @ v[s]) + np.sqrt(residual) * nodes[:, None]
        terms = poisson.logpmf(COUNTS_Y, np.exp(f))
        exact = logsumexp(terms, b=weights[:, None] / weights.sum(), axis=0)
        np.testing.assert_allclose(
            group(of_fit, "log_likelihood")["y"][0, s], exact, atol=1e-6
        )


def test_draws_of_a_fit_are_those_of_q(fitted, of_fit):
    v = group(of_fit, "posterior")["f"][0]
    scale_tril = np.asarray(fitted.params["auto_f_scale_tril"])
    white = np.linalg.solve(scale_tril, (v - fitted.params["auto_f_loc"]).T)
    assert np.all(np.abs(white.mean(axis=1)) < 5.0 / np.sqrt(400))
    np.testing.assert_allclose(np.cov(white), np.eye(5), atol=5.0 * np.sqrt(2 / 400))


@pytest.mark.thorough
def test_log_likelihood_of_draws_is_that_of_the_sampler(draws):
    again = gp.log_likelihood(random.key(5), model, draws, *DATA)
    one, other = (group(d, "log_likelihood")["y"] for d in (again, draws))
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_prior_predictive_draws_the_prior():
    prior = gp.prior_predictive(random.key(0), model, *DATA, num_draws=2000)
    held = group(prior, "prior")
    variance, v = held["variance"][0], held["f"][0]
    assert abs(variance.mean() - 1.5) < 5.0 * np.sqrt(0.75 / 2000)
    assert np.all(np.abs(v.mean(axis=0)) < 5.0 / np.sqrt(2000))
    # E y = E exp(variance / 2) is infinite under this prior; the median is that of e^0.
    drawn = group(prior, "prior_predictive")["y"]
    assert drawn.shape == (1, 2000, 20) and 0 <= np.median(drawn) <= 2
    correlation = np.corrcoef(np.log1p(drawn[0].mean(axis=1)), v.sum(axis=1))[0, 1]
    assert correlation > 0.5  # the data belong to their draw
    assert gp.hyperparameters(prior) == ["rate", "variance"]


# ------------------------------------------------------------------ axes and groups


def test_axes_have_the_names_of_plates_and_the_labels_of_the_caller(draws, of_fit):
    for name in ("posterior_predictive", "log_likelihood", "observed_data"):
        values = values_of(draws, name)
        assert values.dims[-1] == "year"
        np.testing.assert_array_equal(values["year"], YEARS)
        assert values_of(of_fit, name).dims[-1] == "year"
    assert values_of(draws, "posterior", "rate").dims == ("chain", "draw", "year")
    np.testing.assert_array_equal(group(draws, "observed_data")["y"], COUNTS_Y)


def test_groups_of_the_prior_get_the_labels_of_what_they_are_added_to(fitted):
    options = {"num_draws": 20, "coords": {"year": YEARS}}
    both = gp.posterior_predictive(random.key(0), model, fitted, *DATA, **options)
    gp.prior_predictive(random.key(1), model, *DATA, num_draws=3, add_to=both)
    for name in ("posterior_predictive", "prior_predictive", "observed_data"):
        np.testing.assert_array_equal(values_of(both, name)["year"], YEARS)


def test_other_rows_do_not_get_the_labels_of_the_data(draws):
    def ask(*arguments, **options):
        key = random.key(5)
        return gp.posterior_predictive(key, model, draws, *arguments, **options)

    others = COUNTS_X + 0.1, COUNTS_Y + 1
    for found, labels in (
        (ask(*DATA), YEARS),
        (ask(*others), np.arange(20)),
        (ask(others[0]), np.arange(20)),
    ):
        values = values_of(found, "posterior_predictive")["year"]
        np.testing.assert_array_equal(values, labels)
    with pytest.raises(ValueError, match="add_to holds other data of site 'y'"):
        ask(*others, add_to=draws)


def test_draws_of_another_precision_are_noticed(draws, of_fit):
    with jax.enable_x64(False):
        for posterior in (draws, of_fit):
            with pytest.warns(UserWarning, match="computations in float64, and these"):
                take_posterior(posterior, None)


def test_dims_of_the_caller_come_first():
    prior = gp.prior_predictive(
        random.key(0),
        model,
        *DATA,
        num_draws=3,
        dims={"f": "knot", "y": ["when"]},
        coords={"knot": list("abcde")},
    )
    assert values_of(prior, "prior", "f").dims == ("chain", "draw", "knot")
    assert values_of(prior, "prior_predictive").dims == ("chain", "draw", "when")


def test_what_is_not_known_is_in_no_group(fitted):
    arguments = (COUNTS_X, HOLES, KNOWN)
    options = {"num_draws": 20, "coords": {"year": YEARS}}
    terms = gp.log_likelihood(random.key(0), model, fitted, *arguments, **options)
    gp.posterior_predictive(random.key(1), model, terms, *arguments, add_to=terms)
    for name in ("log_likelihood", "posterior_predictive", "observed_data"):
        values = values_of(terms, name)
        assert values.dims[-1] == "y_year"
        np.testing.assert_array_equal(values["y_year"], YEARS[KNOWN])
    np.testing.assert_array_equal(group(terms, "observed_data")["y"], COUNTS_Y[KNOWN])
    # Without the data every row is drawn.
    all_rows = gp.posterior_predictive(random.key(1), model, terms, COUNTS_X)
    assert values_of(all_rows, "posterior_predictive").sizes["year"] == 20
    assert "observed_data" not in all_rows


def test_unknown_entries_of_a_table_are_not_a_number():
    known = np.array([[True, True], [False, True], [False, False]])

    def table(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), counts_z(), num_outputs=2)
        with numpyro.plate("rows", 3):
            likelihood = lambda f: dist.Normal(f, 0.3).to_event(1)  # noqa: E731
            gp.observe("y", likelihood, f(x), obs=y, mask=known)

    y = np.where(known, 1.0, np.nan)
    prior = gp.prior_predictive(random.key(0), table, COUNTS_X[:3], y, num_draws=2)
    np.testing.assert_array_equal(group(prior, "observed_data")["y"], y[:2])
    drawn = group(prior, "prior_predictive")["y"]
    np.testing.assert_array_equal(np.isnan(drawn[0, 0]), ~known[:2])
    assert values_of(prior, "prior_predictive")["y_rows"].values.tolist() == [0, 1]


@pytest.mark.slow
def test_other_sites_are_drawn_too(fitted):
    def with_price(x, y=None, price=None):
        model(x, y)
        with numpyro.plate("shops", 3):
            variance = numpyro.deterministic("half", jnp.ones(3))
            numpyro.sample("price", dist.Normal(10.0, variance), obs=price)

    price = np.array([9.0, 10.0, 11.0])
    posterior = (fitted.guide, fitted.params)
    options = {"price": price, "num_draws": 300}
    found = gp.log_likelihood(random.key(0), with_price, posterior, *DATA, **options)
    exact = dist.Normal(10.0, 1.0).log_prob(price)
    np.testing.assert_allclose(group(found, "log_likelihood")["price"][0, 7], exact)
    drawn = gp.posterior_predictive(random.key(1), with_price, found, *DATA, price)
    drawn = group(drawn, "posterior_predictive")["price"]
    assert np.all(np.abs(drawn.mean(axis=(0, 1)) - 10.0) < 5.0 / np.sqrt(300))


# --------------------------------------------------------------------- ArviZ as it is


@pytest.mark.thorough
def test_sites_may_have_a_slash_in_their_names():
    """Those of scopes and of networks: ArviZ 1 would refuse the draws, once made."""
    scoped = handlers.scope(model, prefix="here")
    options = {"num_chains": 2, "num_warmup": 2, "num_samples": 40, "progress": False}
    draws = gp.sample(
        random.key(0), scoped, *DATA, sampler=Walk(), log_likelihood=True, **options
    )
    drawn = group(draws, "posterior")
    assert {"here/f", "here/variance"} <= set(drawn)
    variables = gp.hyperparameters(draws)
    assert len(variables) == len(drawn) - 1
    assert set(variables) < set(draws["posterior"].data_vars)
    at_x = gp.predict(scoped, draws, DATA[0])["here/y"]
    likelihood = group(draws, "log_likelihood")["here/y"]
    assert likelihood.shape == (2, 40, *np.shape(at_x.mean))
    checked = gp.posterior_predictive(random.key(1), scoped, draws, *DATA, add_to=draws)
    assert set(group(checked, "observed_data")) == {"here/y"}
    assert np.isfinite(loo(draws).elpd)
    alike = {"here/a": np.zeros((1, 3)), "here.a": np.ones((1, 3))}
    kept = group(to_arviz(alike), "posterior")
    assert kept.keys() == alike.keys()
    for name, values in alike.items():
        np.testing.assert_array_equal(kept[name], values)


def test_draws_of_sites_with_a_slash_can_be_stored(tmp_path):
    """netCDF refuses such names of variables and of dimensions."""
    scoped = handlers.scope(model, prefix="here")
    options = {"num_chains": 1, "num_warmup": 2, "num_samples": 9, "progress": False}
    draws = gp.sample(
        random.key(0), scoped, *DATA, sampler=Walk(), log_likelihood=True, **options
    )
    draws.to_netcdf(tmp_path / "draws.nc")
    again = az.from_netcdf(tmp_path / "draws.nc")
    for name in ("posterior", "log_likelihood", "observed_data"):
        of_draws, of_file = group(draws, name), group(again, name)
        assert of_draws.keys() == of_file.keys()
        for site, values in of_draws.items():
            np.testing.assert_array_equal(of_file[site], values)
    sizes = gp.diagnostics.ess(again)
    assert sizes.keys() == group(draws, "posterior").keys()
    means = [gp.predict(scoped, d, DATA[0])["here/y"].mean for d in (draws, again)]
    np.testing.assert_array_equal(*means)


def with_factor(x, y=None):
    numpyro.factor("penalty", -1.0)
    model(x, y)


@pytest.mark.thorough
def test_a_factor_is_no_datum():
    """ArviZ would find two log likelihoods, and not know which to take."""
    options = {"num_chains": 1, "num_warmup": 2, "num_samples": 9, "progress": False}
    found = gp.sample(
        random.key(0),
        with_factor,
        *DATA,
        sampler=Walk(),
        log_likelihood=True,
        **options,
    )
    found = gp.posterior_predictive(
        random.key(1), with_factor, found, *DATA, add_to=found
    )
    prior = gp.prior_predictive(random.key(2), with_factor, *DATA, num_draws=3)
    for name in ("log_likelihood", "observed_data", "posterior_predictive"):
        assert set(group(found, name)) == {"y"}
    assert set(group(prior, "prior_predictive")) == {"y"}


def test_arviz_compares_and_draws_both(draws, of_fit):
    with np.errstate(all="ignore"), pytest.warns() as _:
        found = az.compare({"draws": draws, "fit": of_fit})
        plots = (
            [az.plot_ppc, lambda d: az.plot_loo_pit(d, y="y"), az.plot_bpv]
            if hasattr(az, "plot_ppc")
            else [az.plot_ppc_dist, az.plot_loo_pit, az.plot_ppc_pit]
        )
        for plot in plots:
            plot(draws)
            plot(of_fit)
            plt.close("all")
        # By two names; a table of 1.x is rounded.
        criterion = az.loo(of_fit)
    assert set(found.index) == {"draws", "fit"}
    is_old = hasattr(criterion, "elpd_loo")
    elpd = criterion.elpd_loo if is_old else criterion.elpd
    # ArviZ's weights are those of a density with log E p in place of E log p.
    held = group(of_fit, "log_likelihood")
    alike = to_arviz(group(of_fit, "posterior"), log_likelihood=held)
    assert elpd == pytest.approx(loo(alike).elpd, rel=1e-6 if is_old else 1e-3)
    assert loo(of_fit).elpd < elpd


def test_a_summary_leaves_out_the_whitened_values(draws):
    assert gp.hyperparameters(draws) == ["rate", "variance"]
    table = gp.diagnostics.summary(draws)
    assert not any(name.startswith("f[") for name in table.index)
    assert "f[0]" in gp.diagnostics.summary(draws, ["f"]).index
    with pytest.raises(ValueError, match="which of their variables are whitened"):
        gp.hyperparameters(to_arviz({"f": np.zeros((1, 3))}))


# ----------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coords": {"yaer": YEARS}}, "coords labels the dimension 'yaer'"),
        ({"coords": {"year": YEARS[:3]}}, "must give dimension 'year'"),
        ({"dims": {"z": ["a"]}}, "dims names the axes of 'z'"),
        ({"dims": {"y": ["a", "b"]}}, "without chain and draw it has the shape"),
    ],
)
def test_names_and_labels_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        gp.prior_predictive(random.key(0), model, *DATA, num_draws=3, **options)


def test_arguments_that_do_not_fit_are_refused(fitted, draws):
    with pytest.raises(ValueError, match="thin them"):
        gp.posterior_predictive(random.key(0), model, draws, COUNTS_X, num_draws=3)
    with pytest.raises(ValueError, match="which go after the posterior"):
        gp.log_likelihood(random.key(0), model, fitted, COUNTS_X)
    with pytest.raises(ValueError, match="add_to must be an ArviZ object"):
        gp.posterior_predictive(random.key(0), model, fitted, COUNTS_X, add_to={})
    with pytest.raises(ValueError, match=r"add_to holds 20 data .* draws of 3: plots"):
        gp.posterior_predictive(random.key(0), model, draws, COUNTS_X[:3], add_to=draws)
    with pytest.raises(ValueError, match="random key"):
        gp.posterior_predictive(0, model, fitted, COUNTS_X)
