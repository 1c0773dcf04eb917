"""Minibatches: every row once an epoch, the right scale, the same after a pause."""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
from jax import random
from scipy.stats import chi2

import svgp_ppl as gp
from svgp_ppl.fitting import minibatches
from svgp_ppl.fitting.minibatches import Minibatches, permuted
from svgp_ppl.rows import pages_of
from svgp_ppl.runtime import compilation
from tests.models import unseen

RNG = np.random.default_rng(5)
N, B = 120, 20
X = RNG.uniform(0.0, 5.0, size=(N, 2))
Y = RNG.poisson(np.exp(np.sin(X[:, 0])))
Z = X[:6]


def model(x, y=None, num_data=None, weight=None):
    variance = numpyro.param("variance", jnp.asarray(0.8))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, 1.0), *unseen(Z))
    with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


def fit(x=X, y=Y, model=model, **options):
    options = {"progress": False, "batch_size": B, "num_data": N, **options}
    guide = options.pop("guide", None) or gp.AutoGaussian(model)
    return gp.fit(random.key(2), model, guide, x, y=y, **options)


# ----------------------------------------------------------------------- the order


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 1000])
def test_an_epoch_is_a_permutation(size):
    rows = permuted(np.arange(size), size, (7, 0))
    np.testing.assert_array_equal(np.sort(rows), np.arange(size))
    # Position by position it is the same.
    np.testing.assert_array_equal(
        permuted(np.arange(size)[::3], size, (7, 0)), rows[::3]
    )


def test_the_order_stays_what_it_is():
    # A checkpoint holds the number of a step, and not the order of its epoch: another
    # order in another version would give some rows twice and others not at all.
    small = permuted(np.arange(12), 12, (7, 3))
    assert small.tolist() == [0, 6, 2, 7, 8, 11, 1, 3, 5, 9, 4, 10]
    power = permuted(np.arange(16), 16, (7, 3))
    assert power.tolist() == [0, 6, 14, 7, 8, 13, 1, 3, 5, 12, 4, 10, 9, 11, 15, 2]
    large = permuted(np.array([0, 5, 999_999]), 1_000_000, (2**40 + 1, 10))
    assert large.tolist() == [816404, 31445, 306247]


def test_every_row_is_as_likely_in_every_place():
    # Two chi-square tests: false alarms in one of 500 runs of the suite, were the key
    # not fixed.
    size, epochs = 5, 1500
    orders = np.array([permuted(np.arange(size), size, (3, e)) for e in range(epochs)])
    places = np.array([np.bincount(o, minlength=size) for o in orders.T])
    statistic = np.sum((places - epochs / size) ** 2) / (epochs / size)
    assert chi2.sf(statistic, (size - 1) ** 2) > 1e-3
    pairs = np.bincount(orders[:, 0] * size + orders[:, 1], minlength=size**2)
    expected = epochs / (size * (size - 1))
    of_pairs = pairs.reshape(size, size)[~np.eye(size, dtype=bool)]
    statistic = np.sum((of_pairs - expected) ** 2) / expected
    assert chi2.sf(statistic, size * (size - 1) - 1) > 1e-3


def test_batches_of_an_epoch_share_no_row():
    data = Minibatches((np.zeros(23),), {}, 5, seed=1)
    rows = data.rows(0, 12)
    for epoch in range(3):
        seen = rows[4 * epoch : 4 * epoch + 4]
        assert len(np.unique(seen)) == 20  # three of 23 are left, others every time
    np.testing.assert_array_equal(data.rows(3, 4), rows[3:7])
    assert not np.array_equal(rows[:4], rows[4:8])
    other = Minibatches((np.zeros(23),), {}, 5, seed=2)
    assert not np.array_equal(other.rows(0, 12), rows)


def test_rows_gathered_together_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(minibatches, "_BYTES_IN_A_BLOCK", 10_000)
    data = Minibatches((np.zeros((30, 4)), np.zeros(30)), {}, 5, seed=1)
    assert data.longest_block == 10_000 // (5 * (4 + 1) * 8)
    wide = Minibatches((np.zeros((30, 4000)),), {}, 5, seed=1)
    assert wide.longest_block == 1


# ------------------------------------------------------------------------ the rows


def test_arrays_as_long_as_the_first_are_cut(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    table = {"weight": jnp.arange(float(N)), "z": np.arange(3.0)}
    data = Minibatches((mapped, None, 4.0), {"y": Y, "more": table}, B, seed=8)
    (x, nothing, scalar), kwargs = data.at(data.block(7, 1, 1), 0)
    rows = data.rows(7, 1)[0]
    assert (nothing, scalar) == (None, 4.0)
    np.testing.assert_array_equal(x, X[rows])
    np.testing.assert_array_equal(kwargs["y"], Y[rows])
    np.testing.assert_array_equal(kwargs["more"]["weight"], rows)
    np.testing.assert_array_equal(kwargs["more"]["z"], table["z"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_of_a_file_are_given_back(tmp_path):
    size = 200_000
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", float, (size, 16))[:] = 1.0
    x = np.load(tmp_path / "x.npy", mmap_mode="r")

    def mapped():
        text = Path("/proc/self/smaps").read_text().split("x.npy\n")
        return int(text[-1].split("Rss:")[1].split()[0]) / 1024 if len(text) > 1 else 0

    before = mapped()
    data = Minibatches((x,), {}, 1000, seed=0)
    for step in range(5):
        data.block(step, 1, 1)
    assert mapped() - before < 1.0
    assert np.sum(x[:: size // 5000]) > 0  # by hand: five thousand rows stay mapped
    assert mapped() > 10.0
    # A copy-on-write mapping would forget what was written to it.
    assert pages_of(np.load(tmp_path / "x.npy", mmap_mode="c")) is None
    assert pages_of(x[5:]) is not None


def test_a_fit_never_makes_an_array_of_a_whole_file(tmp_path, monkeypatch):
    """Files in float64 would be converted, and files on a GPU copied."""
    np.save(tmp_path / "x.npy", X)
    made, as_array = [], compilation.as_array
    watched = lambda leaf: made.append(np.shape(leaf)) or as_array(leaf)  # noqa: E731
    monkeypatch.setattr(compilation, "as_array", watched)
    fit(x=np.load(tmp_path / "x.npy", mmap_mode="r"), num_steps=4)
    assert made and X.shape not in made


# ------------------------------------------------------------------------- the bound


@pytest.fixture(scope="module")
def still():
    """Two epochs without a step, and the same by the full batch."""
    import jax

    with jax.enable_x64(True):
        options = {"optimizer": optax.sgd(0.0)}
        batches = fit(num_steps=12, **options)
        whole = fit(num_steps=1, batch_size=None, num_data=None, **options)
        return batches, whole


@pytest.mark.thorough
def test_an_epoch_of_batches_averages_to_the_full_bound(still):
    # Exactly: the data term is a sum over rows, and the KL is the same in every batch.
    batches, whole = still
    for epoch in (batches.losses[:6], batches.losses[6:]):
        np.testing.assert_allclose(np.mean(epoch), whole.losses[0], rtol=1e-12)
        assert np.std(epoch) > 1.0
    assert not np.allclose(batches.losses[:6], batches.losses[6:])


def test_rows_of_the_plate_are_rows_of_the_batch(still):
    def by_rows(x, y=None, num_data=None):
        variance = numpyro.param("variance", jnp.asarray(0.8))
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, 1.0), *unseen(Z))
        with numpyro.plate("data", N, subsample_size=len(x)) as rows:
            gp.observe("y", gp.likelihoods.Poisson(), f(x[rows]), obs=y[rows])

    again = fit(model=by_rows, num_steps=3, optimizer=optax.sgd(0.0))
    np.testing.assert_allclose(again.losses, still[0].losses[:3], rtol=1e-12)


@pytest.mark.parametrize("kind", ["numpy", "jax", "param", "in a plate", "guide"])
def test_rows_of_the_plate_are_no_rows_of_other_arrays(kind):
    # The first B of all rows at every step, beside other rows of x and y.
    offset = np.linspace(0.0, 1.0, N)

    def of_rows(rows):
        if kind == "numpy":
            return offset[rows]
        if kind == "in a plate":  # which takes its rows of a param by itself
            return numpyro.param("offset", offset, event_dim=0)
        if kind == "param":
            return numpyro.param("offset", jnp.asarray(offset))[rows + 0]
        return jnp.asarray(offset)[rows] if kind == "jax" else 0.0

    def indexed(x, y=None, num_data=None, weight=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(0.8, 1.0), Z)
        with numpyro.plate("data", N, subsample_size=len(x)) as rows:
            gp.observe("y", gp.likelihoods.Poisson(), f(x) + of_rows(rows), obs=y)

    def guide(x, y=None, num_data=None):
        numpyro.sample("f", dist.Normal(jnp.zeros(6), 1.0).to_event(1))
        with numpyro.plate("data", N, subsample_size=len(x)) as rows:
            numpyro.deterministic("some", numpyro.param("own", offset)[rows])

    own = {"guide": guide} if kind == "guide" else {}
    with pytest.raises(ValueError, match=r"(?s)within a batch, 0 to 19.*arange\(120\)"):
        fit(model=indexed, num_steps=3, **own)


@pytest.mark.thorough
def test_rows_among_the_arguments_are_rows_of_other_arrays():
    offset = jnp.linspace(0.0, 1.0, N)

    def indexed(x, y=None, row=None, num_data=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(0.8, 1.0), Z)
        level = numpyro.param("level", offset)[row]
        with numpyro.plate("data", N, subsample_size=len(x)) as rows:
            more = jnp.take(offset, row[rows])
            gp.observe("y", gp.likelihoods.Poisson(), f(x) + level + more, obs=y)

    options = {"model": indexed, "optimizer": optax.sgd(0.0), "row": np.arange(N)}
    batches = fit(num_steps=6, **options)
    whole = fit(num_steps=1, batch_size=None, **options)
    np.testing.assert_allclose(np.mean(batches.losses), whole.losses[0], rtol=1e-6)


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_a_plateau_is_seen_through_the_noise(precision, capfd, tmp_path):
    # Twelve steps are two epochs, whose mean is that of any two, to rounding.
    options = {"num_steps": 500, "patience": 12, "optimizer": optax.sgd(0.0)}
    np.save(tmp_path / "x.npy", X)  # float64 on disk, float32 in the model
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    stopped = fit(mapped, *unseen(Y), progress=True, **options)
    assert len(stopped.losses) == 30  # the first block of ten in which 24 are done
    assert np.std(stopped.losses) > 1.0
    assert stopped.stopped_early
    assert repr(stopped).startswith("Fit(30 steps, stopped early, bound ")
    assert "stopped early" in capfd.readouterr().err
    assert stopped.params["auto_f_loc"].dtype == jnp.float32


def test_a_model_without_the_scale_is_refused():
    def forgetful(x, y=None, num_data=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), Z)
        with numpyro.plate("rows", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    with pytest.raises(
        ValueError, match=r"(?s)plate\(\"data\", 120, sub.*'rows' with 20"
    ):
        fit(model=forgetful)


def test_a_second_site_without_the_scale_is_refused():
    def two(x, y=None, others=None, num_data=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), *unseen(Z))
        with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)
        with numpyro.plate("rows", len(x)):
            gp.observe("again", gp.likelihoods.Poisson(), f(x + 1.0), obs=y)

    def of_its_own(x, y=None, others=None, num_data=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), *unseen(Z))
        with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)
        gp.observe("other", gp.likelihoods.Gaussian(1.0), f(x[:20] + 1.0), obs=others)

    def scaled(scale):
        def model(x, y=None, others=None, num_data=None):
            f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), *unseen(Z))
            with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
                gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)
            with numpyro.handlers.scale(scale=scale):
                gp.observe("again", gp.likelihoods.Poisson(), f(x + 1.0), obs=y)

        return model

    with pytest.raises(ValueError, match="site 'again' has 20 rows of a batch"):
        fit(model=scaled(0.5), num_steps=1)
    assert len(fit(model=scaled(N / 20), num_steps=1).losses) == 1
    others = np.zeros(20)  # as many as in a batch
    with pytest.raises(ValueError, match="site 'again' has 20 rows of a batch"):
        fit(model=two)
    assert len(fit(model=of_its_own, others=others, num_steps=1).losses) == 1


def test_latents_of_single_data_go_by_row_numbers():
    def each(x, y=None, row=None, num_data=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(0.1, 1.0), Z)
        with numpyro.plate("all", num_data or len(x)):
            effect = numpyro.sample("effect", dist.Normal(0.0, 3.0))
        with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
            mean = f(x) + (effect if row is None else effect[row])
            gp.observe("y", gp.likelihoods.Gaussian(0.3), mean, obs=y)

    def forgetful(x, y=None, row=None, num_data=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(0.1, 1.0), Z)
        with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
            effect = numpyro.sample("effect", dist.Normal(0.0, 3.0))
            gp.observe("y", gp.likelihoods.Gaussian(0.3), f(x) + effect, obs=y)

    rows = np.arange(N)
    y = np.where(rows % 2, 2.0, -2.0)
    options = {"row": rows, "num_steps": 800, "optimizer": optax.adam(0.05)}
    effect = fit(y=y, model=each, **options).params["effect_auto_loc"]
    np.testing.assert_allclose(effect, y, atol=0.5)
    with pytest.raises(ValueError, match=r"'effect' has a value for each of 120 data"):
        fit(y=y, model=forgetful, **options)


@pytest.mark.usefixtures("as_users_call")
def test_mistakes_are_explained():
    for size in (0, N + 1, 2.5):
        with pytest.raises(
            ValueError, match="batch_size must be an integer from 1 to 120"
        ):
            fit(batch_size=size)
    with pytest.raises(ValueError, match=r"from 1 to 3, .* and is True"):
        Minibatches((np.zeros(3),), {}, True, seed=0)
    for size in (1, 3, np.int64(2)):
        assert Minibatches((np.zeros(3),), {}, size, seed=0).rows(0, 1).size == size
    with pytest.raises(ValueError, match="needs an array among the arguments"):
        gp.fit(random.key(0), model, gp.AutoGaussian(model), None, batch_size=3)
    with pytest.raises(ValueError, match=r"the bound is random: batch_size=20"):
        fit(optimizer=optax.lbfgs())


def test_tables_and_lists_are_not_cut():
    x, y = np.zeros((3, 1)), pd.Series([1.0, 2.0, 3.0])
    table = y.to_frame()
    for args, types in (
        ((x.tolist(), None), "list"),
        ((table, y), "DataFrame"),
    ):
        with pytest.raises(ValueError, match=f"their types are {types}.*to_numpy"):
            _ = Minibatches(args, {}, 2, seed=0)
    with pytest.raises(ValueError, match=r"a Series with as many rows, 3, .* whole"):
        _ = Minibatches((x, y), {}, 2, seed=0)
    for args in ((x, y.tolist()), (x.tolist(), y.to_numpy())):
        with pytest.raises(ValueError, match=r"a list with as many rows, 3, .*asarray"):
            _ = Minibatches(args, {}, 2, seed=0)
    other = Minibatches((x, y[:2]), {}, 2, seed=0)  # a constant of the model
    assert other.num_rows == 3
    with pytest.raises(ValueError, match=r"a Series with as many rows, 3, .* whole"):
        gp.predict_batches(model, None, x, y)
