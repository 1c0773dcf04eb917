"""What the Bayesian optimisation of a sampler is told, and where it looks."""

import numpy as np

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


def test_the_best_point_is_that_of_the_mean_and_not_of_the_luckiest_outcome():
    search = tuning.BayesianOptimisation([np.array([0.0, 1.0, 2.0])])
    rng = np.random.default_rng(1)
    means = {0.0: 0.0, 1.0: 0.5, 2.0: 1.0}
    for _ in range(30):
        search.tell(means[float(search.point[0])] + 0.1 * rng.normal())
    assert search.best()[0] == 2.0
