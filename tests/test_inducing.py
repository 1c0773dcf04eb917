"""Where to put z: distinct, in range, the greedy choice by brute force, the errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from svgp_ppl import inducing, kernels
from tests.conftest import mostly_double

METHODS = {
    "kmeans": inducing.kmeans,
    "greedy_variance": lambda x, m: inducing.greedy_variance(x, m, kernels.RBF()),
    "subset": lambda x, m: inducing.subset(x, m, random.key(0)),
    "grid": inducing.grid,
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
of_rows = pytest.mark.parametrize(
    "method", [METHODS[n] for n in ("kmeans", "greedy_variance", "subset")]
)


def _normal(rows, columns=2, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns))


def _num_distinct(z):
    return len(np.unique(np.asarray(z), axis=0))


@mostly_double
@every_method
def test_precision_follows_x(method, precision):
    for x in (_normal(30), _normal(30).tolist(), jnp.asarray(_normal(30))):
        z = method(x, 4)
        assert isinstance(z, jax.Array) and z.shape == (4, 2)
        assert z.dtype == (jnp.float64 if precision == 64 else jnp.float32)
    assert method(_normal(30).astype(np.float32), 4).dtype == jnp.float32
    assert jnp.issubdtype(method(np.arange(30).reshape(15, 2), 4).dtype, jnp.floating)


@mostly_double
@of_rows
@pytest.mark.parametrize(
    "x",
    [
        _normal(60),
        # Ties, repetitions, one column, and wide data far from the origin.
        np.random.default_rng(1).integers(0, 4, size=(80, 2)),
        np.repeat(_normal(7, 1), 12, axis=0),
        1e4 + _normal(40, 6),
    ],
    ids=["plain", "ties", "repeated", "far"],
)
def test_no_two_are_equal_up_to_the_number_of_distinct_rows(method, x, precision):
    distinct = _num_distinct(x.astype(np.float32 if precision == 32 else np.float64))
    for m in (distinct // 2, distinct):
        assert _num_distinct(method(x, m)) == m
    with pytest.raises(
        ValueError,
        match=rf"distinct rows of x, {distinct} \(of {len(x)}, in float..\), got",
    ):
        method(x, distinct + 1)


def test_all_distinct_rows_are_their_own_centres():
    x = np.repeat(_normal(9), 3, axis=0)
    z = inducing.kmeans(x, 9)
    np.testing.assert_allclose(np.unique(z, axis=0), np.unique(x, axis=0), rtol=1e-12)


def test_kmeans_finds_separate_clusters():
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])
    x = np.concatenate([centre + 0.1 * _normal(50, seed=3) for centre in centres])
    z = np.asarray(inducing.kmeans(x, 4))
    means = np.stack([x[i : i + 50].mean(axis=0) for i in range(0, 200, 50)])
    order = np.lexsort(z.T)
    np.testing.assert_allclose(z[order], means[np.lexsort(means.T)], atol=1e-12)


def test_kmeans_refills_clusters_that_lose_their_rows(monkeypatch):
    # A start far outside: all rows go to one centre, the others are empty.
    x = _normal(40, seed=4)
    spread, starts = inducing._spread, []

    def bad_start(rows, centres, m, rng=None):
        if rng is None:
            return spread(rows, centres, m)
        starts.append(m)
        return np.concatenate([centres, 1e3 + np.zeros((m - 1, 2))])

    monkeypatch.setattr(inducing, "_spread", bad_start)
    z = np.asarray(inducing.kmeans(x, 6))
    assert starts == [6]
    nearest = ((x[:, None] - z[None]) ** 2).sum(-1).argmin(axis=1)
    assert set(nearest) == set(range(6))


def test_kmeans_depends_on_the_seed_only():
    x = _normal(100)
    same = inducing.kmeans(x, 8, seed=1)
    np.testing.assert_array_equal(inducing.kmeans(x, 8, seed=1), same)
    assert not np.array_equal(inducing.kmeans(x, 8, seed=2), same)


def _brute_force(gram, m):
    """Argmax of the exact conditional variance given those already chosen."""
    chosen = []
    for _ in range(m):
        cross = gram[:, chosen]
        explained = cross @ np.linalg.solve(gram[np.ix_(chosen, chosen)], cross.T)
        variance = np.diag(gram) - np.diag(explained)
        variance[chosen] = -np.inf
        chosen.append(int(np.argmax(variance)))
    return chosen


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.RBF(1.5, 0.7),
        kernels.Matern12(lengthscale=jnp.array([0.5, 2.0])) + kernels.Linear(0.5),
        kernels.ArcCosine(1) + kernels.White(0.3),
        lambda a, b: jnp.exp(-jnp.sum(jnp.abs(a - b))),
    ],
    ids=["RBF", "Matern12 + Linear", "ArcCosine + White", "function"],
)
def test_greedy_variance_is_the_greedy_choice(kernel):
    x = _normal(40, seed=5)
    gram = np.asarray(jax.jit(lambda x: kernels.as_kernel(kernel)(x))(x))
    expected = x[_brute_force(gram, 10)]
    np.testing.assert_array_equal(inducing.greedy_variance(x, 10, kernel), expected)


@mostly_double
def test_greedy_variance_goes_on_when_nothing_is_left_to_explain(precision):
    # Rank 2 and 1: after as many rows every conditional variance is rounding, or zero.
    x = _normal(30, seed=6)
    for kernel in (kernels.Linear(3.0), kernels.Constant(2.0)):
        assert _num_distinct(inducing.greedy_variance(x, 12, kernel)) == 12


def test_a_subset_consists_of_rows():
    x = _normal(20, seed=7)
    z = np.asarray(inducing.subset(x, 12, random.key(1)))
    assert {tuple(row) for row in z} <= {tuple(row) for row in x}
    other = inducing.subset(x, 12, random.key(2))
    assert not np.array_equal(np.unique(z, axis=0), np.unique(other, axis=0))


def test_grids_span_the_box():
    x = np.array([[0.0, -1.0], [3.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(
        inducing.grid(x[:, :1], 4), [[0.0], [1.0], [2.0], [3.0]], atol=1e-15
    )
    corners = [[0.0, -1.0], [0.0, 1.0], [3.0, -1.0], [3.0, 1.0]]
    np.testing.assert_array_equal(inducing.grid(x, 4), corners)
    expected = [[0.0, 0.0], [1.5, 0.0], [3.0, 0.0]]
    np.testing.assert_array_equal(inducing.grid(x, (3, 1)), expected)
    assert inducing.grid(_normal(5, 3), 27).shape == (27, 3)


@every_method
@pytest.mark.parametrize(
    ("x", "m", "message"),
    [
        (np.arange(5.0), 2, r"shape \[N, D\], got \(5,\).*x\[:, None\]"),
        (np.zeros((0, 2)), 1, r"at least one row.*got shape \(0, 2\)"),
        (np.zeros((3, 0)), 1, r"at least one row.*got shape \(3, 0\)"),
        (
            np.array([[1.0], [np.nan], [np.inf]]),
            1,
            "finite inputs x, got 2 rows with NaN or infinity, the first at 1: drop",
        ),
        (_normal(9), 0, "positive integer, and is 0"),
        (_normal(9), -4, "positive integer, and is -4"),
        (_normal(9), 4.0, r"positive integer, and is 4\.0"),
        (_normal(9), True, "positive integer, and is True"),
    ],
)
def test_errors_explain(method, x, m, message):
    with pytest.raises(ValueError, match=message):
        method(x, m)


@pytest.mark.parametrize(
    ("x", "m", "message"),
    [
        (
            _normal(9),
            10,
            r"a grid in 2 columns, such as 9 = 3 \* 3; got 10.*such as m=\(3, 3\)",
        ),
        (_normal(9), (3,), r"a tuple m with 2 numbers.*got \(3,\)"),
        (_normal(9), (3, 0), "positive integer, and is 0"),
        (np.ones((4, 2)), 4, "column 0 is constant: put 1 in its place"),
    ],
)
def test_grid_errors_explain(x, m, message):
    with pytest.raises(ValueError, match=message):
        inducing.grid(x, m)


def test_greedy_variance_wants_a_kernel():
    with pytest.raises(ValueError, match="expected a kernel, a tinygp kernel"):
        inducing.greedy_variance(_normal(5), 2, "RBF")


@pytest.mark.parametrize("precision", [32], indirect=True)
@every_method
def test_columns_that_rounding_makes_constant_are_refused(method, precision):
    seconds = 1.7e9 + np.linspace(0.0, 60.0, 30)  # one number in float32
    x = np.stack([seconds, _normal(30, 1)[:, 0]], axis=1)
    with pytest.raises(ValueError, match="inputs x lose their differences: column 0"):
        method(x, 4)
    assert method(x - [1.7e9, 0.0], 4).shape == (4, 2)
