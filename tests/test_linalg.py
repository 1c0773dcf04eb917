"""The numerical policies: jitter, factors of singular matrices, distances."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from svgp_ppl import linalg
from svgp_ppl.features.interface import default_jitter_of
from svgp_ppl.linalg import triangular
from tests.conftest import both_precisions

_cholesky = jax.jit(linalg.cholesky)
_squared_distance = jax.jit(linalg.squared_distance)


@both_precisions
def test_cholesky_adds_jitter_relative_to_the_diagonal(precision):
    gram = 50.0 * np.ones((4, 4))
    factor = np.asarray(_cholesky(gram))
    jitter = 1e-6 if precision == 64 else 1e-5
    expected = gram + 50.0 * jitter * np.eye(4)
    tolerance = 1e-12 if precision == 64 else 1e-6
    np.testing.assert_allclose(factor @ factor.T, expected, rtol=tolerance)
    absolute = np.asarray(_cholesky(gram, jitter=0.5))
    np.testing.assert_allclose(absolute @ absolute.T, gram + 0.5 * np.eye(4), 1e-6)


@pytest.mark.parametrize(
    "factor",
    [
        linalg.cholesky,
        lambda gram: linalg.factorised(gram).tril,
        lambda gram: linalg.cholesky(gram, default_jitter_of(gram)),
    ],
)
def test_the_slope_of_a_factor_has_the_part_of_the_jitter(factor):
    """The factor of s A is √s times that of A, jitter included, and its slope too.

    A gradient that takes the jitter for a constant is not that of the log density, and
    no step is short enough for a sampler to conserve the energy with it.
    """
    gram = np.array([[3.0, 1.0, 1.0], [1.0, 2.0, 2.0], [1.0, 2.0, 2.0]])

    @jax.jit
    def value_and_slope(gram):
        return jax.jvp(lambda scale: factor(scale * gram), (1.0,), (1.0,))

    value, slope = value_and_slope(gram)
    np.testing.assert_allclose(slope, value / 2, atol=1e-9)


def test_a_failed_factorisation_stays_nan():
    assert np.isnan(_cholesky(-np.eye(3))).any()


def test_small_cholesky_of_singular_matrices_is_finite_with_its_gradient():
    full = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 0.5]])
    rank_one = np.outer([1.0, 2.0, 0.0], [1.0, 2.0, 0.0])
    batch = np.stack([full, rank_one, np.zeros((3, 3))])

    @jax.jit
    def factor_and_gradient(batch):
        factor, pull_back = jax.vjp(linalg.small_cholesky, batch)
        return factor, *pull_back(jnp.ones_like(factor))

    factor, gradient = map(np.asarray, factor_and_gradient(batch))
    np.testing.assert_allclose(factor @ np.swapaxes(factor, 1, 2), batch, atol=1e-12)
    np.testing.assert_allclose(factor[0], np.linalg.cholesky(full), rtol=1e-12)
    assert np.isfinite(gradient).all()


def pairwise(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


@pytest.mark.parametrize("width", [1, 3, 5, 12, 64, 65])
def test_squared_distance_does_not_depend_on_the_route(width):
    rng = np.random.default_rng(width)
    # Far from the origin: the product form survives only because it is centred.
    x = 1e4 + rng.normal(size=(7, width))
    y = 1e4 + rng.normal(size=(5, width))
    np.testing.assert_allclose(_squared_distance(x, y), pairwise(x, y), rtol=1e-9)


@both_precisions
@pytest.mark.parametrize("width", [1, 18, 64])
def test_close_points_far_out_keep_their_distance(precision, width):
    rng = np.random.default_rng(width)
    x = rng.normal(size=(8, width))
    x[:, 0] = np.repeat([-1e3, 5e3], 4)  # a column of two values, lengthscale 1e-3
    x = jnp.asarray(x)
    wide = np.asarray(x, np.float64)
    value, expected = _squared_distance(x, x), pairwise(wide, wide)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize("width", [3, 5, 65])
def test_derivatives_of_squared_distance_are_those_of_the_sum(width):
    rng = np.random.default_rng(width)
    x, y = (jnp.asarray(rng.normal(size=(n, width))) for n in (4, 3))
    weights = jnp.asarray(rng.normal(size=(4, 3)))

    def total(function):
        return lambda x, y: jnp.sum(weights * jnp.exp(-function(x, y) / width))

    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        expected = jax.jit(derivative(total(pairwise), (0, 1)))(x, y)
        value = jax.jit(derivative(total(linalg.squared_distance), (0, 1)))(x, y)
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-12), value, expected)


@both_precisions
@pytest.mark.parametrize("width", [1, 4])
def test_lengthscales_far_below_the_spread_keep_their_derivative(precision, width):
    rng = np.random.default_rng(width)
    x = rng.integers(0, 2**12, (2000, width)) / 2**12  # exact in both precisions
    lengthscale = np.ones(width)
    lengthscale[0] = 2**-10
    scaled = x / lengthscale
    squares = (scaled[:, None] - scaled[None, ::20]) ** 2
    weights = rng.normal(size=squares.shape[:2])
    within = np.exp(-0.5 * squares.sum(-1))
    expected = np.einsum("nm,nm,nmd->d", weights, within, squares) / lengthscale

    def total(lengthscale):
        scaled = jnp.asarray(x) / lengthscale
        squares = linalg.squared_distance(scaled, scaled[::20])
        return jnp.sum(jnp.asarray(weights) * jnp.exp(-0.5 * squares))

    slope = jax.jit(jax.grad(total))(jnp.asarray(lengthscale))
    np.testing.assert_allclose(slope, expected, rtol=1e-3)


@pytest.mark.parametrize("size", [1, 64, 65, 200, 500])
def test_blocks_of_a_refined_solution_are_small(size):
    blocks = triangular._blocks(size)
    rows = np.concatenate([np.arange(size)[block] for block in blocks])
    np.testing.assert_array_equal(rows, np.arange(size))
    assert max(block.stop - block.start for block in blocks) <= 64


def test_safe_sqrt_has_a_finite_gradient_at_zero():
    slope = jax.grad(linalg.safe_sqrt)

    @jax.jit
    def run(x):
        return linalg.safe_sqrt(x), slope(x), jax.grad(slope)(x)

    assert run(0.0)[:2] == (0.0, 0.0)
    assert np.allclose(run(4.0)[1:], [0.25, -1 / 32])


@both_precisions
def test_floored_sqrt_may_divide(precision):
    zero, floor = jnp.zeros(()), 1.2e-77 if precision == 64 else 3.3e-10
    np.testing.assert_allclose(linalg.floored_sqrt(zero), floor, rtol=0.05)
    assert jax.grad(linalg.floored_sqrt)(zero) == 0.0
    np.testing.assert_allclose(linalg.floored_sqrt(jnp.asarray(4.0)), 2.0, rtol=1e-6)


def test_one_thread_for_as_long_as_anybody_needs_it():
    def threads():
        blas = [info for info in threadpool_info() if info["user_api"] == "blas"]
        return {info["num_threads"] for info in blas}

    with threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        first, second = (linalg.single_threaded_lapack() for _ in range(2))
        first.__enter__()
        second.__enter__()
        assert threads() == {1}
        first.__exit__(None, None, None)
        assert threads() == {1}  # another fit is still running
        second.__exit__(None, None, None)
        assert threads() == before


@pytest.mark.parametrize("precision", [32], indirect=True)
@pytest.mark.parametrize("num_columns", [1, 3, 6, 70])
def test_distances_far_from_zero(num_columns, precision):
    """Whole days from the year 1 are exact in float32, and so are their differences."""
    days = np.random.default_rng(0).integers(0, 200, (40, num_columns))
    x = 737_425.0 + days
    lengthscale = 7.0 * num_columns**0.5
    exact = np.sum((days[:10, None] - days) ** 2, axis=-1) / lengthscale**2
    near, far = x[:10].astype("float32"), x.astype("float32")

    @jax.jit
    def distance_and_slope(near, far, lengthscale):
        within = lambda ell: linalg.squared_distance(near, far, ell)  # noqa: E731
        return within(lengthscale), jax.jacfwd(within)(lengthscale)

    found, slope = distance_and_slope(near, far, lengthscale)
    tolerance = 1e-5 if num_columns <= 64 else 1e-3  # of wide inputs, by a product
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=tolerance)
    # d/dℓ = −2 d²/ℓ.
    np.testing.assert_allclose(slope, -2 * exact / lengthscale, rtol=1e-4, atol=1e-3)


def test_a_row_without_a_value_is_alone():
    x = np.array([[0.0], [1.0], [np.nan]])
    found = _squared_distance(x, x)
    np.testing.assert_array_equal(found[:2, :2], [[0.0, 1.0], [1.0, 0.0]])
