"""Hamiltonian Monte Carlo whose tuning is shared by many chains."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from svgp_ppl.mcmc.samplers.blackjax_parts import (
    DynamicHMCState,
    chees_start_and_update,
    halton_sequence,
)
from svgp_ppl.mcmc.samplers.hmc import HMCInfo, hmc_info, trajectory, unit_masses
from svgp_ppl.mcmc.samplers.sampler import CHAINS, require_numbers, require_positive

__all__ = ["ChEES", "ChEESTuned", "ChEESWarmup"]

# Bits of the Halton sequence: it repeats after 2^20 draws.
_HALTON_BITS = 20


class ChEESTuned(NamedTuple):
    """Step size and length of the trajectory, the same for all chains."""

    step_size: Float[Array, ""]
    trajectory_length: Float[Array, ""]


class ChEESWarmup(NamedTuple):
    """Position with its gradient, and the adaptation, equal in all chains."""

    state: DynamicHMCState
    adaptation: Any


@dataclass(frozen=True)
class ChEES:
    """Trajectories of one length for all chains, jittered by a Halton sequence.

    Hoffman, Radul & Sountsov (2021). The length follows the gradient of the expected
    change of the squared distance from the mean, over all chains at once; the step size
    follows dual averaging of the harmonic mean of their acceptance probabilities. All
    chains take the same number of steps at each draw, so none waits for another: suited
    to many short chains (``num_chains=32`` and more, on a GPU hundreds). Unit masses.

    Attributes:
        target_acceptance_rate: Target for the harmonic mean.
        max_num_steps: Most leapfrog steps of a trajectory.
        learning_rate: Learning rate of Adam on the log of the length.
        initial_step_size: Where dual averaging starts.
        divergence_threshold: Loss of energy that counts as a divergence.

    Raises:
        ValueError: A value outside its range.

    Example:
        >>> sampler = gp.mcmc.ChEES()
    """

    tunes_together: ClassVar[bool] = True

    target_acceptance_rate: float = 0.651
    max_num_steps: int = 1000
    learning_rate: float = 0.025
    initial_step_size: float = 0.1
    divergence_threshold: float = 1000.0

    def __post_init__(self):
        require_numbers(self)
        if not 0 < self.target_acceptance_rate < 1:
            raise ValueError(
                "target_acceptance_rate must lie strictly between 0 and 1; got "
                f"{self.target_acceptance_rate}."
            )
        require_positive(self, "max_num_steps", "learning_rate", "initial_step_size")

    def init(self, key: Array, position: Any, logdensity_fn: Callable) -> ChEESWarmup:
        """State of the warm-up: trajectories of a single step."""
        del key
        num_chains = jax.lax.axis_size(CHAINS)
        if num_chains < 2:
            raise ValueError(
                "ChEES tunes on many chains together, and there is one: take "
                "num_chains=32, or NUTS."
            )
        start, _ = self._adaptation()
        draw = jnp.ones((), int)
        state = blackjax.dynamic_hmc.init(position, logdensity_fn, draw)
        adaptation = start(draw, jnp.asarray(self.initial_step_size))
        return ChEESWarmup(state, jax.tree.map(jnp.asarray, adaptation))

    def schedule(self, num_warmup: int) -> Int[Array, " num_warmup"]:
        """All steps are alike."""
        return jnp.zeros(num_warmup, int)

    def warmup_step(
        self, key: Array, warmup: ChEESWarmup, logdensity_fn: Callable, entry: Any
    ) -> tuple[ChEESWarmup, HMCInfo]:
        """A draw of this chain, then the same update in all of them."""
        del entry
        adaptation = warmup.adaptation
        now = ChEESTuned(adaptation.step_size, adaptation.trajectory_length)
        state, info, statistics = self._move(key, warmup.state, logdensity_fn, now)

        def all_chains(tree):
            return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, CHAINS), tree)

        _, update = self._adaptation()
        new = update(
            adaptation,
            all_chains(info.proposal.position),
            all_chains(info.proposal.momentum),
            all_chains(warmup.state.position),
            all_chains(info.acceptance_rate),
            all_chains(info.is_divergent),
            unit_masses(state.position),
        )
        new = jax.tree.map(lambda a, old: jnp.asarray(a, old.dtype), new, adaptation)
        return ChEESWarmup(state, new), statistics

    def finish(self, warmup: ChEESWarmup) -> tuple[DynamicHMCState, ChEESTuned]:
        """Position, and the moving averages of step size and length."""
        adaptation = warmup.adaptation
        # Before the first update there is no average.
        has_average = adaptation.step > 1
        step_size = jnp.exp(adaptation.log_step_size_moving_average)
        length = jnp.exp(adaptation.log_trajectory_length_moving_average)
        return warmup.state, ChEESTuned(
            jnp.where(has_average, step_size, adaptation.step_size),
            jnp.where(has_average, length, adaptation.trajectory_length),
        )

    def step(
        self,
        key: Array,
        state: DynamicHMCState,
        logdensity_fn: Callable,
        tuned: ChEESTuned,
    ) -> tuple[DynamicHMCState, HMCInfo]:
        """One transition."""
        new, _, statistics = self._move(key, state, logdensity_fn, tuned)
        return new, statistics

    def _move(self, key, state: Any, logdensity_fn, tuned: ChEESTuned):
        """The new state, BlackJAX's info and the statistics."""
        step_size = tuned.step_size
        longest = jnp.clip(tuned.trajectory_length / step_size, 1, self.max_num_steps)
        new, info = trajectory(
            key,
            state,
            logdensity_fn,
            step_size,
            longest,
            _num_steps,
            self.divergence_threshold,
        )
        max_steps = jnp.ceil(longest).astype(int)
        return new, info, hmc_info(info, state, new, step_size, max_steps)

    def _adaptation(self):
        """BlackJAX's start and update."""
        return chees_start_and_update(
            _jitter,
            lambda draw: draw + 1,
            optax.adam(self.learning_rate),
            self.target_acceptance_rate,
            0.5,
            self.max_num_steps,
        )


def _jitter(draw) -> Any:
    """The share of the trajectory that is followed at a draw, in (0, 1)."""
    return halton_sequence(draw, _HALTON_BITS)


def _num_steps(draw, longest) -> Any:
    return jnp.ceil(_jitter(draw) * longest).astype(int)
