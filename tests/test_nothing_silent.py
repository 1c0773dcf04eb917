"""Mistakes that once gave a number without a word."""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import seed
from numpyro.infer.autoguide import AutoLaplaceApproximation
from numpyro.primitives import mutable

import svgp_ppl as gp
from tests.conftest import both_precisions
from tests.models import COUNTS_X, COUNTS_Y, counts_z, unseen

DATA = (COUNTS_X, COUNTS_Y)


def model(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


def fit(model, *args, guide=None, **options):
    options = {"num_steps": 2, "progress": False} | options
    return gp.fit(random.key(0), model, guide, *args, **options)


# ----------------------------------------------------------------------- prediction


@pytest.mark.thorough
def test_a_process_that_the_fit_does_not_have_is_not_invented():
    def larger(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        g = gp.sparse_gp("g", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x) + g(x), obs=y)

    fitted = fit(model, *DATA)
    message = r"the guide has no site for the process 'g'.* of another model"
    with pytest.raises(ValueError, match=message):
        _ = gp.predict(larger, fitted, COUNTS_X)["y"].mean
    with pytest.raises(ValueError, match=message):
        gp.draw_functions(random.key(0), larger, fitted, COUNTS_X)
    with pytest.raises(ValueError, match=r"no draws of \['g'\], only of \['f'\]"):
        gp.predict(larger, {"f": np.zeros((3, 5))}, COUNTS_X)


@pytest.mark.parametrize("is_rest", [False, True])
def test_a_laplace_approximation_gives_its_mode(is_rest):
    def scaled(x, y=None):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), scale * f(x), obs=y)

    guide: Any = AutoLaplaceApproximation(scaled)
    if is_rest:
        guide = gp.AutoGaussian(scaled, rest=AutoLaplaceApproximation)
    fitted = fit(scaled, *DATA, guide=guide)
    advice = "rest=AutoMultivariateNormal" if is_rest else "guide.sample_posterior"
    with pytest.warns(UserWarning, match=rf"gives its mode .* {advice}"):
        gp.predict(scaled, fitted, COUNTS_X[:2])


def test_a_model_in_the_place_of_its_guide_is_noticed(tmp_path):
    fitted = fit(model, *DATA)
    path = tmp_path / "fit.npz"
    fitted.save(path)
    loaded = gp.Fit.load(path, model)
    message = r"the guide makes the process 'f' by sparse_gp.* exchanged"
    with pytest.raises(ValueError, match=message):
        gp.predict(model, loaded, COUNTS_X, key=random.key(0))
    with pytest.raises(ValueError, match=message):
        fit(model, *DATA, guide=model)
    with pytest.raises(ValueError, match=message):
        gp.sample(random.key(0), model, *DATA, init=loaded, progress=False)


@pytest.mark.thorough
def test_a_latent_site_that_the_guide_does_not_have_needs_a_key():
    def with_effect(x, y=None):
        shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x) + shift, obs=y)

    fitted = fit(model, *DATA)
    with pytest.raises(ValueError, match=r"of the model that the guide does not have"):
        gp.predict(with_effect, fitted, COUNTS_X)
    key = random.key(1)
    at_x = gp.predict(with_effect, fitted, COUNTS_X, key=key, num_draws=400)["y"]
    plain = gp.predict(model, fitted, COUNTS_X)["y"]
    # The prior variance of the shift is 1: 400 draws, to 5 standard errors.
    added = np.asarray(at_x.latent_variance - plain.latent_variance)
    assert np.all(np.abs(added - 1.0) < 5 * (2 / 400) ** 0.5)


def test_draws_of_unequal_length_are_refused():
    draws = {"f": np.zeros((4, 5)), "variance": np.ones(3)}
    with pytest.raises(ValueError, match=r"same leading axis of draws .*\(4, 5\)"):
        gp.predict(model, draws, COUNTS_X)


def test_a_prediction_that_reads_none_of_its_inputs_says_so():
    def of(inputs):
        def model(x, y=None):
            f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
            with numpyro.plate("data", len(x)):
                gp.observe("y", gp.likelihoods.Poisson(), f(inputs(x)), obs=y)

        return model

    draws, x_new = {"f": np.ones((2, len(counts_z())))}, COUNTS_X + 0.1
    with pytest.warns(UserWarning, match="do not depend on the arrays passed"):
        gp.predict(of(lambda x: COUNTS_X), draws, x_new)
    gp.predict(of(lambda x: 2.0 * x[:, :1]), draws, x_new)


def test_a_prediction_at_the_latent_inputs_of_the_fit_says_so():
    def model(measured, y=None, exposure=0.0):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(measured)):
            x = numpyro.sample("x", dist.Normal(measured, 0.3))
            gp.observe("y", gp.likelihoods.Poisson(), f(x[:, None]) + exposure, obs=y)

    column = COUNTS_X[:, 0]
    draws = {"f": np.ones((2, len(counts_z()))), "x": np.stack([column, column])}
    with pytest.warns(UserWarning, match="latent site whose values the posterior has"):
        gp.predict(model, draws, column + 0.1)
    with pytest.warns(UserWarning, match="latent site whose values the posterior has"):
        gp.predict(model, draws, column + 0.1, exposure=0.1 * column)
    gp.predict(model, {"f": draws["f"]}, column[:5], key=random.key(0))


@pytest.mark.parametrize("prior", [dist.LogNormal(0.0, 1.0), dist.Uniform(0.0, 5.0)])
def test_draws_of_an_unconstrained_space_are_refused(prior):
    def with_prior(x, y=None):
        lengthscale = numpyro.sample("lengthscale", prior.expand([1]).to_event(1))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    draws = {"f": np.zeros((3, len(counts_z()))), "lengthscale": np.full((3, 1), 0.7)}
    gp.predict(with_prior, draws, COUNTS_X)
    draws["lengthscale"] = np.log(draws["lengthscale"])
    with pytest.raises(ValueError, match=r"-0\.3567 of site 'lengthscale', outside"):
        gp.predict(with_prior, draws, COUNTS_X)


# ----------------------------------------------------------------- data and plates


def test_a_fit_without_data_is_refused():
    with pytest.raises(ValueError, match=r"site 'y' has no data.*passed"):
        fit(model, COUNTS_X)

    def two(x, y=None, other=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("first", gp.likelihoods.Poisson(), f(x), obs=y)
            gp.observe("second", gp.likelihoods.Poisson(), f(x), obs=other)

    with pytest.raises(ValueError, match="observe site 'second' has no data"):
        fit(two, *DATA)

    # By NumPyro's own loop too: the bound itself refuses.
    def guide(x, y=None):
        numpyro.sample("f", dist.Normal(M, S).to_event(1))

    with pytest.raises(ValueError, match="observe site 'second' has no data"):
        gp.MarginalELBO().loss(random.key(0), {}, two, guide, *DATA)


def test_a_mask_that_leaves_nothing_is_noticed():
    def masked(x, y, known):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y, mask=known)

    nothing = np.isnan(np.asarray(COUNTS_Y, float))
    message = "no datum of site 'y' counts"
    with pytest.warns(UserWarning, match=message):
        fit(masked, *DATA, nothing)
    options = {"num_warmup": 2, "num_samples": 2, "num_chains": 1, "progress": False}
    with pytest.warns(UserWarning, match=message):
        gp.sample(random.key(0), masked, *DATA, nothing, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=message)
        fit(masked, *DATA, ~nothing)


@both_precisions
def test_inducing_inputs_far_from_zero_are_refused(precision):
    def timed(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    x, z = (1.7e9 + np.asarray(a, np.float64) for a in (COUNTS_X, counts_z()))

    if precision == 64:
        assert fit(timed, x, COUNTS_Y).losses.shape == (2,)
        return
    with pytest.raises(ValueError, match=r"column 0 .* of float32 are .* apart"):
        fit(timed, x, COUNTS_Y)
    z = jnp.asarray(z)
    with pytest.raises(ValueError, match=r"are all the same, \[17000000"):
        fit(timed, x, COUNTS_Y)


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_a_column_that_says_nothing_may_be_the_same_in_all_of_z(precision):
    """Zero but for one row, say: only seconds since 1970 in x as well are refused."""

    def model(x, z, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    rounded = 0.2 + 1e-6 * np.sin(np.arange(len(counts_z())))
    z = np.column_stack([counts_z(), rounded]).astype(np.float32)
    x = np.column_stack([COUNTS_X, np.eye(len(COUNTS_X))[3]])
    guide = gp.AutoGaussian(model)
    run = {"num_steps": 2, "progress": False}
    assert gp.fit(random.key(0), model, guide, x, z, COUNTS_Y, **run).losses.size == 2
    x[:, 1] = 0.2 + 1e-6 * np.cos(np.arange(len(COUNTS_X)))
    message = "inducing inputs z of process 'f' lose their differences: column 1"
    with pytest.raises(ValueError, match=message):
        gp.fit(random.key(0), model, guide, x, z, COUNTS_Y, **run)
    seconds = 1.7e9 + np.arange(len(z))  # one number in float32
    z = np.column_stack([counts_z(), seconds])
    with pytest.raises(ValueError, match=message), seed(rng_seed=0):
        gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), z)


def test_a_plate_of_another_dimension_is_refused():
    def crossed(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x), dim=-2):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    message = r"plate 'data' of dimension -2, which would count its 20 data 20 times"
    with pytest.raises(ValueError, match=message):
        fit(crossed, *DATA)


@pytest.mark.parametrize("rows_at_once", [7, 100_000])
def test_minibatches_name_the_true_row(monkeypatch, rows_at_once):
    from svgp_ppl.fitting import checks

    monkeypatch.setattr(checks, "_ROWS_AT_A_TIME", rows_at_once)

    def batched(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", 300, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    x = np.linspace(0.0, 5.0, 300)[:, None]
    y = np.ones(300)
    y[217] = 2.5
    with pytest.raises(ValueError, match=r"among them is 2\.5 \(row 217\)"):
        fit(batched, x, y, batch_size=10)
    y[217] = np.nan
    with pytest.raises(ValueError, match=r"NaN or infinity, first at index \(217,\)"):
        fit(batched, x, y, batch_size=10)
    x[43], y[217] = np.inf, 1.0
    with pytest.raises(ValueError, match=r"inputs of process 'f'.*index \(43, 0\)"):
        fit(batched, x, y, batch_size=10)


def test_rows_picked_by_a_plate_and_observed_outside_of_it_are_refused():
    x, y = jnp.asarray(COUNTS_X), jnp.asarray(COUNTS_Y)

    def outside(x, y, times=1.0):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x), subsample_size=5) as rows:
            chosen, counts = x[rows], y[rows]
        with numpyro.plate("few", 5) as rows:  # others, which count as they are
            gp.observe("z", gp.likelihoods.Poisson(), f(x[rows]), obs=y[rows])
        with numpyro.handlers.scale(scale=times):
            gp.observe("y", gp.likelihoods.Poisson(), f(chosen), obs=counts)

    with pytest.raises(ValueError, match="site 'y' has the 5 rows that plate 'data'"):
        fit(outside, x, y)
    fit(outside, x, y, times=len(x) / 5)


def test_rows_picked_by_a_plate_are_looked_at():
    def picked(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)) as rows:
            gp.observe("y", gp.likelihoods.Poisson(), f(x[rows]), obs=y[rows])

    y = COUNTS_Y.astype(float)
    y[11] = -1.0
    with pytest.raises(ValueError, match=r"among them is -1\.0 \(row 11\)"):
        fit(picked, COUNTS_X, y)


# --------------------------------------------------------------------- not finite


@pytest.mark.thorough
def test_a_value_that_leaves_its_range_is_named():
    def drifting(x, y):
        variance = numpyro.param("variance", 0.02)
        f = gp.sparse_gp("f", gp.kernels.RBF(0.1 - 3.0 * variance, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x) - 5.0 * variance, obs=y)

    flat = jnp.zeros_like(COUNTS_Y)
    message = (
        r"(?s)The model refuses its values there: .*'f' must be positive, and is -"
    )
    with pytest.raises(gp.NonFiniteBoundError, match=message):
        fit(drifting, COUNTS_X, flat, num_steps=100)


@pytest.mark.parametrize("num_steps", [1, 30])
def test_a_gradient_that_is_not_finite_is_reported(num_steps):
    def kinked(x, y):
        shift = numpyro.param("shift", 0.0)
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            root = jnp.sqrt(shift**2)  # no derivative at 0
            gp.observe("y", gp.likelihoods.Poisson(), f(x) + root, obs=y)

    message = (
        r"gradient of the bound is not finite at step 0.*\['shift'\] NaN.*\n.*deri"
    )
    with pytest.raises(gp.NonFiniteBoundError, match=message) as error:
        fit(kinked, *DATA, num_steps=num_steps)
    params = error.value.fit.params
    assert params["shift"] == 0.0 and len(error.value.fit.losses) == 0
    assert all(np.all(np.isfinite(value)) for value in params.values())


def test_an_explanation_that_fails_loses_nothing(monkeypatch):
    from svgp_ppl.fitting import failures

    def broken(*_):
        raise RuntimeError("no explanation")

    monkeypatch.setattr(failures, "explain_non_finite", broken)

    def infinite(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            rate = lambda f: dist.Poisson(jnp.inf * jnp.exp(f))  # noqa: E731
            gp.observe("y", rate, f(x), obs=y)

    with pytest.raises(gp.NonFiniteBoundError, match="cause failed: RuntimeError") as e:
        fit(infinite, *DATA)
    assert set(e.value.fit.params) == {"auto_f_loc", "auto_f_scale_tril"}


# ------------------------------------------------------------------ guides by hand


def bound_of(make, model=model):
    def guide(x, y=None):
        numpyro.sample("f", make())

    @jax.jit
    def loss(*data):
        return gp.MarginalELBO().loss(random.key(0), {}, model, guide, *data)

    return -loss(*DATA)


M, S = np.linspace(-0.5, 1.0, 5), np.linspace(0.3, 0.9, 5)


@pytest.mark.parametrize(
    "one, other",
    [
        (
            lambda: dist.Normal(0.2, 0.4).expand([5]).to_event(1),
            lambda: dist.Normal(jnp.full(5, 0.2), 0.4).to_event(1),
        ),
        (lambda: dist.Normal(M, S), lambda: dist.Normal(M, S).to_event(1)),
        (lambda: dist.Normal(M, S), lambda: dist.MultivariateNormal(M, np.diag(S**2))),
        (
            lambda: dist.Normal(0.2, 0.4).expand([5]),
            lambda: dist.Normal(jnp.full(5, 0.2), 0.4).to_event(1),
        ),
    ],
)
def test_gaussians_in_any_form_are_marginalised(one, other):
    np.testing.assert_allclose(bound_of(one), bound_of(other), rtol=1e-7)


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_gaussians_of_outputs_in_any_form_are_marginalised(num_outputs):
    def outputs(x, y=None):
        kernel = gp.kernels.RBF(1.0, 0.9)
        f = gp.sparse_gp("f", kernel, counts_z(), num_outputs=num_outputs)
        with numpyro.plate("data", len(x)):
            latent = np.ones((1, num_outputs)) @ f(x)
            gp.observe("y", gp.likelihoods.Poisson(), latent[..., 0], obs=y)

    loc, scale = np.stack([M, -M])[:num_outputs], np.stack([S, 2 * S])[:num_outputs]
    expected = bound_of(lambda: dist.Normal(loc, scale).to_event(2), outputs)
    tril = scale[..., None] * np.eye(5)
    for make in (
        lambda: dist.Normal(loc, scale),
        lambda: dist.Normal(loc, scale).to_event(1),
        lambda: dist.MultivariateNormal(loc, scale_tril=tril),
        lambda: dist.MultivariateNormal(loc, scale_tril=tril).to_event(1),
    ):
        np.testing.assert_allclose(bound_of(make, outputs), expected, rtol=1e-6)


def test_what_is_sampled_says_so():
    def flow():
        base = dist.Normal(M, S).to_event(1)
        affine = dist.transforms.AffineTransform(0.1, 1.0)
        return dist.TransformedDistribution(base, affine)

    with pytest.warns(UserWarning, match=r"q\(v\) of process 'f' .* not marginalised"):
        bound_of(flow)


# ------------------------------------------------------- mistakes that people make


def observing(likelihood=None, latent=lambda f, x: f(x), **kernel):
    kernel = {"variance": 1.0, "lengthscale": 0.9} | kernel
    likelihood = gp.likelihoods.Poisson() if likelihood is None else likelihood

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(**kernel), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", likelihood, latent(f, x), obs=y)

    return model


def plain_site(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(f(x), 0.1), obs=y)


def recorded(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
    numpyro.deterministic("g", f(x))
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


@pytest.mark.parametrize(
    "model, message",
    [
        (plain_site, r"a latent, .* is not an array.*gp.observe"),
        (
            observing(latent=lambda f, x: jnp.exp(f(x))),
            "is not an array.*Put the function into the likelihood",
        ),
        (observing(latent=lambda f, x: np.exp(f(x))), "is not an array.*likelihood"),
        (observing(latent=lambda f, x: f(x) ** 2), "is not an array.*likelihood"),
        (observing(latent=lambda f, x: f(x) @ jnp.eye(1)), r"W\.T @ f\(x\)"),
        (observing(latent=lambda f, x: f), r"Call it with inputs: f\(x\)"),
        (observing(gp.likelihoods.Poisson(np.ones(7))), r"one for each datum, \(20,\)"),
        (observing(lambda f: dist.Normal(f, 0.0)), "got invalid scale.*be allowed by"),
        (
            observing(gp.likelihoods.Poisson(np.ones((20, 1)))),
            r"\[N\] and not \[N, 1\]",
        ),
        (recorded, "site 'g' is a latent"),
        (observing(dist.Poisson(1.0)), "likelihood of site 'y' is a function of f"),
        (
            observing(gp.likelihoods.Poisson),
            "Make an object of it first",
        ),
        (observing(lengthscale=0.0), "lengthscale of process 'f' must be positive"),
        (observing(lengthscale=np.nan), "lengthscale of process 'f' .* is nan"),
        (observing(variance=-1.0), "variance of process 'f' must be positive"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*requires ndarray or scalar")
def test_models_that_cannot_be(as_users_call, model, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit(model, *DATA)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"optimizer": 1e-2}, "optimizer must be an optax transformation.*is 0.01"),
        ({"optimizer": "adam"}, "optimizer must be an optax .*is 'adam'"),
        ({"loss": gp.MarginalELBO}, "loss must be an object such as gp.MarginalELBO"),
        ({"num_steps": True}, "num_steps must be a positive integer, and is True"),
        ({"num_steps": 2.5}, "num_steps must be a positive integer, and is 2.5"),
        ({"patience": 0}, "patience must be a positive integer"),
    ],
)
def test_options_of_fit_that_cannot_be(as_users_call, options, message):
    with pytest.raises(ValueError, match=message):
        fit(model, *DATA, **options)


@pytest.mark.parametrize("key", [0, None, np.zeros(3)])
def test_a_key_is_asked_for(as_users_call, key):
    calls = [
        lambda: gp.fit(key, model, None, *DATA),
        lambda: gp.sample(key, model, *DATA),
        lambda: gp.draw_functions(key, model, {"f": np.zeros((2, 5))}, COUNTS_X),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"must be a random key, jax.random.key"):
            call()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sampler": gp.mcmc.NUTS}, r"an object such as gp.mcmc.NUTS\(\)"),
        ({"num_warmup": 2.5}, "num_warmup must be an integer of at least 0"),
        ({"num_chains": 0}, "num_chains must be a positive integer"),
    ],
)
def test_options_of_sample_that_cannot_be(as_users_call, options, message):
    with pytest.raises(ValueError, match=message):
        gp.sample(random.key(0), model, *DATA, **options)


@pytest.mark.parametrize(
    "x, y, message",
    [
        (COUNTS_X, COUNTS_Y.astype(str), r"site 'y' must be real numbers.*dtype <U"),
        (COUNTS_X, COUNTS_Y.astype(object), r"dtype object. Convert them first"),
        (COUNTS_X, COUNTS_Y.astype("M8[D]"), r"real numbers and are of dtype datetime"),
        (
            COUNTS_X.astype("M8[s]"),
            COUNTS_Y,
            r"\(t - t\.min\(\)\) / np\.timedelta64.*of the fit",
        ),
        (COUNTS_X.astype("m8[s]"), COUNTS_Y, r"first: t / np\.timedelta64.*in days"),
        (COUNTS_X.astype(object), COUNTS_Y, r"inputs of process 'f' must be real"),
        (COUNTS_X, np.ma.masked_array(COUNTS_Y, COUNTS_Y > 3), r"mask=~y\.mask"),
        (COUNTS_X, np.where(COUNTS_Y > 3, np.nan, COUNTS_Y), r"mask=~np\.isnan\(y\)"),
        (COUNTS_X[:0], COUNTS_Y[:0], "a plate of the model has no rows.*x empty"),
        (COUNTS_X, [[1], [2, 3]] * 10, "rows of unequal length"),
        (COUNTS_X, random.key(0), "site 'y'.*are a random key, which stands first"),
    ],
)
def test_data_that_cannot_be(as_users_call, x, y, message):
    for call in (
        lambda: fit(model, x, y),
        lambda: gp.sample(random.key(0), model, x, y),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_arrays_of_other_things_reach_the_model():
    # Which it may use: only what it gives to a site has to be numbers.
    def of_names(x, names, y=None):
        groups, of_row = np.unique(names, return_inverse=True)
        shift = numpyro.param("shift", jnp.zeros(len(groups)))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x) + shift[of_row], obs=y)

    names = np.array(["a", "b"] * 10)
    fitted = fit(of_names, COUNTS_X, names, COUNTS_Y)
    assert fitted.params["shift"].shape == (2,)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: fit(model, *DATA, guide=gp.AutoGaussian),
            "guide must be an object such",
        ),
        (
            lambda: fit(model, *DATA, num_step=3),
            "keyword argument 'num_step'.*no option",
        ),
        (lambda: fit(3, *DATA), "must be a function with NumPyro sites, and is a int"),
        (
            lambda: fit(model, *DATA, tolerance="a"),
            "tolerance must be a number of nats",
        ),
        (lambda: fit(model, *DATA, freeze=["f"]), "freeze must be a dict"),
        (
            lambda: fit(model, *DATA, checkpoint=3),
            "checkpoint must be the name of a file",
        ),
        (lambda: gp.mcmc.NUTS(max_num_doublings=2.5), "must be an integer, and is 2.5"),
        (lambda: gp.mcmc.HMC(0.1), "step_size_bounds must be two positive numbers"),
        (lambda: gp.inducing.subset(COUNTS_X, 3, 0), "key must be a random key"),
        (
            lambda: gp.predict(model, {"f": np.zeros((2, 5))}, COUNTS_X, key=0),
            "key must",
        ),
        (
            lambda: gp.predict(model, {"f": np.full((2, 5), np.nan)}, COUNTS_X),
            "2 of 2 draws of site 'f' are NaN",
        ),
        (lambda: gp.predict(model, {"f": np.zeros((0, 5))}, COUNTS_X), "no draws"),
        (
            lambda: gp.predict(model, {"f": np.zeros((2, 5))}),
            r"model\(x, y=None\) cannot be called.*missing a required argument: 'x'",
        ),
        (
            lambda: fit(model, *DATA, steps=3),
            r"The options are optimizer, num_steps, loss, .*\.$",
        ),
        (
            lambda: gp.sample(random.key(0), model, *DATA, num_draws=3),
            r"The options are sampler, .*num_samples, .*\.$",
        ),
        (
            lambda: gp.diagnostics.summary(fit(model, *DATA)),
            r"got a Fit\. A fit is judged by gp.diagnostics.report",
        ),
        (lambda: gp.diagnostics.rhat(3), "expected draws.*got a int"),
    ],
)
def test_calls_that_cannot_be(as_users_call, call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("call", [gp.fit, gp.sample, gp.importance_sample])
def test_calls_inside_of_a_trace(as_users_call, call):
    x, y = DATA
    ys, keys = jnp.stack([y, y]), random.split(random.key(0), 2)
    refused = f"{call.__name__} cannot be called inside of jax.jit, vmap or grad"
    with pytest.raises(ValueError, match=refused):
        jax.vmap(lambda y: call(keys[0], model, x, y, init=None))(ys)
    with pytest.raises(ValueError, match=refused):
        jax.vmap(lambda key: call(key, model, x, y, init=None))(keys)


@pytest.mark.filterwarnings("ignore:subsample_size does not match")
def test_more_rows_than_a_model_of_batches_has():
    def batched(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", 20, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    more = np.linspace(0.0, 5.0, 33)[:, None]
    with pytest.raises(
        ValueError, match=r"'data', max\(20, len\(x\)\), subsample_size"
    ):
        gp.predict(batched, {"f": np.zeros((2, 5))}, more)


def three_classes(num_outputs):
    def model(x, y):
        kernel = gp.kernels.RBF(1.0, 0.9)
        f = gp.sparse_gp("f", kernel, counts_z(), num_outputs=num_outputs)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Softmax(3), f(x), obs=y)

    return model


@pytest.mark.thorough
def test_labels_of_classes_may_be_floats():
    classes = three_classes(num_outputs=3)
    labels = np.arange(20) % 3
    whole, floats = fit(classes, COUNTS_X, labels), fit(classes, COUNTS_X, 1.0 * labels)
    np.testing.assert_array_equal(floats.losses, whole.losses)
    one_hot = np.eye(3)[labels]
    for y, match in (
        (one_hot, r"\(20, 3\)\. Labels .* np.argmax\(y, axis=1\) of one-hot rows"),
        (one_hot[:, :, None], r"have \(20, 3, 1\)\.(\n|$)"),
        (labels[:5], r"have \(5,\)\. Give one for each row of x"),
    ):
        with pytest.raises(ValueError, match=match):
            fit(classes, COUNTS_X, y)


@pytest.mark.parametrize(
    "of",
    [lambda f: f - f.mean(), lambda f: f - f.mean(0), lambda f: jnp.cumsum(f, -1)],
    ids=["centred", "over the nodes", "summed"],
)
def test_the_likelihood_of_a_row_sees_its_own_latent(of):
    def mixed(x, y=None):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", lambda f: dist.Normal(of(f), scale), f(x), obs=y)

    with pytest.raises(ValueError, match="of site 'y' at a row depends on f at other"):
        fit(mixed, *DATA)
    with pytest.raises(ValueError, match="of site 'y' at a row depends on f at other"):
        gp.sample(random.key(0), mixed, *DATA, num_warmup=1, num_samples=1)


@pytest.mark.parametrize(
    "likelihood",
    [
        dist.Bernoulli,
        lambda f: dist.Bernoulli(probs=f),
        lambda f: dist.Binomial(3, f),
        lambda f: dist.Geometric(f),
    ],
    ids=["class", "Bernoulli", "Binomial", "Geometric"],
)
def test_a_latent_is_no_probability(likelihood):
    with seed(rng_seed=0):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())(COUNTS_X)
    with pytest.raises(ValueError, match=r"for a probability: write .*logits=f"):
        gp.Expected(likelihood, f)
    gp.Expected(lambda f: dist.Bernoulli(probs=jnp.clip(f, 0.0, 1.0)), f)


def test_an_error_of_a_likelihood_here_keeps_its_words():
    with pytest.raises(ValueError, match="Softmax") as refused:
        fit(three_classes(num_outputs=2), COUNTS_X, np.arange(20) % 3)
    assert "fails" not in str(refused.value)


def test_mutable_sites_are_not_lost():
    def counting(x, y):
        state = mutable("state", {"steps": jnp.zeros(())})
        state["steps"] = state["steps"] + 1
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    with pytest.raises(ValueError, match=r"'state' is mutable .* numpyro.infer.SVI"):
        fit(counting, COUNTS_X, np.arange(20) % 3)


def test_values_that_cannot_be():
    with pytest.raises(ValueError, match=r"scale of a Gaussian .* must be positive"):
        gp.likelihoods.Gaussian(-0.1)
    with pytest.raises(ValueError, match=r"exposure .* must be positive, and is 0"):
        gp.likelihoods.Poisson(np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="max_num_doublings must be at least 1"):
        gp.mcmc.NUTS(max_num_doublings=0)


def test_what_is_accepted(as_users_call):
    # No guide, NumPy's integers, arrays of another byte order.
    x, y = COUNTS_X.astype(">f8"), COUNTS_Y.astype(">i4")
    swapped = gp.fit(random.key(0), model, x, y, num_steps=np.int64(3), progress=False)
    plain = fit(model, *DATA, guide=gp.AutoGaussian(model), num_steps=3)
    np.testing.assert_array_equal(swapped.losses, plain.losses)


@pytest.mark.thorough
def test_pandas_may_be_added():
    pandas = pytest.importorskip("pandas")
    offset = np.linspace(0.0, 1.0, 20)
    by_series = fit(observing(latent=lambda f, x: pandas.Series(offset) + f(x)), *DATA)
    by_array = fit(observing(latent=lambda f, x: f(x) + offset), *DATA)
    np.testing.assert_allclose(by_series.losses, by_array.losses)


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int8", "int16"])
@pytest.mark.parametrize("of", [np, jnp])
def test_integers_of_few_bits_are_subtracted(of, dtype):
    """-y of them wraps: 253 for -3, and -128 for 128."""
    offset = of.asarray([-128, 0] if dtype == "int8" else [3, 100], dtype)
    with numpyro.handlers.seed(rng_seed=0):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())(COUNTS_X[:2])
    numbers = np.asarray(offset, float)
    np.testing.assert_allclose((f - offset).mean, f.mean - numbers)
    np.testing.assert_allclose((offset - f).mean, numbers - f.mean)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "y", "dtypes"),
    [
        (dist.Geometric, [3, 255], ["uint8", "uint16", "uint32"]),  # has -y
        (dist.Geometric, [0, 1], ["bool"]),
        (lambda _, logits: dist.Binomial(300, logits=logits), [3, 255], ["uint8"]),
        (lambda _, logits: dist.Binomial(300, logits=logits), [3, 127], ["int8"]),
        (lambda _, logits: dist.LogNormal(logits, 1.0), [3.0, 255.0], ["float16"]),
        (lambda _, logits: dist.Gumbel(logits, 1.0), [3.0, -7.0], ["float32"]),
    ],
)
def test_data_of_few_bits_count_for_what_they_are(make, y, dtypes):
    """y + 1 and -y of them wrap in the formulas of distributions."""
    with numpyro.handlers.seed(rng_seed=0):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())(COUNTS_X[:2])
    expected = gp.Expected(lambda f: make(None, logits=f), f)
    for dtype in dtypes:
        few, full = np.array(y, dtype), np.array(y, float)
        for log_p in (expected.log_prob, expected.log_predictive):
            both = jax.jit(lambda log_p=log_p, y=(few, full): list(map(log_p, y)))
            np.testing.assert_allclose(*both(), rtol=1e-6)


def test_two_threads_may_fit():
    from concurrent.futures import ThreadPoolExecutor

    def one(seed):
        options = {"num_steps": 5, "progress": False}
        with jax.enable_x64(True):  # a setting of a thread
            return gp.fit(random.key(seed), model, None, *DATA, **options).losses

    alone = [one(0), one(1)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(one, (0, 1)))
    np.testing.assert_array_equal(together, alone)


def test_a_guide_of_another_model_is_noticed():
    def model(x, y=None, *, more=False):
        scale = numpyro.sample("scale", dist.LogNormal())
        variance = numpyro.sample("variance", dist.LogNormal()) if more else 1.0
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(scale), f(x), obs=y)

    def longer(x, y=None):
        model(x, y, more=True)

    def shorter(x, y=None):
        model(x, y)

    options = {"num_steps": 2, "progress": False}
    data = COUNTS_X, np.sin(COUNTS_X[:, 0])
    with pytest.warns(UserWarning, match=r"the guide has no site \['variance'\]"):
        gp.fit(random.key(0), longer, gp.AutoGaussian(shorter), *data, **options)
    with pytest.warns(UserWarning, match=r"has a site \['variance'\], and the model"):
        gp.fit(random.key(0), shorter, gp.AutoGaussian(longer), *data, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = gp.fit(random.key(0), shorter, None, *data, **options)
    with pytest.raises(ValueError, match="the model comes before"):
        gp.fit(random.key(0), gp.AutoGaussian(shorter), shorter, *data, **options)
    with pytest.raises(KeyError, match="no observe site 'f', only 'y'"):
        fit.predict(COUNTS_X)["f"]
    with pytest.raises(ValueError, match="hold NaN or infinity"):
        gp.diagnostics.report(fit, COUNTS_X, np.full(len(COUNTS_X), np.nan))
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        fit.save("no such folder/fit.npz")


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_counts_beyond_32_bits(precision):
    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    x, y = unseen(COUNTS_X, COUNTS_Y.astype(np.int64))
    with pytest.raises(ValueError, match=r"42949\d+, which has no place in int32"):
        gp.fit(random.key(0), model, None, x, y + 2**32, num_steps=1)
    gp.fit(random.key(0), model, None, x, y, num_steps=1, progress=False)


@gp.register_dataclass
@dataclass(frozen=True)
class Pull(gp.kernels.Kernel):
    """A kernel of one's own with a value that may be zero."""

    pull: float

    not_negative = ("pull",)

    def _evaluate(self, pairs):
        return jnp.exp(-self.pull * pairs.squared_distance(1.0))

    def _evaluate_diagonal(self, x):
        return jnp.ones(len(x))


def test_values_that_make_no_kernel_and_no_likelihood():
    for kernel, name in (
        (gp.kernels.ArcCosine(weight_variances=-1.0), "weight_variances"),
        (gp.kernels.ArcCosine(bias_variance=-1.0), "bias_variance"),
        (gp.kernels.Polynomial(2, offset=-1.0), "offset"),
    ):
        with pytest.raises(ValueError, match=f"the {name} of process 'f' must be"):
            gp.sparse_gp("f", kernel, counts_z())
    with numpyro.handlers.seed(rng_seed=0):
        gp.sparse_gp("f", gp.kernels.Polynomial(2, offset=0.0), counts_z())
        gp.sparse_gp("g", Pull(0.0), counts_z())
    with pytest.raises(ValueError, match="the pull of process 'f' must be"):
        gp.sparse_gp("f", Pull(-1.0), counts_z())
    with pytest.raises(ValueError, match="scale of a GPRN likelihood must be positive"):
        gp.likelihoods.GPRN(2, 1, -1.0)
    log = dist.transforms.ExpTransform().inv
    with pytest.raises(ValueError, match="scale of a Warped likelihood must be positi"):
        gp.likelihoods.Warped(log, 0.0)


@pytest.mark.usefixtures("as_users_call")
def test_what_is_combined_and_observed_by_mistake():
    kernel = gp.kernels.RBF(1.0, 0.9)
    for combine in (lambda: kernel + abs, lambda: kernel * abs):
        with pytest.raises(TypeError, match=r"kernels\.as_kernel"):
            combine()
    with pytest.raises(ValueError, match="a process for each kernel"):
        gp.sparse_gp("f", [kernel, kernel], counts_z())

    def layers(x, y=None):
        f = gp.sparse_gp("f", kernel, counts_z())
        g = gp.sparse_gp("g", kernel, counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), g(f(x)), obs=y)

    def chooses(x, y=None):
        f = gp.sparse_gp("f", kernel, gp.inducing.grid(x, 5))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    options = {"num_steps": 2, "progress": False}
    data = COUNTS_X, COUNTS_Y
    with pytest.raises(ValueError, match=r"are a latent, .*gp\.propagate"):
        gp.fit(random.key(0), layers, None, *data, **options)
    with pytest.raises(ValueError, match="no values inside of a model: choose z"):
        gp.fit(random.key(0), chooses, None, jnp.asarray(COUNTS_X), COUNTS_Y, **options)
    with pytest.raises(ValueError, match=r"A tuple such as \(x, y\) is passed as its"):
        gp.fit(random.key(0), chooses, None, (COUNTS_X, COUNTS_Y[:3]), **options)
