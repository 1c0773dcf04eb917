"""The phases of a sampler as programs, for all chains or for each by itself.

Inputs and outputs of steps are [steps, chains, ...]; a program takes a given number of
steps, so that the host can stop between any two. A *group* is the chains of one
program: all of them, vectorised, or a single one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array

from svgp_ppl.mcmc.samplers.sampler import CHAINS, Adaptive, tunes_together
from svgp_ppl.rows.sharding import automatic, free_axes
from svgp_ppl.runtime.compilation import (
    Program,
    call,
    find,
    has_many_rows,
    traced_once,
)

__all__ = ["Carry", "Given", "Phase", "Phases", "Start", "joined"]

Phase = Literal["warmup", "sample"]

# With so many rows, chains lose more by slow loops than it takes to compile fast ones.
_MANY_ROWS = 1000


class Start(NamedTuple):
    """What is known before the first step.

    Attributes:
        warmup: State of the warm-up by group, leaves [chains of the group, ...].
        logdensity: Log density at the positions, [chains].
        warmup_keys: By group, one per chain, [chains of the group].
        sample_keys: Likewise.
        schedule: Schedule of the warm-up, leading axis of its steps.
    """

    warmup: tuple
    logdensity: Array
    warmup_keys: tuple
    sample_keys: tuple
    schedule: Any


class Carry(NamedTuple):
    """Where the chains of a group stand, leaves [chains of the group, ...].

    Attributes:
        warmup: State of the warm-up; it has no meaning in the sampling phase.
        state: State of the sampling phase; it has no meaning in the warm-up.
        tuned: Tuned parameters; likewise.
    """

    warmup: Any
    state: Any
    tuned: Any


class Given(NamedTuple):
    """Arguments of a block of steps.

    Attributes:
        carry: Where the chains stand.
        keys: One per chain, [chains of the group].
        entries: Rows of the schedule, [steps of a block at most, ...]; of length zero
            if there is no warm-up.
        first: Number of the first step.
        count: Number of steps.
        is_warmup: Whether the steps are those of the warm-up.
        data: Second argument of the log density.
    """

    carry: Carry
    keys: Array
    entries: Any
    first: Any
    count: Any
    is_warmup: Any
    data: Any


class Phases:
    """The programs of a sampler and a log density.

    Args:
        logdensity_fn: Function of a position, the data and perhaps a minibatch key.
        sampler: The sampler.
        made_of: What determines both, besides the data.
        by_chain: Whether each chain is a group of its own; otherwise all are one group.
    """

    def __init__(
        self, logdensity_fn: Callable, sampler: Any, made_of: tuple, by_chain: bool
    ):
        self.logdensity_fn, self.sampler = logdensity_fn, sampler
        self.made_of, self.by_chain = (by_chain, *made_of), by_chain

    def of_position(self, data: Any) -> Callable:
        """Log density of a position, or of a position and the key of a minibatch."""
        return lambda position, *key: self.logdensity_fn(position, data, *key)

    def start(self, key, positions, data, num_warmup: int) -> Start:
        """States, keys and schedule; and the log density, to be checked."""
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
            if self.by_chain:  # half as long to trace and to compile
                each = (keys, positions)
                warmup, value = jax.lax.map(lambda given: one(*given), each)
            else:
                warmup, value = jax.vmap(one, axis_name=CHAINS)(keys, positions)
            schedule = self.sampler.schedule(num_warmup) if num_warmup else jnp.zeros(0)
            warmup_keys = jax.random.split(key_warmup, num_chains)
            sample_keys = jax.random.split(key_sample, num_chains)
            keys = self.groups(warmup_keys), self.groups(sample_keys)
            return Start(self.groups(warmup), value, *keys, schedule)

        made_of = ("start of chains", num_warmup, *self.made_of)
        return call(run, made_of, key, positions, data, runs_once=True)

    def groups(self, tree: Any) -> tuple:
        """Leaves [chains, ...] by group."""
        if not self.by_chain:
            return (tree,)
        num_chains = len(jax.tree.leaves(tree)[0])
        return tuple(
            jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], tree)
            for i in range(num_chains)
        )

    def finish(self, warmup) -> tuple[Any, Any]:
        """State and tuned parameters of a group, for the sampling phase."""
        run = jax.vmap(self.sampler.finish)
        return call(run, ("finish", self.sampler), warmup, runs_once=True)

    def block(self, phase: Phase, size: int, given: Given) -> Program:
        """The program of up to ``size`` steps.

        Args:
            phase: Which phase.
            size: Number of steps at most.
            given: Example arguments.

        Returns:
            given -> the next carry, and the outputs (positions or None, info),
            [size, chains, ...].
        """
        # Without a warm-up there is no row of a schedule to adapt to.
        has_warmup = len(jax.tree.leaves(given.entries)[0]) > 0
        both = has_warmup and isinstance(self.sampler, Adaptive)
        which = "both" if both else phase

        def run(given):
            carry = given.carry
            if both:
                carry = _now(self.sampler, carry, given.is_warmup)
            step, (_, shapes) = traced_once(
                partial(self._step, which), np.int32(0), carry, given
            )

            def body(i, looped):
                carry, outputs = looped
                carry, output = step(i, carry, given)
                put = lambda all, one: all.at[i].set(one)  # noqa: E731
                return carry, jax.tree.map(put, outputs, output)

            empty = jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), shapes)
            return jax.lax.fori_loop(0, given.count, body, (carry, empty))

        run = self._over_devices(run, given)
        made_of = ("steps of chains", which, size, *self.made_of)
        is_long = has_many_rows(given.data, _MANY_ROWS)
        return find(run, made_of, given, runs_long=is_long)

    def _over_devices(self, run: Callable, given: Given) -> Callable:
        """The steps, with chains spread over axes of the mesh that have no data.

        Each device runs its chains as if there were no others: a trajectory is as long
        as the longest of these, and no factorisation is done for chains elsewhere.
        """
        arrays = jax.tree.map(automatic, jax.tree.leaves(given.data))
        mesh, axes = free_axes(arrays, len(given.keys))
        if not axes or tunes_together(self.sampler):
            return run
        chains: Any = PartitionSpec(axes)
        all_of_it: Any = PartitionSpec()
        return jax.shard_map(
            run,
            mesh=mesh,
            in_specs=(Given(chains, chains, *[all_of_it] * 5),),
            out_specs=(chains, PartitionSpec(None, axes)),
            axis_names=set(axes),
            check_vma=False,
        )

    def _step(self, which: str, i, carry: Carry, given: Given):
        """Step number ``i`` of the block: the next carry, and the output."""
        density = self.of_position(given.data)

        def one_chain(key, carry: Carry, entry):
            # The key of a step does not depend on the total number of steps.
            key = jax.random.fold_in(key, given.first + i)
            if which == "warmup":
                step = self.sampler.warmup_step
                warmup, info = step(key, carry.warmup, density, entry)
                return carry._replace(warmup=warmup), (None, info)
            warmup, state, tuned = carry
            state, info = self.sampler.step(key, state, density, tuned)
            output = (state.position, info)
            if which == "sample":
                return Carry(warmup, state, tuned), output

            def adapted():
                new = self.sampler.adapt(warmup, state, info, entry)
                return new, self.sampler.current(new)[1]

            # Equal in all chains, so that it stays a branch.
            both = jax.lax.cond(given.is_warmup, adapted, lambda: (warmup, tuned))
            return Carry(both[0], state, both[1]), output

        entry = jax.tree.map(lambda a: a[i], given.entries) if which != "sample" else ()
        if self.by_chain:  # not under vmap: a branch stays a branch
            key, carry = jax.tree.map(lambda a: a[0], (given.keys, carry))
            result = one_chain(key, carry, entry)
            return jax.tree.map(lambda a: jnp.asarray(a)[None], result)
        all_chains = jax.vmap(one_chain, (0, 0, None), axis_name=CHAINS)
        return all_chains(given.keys, carry, entry)


def joined(groups: Any, axis: int = 0) -> Any:
    """Trees of groups as one tree of NumPy arrays, with all chains on an axis."""
    first, *others = jax.device_get(list(groups))
    if not others:
        return first
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), first, *others)


def _now(sampler: Any, carry: Carry, is_warmup) -> Carry:
    """State and tuning with which a block begins: in the warm-up, those of it."""
    current = jax.vmap(sampler.current)(carry.warmup)
    state, tuned = jax.tree.map(
        lambda new, old: jnp.where(is_warmup, new, old), current, carry[1:]
    )
    return Carry(carry.warmup, state, tuned)
