"""Data sets: what is embedded, what is read, what is downloaded."""

import numpy as np
import pytest

from svgp_ppl import datasets


def test_coal_is_the_published_series():
    coal = datasets.coal()
    assert coal.x.shape == (112, 1) and coal.y.sum() == 191
    assert coal.x[0] == 1851 and coal.x[-1] == 1962


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SVGP_PPL_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A copy of the public source: three text files of a small table."""
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.normal(3.0, 2.0, size=(40, 2)), np.ones(40)])
    table = np.column_stack([table, rng.normal(-5.0, 0.1, size=40)])
    files = tmp_path / "energy"
    files.mkdir()
    np.savetxt(files / "data.txt", table)
    np.savetxt(files / "index_features.txt", [0, 1, 2])
    np.savetxt(files / "index_target.txt", [3])
    monkeypatch.setattr(
        datasets, "_UCI_SOURCE", tmp_path.as_uri() + "/{folder}/{file}.txt"
    )
    return table


def test_a_set_is_downloaded_once_and_standardised_by_its_training_rows(folder, source):
    split = datasets.uci("energy", 3)
    assert (folder / "energy.npz").exists()
    assert split.x.shape == (36, 3) and split.x_test.shape == (4, 3)
    np.testing.assert_allclose(split.y.mean(), 0.0, atol=1e-12)
    np.testing.assert_allclose(split.y.std(), 1.0)
    np.testing.assert_allclose(split.x[:, :2].std(0), 1.0)
    assert not split.x[:, 2].any()  # a constant column stays finite
    y = np.concatenate([split.y, split.y_test]) * split.y_scale + split.y_mean
    np.testing.assert_allclose(np.sort(y), np.sort(source[:, 3]))
    (folder.parent / "energy" / "data.txt").unlink()
    np.testing.assert_array_equal(datasets.uci("energy", 3).x, split.x)


def test_splits_follow_the_rule_of_the_published_ones(folder, source):
    # Legacy generator, seed 1 once a set, a permutation a split, its last tenth.
    np.random.seed(1)  # noqa: NPY002
    orders = [
        np.random.choice(range(40), 40, replace=False)  # noqa: NPY002
        for _ in range(3)
    ]
    for number, order in enumerate(orders):
        split = datasets.uci("energy", number)
        y = split.y_test * split.y_scale + split.y_mean
        np.testing.assert_allclose(y, source[np.sort(order[36:]), 3])


def test_what_cannot_be_had_is_explained(folder, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of \['boston'.*'iris'"):
        datasets.uci("iris")
    nowhere = (tmp_path / "nowhere").as_uri() + "/{folder}/{file}.txt"
    monkeypatch.setattr(datasets, "_UCI_SOURCE", nowhere)
    with pytest.raises(OSError, match=r"Set the environment variable SVGP_PPL_DATA"):
        datasets.uci("kin8nm")
