"""Hamiltonian Monte Carlo with random lengths, tuned by Bayesian optimisation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from svgp_ppl.mcmc.samplers.blackjax_parts import DynamicHMCState
from svgp_ppl.mcmc.samplers.sampler import AdaptsOnHost, HostAdaptation, require_numbers
from svgp_ppl.mcmc.samplers.tuning import (
    jump_for_steps,
    log_grid,
    middle,
    require_bounds,
    rounds,
    searching,
    step_grid,
)

__all__ = [
    "HMC",
    "HMCInfo",
    "HMCTuned",
    "HMCWarmup",
    "hmc_info",
    "hmc_step",
    "squared_distance",
    "trajectory",
    "unit_masses",
]


class HMCInfo(NamedTuple):
    """Statistics of one draw, by their ArviZ names.

    Attributes:
        diverging: Whether the energy left the divergence threshold, or was NaN.
        step_size: Leapfrog step size.
        max_steps: Largest number of leapfrog steps, L_max.
        n_steps: Leapfrog steps, each one gradient evaluation.
        energy: Hamiltonian of the proposal.
        acceptance_rate: Metropolis acceptance probability.
        lp: Log density of the draw.
        squared_jump: ‖θ_{t+1} − θ_t‖² over all unconstrained values.
    """

    diverging: Bool[Array, ""]
    step_size: Float[Array, ""]
    max_steps: Int[Array, ""]
    n_steps: Int[Array, ""]
    energy: Float[Array, ""]
    acceptance_rate: Float[Array, ""]
    lp: Float[Array, ""]
    squared_jump: Float[Array, ""]


class HMCTuned(NamedTuple):
    """Step size ε, and the largest number of steps L_max."""

    step_size: Float[Array, ""]
    max_steps: Int[Array, ""]


class HMCWarmup(NamedTuple):
    """Position with its gradient, and the tuning of this round."""

    state: DynamicHMCState
    tuned: HMCTuned


@dataclass(frozen=True)
class HMC(AdaptsOnHost):
    """L leapfrog steps, L uniform on 1, …, L_max and new at each draw; unit masses.

    The sampler of Hensman et al. (2015): whitening is the metric. The warm-up is
    ``num_rounds`` rounds (30 of 30 draws in the paper: ``num_warmup=900``); in each the
    chain runs with another (ε, L_max), chosen by Bayesian optimisation of
    log(1 + ESJD/√L_max) for this chain alone. Chains with equal L_max take the same
    number of steps at a draw, so that chains side by side rarely wait.

    Attributes:
        step_size_bounds: Smallest and largest ε; equal ones fix it.
        max_steps_bounds: Smallest and largest L_max; equal ones fix it.
        num_rounds: Rounds of the warm-up.
        divergence_threshold: Loss of energy that counts as a divergence.

    Raises:
        ValueError: Bounds in the wrong order, or not positive.

    Example:
        >>> sampler = gp.mcmc.HMC(
        ...     step_size_bounds=(0.01, 0.3), max_steps_bounds=(20, 20)
        ... )
    """

    step_size_bounds: tuple[float, float] = (1e-3, 1.0)
    max_steps_bounds: tuple[int, int] = (2, 40)
    num_rounds: int = 30
    divergence_threshold: float = 1000.0

    def __post_init__(self):
        require_numbers(self)
        require_bounds("step_size_bounds", self.step_size_bounds)
        require_bounds("max_steps_bounds", self.max_steps_bounds)
        if self.num_rounds < 1:
            raise ValueError(f"num_rounds must be at least 1; got {self.num_rounds}.")

    def init(self, key: Array, position: Any, logdensity_fn: Callable) -> HMCWarmup:
        """State of the warm-up, with the tuning from the middle of the bounds."""
        del key
        state = blackjax.dynamic_hmc.init(position, logdensity_fn, jnp.zeros((), int))
        dtype = jnp.result_type(state.logdensity)
        return HMCWarmup(state, as_tuned(dtype, *middle(self._coordinates())))

    def host_adaptation(self, num_chains: int, num_warmup: int) -> HostAdaptation:
        """A search over (ε, L_max) for each chain."""
        length, number = rounds(num_warmup, self.num_rounds)
        update = searching(self._coordinates(), jump_for_steps, num_chains, number)

        def tuned(stats):
            return as_tuned(stats["step_size"].dtype, *update(stats))

        return HostAdaptation(length, tuned)

    def step(
        self,
        key: Array,
        state: Any,
        logdensity_fn: Callable,
        tuned: HMCTuned,
    ) -> tuple[DynamicHMCState, HMCInfo]:
        """One transition."""
        new, info = hmc_step(
            key, state, logdensity_fn, tuned, self.divergence_threshold
        )
        return new, hmc_info(info, state, new, *tuned)

    def _coordinates(self) -> list[np.ndarray]:
        return [log_grid(self.step_size_bounds), step_grid(self.max_steps_bounds)]


def hmc_step(key, state: Any, logdensity_fn, tuned: Any, divergence_threshold):
    """A trajectory of random length, unit masses: the new state and BlackJAX's info.

    ``tuned`` has a ``step_size`` and ``max_steps``.
    """
    tuning = tuned.step_size, tuned.max_steps
    return trajectory(
        key, state, logdensity_fn, *tuning, _num_steps, divergence_threshold
    )


def trajectory(
    key,
    state: Any,
    logdensity_fn,
    step_size,
    longest,
    num_steps: Callable,
    divergence_threshold,
):
    """``num_steps(draw, longest)`` leapfrog steps from new momenta, unit masses.

    The new state and BlackJAX's info.
    """
    kernel = blackjax.dynamic_hmc.build_kernel(
        divergence_threshold=divergence_threshold,
        next_random_arg_fn=lambda draw: draw + 1,
        integration_steps_fn=num_steps,
    )
    ones = unit_masses(state.position)
    return kernel(key, state, logdensity_fn, step_size, ones, (longest,))


def hmc_info(info: Any, old: Any, new: Any, step_size, max_steps) -> HMCInfo:
    """The statistics of a trajectory from one state to another."""
    return HMCInfo(
        diverging=info.is_divergent,
        step_size=step_size,
        max_steps=max_steps,
        n_steps=info.num_integration_steps,
        energy=info.energy,
        acceptance_rate=info.acceptance_rate,
        lp=jnp.asarray(new.logdensity),
        squared_jump=squared_distance(new.position, old.position),
    )


def _num_steps(draw, max_steps) -> Any:
    """Uniform on 1, …, max_steps, from the number of the draw: equal in all chains."""
    share = jax.random.uniform(jax.random.fold_in(jax.random.key(0), draw))
    return 1 + (share * max_steps).astype(int)  # a share is below 1, also rounded


def unit_masses(position: Any) -> Array:
    """The diagonal of the identity, in the size and precision of a position."""
    return jnp.ones_like(ravel_pytree(position)[0])


def squared_distance(a: Any, b: Any) -> Array:
    """‖a − b‖² over all leaves."""
    return jnp.sum(jnp.square(ravel_pytree(a)[0] - ravel_pytree(b)[0]))


def as_tuned(dtype, step_size, max_steps) -> HMCTuned:
    """Arrays in the precision of the chains."""
    return HMCTuned(jnp.asarray(step_size, dtype), jnp.asarray(max_steps, int))
