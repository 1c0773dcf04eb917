"""Hyperparameters by Monte Carlo EM, alongside a chain of the other latent sites.

The evidence of the hyperparameters θ (``param`` sites) has the gradient

    ∇_θ log p(y | θ) = E_{p(v | y, θ)} ∇_θ log p(y, v | θ)

(Fisher's identity). Monte Carlo EM (Wei & Tanner 1990) replaces the expectation by
draws v^(1), …, v^(m) of a sampler, and makes many steps on θ between two sets of draws.
The moving window of Havasi, Hernández-Lobato & Murillo-Fuentes (2018, "Moving Window
MCEM") makes one: the window holds the last m draws, and each round adds a draw of the
chain and then takes one step along ∇_θ log p(y, v' | θ) at a random draw v' of it. Old
draws belong to older θ; θ moves little while one of them is in the window.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from numpyro.distributions import biject_to, constraints

from svgp_ppl.checks import require_arguments, require_count, require_key
from svgp_ppl.guides.fitted import guide_and_params, still_frozen
from svgp_ppl.handlers import trace_of
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.samplers.sampler import CHAINS
from svgp_ppl.mcmc.samplers.stochastic import SGHMC
from svgp_ppl.mcmc.target import Target
from svgp_ppl.plates import subsampled
from svgp_ppl.rows import filled_batches
from svgp_ppl.rows.sharding import local
from svgp_ppl.runtime import Progress, progress_bar
from svgp_ppl.runtime.compilation import call, find, look

__all__ = ["moving_window_em"]

# One object, so that a second call finds the program of the first.
_ADAM = optax.adam(0.01)
# Blocks of rounds, between which progress is shown and an interrupt is noticed.
_NUM_BLOCKS = 20


def moving_window_em(
    key,
    model: Callable,
    *args,
    init: Any,
    sampler: SGHMC | None = None,
    optimizer: optax.GradientTransformation | None = None,
    num_chains: int = 4,
    num_steps: int = 2000,
    window_size: int = 100,
    progress: bool = True,
    **kwargs,
) -> dict[str, Any]:
    """Maximises ∫ p(y, v | θ) dv over the ``param`` sites θ of a model.

    Where ``gp.fit`` maximises a bound, this climbs the evidence itself, estimated by
    stochastic-gradient Hamiltonian Monte Carlo (Havasi, Hernández-Lobato &
    Murillo-Fuentes 2018). The latent sites v of the model, whitened values and all
    others, are sampled; a plate with ``subsample_size`` gives both steps their own
    minibatch, one without gives them all data. The result is the mean of the second
    half of the iterates, biased as the chains are by their step size: compare with half
    the step size. It says nothing about the posterior of v: sample that with
    ``gp.sample``, at these values.

    Args:
        key: Random key.
        model: The model.
        *args: Its arguments.
        init: A fit of it, or ``(guide, params)``: chains start at draws of its guide, θ
            at its parameters. What a fit had frozen to its end, as by
            ``freeze={"z": np.inf}``, stays as it is.
        sampler: ``SGHMC()`` if None, whose ``num_steps_a_draw`` are the steps between
            two steps of θ. It is used without control variates: their centre has a
            gradient for one θ only.
        optimizer: An optax transformation for θ, in unconstrained values;
            ``optax.adam(0.01)`` if None.
        num_chains: Number of chains over which the gradient of θ is averaged.
        num_steps: Steps of θ.
        window_size: Draws of each chain among which one is chosen for a step.
        progress: Whether to show a progress bar, with the first values of θ. An
            interrupt (Ctrl-C) returns what has been reached, with a warning.
        **kwargs: Keyword arguments of the model.

    Returns:
        The parameters of ``init``, with those of the model at the values found:
        ``gp.sample(..., init=(guide, params))`` and ``gp.predict`` take them.

    Raises:
        ValueError: The model has no ``param`` site that is not frozen, or nothing to
            sample; or an argument is invalid.
        FloatingPointError: The chains ran away, or started where the log density is not
            finite.

    Example:
        >>> def smooth(x, y=None):
        ...     f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), numpyro.param("z", z))
        ...     with numpyro.plate("data", len(x)):
        ...         gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)
        >>> fit = gp.fit(key, smooth, None, x, y, num_steps=100, progress=False)
        >>> options = {"init": fit, "num_chains": 2, "num_steps": 20, "progress": False}
        >>> params = gp.mcmc.moving_window_em(key, smooth, x, y, **options)
        >>> params["z"].shape
        (5, 1)
    """
    require_key(key)
    require_arguments(model, args, kwargs, moving_window_em)
    num_chains = require_count(num_chains, "num_chains")
    num_steps = require_count(num_steps, "num_steps")
    window_size = require_count(window_size, "window_size")
    sampler = replace(_checked(sampler), control_variates=False)
    optimizer = _ADAM if optimizer is None else optimizer
    guide, params = guide_and_params(init, "init")
    key_target, key_start, key_run = random.split(key, 3)

    given = jax.tree.map(jnp.asarray, params)
    supports, is_batched = look(
        lambda args, kwargs, key, given: _facts(
            trace_of(model, args, kwargs, key=key, values=given)
        ),
        args,
        kwargs,
        key_target,
        given,
    )
    frozen = still_frozen(init)
    supports = {name: s for name, s in supports.items() if name not in frozen}
    if not supports:
        raise ValueError(
            "the model has no param site"
            + f" but those that the fit has frozen, {sorted(frozen)}" * bool(frozen)
            + ", and nothing to maximise: hyperparameters with a prior (sample sites) "
            "are sampled by gp.sample."
        )
    target = Target(key_target, model, args, kwargs, params, minibatches=is_batched)
    positions = target.positions_from(key_start, guide, params, num_chains)
    transforms = {name: biject_to(support) for name, support in supports.items()}
    hyper = {n: t.inv(target.data.params[n]) for n, t in transforms.items()}
    rounds = _Rounds(target, transforms, sampler, optimizer, num_chains, window_size)
    with single_threaded_lapack():
        run = _Run(rounds, key_run, hyper, positions, num_steps)
        values = run.to_the_end(progress)
    return {**params, **values}


class _Reached(NamedTuple):
    """Where the rounds stand.

    Attributes:
        warmup: The chains, [chains].
        window: Their last draws, [window, chains, ...].
        hyper: θ, unconstrained.
        state: Of the optimiser.
        total: Sum of θ over the rounds that count.
        diverging: Sum over rounds of the share of draws that ran away.
    """

    warmup: Any
    window: Any
    hyper: dict[str, jax.Array]
    state: Any
    total: dict[str, jax.Array]
    diverging: jax.Array


class _Plan(NamedTuple):
    """What the rounds of a block take, a row for each.

    Attributes:
        keys: Random keys.
        numbers: Numbers of the rounds, from 0.
        entries: Entries of the sampler's schedule.
        count: Whether θ counts for the mean.
    """

    keys: Any
    numbers: Any
    entries: Any
    count: Any


@dataclass(frozen=True, eq=False)
class _Rounds:
    """A draw of every chain, and a step on θ."""

    target: Target
    transforms: dict[str, Any]
    sampler: SGHMC
    optimizer: optax.GradientTransformation
    num_chains: int
    window_size: int

    @property
    def made_of(self) -> tuple:
        """What determines the programs, but for shapes."""
        own = (self.sampler, self.optimizer, self.num_chains, self.window_size)
        return ("moving window", *own, *self.target.made_of)

    def values(self, hyper: dict) -> dict:
        """θ in its support."""
        return {n: self.transforms[n](value) for n, value in hyper.items()}

    def density(self, hyper: dict, data: Any) -> Callable:
        """log p(y, v | θ) of a position, and of a key where rows are drawn."""
        here = data._replace(params={**data.params, **self.values(hyper)})
        return lambda position, *key: self.target.logdensity_fn(position, here, *key)

    def start(self, key, hyper: dict, positions: Any, data: Any) -> _Reached:
        """Chains at their first positions, and an empty window."""
        density = self.density(hyper, data)
        warmup = _of_chains(
            lambda key, position: self.sampler.init(key, position, density),
            random.split(key, self.num_chains),
            positions,
        )
        window = jax.tree.map(
            lambda leaf: jnp.zeros((self.window_size, *leaf.shape), leaf.dtype),
            positions,
        )
        total = jax.tree.map(jnp.zeros_like, hyper)
        state = self.optimizer.init(hyper)
        return _Reached(warmup, window, hyper, state, total, jnp.zeros(()))

    def block(self, reached: _Reached, plan: _Plan, number, data: Any) -> _Reached:
        """The first ``number`` rounds of a plan."""

        def one(i, reached):
            of_round = jax.tree.map(lambda leaf: leaf[i], plan)
            return self._round(reached, of_round, data)

        return jax.lax.fori_loop(0, number, one, reached)

    def _round(self, reached: _Reached, of_round: _Plan, data: Any) -> _Reached:
        key_chain, key_pick, key_rows = random.split(of_round.keys, 3)
        density, number = self.density(reached.hyper, data), of_round.numbers
        # A draw of every chain at this θ ...
        warmup, info = _of_chains(
            lambda key, at: self.sampler.warmup_step(
                key, at, density, of_round.entries
            ),
            random.split(key_chain, self.num_chains),
            reached.warmup,
        )
        place = number % self.window_size
        window = jax.tree.map(
            lambda held, new: held.at[place].set(new),
            reached.window,
            warmup.state.position,
        )
        # ... and a step on θ at a random one of the window.
        known = jnp.minimum(number + 1, self.window_size)
        pick = random.randint(key_pick, (), 0, known)
        drawn = jax.tree.map(lambda leaf: leaf[pick], window)

        def loss(hyper):
            density = self.density(hyper, data)
            keys = random.split(key_rows, self.num_chains)
            return -jnp.mean(_of_chains(lambda k, at: density(at, k), keys, drawn))

        gradient = jax.grad(loss)(reached.hyper)
        updates, state = self.optimizer.update(gradient, reached.state, reached.hyper)
        hyper: Any = optax.apply_updates(reached.hyper, updates)
        total = jax.tree.map(
            lambda t, h: t + jnp.where(of_round.count, h, 0.0), reached.total, hyper
        )
        diverging = reached.diverging + jnp.mean(info.diverging)
        return _Reached(warmup, window, hyper, state, total, diverging)


class _Run:
    """Rounds in progress."""

    def __init__(self, rounds: _Rounds, key, hyper: dict, positions, num_steps: int):
        key_start, key_rounds = random.split(key)
        self.rounds, self.data = rounds, rounds.target.data
        self.first_of_mean, self.num_steps = num_steps // 2, num_steps
        self.size = max(1, -(-num_steps // _NUM_BLOCKS))
        numbers = np.arange(num_steps)
        schedule = rounds.sampler.schedule(num_steps)
        count = numbers >= self.first_of_mean
        self.plan = _Plan(random.split(key_rounds, num_steps), numbers, schedule, count)
        given = (key_start, hyper, positions, self.data)
        made_of = ("start", *rounds.made_of)
        # Replaced as a whole, so that an interrupt finds them intact.
        self.reached = call(rounds.start, made_of, *given, runs_once=True), 0

    def to_the_end(self, progress: bool) -> dict:
        """θ in its support: its mean, as far as there is one when the user ends it."""
        bar = progress_bar(self.num_steps, "moving window", progress)
        try:
            for number in self._blocks(bar):
                bar.set_postfix_str(self._words())
                bar.update(number)
        except KeyboardInterrupt:
            done = self.reached[1]
            if not done:
                raise
            warnings.warn(
                f"interrupted: returning the parameters after {done} of "
                f"{self.num_steps} steps; moving_window_em(..., init=(guide, params)) "
                "goes on from them.",
                stacklevel=3,
            )
        finally:
            bar.close()
        reached, done = self.reached
        found, num_late = reached.hyper, done - self.first_of_mean
        if num_late > 0:
            found = jax.tree.map(lambda t: t / num_late, reached.total)
        _require_finite(found, float(reached.diverging) / done)
        return self.rounds.values(found)

    def _blocks(self, bar: Progress):
        """Run the rounds; yields the number of those of each block."""
        program, done = None, 0
        for rows in filled_batches(self.num_steps, self.size):
            number = min(len(rows), self.num_steps - done)
            plan = jax.tree.map(lambda leaf, rows=rows: leaf[rows], self.plan)
            given = (self.reached[0], plan, np.int32(number), self.data)
            if program is None:
                bar.set_postfix_str("compiling")
                made_of = ("block", self.size, *self.rounds.made_of)
                program = find(self.rounds.block, made_of, *given)
                bar.reset()
            reached, done = local(program(*given)), done + number
            self.reached = jax.block_until_ready(reached), done
            yield number
            if not _is_finite(reached.hyper):
                return

    def _words(self) -> str:
        """The values of the first parameters that are single numbers."""
        values = self.rounds.values(self.reached[0].hyper)
        numbers = [
            (n, v)
            for n, v in values.items()
            if isinstance(v, jax.Array) and v.size == 1
        ]
        return ", ".join(f"{n} {np.ravel(v)[0]:.3g}" for n, v in numbers[:3])


def _of_chains(function: Callable, keys, *states):
    return jax.vmap(function, axis_name=CHAINS)(keys, *states)


def _facts(model_trace: dict[str, dict]) -> tuple[dict[str, Any], bool]:
    """Supports of the ``param`` sites, and whether a plate is subsampled."""
    supports = {
        name: site["kwargs"].get("constraint", constraints.real)
        for name, site in model_trace.items()
        if site["type"] == "param"
    }
    return supports, bool(subsampled(model_trace))


def _checked(sampler: Any) -> SGHMC:
    if sampler is None:
        return SGHMC()
    if not isinstance(sampler, SGHMC):
        raise ValueError(
            "moving_window_em moves the latent sites with SGHMC: sampler must be an "
            f"object such as gp.mcmc.SGHMC(step_size=0.05), and is {sampler!r}."
        )
    return sampler


def _require_finite(found: dict, diverging: float) -> None:
    bad = [name for name, value in found.items() if not _is_finite(value)]
    # A step that is not finite is undone, so a chain may run away unnoticed.
    if bad or diverging > 0.5:
        raise FloatingPointError(
            f"{100 * diverging:.0f} % of the draws ran away"
            + (f", and {bad} are not finite" if bad else "")
            + ". Take a smaller step_size of SGHMC or a smaller learning rate, and "
            "start from a fit."
        )


def _is_finite(tree: Any) -> bool:
    return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))
