"""Moments of aᵀ v: the share that a belief has in a marginal."""

import math
from functools import singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from svgp_ppl.beliefs.joint import Block, Stacked
from svgp_ppl.linalg import matmul

__all__ = [
    "Projected",
    "full_gaussian",
    "full_scale_tril",
    "is_belief",
    "loc_and_scale",
    "outputs_first",
    "project",
]


class Projected(NamedTuple):
    """Moments of aᵀ v_p for every output p and datum n.

    ``mean`` is [P, N] and ``factor`` [P, R, N], so that the belief's covariance of two
    projections is Σ_r factor factor'; both with a leading axis K under a mixture.
    ``factor`` is None for a point. The axis R is private to each output, unless
    :func:`is_coupled`: then all outputs of all processes of the joint belief share it.
    """

    mean: Array
    factor: Array | None


@singledispatch
def project(belief, a: Float[Array, "M N"]) -> Projected:
    """Moments of aᵀ v under the belief; see :class:`Projected`."""
    raise ValueError(
        f"cannot marginalise a {type(belief).__name__} over whitened values. Expected "
        "a Delta, a Normal or MultivariateNormal (with to_event for several outputs), "
        "a Block, or a MixtureSameFamily of those."
    )


@singledispatch
def is_belief(belief) -> bool:
    """Whether :func:`project` knows this distribution (others have to be sampled)."""
    return False


def outputs_first(array: ArrayLike, event_shape: tuple, trailing: int) -> Array:
    """Insert the output axis P = 1 where the event shape is (M,)."""
    array = jnp.asarray(array)
    if len(event_shape) == 1:
        return jnp.expand_dims(array, array.ndim - trailing)
    return array


def _dot(v: Array, a: Array) -> Array:
    """Σ_m v[..., m] a[m, n]."""
    return matmul(v, a)


@is_belief.register
def _(belief: dist.Delta) -> bool:
    return True


@project.register
def _(belief: dist.Delta, a):
    v = jnp.asarray(belief.v)
    return Projected(_dot(outputs_first(v, belief.event_shape, 1), a), None)


@is_belief.register
def _(belief: dist.MultivariateNormal) -> bool:
    return True


@project.register
def _(belief: dist.MultivariateNormal, a):
    return _full(belief, belief.event_shape, a)


@is_belief.register
def _(belief: dist.Independent) -> bool:
    base = belief.base_dist
    return isinstance(base, dist.Normal | dist.MultivariateNormal | dist.Delta)


@project.register
def _(belief: dist.Independent, a):
    base: Any = belief.base_dist
    shape = belief.event_shape
    match base:
        case dist.Normal():
            loc, scale = loc_and_scale(belief)
            factor = outputs_first(scale, shape, 1)[..., None] * a
            return Projected(_dot(outputs_first(loc, shape, 1), a), factor)
        case dist.MultivariateNormal():
            return _full(base, shape, a)
        case dist.Delta():
            v = jnp.asarray(base.v)
            return Projected(_dot(outputs_first(v, shape, 1), a), None)
    return project(base, a)


def loc_and_scale(belief: Any) -> tuple[Array, Array]:
    """Of an Independent(Normal), each with the full shape."""
    base, shape = belief.base_dist, belief.shape()
    return jnp.broadcast_to(base.loc, shape), jnp.broadcast_to(base.scale, shape)


def full_scale_tril(belief: Any) -> Array:
    """The factor of a MultivariateNormal with its whole batch shape, [.., M, M]."""
    tril = jnp.asarray(belief.scale_tril)
    return jnp.broadcast_to(tril, (*belief.batch_shape, *tril.shape[-2:]))


def _full(belief: Any, event_shape: tuple, a) -> Projected:
    """Full covariance S Sᵀ for every output: the factor is Sᵀ a."""
    loc = outputs_first(belief.loc, event_shape, 1)
    scale_tril = outputs_first(full_scale_tril(belief), event_shape, 2)
    return Projected(_dot(loc, a), _dot(jnp.swapaxes(scale_tril, -1, -2), a))


@is_belief.register
def _(belief: dist.MixtureSameFamily) -> bool:
    return is_belief(belief.component_distribution)


@project.register
def _(belief: dist.MixtureSameFamily, a):
    return project(belief.component_distribution, a)


@is_belief.register
def _(belief: Stacked) -> bool:
    return all(map(is_belief, belief.parts.values()))


@is_belief.register
def _(belief: Block) -> bool:
    return is_belief(belief.joint)


@project.register
def _(belief: Block, a):
    return _project_rows(belief.joint, belief, a)


@singledispatch
def _project_rows(joint, block: Block, a) -> Projected:
    """The moments of one block's values under the joint belief."""
    raise ValueError(
        f"cannot take the share of one process in a {type(joint).__name__}. Expected "
        "a MultivariateNormal, a Normal with to_event(1), or a MixtureSameFamily of "
        "those."
    )


def _rows(array: ArrayLike, block: Block, axis: int) -> Array:
    """The rows of one block, reshaped to [P, M] where ``axis`` was."""
    array = jnp.asarray(array)
    size = block.value.size
    part = jax.lax.slice_in_dim(array, block.start, block.start + size, axis=axis)
    axis = axis % array.ndim
    outputs = block.event_shape if len(block.event_shape) == 2 else (1, size)
    return part.reshape(*part.shape[:axis], *outputs, *part.shape[axis + 1 :])


@_project_rows.register
def _(joint: dist.MultivariateNormal, block, a):
    loc = _rows(jnp.asarray(joint.loc), block, -1)
    rows = _rows(jnp.asarray(joint.scale_tril), block, -2)  # [P, M, ΣM]
    return Projected(_dot(loc, a), _dot(jnp.swapaxes(rows, -1, -2), a))


@_project_rows.register
def _(joint: dist.Independent, block, a):
    loc, scale = (_rows(each, block, -1) for each in loc_and_scale(joint))
    return Projected(_dot(loc, a), scale[..., None] * a)


@_project_rows.register
def _(joint: Stacked, block, a):
    start = 0
    for part in joint.parts.values():
        if start == block.start:
            return project(part, a)
        start += math.prod(part.event_shape)
    raise AssertionError(f"no part of {joint} begins at {block.start}")


@_project_rows.register
def _(joint: dist.MixtureSameFamily, block, a):
    return _project_rows(joint.component_distribution, block, a)


def full_gaussian(belief: Any) -> tuple[Array, Array] | None:
    """(m [P, M], S [P, M, M]) of a Gaussian with full covariance an output, or None."""
    base: Any = belief.base_dist if isinstance(belief, dist.Independent) else belief
    if not isinstance(base, dist.MultivariateNormal) or belief.batch_shape:
        return None
    shape, tril = belief.event_shape, full_scale_tril(base)
    return outputs_first(base.loc, shape, 1), outputs_first(tril, shape, 2)
