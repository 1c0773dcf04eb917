"""Figures hold what they are given, in order and with labelled axes."""

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pytest
from numpyro.infer.svi import SVIState

from svgp_ppl import datasets, diagnostics, plots
from svgp_ppl.fitting.fit import Fit


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


def test_a_band_is_of_one_site(as_users_call):
    with pytest.raises(ValueError, match=r"take one of \['y', 'w'\]"):
        plots.prediction_band(np.zeros(3), {"y": None, "w": None})


def test_a_band_over_other_inputs_than_its_own_is_refused():
    for x in (np.zeros(3), np.zeros((5, 1))):
        with pytest.raises(ValueError, match=r"at each of the [35] inputs x"):
            plots.function_band(x, np.zeros(4), np.ones(4), np.ones(4))


def test_the_density_integrates_to_the_mass_that_is_shown():
    draws = np.random.default_rng(0).lognormal(size=(2, 2000))
    (line,) = plots.density(draws).get_lines()
    x, y = line.get_data()
    assert x.min() > 0
    np.testing.assert_allclose(np.trapezoid(y, x), 0.989, atol=0.02)
    with pytest.raises(ValueError, match="positive values"):
        plots.density([1.0, -1.0])
    with pytest.raises(ValueError, match=r"differ, and 3 .* values \[0\.5\]"):
        plots.density([0.5, 0.5, 0.5])


def test_the_bound_is_minus_the_loss(as_users_call):
    state = SVIState(None, None, None)
    fit = Fit({}, np.array([5.0, 3.0, 2.0]), lambda: None, state)
    ax = plots.bound(fit)
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), [-5.0, -3.0, -2.0])
    assert ax.get_ylabel() == "bound / nats"
    with pytest.raises(ValueError, match=r"gp\.fit returns, and is given a dict"):
        plots.bound(chains())


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


def chains(num_draws=400):
    """Three chains, of which one sits elsewhere in a single parameter."""
    rng = np.random.default_rng(0)
    f = rng.normal(size=(3, num_draws, 2, 4))
    f[0, :, 1, 2] += 4.0
    f[..., 1, 3] = -f[..., 0, 0]
    return {"f": f, "scale": rng.gamma(2.0, size=(3, num_draws))}


def test_psrf_and_ess_follow_the_slowest_parameters():
    posterior = diagnostics.to_arviz(chains())
    ax = plots.psrf(posterior, num=3, num_windows=8)
    *lines, limit = ax.get_lines()
    assert len(lines) == 3 and lines[0].get_label() == "f[1, 2]"
    exact = diagnostics.psrf(chains(), windows=[50, 400])["f"][:, 1, 2]
    x, y = lines[0].get_data()
    assert x[0] == 50 and x[-1] == 400 and limit.get_ydata()[0] == 1.1
    np.testing.assert_allclose([y[0], y[-1]], exact)
    ax = plots.ess(posterior, num=2, num_windows=4)
    *lines, whole = ax.get_lines()
    np.testing.assert_array_equal(whole.get_ydata(), [300, 600, 900, 1200])
    assert lines[0].get_label() == "f[1, 2]"
    np.testing.assert_allclose(
        lines[0].get_ydata()[-1], diagnostics.ess(chains())["f"][1, 2]
    )


def test_joint_and_correlation_show_the_draws(as_users_call):
    draws = chains()
    ax = plots.joint(draws, ("f", (0, 0)), ("f", (1, 3)))
    x, y = ax.get_lines()[1].get_data()
    np.testing.assert_array_equal(x, draws["f"][1, :, 0, 0])
    np.testing.assert_array_equal(y, -x)
    assert ax.get_xlabel() == "f[0, 0]" and ax.get_ylabel() == "f[1, 3]"
    assert plots.joint(draws, "scale", "scale", log=True).get_xscale() == "log"
    image = plots.correlation(draws, "f").get_images()[0].get_array()
    assert image.shape == (8, 8)
    np.testing.assert_allclose([image[0, 7], image[3, 3]], [-1.0, 1.0])
    with pytest.raises(ValueError, match=r"say which element, for example \('f', \(0"):
        plots.joint(draws, "f", "scale")
    with pytest.raises(ValueError, match=r"no 'g' among \['f', 'scale'\]"):
        plots.joint(draws, "g", "scale")
    for other in (0, ("f", 0), None):
        with pytest.raises(ValueError, match=r"or \(name, index\), such as .*, and is"):
            plots.joint(draws, "scale", other)
    with pytest.raises(ValueError, match=r"no 'g' among \['f', 'scale'\]"):
        plots.correlation(draws, "g")
    with pytest.raises(ValueError, match="'scale' is one number per draw"):
        plots.correlation(draws, "scale")


def test_edges_join_correlated_inducing_inputs():
    z = np.arange(8.0).reshape(4, 2)
    ax = plots.correlated_inputs(chains(), "f", z, threshold=0.9)
    *edges, points = ax.get_lines()
    # Only f[0, 0] and f[1, 3] depend on each other.
    (edge,) = edges
    np.testing.assert_array_equal(edge.get_xydata(), z[[0, 3]])
    assert edge.get_color() == "0.5"
    np.testing.assert_array_equal(points.get_xydata(), z)
    assert ax.get_title() == "|correlation| > 0.9: 1"
    with pytest.raises(ValueError, match=r"z must be the \[4, 2\] inducing inputs"):
        plots.correlated_inputs(chains(), "f", z[:3])
    with pytest.raises(ValueError, match="between 0 and 1, and is 4"):
        plots.correlated_inputs(chains(), "f", z, threshold=4.0)


def test_bands_of_chains_lie_around_their_pooled_band():
    x = np.array([1.0, 0.0])
    noise = np.random.default_rng(1).normal(size=(2, 500, 2))
    values = noise + np.array([0.0, 10.0])
    ax = plots.chain_bands(x, values)
    middle, *edges = ax.get_lines()
    np.testing.assert_array_equal(middle.get_xdata(), [0.0, 1.0])
    np.testing.assert_allclose(middle.get_ydata(), [10.0, 0.0], atol=0.15)
    assert len(edges) == 4
    exact = np.quantile(values[1], 0.95, axis=0)[::-1]
    np.testing.assert_allclose(edges[3].get_ydata(), exact)
    with pytest.raises(ValueError, match=r"shape \[chains, draws, 2\] and have \(5,"):
        plots.chain_bands(x, np.zeros((5, 2)))


def test_contours_are_where_the_probability_is():
    side = np.linspace(0.0, 1.0, 21)
    x = np.stack(np.meshgrid(side, 2 * side), axis=-1).reshape(-1, 2)
    x = np.random.default_rng(2).permutation(x)
    probs = np.stack([x[:, 0], 1 - x[:, 0]], axis=-1)
    ax = plots.class_contours(x, probs, levels=[0.25])
    paths = [c.get_paths()[0].vertices for c in ax.collections]
    np.testing.assert_allclose(paths[0][:, 0], 0.25)
    np.testing.assert_allclose(paths[1][:, 0], 0.75)
    assert paths[0][:, 1].max() == 2.0
    binary = plots.class_contours(x, 1 - x[:, 0], levels=[0.25])
    for one, other in zip(paths, binary.collections):
        np.testing.assert_allclose(other.get_paths()[0].vertices, one)
    for points in (x[:-1], np.array([[0, 0], [0, 1], [1, 0], [1, 0]])):
        with pytest.raises(ValueError, match="must hold every pair"):
            plots.class_contours(points, probs[: len(points)])
    with pytest.raises(ValueError, match="a row for each of 441 points"):
        plots.class_contours(x, np.concatenate([probs, probs]))
