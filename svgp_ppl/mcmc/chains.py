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
from tqdm.auto import tqdm

from svgp_ppl.mcmc.sampler import CHAINS, Sampler, Steered

__all__ = ["Chains", "run_chains"]

# Updates of the bar in a phase: often enough to watch, too rare to cost time.
_MIN_UPDATES = 20
_MAX_UPDATES = 50


class Chains(NamedTuple):
    """What :func:`run_chains` returns; arrays are NumPy arrays on the host.

    Attributes:
        draws: The positions, leaves [chains, draws, ...].
        stats: Statistics of the draws by name, arrays [chains, draws].
        seconds: Wall time of the sampling phase, without compilation.
        warmup_seconds: Wall time of the warm-up, without compilation.
        num_gradients: Gradient evaluations of the sampling phase, over all chains.
        tuned: What the sampler tuned, leaves [chains, ...].
    """

    draws: PyTree
    stats: dict[str, np.ndarray]
    seconds: float
    warmup_seconds: float
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
) -> Chains:
    """Tune a sampler and draw from exp(logdensity_fn(position, data)), on many chains.

    Each phase is a Python loop over blocks of steps, and a block is one call of one
    compiled ``lax.scan``. An interrupt (Ctrl-C) during the sampling phase keeps the
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
        block_size: Steps between two updates of the bar. ``None`` takes the largest
            divisor of the phase that gives 20 to 50 updates, or, where there is none
            (a large prime), blocks of a twentieth and a shorter last one, which is
            compiled apart. A steered warm-up has its rounds as blocks.

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
    key_init, key_warmup, key_sample = jax.random.split(key, 3)
    positions = jax.tree.map(jnp.asarray, positions)
    num_chains = _check_sizes(positions, num_warmup, num_samples, block_size)
    _check_start(logdensity_fn, positions, data)
    static = {"sampler": sampler, "logdensity_fn": logdensity_fn}
    options = {"block_size": block_size, "progress": progress}

    keys = jax.random.split(key_init, num_chains)
    warmup, warmup_seconds = _start(keys, positions, data, **static), 0.0
    if num_warmup > 0:
        schedule = sampler.schedule(num_warmup)
        num_steps = len(jax.tree.leaves(schedule)[0])
        inputs = (_step_keys(key_warmup, num_chains, num_steps), schedule)
        lower = partial(_warmup_block.lower, **static)
        steered = dict(options)
        if isinstance(sampler, Steered):
            steering = sampler.steer(num_chains, num_warmup)
            steered |= {"block_size": steering.round_length, "update": steering.update}
        for block in _blocks("warmup", lower, warmup, inputs, (data,), **steered):
            warmup, warmup_seconds = block.carry, warmup_seconds + block.seconds

    state, tuned = jax.vmap(sampler.finish)(warmup)
    keys = _step_keys(key_sample, num_chains, num_samples)
    lower = partial(_sampling_block.lower, **static)
    outputs, seconds = [], 0.0
    try:
        for block in _blocks("sample", lower, state, keys, (tuned, data), **options):
            outputs.append(block.output)
            seconds += block.seconds
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
        seconds=seconds,
        warmup_seconds=warmup_seconds,
        num_gradients=int(np.sum(stats["n_steps"])),
        tuned=jax.device_get(tuned),
    )


# ----------------------------------------------------------------------------------
# Compiled pieces: [block, chains] inputs and outputs, vectorised over chains
# ----------------------------------------------------------------------------------


def _with_data(logdensity_fn: Callable, data: PyTree) -> Callable:
    """Log density of a position, or of a position and the key of a minibatch."""
    return lambda position, *key: logdensity_fn(position, data, *key)


@partial(jax.jit, static_argnames=("sampler", "logdensity_fn"))
def _start(keys, positions, data, *, sampler, logdensity_fn):
    def start(key, position):
        return sampler.init(key, position, _with_data(logdensity_fn, data))

    return jax.vmap(start, axis_name=CHAINS)(keys, positions)


@partial(jax.jit, static_argnames=("sampler", "logdensity_fn"))
def _warmup_block(warmup, inputs, data, *, sampler, logdensity_fn):
    of_position = _with_data(logdensity_fn, data)

    def all_chains(warmup, inputs):
        keys, entry = inputs
        warmup, info = jax.vmap(
            lambda key, one: sampler.warmup_step(key, one, of_position, entry),
            axis_name=CHAINS,
        )(keys, warmup)
        return warmup, (None, info)

    return jax.lax.scan(all_chains, warmup, inputs)


@partial(jax.jit, static_argnames=("sampler", "logdensity_fn"))
def _sampling_block(state, keys, tuned, data, *, sampler, logdensity_fn):
    of_position = _with_data(logdensity_fn, data)

    def all_chains(state, keys):
        state, info = jax.vmap(
            lambda key, one, tuned: sampler.step(key, one, of_position, tuned),
            axis_name=CHAINS,
        )(keys, state, tuned)
        return state, (state.position, info)

    return jax.lax.scan(all_chains, state, keys)


# ----------------------------------------------------------------------------------
# The loop over blocks
# ----------------------------------------------------------------------------------


class _Block(NamedTuple):
    carry: Any
    output: Any  # (positions or None, info), on the host
    seconds: float


def _blocks(
    name: str,
    lower: Callable,
    carry: Any,
    inputs: Any,
    constants: tuple,
    *,
    block_size: int | None,
    progress: bool,
    update: Callable[[dict], Any] | None = None,
) -> Iterator[_Block]:
    """Run a phase, block by block, compiling apart from the clock.

    ``update`` gives what replaces ``carry.tuned`` from the statistics of a block.
    """
    num_steps = len(jax.tree.leaves(inputs)[0])
    size = block_size or _block_size(num_steps)
    compiled = {}
    divergences = 0
    with tqdm(total=num_steps, desc=name, disable=not progress) as bar:
        for first in range(0, num_steps, size):
            length = min(size, num_steps - first)
            rows = jax.tree.map(lambda a, i=first, n=length: a[i : i + n], inputs)
            if length not in compiled:
                bar.set_postfix_str("compiling")
                compiled[length] = lower(carry, rows, *constants).compile()
            began = time.perf_counter()
            carry, output = compiled[length](carry, rows, *constants)
            output = jax.device_get(output)
            stats = output[1]._asdict()
            if update is not None:
                carry = carry._replace(tuned=update(stats))
            seconds = time.perf_counter() - began
            # Handed over before the bar moves: an interrupt then loses no block.
            yield _Block(carry, output, seconds)
            postfix = {}
            if "diverging" in stats:
                divergences += int(np.sum(stats["diverging"]))
                postfix["divergences"] = divergences
            for statistic in ("step_size", "acceptance_rate"):
                if statistic in stats:
                    postfix[statistic] = f"{np.mean(stats[statistic]):.3g}"
            bar.set_postfix(postfix)
            bar.update(length)


def _block_size(num_steps: int) -> int:
    """Steps per block: the largest divisor that gives 20 to 50 blocks, if any."""
    for num_blocks in range(_MIN_UPDATES, _MAX_UPDATES + 1):
        if num_steps % num_blocks == 0:
            return num_steps // num_blocks
    return max(1, num_steps // _MIN_UPDATES)


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


def _check_start(logdensity_fn: Callable, positions: PyTree, data: PyTree) -> None:
    """Refuse chains that start where the log density is not finite."""
    values = np.asarray(_initial_logdensity(positions, data, logdensity_fn))
    if values.ndim != 1:
        raise ValueError(
            "logdensity_fn must return a scalar for one position; "
            f"it returned an array of shape {values.shape[1:]}."
        )
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(
            f"The log density is not finite at the start of chains {bad.tolist()} "
            f"(values {values[bad].tolist()}). NaN means that the computation fails "
            "there, -inf that the position is outside the support. Start elsewhere: "
            "from draws of a fit, or closer to a position known to work."
        )


@partial(jax.jit, static_argnames="logdensity_fn")
def _initial_logdensity(positions, data, logdensity_fn):
    return jax.vmap(lambda position: logdensity_fn(position, data))(positions)
