"""The tails of a normal variable against SciPy, and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erfcx, log_ndtr

from svgp_ppl.likelihoods.mills import tail_of_normal
from tests.conftest import both_precisions

BELOW = -np.concatenate([np.linspace(0.0, 40.0, 401), np.geomspace(40.0, 1e6, 50)])
ABOVE = np.linspace(0.0, 8.0, 401)


def _continued_fraction(x):
    """h + f at f = −x: Abramowitz & Stegun (1964), 26.2.14; for x from 1 on."""
    fraction = 0.0
    for k in range(300, 0, -1):
        fraction = k / (x + fraction)
    return fraction


def _hazard(f):
    return np.sqrt(2.0 / np.pi) / erfcx(-f / np.sqrt(2.0))


@both_precisions
def test_tails_keep_their_digits(precision):
    tolerance = 5e-7 if precision == 32 else 5e-15
    f = np.asarray(jnp.asarray(BELOW), float)
    log_cdf, hazard, gap = jax.jit(tail_of_normal)(jnp.asarray(BELOW))
    np.testing.assert_allclose(log_cdf, log_ndtr(f), rtol=tolerance)
    np.testing.assert_allclose(hazard, _hazard(f), rtol=tolerance)
    far = f <= -1.0
    exact = _continued_fraction(-f[far])
    np.testing.assert_allclose(gap[far], exact, rtol=max(tolerance, 3e-14))

    # The square of f is rounded off in the exponential.
    f = np.asarray(jnp.asarray(ABOVE), float)
    log_cdf, hazard, gap = jax.jit(tail_of_normal)(jnp.asarray(ABOVE))
    np.testing.assert_allclose(log_cdf, log_ndtr(f), rtol=20 * tolerance)
    np.testing.assert_allclose(hazard, _hazard(f), rtol=20 * tolerance)
    np.testing.assert_allclose(gap, _hazard(f) + f, rtol=20 * tolerance)


def test_derivatives_of_tails():
    """h, and h ((h + f)(2 h + f) − 1), which is 2/|f|³ far below."""

    def log_cdf(f):
        return tail_of_normal(f).log_cdf

    f = np.array([-20.0, -1.0, 0.0, 1e-3, 2.0, 7.0])
    third_of = jax.grad(jax.grad(jax.grad(log_cdf)))
    with jax.enable_x64(True):
        first = jax.vmap(jax.grad(log_cdf))(f)
        third, far = jax.vmap(third_of)(f), third_of(-3e4)
    hazard = _hazard(f)
    np.testing.assert_allclose(first, hazard, rtol=1e-13)
    exact = hazard * ((hazard + f) * (2.0 * hazard + f) - 1.0)
    np.testing.assert_allclose(third, exact, rtol=1e-8)
    np.testing.assert_allclose(far, 2.0 / 3e4**3, rtol=1e-4)


@pytest.mark.parametrize("f", [-np.inf, np.inf, np.nan, 0.0])
def test_tails_at_the_ends(f):
    log_cdf, _, _ = tail_of_normal(jnp.asarray(f))
    np.testing.assert_allclose(log_cdf, log_ndtr(f), rtol=1e-6)


def test_numbers_and_whole_numbers_are_taken():
    np.testing.assert_allclose(tail_of_normal(-3).log_cdf, log_ndtr(-3.0), rtol=1e-6)
    found = tail_of_normal(jnp.array([-3, 2])).hazard
    np.testing.assert_allclose(found, _hazard(np.array([-3.0, 2.0])), rtol=1e-6)
