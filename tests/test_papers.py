"""The published experiments, at the settings of benchmarks/papers."""

import os
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import svgp_ppl as gp
from benchmarks.papers.coupled import additive
from benchmarks.papers.deep import regression
from benchmarks.papers.mcmc import clouds, coal, digits, image, pines_grid
from benchmarks.papers.savigp import gprn, sparsity


def needs(name):
    """Skip without the file: real data are read from a folder, and not downloaded."""
    return pytest.mark.skipif(
        not Path(os.environ.get("SVGP_PPL_DATA", ""), f"{name}.npz").is_file(),
        reason=f"SVGP_PPL_DATA names no folder with {name}.npz",
    )


@pytest.mark.slow
def test_coupled_guides_reach_their_closed_forms():
    # Adam (2017), table 1, against the optima and the exact process.
    x, y = additive.data(1)
    theta, _, exact = additive.exact(x, y)
    guides = {"coupled": gp.AutoCoupled, "mean field": gp.AutoGaussian}
    for m in (10, 30):
        best = additive.best_bounds(theta, m, x, y)
        for name, guide in guides.items():
            bound, row = additive.fitted(guide, theta, m, x, y, 6000)
            assert best[name] - 0.05 < bound <= best[name] + 1e-6, (name, m)
            if name == "mean field":
                assert row["correlation"] == 0.0
                assert row["sd of sum"] == row["sd of difference"]
            elif m == 30:
                for measure in ("RMSE", "correlation", "sd of sum", "sd of difference"):
                    np.testing.assert_allclose(row[measure], exact[measure], rtol=0.01)


@pytest.mark.slow
@needs("kin8nm")
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_two_layers_on_kin8nm_reach_the_published_numbers(precision):
    # Salimbeni & Deisenroth's notebook: 1.291 and 0.0661 (single layer 0.943, 0.0896).
    # Three keys gave 1.282 to 1.285; what a mean over the test rows can tell is 0.022.
    run = regression.scored(lambda split: gp.datasets.uci("kin8nm", split))
    settings = {"layers": 2, "M": 100, "batch": 1000, "steps": 5000, "start": 1.0}
    row = run(settings, 0)
    errors = row["errors"]
    assert row["log density"] > 1.291 - errors["log density"]
    assert row["RMSE"] < 0.0661 + errors["RMSE"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(name)) for name in ("creep", "abalone")]
)
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_a_learned_warp_has_the_better_predictive_density(name, precision):
    settings = {"q(v)": "FG", "SF": 0.1, "steps": 1000, "rate": 0.02}
    warped = sparsity.PROBLEMS[name]
    plain = replace(warped, likelihood=sparsity.gaussian)
    plain, tanh = (sparsity.scored(one)(settings, 0) for one in (plain, warped))
    assert tanh["log density"] > plain["log density"] + 0.05


@pytest.mark.slow
@needs("sarcos_4449")
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_a_network_of_two_nodes_is_better_than_two_processes(precision):
    settings = {"M": 100, "steps": 1000, "batch": 1000}
    apart, network = (gprn.run(settings | {"nodes": n}, 0) for n in (0, 2))
    for torque in ("SMSE, torque 4", "SMSE, torque 7"):
        assert network[torque] <= apart[torque]
    assert network["log density"] > apart["log density"]


@pytest.mark.slow
@needs("coal")
def test_draws_predict_disasters_better_than_the_gaussian(optimized):
    # Hensman et al. (2015), section 5.2: −1.229 and −1.225, better in every split.
    options = {"steps": 300, "chains": 4, "warmup": 500, "draws": 750}
    cases = {"posterior": "draws"}, {"posterior": "Gaussian", "mode of": "natural"}
    draws, gaussian = (
        np.array([coal.compared(options | c, s)["log probability"] for s in range(10)])
        for c in cases
    )
    gains = draws - gaussian
    # 8 when measured; runs of a split differ by up to 0.002.
    assert gains.mean() > 0.0 and sum(gains > 0) >= 7
    np.testing.assert_allclose(draws.mean(), -1.225, atol=0.002)


@pytest.mark.slow
@needs("image")
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_image_segments_by_fitted_inputs_and_by_draws(optimized, precision):
    # Section 5.1: fitted z is better than k-means, draws than the Gaussian (ARD).
    options = {"steps": 2000, "chains": 2, "warmup": 150, "draws": 200}
    kmeans, fitted = (
        image.compared(options | image.case(20, "ARD", z), 0)
        for z in ("k-means", "fitted")
    )
    assert fitted["Gaussian"] > kmeans["Gaussian"] + 0.05
    for row in (kmeans, fitted):
        assert row["gain"] > 0.005 and row["R-hat"] < 1.1


def test_of_each_digit_the_inducing_input_that_moved_the_most_is_kept():
    z_start = np.array([[-1.0, -1.0], [1.0, 1.0], [1.0, -1.0], [-0.6, -1.0]])
    moves = np.array([[0.0, 0.1], [0.4, 0.0], [0.0, -0.2], [0.0, 0.4]])
    # Two of three images near the second one are of digit 0, and so it is.
    nearest, y = np.array([0, 0, 1, 1, 1, 2, 3]), np.array([1, 1, 0, 0, 1, 0, 1])
    kept = digits.moved_most(z_start, z_start + moves, z_start[nearest] + 0.01, y)
    np.testing.assert_array_equal(kept["before"], [[255, 255], [51, 0]])
    np.testing.assert_array_equal(kept["after"], [[306, 255], [51, 51]])


@pytest.mark.slow
@needs("pines")
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_225_inducing_inputs_have_the_map_of_1024(optimized, precision):
    # Section 5.3, both posteriors integrated without chains.
    data = gp.datasets.pines(32)
    values = {
        "variance": np.geomspace(0.35, 2.2, 4),
        "lengthscale": np.geomspace(0.22, 1.1, 6),
    }
    maps = []
    for side, num_steps in ((32, 0), (15, 1000)):
        z = np.asarray(pines_grid.fitted_inputs(data, side, num_steps), float)
        with jax.enable_x64(True):
            maps.append(pines_grid.on_grid(data, z, values, 4000).map)
    correlation, gap = pines_grid.agreement(maps[1], maps[0])
    assert correlation > 0.985 and gap < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_the_free_form_of_three_classes_is_more_careful(optimized, precision):
    # Section 5.4: its contours of 0.95 are smaller.
    settings = {"steps": 2000, "chains": 2, "warmup": 150, "draws": 200}
    row = clouds.compared(settings | {"flip": "fixed"}, 0)
    assert row["sure, draws"] < row["sure, Gaussian"] - 1.0
    assert row["R-hat"] < 1.2
