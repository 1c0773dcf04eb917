"""Figures hold what they are given, in order and with labelled axes."""

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pytest
from numpyro.infer.svi import SVIState

from svgp_ppl import datasets, plots
from svgp_ppl.fit import Fit


def test_a_band_is_sorted_and_encloses_its_line():
    x = np.array([[2.0], [0.0], [1.0]])
    ax = plots.function_band(x, x[:, 0] - 1, x[:, 0], x[:, 0] + 1, label="f")
    (line,) = ax.get_lines()
    np.testing.assert_array_equal(line.get_xdata(), [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(line.get_ydata(), [0.0, 1.0, 2.0])
    vertices = ax.collections[0].get_paths()[0].vertices
    assert vertices[:, 1].min() == -1.0 and vertices[:, 1].max() == 3.0


def test_a_band_over_two_columns_is_refused():
    with pytest.raises(ValueError, match="drawn over one column"):
        plots.function_band(np.zeros((3, 2)), [0], [0], [0])


def test_the_density_integrates_to_the_mass_that_is_shown():
    draws = np.random.default_rng(0).lognormal(size=(2, 2000))
    (line,) = plots.density(draws).get_lines()
    x, y = line.get_data()
    assert x.min() > 0
    np.testing.assert_allclose(np.trapezoid(y, x), 0.989, atol=0.02)
    with pytest.raises(ValueError, match="positive values"):
        plots.density([1.0, -1.0])


def test_the_bound_is_minus_the_loss():
    state = SVIState(None, None, None)
    fit = Fit({}, np.array([5.0, 3.0, 2.0]), lambda: None, state)
    ax = plots.bound(fit)
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), [-5.0, -3.0, -2.0])
    assert ax.get_ylabel() == "bound / nats"


@pytest.mark.parametrize("width", [1, 2])
def test_inducing_inputs_before_and_after(width):
    before, after = np.zeros((3, width)), np.ones((3, width))
    ax = plots.inducing_inputs(before, after)
    labels = [line.get_label() for line in ax.get_lines()]
    assert "before" in labels and "after" in labels
    with pytest.raises(ValueError, match="the same before and after"):
        plots.inducing_inputs(before, np.ones((2, width)))


def test_the_embedded_counts_are_those_of_jarrett():
    data = datasets.coal()
    assert data.y.sum() == 191 and data.y.shape == (112,)
    assert data.x[0, 0] == 1851 and data.x[-1, 0] == 1962
