"""The No-U-Turn sampler with Stan's warm-up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from svgp_ppl.mcmc.samplers.blackjax_parts import (
    DualAveragingAdaptationState,
    HMCState,
    MetricCore,
    build_schedule,
    dual_averaging_adaptation,
    lookup_recipe,
    pytree_size,
)
from svgp_ppl.mcmc.samplers.metrics import dense_metric, with_shrunk_correlations
from svgp_ppl.mcmc.samplers.sampler import (
    StepsThenAdapts,
    require_numbers,
    require_positive,
)

__all__ = ["NUTS", "NUTSInfo", "NUTSTuned", "NUTSWarmup"]


class NUTSInfo(NamedTuple):
    """Statistics of one draw, by their ArviZ names.

    Attributes:
        diverging: Whether the energy left the divergence threshold, or was NaN.
        step_size: Leapfrog step size.
        tree_depth: Doublings of the trajectory.
        n_steps: Leapfrog steps, each one gradient evaluation.
        energy: Hamiltonian of the draw.
        acceptance_rate: Mean Metropolis acceptance probability along the trajectory.
        lp: Log density of the draw.
    """

    diverging: Bool[Array, ""]
    step_size: Float[Array, ""]
    tree_depth: Int[Array, ""]
    n_steps: Int[Array, ""]
    energy: Float[Array, ""]
    acceptance_rate: Float[Array, ""]
    lp: Float[Array, ""]


class NUTSTuned(NamedTuple):
    """Step size, and the inverse mass matrix ([D] when diagonal, [D, D] when dense)."""

    step_size: Float[Array, ""]
    inverse_mass_matrix: Float[Array, "D"] | Float[Array, "D D"]


class NUTSWarmup(NamedTuple):
    """Position with its gradient, dual averaging of the step size, running moments."""

    state: HMCState
    step_size: DualAveragingAdaptationState
    metric: Any  # BlackJAX keeps its type private to the metric core
    tuned: NUTSTuned  # in force; computed again elsewhere it differs in the last bit


@dataclass(frozen=True)
class NUTS(StepsThenAdapts):
    """Draw the next position from a trajectory that doubles until it turns back.

    Hoffman & Gelman (2014), with multinomial draws along the trajectory (Betancourt,
    2017). The warm-up is Stan's: a fast interval for the step size, slow windows that
    double in length and end with a new metric, a last fast interval; the step size
    follows dual averaging throughout. A NaN log density counts as infinite energy: the
    trajectory stops, the draw is marked as diverging and the point is never accepted.

    Attributes:
        metric: Shape of the mass matrix: ``"dense"`` pays off for a few dozen strongly
            correlated dimensions. Its correlations are shrunk (Chen et al. 2010).
        target_acceptance_rate: Higher values take smaller steps; raise it towards 1
            when draws diverge.
        max_num_doublings: Longest trajectory, 2^max_num_doublings steps.
        initial_step_size: Where dual averaging starts.
        divergence_threshold: Loss of energy that counts as a divergence.

    Example:
        >>> sampler = gp.mcmc.NUTS(metric="dense", target_acceptance_rate=0.9)
    """

    metric: Literal["diagonal", "dense"] = "diagonal"
    target_acceptance_rate: float = 0.8
    max_num_doublings: int = 10  # as in Stan: 1,023 gradients at most
    initial_step_size: float = 1.0
    divergence_threshold: float = 1000.0  # as in Stan

    def __post_init__(self):
        if self.metric not in ("diagonal", "dense"):
            raise ValueError(
                f'metric must be "diagonal" or "dense"; got {self.metric!r}.'
            )
        require_numbers(self)
        require_positive(self, "initial_step_size", "divergence_threshold")
        if self.max_num_doublings < 1:
            raise ValueError(
                f"max_num_doublings must be at least 1; got {self.max_num_doublings}."
            )
        if not 0 < self.target_acceptance_rate < 1:
            raise ValueError(
                "target_acceptance_rate must lie strictly between 0 and 1 (0.8 is "
                f"usual, 0.95 cautious); got {self.target_acceptance_rate}."
            )

    # BlackJAX's window_adaptation runs all steps in one scan, which can neither show
    # progress nor be interrupted: here its pieces are used and only the loop is ours.

    def init(self, key: Array, position: Any, logdensity_fn: Callable) -> NUTSWarmup:
        """State of the warm-up: the identity metric and the initial step size."""
        del key
        start, _, _ = dual_averaging_adaptation(self.target_acceptance_rate)
        step_size = start(self.initial_step_size)
        metric = self._metric_core().init(pytree_size(position))
        state = blackjax.nuts.init(position, logdensity_fn)
        return NUTSWarmup(state, step_size, metric, _in_force(step_size, metric))

    def schedule(self, num_warmup: int) -> Int[Array, "num_warmup 2"]:
        """Stan's windows: whether a step is slow, whether it ends a slow window."""
        return jnp.asarray(build_schedule(num_warmup))

    def current(self, warmup: NUTSWarmup) -> tuple[HMCState, NUTSTuned]:
        """Position, and the step size of dual averaging with the last metric."""
        return warmup.state, warmup.tuned

    def adapt(
        self,
        warmup: NUTSWarmup,
        state: HMCState,
        info: NUTSInfo,
        entry: Int[Array, "2"],
    ) -> NUTSWarmup:
        """The step size and, in slow windows, the moments of the positions."""
        is_slow, ends_window = entry
        core = self._metric_core()
        start, update, average = dual_averaging_adaptation(self.target_acceptance_rate)
        step_size = update(warmup.step_size, info.acceptance_rate)
        metric = jax.lax.cond(
            is_slow,
            lambda: core.update(warmup.metric, state.position, state.logdensity_grad),
            lambda: warmup.metric,
        )
        # The end of a window: a new metric, and dual averaging restarts from its mean.
        step_size, metric = jax.lax.cond(
            ends_window,
            lambda: (start(average(step_size)), core.final(metric)),
            lambda: (step_size, metric),
        )
        return NUTSWarmup(state, step_size, metric, _in_force(step_size, metric))

    def finish(self, warmup: NUTSWarmup) -> tuple[HMCState, NUTSTuned]:
        """Position, and the averaged step size with the last metric."""
        step_size = warmup.step_size
        # Dual averaging counts from 1; before its first update there is no average.
        has_average = step_size.step > 1
        log_step_size = jnp.where(
            has_average, step_size.log_step_size_avg, step_size.log_step_size
        )
        matrix = warmup.metric.inverse_mass_matrix
        return warmup.state, NUTSTuned(jnp.exp(log_step_size), matrix)

    def step(
        self, key: Array, state: HMCState, logdensity_fn: Callable, tuned: NUTSTuned
    ) -> tuple[HMCState, NUTSInfo]:
        """One transition."""
        inverse: Any = tuned.inverse_mass_matrix
        kernel = blackjax.nuts.build_kernel(
            divergence_threshold=self.divergence_threshold
        )
        state, info = kernel(
            key,
            state,
            logdensity_fn,
            tuned.step_size,
            inverse if inverse.ndim == 1 else dense_metric(inverse),
            self.max_num_doublings,
        )
        return state, NUTSInfo(
            diverging=info.is_divergent,
            step_size=tuned.step_size,
            tree_depth=info.num_trajectory_expansions,
            n_steps=info.num_integration_steps,
            energy=info.energy,
            acceptance_rate=info.acceptance_rate,
            lp=jnp.asarray(state.logdensity),
        )

    def _metric_core(self) -> MetricCore:
        if self.metric == "diagonal":
            return lookup_recipe("welford_diag").build_core()
        return with_shrunk_correlations(lookup_recipe("welford_dense").build_core())


def _in_force(step_size: Any, metric: Any) -> NUTSTuned:
    """The step size of dual averaging with the last metric."""
    return NUTSTuned(jnp.exp(step_size.log_step_size), metric.inverse_mass_matrix)
