"""Rows of Arrow and Parquet files, and rows that are read while steps run."""

import threading
import tracemalloc

import jax
import numpy as np
import numpyro
import pytest

import svgp_ppl as gp
from svgp_ppl.fitting import minibatches
from svgp_ppl.fitting.minibatches import Minibatches, blocks_of

RNG = np.random.default_rng(3)
N = 120
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = np.sin(X.sum(1)).astype(np.float32)


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow")


def table(arrow):
    names = {"a": X[:, 0], "y": Y, "b": X[:, 1], "count": np.arange(N)}
    return arrow.table(names)


def written(arrow, path, rows_of_a_batch=50, **options):
    """An Arrow file of three batches, of 50, 50 and 20 rows."""
    options = arrow.ipc.IpcWriteOptions(**options)
    held = table(arrow)
    with arrow.OSFile(str(path), "wb") as file:  # noqa: SIM117
        with arrow.ipc.new_file(file, held.schema, options=options) as writer:
            writer.write_table(held, rows_of_a_batch)
    return path


def model(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), np.array(X[:5]))
    with numpyro.plate("data", N, subsample_size=len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.3), f(x), obs=y)


GUIDE = gp.AutoGaussian(model)


def fit(x=X, y=Y, steps=40, **options):
    options = {"num_steps": steps, "batch_size": 30, "progress": False, **options}
    return gp.fit(jax.random.key(0), model, GUIDE, x, y, **options)


# ----------------------------------------------------------------------- the files


def test_rows_of_a_file_are_those_of_the_table(arrow, tmp_path):
    path = written(arrow, tmp_path / "data.arrow")
    rows = gp.arrow_rows(path, ["a", "b"])
    assert (rows.shape, rows.dtype) == ((N, 2), np.float32)
    some = RNG.permutation(N).reshape(4, 30)  # across the batches of the file
    np.testing.assert_array_equal(rows[some], X[some])
    np.testing.assert_array_equal(rows[45:110:3], X[45:110:3])
    np.testing.assert_array_equal(rows, X)
    for rows_of in (-1, [-3, 2], np.arange(N) % 7 == 0, np.zeros(0, int), []):
        np.testing.assert_array_equal(rows[rows_of], X[rows_of])
    np.testing.assert_array_equal(gp.arrow_rows(path, "y")[some], Y[some])
    mixed = gp.arrow_rows(path, ["count", "a"])
    assert mixed.dtype == np.float64
    np.testing.assert_array_equal(mixed[some][..., 0], some)


@pytest.mark.parametrize("kind", ["parquet", "compressed"])
def test_files_that_must_be_decoded_are_copied_once(arrow, tmp_path, kind):
    path, copy = tmp_path / "data", tmp_path / "rows.npy"
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(table(arrow), path, row_group_size=50)
    else:
        written(arrow, path, compression="lz4")
    with pytest.raises(ValueError, match=r'say copy="rows\.npy"'):
        gp.arrow_rows(path, "y")
    rows = gp.arrow_rows(path, ["a", "b"], copy=copy)
    assert isinstance(rows, np.memmap) and rows.mode == "r"
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(gp.arrow_rows(path, "y", copy=copy), Y)
    assert [p.name for p in tmp_path.iterdir() if p.suffix] == ["rows.npy"]


def test_what_cannot_be_read_is_said(arrow, tmp_path):
    path = written(arrow, tmp_path / "data.arrow")
    with pytest.raises(ValueError, match=r"no columns \['c'\], and has \['a', 'y'"):
        gp.arrow_rows(path, ["a", "c"])
    (tmp_path / "text").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="is no Arrow file"):
        gp.arrow_rows(tmp_path / "text", "a")
    held = arrow.table({"a": [1.0, None], "words": ["one", "two"]})
    with arrow.OSFile(str(path), "wb") as file:  # noqa: SIM117
        with arrow.ipc.new_file(file, held.schema) as writer:
            writer.write_table(held)
    with pytest.raises(ValueError, match="'a' has 1 missing values"):
        gp.arrow_rows(path, "a")
    with pytest.raises(ValueError, match="'words' has values of type string"):
        gp.arrow_rows(path, ["words"])


def test_without_pyarrow_it_is_said_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install svgp_ppl\[arrow\]"):
        gp.arrow_rows(tmp_path / "data.arrow", "a")


def test_a_fit_and_predictions_from_a_file_are_those_from_memory(
    arrow, tmp_path, monkeypatch
):
    path = written(arrow, tmp_path / "data.arrow")
    x, y = gp.arrow_rows(path, ["a", "b"]), gp.arrow_rows(path, "y")
    monkeypatch.setattr(type(x), "__array__", None)  # never all rows at once
    ours, theirs = fit(x, y), fit()
    np.testing.assert_array_equal(ours.losses, theirs.losses)
    batches = gp.predict_batches(model, ours, x, batch_size=50)
    mean = np.concatenate([at["y"].mean for _, at in batches])
    monkeypatch.undo()
    whole = gp.predict(model, ours, x)["y"].mean  # all rows at once
    np.testing.assert_allclose(mean, whole, atol=1e-6)
    np.testing.assert_allclose(whole, gp.predict(model, ours, X)["y"].mean, atol=1e-6)


def test_of_a_large_file_little_is_read(arrow, tmp_path):
    held = arrow.table({"a": np.zeros(10**6), "b": np.ones(10**6)})
    with arrow.OSFile(str(tmp_path / "large"), "wb") as file:  # noqa: SIM117
        with arrow.ipc.new_file(file, held.schema) as writer:
            writer.write_table(held, 10_000)
    tracemalloc.start()
    data = Minibatches((gp.arrow_rows(tmp_path / "large", ["a", "b"]),), {}, 1000, 0)
    batches, *_ = data.block(0, 2, 2)
    assert tracemalloc.get_traced_memory()[1] < 10**6  # the columns have 16 million
    tracemalloc.stop()
    np.testing.assert_array_equal(batches[0], [[[0.0, 1.0]] * 1000] * 2)


# ------------------------------------------------------------------ read meanwhile


def test_the_next_rows_are_read_in_a_thread_while_these_are_used():
    """The second block is there before anybody asks for it."""
    gathered = [threading.Event() for _ in range(4)]

    class Watched(Minibatches):
        def block(self, first, count, length):
            found = super().block(first, count, length)
            gathered[first // 3].set()
            return found

    data = Watched((X, Y), {}, 30, 0)
    for number, (count, arrays) in enumerate(blocks_of(data, 0, 10, 3)):
        if number < 3:
            assert gathered[number + 1].wait(10.0)
        expected = Minibatches((X, Y), {}, 30, 0).block(3 * number, count, 3)
        for i, array in expected[0].items():
            np.testing.assert_array_equal(arrays[0][i][:count], array[:count])


def test_results_do_not_depend_on_who_reads(monkeypatch):
    class Here:
        """Reads when it is asked to, in the thread of the caller."""

        def __init__(self, *_):
            self.result = lambda: self.call()

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

        def submit(self, function, *arguments):
            self.call = lambda: function(*arguments)
            return self

    meanwhile = fit()
    monkeypatch.setattr(minibatches, "ThreadPoolExecutor", Here)
    np.testing.assert_array_equal(fit().losses, meanwhile.losses)


def test_an_error_of_the_reading_thread_reaches_the_caller(monkeypatch):
    gather = minibatches._gather

    def failing(array, rows, out):
        if threading.current_thread() is not threading.main_thread():
            raise OSError("the disk is gone")
        gather(array, rows, out)

    monkeypatch.setattr(minibatches, "_gather", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        fit()


def test_a_copy_that_cannot_be_written_leaves_the_former_one(
    arrow, tmp_path, monkeypatch
):
    """On a full disk the map of a file without its place would end the process."""
    from pyarrow import parquet

    path, copy = tmp_path / "rows.parquet", tmp_path / "rows.npy"
    parquet.write_table(table(arrow), path)
    gp.arrow_rows(path, "a", copy=copy)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space left"):
        gp.arrow_rows(path, "y", copy=copy)
    np.testing.assert_array_equal(np.load(copy), X[:, 0])
    with pytest.raises(ValueError, match="would replace the file itself"):
        gp.arrow_rows(path, "y", copy=path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.npy", "rows.parquet"]


def test_an_interrupted_fit_goes_on_with_the_next_rows(monkeypatch, tmp_path):
    whole = fit(steps=60, checkpoint=tmp_path / "whole.npz")
    module = __import__("sys").modules["svgp_ppl.fitting.fit"]
    updates = []

    def interrupt(run, *_):
        updates.append(run)
        if len(updates) == 3:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(module._Run, "_words", interrupt)
    with pytest.warns(UserWarning, match="after 30 steps"):
        fit(steps=60, checkpoint=tmp_path / "fit.npz")
    monkeypatch.undo()
    stopped = gp.Fit.load(tmp_path / "fit.npz", GUIDE)
    rest = fit(steps=30, init=stopped)
    np.testing.assert_allclose(rest.losses, whole.losses, rtol=1e-6)
    assert not [t for t in threading.enumerate() if t.name.startswith("rows")]
