"""What the Bayesian optimisation of a sampler is told, and where it looks."""

import numpy as np
import pytest

from svgp_ppl.mcmc.samplers import tuning


def test_the_criterion_is_the_jump_per_root_of_the_longest_length():
    # Hensman et al. (2015): log(1 + ESJD / √L_max), a chain by itself.
    stats = {
        "squared_jump": np.array([[1.0, 8.0], [3.0, 0.0]]),
        "max_steps": np.array([[4, 16], [4, 16]]),
    }
    expected = np.log([1.0 + 2.0 / 2.0, 1.0 + 4.0 / 4.0])
    np.testing.assert_allclose(tuning.jump_for_steps(stats), expected, rtol=1e-12)


def test_a_round_may_be_one_draw():
    stats = {"squared_jump": np.array([[3.0]]), "max_steps": np.array([[9]])}
    np.testing.assert_allclose(tuning.jump_for_steps(stats), [np.log(2.0)])


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


def test_the_search_knows_the_function_as_a_gaussian_process_does():
    """Mean and sd of g, without the noise of outcomes, by dense linear algebra."""
    coordinates = [np.geomspace(0.01, 1.0, 6), np.array([2, 5, 8, 11])]
    search = tuning.BayesianOptimisation(coordinates)
    rng = np.random.default_rng(2)
    places, outcomes = [], []
    for _ in range(9):
        places.append(search._at)
        size, steps = search.point
        outcomes.append(40.0 + 3.0 * np.log(size) + 0.2 * steps + 0.3 * rng.normal())
        search.tell(outcomes[-1])
    mean, sd = search._predict()
    # A lengthscale is 0.3 of the range of a coordinate; outcomes are standardised.
    units = np.stack(np.meshgrid(np.arange(6) / 5, np.arange(4) / 3, indexing="ij"), -1)
    units = units.reshape(-1, 2)
    squares = np.sum((units[:, None] - units[None]) ** 2, axis=-1)
    fitted = search._model.kernel_
    prior = fitted.k1.k1.constant_value * np.exp(-0.5 * squares / 0.3**2)
    noise = fitted.k2.noise_level
    solve = np.linalg.inv(prior[np.ix_(places, places)] + noise * np.eye(9))
    centre, spread = np.mean(outcomes), np.std(outcomes)
    weights = prior[:, places] @ solve
    np.testing.assert_allclose(
        mean, centre + weights @ (np.array(outcomes) - centre), rtol=1e-6
    )
    variance = np.diag(prior - weights @ prior[places])
    np.testing.assert_allclose(sd, spread * np.sqrt(variance), rtol=1e-4)
    assert 1e-3 < noise < 0.5


def test_outcomes_without_noise_are_believed():
    search = tuning.BayesianOptimisation([np.linspace(0.0, 1.0, 11)])
    seen = {}
    for _ in range(6):
        seen[search._at] = np.sin(3.0 * search.point[0])
        search.tell(seen[search._at])
    mean, sd = search._predict()
    assert len(seen) > 3
    np.testing.assert_allclose(mean[list(seen)], list(seen.values()), atol=0.03)
    assert np.all(sd[list(seen)] < 0.05)


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
    "bounds",
    [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (1.0, np.inf), (1.0,), (1, 2, 3), 0.1],
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


def test_the_last_round_is_followed_by_the_best_point_and_others_by_the_next():
    grid = [np.arange(9.0)]
    update = tuning.searching(grid, lambda stats: stats["g"], 1, 4)
    search = tuning.BayesianOptimisation(grid)
    for number in range(4):
        outcome = -np.abs(search.point[0] - 1.0)
        search.tell(outcome)
        assert number < 2 or search.point[0] != search.best()[0]
        points = update({"g": np.array([outcome])})
        expected = search.best() if number == 3 else search.point
        np.testing.assert_array_equal(points, [expected])


def test_a_grid_of_one_point_is_not_searched():
    search = tuning.BayesianOptimisation([np.array([0.2]), np.array([7])])
    search.tell(1.0)
    search.tell(np.nan)
    assert search.point.tolist() == search.best().tolist() == [0.2, 7.0]
