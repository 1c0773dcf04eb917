"""Elliptical slice sampling of whitened values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import blackjax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from svgp_ppl.mcmc.samplers.blackjax_parts import EllipSliceState
from svgp_ppl.mcmc.samplers.hmc import squared_distance, unit_masses
from svgp_ppl.mcmc.samplers.sampler import StepsThenAdapts

__all__ = ["EllipticalSlice", "EllipticalSliceInfo", "slice_step"]


class EllipticalSliceInfo(NamedTuple):
    """Statistics of one draw.

    Attributes:
        n_steps: Gradient evaluations: none.
        num_evaluations: Evaluations of the log density, at least one.
        lp: Log density of the draw.
        squared_jump: ‖v_{t+1} − v_t‖².
    """

    n_steps: Int[Array, ""]
    num_evaluations: Int[Array, ""]
    lp: Float[Array, ""]
    squared_jump: Float[Array, ""]


@dataclass(frozen=True)
class EllipticalSlice(StepsThenAdapts):
    """A point of an ellipse through v and a draw of N(0, I); nothing to tune.

    Murray, Adams & MacKay (2010): the prior of the whitened values is N(0, I), and the
    rest of the log density is the likelihood. For models whose latent sites are all
    whitened values; if there are others, use ``Gibbs(inner="elliptical_slice")``.

    Attributes:
        whitened: Names of the sites with prior N(0, I); ``gp.sample`` fills them in.

    Example:
        >>> sampler = gp.mcmc.EllipticalSlice()
    """

    whitened: tuple[str, ...] = ()

    def init(self, key: Array, position: Any, logdensity_fn: Callable):
        """State at a position."""
        del key
        others = sorted(set(position) - set(self.whitened))
        if others:
            raise ValueError(
                f"EllipticalSlice moves whitened values only, and the model has the "
                f'latent site(s) {others} beside them: use Gibbs(inner="elliptical_'
                'slice"), or fix them.'
            )
        return EllipSliceState(position, logdensity_fn(position))

    def schedule(self, num_warmup: int) -> Int[Array, " num_warmup"]:
        """Steps without any tuning."""
        return jnp.zeros(num_warmup, int)

    def current(self, warmup: EllipSliceState) -> tuple[EllipSliceState, tuple]:
        """The state; nothing is tuned."""
        return warmup, ()

    def adapt(self, warmup: Any, state: Any, info: Any, entry: Any) -> Any:
        """The state, unchanged."""
        del warmup, info, entry
        return state

    def finish(self, warmup: EllipSliceState) -> tuple[EllipSliceState, tuple]:
        """The state, unchanged."""
        return self.current(warmup)

    def step(self, key, state: Any, logdensity_fn: Callable, tuned: Any):
        """One transition."""
        del tuned
        new, num_evaluations = slice_step(key, state, logdensity_fn)
        return new, EllipticalSliceInfo(
            n_steps=jnp.zeros((), int),
            num_evaluations=num_evaluations,
            lp=jnp.asarray(new.logdensity),
            squared_jump=squared_distance(new.position, state.position),
        )


def slice_step(key, state: Any, logdensity_fn: Callable):
    """New state (log densities, prior included) and the number of evaluations."""

    def half_square(v):
        return 0.5 * jnp.sum(jnp.square(ravel_pytree(v)[0]))

    def loglikelihood_fn(v):
        # log p(y, v) − log N(v; 0, I), up to a constant. NaN would end the search for
        # a point above the slice, and be accepted.
        value = logdensity_fn(v) + half_square(v)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    ones = unit_masses(state.position)
    kernel = blackjax.elliptical_slice.build_kernel(ones, jnp.zeros_like(ones))
    start = state.logdensity + half_square(state.position)
    new, info = kernel(key, EllipSliceState(state.position, start), loglikelihood_fn)
    logdensity: Any = new.logdensity
    logdensity = logdensity - half_square(new.position)
    return EllipSliceState(new.position, logdensity), info.subiter
