"""Microcanonical Langevin Monte Carlo, without Metropolis corrections."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from svgp_ppl.mcmc.samplers.blackjax_parts import (
    IntegratorState,
    MCLMCAdaptationState,
    pytree_size,
)
from svgp_ppl.mcmc.samplers.hmc import squared_distance, unit_masses
from svgp_ppl.mcmc.samplers.sampler import require_numbers, require_positive

__all__ = ["MCLMC", "MCLMCInfo", "MCLMCWarmup"]

# Gradients per step of McLachlan's integrator, which is BlackJAX's default.
_GRADIENTS_A_STEP = 2


class MCLMCInfo(NamedTuple):
    """Statistics of one draw (or of a round of the warm-up).

    Attributes:
        diverging: Whether a step met a value that is not finite, and was undone.
        step_size: Step size of the integrator.
        decoherence_length: L, the length after which the momentum is forgotten.
        n_steps: Gradient evaluations.
        energy_variance: Mean squared change of energy per step and dimension.
        lp: Log density of the draw.
        squared_jump: ‖θ_{t+1} − θ_t‖².
    """

    diverging: Bool[Array, ""]
    step_size: Float[Array, ""]
    decoherence_length: Float[Array, ""]
    n_steps: Int[Array, ""]
    energy_variance: Float[Array, ""]
    lp: Float[Array, ""]
    squared_jump: Float[Array, ""]


class MCLMCWarmup(NamedTuple):
    """Position, momentum and gradient, and what has been tuned so far."""

    state: IntegratorState
    tuned: MCLMCAdaptationState


@dataclass(frozen=True)
class MCLMC:
    """A walk at constant speed whose direction follows the gradient, with some noise.

    Robnik, De Luca, Silverstein & Seljak (2023). There is no Metropolis correction: the
    draws are biased by the step size, which the tuning keeps at a given variance of the
    energy error per dimension, and no draw is ever rejected. Compare its posterior
    means with those of ``NUTS`` before trusting its tails. The tuning is BlackJAX's,
    run ``num_rounds`` times, each from where the last one ended.

    Attributes:
        num_steps_a_draw: Steps of the integrator between two draws that are kept.
        desired_energy_variance: Target squared energy error per dimension; smaller
            values have less bias.
        num_rounds: Rounds of the warm-up.

    Raises:
        ValueError: A value that is not positive.

    Example:
        >>> sampler = gp.mcmc.MCLMC(num_steps_a_draw=20)
    """

    num_steps_a_draw: int = 10
    desired_energy_variance: float = 5e-4
    num_rounds: int = 5

    def __post_init__(self):
        require_numbers(self)
        require_positive(
            self, "num_steps_a_draw", "desired_energy_variance", "num_rounds"
        )

    def init(self, key: Array, position: Any, logdensity_fn: Callable) -> MCLMCWarmup:
        """A random direction, and a step size for a standard normal distribution.

        Raises:
            ValueError: There is only one value, which has no directions.
        """
        ones: Any = unit_masses(position)
        if len(ones) < 2:
            raise ValueError(
                "MCLMC draws directions of at least two values, and only one is "
                "sampled here. NUTS takes one; with sample(coordinates='whitened'), "
                "or 'fitted', those of processes are sampled too."
            )
        state = blackjax.mclmc.init(position, logdensity_fn, key)
        length: Any = jnp.sqrt(jnp.sum(ones))
        return MCLMCWarmup(state, MCLMCAdaptationState(length, 0.25 * length, ones))

    def schedule(self, num_warmup: int) -> Int[Array, "num_rounds steps"]:
        """A row for each round, as long as the round has steps of the integrator."""
        num_rounds = min(self.num_rounds, num_warmup)
        num_steps = num_warmup * self.num_steps_a_draw // num_rounds
        return jnp.zeros((num_rounds, num_steps), int)

    def warmup_step(
        self, key: Array, warmup: MCLMCWarmup, logdensity_fn: Callable, entry: Any
    ) -> tuple[MCLMCWarmup, MCLMCInfo]:
        """A whole round: step size, then scales of the values, then length."""
        # The three parts, with a third of the second run again: 3 + 3 + 1 + 3.
        state, tuned, _ = blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=blackjax.mclmc.build_kernel(),
            num_steps=len(entry),
            state=warmup.state,
            rng_key=key,
            logdensity_fn=logdensity_fn,
            frac_tune1=0.3,
            frac_tune2=0.3,
            frac_tune3=0.3,
            desired_energy_var=self.desired_energy_variance,
            params=warmup.tuned,
        )
        tuned = jax.tree.map(
            lambda new, old: new.astype(old.dtype), tuned, warmup.tuned
        )
        return MCLMCWarmup(state, tuned), MCLMCInfo(
            diverging=~jnp.isfinite(state.logdensity),
            step_size=jnp.asarray(tuned.step_size),
            decoherence_length=jnp.asarray(tuned.L),
            n_steps=jnp.asarray(_GRADIENTS_A_STEP * len(entry)),
            energy_variance=jnp.full_like(tuned.L, self.desired_energy_variance),
            lp=jnp.asarray(state.logdensity),
            squared_jump=squared_distance(state.position, warmup.state.position),
        )

    def finish(self, warmup: MCLMCWarmup):
        """State and tuning."""
        return warmup.state, warmup.tuned

    def step(
        self,
        key: Array,
        state: IntegratorState,
        logdensity_fn: Callable,
        tuned: MCLMCAdaptationState,
    ) -> tuple[IntegratorState, MCLMCInfo]:
        """As many steps of the integrator as there are between two draws."""
        kernel = blackjax.mclmc.build_kernel()

        def one(state, key):
            state, info = kernel(
                key,
                state,
                logdensity_fn,
                tuned.inverse_mass_matrix,
                tuned.L,
                tuned.step_size,
            )
            return state, (info.energy_change, info.nonans)

        keys = jax.random.split(key, self.num_steps_a_draw)
        new, (energy_changes, is_finite) = jax.lax.scan(one, state, keys)
        return new, MCLMCInfo(
            diverging=~jnp.all(is_finite),
            step_size=jnp.asarray(tuned.step_size),
            decoherence_length=jnp.asarray(tuned.L),
            n_steps=jnp.asarray(_GRADIENTS_A_STEP * self.num_steps_a_draw),
            energy_variance=jnp.mean(energy_changes**2) / pytree_size(state.position),
            lp=jnp.asarray(new.logdensity),
            squared_jump=squared_distance(new.position, state.position),
        )
