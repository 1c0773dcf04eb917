"""Many chains of any sampler, in blocks that can be seen and interrupted.

A sampler is a handful of pure functions on one chain (``mcmc.samplers.sampler``);
``mcmc.chains.phases`` compiles each phase once, for one chain or for all of them
vectorised. Here is the loop of the host, which keeps what is needed (positions of the
sampling phase, scalar statistics), can stop after every block, and can continue in
another process.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from svgp_ppl.mcmc.chains.chain_method import ChainMethod, chain_method_of
from svgp_ppl.mcmc.chains.checkpoints import Reached, Rows, RunFile, facts_of
from svgp_ppl.mcmc.chains.phases import Carry, Given, Phase, Phases, Start, joined
from svgp_ppl.mcmc.samplers.sampler import HostAdaptation, HostAdapted, Sampler
from svgp_ppl.rows.sharding import spans_processes
from svgp_ppl.runtime import progress_bar
from svgp_ppl.runtime.side_by_side import side_by_side

__all__ = ["Chains", "NonFiniteStartError", "run_chains"]

# Updates of the bar per phase: often enough to watch, rare enough to cost no time.
_NUM_UPDATES = 30
# Steps of a block at most, unless more are asked for: any number of draws then has the
# same program.
_MOST_STEPS = 64


class Chains(NamedTuple):
    """What :func:`run_chains` returns; arrays are NumPy arrays on the host.

    Attributes:
        draws: The positions, leaves [chains, draws, ...]; no draws after an interrupt
            of the warm-up.
        stats: Statistics of the draws by name, arrays [chains, draws].
        seconds: Wall time of the sampling phase, without compilation.
        warmup_seconds: Wall time of the warm-up, without compilation.
        compile_seconds: Time for tracing and compilation.
        num_gradients: Gradient evaluations of the sampling phase, over all chains.
        tuned: What the sampler tuned, leaves [chains, ...].
        warmup_stats: Statistics of the warm-up by name, arrays [chains, steps].
        position: Where the chains stand at the end, leaves [chains, ...].
    """

    draws: PyTree
    stats: dict[str, np.ndarray]
    seconds: float
    warmup_seconds: float
    compile_seconds: float
    num_gradients: int
    tuned: PyTree
    warmup_stats: Mapping[str, np.ndarray]
    position: PyTree


def run_chains(
    key: Key[Array, ""],
    logdensity_fn: Callable[..., Array],
    positions: PyTree,
    sampler: Sampler,
    *,
    num_warmup: int,
    num_samples: int,
    data: PyTree = None,
    progress: bool = True,
    block_size: int | None = None,
    chain_method: ChainMethod | None = None,
    made_of: tuple | None = None,
    checkpoint: str | os.PathLike | RunFile | None = None,
) -> Chains:
    """Tune a sampler and draw from exp(logdensity_fn(position, data)), on many chains.

    Each phase is a Python loop over blocks of steps, and a block is one call of one
    compiled loop. An interrupt (Ctrl-C) keeps the blocks so far, with a warning; during
    the warm-up there are no draws, but statistics and the last positions. The draws do
    not depend on ``block_size``, the first ones not on ``num_samples``, and a second
    run with the same function, sampler and shapes compiles nothing.

    Args:
        key: Random key.
        logdensity_fn: Log density of a position, up to a constant. It is static in the
            compiled code: arrays of any size belong in ``data``. With a
            ``StochasticGradient`` sampler it may get a third argument, the key of the
            minibatch from which the log density is to be estimated.
        positions: Where the chains start, leaves [chains, ...].
        sampler: For instance ``NUTS()``.
        num_warmup: Tuning steps; none of their draws is kept.
        num_samples: Draws to keep per chain.
        data: Second argument of ``logdensity_fn``, passed to the compiled code as an
            argument and never as a constant.
        progress: Whether to show a bar for each phase.
        block_size: Steps between two updates of the bar; a thirtieth of the phase if
            None. If the host adapts the warm-up, its blocks are the rounds.
        chain_method: As for ``gp.sample``.
        made_of: What determines ``logdensity_fn`` besides ``data``, for a function that
            is made anew at every call; the function itself if None.
        checkpoint: File for the run so far, written about every half minute (less often
            if a write takes longer than a second and a half), at the end and at an
            interrupt. If it exists, the run continues where it stood, to the same
            draws; with more ``num_samples`` than a finished one had, to more draws.

    Returns:
        Draws, statistics, times and the tuned sampler.

    Raises:
        ValueError: If the log density is not finite at a starting position, an
            argument has an impossible size, or the checkpoint cannot be written or is
            of another run.

    Example:
        >>> def logdensity_fn(x, data):
        ...     return -0.5 * jnp.sum((x - data) ** 2)
        >>> chains = gp.mcmc.run_chains(
        ...     random.key(0), logdensity_fn, jnp.zeros((4, 2)), gp.mcmc.NUTS(),
        ...     num_warmup=500, num_samples=500, data=jnp.array([1.0, 2.0]),
        ...     progress=False,
        ... )
        >>> chains.draws.shape
        (4, 500, 2)
    """
    file = checkpoint if isinstance(checkpoint, RunFile | None) else RunFile(checkpoint)
    if file is not None and spans_processes(data):
        raise ValueError(
            "the data are in several processes, which would stop for their checkpoints "
            "at different steps: sample without checkpoint=."
        )
    positions = jax.tree.map(jnp.asarray, positions)
    num_chains = _check_sizes(positions, num_warmup, num_samples, block_size)
    made_of = (logdensity_fn if made_of is None else made_of, sampler)
    method = chain_method_of(chain_method, sampler, (positions, data))
    phases = Phases(logdensity_fn, sampler, made_of, method == "parallel")
    start = phases.start(key, positions, data, num_warmup)
    logdensity = np.asarray(start.logdensity)
    _check_start(logdensity)

    host = None
    if num_warmup > 0 and isinstance(sampler, HostAdapted):
        host = sampler.host_adaptation(num_chains, num_warmup)
    run = _Run(phases, start, positions, data, num_samples, host)
    if file is not None:
        options = (made_of[0], num_warmup, logdensity)
        run.resume(file, facts_of(key, positions, data, sampler, *options))
    try:
        run.to_the_end(block_size, file, progress)
    except KeyboardInterrupt:
        if not run.has_begun():
            raise
        warnings.warn(run.interrupted(file), stacklevel=2)
    if file is not None:
        file.save(run.reached, run.rows, run.compiling)
    return run.chains()


class _Run:
    """A run of chains in progress: where it stands, and its results."""

    def __init__(
        self,
        phases: Phases,
        start: Start,
        positions: PyTree,
        data: PyTree,
        num_samples: int,
        host: HostAdaptation | None,
    ):
        self.phases, self.start, self.host = phases, start, host
        self.positions, self.data = positions, data
        self.schedule = jax.device_get(start.schedule)
        num_warmup = len(jax.tree.leaves(start.schedule)[0])
        self.num_steps = {"warmup": num_warmup, "sample": num_samples}
        self.rows = {phase: Rows(number) for phase, number in self.num_steps.items()}
        # Also the argument of a program for the phase that it is not in.
        self.fresh = [Carry(w, *phases.finish(w)) for w in start.warmup]
        seconds = {"warmup": 0.0, "sample": 0.0}
        none = (None,) * len(start.warmup)
        self.reached = Reached("warmup", 0, start.warmup, none, 0, seconds)
        self.compiling = 0.0

    def resume(self, file: RunFile, facts: dict[str, Any]) -> None:
        """Go to where the file of this run stands, if there is one."""
        found = file.load(facts, self.start, self.phases, self.positions, self.rows)
        if found is None:
            return
        self.reached, self.compiling = found
        if self.host is not None and self.reached.phase == "warmup":
            # What the host has learnt is not in the file: it learns it again.
            length = self.host.round_length
            for end in range(length, self.reached.done + 1, length):
                self.host.update(
                    self.rows["warmup"].between(end - length, end)["stats"]
                )

    def has_begun(self) -> bool:
        """Whether there is anything to keep."""
        return self.reached.phase == "sample" or self.reached.done > 0

    def to_the_end(
        self, block_size: int | None, file: RunFile | None, progress: bool
    ) -> None:
        """Take the remaining steps of both phases."""
        if self.reached.phase == "warmup":
            size = block_size if self.host is None else self.host.round_length
            self._take("warmup", size, file, progress)
            states, tuned = self._finished()
            self.reached = self.reached._replace(
                phase="sample", done=0, carry=states, tuned=tuned
            )
        self._take("sample", block_size, file, progress)

    def _finished(self) -> tuple[tuple, tuple]:
        """States and tuning with which the sampling phase starts, by group."""
        states, tuned = zip(*map(self.phases.finish, self.reached.carry))
        return states, tuned

    def _take(
        self,
        phase: Phase,
        block_size: int | None,
        file: RunFile | None,
        progress: bool,
    ) -> None:
        """Take the remaining steps of a phase, block by block."""
        num_steps, first = self.num_steps[phase], self.reached.done
        if first >= num_steps:
            return
        size = block_size or min(_MOST_STEPS, max(1, -(-num_steps // _NUM_UPDATES)))
        name = phase if first == 0 else f"{phase} from {first}"
        bar = progress_bar(num_steps - first, name, progress)
        bar.set_postfix_str("compiling")
        room = max(size, _MOST_STEPS)  # one program for blocks of any length
        example = self._given(phase, first, 0, room)[0]
        program = self.phases.block(phase, room, example)
        self.compiling += program.seconds
        bar.reset()
        with side_by_side(len(self.fresh)) as run:
            # No longer than the interval of the checkpoint, once it is known how long
            # a step takes.
            longest = size if file is None else 1
            while (done := self.reached.done) < num_steps:
                began = time.perf_counter()
                count = min(size - done % size, num_steps - done, longest)
                given = self._given(phase, done, count, room)
                results = run([partial(_called, program.bound(one)) for one in given])
                self._move(phase, size, count, results, began)
                # The bar moves last, so that an interrupt loses no block.
                if file is not None:
                    longest = file.steps_between(count, time.perf_counter() - began)
                    if file.is_due():
                        file.save(self.reached, self.rows, self.compiling)
                stats = self.rows[phase].between(0, done + count)["stats"]
                bar.set_postfix_str(_words(stats, count))
                bar.update(count)
        bar.close()

    def _given(self, phase: Phase, first: int, count: int, room: int) -> list[Given]:
        """Arguments of a block of steps by group, with ``room`` for more steps."""
        is_warmup = phase == "warmup"

        def rows(schedule):
            taken = np.zeros((room, *schedule.shape[1:]), schedule.dtype)
            if is_warmup:
                taken[:count] = schedule[first : first + count]
            return taken if self.num_steps["warmup"] else taken[:0]

        entries = jax.tree.map(rows, self.schedule)
        keys = self.start.warmup_keys if is_warmup else self.start.sample_keys
        stands = zip(self.fresh, self.reached.carry, self.reached.tuned, keys)
        return [
            Given(
                carry=fresh._replace(warmup=state)
                if is_warmup
                else Carry(fresh.warmup, state, tuned),
                keys=key,
                entries=entries,
                first=np.int32(first),
                count=np.int32(count),
                is_warmup=np.bool_(is_warmup),
                data=self.data,
            )
            for fresh, state, tuned, key in stands
        ]

    def _move(
        self, phase: Phase, size: int, count: int, results: list, began: float
    ) -> None:
        """Keep the outputs of a block, and move to its end."""
        done = self.reached.done + count
        carries, outputs = zip(*results)
        draws, info = joined(outputs, axis=1)
        outputs = {"stats": info._asdict()}
        if phase == "sample":
            outputs["draws"] = draws
        rows = self.rows[phase]
        rows.put(done - count, jax.tree.map(lambda a: a[:count], outputs))
        stands = [c.warmup if phase == "warmup" else c.state for c in carries]
        if phase == "warmup" and self.host is not None and done % size == 0:
            tuned = self.host.update(rows.between(done - size, done)["stats"])
            groups = self.phases.groups(jax.device_get(tuned))
            stands = [s._replace(tuned=one) for s, one in zip(stands, groups)]
        seconds = dict(self.reached.seconds)
        seconds[phase] += time.perf_counter() - began
        warmup = done if phase == "warmup" else self.reached.num_warmup_steps
        self.reached = self.reached._replace(
            done=done, carry=tuple(stands), num_warmup_steps=warmup, seconds=seconds
        )

    def interrupted(self, file: RunFile | None) -> str:
        """The message after an interrupt."""
        phase, done, *_ = self.reached
        if phase == "sample" and done:
            kept = f"kept {done} of {self.num_steps[phase]} draws per chain."
        else:
            steps = self.reached.num_warmup_steps
            kept = (
                f"after {steps} of {self.num_steps['warmup']} steps of the warm-up. "
                "There are no draws, only its statistics and the last positions."
            )
        if file is None:
            return f"Interrupted: {kept}"
        return (
            f"Interrupted: {kept} The same call again goes on from there, with "
            f"checkpoint={str(file.path)!r}."
        )

    def chains(self) -> Chains:
        """The result."""
        states, tuned = self.reached.carry, self.reached.tuned
        done = self.reached.done
        if self.reached.phase == "warmup":
            states, tuned = self._finished()
            done = 0
        kept = min(done, self.num_steps["sample"])
        outputs = self.rows["sample"].between(0, kept)
        stats = jax.tree.map(_chains_first, outputs.get("stats", {}))
        none = jax.tree.map(lambda a: np.zeros((0, *a.shape), a.dtype), self.positions)
        warmup = self.rows["warmup"].between(0, self.reached.num_warmup_steps)
        return Chains(
            draws=jax.tree.map(_chains_first, outputs.get("draws", none)),
            stats=stats,
            seconds=self.reached.seconds["sample"],
            warmup_seconds=self.reached.seconds["warmup"],
            compile_seconds=self.compiling,
            num_gradients=int(np.sum(stats.get("n_steps", 0))),
            tuned=joined(tuned),
            warmup_stats=jax.tree.map(_chains_first, warmup.get("stats", {})),
            position=joined([state.position for state in states]),
        )


def _called(program: Callable[[], tuple[Carry, Any]]) -> tuple[Carry, Any]:
    """The results of a block, with its outputs moved to the host by this thread."""
    carry, outputs = program()
    return carry, jax.device_get(outputs)


def _words(stats: dict[str, np.ndarray], count: int) -> str:
    """A summary of the last steps: divergences of all so far, means of these."""
    words = []
    if "diverging" in stats:
        words = [f"divergences {int(np.sum(stats['diverging']))}"]
    for name in ("step_size", "acceptance_rate"):
        if name in stats:
            words.append(f"{name} {np.mean(stats[name][-count:]):.3g}")
    return ", ".join(words)


def _chains_first(rows: np.ndarray) -> np.ndarray:
    """[steps, chains, ...] to [chains, steps, ...]."""
    return np.swapaxes(rows, 0, 1)


# ----------------------------------------------------------------------------------
# Checks before the run
# ----------------------------------------------------------------------------------


def _check_sizes(positions, num_warmup, num_samples, block_size) -> int:
    """Number of chains."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(positions)]
    if len({shape[:1] for shape in shapes}) != 1 or shapes[0] == ():
        raise ValueError(
            "Every leaf of positions needs the same leading axis, one row per chain; "
            f"the shapes are {shapes}. For one chain add an axis of length 1."
        )
    if num_warmup < 0 or num_samples < 1 or (block_size is not None and block_size < 1):
        raise ValueError(
            "Expected num_warmup >= 0, num_samples >= 1 and block_size >= 1 (or None); "
            f"got {num_warmup}, {num_samples} and {block_size}."
        )
    return shapes[0][0]


def _check_start(values: np.ndarray) -> None:
    """Refuse chains that start where the log density is not finite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise NonFiniteStartError(
            f"The log density is not finite at the start of chains {bad.tolist()} "
            f"(values {values[bad].tolist()}). NaN means that the computation fails "
            "there, -inf that the position is outside the support. Start elsewhere: "
            "from draws of a fit, or closer to a position known to work.",
            bad,
        )


class NonFiniteStartError(ValueError):
    """The log density is not finite where chains start; ``chains`` says which."""

    def __init__(self, message: str, chains: np.ndarray):
        super().__init__(message)
        self.chains = chains
