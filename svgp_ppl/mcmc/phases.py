"""The phases of a sampler as programs, vectorised over chains.

Inputs and outputs of steps are [steps, chains, ...]; a program takes as many steps as
it is told to, so that the host can stop between any two.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from svgp_ppl.compilation import Program, call, find
from svgp_ppl.mcmc.sampler import CHAINS

__all__ = ["Phase", "Phases", "Start"]

Phase = Literal["warmup", "sample"]


class Start(NamedTuple):
    """What is known before the first step.

    Attributes:
        warmup: State of the warm-up, leaves [chains, ...].
        logdensity: At the positions, [chains].
        warmup_keys: One a chain, [chains].
        sample_keys: Likewise.
        schedule: Of the warm-up, leading axis of its steps.
    """

    warmup: Any
    logdensity: Array
    warmup_keys: Array
    sample_keys: Array
    schedule: Any


class Phases:
    """The programs of a sampler and a log density.

    Args:
        logdensity_fn: Of a position, the data and perhaps the key of a minibatch.
        sampler: The sampler.
        made_of: What determines both, beside the data.
    """

    def __init__(self, logdensity_fn: Callable, sampler: Any, made_of: tuple):
        self.logdensity_fn, self.sampler = logdensity_fn, sampler
        self.made_of = made_of

    def of_position(self, data: Any) -> Callable:
        """Log density of a position, or of a position and the key of a minibatch."""
        return lambda position, *key: self.logdensity_fn(position, data, *key)

    def start(self, key, positions, data, num_warmup: int) -> Start:
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
            warmup_keys = jax.random.split(key_warmup, num_chains)
            sample_keys = jax.random.split(key_sample, num_chains)
            return Start(warmup, value, warmup_keys, sample_keys, schedule)

        made_of = ("start of chains", num_warmup, *self.made_of)
        return call(run, made_of, key, positions, data, runs_once=True)

    def finish(self, warmup) -> tuple[Any, Any]:
        """State and tuned parameters of every chain, for the sampling phase."""
        run = jax.vmap(self.sampler.finish)
        return call(run, ("finish", self.sampler), warmup, runs_once=True)

    def block(self, phase: Phase, size: int, carry, inputs, constants) -> Program:
        """The program of up to ``size`` steps.

        Args:
            phase: Which phase.
            size: Number of steps at most.
            carry: State of all chains.
            inputs: A key a chain, and the schedule or None.
            constants: What is tuned (of the sampling phase), and the data.

        Returns:
            (carry, inputs, first step, number of steps, constants) -> the next carry,
            and the outputs (positions or None, info), [size, chains, ...].
        """

        def run(carry, inputs, first, count, constants):
            step = self._step_of_all(phase, inputs, constants)

            def body(i, carry):
                state, outputs = carry
                state, output = step(first + i, state)
                put = lambda all, one: all.at[i].set(one)  # noqa: E731
                return state, jax.tree.map(put, outputs, output)

            shapes = jax.eval_shape(step, first, carry)[1]
            empty = jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), shapes)
            return jax.lax.fori_loop(0, count, body, (carry, empty))

        example = (carry, inputs, np.int32(0), np.int32(size), constants)
        return find(run, ("steps of chains", phase, size, *self.made_of), *example)

    def _step_of_all(self, phase: Phase, inputs, constants: tuple) -> Callable:
        """(number of the step, carry) -> the next carry, and the output."""
        keys, schedule = inputs
        # What is tuned has an axis of chains, data have none.
        axes = (0,) * (len(constants) - 1) + (None,)

        def one_chain(constants, i, key, carry, entry):
            # The key of a step does not depend on how many there are to be.
            key = jax.random.fold_in(key, i)
            return self._step(phase, constants, key, carry, entry)

        all_chains = jax.vmap(one_chain, (axes, None, 0, 0, None), axis_name=CHAINS)

        def step(i, carry):
            entry = jax.tree.map(lambda a: a[i], schedule)
            return all_chains(constants, i, keys, carry, entry)

        return step

    def _step(self, phase: Phase, constants: tuple, key, carry, entry):
        """A step of one chain: the next carry, and (position or None, info)."""
        density = self.of_position(constants[-1])
        if phase == "warmup":
            warmup, info = self.sampler.warmup_step(key, carry, density, entry)
            return warmup, (None, info)
        state, info = self.sampler.step(key, carry, density, constants[0])
        return state, (state.position, info)
