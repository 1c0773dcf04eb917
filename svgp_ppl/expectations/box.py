"""log E g(e) for two or three standard normals e: a tensor grid on the box of the mass.

The integrand may have several modes and ridges. Its bounding box is found by trying
ever smaller ones; in the last, the trapezoidal rule has nothing to cut off at the ends,
and is as exact as its spacing resolves the integrand.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array

__all__ = ["log_average_on_box"]

# Half-width of the first box in standard deviations: a datum that is further out, with
# a log density below −128, is cut off.
_REACH = 16.0
# Values this many nats below the highest one are left out: 3e-10 of it, and 3e-5 of its
# integral at most, were the rest of the box a hundred thousand times as large.
_DEPTH = 22.0
_NUM_LOOKS = 3
# Nodes for each component by the number of components: to search, and to integrate.
# With 41 to search, the ends of a ridge a tenth of a standard deviation wide fell
# between them: 0.02 nats were outside the box.
_TO_LOOK = {2: 81, 3: 17}
_TO_INTEGRATE = {2: 192, 3: 40}


def log_average_on_box(log_function: Callable, like: Array) -> Array:
    """log ∫ N(e; 0, I) exp(log_function(e)) de at each datum, [N] or [K, N].

    Args:
        log_function: e [.., N, Q] -> [.., N], with leading axes of nodes.
        like: An array of the shape [N, Q] or [K, N, Q] and the dtype of e.
    """
    width = like.shape[-1]

    def objective(e):
        squares = jnp.sum(jnp.square(e), axis=-1)
        return log_function(e) - 0.5 * (squares + width * jnp.log(2.0 * jnp.pi))

    low, high = jnp.full_like(like, -_REACH), jnp.full_like(like, _REACH)
    for _ in range(_NUM_LOOKS):
        low, high = jax.lax.stop_gradient(_smaller(objective, low, high))
    ticks = _ticks(low, high, _TO_INTEGRATE[width])

    @jax.checkpoint
    def add(total, first):
        others = [ticks[..., q] for q in range(1, width)]
        values = objective(_tensor([first[None], *others]))
        return jnp.logaddexp(total, logsumexp(values, axis=tuple(range(width)))), None

    start = jnp.full(like.shape[:-1], -jnp.inf, like.dtype)
    # The first slice separately: logaddexp has no derivative at two infinities.
    start, _ = add(jnp.full_like(start, jnp.finfo(like.dtype).min), ticks[0, ..., 0])
    total, _ = jax.lax.scan(add, start, ticks[1:, ..., 0])
    return total + jnp.sum(jnp.log((high - low) / (len(ticks) - 1)), axis=-1)


def _ticks(low: Array, high: Array, num: int) -> Array:
    """Evenly spaced on each side of the box, [num, .., N, Q]."""
    share = jnp.linspace(0.0, 1.0, num, dtype=low.dtype)
    return low + (high - low) * share.reshape(-1, *(1,) * low.ndim)


def _tensor(sides: list[Array]) -> Array:
    """The tensor grid of Q sides [num_q, .., N]: [num_1, .., num_Q, .., N, Q]."""
    width, data = len(sides), sides[0].shape[1:]
    spread = [
        side.reshape(*(len(side) if r == q else 1 for r in range(width)), *data)
        for q, side in enumerate(sides)
    ]
    return jnp.stack(jnp.broadcast_arrays(*spread), axis=-1)


def _smaller(objective: Callable, low: Array, high: Array) -> tuple[Array, Array]:
    """The part of a box in which the integrand matters, with a cell on either side."""
    width = low.shape[-1]
    ticks = _ticks(low, high, _TO_LOOK[width])
    profiles = _profiles(objective, ticks)
    floor = jnp.max(profiles[0], axis=0) - _DEPTH
    cell = (high - low) / (len(ticks) - 1)
    ends = []
    for q, profile in enumerate(profiles):
        side = ticks[..., q]
        inside = profile >= floor
        ends.append(
            (
                jnp.min(jnp.where(inside, side, jnp.inf), axis=0) - cell[..., q],
                jnp.max(jnp.where(inside, side, -jnp.inf), axis=0) + cell[..., q],
            )
        )
    first, last = (jnp.stack(end, axis=-1) for end in zip(*ends))
    return jnp.maximum(first, low), jnp.minimum(last, high)


def _profiles(objective: Callable, ticks: Array) -> list[Array]:
    """The highest value at each tick of each component, a list of Q [num, .., N]."""
    width = ticks.shape[-1]
    others = [ticks[..., q] for q in range(1, width)]

    def add(highest, first):
        values = objective(_tensor([first[None], *others]))
        values = jnp.nan_to_num(values, nan=-jnp.inf)
        here = [
            jnp.max(values, axis=tuple(r for r in range(width) if r != q))
            for q in range(width)
        ]
        return list(map(jnp.maximum, highest, here[1:])), here[0][0]

    start = [jnp.full_like(side, -jnp.inf) for side in others]
    highest, first = jax.lax.scan(add, start, ticks[..., 0])
    return [first, *highest]
