"""Chains as files: cut off and resumed, their draws are those of a whole run."""

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import monitoring, random

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from svgp_ppl.mcmc import (
    HMC,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    ChEES,
    EllipticalSlice,
    Gibbs,
    run_chains,
    starts,
)
from svgp_ppl.mcmc import draws as draws_module
from svgp_ppl.mcmc.chains import checkpoints as checkpoints_of_chains
from svgp_ppl.mcmc.chains import run as chains_module
from svgp_ppl.runtime import checkpoints
from tests.models import COUNTS_X, COUNTS_Y, Walk, WalkState, counts_model

Y = np.array([0.3, -1.2, 0.8, 2.0, 0.1])


def logdensity_fn(position, y, *key):
    """v given counts, and a scale; with a key a noisy estimate."""
    v, theta = position["v"], position.get("theta", jnp.zeros(()))
    noise = random.normal(key[0], v.shape) if key else jnp.zeros_like(v)
    value = jnp.sum((y + 0.1 * noise) * v * jnp.exp(theta) - jnp.exp(v))
    return value - 0.5 * jnp.sum(v**2) - 0.5 * theta**2


def run(sampler, key=0, y=Y, num_warmup=12, num_samples=13, num_chains=3, **options):
    positions = {"v": jnp.zeros((num_chains, 5)), "theta": jnp.zeros(num_chains)}
    if isinstance(sampler, EllipticalSlice):
        del positions["theta"]
    return run_chains(
        random.key(key),
        options.pop("logdensity_fn", logdensity_fn),
        positions,
        sampler,
        num_warmup=num_warmup,
        num_samples=num_samples,
        data=jnp.asarray(y),
        progress=False,
        **{"block_size": 5, **options},
    )


def assert_same(chains, reference):
    """Bit by bit."""
    for name in ("draws", "stats", "warmup_stats", "tuned", "position"):
        pairs = zip(
            jax.tree.leaves(getattr(chains, name)),
            jax.tree.leaves(getattr(reference, name)),
            strict=True,
        )
        for came, wanted in pairs:
            np.testing.assert_array_equal(came, wanted)
    assert chains.num_gradients == reference.num_gradients


class Killed(BaseException):
    """What no handler expects: the process is gone."""


class Bar:
    """Raises when a phase has done so many steps."""

    moment = ("warmup", 0)
    raises: type[BaseException] = Killed

    def __init__(self, total, what, show):
        self.phase, _, first = what.partition(" from ")
        self.done = int(first or 0)

    def update(self, n):
        self.done += n
        if (self.phase, self.done) == self.moment:
            raise self.raises

    def reset(self):
        pass

    def close(self):
        pass

    def set_postfix_str(self, s):
        pass


@pytest.fixture
def cut(monkeypatch):
    """Cuts runs off: ``with cut("sample", 7): ...``; every step is saved."""
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 0.0)

    def cutting(phase, done, raises=Killed):
        kind = type("Bar", (Bar,), {"moment": (phase, done), "raises": raises})
        monkeypatch.setattr(chains_module, "progress_bar", kind)

    yield cutting


SAMPLERS = {
    "nuts": NUTS(),
    "dense nuts": NUTS("dense"),
    "hmc": HMC(num_rounds=3),
    "gibbs": Gibbs(num_rounds=3, whitened=("v",)),
    "gibbs of slices": Gibbs("elliptical_slice", num_rounds=3, whitened=("v",)),
    "slices": EllipticalSlice(("v",)),
    "mclmc": MCLMC(num_rounds=3),
    "chees": ChEES(),
    "sghmc": SGHMC(num_steps_a_draw=2),
    "sgld": SGLD(num_steps_a_draw=2),
}
QUICK = ("nuts", "hmc", "sghmc", "slices")


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SAMPLERS],
)
def test_cut_off_and_resumed(name, tmp_path, cut):
    sampler, path = SAMPLERS[name], tmp_path / "chains"
    whole = run(sampler)
    # In the warm-up (in a round of those that have some), at its end, while sampling.
    warmup = {"mclmc": 2}.get(name, 7)
    for phase, done in [("warmup", warmup), ("sample", 1), ("sample", 8)]:
        cut(phase, done)
        with pytest.raises(Killed):
            run(sampler, checkpoint=path)
    cut("none", 0)
    resumed = run(sampler, checkpoint=path)
    assert_same(resumed, whole)
    # The file is now that of a finished run.
    assert_same(run(sampler, checkpoint=path), whole)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.thorough
@pytest.mark.parametrize("precision", [32], indirect=True)
@pytest.mark.parametrize("sampler", [NUTS(), ChEES()])
@pytest.mark.usefixtures("optimized")
def test_vectorized_chains_do_not_depend_on_the_blocks_of_steps(sampler, precision):
    # One bit of a step size is a different chain some draws later.
    options = {"num_warmup": 40, "num_samples": 20, "chain_method": "vectorized"}
    one, many = (run(sampler, **options, block_size=size) for size in (1, 64))
    assert_same(one, many)


def test_a_walk_is_cut_off_at_every_step(tmp_path, cut):
    whole, path = run(Walk(0.5)), tmp_path / "chains"
    steps = [("warmup", i + 1) for i in range(12)]
    for moment in steps + [("sample", i + 1) for i in range(13)]:
        cut(*moment)
        with pytest.raises(Killed):
            run(Walk(0.5), checkpoint=path)
    cut("none", 0)
    assert_same(run(Walk(0.5), checkpoint=path), whole)


def test_only_what_came_after_the_last_write_is_lost(tmp_path, cut, monkeypatch):
    # No write but at the start, whatever is killed then: nothing is there to resume.
    path = tmp_path / "chains"
    cut("sample", 10)
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 3600.0)
    with pytest.raises(Killed):
        run(Walk(0.5), checkpoint=path)
    assert not path.exists()
    cut("none", 0)
    assert_same(run(Walk(0.5), checkpoint=path), run(Walk(0.5)))


class WeakWarmup(NamedTuple):
    state: WalkState
    scale: jax.Array


@dataclass(frozen=True)
class WeakWalk(Walk):
    """A walk whose state has a number of Python's in it, weakly typed as JAX says."""

    def init(self, key, position, logdensity_fn):
        return WeakWarmup(super().init(key, position, logdensity_fn), 0.5)

    def warmup_step(self, key, warmup, logdensity_fn, entry):
        state, info = self.step(key, warmup.state, logdensity_fn, ())
        return WeakWarmup(state, 0.9 * warmup.scale), info

    def finish(self, warmup):
        return warmup.state, jnp.exp(warmup.scale)


def test_a_resumed_run_traces_and_compiles_nothing(tmp_path, cut):
    compilations, traces = [], []

    def listen(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            compilations.append(seconds)

    def counted(position, y):
        traces.append(1)
        return logdensity_fn(position, y)

    options = {"logdensity_fn": counted, "made_of": ("counted",)}

    def resume(name, phase):
        cut(phase, 4)
        with pytest.raises(Killed):
            run(WeakWalk(), checkpoint=tmp_path / name, **options)
        cut("none", 0)
        run(WeakWalk(), checkpoint=tmp_path / name, **options)

    run(WeakWalk(), **options)
    count = len(traces)
    resume("warmup", "warmup")
    resume("sample", "sample")
    # The state from the file is of the same types as the one that was never there.
    assert len(traces) == count
    monitoring.register_event_duration_secs_listener(listen)
    try:
        resume("warmup again", "warmup")
        resume("sample again", "sample")
    finally:
        monitoring.unregister_event_duration_listener(listen)
    assert compilations == []


# ------------------------------------------------------------------ more draws, fewer


def test_a_finished_run_gets_more_draws(tmp_path, cut):
    path = tmp_path / "chains"
    few = run(Walk(0.5), checkpoint=path)
    more = run(Walk(0.5), checkpoint=path, num_samples=31)
    assert_same(more, run(Walk(0.5), num_samples=31))
    np.testing.assert_array_equal(more.draws["v"][:, :13], few.draws["v"])
    # Fewer are the first of them, and the file keeps all.
    again = run(Walk(0.5), checkpoint=path)
    np.testing.assert_array_equal(again.draws["v"], few.draws["v"])
    assert_same(run(Walk(0.5), checkpoint=path, num_samples=31), more)


# --------------------------------------------------------------------- interruptions


@pytest.mark.parametrize(
    ("phase", "done", "message"),
    [
        ("warmup", 6, "after 6 of 12 steps of the warm-up. There are no draws"),
        ("sample", 4, "kept 4 of 13 draws per chain. The same call again goes on"),
    ],
)
def test_an_interrupt_saves_what_there_is(phase, done, message, tmp_path, cut):
    whole, path = run(Walk(0.5)), tmp_path / "chains"
    cut(phase, done, KeyboardInterrupt)
    with pytest.warns(UserWarning, match=message):
        part = run(Walk(0.5), checkpoint=path)
    assert part.draws["v"].shape[1] == (done if phase == "sample" else 0)
    cut("none", 0)
    assert_same(run(Walk(0.5), checkpoint=path), whole)


def test_an_interrupt_in_the_middle_of_keeping_a_block(tmp_path, monkeypatch):
    # Whenever it comes, what is kept belongs together.
    whole, path = run(Walk(0.5)), tmp_path / "chains"
    put, calls = chains_module.Rows.put, []

    def interrupted(rows, first, outputs):
        put(rows, first, outputs)
        calls.append(first)
        if len(calls) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(chains_module.Rows, "put", interrupted)
    with pytest.warns(UserWarning, match="kept"):
        run(Walk(0.5), checkpoint=path)
    monkeypatch.undo()
    assert_same(run(Walk(0.5), checkpoint=path), whole)


def test_a_write_that_fails_warns_and_the_chains_go_on(tmp_path, cut, monkeypatch):
    cut("none", 0)

    def full(file, **arrays):
        file.write(b"PK\x03\x04")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(UserWarning, match="No space left.*the chains go on, and their"):
        chains = run(Walk(0.5), checkpoint=tmp_path / "chains")
    assert_same(chains, run(Walk(0.5)))
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------- refusals


def other_logdensity(position, y, *key):
    return 2.0 * logdensity_fn(position, y, *key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": 1}, "its random key is another one"),
        ({"y": Y + 1e-9}, "its data, or the fit that it starts from, are others"),
        ({"num_warmup": 11}, "its num_warmup is 12, and should be 11"),
        ({"num_chains": 2}, "its num_chains is 3, and should be 2"),
        (
            {"sampler": Walk(0.4)},
            r"its sampler is Walk\(scale=0.5\), and .*4",
        ),
        (
            {"made_of": ("f", 7)},
            r"plain arguments are \[\], and .*\['f', 7\]",
        ),
        ({"logdensity_fn": other_logdensity}, "so its model is another one"),
    ],
)
def test_the_file_of_another_run_is_refused(change, message, tmp_path):
    path = tmp_path / "chains{0}"
    run(Walk(0.5), checkpoint=path)
    before = path.read_bytes()
    options = {"sampler": Walk(0.5), **change}
    with pytest.raises(ValueError, match=message) as error:
        run(**options, checkpoint=path)
    assert f"{path} is the checkpoint of another run" in str(error.value)
    assert "or delete the file" in str(error.value)
    assert path.read_bytes() == before


@dataclass(frozen=True)
class Scaled(Walk):
    """Options of every kind; equal only by identity, as arrays are."""

    scales: Any = None
    change: Any = None

    __hash__ = object.__hash__


def test_the_options_of_a_sampler_are_compared_by_their_values(tmp_path):
    """Not by their repr: of large arrays it leaves out most, and it has addresses."""

    def sampler(first=0.0):
        scales = np.zeros(2000)
        scales[1000] = first
        changes = (lambda x: x, partial(max, 2.0), object())  # anew, as elsewhere
        return Scaled(0.5, (scales,), changes)

    whole = run(sampler(), checkpoint=tmp_path / "chains")
    assert_same(run(sampler(), checkpoint=tmp_path / "chains"), whole)
    with pytest.raises(ValueError, match=r"its sampler is Scaled\(scale=0.5, scales"):
        run(sampler(1.0), checkpoint=tmp_path / "chains")
    assert checkpoints_of_chains._in_words(NUTS()) == repr(NUTS())
    gibbs = replace(Gibbs(), whitened=("f",))
    assert checkpoints_of_chains._in_words(gibbs) == repr(gibbs)


def test_another_precision_is_refused(tmp_path):
    run(Walk(0.5), checkpoint=tmp_path / "chains")
    with jax.enable_x64(False), pytest.raises(ValueError, match="precision is float64"):
        run(Walk(0.5), checkpoint=tmp_path / "chains")


def test_other_files_and_folders_are_refused_before_anything_is_compiled(tmp_path):
    def untouched(position, y):
        raise AssertionError("the model was traced")

    (tmp_path / "notes").write_text("not a checkpoint")
    np.savez(tmp_path / "data.npz", x=Y)
    for name, message in {
        "notes": "is a text file, and not a file that",
        "data.npz": r"holds the arrays \['x'\]",
        "": "is a folder",
        "missing/chains": "there is no such folder",
    }.items():
        with pytest.raises(ValueError, match=message):
            run(Walk(), checkpoint=tmp_path / name, logdensity_fn=untouched)


# ------------------------------------------------------------------------ gp.sample


def flagged(x, y=None, flag=False):
    """The counts, with a flag among the arguments."""
    counts_model(x, y)


def sampled(y=COUNTS_Y, **options):
    options = {"num_chains": 2, "num_warmup": 20, "num_samples": 20, **options}
    return gp.sample(
        random.key(0), flagged, COUNTS_X, y, sampler=Walk(), progress=False, **options
    )


@pytest.fixture(scope="module")
def whole():
    with jax.enable_x64(True):
        return sampled()


def test_an_interrupt_of_the_log_likelihoods_returns_the_draws(monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("svgp_ppl.mcmc.draws._log_likelihoods", interrupt)
    with pytest.warns(UserWarning, match="draws without their log likelihoods"):
        draws = sampled(log_likelihood=True)
    assert group(draws, "posterior")["f"].shape[:2] == (2, 20)
    assert not group(draws, "log_likelihood")


def test_an_interrupt_after_the_last_step_loses_no_draws(whole, monkeypatch):
    constrained, calls = draws_module._constrained, []

    def interrupt(*args):
        calls.append(args)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return constrained(*args)

    monkeypatch.setattr(draws_module, "_constrained", interrupt)
    with pytest.warns(UserWarning, match="computed again"):
        found = group(sampled(), "posterior")
    for name, values in group(whole, "posterior").items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.thorough
def test_sample_goes_on_and_its_times_are_those_of_all_parts(whole, tmp_path, cut):
    path = tmp_path / "draws"
    cut("sample", 9)
    with pytest.raises(Killed):
        sampled(checkpoint=path)
    before = json.loads(checkpoints.read(path, "chains")[0]["seconds"])
    cut("none", 0)
    resumed = sampled(checkpoint=path)
    assert group(resumed, "posterior").keys() == group(whole, "posterior").keys()
    for name, values in group(whole, "posterior").items():
        np.testing.assert_array_equal(group(resumed, "posterior")[name], values)
    attributes = resumed.posterior.attrs
    assert attributes["warmup_seconds"] == before["warmup"] > 0
    assert attributes["sampling_seconds"] > before["sample"] > 0
    assert attributes.keys() == whole.posterior.attrs.keys()


def test_an_interrupted_warmup_returns_its_statistics_and_no_posterior(tmp_path, cut):
    path = tmp_path / "draws"
    cut("warmup", 6, KeyboardInterrupt)
    with pytest.warns(UserWarning, match="after 6 of 20 steps of the warm-up"):
        part = sampled(checkpoint=path)
    assert group(part, "posterior") == {}
    positions = group(part, "warmup_posterior")
    assert positions["f"].shape == (2, 1, 5) and np.all(positions["variance"] > 0)
    assert group(part, "warmup_sample_stats")["lp"].shape == (2, 6)
    assert part["warmup_posterior"].attrs["sampler"] == "Walk"
    assert set(group(part, "constant_data")) == {"z"}
    for judge in (gp.diagnostics.ess, gp.diagnostics.report):
        with pytest.raises(ValueError, match="There are no draws"):
            judge(part)
    with pytest.raises(ValueError, match="no draws: its warm-up was interrupted"):
        gp.predict(flagged, part, COUNTS_X)
    part.to_netcdf(tmp_path / "part.nc")


def test_other_data_and_other_flags_are_refused(tmp_path):
    path = tmp_path / "draws"
    sampled(checkpoint=path)
    with pytest.raises(ValueError, match="its data, or the fit"):
        sampled(COUNTS_Y + 1, checkpoint=path)
    with pytest.raises(ValueError, match=r"plain arguments are \[.*\[True, "):
        sampled(flag=True, checkpoint=path)


def fit_of_counts():
    guide = gp.AutoGaussian(flagged)
    options = {"num_steps": 30, "progress": False}
    return gp.fit(random.key(1), flagged, guide, COUNTS_X, COUNTS_Y, **options)


@pytest.mark.thorough
def test_what_comes_before_the_first_step_is_in_the_file(
    whole, tmp_path, cut, monkeypatch
):
    """Not computed again, which on another processor would give other chains."""
    run = {"checkpoint": tmp_path / "draws"}
    cut("warmup", 7)
    with pytest.raises(Killed):
        sampled(**run)
    cut("none", 0)

    def computed(*_):
        raise AssertionError("it was computed again")

    with monkeypatch.context() as patch:
        patch.setattr(starts, "_computed", computed)
        resumed = sampled(**run)
    for name, values in group(whole, "posterior").items():
        np.testing.assert_array_equal(group(resumed, "posterior")[name], values)
    attributes = resumed.posterior.attrs
    for name in ("init", "coordinates", "num_blocks"):
        assert attributes[name] == whole.posterior.attrs[name]
    for change, message in [
        ({"init": gp.mcmc.Pathfinder()}, "it starts from another init="),
        ({"init": fit_of_counts()}, "it starts from another init="),
        (
            {"coordinates": "whitened"},
            r"coordinates are .*, and should be \['whitened'",
        ),
        ({"num_chains": 3}, "its num_chains is 2, and should be 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            sampled(**run | change)


@pytest.mark.slow
@pytest.mark.parametrize("init", ["a fit", gp.mcmc.Pathfinder(1, 5)])
def test_chains_from_anywhere_go_on(init, tmp_path, cut):
    run = {"init": fit_of_counts() if init == "a fit" else init}
    whole = sampled(**run)
    cut("sample", 7)
    with pytest.raises(Killed):
        sampled(**run, checkpoint=tmp_path / "draws")
    cut("none", 0)
    resumed = sampled(**run, checkpoint=tmp_path / "draws")
    for name, values in group(whole, "posterior").items():
        np.testing.assert_array_equal(group(resumed, "posterior")[name], values)


def test_other_latent_sites_are_refused_before_they_are_missed(tmp_path):
    path = tmp_path / "draws"
    sampled(checkpoint=path)

    def another(x, y=None, flag=False):
        numpyro.sample("extra", dist.Normal())
        flagged(x, y, flag)

    run = {"num_chains": 2, "num_warmup": 20, "num_samples": 20, "progress": False}
    message = r"latent sites are \{.*, and should be .*extra.* its model is another"
    with pytest.raises(ValueError, match=message):
        gp.sample(
            random.key(0),
            another,
            COUNTS_X,
            COUNTS_Y,
            sampler=Walk(),
            checkpoint=path,
            **run,
        )
