"""Moving-window Monte Carlo EM: the maximum of the evidence, its steps, refusals."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.distributions import constraints
from scipy.optimize import minimize

import svgp_ppl as gp
from svgp_ppl.mcmc import moving_window_em
from tests.conftest import mostly_double
from tests.models import gaussian_model, rbf

# ------------------------------------------------ a conjugate model, u at all inputs

X = np.linspace(0.0, 4.0, 25)[:, None]
Y = np.sin(2.0 * X[:, 0]) + 0.3 * np.cos(17.0 * np.arange(25) ** 2)


def positive(name, start):
    return numpyro.param(name, start, constraint=constraints.positive)


def regression(x, y=None, batch_size=None):
    kernel = gp.kernels.RBF(positive("variance", 1.0), positive("lengthscale", 1.0))
    f = gp.sparse_gp("f", kernel, jnp.asarray(X.copy(), float))
    with numpyro.plate("data", len(x), subsample_size=batch_size) as rows:
        here = None if y is None else y[rows]
        noise = positive("noise", 0.6)
        gp.observe("y", gp.likelihoods.Gaussian(noise), f(x[rows]), obs=here)


def best_of_evidence():
    """argmax log N(y; 0, K + σ² I), by NumPy and SciPy."""

    def negative(log_values):
        variance, lengthscale, noise = np.exp(log_values)
        gram = rbf(X, X, variance, lengthscale) + noise**2 * np.eye(len(X))
        half = 0.5 * np.linalg.slogdet(gram)[1]
        return half + 0.5 * Y @ np.linalg.solve(gram, Y)

    found = minimize(negative, np.log([1.0, 1.0, 0.6]), method="Nelder-Mead")
    return dict(zip(("variance", "lengthscale", "noise"), found.x)), -found.fun


@pytest.mark.slow
@mostly_double
@pytest.mark.parametrize("batch_size", [None, 20])
def test_it_finds_the_maximum_of_the_evidence(precision, batch_size):
    expected, _ = best_of_evidence()
    guide = gp.AutoGaussian(regression)
    data = (X, Y, batch_size)
    options = {"num_steps": 500, "progress": False}
    fitted = gp.fit(random.key(0), regression, guide, *data, **options)
    # Far from the maximum, where the fit is: it has to come back.
    start = {**fitted.params, "lengthscale": 1.4, "noise": 0.8}
    found = moving_window_em(
        random.key(1),
        regression,
        *data,
        init=(guide, start),
        # With minibatches the bias of the chains, and of what they lead to, is of the
        # order of their step: −0.15 in log σ_f² at 0.1, −0.07 here (three keys each).
        sampler=gp.mcmc.SGHMC(step_size=0.1 if batch_size is None else 0.03),
        num_steps=20_000,  # the variance comes from far, slowly
    )
    for name, value in expected.items():
        # log σ_f² is known to a unit by 25 data, the others better.
        atol = 0.15 if name == "variance" else 0.05
        np.testing.assert_allclose(np.log(found[name]), value, atol=atol)


# ------------------------------------------------------------- one value, by hand


def known_variance(y):
    """y_n ~ N(v, 1), v ~ N(0, s²): the evidence is largest at s² = mean(y)² − 1/N."""
    scale = positive("scale", 0.5)
    v = numpyro.sample("v", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(scale * v, 1.0), obs=y)


def test_the_scale_of_one_value():
    y = np.full(4, 2.0)
    guide = numpyro.infer.autoguide.AutoNormal(known_variance)
    options = {"num_steps": 30, "progress": False}
    fitted = gp.fit(random.key(0), known_variance, guide, y, **options)
    found = moving_window_em(
        random.key(1),
        known_variance,
        y,
        init=fitted,
        optimizer=optax.adam(0.02),
        num_chains=16,
        num_steps=2000,
        window_size=40,
    )
    assert set(found) == set(fitted.params)
    np.testing.assert_allclose(found["scale"], np.sqrt(4.0 - 0.25), rtol=0.03)


# --------------------------------------------------------------------------- refusals


@pytest.mark.usefixtures("as_users_call")
def test_what_it_refuses():
    guide = gp.AutoGaussian(gaussian_model)
    init = (guide, {"f_auto_loc": np.zeros(4), "f_auto_scale_tril": np.eye(4)})
    with pytest.raises(ValueError, match="no param site, and nothing to maximise"):
        moving_window_em(random.key(0), gaussian_model, X, Y, init=init)
    nuts = gp.mcmc.NUTS()
    with pytest.raises(ValueError, match="sampler must be an object such as"):
        moving_window_em(random.key(0), regression, X, Y, init=init, sampler=nuts)
    with pytest.raises(ValueError, match="window_size"):
        moving_window_em(random.key(0), regression, X, Y, init=init, window_size=0)
