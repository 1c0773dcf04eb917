"""A fit at the mean of draws: θ there, q(v) at its best there, nothing else moved."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer.autoguide import AutoNormal

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from tests.models import COUNTS_X, COUNTS_Y, Walk, counts_z

DATA = COUNTS_X, COUNTS_Y
QUIET = {"progress": False}


def model(x, y=None):
    """Two kinds of support, one of them computed from data."""
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    with numpyro.plate("columns", 1):
        lengthscale = numpyro.sample("lengthscale", dist.Uniform(0.3, jnp.max(x) - 2.0))
    z = numpyro.param("z", counts_z())
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


@pytest.fixture(scope="module")
def runs():
    """A fit, draws from it, and the second fit; in double precision."""
    with jax.enable_x64(True):
        first = gp.fit(random.key(0), model, *DATA, num_steps=100, **QUIET)
        options = {"num_chains": 2, "num_warmup": 2, "num_samples": 30, **QUIET}
        draws = gp.sample(
            random.key(1), model, *DATA, init=first, sampler=Walk(), **options
        )
        return first, draws, gp.mcmc.refit(random.key(2), model, first, draws, *DATA)


def test_the_means_are_those_of_unconstrained_values(runs):
    first, draws, second = runs
    values = group(draws, "posterior")
    log_mean = np.exp(np.log(values["variance"]).mean())
    np.testing.assert_allclose(second.params["variance_auto_loc"], log_mean, rtol=1e-9)
    share = (values["lengthscale"] - 0.3) / 2.7
    logit = np.log(share / (1 - share)).mean()
    expected = 0.3 + 2.7 / (1 + np.exp(-logit))
    np.testing.assert_allclose(
        second.params["lengthscale_auto_loc"], [expected], rtol=1e-9
    )
    np.testing.assert_array_equal(second.params["z"], first.params["z"])


def test_q_is_the_best_at_these_values(runs):
    first, _, second = runs
    # By another optimiser from another start, with all values as constants.
    held = {n.removesuffix("_auto_loc"): v for n, v in second.params.items()}
    del held["auto_f_loc"], held["auto_f_scale_tril"]
    fixed = numpyro.handlers.substitute(model, data=held)
    fixed = numpyro.handlers.block(fixed, hide=[n for n in held if n != "z"])
    with jax.enable_x64(True):
        best = gp.fit(
            random.key(3),
            fixed,
            gp.AutoGaussian(fixed),
            *DATA,
            num_steps=60,
            optimizer=optax.lbfgs(),
            freeze={"z": np.inf},
            **QUIET,
        )
    for name in ("auto_f_loc", "auto_f_scale_tril"):
        np.testing.assert_allclose(second.params[name], best.params[name], atol=1e-3)
        assert np.abs(second.params[name] - first.params[name]).max() > 1e-2


@pytest.mark.usefixtures("as_users_call")
def test_what_cannot_be_refitted(runs):
    first, draws, _ = runs
    again = (random.key(0), model)
    with pytest.raises(ValueError, match=r"a guide of this library.*is a function"):
        gp.mcmc.refit(*again, (lambda x, y=None: None, {}), draws, *DATA)
    spread = gp.AutoGaussian(model, rest=AutoNormal)
    other = gp.fit(random.key(0), model, spread, *DATA, num_steps=2, **QUIET)
    with pytest.raises(ValueError, match=r"point estimate of 'variance'"):
        gp.mcmc.refit(*again, other, draws, *DATA)
    # The shapes of a site are those of the model, one number or a row of them.
    assert spread.median(other.params)["variance"].shape == ()
    assert spread.quantiles(other.params, [0.2, 0.5])["lengthscale"].shape == (2, 1)

    def dependent(x, y=None):
        most = numpyro.sample("most", dist.Gamma(30.0, 10.0))
        lengthscale = numpyro.sample("lengthscale", dist.Uniform(0.0, most))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), x[::5])
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    guide = gp.AutoGaussian(dependent)  # gp.fit refuses it too
    sites = handlers.trace(handlers.seed(guide, 0)).get_trace(*DATA)
    params = {n: site["value"] for n, site in sites.items() if site["type"] == "param"}
    moving = guide, params
    of_it = {"most": np.full((1, 3), 3.0), "lengthscale": np.ones((1, 3))}
    of_it = gp.diagnostics.to_arviz(of_it)
    with pytest.raises(ValueError, match="site 'lengthscale' depends on another"):
        gp.mcmc.refit(random.key(0), dependent, moving, of_it, *DATA)
    fewer = {"f": np.zeros((1, 3, 5)), "variance": np.ones((1, 3))}
    with pytest.raises(ValueError, match="no site 'lengthscale'"):
        gp.mcmc.refit(*again, first, gp.diagnostics.to_arviz(fewer), *DATA)
