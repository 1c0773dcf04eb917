"""The hybrid in one call is the two calls that it stands for."""

import jax
import numpy as np
import pytest

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from tests.models import COUNTS_X, COUNTS_Y, Walk, counts_model
from tests.test_fit import MODULE as FIT
from tests.test_fit import StoppedBar

SIZES = {"num_chains": 2, "num_warmup": 20, "num_samples": 10}
SAMPLER = Walk()


@pytest.mark.thorough
def test_one_call_is_the_two_calls():
    hybrid = gp.fit_and_sample(
        jax.random.key(0),
        counts_model,
        COUNTS_X,
        COUNTS_Y,
        fit_options={"num_steps": 50},
        sampler=SAMPLER,
        log_likelihood=True,
        progress=False,
        **SIZES,
    )
    key_fit, key_sample = jax.random.split(jax.random.key(0))
    fit = gp.fit(
        key_fit,
        counts_model,
        gp.AutoGaussian(counts_model),
        COUNTS_X,
        COUNTS_Y,
        num_steps=50,
        variational_first=10,
        progress=False,
    )
    np.testing.assert_allclose(hybrid.fit.losses, fit.losses, rtol=1e-12)
    draws = gp.sample(
        key_sample,
        counts_model,
        COUNTS_X,
        COUNTS_Y,
        init=fit,
        sampler=SAMPLER,
        progress=False,
        **SIZES,
    )
    values = group(hybrid.draws, "posterior")
    for name, other in group(draws, "posterior").items():
        np.testing.assert_allclose(values[name], other, rtol=1e-8)
    assert group(hybrid.draws, "log_likelihood")["y"].shape == (2, 10, 20)

    at = np.linspace(0.0, 5.0, 7)[:, None]
    mean = hybrid.predict(at)["y"].mean
    direct = gp.predict(counts_model, draws, at)["y"].mean
    np.testing.assert_allclose(mean, direct, rtol=1e-8)


@pytest.mark.thorough
def test_the_same_call_goes_on_from_its_files(tmp_path):
    def run(num_steps=60, **options):
        return gp.fit_and_sample(
            jax.random.key(0),
            counts_model,
            COUNTS_X,
            COUNTS_Y,
            fit_options={"num_steps": num_steps, "variational_first": 10},
            sampler=SAMPLER,
            progress=False,
            **(SIZES | options),
        )

    name = tmp_path / "counts"
    whole = run()
    run(25, checkpoint=name, num_samples=4)
    (tmp_path / "counts.chains").unlink()  # as if it had stopped in the fit
    resumed = run(checkpoint=name)
    np.testing.assert_allclose(resumed.fit.losses, whole.fit.losses, rtol=1e-12)
    again = run(checkpoint=name)
    np.testing.assert_array_equal(again.fit.losses, resumed.fit.losses)
    for name, values in group(whole.draws, "posterior").items():
        for other in (resumed, again):
            np.testing.assert_allclose(
                group(other.draws, "posterior")[name], values, rtol=1e-8
            )


@pytest.mark.filterwarnings("ignore:interrupted")
def test_no_chains_start_from_an_interrupted_fit(tmp_path, monkeypatch):
    def run():
        return gp.fit_and_sample(
            jax.random.key(0),
            counts_model,
            COUNTS_X,
            COUNTS_Y,
            fit_options={"num_steps": 60, "variational_first": 10},
            sampler=SAMPLER,
            checkpoint=tmp_path / "counts",
            progress=False,
            **SIZES,
        )

    monkeypatch.setattr(FIT, "progress_bar", StoppedBar)
    with pytest.warns(UserWarning, match="no chains were started: draws is None"):
        stopped = run()
    assert len(stopped.fit.losses) == 30 and stopped.draws is None
    assert [path.name for path in tmp_path.iterdir()] == ["counts.fit"]
    mean = stopped.predict(COUNTS_X)["y"].mean
    np.testing.assert_allclose(mean, stopped.fit.predict(COUNTS_X)["y"].mean)
    monkeypatch.undo()
    resumed = run()
    assert len(resumed.fit.losses) == 60
    assert group(resumed.draws, "posterior")["f"].shape[:2] == (2, 10)


@pytest.mark.thorough
def test_nor_from_one_interrupted_at_its_last_block(monkeypatch):
    monkeypatch.setattr(FIT, "progress_bar", StoppedBar)
    interrupted = pytest.warns(UserWarning, match="fit after 30 steps")
    with interrupted, pytest.warns(UserWarning, match="no chains were started"):
        stopped = gp.fit_and_sample(
            jax.random.key(0),
            counts_model,
            COUNTS_X,
            COUNTS_Y,
            fit_options={"num_steps": 30},
            sampler=SAMPLER,
            progress=False,
            **SIZES,
        )
    assert len(stopped.fit.losses) == 30 and stopped.draws is None


def test_what_a_stage_refuses_is_refused():
    with pytest.raises(ValueError, match="num_steps must be a positive integer"):
        gp.fit_and_sample(
            jax.random.key(0),
            counts_model,
            COUNTS_X,
            COUNTS_Y,
            fit_options={"num_steps": 0},
            progress=False,
        )
