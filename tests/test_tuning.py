"""What the Bayesian optimisation of a sampler is told, and where it looks."""

import numpy as np
import pytest

from svgp_ppl.mcmc import tuning


def test_the_criterion_is_the_jump_per_root_of_the_longest_length():
    # Hensman et al. (2015): log(1 + ESJD / √L_max), a chain by itself.
    stats = {
        "squared_jump": np.array([[1.0, 8.0], [3.0, 0.0]]),
        "max_steps": np.array([[4, 16], [4, 16]]),
    }
    expected = np.log([1.0 + 2.0 / 2.0, 1.0 + 4.0 / 4.0])
    np.testing.assert_allclose(tuning.jump_for_steps(stats), expected, rtol=1e-12)


def test_a_search_starts_in_the_middle():
    coordinates = [np.arange(7.0), np.arange(20.0, 25.0)]
    search = tuning.BayesianOptimisation(coordinates)
    np.testing.assert_array_equal(search.point, [3.0, 22.0])
    assert tuning.middle(coordinates) == [3.0, 22.0]
    np.testing.assert_array_equal(search.best(), search.point)


def test_noise_does_not_draw_the_search_back():
    # Outcomes at one point scatter about 1; elsewhere the function is unknown. Taking
    # the noise of another outcome for a spread of the function would stay there.
    search = tuning.BayesianOptimisation([np.linspace(0.0, 1.0, 21)])
    rng = np.random.default_rng(0)
    visited = []
    for _ in range(12):
        visited.append(float(search.point[0]))
        search.tell(1.0 - 4.0 * (visited[-1] - 0.8) ** 2 + 0.02 * rng.normal())
    assert len(set(visited)) >= 5
    assert abs(float(search.best()[0]) - 0.8) <= 0.1


def test_the_next_point_has_the_largest_expected_improvement():
    """E max(g − g_best, 0) by draws of g."""
    search = tuning.BayesianOptimisation([np.linspace(0.0, 1.0, 6)])
    rng = np.random.default_rng(0)
    for _ in range(4):
        search.tell(np.sin(5.0 * search.point[0]))
        mean, sd = search._predict()
        best = mean[np.isin(search._grid[:, 0], search._grid[search._seen, 0])].max()
        drawn = mean + sd * rng.normal(size=(200_000, 6))
        gain = np.maximum(drawn - best, 0.0).mean(axis=0)
        assert gain[search._at] >= 0.98 * gain.max()


def test_the_best_point_is_that_of_the_mean_and_not_of_the_luckiest_outcome():
    search = tuning.BayesianOptimisation([np.array([0.0, 1.0, 2.0])])
    rng = np.random.default_rng(1)
    means = {0.0: 0.0, 1.0: 0.5, 2.0: 1.0}
    for _ in range(30):
        search.tell(means[float(search.point[0])] + 0.1 * rng.normal())
    assert search.best()[0] == 2.0


def test_a_warmup_in_rounds():
    # Rounds of equal length; what is left over makes more of them.
    assert tuning.rounds(100, 10) == (10, 10)
    assert tuning.rounds(45, 10) == (4, 11)
    assert tuning.rounds(3, 10) == (1, 3)


def test_grids_hold_both_ends():
    np.testing.assert_allclose(tuning.log_grid((0.01, 1.0), 3), [0.01, 0.1, 1.0])
    assert len(tuning.log_grid((0.01, 1.0))) == 20
    assert tuning.log_grid((0.3, 0.3)).tolist() == [0.3]
    assert tuning.step_grid((2, 8), 4).tolist() == [2, 4, 6, 8]
    assert tuning.step_grid((1, 3)).tolist() == [1, 2, 3]
    assert len(tuning.step_grid((1, 1000))) == 13


@pytest.mark.parametrize(
    "bounds", [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (1.0, np.inf), (1.0,), 0.1]
)
def test_bounds_that_are_none(bounds):
    with pytest.raises(ValueError, match="step_size must be two positive numbers"):
        tuning.require_bounds("step_size", bounds)


def test_bounds_may_be_one_number_or_a_list():
    tuning.require_bounds("step_size", (0.1, 0.1))
    tuning.require_bounds("step_size", [1, 2])


def test_chains_search_by_themselves_and_end_at_their_best():
    values = np.linspace(0.0, 1.0, 5)
    update = tuning.searching([values, np.array([3.0])], lambda s: s["g"], 2, 6)
    points = np.array([[0.5, 0.5], [3.0, 3.0]])
    for _ in range(6):
        assert points.shape == (2, 2) and np.all(points[1] == 3.0)
        points = update({"g": np.array([points[0, 0], -points[0, 1]])})
    np.testing.assert_array_equal(points, [[1.0, 0.0], [3.0, 3.0]])


def test_a_grid_of_one_point_is_not_searched():
    search = tuning.BayesianOptimisation([np.array([0.2]), np.array([7])])
    search.tell(1.0)
    search.tell(np.nan)
    assert search.point.tolist() == search.best().tolist() == [0.2, 7.0]
