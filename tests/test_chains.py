"""Chains: right answers on skewed targets, one compilation, blocks, interrupts."""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.special import digamma, polygamma
from sklearn.covariance import oas

from svgp_ppl import diagnostics
from svgp_ppl.mcmc.chains import run as chains_module
from svgp_ppl.mcmc.chains.run import run_chains
from svgp_ppl.mcmc.samplers.nuts import NUTS
from tests.conftest import mostly_double

SHAPE = 1.5  # of the gamma whose logarithm is sampled: skewness -1
SCALE_TRIL = np.array([[1.0, 0.0], [2.4, 1.8]])  # sds 1 and 3, correlation 0.8
LOCATION = np.array([1.0, -2.0])


def skewed_logdensity(position, location):
    """The logarithm of a gamma variable, beside a correlated Gaussian."""
    log_gamma, pair = position["log_gamma"], position["pair"]
    white = jnp.linalg.solve(jnp.asarray(SCALE_TRIL, pair.dtype), pair - location)
    return SHAPE * log_gamma - jnp.exp(log_gamma) - 0.5 * jnp.sum(white**2)


def skewed_moments():
    means = {"log_gamma": digamma(SHAPE), "pair": LOCATION}
    variances = {
        "log_gamma": polygamma(1, SHAPE),
        "pair": np.diag(SCALE_TRIL @ SCALE_TRIL.T),
    }
    return means, variances


def start(num_chains):
    return {"log_gamma": jnp.zeros(num_chains), "pair": jnp.zeros((num_chains, 2))}


def move(key, position, scale):
    flat, unflatten = ravel_pytree(position)
    return unflatten(flat + scale * jax.random.normal(key, flat.shape))


class WalkState(NamedTuple):
    position: jax.Array
    logdensity: jax.Array


class WalkInfo(NamedTuple):
    n_steps: jax.Array
    acceptance_rate: jax.Array


@dataclass(frozen=True)
class RandomWalk:
    """Random-walk Metropolis, no gradients: the protocol is not made for NUTS alone.

    It compiles in no time, so the loop around the samplers is tested with it.
    """

    scale: float = 1.0

    def init(self, key, position, logdensity_fn):
        position = move(key, position, 1e-3)
        return WalkState(position, logdensity_fn(position))

    def schedule(self, num_warmup):
        return {"scale": jnp.linspace(2 * self.scale, self.scale, num_warmup)}

    def warmup_step(self, key, warmup, logdensity_fn, entry):
        return self.step(key, warmup, logdensity_fn, entry["scale"])

    def finish(self, warmup):
        return warmup, jnp.asarray(self.scale)

    def step(self, key, state, logdensity_fn, tuned):
        key_move, key_accept = jax.random.split(key)
        moved = move(key_move, state.position, tuned)
        logdensity = logdensity_fn(moved)
        rate = jnp.minimum(1.0, jnp.exp(logdensity - state.logdensity))
        accept = jax.random.uniform(key_accept) < rate
        new = jax.tree.map(
            lambda a, b: jnp.where(accept, a, b), WalkState(moved, logdensity), state
        )
        return new, WalkInfo(jnp.zeros((), int), rate)


def run(key=0, logdensity_fn=skewed_logdensity, num_chains=3, sampler=None, **options):
    """A short run without a bar; every argument can be replaced."""
    sizes = {"num_warmup": 40, "num_samples": 40, "progress": False}
    return run_chains(
        jax.random.key(key),
        logdensity_fn,
        options.pop("positions", start(num_chains)),
        sampler or NUTS(),
        data=options.pop("data", jnp.asarray(LOCATION)),
        **(sizes | options),
    )


def assert_moments(draws, means, variances, min_ess=400):
    """Means and variances within 5 standard errors: 1e-6 of false alarms each."""
    for name, x in draws.items():
        squares = (np.asarray(x, np.float64) - np.asarray(means[name])) ** 2
        pairs = {"mean": (x, means[name]), "variance": (squares, variances[name])}
        for what, (values, expected) in pairs.items():
            ess = diagnostics.ess({"values": values})["values"]
            assert np.all(ess > min_ess), (name, what, ess)
            error = np.mean(values, axis=(0, 1)) - expected
            standard_error = np.std(values, axis=(0, 1)) / np.sqrt(ess)
            assert np.all(np.abs(error) < 5 * standard_error), (name, what, error)


@mostly_double
@pytest.mark.parametrize(
    "metric", ["diagonal", pytest.param("dense", marks=pytest.mark.slow)]
)
def test_nuts_finds_the_moments_of_a_skewed_target(metric, precision):
    chains = run(sampler=NUTS(metric=metric), num_warmup=500, num_samples=1000)
    assert chains.draws["pair"].shape == (3, 1000, 2)
    assert chains.draws["pair"].dtype == f"float{precision}"
    assert_moments(chains.draws, *skewed_moments())
    # The metric is the (co)variance of the target, about.
    expected = skewed_moments()[1]["pair"][1]
    matrices = chains.tuned.inverse_mass_matrix
    estimate = matrices[:, 2] if metric == "diagonal" else matrices[:, 2, 2]
    assert np.all((estimate > 0.3 * expected) & (estimate < 3 * expected))


# A trajectory magnifies every other rounding.
@pytest.mark.slow
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("metric", ["diagonal", "dense"])
def test_warmup_is_that_of_blackjax(metric):
    """Second route: the same keys through blackjax.staged_adaptation."""
    sampler = NUTS(metric, target_acceptance_rate=0.7, initial_step_size=0.3)
    chains = run(key=5, sampler=sampler, num_chains=2, num_warmup=170, num_samples=1)
    _, key_warmup, _ = jax.random.split(jax.random.key(5), 3)
    warmup = blackjax.staged_adaptation(
        blackjax.nuts,
        lambda position: skewed_logdensity(position, jnp.asarray(LOCATION)),
        metric="welford_diag" if metric == "diagonal" else sampler._metric_core(),
        initial_step_size=0.3,
        target_acceptance_rate=0.7,
    )
    position = jax.tree.map(lambda leaf: leaf[0], start(1))
    alone = jax.jit(lambda key: warmup.run(key, position, 170)[0][1])
    for chain, key in enumerate(jax.random.split(key_warmup, 2)):
        for name, expected in alone(key).items():
            value = getattr(chains.tuned, name)[chain]
            np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_correlations_of_a_dense_metric_are_shrunk_as_by_scikit_learn():
    num_draws, size = 12, 8
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(num_draws, size)) @ rng.normal(size=(size, size))
    core = NUTS("dense")._metric_core()
    state = core.init(size)
    for draw in draws:
        state = core.update(state, jnp.asarray(draw), None)
    matrix = core.final(state).inverse_mass_matrix
    # Stan's estimate; then rows whose second moments are its correlations.
    stan = (num_draws * np.cov(draws.T) + 5 * 1e-3 * np.eye(size)) / (num_draws + 5)
    sd = np.sqrt(np.diag(stan))
    rows = np.zeros((num_draws, size))
    rows[:size] = np.linalg.cholesky(num_draws * stan / np.outer(sd, sd)).T
    expected, shrinkage = oas(rows, assume_centered=True)
    np.testing.assert_allclose(matrix, expected * np.outer(sd, sd), rtol=1e-6)
    assert 0.1 < shrinkage < 0.9


def test_a_dense_metric_of_fewer_draws_than_dimensions_leaves_steps_long():
    def logdensity_fn(x, data):
        return -0.5 * jnp.sum(x**2)

    # The slow window has 25 draws, of 60 dimensions.
    options = {"num_warmup": 150, "num_samples": 30, "positions": jnp.ones((3, 60))}
    chains = run(logdensity_fn=logdensity_fn, sampler=NUTS("dense"), **options)
    assert chains.stats["n_steps"].mean() < 40


def test_statistics_have_their_arviz_names_and_agree_with_the_draws():
    chains = run()
    names = "diverging step_size tree_depth n_steps energy acceptance_rate lp"
    assert set(chains.stats) == set(names.split())
    assert all(x.shape == (3, 40) for x in chains.stats.values())
    assert chains.num_gradients == chains.stats["n_steps"].sum() >= 120
    step_sizes = np.broadcast_to(chains.tuned.step_size[:, None], (3, 40))
    np.testing.assert_array_equal(chains.stats["step_size"], step_sizes)
    logdensity = jax.vmap(jax.vmap(lambda p: skewed_logdensity(p, LOCATION)))
    np.testing.assert_allclose(chains.stats["lp"], logdensity(chains.draws), rtol=1e-9)
    # The kinetic energy, energy + lp, is positive.
    assert np.all(chains.stats["energy"] + chains.stats["lp"] > 0)
    assert chains.seconds > 0 and chains.warmup_seconds > 0


def test_nan_is_a_divergence_and_never_a_draw():
    def gamma_logdensity(x, data):  # NaN below zero, where half the trajectories go
        return 2.0 * jnp.log(x) - x

    chains = run(
        logdensity_fn=gamma_logdensity,
        positions=jnp.ones(4),
        num_warmup=500,
        num_samples=1500,
    )
    assert np.all(chains.draws > 0) and np.all(np.isfinite(chains.stats["lp"]))
    assert chains.stats["diverging"].sum() > 10
    assert_moments({"x": chains.draws}, {"x": 3.0}, {"x": 3.0})


def test_without_warmup_the_initial_step_size_is_used():
    chains = run(sampler=NUTS(initial_step_size=50.0), num_warmup=0, block_size=10)
    np.testing.assert_allclose(chains.tuned.step_size, 50.0, rtol=1e-12)
    assert chains.warmup_seconds == 0.0


def test_each_phase_is_traced_once_and_a_second_run_not_at_all():
    def count_traces(block_size):
        traces = deque()  # what is in a list is part of a program

        def logdensity_fn(position, data):
            traces.append(position)
            return skewed_logdensity(position, data)

        def draw(data):
            options = {"logdensity_fn": logdensity_fn, "block_size": block_size}
            return run(sampler=RandomWalk(), data=jnp.asarray(data), **options)

        first = draw(LOCATION)
        after_first = len(traces)
        second = draw(LOCATION)
        # Data are an argument, not a constant: other data give other draws.
        third = draw(-LOCATION)
        assert len(traces) == after_first
        np.testing.assert_array_equal(first.draws["pair"], second.draws["pair"])
        assert not np.allclose(first.draws["pair"], third.draws["pair"])
        return after_first

    assert count_traces(block_size=5) == count_traces(block_size=40)


def test_draws_do_not_depend_on_the_blocks():
    whole, pieces = (run(sampler=RandomWalk(), block_size=n) for n in (40, 17))
    np.testing.assert_allclose(whole.draws["pair"], pieces.draws["pair"], rtol=1e-9)
    assert pieces.stats["acceptance_rate"].shape == (3, 40)
    assert not np.array_equal(whole.draws["pair"][0], whole.draws["pair"][1])


class FakeBar:
    """Records what a bar is told, and interrupts the named phase when asked."""

    updates: dict
    interrupt: tuple | None = None  # (phase, number of the update or text)

    def __init__(self, total, what, show):
        self.name, self.postfix = what, None
        self.updates[what] = []

    def reset(self):
        pass

    def close(self):
        pass

    def set_postfix_str(self, text):
        if self.interrupt == (self.name, text):
            raise KeyboardInterrupt
        self.postfix = text

    def update(self, length):
        self.updates[self.name].append((length, self.postfix))
        if self.interrupt == (self.name, len(self.updates[self.name])):
            raise KeyboardInterrupt


@pytest.fixture
def bar(monkeypatch):
    kind = type("Bar", (FakeBar,), {"updates": {}})
    monkeypatch.setattr(chains_module, "progress_bar", kind)
    return kind


@pytest.mark.parametrize(
    ("num_samples", "lengths"), [(60, [2] * 30), (46, [2] * 23), (61, [3] * 20 + [1])]
)
def test_a_bar_moves_twenty_to_thirty_times(bar, num_samples, lengths):
    chains = run(sampler=RandomWalk(), num_samples=num_samples, num_warmup=13)
    assert [length for length, _ in bar.updates["sample"]] == lengths
    assert [length for length, _ in bar.updates["warmup"]] == [1] * 13
    assert chains.draws["pair"].shape == (3, num_samples, 2)
    rate = np.mean(chains.stats["acceptance_rate"][:, -lengths[-1] :])
    assert bar.updates["sample"][-1][1] == f"acceptance_rate {rate:.3g}"


def test_the_bar_counts_divergences(bar):
    # Far too large a step, never tuned: nearly everything diverges.
    chains = run(sampler=NUTS(initial_step_size=50.0), num_warmup=0, block_size=10)
    shown = [postfix for _, postfix in bar.updates["sample"]]
    counts = np.cumsum(chains.stats["diverging"].sum(axis=0))[9::10]
    for count, words in zip(counts, shown):
        assert words.startswith(f"divergences {count}, step_size 50")
    assert counts[-1] > 60


def test_an_interrupt_while_sampling_keeps_the_draws(bar):
    whole = run(sampler=RandomWalk(), block_size=8)
    bar.interrupt = ("sample", 3)
    with pytest.warns(UserWarning, match=r"kept 24 of 40 draws per chain"):
        part = run(sampler=RandomWalk(), block_size=8)
    np.testing.assert_array_equal(part.draws["pair"], whole.draws["pair"][:, :24])
    assert part.stats["acceptance_rate"].shape == (3, 24)


@pytest.mark.parametrize(
    ("moment", "steps"), [(("warmup", 2), 16), (("sample", "compiling"), 40)]
)
def test_an_interrupt_of_the_warmup_keeps_statistics_and_positions(bar, moment, steps):
    whole = run(sampler=RandomWalk(), block_size=8)
    bar.interrupt = moment
    with pytest.warns(UserWarning, match=rf"after {steps} of 40 steps .* no draws"):
        part = run(sampler=RandomWalk(), block_size=8)
    assert part.draws["pair"].shape == (3, 0, 2) and part.stats == {}
    assert part.position["pair"].shape == (3, 2)
    rates = whole.warmup_stats["acceptance_rate"]
    assert rates.shape == (3, 40) and part.num_gradients == 0
    np.testing.assert_array_equal(
        part.warmup_stats["acceptance_rate"], rates[:, :steps]
    )
    np.testing.assert_array_equal(whole.position["pair"], whole.draws["pair"][:, -1])


def test_an_interrupt_with_nothing_to_keep_is_raised(bar):
    bar.interrupt = ("warmup", "compiling")
    with pytest.raises(KeyboardInterrupt):
        run(sampler=RandomWalk(), block_size=8)


def test_the_bar_is_optional(capsys):
    run(sampler=RandomWalk(), progress=False)
    assert capsys.readouterr() == ("", "")
    run(sampler=RandomWalk(), progress=True)
    shown = capsys.readouterr().err
    # Not on a terminal: a few plain lines.
    assert "warmup 40/40 [" in shown and "sample 40/40 [" in shown
    assert "compiling\n" in shown and "acceptance_rate " in shown
    assert 10 < len(shown.splitlines()) < 26 and "\r" not in shown


def test_impossible_arguments_are_refused():
    bad = start(3) | {"log_gamma": jnp.array([0.0, jnp.nan, jnp.inf])}
    with pytest.raises(ValueError, match=r"start of chains \[1, 2\]"):
        run(positions=bad)
    with pytest.raises(ValueError, match="same leading axis"):
        run(positions={"log_gamma": jnp.zeros(3), "pair": jnp.zeros((2, 2))})
    with pytest.raises(ValueError, match="same leading axis"):
        run(positions=jnp.zeros(()))
    with pytest.raises(ValueError, match="num_samples >= 1"):
        run(num_samples=0)
    with pytest.raises(ValueError, match="must return a scalar"):
        run(logdensity_fn=lambda position, data: -(position["pair"] ** 2))
    with pytest.raises(ValueError, match="between 0 and 1"):
        NUTS(target_acceptance_rate=80.0)


def test_another_sampler_fits_the_protocol():
    chains = run(
        logdensity_fn=lambda x, shape: shape * x - jnp.exp(x),
        positions=jnp.zeros(4),
        sampler=RandomWalk(2.0),
        data=SHAPE,
        num_samples=4000,
    )
    assert set(chains.stats) == {"n_steps", "acceptance_rate"}
    assert chains.num_gradients == 0
    means, variances = ({"x": m["log_gamma"]} for m in skewed_moments())
    assert_moments({"x": chains.draws}, means, variances)
