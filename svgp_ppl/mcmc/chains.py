"""Many chains of any sampler, vectorised, in blocks that can be seen and interrupted.

A sampler is a handful of pure functions on one chain (``mcmc.sampler``); this module
vectorises them over chains, compiles each phase once, and keeps on the host what is
worth keeping: positions and scalar statistics of the sampling phase.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from svgp_ppl.compilation import call, find
from svgp_ppl.mcmc.sampler import CHAINS, HostAdapted, Sampler
from svgp_ppl.progress import progress_bar

__all__ = ["Chains", "NonFiniteStartError", "run_chains"]

# Updates of the bar in a phase: often enough to watch, too rare to cost time.
_NUM_UPDATES = 30


class Chains(NamedTuple):
    """What :func:`run_chains` returns; arrays are NumPy arrays on the host.

    Attributes:
        draws: The positions, leaves [chains, draws, ...].
        stats: Statistics of the draws by name, arrays [chains, draws].
        seconds: Wall time of the sampling phase, without compilation.
        warmup_seconds: Wall time of the warm-up, without compilation.
        compile_seconds: What tracing and compilation took.
        num_gradients: Gradient evaluations of the sampling phase, over all chains.
        tuned: What the sampler tuned, leaves [chains, ...].
    """

    draws: PyTree
    stats: dict[str, np.ndarray]
    seconds: float
    warmup_seconds: float
    compile_seconds: float
    num_gradients: int
    tuned: PyTree


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
    made_of: tuple | None = None,
) -> Chains:
    """Tune a sampler and draw from exp(logdensity_fn(position, data)), on many chains.

    Each phase is a Python loop over blocks of steps, and a block is one call of one
    compiled loop. An interrupt (Ctrl-C) during the sampling phase keeps the
    blocks drawn so far, with a warning; during the warm-up it is raised. The draws do
    not depend on ``block_size``, and a second run with the same function, sampler and
    shapes compiles nothing.

    Args:
        key: Random key.
        logdensity_fn: Log density of a position, up to a constant. It is static in the
            compiled code: arrays of any size belong in ``data``. With a
            ``StochasticGradient`` sampler a third argument may come, the key of the
            minibatch from which the log density is to be estimated.
        positions: Where the chains start, leaves [chains, ...].
        sampler: For instance ``NUTS()``.
        num_warmup: Tuning steps; none of their draws is kept.
        num_samples: Draws to keep per chain.
        data: Second argument of ``logdensity_fn``, passed to the compiled code as an
            argument and never as a constant.
        progress: Whether to show a bar for each phase.
        block_size: Steps between two updates of the bar; a thirtieth of the phase if
            None. A warm-up that the host adapts has its rounds as blocks.
        made_of: What determines ``logdensity_fn`` beside ``data``, for a function that
            is made anew at every call; the function itself if None.

    Returns:
        Draws, statistics, times and the tuned sampler.

    Raises:
        ValueError: If the log density is not finite at a starting position, or an
            argument has an impossible size.

    Example:
        >>> def logdensity_fn(x, data):
        ...     return -0.5 * jnp.sum((x - data) ** 2)
        >>> chains = run_chains(
        ...     jax.random.key(0), logdensity_fn, jnp.zeros((4, 2)), NUTS(),
        ...     num_warmup=500, num_samples=500, data=jnp.array([1.0, 2.0]),
        ... )
        >>> chains.draws.shape
        (4, 500, 2)
    """
    positions = jax.tree.map(jnp.asarray, positions)
    num_chains = _check_sizes(positions, num_warmup, num_samples, block_size)
    made_of = (logdensity_fn if made_of is None else made_of, sampler)
    programs = _Programs(logdensity_fn, sampler, made_of)
    start = programs.start(key, positions, data, num_warmup, num_samples)
    _check_start(np.asarray(start.logdensity))

    clock, warmup = _Clock(), start.warmup
    if num_warmup > 0:
        options: dict[str, Any] = {"block_size": block_size}
        if isinstance(sampler, HostAdapted):
            host = sampler.host_adaptation(num_chains, num_warmup)
            options = {"block_size": host.round_length, "update": host.update}
        inputs = (start.warmup_keys, start.schedule)
        blocks = programs.blocks("warmup", warmup, inputs, (data,), clock, progress)
        for block in blocks(**options):
            warmup = block.carry
    clock.warmup, clock.running = clock.running, 0.0
    state, tuned = programs.finish(warmup)
    outputs = []
    inputs = (start.sample_keys, None)
    blocks = programs.blocks("sample", state, inputs, (tuned, data), clock, progress)
    try:
        for block in blocks(block_size=block_size):
            outputs.append(block.output)
    except KeyboardInterrupt:
        if not outputs:
            raise
        kept = sum(len(info.n_steps) for _, info in outputs)
        warnings.warn(
            f"Interrupted: kept {kept} of {num_samples} draws per chain.", stacklevel=2
        )
    draws, info = jax.tree.map(_join, *outputs)
    stats = info._asdict()
    return Chains(
        draws=draws,
        stats=stats,
        seconds=clock.running,
        warmup_seconds=clock.warmup,
        compile_seconds=clock.compiling,
        num_gradients=int(np.sum(stats["n_steps"])),
        tuned=jax.device_get(tuned),
    )


# ----------------------------------------------------------------------------------
# Compiled pieces: [steps, chains] inputs and outputs, vectorised over chains
# ----------------------------------------------------------------------------------


class _Start(NamedTuple):
    """What is known before the first step.

    Attributes:
        warmup: State of the warm-up, leaves [chains, ...].
        logdensity: At the positions, [chains].
        warmup_keys: One a step and chain, [steps, chains].
        sample_keys: Likewise.
        schedule: Of the warm-up, leading axis of its steps.
    """

    warmup: Any
    logdensity: Array
    warmup_keys: Array
    sample_keys: Array
    schedule: Any


class _Block(NamedTuple):
    carry: Any
    output: Any  # (positions or None, info), on the host


class _Clock:
    """Seconds of compilation, of the warm-up and of the phase that runs."""

    compiling = warmup = running = 0.0


class _Programs:
    """The programs of a sampler and a log density."""

    def __init__(self, logdensity_fn: Callable, sampler: Any, made_of: tuple):
        self.logdensity_fn, self.sampler = logdensity_fn, sampler
        self.made_of = made_of

    def of_position(self, data: Any) -> Callable:
        """Log density of a position, or of a position and the key of a minibatch."""
        return lambda position, *key: self.logdensity_fn(position, data, *key)

    def start(self, key, positions, data, num_warmup: int, num_samples: int) -> _Start:
        """States, keys and schedule; and the log density, to be looked at."""
        num_chains = len(jax.tree.leaves(positions)[0])

        def run(key, positions, data):
            key_init, key_warmup, key_sample = jax.random.split(key, 3)
            density = self.of_position(data)

            def one(key, position):
                value = density(position)
                if jnp.ndim(value):
                    raise ValueError(
                        "logdensity_fn must return a scalar for one position; it "
                        f"returned an array of shape {jnp.shape(value)}."
                    )
                return self.sampler.init(key, position, density), value

            keys = jax.random.split(key_init, num_chains)
            warmup, value = jax.vmap(one, axis_name=CHAINS)(keys, positions)
            schedule = self.sampler.schedule(num_warmup) if num_warmup else jnp.zeros(0)
            num_steps = len(jax.tree.leaves(schedule)[0])
            return _Start(
                warmup,
                value,
                _step_keys(key_warmup, num_chains, num_steps),
                _step_keys(key_sample, num_chains, num_samples),
                schedule,
            )

        made_of = ("start of chains", num_warmup, num_samples, *self.made_of)
        return call(run, made_of, key, positions, data, runs_once=True)

    def finish(self, warmup) -> tuple[Any, Any]:
        """State and tuned parameters of every chain, for the sampling phase."""
        run = jax.vmap(self.sampler.finish)
        return call(run, ("finish", self.sampler), warmup, runs_once=True)

    def _step(self, name: str, constants: tuple, key, carry, entry):
        """A step of one chain: the next carry, and (position or None, info)."""
        density = self.of_position(constants[-1])
        if name == "warmup":
            warmup, info = self.sampler.warmup_step(key, carry, density, entry)
            return warmup, (None, info)
        state, info = self.sampler.step(key, carry, density, constants[0])
        return state, (state.position, info)

    def _block(self, name: str, size: int) -> Callable:
        """Up to ``size`` steps from ``first`` on, of all chains."""

        def run(carry, inputs, first, count, constants):
            # What is tuned has an axis of chains, data have none.
            axes = (0,) * (len(constants) - 1) + (None,)
            all_chains = jax.vmap(
                lambda constants, key, carry, entry: self._step(
                    name, constants, key, carry, entry
                ),
                (axes, 0, 0, None),
                axis_name=CHAINS,
            )

            def step(i, carry):
                keys, entry = jax.tree.map(lambda a: a[first + i], inputs)
                return all_chains(constants, keys, carry, entry)

            def body(i, carry):
                state, outputs = carry
                state, output = step(i, state)
                put = lambda all, one: all.at[i].set(one)  # noqa: E731
                return state, jax.tree.map(put, outputs, output)

            shapes = jax.eval_shape(step, 0, carry)[1]
            empty = jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), shapes)
            return jax.lax.fori_loop(0, count, body, (carry, empty))

        return run

    def blocks(
        self,
        name: str,
        carry: Any,
        inputs: Any,
        constants: tuple,
        clock: _Clock,
        progress: bool,
    ) -> Callable[..., Iterator[_Block]]:
        """A phase, block by block; its options come when it is run."""

        def run(
            block_size: int | None, update: Callable[[dict], Any] | None = None
        ) -> Iterator[_Block]:
            nonlocal carry
            num_steps = len(inputs[0])
            size = block_size or max(1, -(-num_steps // _NUM_UPDATES))
            bar = progress_bar(num_steps, name, progress)
            bar.set_postfix_str("compiling")
            example = (carry, inputs, np.int32(0), np.int32(size), constants)
            made_of = ("steps of chains", name, size, *self.made_of)
            program = find(self._block(name, size), made_of, *example)
            clock.compiling += program.seconds
            bar.reset()
            divergences = 0
            for first in range(0, num_steps, size):
                began = time.perf_counter()
                count = min(size, num_steps - first)
                given = (np.int32(first), np.int32(count))
                carry, output = program(carry, inputs, *given, constants)
                output = jax.tree.map(lambda a: a[:count], jax.device_get(output))  # noqa: B023
                stats = output[1]._asdict()
                if update is not None:
                    carry = carry._replace(tuned=update(stats))
                clock.running += time.perf_counter() - began
                # Handed over before the bar moves: an interrupt then loses no block.
                yield _Block(carry, output)
                divergences += int(np.sum(stats.get("diverging", 0)))
                bar.set_postfix_str(_words(stats, divergences))
                bar.update(count)
            bar.close()

        return run


def _words(stats: dict[str, np.ndarray], divergences: int) -> str:
    """What to say of a block."""
    words = [f"divergences {divergences}"] if "diverging" in stats else []
    for name in ("step_size", "acceptance_rate"):
        if name in stats:
            words.append(f"{name} {np.mean(stats[name]):.3g}")
    return ", ".join(words)


def _step_keys(key: Array, num_chains: int, num_steps: int) -> Array:
    """One key per step and chain, [steps, chains], the same for every block size."""
    keys = jax.random.split(key, num_chains)
    return jax.vmap(partial(jax.random.split, num=num_steps), out_axes=1)(keys)


def _join(*blocks: np.ndarray) -> np.ndarray:
    """[block, chains, ...] pieces to [chains, draws, ...]."""
    return np.swapaxes(np.concatenate(blocks), 0, 1)


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
