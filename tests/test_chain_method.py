"""Chains in threads or vectorised: the same draws, and which of both by itself."""

import itertools
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

import svgp_ppl as gp
from svgp_ppl.mcmc import HMC, MCLMC, NUTS, SGHMC, ChEES, run_chains
from svgp_ppl.mcmc.chains import chain_method
from svgp_ppl.mcmc.chains.chain_method import chain_method_of
from svgp_ppl.runtime import checkpoints
from svgp_ppl.runtime import side_by_side as module
from svgp_ppl.runtime.side_by_side import side_by_side
from tests.models import COUNTS_X, COUNTS_Y, Walk, counts_model

Y = jnp.array([2.0, 0.0, 1.0])


def logdensity_fn(position, y):
    """Counts whose log rates are v, with a scale."""
    v, theta = position["v"], position["theta"]
    log_rate = v * jnp.exp(theta)
    value = jnp.sum(y * log_rate - jnp.exp(log_rate))
    return value - 0.5 * jnp.sum(v**2) - 0.5 * theta**2


def run(method, sampler, num_chains=3, num_warmup=9, num_samples=8, **options):
    positions = {
        "v": jnp.linspace(0.0, 0.3, num_chains)[:, None] * jnp.ones(3),
        "theta": jnp.zeros(num_chains),
    }
    return run_chains(
        random.key(0),
        options.pop("logdensity_fn", logdensity_fn),
        positions,
        sampler,
        num_warmup=num_warmup,
        num_samples=num_samples,
        data=Y,
        progress=False,
        chain_method=method,
        **options,
    )


def assert_close(one, other):
    """Up to rounding, which a trajectory magnifies."""
    for name in ("draws", "stats", "warmup_stats", "tuned", "position"):
        pairs = (jax.tree.leaves(getattr(chains, name)) for chains in (one, other))
        for x, y in zip(*pairs, strict=True):
            assert x.shape == y.shape and x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    "sampler, num_warmup",
    [
        pytest.param(NUTS(), 9, marks=pytest.mark.slow),
        pytest.param(NUTS("dense"), 9, marks=pytest.mark.slow),
        pytest.param(HMC(num_rounds=3), 9, marks=pytest.mark.slow),
        # Without a long tuning its steps are ten times too long, and rounding grows by
        # a factor of three a draw.
        pytest.param(MCLMC(1, num_rounds=1), 60, marks=pytest.mark.slow),
        (Walk(0.5), 9),
    ],
)
def test_the_draws_of_both_methods_are_the_same(sampler, num_warmup):
    methods = ("parallel", "vectorized")
    assert_close(*(run(method, sampler, num_warmup=num_warmup) for method in methods))


def test_threads_change_no_bit(monkeypatch):
    monkeypatch.setattr(module, "_num_cores", lambda: 1)
    one = run("parallel", NUTS())
    monkeypatch.setattr(module, "_num_cores", lambda: 3)
    for x, y in zip(
        jax.tree.leaves(one.draws), jax.tree.leaves(run(None, NUTS()).draws)
    ):
        np.testing.assert_array_equal(x, y)


def test_the_program_of_a_chain_serves_any_number_of_them():
    traces = itertools.count()

    def counted(position, y):
        next(traces)
        return logdensity_fn(position, y)

    def traced(num_chains):
        before = next(traces)
        run(None, Walk(0.5), num_chains, logdensity_fn=counted)
        return next(traces) - before - 1

    first = traced(3)
    # The start alone is another program.
    assert 0 < traced(2) < first
    assert traced(3) == 0


def test_a_branch_of_one_chain_stays_a_branch():
    """Vectorised chains evaluate both sides of a branch, and one chain does not."""

    def evaluations(method):
        seen = itertools.count()

        def expensive(x):
            next(seen)
            return np.zeros((), np.int32)

        def rarely(position, y):
            v = position["v"]

            def looked(v):
                shape = jax.ShapeDtypeStruct((), np.int32)
                how = {"vmap_method": "sequential"}
                return 1.0 * jax.pure_callback(expensive, shape, v, **how)

            far = jax.lax.cond(v[0] > 1e3, looked, lambda v: 0.0 * jnp.sum(v), v)
            return far - 0.5 * jnp.sum(v**2) - 0.5 * position["theta"] ** 2

        chains = run(method, Walk(0.5), logdensity_fn=rarely, made_of=(method, "rare"))
        assert np.all(chains.draws["v"] < 1e3)
        return next(seen)

    # What is left are the starts, which are vectorised.
    assert evaluations("vectorized") > 3 * evaluations("parallel")


# ---------------------------------------------------------------------------- threads


def test_calls_run_at_once_on_as_many_threads_as_there_are_cores(monkeypatch):
    monkeypatch.setattr(module, "_num_cores", lambda: 2)
    meeting = threading.Barrier(2, timeout=20)
    with side_by_side(2) as at_once:
        assert sorted(at_once([meeting.wait, meeting.wait])) == [0, 1]
    with side_by_side(4) as at_once:
        names = at_once([lambda: threading.current_thread().name] * 40)
    assert len(set(names)) <= 2 and threading.current_thread().name not in names


@pytest.mark.parametrize("is_double", [False, True])
def test_threads_have_the_precision_of_their_caller(is_double):
    with jax.enable_x64(is_double), side_by_side(2) as at_once:
        found = at_once([lambda: jax.config.jax_enable_x64] * 2)
    assert found == [is_double] * 2


def test_an_error_cancels_what_has_not_begun(monkeypatch):
    monkeypatch.setattr(module, "_num_cores", lambda: 1)
    begun = []

    def fails():
        raise FloatingPointError("of a chain")

    def begins():
        begun.append(1)

    calls = [fails] + [begins] * 49
    with pytest.raises(FloatingPointError, match="chain"), side_by_side(50) as at_once:
        at_once(calls)
    assert len(begun) < 49
    assert not [t for t in threading.enumerate() if t.name.startswith("thread_")]


# ------------------------------------------------------------------------ which of both


def devices(*platforms):
    return lambda arrays: [SimpleNamespace(platform=p) for p in platforms]


def test_by_itself_parallel_on_one_cpu_and_vectorized_elsewhere(monkeypatch):
    assert chain_method_of(None, NUTS(), Y) == "parallel"
    assert chain_method_of(None, NUTS(), np.asarray(Y)) == "parallel"
    for together in (ChEES(), SGHMC()):
        assert chain_method_of(None, together, Y) == "vectorized"
    for platforms in [("gpu",), ("cpu", "cpu")]:
        monkeypatch.setattr(module, "devices_of", devices(*platforms))
        assert chain_method_of(None, NUTS(), Y) == "vectorized"
    assert chain_method_of("vectorized", NUTS(), Y) == "vectorized"


@pytest.mark.usefixtures("as_users_call")
def test_what_cannot_be_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"one of \('parallel', 'vect.*is 'vmap'"):
        chain_method_of("vmap", NUTS(), Y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ChEES tunes on all chains together"):
        run("parallel", ChEES())
    monkeypatch.setattr(chain_method, "devices_of", devices("cpu", "cpu"))
    with pytest.raises(ValueError, match="on 2 devices, which can run one program"):
        chain_method_of("parallel", NUTS(), Y)


# ------------------------------------------------------------------- files, and sample


@pytest.mark.parametrize("methods", [("parallel", "vectorized"), ("vectorized", None)])
def test_a_file_of_one_method_is_continued_by_the_other(methods, tmp_path):
    first, second = methods
    path = tmp_path / "chains"
    run(first, HMC(num_rounds=3), num_samples=4, checkpoint=path)
    stored = checkpoints.read(path, "chains")[1].leaves
    assert all(len(leaf) == 3 for leaf in stored)
    more = run(second, HMC(num_rounds=3), checkpoint=path)
    assert_close(more, run(second, HMC(num_rounds=3)))


@pytest.mark.slow
def test_sample_passes_the_method_on_and_records_it():
    options = {"num_chains": 2, "num_warmup": 6, "num_samples": 5, "progress": False}
    given = (random.key(0), counts_model, COUNTS_X, COUNTS_Y)
    draws = {
        method: gp.sample(*given, sampler=Walk(), chain_method=method, **options)
        for method in ("vectorized", "parallel", None)
    }
    for method, one in draws.items():
        assert one.posterior.attrs["chain_method"] == (method or "parallel")
        np.testing.assert_allclose(
            one.posterior["f"], draws["vectorized"].posterior["f"], rtol=1e-6, atol=1e-9
        )
    both = gp.fit_and_sample(
        *given,
        sampler=Walk(),
        fit_options={"num_steps": 5},
        chain_method="vectorized",
        **options,
    )
    assert both.draws.posterior.attrs["chain_method"] == "vectorized"
