"""Warped data: densities that integrate to one, maps and their inverses."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax import random
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
)
from scipy.special import ndtr

from svgp_ppl import likelihoods as lk
from svgp_ppl import observe, sparse_gp
from svgp_ppl.expectations import (
    log_predictive_density,
    predictive_mean_and_variance,
    variational_expectation,
)
from svgp_ppl.likelihoods.warped import BoxCox, TanhSum
from svgp_ppl.marginals import Marginal
from tests.conftest import mostly_double


def _tanh():
    """Steep steps: slope 1 + 9 · 2, where Newton's method alone would run away."""
    return TanhSum(*map(jnp.array, ([9.0, 0.5], [2.0, 6.0], [0.3, -1.0])))


class _Cube:
    """No NumPyro transform: t(y) = −y³, which falls."""

    domain = constraints.real

    def __call__(self, y):
        return -(y**3)

    def inv(self, g):
        return -jnp.cbrt(g)

    def log_abs_det_jacobian(self, y, g):
        return jnp.log(3.0 * jnp.square(y))


# Name -> map, a grid of y that covers the data.
LINE, POSITIVE = np.linspace(-40.0, 40.0, 400_001), np.exp(np.linspace(-60, 9, 200_001))
MAPS = {
    "tanh": (_tanh, LINE),
    "log": (lambda: ExpTransform().inv, POSITIVE),
    "affine of log": (
        lambda: ComposeTransform([ExpTransform().inv, AffineTransform(0.5, 2.0)]),
        POSITIVE,
    ),
    "power 0": (lambda: BoxCox(0.0), POSITIVE),
    "power 0.2": (lambda: BoxCox(0.2), POSITIVE),
    "falling": (lambda: _Cube(), np.linspace(-4.0, 4.0, 400_000)),
}
MEAN, VARIANCE = np.array([-0.7, 0.2, 1.5]), np.array([0.4, 1e-6, 0.09])
SCALE = np.array([0.3, 0.5, 0.2])


def _integrate(values, y):
    """By the trapezoidal rule along the first axis."""
    step = np.diff(y)[:, None]
    return np.sum(0.5 * step * (values[1:] + values[:-1]), axis=0)


@pytest.mark.parametrize("name", MAPS)
def test_predictive_density_and_moments(name):
    """∫ p(y) dy = 1, ∫ y p(y) dy and ∫ y² p(y) dy; its quantiles."""
    make, grid = MAPS[name]
    levels = jnp.array([0.1, 0.5, 0.9])

    @jax.jit
    def run(y):
        likelihood = lk.Warped(make(), jnp.asarray(SCALE))
        marginal = Marginal(jnp.asarray(MEAN), jnp.asarray(VARIANCE))
        density = jax.vmap(
            lambda one: log_predictive_density(likelihood, jnp.full(3, one), marginal)
        )(y)
        moments = predictive_mean_and_variance(likelihood, marginal)
        return density, moments, likelihood.quantiles(levels, *_moments(marginal))

    log_p, (mean, variance), quantiles = run(grid)
    p = np.exp(log_p)
    lost = 0.0
    if name == "power 0.2":  # beyond the range of t, documented
        lost = ndtr((-5.0 - MEAN) / np.sqrt(VARIANCE + SCALE**2))
    np.testing.assert_allclose(_integrate(p, grid) + lost, 1.0, atol=2e-6)
    by_grid = _integrate(p * grid[:, None], grid)
    # 40 nodes cannot follow the corners of the inverse of a steep map.
    tolerance = {"tanh": 5e-2, "falling": 5e-2}.get(name, 1e-6)
    np.testing.assert_allclose(mean, by_grid, rtol=tolerance, atol=tolerance)
    by_grid = _integrate(p * (grid[:, None] - by_grid) ** 2, grid)
    np.testing.assert_allclose(variance, by_grid, rtol=tolerance, atol=tolerance)
    below = [
        _integrate(np.where(grid[:, None] <= row, p, 0.0), grid) for row in quantiles
    ]
    np.testing.assert_allclose(below, np.tile(levels, (3, 1)).T, atol=2e-3)


def _moments(marginal):
    return marginal.mean, marginal.variance


@mostly_double
@pytest.mark.parametrize("name", MAPS)
def test_expectation_by_draws_of_f(name, precision):
    """E log p(y|f), with the log Jacobian; 5 standard errors, 6e-7 a test."""
    make, _ = MAPS[name]
    y = np.array([0.3, 0.8, 2.1])
    rng, draws = np.random.default_rng(2), 40_000
    f = MEAN + np.sqrt(VARIANCE) * rng.normal(size=(draws, 3))

    @jax.jit
    def run(f, y, mean, variance, scale):
        likelihood = lk.Warped(make(), scale)
        value = variational_expectation(likelihood, y, Marginal(mean, variance))
        return value, likelihood(f).log_prob(y), jax.vmap(jax.grad(make()))(y)

    ours = run(*map(jnp.asarray, (f, y, MEAN, VARIANCE, SCALE)))
    value, log_p, slope = map(np.asarray, ours)
    error = log_p.std(0) / draws**0.5
    tolerance = (1e-9 if precision == 64 else 1e-3) * (1 + np.abs(value))
    drawn = log_p.mean(0, dtype=np.float64)
    assert np.all(np.abs(value - drawn) < 5 * error + tolerance)
    # And by the definition: N(t(y); f, s²) |t'(y)|.
    g = np.asarray(make()(jnp.asarray(y)))
    by_hand = -0.5 * ((g - f) / SCALE) ** 2 - np.log(SCALE)
    by_hand += -0.5 * np.log(2 * np.pi) + np.log(np.abs(slope))
    tolerance = 1e-3 if precision == 32 else 1e-9
    np.testing.assert_allclose(log_p, by_hand, rtol=tolerance, atol=tolerance)


@mostly_double
@pytest.mark.parametrize("name", MAPS)
def test_inverse(name, precision):
    """t(t⁻¹(g)) = g, and the slope of one is the reciprocal of the other's."""
    transform = MAPS[name][0]()
    # Between the numbers at which t or its inverse has no slope.
    g = jnp.linspace(-4.0, 13.0, 57) + 0.01

    @jax.jit
    def run(g):
        slope = jax.vmap(jax.grad(transform.inv))(g)
        y = transform.inv(g)
        return y, transform(y), slope, jax.vmap(jax.grad(transform))(y)

    _, again, slope, forward = run(g)
    tolerance = 1e-9 if precision == 64 else 2e-4
    np.testing.assert_allclose(again, g, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(slope * forward, 1.0, rtol=10 * tolerance)


def test_inverse_by_its_parameters():
    """The implicit function theorem, against differences; also once more."""
    g = jnp.array([-9.0, -1.3, 0.4, 2.2, 30.0])
    values = [jnp.array([1.5, 0.5]), jnp.array([2.0, 4.0]), jnp.array([0.3, -1.0])]

    def total(values):
        return jnp.sum(jnp.sin(TanhSum(*values).inv(g)))

    slopes, steps = jax.jit(jax.grad(total))(values), 1e-6
    value = jax.jit(total)
    for i in range(3):
        for j in range(2):
            up = [v.at[j].add(steps) if k == i else v for k, v in enumerate(values)]
            down = [v.at[j].add(-steps) if k == i else v for k, v in enumerate(values)]
            by_difference = (value(up) - value(down)) / (2 * steps)
            np.testing.assert_allclose(slopes[i][j], by_difference, atol=1e-6)

    def second(a):
        return jax.grad(lambda a: total([a, *values[1:]]))(a)[0]

    curve = jax.jit(jax.grad(second))(values[0])
    moved = [values[0].at[0].add(sign * 1e-5) for sign in (1, -1)]
    by_difference = (second(moved[0]) - second(moved[1])) / 2e-5
    np.testing.assert_allclose(curve[0], by_difference, rtol=1e-5)


def test_power_is_smooth_through_zero():
    y, g = jnp.array([0.2, 1.0, 7.0]), jnp.array([-1.5, 0.0, 2.0])

    @jax.jit
    def both(power):
        def values(power):
            return jnp.concatenate([BoxCox(power)(y), BoxCox(power).inv(g)])

        return values(power), jax.jacfwd(values)(power)

    at_zero, slope = both(jnp.asarray(0.0))
    np.testing.assert_allclose(at_zero, np.concatenate([np.log(y), np.exp(g)]))
    np.testing.assert_allclose(slope[:3], 0.5 * np.log(y) ** 2, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        slope[3:], -0.5 * np.asarray(g) ** 2 * np.exp(g), rtol=1e-9, atol=1e-12
    )
    for power in (1e-9, -1e-9, 1e-7):
        near, _ = both(jnp.asarray(power))
        np.testing.assert_allclose(near, at_zero, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(BoxCox(0.5).inv(jnp.array([-3.0])), 0.0)
    np.testing.assert_array_equal(BoxCox(-0.5).inv(jnp.array([3.0])), np.inf)


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: lk.Warped(jnp.log, 0.1), r"transform must be .*ExpTransform\(\).inv"),
        (lambda: lk.Warped(TanhSum, 0.1), "transform must be a map from y"),
        (
            lambda: TanhSum(jnp.ones(2), jnp.ones(3), jnp.ones(2)),
            r"one shape, \[I\], and have \(2,\), \(3,\) and \(2,\)",
        ),
        (lambda: TanhSum(1.0, 1.0, 1.0), r"one shape, \[I\], and have \(\)"),
        (
            lambda: TanhSum(-jnp.ones(1), jnp.ones(1), jnp.ones(1)),
            "height of TanhSum must be >= 0.*constraints.positive",
        ),
        (
            lambda: TanhSum(jnp.ones(1), -jnp.ones(1), jnp.ones(1)),
            "slope of TanhSum must be >= 0",
        ),
    ],
)
def test_refusals(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_data_outside_the_domain():
    x = np.linspace(0.0, 1.0, 4)[:, None]

    def model():
        f = sparse_gp("f", lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2)), x[:2])
        observe("y", lk.Warped(BoxCox(0.5), 0.1), f(x), obs=np.array([1, 2, 0.0, 3]))

    match = "site 'y' must lie in .* the positive numbers; among them is 0.0"
    with pytest.raises(ValueError, match=match):
        numpyro.handlers.trace(numpyro.handlers.seed(model, random.key(0))).get_trace()
