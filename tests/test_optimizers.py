"""Optimisers that search along a line: what they are told, when they are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from scipy.optimize import minimize

import svgp_ppl as gp
from svgp_ppl.fitting.optimizers import Informed, searches
from tests.models import (
    COUNTS_X,
    COUNTS_Y,
    GAUSSIAN_X,
    GAUSSIAN_Y,
    GAUSSIAN_Z,
    counts_model,
    gaussian_model,
    projection,
)

DATA = GAUSSIAN_X, GAUSSIAN_Y
POSITIVE = dist.constraints.softplus_positive


def learned_model(x, y=None):
    """Regression with free hyperparameters."""
    variance = numpyro.param("variance", 1.0, constraint=POSITIVE)
    lengthscale = numpyro.param("lengthscale", 1.0, constraint=POSITIVE)
    noise = numpyro.param("noise", 1.0, constraint=POSITIVE)
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), GAUSSIAN_Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)


def collapsed(theta):
    """Minus the bound of Titsias (2009) at log variance, lengthscale and noise."""
    variance, lengthscale, noise = np.exp(theta)
    a, residual = projection(GAUSSIAN_X, GAUSSIAN_Z, variance, lengthscale)
    covariance = a @ a.T + noise**2 * np.eye(len(a))
    _, log_det = np.linalg.slogdet(covariance)
    quadratic = GAUSSIAN_Y @ np.linalg.solve(covariance, GAUSSIAN_Y)
    log_evidence = -0.5 * (log_det + quadratic + len(a) * np.log(2 * np.pi))
    return -log_evidence + 0.5 * np.sum(residual) / noise**2


@pytest.mark.slow
def test_natural_steps_and_lbfgs_find_the_optimum_of_the_collapsed_bound():
    best = minimize(
        collapsed, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-6}
    )
    # The search follows the q(v), so it is L-BFGS on the collapsed bound; with the
    # q(v) held still, steps are short, and fifteen pairs not nearly enough.
    fitted = gp.fit(
        random.key(0),
        learned_model,
        gp.AutoGaussian(learned_model),
        *DATA,
        optimizer=gp.natural_gradient(1.0, optax.lbfgs()),
        num_steps=31,
        progress=False,
    )
    assert fitted.losses[-2] == pytest.approx(best.fun, abs=1e-4)
    assert fitted.losses[1] == pytest.approx(collapsed(np.zeros(3)), abs=1e-6)
    theta = [fitted.params[n] for n in ("variance", "lengthscale", "noise")]
    np.testing.assert_allclose(np.log(theta), best.x, atol=2e-2)


def test_what_an_optimiser_is_told():
    told = {}

    def update(updates, state, params=None, **extra):
        told.update(extra, updates=updates, params=params)
        return jax.tree.map(jnp.zeros_like, updates), state

    spy = optax.GradientTransformationExtraArgs(lambda params: (), update)
    optimizer = Informed(spy)
    params = {"a": jnp.asarray(2.0), "b": jnp.asarray([1.0, 3.0])}

    def loss(params):
        return params["a"] ** 2 + jnp.sum(params["b"]), "auxiliary"

    (value, aux), state = optimizer.eval_and_update(loss, optimizer.init(params))
    assert (float(value), aux, int(state[0])) == (8.0, "auxiliary", 1)
    assert told["params"] is params
    assert told["value"] == 8.0
    assert told["grad"] is told["updates"]
    assert told["grad"]["a"] == 4.0
    assert told["value_fn"]({"a": 1.0, "b": jnp.zeros(2)}) == 1.0


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (optax.lbfgs(), True),
        (optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(5)), True),
        (gp.natural_gradient(rest=optax.lbfgs()), True),
        (gp.natural_gradient(), False),
        (optax.adam(1e-2), False),
        (optax.polyak_sgd(), False),
    ],
)
def test_which_optimisers_search(optimizer, expected):
    params = {"f_loc": jnp.zeros(2), "f_scale_tril": jnp.zeros(3), "a": jnp.ones(())}
    assert searches(optimizer, params) is expected


# ------------------------------------------------------------------- random bounds


def with_a_layer(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), GAUSSIAN_Z)
    h = gp.propagate("hidden", f(x))
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(1.0), f(h), obs=y)


def with_drawn_nodes(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), GAUSSIAN_Z)
    method = gp.expectations.MonteCarlo(4)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(1.0), f(x), obs=y, method=method)


def with_a_subsample(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), GAUSSIAN_Z)
    with numpyro.plate("rows", len(x), subsample_size=5) as rows:
        gp.observe("y", gp.likelihoods.Gaussian(1.0), f(x[rows]), obs=y[rows])


def with_noise(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), GAUSSIAN_Z)
    noise = 1.0 + random.uniform(numpyro.prng_key())
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)


@pytest.mark.thorough
def test_every_kind_of_site_that_draws_nothing_may_be_searched():
    def model(x, y=None):
        log_scale = numpyro.param("log_scale", 0.0)
        numpyro.factor("prior", -(log_scale**2))
        lengthscale = numpyro.deterministic("lengthscale", jnp.exp(log_scale))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), GAUSSIAN_Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(1.0), f(x), obs=y)

    fit = gp.fit(
        random.key(0),
        model,
        gp.AutoGaussian(model),
        *DATA,
        optimizer=optax.lbfgs(),
        num_steps=20,
        progress=False,
    )
    assert np.all(np.diff(fit.losses) <= 1e-5)
    assert fit.losses[-1] < fit.losses[0]


BOTH = gp.natural_gradient(1.0, optax.lbfgs())


def counts_normal(model):
    return gp.AutoGaussian(model, rest=AutoNormal)


@pytest.mark.parametrize(
    ("model", "guide", "options", "words"),
    [
        (with_a_layer, gp.AutoGaussian, {}, "layer 'hidden' draws"),
        (with_drawn_nodes, gp.AutoGaussian, {}, "site 'y' draws its nodes"),
        (with_a_subsample, gp.AutoGaussian, {}, "'rows' is a subsample of 5 out of 15"),
        (with_noise, gp.AutoGaussian, {}, "depends on the random key"),
        pytest.param(
            counts_model,
            counts_normal,
            {},
            "the guide draws site 'lengthscale'",
            marks=pytest.mark.thorough,
        ),
        (counts_model, counts_normal, {"optimizer": BOTH}, "draws site 'variance'"),
        (gaussian_model, gp.AutoGaussian, {"loss": Trace_ELBO()}, "draws site 'f'"),
    ],
)
def test_a_random_bound_cannot_be_searched(model, guide, options, words):
    data = (COUNTS_X, COUNTS_Y) if model is counts_model else DATA
    options = {"optimizer": optax.lbfgs(), **options}
    with pytest.raises(ValueError, match=rf"random: .*{words}.* Use optax\.adam"):
        gp.fit(random.key(0), model, guide(model), *data, **options)


def test_numpyro_alone_has_no_search():
    optimizer = gp.natural_gradient(1.0, optax.lbfgs())
    params = {"f_loc": jnp.zeros(2), "f_scale_tril": jnp.zeros(3), "a": jnp.ones(())}
    with pytest.raises(
        ValueError, match=r"NumPyro's SVI does not hand it over: use gp"
    ):
        optimizer.update(params, optimizer.init(params), params, value=1.0)
