"""With the user's settings of XLA: the numbers of the other tests, which run without.

So do NUTS in ``test_chains`` and all slow tests.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import svgp_ppl as gp
from tests.conftest import single_first
from tests.models import COUNTS_X, COUNTS_Y, counts_model

DATA = (COUNTS_X, COUNTS_Y)


def numbers():
    """Of a fit and of its predictions."""
    guide = gp.AutoGaussian(counts_model)
    options = {"num_steps": 30, "progress": False}
    fit = gp.fit(random.key(0), counts_model, guide, *DATA, **options)
    at = gp.predict(counts_model, fit, COUNTS_X)["y"]
    found = {"losses": fit.losses, **fit.params, "mean": at.mean}
    found |= {"covariance": at.latent_covariance, "density": at.log_prob(COUNTS_Y)}
    return jax.device_get(found)


@pytest.fixture
def plain(precision):
    return numbers()


@pytest.mark.thorough
def test_optimisations_change_nothing_but_rounding(plain, optimized):
    found = numbers()
    assert found.keys() == plain.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, plain[name], rtol=1e-6, atol=1e-8)


@pytest.mark.thorough
def test_the_slope_of_an_angle_between_equal_rows_is_no_noise(optimized):
    x = np.random.default_rng(26).normal(size=(20, 6))
    weights = jnp.linspace(0.7, 1.3, 6) * 6**0.5

    def total(weights):
        return jnp.sum(gp.kernels.ArcCosine(0, 1.0, weights)(x[:10], x))

    slope = jax.jit(jax.grad(total))(weights)
    for number, unit in enumerate(1e-5 * np.eye(6)):
        difference = (total(weights + unit) - total(weights - unit)) / 2e-5
        np.testing.assert_allclose(slope[number], difference, atol=1e-6)


@single_first
@pytest.mark.parametrize("columns", [pytest.param(1, marks=pytest.mark.thorough), 6])
def test_equal_rows_are_equal_in_every_part_of_a_program(columns, precision, optimized):
    # Of rows in z and x some programs with derivatives took the distance for 1.
    x = np.random.default_rng(20).normal(size=(20, columns))
    lengthscale = jnp.asarray(np.linspace(0.7, 1.3, columns))

    def total(lengthscale, pair):
        return jnp.sum(gp.kernels.Matern52(1.0, lengthscale)(*pair))

    for pair in ((x[:10], x), (x, x[:10])):
        both = jax.jit(jax.value_and_grad(partial(total, pair=pair)))
        value, _ = both(lengthscale)
        np.testing.assert_allclose(value, total(lengthscale, pair), rtol=1e-5)
