"""Fits as files: killed and resumed they end where they would have ended."""

import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from jax import random
from numpyro.infer import SVI

import svgp_ppl as gp
from svgp_ppl import checkpoints, progress
from svgp_ppl.checkpoints import as_stored, read, write
from svgp_ppl.fitting.minibatches import Minibatches
from tests.models import COUNTS_X, COUNTS_Y, Walk, counts_model
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
        resumed = run(optimizer, 60 - done, guide, init=loaded)
        np.testing.assert_allclose(resumed.losses, reference.losses, rtol=1e-9)
        for name, value in reference.params.items():
            np.testing.assert_allclose(resumed.params[name], value, atol=1e-9)


class Killed(BaseException):
    """What no handler of the fit expects."""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
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
sys.modules["svgp_ppl.checkpoints"]._SECONDS_BETWEEN = 0.0
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
    kept = [site["value"] for site in fresh.guide.prototype_trace.values()]
    assert kept
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in kept)


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


def test_mistakes_are_explained(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    with pytest.raises(ValueError, match=r"not a file that Fit\.save has written"):
        gp.Fit.load(tmp_path / "other.npz", counts_model)
    with pytest.raises(ValueError, match="there is no such folder"):
        run("adam", 5, checkpoint=tmp_path / "missing" / "fit")
