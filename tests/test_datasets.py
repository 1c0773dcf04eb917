"""Data sets: what is embedded, what is read, what is downloaded."""

import numpy as np
import pytest

from svgp_ppl import datasets
from svgp_ppl.datasets import classification, counts, regression, tables


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
        regression, "_UCI_SOURCE", tmp_path.as_uri() + "/{folder}/{file}.txt"
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


def test_a_set_is_never_half_stored(folder, source, monkeypatch):
    savez = np.savez

    def full(file, **arrays):
        savez(file, **{name: a[:1] for name, a in arrays.items()})
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        datasets.uci("energy", 3)
    assert not list(folder.iterdir())


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


def test_a_table_has_its_columns_and_its_holes(folder, tmp_path, monkeypatch):
    (tmp_path / "datasets").mkdir()
    text = 'rownames,Ozone,"Wind",Sky\n1,41,7.4,blue\n2,NA,8,NA\n3,,12.6,grey\n'
    (tmp_path / "datasets" / "airquality.csv").write_text(text)
    monkeypatch.setattr(tables, "_SOURCE", tmp_path.as_uri() + "/")
    for _ in range(2):  # downloaded, and read
        found = datasets.table("air_quality")
        assert list(found) == ["Ozone", "Wind", "Sky"]
        np.testing.assert_array_equal(found["Ozone"], [41.0, np.nan, np.nan])
        np.testing.assert_array_equal(found["Wind"], [7.4, 8.0, 12.6])
        assert found["Sky"].tolist() == ["blue", "NA", "grey"]
        (tmp_path / "datasets" / "airquality.csv").unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"name must be one of \['air_quality'"):
        datasets.table("iris")


def test_what_cannot_be_had_is_explained(folder, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match=r"name must be one of \['boston'.*'iris'"):
        datasets.uci("iris")
    nowhere = (tmp_path / "nowhere").as_uri() + "/{folder}/{file}.txt"
    monkeypatch.setattr(regression, "_UCI_SOURCE", nowhere)
    with pytest.raises(OSError, match=r"Set the environment variable SVGP_PPL_DATA"):
        datasets.uci("kin8nm")


def write_table(path, x, y):
    """A table of the classification collection: header, row number, columns, class."""
    names = "\t".join(f'"f{i}"' for i in range(x.shape[1]))
    lines = [f'""\t{names}\t"clase"']
    for i, (row, label) in enumerate(zip(x, y), start=1):
        values = "\t".join(str(v) for v in row)
        lines.append(f'"{i}"\t{values}\t{label}')
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def collection(tmp_path, monkeypatch):
    """A copy of the classification source: one set in one file, one in two."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(2.0, 3.0, size=(30, 3)), rng.integers(0, 4, size=30)
    y[0] = 3
    write_table(tmp_path / "wine-quality-white" / "wine-quality-white_R.dat", x, y)
    write_table(tmp_path / "adult" / "adult_train_R.dat", x[:20], y[:20] % 2)
    write_table(tmp_path / "adult" / "adult_test_R.dat", x[20:], y[20:] % 2)
    source = tmp_path.as_uri() + "/{folder}/{file}_R.dat"
    monkeypatch.setattr(classification, "_SOURCE", source)
    return x, y


def test_labelled_sets_are_downloaded_without_the_number_of_the_row(folder, collection):
    x, y = collection
    split = datasets.uci_classes("wine_quality_white", 2)
    assert split.x.shape == (27, 3) and split.num_classes == 4
    order = np.arange(30)
    np.random.seed(2)  # noqa: NPY002
    np.random.shuffle(order)  # noqa: NPY002
    np.testing.assert_array_equal(split.y, y[order[:27]])
    np.testing.assert_array_equal(split.y_test, y[order[27:]])
    train = x[order[:27]].astype(np.float32).astype(float)
    expected = (train - train.mean(0)) / train.std(0)
    np.testing.assert_allclose(split.x, expected, rtol=1e-10)
    both = datasets.uci_classes("adult")
    assert len(both.y) + len(both.y_test) == 30 and both.num_classes == 2


def test_events_are_counted_in_bins(folder, tmp_path, monkeypatch):
    rng = np.random.default_rng(4)
    years, trees = 1851 + 111 * rng.uniform(size=191), rng.uniform(size=(60, 2))
    for name in ("coal", "spatial"):
        (tmp_path / name).mkdir()
    np.savetxt(tmp_path / "coal" / "coal.csv", years, delimiter=",")
    np.savetxt(tmp_path / "spatial" / "pines.np", np.vstack([trees[:1], trees]))
    monkeypatch.setattr(counts, "_NIPS_SOURCE", tmp_path.as_uri() + "/{path}")
    half = datasets.coal_split(3)
    assert half.y.sum() == 95 and half.y_test.sum() == 96 and len(half.x) == 100
    np.random.seed(3)  # noqa: NPY002
    rows = np.random.permutation(191)[:95]  # noqa: NPY002
    first = (years[rows] < half.x[0, 0] + half.size / 2).sum()
    assert half.y[0] == first
    np.testing.assert_allclose(half.size * 100, np.ptp(years))
    grid = datasets.pines(4)
    assert grid.y.sum() == 60 and grid.area == 6.25  # the repeated tree counts once
    in_cell = np.all(np.abs(10 * trees - grid.x[5]) < 1.25, axis=1).sum()
    assert grid.y[5] == in_cell and grid.x[5].tolist() == [3.75, 3.75]


def test_three_classes_have_their_published_sizes():
    toy = datasets.three_classes()
    assert np.bincount(toy.y).tolist() == [266, 253, 231]
    assert np.bincount(toy.y_test).tolist() == [240, 259, 251]
    # The first cloud is long in x, the second in y, the third along x = y or x = −y.
    sds = [toy.x[toy.y == c].std(0) for c in range(3)]
    assert sds[0][0] > 5 * sds[0][1] and sds[1][1] > 5 * sds[1][0]
    np.testing.assert_allclose(sds[2][0], sds[2][1], rtol=0.1)


def test_stored_splits_are_used_as_they_are(folder):
    folder.mkdir()
    rng = np.random.default_rng(2)
    rows = {"train_idx": np.arange(6), "test_idx": np.arange(6, 10)}
    x, y = rng.normal(size=(10, 2)), rng.normal(1.0, 3.0, size=(10, 7))
    np.savez(folder / "sarcos_4449.npz", X=x, Y=y, **rows)
    np.savez(folder / "banana.npz", X=x, y=np.arange(10) % 2, **rows)
    sarcos, banana = datasets.savigp("sarcos"), datasets.banana()
    np.testing.assert_allclose(sarcos.y * sarcos.y_scale + sarcos.y_mean, y[:6])
    np.testing.assert_allclose(sarcos.y.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(banana.x, sarcos.x)
    np.testing.assert_array_equal(banana.y_test, [0, 1, 0, 1])


@pytest.mark.parametrize(
    "load, message",
    [
        (lambda: datasets.savigp("wine"), r"name must be one of \['abalone', 'creep'"),
        (
            lambda: datasets.uci_classes("iris"),
            r"name must be one of \['adult'.*'iris'",
        ),
        (lambda: datasets.savigp("creep"), r"holds X \[N, D\], y, train_idx and test"),
        (lambda: datasets.image(), r"image.npz, which holds X \[2086, 18\]"),
        (lambda: datasets.banana(), r"folder with banana.npz, which holds X \[5300"),
    ],
)
def test_sets_that_are_not_there_are_named(folder, load, message):
    with pytest.raises((ValueError, OSError), match=message):
        load()
