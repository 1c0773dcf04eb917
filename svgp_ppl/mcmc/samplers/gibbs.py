"""Whitened values given the rest, then the rest given the whitened values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from svgp_ppl.mcmc.samplers.blackjax_parts import (
    EllipSliceState,
    RWState,
    normal_proposal,
    pytree_size,
)
from svgp_ppl.mcmc.samplers.hmc import hmc_step, squared_distance
from svgp_ppl.mcmc.samplers.sampler import AdaptsOnHost, HostAdaptation, require_numbers
from svgp_ppl.mcmc.samplers.slice import slice_step
from svgp_ppl.mcmc.samplers.tuning import (
    jump_for_steps,
    log_grid,
    middle,
    require_bounds,
    rounds,
    searching,
    step_grid,
)

__all__ = ["Gibbs", "GibbsInfo", "GibbsState", "GibbsTuned", "GibbsWarmup"]


class GibbsInfo(NamedTuple):
    """Statistics of one iteration, by their ArviZ names.

    Attributes:
        diverging: Whether the trajectory of v left the divergence threshold.
        step_size: Leapfrog step size of v.
        max_steps: Largest number of leapfrog steps of v.
        scale: Standard deviation of the random walk of θ.
        n_steps: Gradient evaluations: those of the trajectory, and one for the new θ.
        num_evaluations: Evaluations of the log density without a gradient.
        acceptance_rate: Acceptance probability of v (1 for elliptical slices).
        acceptance_rate_rest: Acceptance probability of θ.
        lp: Log density of the draw.
        squared_jump: ‖v_{t+1} − v_t‖².
        squared_jump_rest: ‖θ_{t+1} − θ_t‖², unconstrained.
    """

    diverging: Bool[Array, ""]
    step_size: Float[Array, ""]
    max_steps: Int[Array, ""]
    scale: Float[Array, ""]
    n_steps: Int[Array, ""]
    num_evaluations: Int[Array, ""]
    acceptance_rate: Float[Array, ""]
    acceptance_rate_rest: Float[Array, ""]
    lp: Float[Array, ""]
    squared_jump: Float[Array, ""]
    squared_jump_rest: Float[Array, ""]


class GibbsState(NamedTuple):
    """Position, its log density, and the number of the draw."""

    position: Any
    logdensity: Float[Array, ""]
    draw: Int[Array, ""]


class GibbsTuned(NamedTuple):
    """Step size and largest number of steps for v, scale of the random walk of θ."""

    step_size: Float[Array, ""]
    max_steps: Int[Array, ""]
    scale: Float[Array, ""]


class GibbsWarmup(NamedTuple):
    """State, and the tuning of this round."""

    state: GibbsState
    tuned: GibbsTuned


@dataclass(frozen=True)
class Gibbs(AdaptsOnHost):
    """v given θ by HMC or elliptical slices, then θ given v by random-walk Metropolis.

    The comparator of Hensman et al. (2015): the whitened values v are ancillary, so the
    likelihood is recomputed at every proposed θ with v fixed (Murray & Adams 2010). The
    random walk adds N(0, scale²) to all unconstrained θ at once. Tuned in rounds like
    :class:`HMC`: (step size, L_max) by the jumps of v, the scale by those of θ, with
    two searches per chain side by side.

    Attributes:
        inner: ``"hmc"``, or ``"elliptical_slice"`` (which has no step size).
        step_size_bounds: Smallest and largest step size of v; equal ones fix it.
        max_steps_bounds: Smallest and largest L_max of v; equal ones fix it.
        scale_bounds: Smallest and largest scale of the walk; equal ones fix it.
        num_rounds: Rounds of the warm-up.
        divergence_threshold: Loss of energy that counts as a divergence.
        whitened: Names of the sites with prior N(0, I); ``gp.sample`` fills them in.

    Raises:
        ValueError: Bounds in the wrong order, or not positive; an unknown ``inner``.

    Example:
        >>> sampler = gp.mcmc.Gibbs(inner="elliptical_slice")
    """

    inner: Literal["hmc", "elliptical_slice"] = "hmc"
    step_size_bounds: tuple[float, float] = (1e-3, 1.0)
    max_steps_bounds: tuple[int, int] = (2, 40)
    scale_bounds: tuple[float, float] = (1e-2, 3.0)
    num_rounds: int = 30
    divergence_threshold: float = 1000.0
    whitened: tuple[str, ...] = ()

    def __post_init__(self):
        require_numbers(self)
        if self.inner not in ("hmc", "elliptical_slice"):
            raise ValueError(
                f"inner must be 'hmc' or 'elliptical_slice', and is {self.inner!r}."
            )
        for name in ("step_size_bounds", "max_steps_bounds", "scale_bounds"):
            require_bounds(name, getattr(self, name))
        if self.num_rounds < 1:
            raise ValueError(f"num_rounds must be at least 1; got {self.num_rounds}.")

    def init(self, key: Array, position: Any, logdensity_fn: Callable) -> GibbsWarmup:
        """State of the warm-up, with the tuning from the middle of the bounds."""
        del key
        whitened, rest = self._split(position)
        if not whitened or not rest:
            raise ValueError(
                "Gibbs alternates between whitened values and other latent sites, and "
                f"has {sorted(whitened)} and {sorted(rest)}: use HMC or NUTS."
            )
        state = GibbsState(position, logdensity_fn(position), jnp.zeros((), int))
        tuned = _as_tuned(state.logdensity.dtype, *middle(self._coordinates()))
        return GibbsWarmup(state, tuned)

    def host_adaptation(self, num_chains: int, num_warmup: int) -> HostAdaptation:
        """Two searches for each chain."""
        length, number = rounds(num_warmup, self.num_rounds)
        options = {"num_chains": num_chains, "num_rounds": number}
        *of_v, of_rest = self._coordinates()
        update_v = searching(of_v, jump_for_steps, **options)
        update_rest = searching(
            [of_rest],
            lambda stats: np.log1p(np.mean(stats["squared_jump_rest"], axis=0)),
            **options,
        )

        def tuned(stats):
            dtype = stats["step_size"].dtype
            return _as_tuned(dtype, *update_v(stats), *update_rest(stats))

        return HostAdaptation(length, tuned)

    def step(
        self, key: Array, state: GibbsState, logdensity_fn: Callable, tuned: GibbsTuned
    ) -> tuple[GibbsState, GibbsInfo]:
        """One iteration: p(v | θ, y) is left invariant, then p(θ | v, y)."""
        key_v, key_rest = jax.random.split(key)
        whitened, rest = self._split(state.position)
        v: Any
        logdensity: Any
        v, logdensity, moved = self._move_whitened(
            key_v, whitened, state, lambda v: logdensity_fn({**rest, **v}), tuned
        )
        walk = blackjax.additive_step_random_walk.build_kernel()
        size = pytree_size(rest)
        start: Any = RWState(rest, logdensity)
        new, walked = walk(
            key_rest,
            start,
            lambda rest: logdensity_fn({**rest, **v}),
            normal_proposal(jnp.full(size, tuned.scale)),
        )
        position = {**new.position, **v}
        return GibbsState(position, new.logdensity, state.draw + 1), GibbsInfo(
            step_size=tuned.step_size,
            max_steps=tuned.max_steps,
            scale=tuned.scale,
            num_evaluations=moved.pop("num_evaluations") + 1,
            acceptance_rate_rest=walked.acceptance_rate,
            lp=new.logdensity,
            squared_jump=squared_distance(v, whitened),
            squared_jump_rest=squared_distance(new.position, rest),
            **moved,
        )

    def _move_whitened(self, key, v: Any, state: GibbsState, logdensity_fn, tuned):
        """New v, its log density, and statistics of the move."""
        start: Any
        if self.inner == "elliptical_slice":
            start = EllipSliceState(v, state.logdensity)
            new, num_evaluations = slice_step(key, start, logdensity_fn)
            statistics = {
                "diverging": jnp.zeros((), bool),
                "n_steps": jnp.zeros((), int),
                "num_evaluations": num_evaluations,
                "acceptance_rate": jnp.ones_like(state.logdensity),
            }
            return new.position, new.logdensity, statistics
        # θ has moved since the last trajectory, so the gradient is out of date.
        start = blackjax.dynamic_hmc.init(v, logdensity_fn, state.draw)
        new, info = hmc_step(
            key, start, logdensity_fn, tuned, self.divergence_threshold
        )
        statistics = {
            "diverging": info.is_divergent,
            "n_steps": info.num_integration_steps + 1,
            "num_evaluations": jnp.zeros((), int),
            "acceptance_rate": info.acceptance_rate,
        }
        return new.position, new.logdensity, statistics

    def _split(self, position: dict) -> tuple[dict, dict]:
        """Whitened values, and the other sites."""
        whitened = {n: v for n, v in position.items() if n in self.whitened}
        return whitened, {n: v for n, v in position.items() if n not in whitened}

    def _coordinates(self) -> list[np.ndarray]:
        if self.inner == "elliptical_slice":
            return [np.ones(1), np.ones(1, int), log_grid(self.scale_bounds)]
        sizes, steps = log_grid(self.step_size_bounds), step_grid(self.max_steps_bounds)
        return [sizes, steps, log_grid(self.scale_bounds)]


def _as_tuned(dtype, step_size, max_steps, scale) -> GibbsTuned:
    """Arrays in the precision of the chains."""
    return GibbsTuned(
        jnp.asarray(step_size, dtype),
        jnp.asarray(max_steps, int),
        jnp.asarray(scale, dtype),
    )
