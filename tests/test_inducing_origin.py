"""Inducing inputs that are computed from arguments: refused where these are others."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import scale

import svgp_ppl as gp
from svgp_ppl.inducing_origin import origin_of_z
from tests.models import Walk

X = np.linspace(0.0, 1.0, 40)[:, None]
Y = np.sin(6.0 * X[:, 0])
STEPS = {"num_steps": 2, "progress": False}
OTHERS = r"the inducing inputs are computed from x, and x is not what it was"


def of_rows(x, y=None, num_data=None):
    spread = numpyro.sample("spread", dist.LogNormal())
    f = gp.sparse_gp("f", gp.kernels.RBF(spread, 0.3), x[::10])
    with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


def given(x, y=None, z=None, more=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.3), z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)


def started(x, y=None):
    z = numpyro.param("z", x[::10])
    scale = numpyro.sample("scale", dist.LogNormal(jnp.mean(x), 1.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(scale, 0.3), z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize("of", [np.asarray, jnp.asarray])
def test_a_fit_is_only_of_its_own_inducing_inputs(of, tmp_path):
    y = np.round(np.exp(Y))
    fit = gp.fit(random.key(0), of_rows, None, of(X), of(y), **STEPS)
    assert fit.inducing_origin.keys() == {"x"}
    fit.save(tmp_path / "fit.npz")
    loaded = gp.Fit.load(tmp_path / "fit.npz", gp.AutoGaussian(of_rows), of_rows)
    for one in (fit, loaded):
        assert one.predict(of(X))["y"].mean.shape == one.predict(x=X)["y"].mean.shape
        for ask in (
            lambda one=one: one.predict(of(X) + 2.0),
            lambda one=one: one.predict(x=X[:20]),
            lambda one=one: gp.draw_functions(random.key(1), of_rows, one, X + 2.0),
            lambda one=one: gp.posterior_predictive(
                random.key(1), of_rows, one, X + 2.0
            ),
        ):
            with pytest.raises(ValueError, match=OTHERS):
                ask()


@pytest.mark.thorough
def test_draws_are_only_of_their_own_inducing_inputs():
    y = np.round(np.exp(Y))
    options = {"num_chains": 1, "num_warmup": 2, "num_samples": 2, "progress": False}
    draws = gp.sample(random.key(0), of_rows, X, y, sampler=Walk(), **options)
    gp.predict(of_rows, draws, X)
    with pytest.raises(ValueError, match=OTHERS):
        gp.predict(of_rows, draws, X + 2.0)


@pytest.mark.thorough
def test_draws_of_a_fit_keep_its_inducing_inputs():
    fit = gp.fit(random.key(0), of_rows, None, X, np.round(np.exp(Y)), **STEPS)
    draws = gp.posterior_predictive(random.key(1), of_rows, fit, X, num_draws=3)
    assert gp.predict(of_rows, draws, X)["y"].mean.shape == (40,)
    with pytest.raises(ValueError, match=OTHERS):
        gp.predict(of_rows, draws, X + 2.0)


def test_inducing_inputs_of_a_batch_are_refused():
    with pytest.raises(ValueError, match="computed from x, of which every step has"):
        gp.fit(
            random.key(0),
            of_rows,
            None,
            X,
            np.ones(40),
            num_data=40,
            batch_size=10,
            **STEPS,
        )


def test_inducing_inputs_that_are_passed_are_passed_again():
    z = X[::8]
    fit = gp.fit(random.key(0), given, None, X, Y, z, **STEPS)
    assert fit.inducing_origin.keys() == {"z"}
    fit.predict(X + 2.0, z=z.astype("float32"))
    with pytest.raises(ValueError, match="computed from z, and z is not"):
        fit.predict(X + 2.0, z=z + 1.0)


@pytest.mark.thorough
def test_what_only_starts_from_an_argument_does_not_count():
    fit = gp.fit(random.key(0), started, None, X, Y, **STEPS)
    assert fit.inducing_origin == {}
    fit.predict(X + 2.0)


def test_arguments_have_the_names_of_the_model():
    more = {"a": [X[:3]]}
    origin = origin_of_z(given, (X, Y), {"z": X[::8], "more": more}, {})
    assert origin.keys() == {"z"}
    for model in (functools.partial(given), scale(given, scale=2.0)):
        assert origin_of_z(model, (X, Y, X[::8]), {}, {}) == origin

    def nested(*args):
        return given(args[0], args[1], args[2]["z"][0])

    origin = origin_of_z(nested, (X, Y, {"z": [X[::8]]}), {}, {})
    assert origin.keys() == {"argument 2['z'][0]"}
