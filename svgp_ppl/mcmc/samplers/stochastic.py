"""Langevin and Hamiltonian dynamics on gradients of minibatches. Biased.

There is no Metropolis correction, which would need all data. For a posterior that is
normal with precision λ in some direction of the scaled coordinates, and gradients with
noise of variance V there, the stationary variance can be written down (step ε, friction
α; solve E φ'² = E φ² for one step, and the same for the momentum):

    SGLD     Var = (1/λ) (1 + ε V/2)      / (1 − ε λ/2)
    SGHMC    Var = (1/λ) (1 + ε V/(2 α))  / (1 − ε² λ/(2 (2 − α ε)))

so noise inflates in proportion to ε, the integrator in proportion to ε or ε², and a
denominator that is not positive means that the chain runs away. Means have no bias
here; where the posterior is not normal they have one of the same order.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from svgp_ppl.mcmc.samplers.blackjax_parts import overdamped_langevin, sghmc_diffusion
from svgp_ppl.mcmc.samplers.control_variates import (
    StochasticInfo,
    StochasticState,
    StochasticTuned,
    StochasticWarmup,
    ends_of_rounds,
    first_tuned,
    flatten,
    gradient_fn_of,
    nothing_summed,
    rounds_step,
    walk,
)

__all__ = ["SGHMC", "SGLD"]


class _Dynamics(abc.ABC):
    """What both have in common: all but the step and what is carried along with θ."""

    takes_minibatches: ClassVar[bool] = True
    tunes_together: ClassVar[bool] = True
    num_rounds: int

    @abc.abstractmethod
    def carried_at(self, key: Array, flat: Array, gradient_fn: Callable) -> Array:
        """What a chain carries besides θ, at its start."""

    @abc.abstractmethod
    def move(self, key, flat, carried, gradient_fn, scale):
        """One step: θ, what is carried, the gradient, and whether all is finite."""

    def init(
        self, key: Array, position: Any, logdensity_fn: Callable
    ) -> StochasticWarmup:
        """The start, and scales that include the noise of plain minibatches."""
        key_tuned, key_carried = jax.random.split(key)
        flat, density = flatten(position, logdensity_fn)
        tuned = first_tuned(key_tuned, flat, density, self)
        gradient_fn = gradient_fn_of(density, tuned, self)
        carried = self.carried_at(key_carried, flat, gradient_fn)
        return nothing_summed(StochasticState(position, carried), tuned)

    def schedule(self, num_warmup: int) -> Bool[Array, " num_warmup"]:
        """Whether a round ends at a step."""
        return ends_of_rounds(num_warmup, self.num_rounds)

    def warmup_step(
        self, key: Array, warmup: StochasticWarmup, logdensity_fn: Callable, entry: Any
    ) -> tuple[StochasticWarmup, StochasticInfo]:
        """The steps of a draw, then the end of a round where the schedule has one."""
        return rounds_step(self, key, warmup, logdensity_fn, entry)

    def finish(self, warmup: StochasticWarmup):
        """State and tuning."""
        return warmup.state, warmup.tuned

    def step(
        self,
        key: Array,
        state: StochasticState,
        logdensity_fn: Callable,
        tuned: StochasticTuned,
    ) -> tuple[StochasticState, StochasticInfo]:
        """The steps of a draw."""
        return walk(self, key, state, logdensity_fn, tuned)[:2]


@dataclass(frozen=True)
class SGLD(_Dynamics):
    """Biased: Langevin steps on gradients of minibatches, never rejected.

    Welling & Teh (2011), eq. 4, with a constant step in scaled coordinates,
    θ ← θ + ε d² g(θ) + √(2ε) d ξ. The relative excess of the variance is ε/2 times the
    precision of a direction (between 0 and the number of coordinates) plus the variance
    of the noise; above 2/ε the chain runs away. Halve the step and compare before
    trusting the draws. Start from a fit: the way from afar is long, and its coordinates
    make the precisions more alike. ``SGHMC`` allows longer steps.

    The warm-up has rounds, each as long as all before it. At the end of a round the
    centre of the control variates moves to the mean of its positions over all chains,
    with one pass over all data, and the scales are estimated anew.

    Attributes:
        step_size: ε, in units of the squared scale.
        num_steps_a_draw: Steps between two draws that are kept.
        control_variates: Whether to subtract the gradient at a centre; without it
            no step ever uses all data, and the noise is larger.
        num_rounds: Rounds of the warm-up.

    Raises:
        ValueError: A value outside its range.

    Example:
        >>> sampler = gp.mcmc.SGLD(step_size=0.01)
    """

    step_size: float = 0.02
    num_steps_a_draw: int = 10
    control_variates: bool = True
    num_rounds: int = 5

    def __post_init__(self):
        _require_valid(self)

    def carried_at(self, key: Array, flat: Array, gradient_fn: Callable) -> Array:
        """The gradient."""
        return gradient_fn(key, flat)

    def move(self, key, flat, carried, gradient_fn, scale):
        """One step: θ, its gradient, the gradient, and whether all is finite."""
        key_noise, key_batch = jax.random.split(key)
        moved: Any = overdamped_langevin()(
            key_noise, jnp.zeros_like(flat), scale * carried, self.step_size
        )
        proposed = flat + scale * moved
        gradient = gradient_fn(key_batch, proposed)
        finite = jnp.all(jnp.isfinite(proposed) & jnp.isfinite(gradient))
        flat = jnp.where(finite, proposed, flat)
        return flat, jnp.where(finite, gradient, carried), gradient, finite


@dataclass(frozen=True)
class SGHMC(_Dynamics):
    """Biased: Hamiltonian steps with friction on gradients of minibatches.

    Chen, Fox & Guestrin (2014), eq. 13 and 15, with a momentum that is never drawn anew
    and a new minibatch for each step: r in scaled coordinates,
    θ ← θ + ε d r, then r ← (1 − ε α) r + ε d g(θ) + √(2 α ε) ξ. The relative excess of
    the variance is ε/(2α) times that of the noise, plus ε²/4 times the precision of a
    direction (between 0 and the number of coordinates); above about 4/ε² the chain runs
    away. Halve the step and compare before trusting the draws. Start from a fit: the
    way from afar is long, and its coordinates make the precisions more alike. The
    warm-up has rounds as in ``SGLD``.

    Attributes:
        step_size: ε, in units of the scale.
        friction: α; the momentum is forgotten after some 1/(α ε) steps.
        num_steps_a_draw: Steps between two draws that are kept.
        control_variates: Whether to subtract the gradient at a centre; without it
            no step ever uses all data, and the noise is larger.
        num_rounds: Rounds of the warm-up.

    Raises:
        ValueError: A value outside its range.

    Example:
        >>> sampler = gp.mcmc.SGHMC(step_size=0.05)
    """

    step_size: float = 0.1
    friction: float = 1.0
    num_steps_a_draw: int = 10
    control_variates: bool = True
    num_rounds: int = 5

    def __post_init__(self):
        _require_valid(self)
        if not 0 < self.friction * self.step_size <= 1:
            raise ValueError(
                "friction must be positive and at most 1 / step_size, and is "
                f"{self.friction} with step_size={self.step_size}."
            )

    def carried_at(self, key: Array, flat: Array, gradient_fn: Callable) -> Array:
        """A random momentum."""
        del gradient_fn
        return jax.random.normal(key, flat.shape, flat.dtype)

    def move(self, key, flat, carried, gradient_fn, scale):
        """One step: θ, momentum, the gradient, and whether all is finite."""
        key_noise, key_batch = jax.random.split(key)
        proposed = flat + scale * self.step_size * carried
        # The gradient where the step ends: symplectic, and stable without friction.
        gradient = gradient_fn(key_batch, proposed)
        stepped: Any = sghmc_diffusion(self.friction)(
            key_noise,
            jnp.zeros_like(flat),
            carried,
            scale * gradient,
            self.step_size,
        )
        momentum = stepped[1]
        finite = jnp.all(jnp.isfinite(proposed) & jnp.isfinite(momentum))
        flat = jnp.where(finite, proposed, flat)
        return flat, jnp.where(finite, momentum, -carried), gradient, finite


def _require_valid(sampler: Any) -> None:
    if not 0 < sampler.step_size < 2:
        raise ValueError(
            "step_size must lie strictly between 0 and 2, where the dynamics are "
            f"stable at best, and is {sampler.step_size}."
        )
    for name in ("num_steps_a_draw", "num_rounds"):
        if not isinstance(getattr(sampler, name), int) or getattr(sampler, name) < 1:
            raise ValueError(
                f"{name} must be a positive integer, and is {getattr(sampler, name)}."
            )
