"""Gradients from minibatches with control variates, scales, and rounds that tune them.

The noise of a minibatch B is that of control variates (Baker, Fearnhead, Fox & Nemeth
2019, eq. 9): with a centre θ̂ near the mode, and the same B in both places,

    g(θ) = ∇ log p̃(θ̂; all data) + ∇ log p̃(θ; B) − ∇ log p̃(θ̂; B),

unbiased, exact at the centre, and with a variance in proportion to ‖θ − θ̂‖².

The coordinates are φ_i = θ_i / d_i with 1/d_i² = E g_i² (after Li, Chen, Carlson &
Carin 2016, section 3, who keep adapting; here d is frozen after the warm-up, so that
their correction term Γ vanishes). Under the posterior E ∇ log p̃ ∇ log p̃ᵀ is the
expected precision matrix, so without noise d_i is a standard deviation given the other
coordinates, and the precision in φ has a unit diagonal and no eigenvalue above the
number of coordinates. Noise makes E g² larger and d smaller, which is the safe side.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from svgp_ppl.mcmc.samplers.hmc import squared_distance
from svgp_ppl.mcmc.samplers.sampler import CHAINS

__all__ = [
    "StochasticInfo",
    "StochasticState",
    "StochasticTuned",
    "StochasticWarmup",
    "ends_of_rounds",
    "first_tuned",
    "flatten",
    "gradient_fn_of",
    "nothing_summed",
    "rounds_step",
    "walk",
]

# Minibatches from which the noise is estimated: its variance to a factor of two, a mean
# over all coordinates and chains much better.
_NUM_KEYS = 8
# Most that a round of the warm-up may multiply d² by: where a chain has hardly moved,
# E g² is too small.
_LARGEST_GROWTH = 10.0
# Precision of the prior of whitened values, for a gradient that vanishes at the start.
_FIRST_PRECISION = 1.0
# A standard deviation above 30 means a gradient that happened to vanish.
_SMALLEST_PRECISION = 1e-3
# E (d g)² is 1; a thousand means a chain that runs away.
_LARGEST_GRADIENT = 1e3


class StochasticInfo(NamedTuple):
    """Statistics of one draw.

    Attributes:
        diverging: Whether a step met a value that is not finite, and was undone; or
            scaled gradients have exceeded all bounds.
        step_size: Step size, in units of the scaled coordinates.
        n_steps: Gradients of minibatches; a control variate counts as a second one.
        squared_gradient: Mean of (d_i g_i)² over the coordinates, about 1.
        gradient_noise: V, the part of it due to noise, at the end of the warm-up.
        squared_jump: ‖θ_{t+1} − θ_t‖².
    """

    diverging: Bool[Array, ""]
    step_size: Float[Array, ""]
    n_steps: Int[Array, ""]
    squared_gradient: Float[Array, ""]
    gradient_noise: Float[Array, ""]
    squared_jump: Float[Array, ""]


class StochasticTuned(NamedTuple):
    """What the warm-up finds, the same for all chains.

    Attributes:
        centre: θ̂ of the control variates.
        gradient: ∇ log p̃(θ̂) over all data.
        scale: d.
        gradient_noise: V, averaged over the coordinates.
    """

    centre: Float[Array, " P"]
    gradient: Float[Array, " P"]
    scale: Float[Array, " P"]
    gradient_noise: Float[Array, ""]


class StochasticState(NamedTuple):
    """Position, and its estimated gradient (SGLD) or the scaled momentum (SGHMC)."""

    position: Any
    carried: Float[Array, " P"]


class StochasticWarmup(NamedTuple):
    """A chain, its tuning so far, and sums since then.

    Attributes:
        state: The chain.
        tuned: Tuning from the last round.
        count: Steps since then.
        positions: Sum of θ over them.
        squares: Sum of g².
    """

    state: StochasticState
    tuned: StochasticTuned
    count: Float[Array, ""]
    positions: Float[Array, " P"]
    squares: Float[Array, " P"]


def flatten(position: Any, logdensity_fn: Callable) -> tuple[Array, Callable]:
    """θ [P], and the log density of such vectors."""
    flat, unflatten = ravel_pytree(position)
    return flat, lambda values, *key: logdensity_fn(unflatten(values), *key)


def gradient_fn_of(density: Callable, tuned: StochasticTuned, sampler: Any) -> Callable:
    """(key, θ) -> g(θ), with the minibatch of the key."""
    of_batch = jax.grad(density)

    def with_centre(key, flat):
        # Side by side, so that the rows of the key are drawn and gathered once.
        both = jnp.stack([flat, tuned.centre])
        here, there = jax.vmap(of_batch, (0, None))(both, key)
        return tuned.gradient + (here - there)

    if sampler.control_variates:
        return with_centre
    return lambda key, flat: of_batch(flat, key)


def first_tuned(
    key: Array, flat: Array, density: Callable, sampler: Any
) -> StochasticTuned:
    """Centre where the first chain starts, whose log density is known to be finite."""
    keys = jax.random.split(key, _NUM_KEYS)
    plain = jax.lax.map(partial(jax.grad(density), flat), keys)
    precision = jax.lax.pmean(jnp.mean(plain**2, 0), CHAINS)
    centre, gradient = jnp.zeros_like(flat), jnp.zeros_like(flat)
    if sampler.control_variates:
        centre = jax.lax.all_gather(flat, CHAINS)[0]
        gradient = jax.grad(density)(centre)
    scale = 1 / jnp.sqrt(precision + _FIRST_PRECISION)
    noise = jnp.mean(scale**2 * jnp.var(plain, axis=0, ddof=1))
    return StochasticTuned(centre, gradient, scale, jax.lax.pmean(noise, CHAINS))


def nothing_summed(state: StochasticState, tuned: StochasticTuned) -> StochasticWarmup:
    """The beginning of a round."""
    zeros = jnp.zeros_like(tuned.scale)
    return StochasticWarmup(state, tuned, zeros[0], zeros, zeros)


def ends_of_rounds(num_warmup: int, num_rounds: int) -> Bool[Array, " num_warmup"]:
    """True at the steps num_warmup/2^k, k < num_rounds."""
    ends = {num_warmup >> k for k in range(num_rounds)} - {0}
    return jnp.zeros(num_warmup, bool).at[jnp.asarray([*ends]) - 1].set(True)


def walk(sampler, key, state, logdensity_fn, tuned):
    """The steps of a draw: state, info, and what the warm-up sums over them."""
    flat, density = flatten(state.position, logdensity_fn)
    _, unflatten = ravel_pytree(state.position)
    gradient_fn = gradient_fn_of(density, tuned, sampler)

    def one(carry, key):
        flat, carried, gradient, finite = sampler.move(
            key, *carry, gradient_fn, tuned.scale
        )
        seen = (flat, jnp.where(finite, gradient**2, 0.0), finite)
        return (flat, carried), seen

    keys = jax.random.split(key, sampler.num_steps_a_draw)
    (last, carried), (flats, squares, finite) = jax.lax.scan(
        one, (flat, state.carried), keys
    )
    count = jnp.sum(finite).astype(flat.dtype)
    positions = jnp.sum(jnp.where(finite[:, None], flats, 0.0), axis=0)
    squares = jnp.sum(squares, axis=0)
    size = jnp.mean(tuned.scale**2 * squares) / jnp.maximum(count, 1)
    new = StochasticState(unflatten(last), carried)
    per_step = 2 if sampler.control_variates else 1
    return (
        new,
        StochasticInfo(
            diverging=~jnp.all(finite) | (size > _LARGEST_GRADIENT),
            step_size=jnp.full_like(size, sampler.step_size),
            n_steps=jnp.asarray(per_step * sampler.num_steps_a_draw),
            squared_gradient=size,
            gradient_noise=tuned.gradient_noise,
            squared_jump=squared_distance(new.position, state.position),
        ),
        (count, positions, squares),
    )


def rounds_step(
    sampler: Any, key: Array, warmup: StochasticWarmup, logdensity_fn: Callable, entry
) -> tuple[StochasticWarmup, StochasticInfo]:
    """The steps of a draw, and the end of a round where ``entry`` says so."""
    key_walk, key_noise = jax.random.split(key)
    tuned = warmup.tuned
    state, info, sums = walk(sampler, key_walk, warmup.state, logdensity_fn, tuned)
    old = (warmup.count, warmup.positions, warmup.squares)
    warmup = StochasticWarmup(state, tuned, *map(jnp.add, old, sums))

    def end_of_round(warmup):
        flat, density = flatten(warmup.state.position, logdensity_fn)
        tuned = _tuned_anew(warmup, density, sampler)
        gradient_fn = gradient_fn_of(density, tuned, sampler)
        keys = jax.random.split(key_noise, _NUM_KEYS)
        estimates = jax.lax.map(lambda key: gradient_fn(key, flat), keys)
        noise = jnp.mean(tuned.scale**2 * jnp.var(estimates, axis=0, ddof=1))
        tuned = tuned._replace(gradient_noise=jax.lax.pmean(noise, CHAINS))
        return nothing_summed(warmup.state, tuned)

    return jax.lax.cond(entry, end_of_round, lambda same: same, warmup), info


def _tuned_anew(
    warmup: StochasticWarmup, density: Callable, sampler: Any
) -> StochasticTuned:
    """Centre and scales from the positions and gradients of a round of all chains.

    The centre is the same in all chains, so all data are visited only once for it.
    """
    old = warmup.tuned
    count = jax.lax.psum(warmup.count, CHAINS)
    mean, squares = (
        jax.lax.psum(total, CHAINS) / jnp.maximum(count, 1)
        for total in (warmup.positions, warmup.squares)
    )
    scale = 1 / jnp.sqrt(squares + _SMALLEST_PRECISION)
    scale = jnp.minimum(scale, jnp.sqrt(_LARGEST_GROWTH) * old.scale)
    centre, gradient = old.centre, old.gradient
    if sampler.control_variates:
        found = jax.grad(density)(mean)
        usable = (count > 0) & jnp.all(jnp.isfinite(found))
        centre = jnp.where(usable, mean, centre)
        gradient = jnp.where(usable, found, gradient)
    # A chain that ran away has no scale.
    scale = jnp.where((count > 0) & jnp.isfinite(squares), scale, old.scale)
    return old._replace(centre=centre, gradient=gradient, scale=scale)
