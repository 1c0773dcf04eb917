"""The published experiments, at the settings of benchmarks/papers."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

import svgp_ppl as gp


def needs(name):
    """Skip without the file: real data are read from a folder, and not downloaded."""
    return pytest.mark.skipif(
        not Path(os.environ.get("SVGP_PPL_DATA", ""), f"{name}.npz").is_file(),
        reason=f"SVGP_PPL_DATA names no folder with {name}.npz",
    )


PAPERS = Path(__file__).parent.parent / "benchmarks" / "papers"


def load(name):
    spec = importlib.util.spec_from_file_location(name, PAPERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_coupled_beliefs_reach_their_closed_forms():
    # Adam (2017), table 1, against the optima and the exact process.
    coupled = load("coupled")
    x, y = coupled.data(1)
    theta, _, exact = coupled.exact(x, y)
    guides = {"coupled": gp.AutoCoupled, "mean field": gp.AutoGaussian}
    for m in (10, 30):
        best = coupled.best_bounds(theta, m, x, y)
        for name, guide in guides.items():
            bound, row = coupled.fitted(guide, theta, m, x, y, 6000)
            assert best[name] - 0.05 < bound <= best[name] + 1e-6, (name, m)
            if name == "mean field":
                assert row[2] == 0.0 and row[1] == row[3]
            elif m == 30:
                np.testing.assert_allclose(row, exact, rtol=0.01)


@pytest.mark.slow
@needs("kin8nm")
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_two_layers_on_kin8nm_reach_the_published_numbers(precision):
    # Salimbeni & Deisenroth's notebook: 1.291 and 0.0661 (single layer 0.943, 0.0896).
    deep = load("deep")
    row = deep.fitted(gp.datasets.uci("kin8nm"), 2, deep.parse([]))
    assert row["log density"] > 1.29 and row["RMSE"] < 0.0661


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs(name)) for name in ("creep", "abalone")]
)
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_a_learned_warp_has_the_better_predictive_density(name, precision):
    warped = load("warped")
    options = warped.parse([name, "--m", "100", "--steps", "1000"])
    data = gp.datasets.savigp(name)
    plain, tanh = (warped.fitted(data, warp, options) for warp in ("none", "tanh"))
    assert tanh["bound"] > plain["bound"]
    assert tanh["log density"] > plain["log density"] + 0.05


@pytest.mark.slow
@needs("sarcos_4449")
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_a_network_of_two_nodes_is_better_than_two_processes(precision):
    gprn = load("gprn")
    options = gprn.parse(["--m", "100", "--steps", "1000"])
    data = gp.datasets.savigp("sarcos")
    apart, network = (gprn.fitted(data, nodes, options) for nodes in (0, 2))
    assert np.all(np.array(network["SMSE"]) <= apart["SMSE"])
    assert network["log density"] > apart["log density"]
