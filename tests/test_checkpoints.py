"""Fits as files: killed and resumed they end where they would have ended."""

import errno
import gzip
import io
import os
import pickle
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoNormal

import svgp_ppl as gp
from svgp_ppl.fitting.minibatches import Minibatches
from svgp_ppl.fitting.plateau import Plateau
from svgp_ppl.runtime import checkpoints, progress
from svgp_ppl.runtime.checkpoints import Checkpoint, as_stored, read, write
from tests.models import (
    COUNTS_X,
    COUNTS_Y,
    GAUSSIAN_X,
    GAUSSIAN_Y,
    Walk,
    counts_model,
    gaussian_model,
    unseen,
)
from tests.test_minibatches import B, N, X, Y, model

OPTIONS = {"batch_size": B, "num_data": N, "progress": False}
OPTIMIZERS = {
    "adam": lambda: optax.adam(1e-2),
    "natural": lambda: gp.natural_gradient(0.1, optax.adam(1e-2)),
}


def run(optimizer, num_steps, guide=None, **options):
    guide = gp.AutoGaussian(model) if guide is None else guide
    options = OPTIONS | {"num_steps": num_steps} | options
    return gp.fit(
        random.key(4), model, guide, X, Y, optimizer=OPTIMIZERS[optimizer](), **options
    )


@pytest.fixture(scope="module")
def whole():
    """Sixty steps of each optimiser without a pause."""
    with jax.enable_x64(True):
        return {name: run(name, 60) for name in OPTIMIZERS}


def assert_resumes(optimizer, path, reference):
    """The file at ``path`` leads to where the fit without a pause has led."""
    guide = gp.AutoGaussian(model)
    loaded = gp.Fit.load(path, guide)
    done = len(loaded.losses)
    assert done > 0
    length = min(done, 60)
    np.testing.assert_allclose(
        loaded.losses[:length], reference.losses[:length], rtol=1e-9
    )
    if done < 60:
        assert_same_fit(run(optimizer, 60 - done, guide, init=loaded), reference)


def assert_same_fit(fitted, reference):
    np.testing.assert_allclose(fitted.losses, reference.losses, rtol=1e-9)
    for name, value in reference.params.items():
        np.testing.assert_allclose(fitted.params[name], value, atol=1e-9)


class Killed(BaseException):
    """What no handler of the fit expects."""


@pytest.mark.parametrize(
    "optimizer", ["adam", pytest.param("natural", marks=pytest.mark.thorough)]
)
def test_cut_off_and_resumed(optimizer, whole, tmp_path, monkeypatch):
    # Ended in the middle by what no handler catches: what is there is the checkpoint.
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 0.0)

    def end(bar, text):
        bar.seen = getattr(bar, "seen", 0) + (text != "compiling")
        if bar.seen == 3:
            raise Killed

    monkeypatch.setattr(progress.tqdm, "set_postfix_str", end)
    with pytest.raises(Killed):
        run(optimizer, 60, checkpoint=tmp_path / "fit")
    monkeypatch.undo()
    assert len(gp.Fit.load(tmp_path / "fit", model).losses) == 20
    assert_resumes(optimizer, tmp_path / "fit", whole[optimizer])
    # The same call goes on, and once it is finished has nothing to do.
    for _ in range(2):
        resumed = run(optimizer, 60, checkpoint=tmp_path / "fit")
        assert_same_fit(resumed, whole[optimizer])


def test_a_finished_fit_gets_more_steps(whole, tmp_path):
    path = tmp_path / "fit"
    first = run("adam", 20, checkpoint=path)
    assert len(first.losses) == 20
    assert_same_fit(run("adam", 60, checkpoint=path), whole["adam"])
    # What continues a fit goes on, too: here after 20 steps, of which the file knows.
    assert_same_fit(run("adam", 40, checkpoint=path, init=first), whole["adam"])
    assert len(run("adam", 20, checkpoint=path).losses) == 60


def test_a_mixture_gets_more_steps(tmp_path):
    """Its weights stay frozen for half of the steps that it was begun with."""

    def steps(number, **options):
        return run("adam", number, gp.AutoMixture(model, 2), **options)

    path = tmp_path / "fit"
    assert steps(4, checkpoint=path).unfreeze_at == {"auto_logits": 2}
    assert_same_fit(steps(8, checkpoint=path), steps(8, freeze={"auto_logits": 2}))
    assert len(steps(4, checkpoint=path).losses) == 8


def flatter(x, y=None, **options):
    with numpyro.handlers.scale(scale=0.9):
        model(x, y, **options)


@pytest.mark.parametrize(
    "other, difference",
    [
        ({"key": random.key(5)}, "its random key is another one"),
        ({"y": Y + 1}, "its first losses are .* should be .* data"),
        pytest.param(
            {"model": flatter}, "its first losses are", marks=pytest.mark.thorough
        ),
        pytest.param(
            {"optimizer": optax.adam(2e-2)},
            "its first losses are",
            marks=pytest.mark.thorough,
        ),
        ({"optimizer": optax.sgd(1e-2)}, "another model, guide, optimiser"),
        ({"init": "another"}, "it has other losses than init"),
        ({"freeze": {"variance": 9}}, "frozen for {} steps, and would be for {'"),
    ],
)
def test_a_file_of_another_fit_is_not_replaced(tmp_path, other, difference):
    path = tmp_path / "fit {0}"
    run("adam", 20, checkpoint=path)
    before = path.read_bytes()
    if "init" in other:
        shorter = gp.fit(random.key(5), model, None, X, Y, num_steps=5, **OPTIONS)
        other = {"init": shorter}
    given = {
        "key": random.key(4),
        "model": model,
        "y": Y,
        "optimizer": optax.adam(1e-2),
    }
    given |= other
    key, y, one = given.pop("key"), given.pop("y"), given.pop("model")
    with pytest.raises(ValueError, match=difference):
        gp.fit(key, one, None, X, y, num_steps=20, checkpoint=path, **OPTIONS, **given)
    assert path.read_bytes() == before


@pytest.mark.thorough
def test_a_guide_that_has_predicted_goes_on_from_the_file(tmp_path):
    def run(num_steps, guide):
        options = {"num_steps": num_steps, "progress": False, "checkpoint": path}
        args = counts_model, guide, COUNTS_X, COUNTS_Y
        return gp.fit(random.key(0), *args, **options).losses

    path = tmp_path / "fit.npz"
    first = run(3, gp.AutoGaussian(counts_model))
    guide = gp.AutoGaussian(counts_model)
    gp.predict(counts_model, gp.Fit.load(path, guide), COUNTS_X[:2])
    np.testing.assert_array_equal(run(5, guide)[:3], first)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_killed_and_resumed(optimizer, whole, tmp_path):
    # A process of its own, killed while it fits: the file is whole, and enough.
    path = tmp_path / "fit"
    code = f"""
import sys
import jax
jax.config.update("jax_enable_x64", True)
import svgp_ppl as gp
sys.modules["svgp_ppl.runtime.checkpoints"]._SECONDS_BETWEEN = 0.0
from tests.test_checkpoints import run
run({optimizer!r}, 1_000_000, checkpoint={str(path)!r})
"""
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code])
    deadline = time.monotonic() + 240
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    assert process.wait() != 0
    assert_resumes(optimizer, path, whole[optimizer])


@pytest.mark.slow
def test_a_loaded_fit_predicts_samples_and_draws(tmp_path):
    fitted = gp.fit(
        random.key(0),
        counts_model,
        gp.AutoGaussian(counts_model),
        COUNTS_X,
        COUNTS_Y,
        num_steps=10,
        progress=False,
    )
    fitted.save(tmp_path / "fit.npz")

    def load():
        return gp.Fit.load(tmp_path / "fit.npz", gp.AutoGaussian(counts_model))

    loaded = load()
    assert repr(loaded) == repr(fitted)
    assert (loaded.seed, loaded.stopped_early) == (fitted.seed, False)
    assert loaded.params.keys() == fitted.params.keys()
    for name, value in fitted.params.items():
        np.testing.assert_array_equal(loaded.params[name], value)
    mean = gp.predict(counts_model, loaded, COUNTS_X)["y"].mean
    assert np.all(np.isfinite(mean))
    key = random.key(1)
    draws = load().guide.sample_posterior(key, loaded.params, COUNTS_X, COUNTS_Y)
    np.testing.assert_allclose(
        draws["f"], fitted.guide.sample_posterior(key, fitted.params)["f"], rtol=1e-12
    )
    fresh = load()
    sampled = gp.sample(
        key,
        counts_model,
        COUNTS_X,
        COUNTS_Y,
        sampler=Walk(),
        num_chains=2,
        num_warmup=1,
        num_samples=3,
        init=fresh,
        progress=False,
    )
    assert np.all(np.isfinite(sampled.posterior["f"]))
    # A guide that looks at the model inside of jit would keep its tracers.
    kept = jax.tree.leaves(dict(fresh.guide.prototype_trace))
    assert kept
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in kept)


def test_a_fit_without_a_guide_is_loaded_by_its_model(tmp_path):
    data = COUNTS_X, COUNTS_Y
    fitted = gp.fit(random.key(0), counts_model, *data, num_steps=3, progress=False)
    fitted.save(tmp_path / "fit")
    loaded = gp.Fit.load(tmp_path / "fit", model=counts_model)
    mean = fitted.predict(COUNTS_X)["y"].mean
    np.testing.assert_array_equal(loaded.predict(COUNTS_X)["y"].mean, mean)
    with pytest.raises(ValueError, match=r"no code: .* load\(path, model=model\)"):
        gp.Fit.load(tmp_path / "fit")


def test_a_point_is_not_read_from_the_unconstrained_location_of_a_normal(tmp_path):
    data, options = (COUNTS_X, COUNTS_Y), {"num_steps": 3, "progress": False}
    guide = gp.AutoGaussian(counts_model, rest=AutoNormal)
    gp.fit(random.key(0), counts_model, guide, *data, **options).save(tmp_path / "fit")
    loaded = gp.Fit.load(tmp_path / "fit", model=counts_model)
    another = r"\['lengthscale', 'variance'\] have a scale.* rest=AutoNormal"
    with pytest.raises(ValueError, match=another):
        loaded.predict(COUNTS_X)
    with pytest.raises(ValueError, match=another):
        gp.sample(random.key(0), counts_model, *data, init=loaded, progress=False)
    with pytest.raises(ValueError, match=another):
        gp.importance_sample(random.key(0), counts_model, *data, init=loaded)
    with pytest.raises(ValueError, match=another):
        gp.diagnostics.report(loaded, *data)


@pytest.mark.parametrize("is_double", [True, False])
def test_the_precision_of_a_fit_is_remembered(tmp_path, is_double):
    came, here = ("float64", "float32") if is_double else ("float32", "float64")
    with jax.enable_x64(is_double):
        params, losses = {"auto_f_loc": jnp.zeros(3)}, np.zeros(2)
        gp.Fit(params, losses, model, as_stored(params)).save(tmp_path / "fit")
    with jax.enable_x64(not is_double):
        with pytest.warns(UserWarning, match=f"in {came}, and these are in {here}"):
            loaded = gp.Fit.load(tmp_path / "fit", model)
        assert loaded.params["auto_f_loc"].dtype.name == here


@pytest.mark.parametrize(
    "is_double", [pytest.param(True, marks=pytest.mark.thorough), False]
)
def test_nor_is_that_of_a_fit_in_memory_forgotten(is_double):
    """Where the setting changes after it; its own numbers are not touched."""
    came, here = ("float64", "float32") if is_double else ("float32", "float64")
    data, options = (GAUSSIAN_X, GAUSSIAN_Y), {"num_steps": 1, "progress": False}
    with jax.enable_x64(is_double):
        fitted = gp.fit(random.key(0), gaussian_model, *unseen(*data), **options)
    with jax.enable_x64(not is_double):
        key, data = random.key(1), unseen(*data)
        for use in (
            lambda: fitted.predict(data[0]),
            lambda: gp.update(key, fitted, *data, **options),
        ):
            with pytest.warns(UserWarning, match=f"in {came}, and these are in {here}"):
                found = use()
        assert {a.dtype.name for a in found.params.values()} == {here}
    assert {a.dtype.name for a in fitted.params.values()} == {came}


def test_a_new_guide_beside_a_loaded_fit_has_to_see_the_data(tmp_path):
    def more_data(x, y=None, measured=None):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.sample("measured", dist.Normal(level, 0.1), obs=measured)
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), COUNTS_X[:3])
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x) + level, obs=y)

    data = COUNTS_X, COUNTS_Y, 0.3
    fitted = gp.fit(random.key(0), more_data, *data, num_steps=3, progress=False)
    fitted.save(tmp_path / "fit")
    guide, at_new = gp.AutoGaussian(more_data), (COUNTS_X[:2],)
    loaded = gp.Fit.load(tmp_path / "fit", guide, more_data)
    with pytest.raises(
        ValueError, match=r"If \['measured'\] had data in the fit: .*seed"
    ):
        loaded.predict(*at_new, key=random.key(1))

    guide = gp.AutoGaussian(more_data)
    numpyro.handlers.seed(guide, 0)(*data)
    loaded = gp.Fit.load(tmp_path / "fit", guide, more_data)
    means = [
        one.predict(*at_new, key=random.key(1))["y"].mean for one in (fitted, loaded)
    ]
    np.testing.assert_array_equal(*means)


def test_another_model_guide_or_optimizer_is_refused(whole, tmp_path):
    path = tmp_path / "fit"
    whole["adam"].save(path)
    loaded = gp.Fit.load(path, gp.AutoGaussian(model))
    for init in (loaded, whole["adam"]):
        with pytest.raises(
            ValueError, match="another model, guide, optimiser"
        ) as error:
            run("natural", 5, init=init)
        assert "init=(fit.guide, fit.params)" in str(error.value)
        with pytest.raises(ValueError, match="another model, guide"):
            run("adam", 5, gp.AutoGaussian(model, "diagonal"), init=init)

    def smaller(x, y=None, num_data=None):
        numpyro.param("variance", jnp.asarray(0.8))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), X[:3])
        with numpyro.plate("data", N, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    with pytest.raises(ValueError, match=r"auto_f_loc'\] is float64\[6\], and .*\[3\]"):
        gp.fit(
            random.key(0),
            smaller,
            gp.AutoGaussian(smaller),
            X,
            Y,
            init=loaded,
            **OPTIONS,
        )


def test_params_that_were_changed_are_not_ignored(whole):
    """The state of the optimiser has the old ones, with which it would go on."""
    before = whole["adam"]
    for name in ("another", "variance"):
        after = replace(before, params={**before.params, name: 2.0})
        with pytest.raises(ValueError, match=rf"other values of \['{name}'\] than the"):
            run("adam", 1, init=after)
    after = run("adam", 1, init=(after.guide, after.params))
    np.testing.assert_allclose(after.params["variance"], 2.0, atol=0.05)


@pytest.mark.parametrize("is_mixture", [True, False])
def test_a_guide_of_another_size_is_refused(tmp_path, is_mixture):
    def of(size):
        def model(x, y=None):
            kernel, outputs = gp.kernels.RBF(1.0, 1.0), None if is_mixture else size
            f = gp.sparse_gp("f", kernel, COUNTS_X[:3], num_outputs=outputs)
            latent = f(x) if is_mixture else f(x)[..., 0]
            with numpyro.plate("data", len(x)):
                gp.observe("y", gp.likelihoods.Poisson(), latent, obs=y)

        guide = gp.AutoMixture(model, size) if is_mixture else gp.AutoGaussian(model)
        return model, guide

    data = COUNTS_X, COUNTS_Y
    fitted = gp.fit(random.key(0), *of(3), *data, num_steps=2, progress=False)
    fitted.save(tmp_path / "fit")
    other, guide = of(2)
    loaded = gp.Fit.load(tmp_path / "fit", guide, other)
    with pytest.raises(ValueError, match=r"shape \(3, 3\), .* needs \(2, 3\)"):
        loaded.predict(COUNTS_X)


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_call")
def test_another_optimizer_starts_from_guide_and_params(whole):
    before = whole["adam"]
    after = run("natural", 1, init=(before.guide, before.params))
    assert len(after.losses) == 1
    # The first loss is that of the first batch at these parameters.
    exact = SVI(model, before.guide, optax.sgd(0.0), gp.MarginalELBO())
    at = exact.init(random.key(0), X, Y, init_params=before.params)
    data = Minibatches((X, Y), {}, B, after.seed)
    (x, y), _ = data.at(data.block(0, 1, 1), 0)
    expected = exact.evaluate(at, x, y, num_data=N)
    np.testing.assert_allclose(after.losses[0], expected, rtol=1e-9)
    with pytest.raises(ValueError, match=r"values of \['other'\], and the parameters"):
        run("adam", 1, init=(before.guide, {"other": 1.0}))
    with pytest.raises(ValueError, match=r"init must be what gp\.fit returns, or"):
        run("adam", 1, init=(3, 4))


def test_equal_leaves_in_another_tree_are_refused():
    stored = checkpoints.as_stored({"mean": np.ones(2), "scale": np.ones(2)})
    with pytest.raises(ValueError, match=r"its state is .*mean.*and should be .*loc"):
        checkpoints.restored(stored, {"loc": np.ones(2), "scale": np.ones(2)}, "{}")
    with pytest.raises(ValueError, match=r"'scale'.* is float64\[2\], and should be"):
        checkpoints.restored(stored, {"mean": np.ones(2), "scale": np.ones(3)}, "{}")


def test_files_keep_every_kind_of_leaf(tmp_path):
    state = {
        "key": random.key(3),
        "half": jnp.arange(3.0).astype(jnp.bfloat16),
        "count": np.int32(4),
        "scalar": 2.5,
        "none": None,
    }
    record = {"params": {"a/b c": jnp.ones((2, 1)), "x": jnp.zeros(())}, "number": 3}
    path = tmp_path / "file.without.npz"
    write(path, "fit", record, state)
    got, stored = read(path, "fit")
    assert list(tmp_path.iterdir()) == [path]
    assert got["number"] == 3
    np.testing.assert_array_equal(got["params"]["a/b c"], np.ones((2, 1)))
    assert stored.structure == as_stored(state).structure
    for came, kept in zip(stored.leaves, as_stored(state).leaves, strict=True):
        kept = jnp.asarray(kept)
        assert came.dtype == kept.dtype
        assert bool(jnp.all(came == kept))


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "fit"
    write(path, "fit", {"number": 1}, {})
    with pytest.raises(TypeError):
        write(path, "fit", {"number": object()}, {})
    assert read(path, "fit")[0]["number"] == 1
    assert list(tmp_path.iterdir()) == [path]


# ------------------------------------------------------- where no file can be written


class Untouched:
    """A guide that must not be run."""

    def __call__(self, *args, **kwargs):
        raise AssertionError("the guide was run before the file was looked at")


def refused(path, message):
    with pytest.raises(ValueError, match=message):
        run("adam", 5, Untouched(), checkpoint=path)


def test_impossible_places_are_refused_before_the_first_step(tmp_path):
    refused(tmp_path / "missing" / "fit", "there is no such folder")
    refused(tmp_path, "is a folder: give the name of a file")
    refused(tmp_path / ("n" * 300), "no file can be written there")
    (tmp_path / "fit").write_text("the only copy of something")
    refused(tmp_path / "fit" / "fit", "there is no such folder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["fit"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may")
def test_a_folder_that_is_read_only_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    refused(tmp_path / "fit", "no file can be written there")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without pipes")
def test_special_files_are_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        refused(path, "is not an ordinary file")
        with pytest.raises(ValueError, match="is not an ordinary file"):
            write(path, "fit", {"number": 1}, {})
        with pytest.raises(ValueError, match="is not an ordinary file"):
            read(path, "fit")
    assert (tmp_path / "pipe").is_fifo()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "fit", tmp_path / "link"
    link.symlink_to(target)
    for number in (1, 2):  # to nothing, then to a file
        write(link, "fit", {"number": number}, {})
        assert link.is_symlink() and read(target, "fit")[0]["number"] == number
    assert [entry.name for entry in target.parent.iterdir()] == ["fit"]


def test_a_checkpoint_replaces_no_file_of_another_kind(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=X)
    before = path.read_bytes()
    refused(path, r"holds the arrays \['x'\], and is not a file that Fit\.save has")
    assert path.read_bytes() == before
    # With nothing in it nothing is lost.
    path.write_bytes(b"")
    Checkpoint(path, "fit", "")


# ------------------------------------------------------------- while the fit is going


@pytest.fixture
def always(monkeypatch):
    """A write after every block."""
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 0.0)


@pytest.mark.usefixtures("always")
def test_a_disk_that_fills_up_costs_no_step(whole, tmp_path, monkeypatch):
    path, savez, calls = tmp_path / "fit", np.savez, []

    def full(file, **arrays):
        calls.append(1)
        if len(calls) == 1:
            return savez(file, **arrays)
        file.write(b"PK\x03\x04 and no more")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match="could not be written .*No space.* goes on"):
        fitted = run("adam", 60, checkpoint=path)
    np.testing.assert_array_equal(fitted.losses, whole["adam"].losses)
    assert len(calls) > 3
    # What was written before is whole, and nothing lies beside it.
    assert list(tmp_path.iterdir()) == [path]
    assert_resumes("adam", path, whole["adam"])


@pytest.mark.usefixtures("always")
def test_a_folder_that_takes_the_place_of_the_file_is_a_warning(whole, tmp_path):
    path = tmp_path / "fit"
    file = Checkpoint(path, "fit", "the fit goes on.")
    path.mkdir()
    with pytest.warns(UserWarning, match="is a folder.*the fit goes on"):
        assert not file.save(whole["adam"].save)
    path.rmdir()
    assert file.save(whole["adam"].save) and file.is_due()


def test_slow_writes_become_rare(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: clock[0])
    file = Checkpoint(tmp_path / "fit", "fit", "")

    def take(seconds):
        def write_to(path):
            clock[0] += seconds

        file.save(write_to)
        begin = clock[0]
        while not file.is_due():
            clock[0] += 1.0
        return clock[0] - begin

    assert take(0.1) == 31.0
    # A twentieth of the time at most.
    assert take(10.0) == 201.0


@pytest.mark.usefixtures("always")
def test_an_interrupt_saves_what_it_returns(whole, tmp_path, monkeypatch):
    path = tmp_path / "fit"

    def interrupt(bar, text):
        bar.seen = getattr(bar, "seen", 0) + (text != "compiling")
        if bar.seen == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress.tqdm, "set_postfix_str", interrupt)
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 3600.0)
    with pytest.warns(UserWarning, match="after 30 steps"):
        stopped = run("adam", 60, checkpoint=path)
    monkeypatch.undo()
    loaded = gp.Fit.load(path, stopped.guide)
    np.testing.assert_array_equal(loaded.losses, stopped.losses)
    assert len(loaded.losses) == 30
    assert_resumes("adam", path, whole["adam"])


@pytest.mark.thorough
def test_a_fit_interrupted_at_its_plateau_stops_there(tmp_path, monkeypatch):
    """In the middle of asking for one; without patience the file goes on."""
    path, options = tmp_path / "fit", {"patience": 12, "tolerance": 0.02}
    reference = run("adam", 100, **options)
    assert reference.stopped_early and 30 < len(reference.losses) < 90
    is_reached = Plateau.is_reached

    def interrupted(rule, history):
        if is_reached(rule, history):
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(Plateau, "is_reached", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        run("adam", 100, checkpoint=path, **options)
    monkeypatch.undo()
    for _ in range(2):
        resumed = run("adam", 100, checkpoint=path, **options)
        assert resumed.stopped_early
        assert_same_fit(resumed, reference)
    longer = run("adam", 100, checkpoint=path)
    assert len(longer.losses) == 100 and not longer.stopped_early


def test_not_a_number_saves_the_last_finite_fit(tmp_path):
    def size(step):
        return jnp.where(step < 15, -1e-2, jnp.nan)

    optimizer = optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(size))
    guide, path = gp.AutoGaussian(model), tmp_path / "fit"
    with pytest.raises(gp.fitting.NonFiniteBoundError) as error:
        gp.fit(
            random.key(4),
            model,
            guide,
            X,
            Y,
            optimizer=optimizer,
            num_steps=60,
            checkpoint=path,
            **OPTIONS,
        )
    loaded = gp.Fit.load(path, guide)
    assert len(loaded.losses) == len(error.value.fit.losses) == 15
    for name, value in loaded.params.items():
        assert np.all(np.isfinite(value))
        np.testing.assert_array_equal(value, error.value.fit.params[name])


def test_times_are_those_of_all_parts(whole, tmp_path):
    before = whole["adam"]
    after = run("adam", 1, init=before)
    assert after.seconds > before.seconds > 0
    assert after.compile_seconds > before.compile_seconds > 0


# ----------------------------------------------------------- after a kill, and threads


def test_parts_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path):
    dead, alive, other = (
        tmp_path / name
        for name in (".fit.123-45.part", ".fit.678-9.part", ".fit.notes.part")
    )
    for path in (dead, alive, other):
        path.write_bytes(b"PK")
    with open(alive, "ab") as file:
        assert checkpoints._lock(file)
        Checkpoint(tmp_path / "fit", "fit", "")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == ({alive.name, other.name} if checkpoints.fcntl else {other.name})
    Checkpoint(tmp_path / "fit", "fit", "")
    assert {path.name for path in tmp_path.iterdir()} == {other.name}


def test_a_process_killed_while_it_writes_leaves_nothing_for_long(tmp_path):
    # In a process of its own: it dies in the middle of its second write.
    path = tmp_path / "fit"
    code = f"""
import os, signal
import numpy as np
from svgp_ppl.runtime.checkpoints import write
write({str(path)!r}, "fit", {{"number": 1}}, {{}})
def killed(file, **arrays):
    file.write(b"PK")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
np.savez = killed
write({str(path)!r}, "fit", {{"number": 2}}, {{}})
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code])
    assert done.returncode != 0
    assert len(list(tmp_path.iterdir())) == 2
    Checkpoint(path, "fit", "")
    assert list(tmp_path.iterdir()) == [path]
    assert read(path, "fit")[0]["number"] == 1


def test_two_threads_may_save(tmp_path):
    path = tmp_path / "fit"
    write(path, "fit", {"values": np.zeros(1000)}, {})

    def save(number):
        for _ in range(20):
            write(path, "fit", {"values": np.full(1000, float(number))}, {})

    def look():
        for _ in range(40):
            values = read(path, "fit")[0]["values"]
            assert len(np.unique(values)) == 1 and len(values) == 1000

    with ThreadPoolExecutor(4) as pool:
        for work in [pool.submit(save, i) for i in range(3)] + [pool.submit(look)]:
            work.result()
    assert list(tmp_path.iterdir()) == [path]


# --------------------------------------------------------------- files that are no fits


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy():
    file = io.BytesIO()
    np.save(file, X)
    return file.getvalue()


FOREIGN = {
    "empty": (b"", "is empty"),
    "text": (b"variance: 1.3\nlengthscale: \xc3\xa9", "is a text file, and not a"),
    "text cut in a letter": (b"a" * 511 + "é".encode(), "is a text file"),
    "binary": (b"\x00\x01\xfe\xff" * 20, "is a binary file, and not a file that Fit"),
    "pickle": (pickle.dumps({"a": 1}), "is a pickle, and not a file"),
    "old pickle": (pickle.dumps({"a": 1}, 2), "is a pickle, and not a file"),
    "array": (npy(), r"is a single array \(numpy.save\)"),
    "netcdf": (b"\x89HDF\r\n\x1a\n" + bytes(600), "is a netCDF or HDF5 file"),
    "gzip": (gzip.compress(b"a"), "is a gzip archive"),
    "arrays": (npz(a=X), r"holds the arrays \['a'\], and is not a file that Fit\.save"),
    "many arrays": (
        npz(**dict.fromkeys("abcdefg", X)),
        r"holds the arrays \['a', 'b', 'c', 'd', 'e'\], and is not",
    ),
    "objects": (npz(head=np.array([{}, None])), "has an array 'head' of its own"),
    "head of another": (npz(head=np.array("forty-two")), "'head' of its own"),
    "number": (npz(head=np.array(3)), "'head' of its own"),
    "later": (
        npz(head=np.array('{"format": 9}')),
        "has format 9; this version reads 1",
    ),
    "nothing in it": (npz(head=np.array('{"format": 1}')), "is damaged"),
    "chains": (
        npz(head=np.array('{"format": 1, "kind": "chains"}')),
        r"was written by sample\(checkpoint=...\), and not by Fit\.save",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_that_are_no_fits_are_told_by_what_they_are(name, tmp_path):
    content, message = FOREIGN[name]
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        gp.Fit.load(path, counts_model)
    words = str(error.value)
    assert str(path) in words
    assert "allow_pickle" not in words and "unpickl" not in words


def test_damage_is_found_wherever_it_is(whole, tmp_path):
    path = tmp_path / "fit"
    whole["adam"].save(path)
    good = path.read_bytes()
    for size in np.linspace(4, len(good) - 1, 25).astype(int):
        path.write_bytes(good[:size])
        with pytest.raises(ValueError, match="is truncated: its end is missing"):
            gp.Fit.load(path, model)
    refusals = 0
    for place in np.linspace(0, len(good) - 1, 200).astype(int):
        spoilt = bytearray(good)
        spoilt[place] ^= 0xFF
        path.write_bytes(spoilt)
        try:
            gp.Fit.load(path, model)  # padding and times of the archive do not matter
        except ValueError as error:
            assert str(path) in str(error), place
            refusals += 1
    assert refusals > 150
