"""Masked data: an all-true mask is no mask, a partial one leaves rows out."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers

import svgp_ppl as gp
from svgp_ppl.diagnostics import group, loo
from svgp_ppl.handlers import unwrapped
from tests.models import COUNTS_X, COUNTS_Y, Walk, counts_z

ALL = np.ones(20, bool)
SOME = np.arange(20) % 3 != 0
NEW_X = np.linspace(0.5, 4.5, 7)[:, None]


def model(x, y=None, mask=None):
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, 0.9), counts_z())
    masked = nullcontext() if mask is None else handlers.mask(mask=mask)
    with numpyro.plate("data", len(x)), masked:
        # No closed form: the predictive density is not the expectation.
        gp.observe("y", lambda f: dist.Poisson(jnp.exp(f)), f(x), obs=y)


def fitted(x, y, mask=None):
    guide = gp.AutoGaussian(model)
    options = {"num_steps": 30, "progress": False}
    return gp.fit(random.key(0), model, guide, x, y, mask=mask, **options)


def sampled(x, y, mask=None):
    return gp.sample(
        random.key(1),
        model,
        x,
        y,
        mask=mask,
        sampler=Walk(),
        num_chains=2,
        num_warmup=5,
        num_samples=40,
        log_likelihood=True,
        progress=False,
    )


@pytest.fixture(
    scope="module",
    params=[pytest.param("all rows", marks=pytest.mark.slow), "some rows"],
)
def mask(request):
    return ALL if request.param == "all rows" else SOME


def pair(of, mask):
    """Of all rows under a mask, and of those that it leaves."""
    with jax.enable_x64(True):
        return of(COUNTS_X, COUNTS_Y, mask), of(COUNTS_X[mask], COUNTS_Y[mask])


@pytest.fixture(scope="module")
def fits(mask):
    return pair(fitted, mask)


@pytest.fixture(scope="module")
def draws(mask):
    return pair(sampled, mask)


@pytest.mark.thorough
def test_fits_are_equal(fits):
    masked, left_out = fits
    np.testing.assert_allclose(masked.losses, left_out.losses, rtol=1e-9)


@pytest.mark.thorough
def test_draws_and_their_likelihoods_are_equal(draws):
    masked, left_out = draws
    one, other = (group(d, "posterior")["variance"] for d in (masked, left_out))
    np.testing.assert_allclose(one, other, rtol=1e-9)
    one, other = (group(d, "log_likelihood")["y"] for d in (masked, left_out))
    np.testing.assert_allclose(one, other, rtol=1e-8)


@pytest.mark.thorough
def test_likelihoods_are_predictive_densities(draws, mask):
    # log E p(y|f) and not its lower bound E log p(y|f): by draws of f given v.
    masked, left_out = draws
    assert group(left_out, "log_likelihood")["y"].shape[2:] == (mask.sum(),)
    at_data = gp.predict(model, masked, COUNTS_X[mask])["y"]
    density = at_data.log_prob(COUNTS_Y[mask])
    each = group(masked, "log_likelihood")["y"].reshape(-1, mask.sum())
    expected = np.log(np.mean(np.exp(each), axis=0))
    np.testing.assert_allclose(density, expected, rtol=1e-6)


@pytest.mark.thorough
def test_loo_is_equal(draws):
    masked, left_out = draws
    assert loo(masked).elpd == pytest.approx(loo(left_out).elpd, rel=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["fits", "draws"])
def test_predictions_and_sample_paths_are_equal(which, fits, draws):
    posteriors = fits if which == "fits" else draws
    means = [gp.predict(model, p, NEW_X)["y"].mean for p in posteriors]
    np.testing.assert_allclose(*means, rtol=1e-8)
    options = {"num_draws": 3}
    paths = [
        gp.draw_functions(random.key(2), model, p, NEW_X, **options)["y"]
        for p in posteriors
    ]
    np.testing.assert_allclose(*paths, rtol=1e-6)


def test_of_two_masks_both_count():
    inner, mask = unwrapped(dist.Normal(np.zeros(20), 1.0).mask(SOME).mask(ALL))
    assert isinstance(inner, dist.Normal)
    np.testing.assert_array_equal(mask, SOME)
    first = np.arange(20) < 5
    _, mask = unwrapped(dist.Normal(np.zeros(20), 1.0).mask(SOME).mask(first))
    np.testing.assert_array_equal(mask, SOME & first)


@pytest.mark.thorough
def test_a_masked_model_predicts_all_rows(fits):
    # A mask says which data count; what is predicted are all inputs.
    masked, _ = fits
    plain = gp.predict(model, masked, COUNTS_X)["y"]
    under_mask = gp.predict(model, masked, COUNTS_X, mask=SOME)["y"]
    np.testing.assert_allclose(under_mask.mean, plain.mean, rtol=1e-9)
    np.testing.assert_allclose(
        under_mask.log_prob(COUNTS_Y), plain.log_prob(COUNTS_Y), rtol=1e-9
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "make", [pytest.param(np.asarray, marks=pytest.mark.thorough), jnp.asarray]
)
def test_a_model_may_hold_its_mask_and_a_weight_for_each_datum(make):
    """A datum of weight two is a datum seen twice, and the steps know their number."""
    weights = np.where(SOME, 2.0, 1.0)

    def regression(x, y, scale, mask):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", len(x)), handlers.scale(scale=scale):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y, mask=mask)

    def weighted(x, y):
        regression(x, y, make(weights), make(SOME))

    def repeated(x, y):
        rows = np.flatnonzero(SOME).repeat(2)
        regression(x[rows], y[rows], 1.0, None)

    options = {"num_steps": 3, "progress": False}
    fits = [
        gp.fit(random.key(0), one, None, COUNTS_X, COUNTS_Y, **options)
        for one in (weighted, repeated)
    ]
    np.testing.assert_allclose(fits[0].losses, fits[1].losses, rtol=1e-6)
