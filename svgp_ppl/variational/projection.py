"""Moments of aᵀ v: the share that a q(v) has in a marginal."""

import math
from functools import singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from svgp_ppl.linalg import matmul
from svgp_ppl.variational.joint import Block, Stacked

__all__ = [
    "Projected",
    "can_marginalise",
    "full_gaussian",
    "full_scale_tril",
    "loc_and_scale",
    "outputs_first",
    "project",
    "simplified",
]


class Projected(NamedTuple):
    """Moments of aᵀ v_p for every output p and datum n.

    ``mean`` is [P, N] and ``factor`` [P, R, N], so that the q(v)'s covariance of two
    projections is Σ_r factor factor'; both with a leading axis K under a mixture.
    ``factor`` is None for a point. The axis R is private to each output, unless
    :func:`is_coupled`: then all outputs of all processes of the joint q(v) share it.
    """

    mean: Array
    factor: Array | None


@singledispatch
def project(qv, a: Float[Array, "M N"]) -> Projected:
    """Moments of aᵀ v under the q(v); see :class:`Projected`."""
    raise ValueError(
        f"cannot marginalise a {type(qv).__name__} over whitened values. Expected "
        "a Delta, a Normal or MultivariateNormal (with to_event for several outputs), "
        "a Block, or a MixtureSameFamily of those."
    )


@singledispatch
def can_marginalise(qv) -> bool:
    """Whether :func:`project` knows this distribution (others have to be sampled)."""
    return False


def simplified(qv: Any, event_shape: tuple) -> Any:
    """The same distribution of v without ``expand``, its axes those of one event.

    ``Normal(m, s).expand([M]).to_event(1)`` and ``Normal(m, s)`` with m of shape [M]
    are N(m, diag s²) as much as ``Normal(m, s).to_event(1)`` is.

    Args:
        qv: What a guide has at the site of v.
        event_shape: Shape of v, [M] or [P, M].
    """
    base = qv.base_dist if isinstance(qv, dist.Independent) else qv
    if isinstance(base, dist.ExpandedDistribution):
        batch, base = base.batch_shape, base.base_dist
        base = _expanded(base, batch)
    elif base is qv and tuple(qv.event_shape) == tuple(event_shape):
        return qv
    if isinstance(qv, dist.Independent) and base is qv.base_dist:
        return qv
    if base.batch_shape + base.event_shape != tuple(event_shape):
        return qv
    return base.to_event(len(base.batch_shape)) if base.batch_shape else base


def _expanded(base: Any, batch: tuple) -> Any:
    """A Gaussian or a point whose parameters have the shape of a batch."""

    def widened(value: Any, event_dim: int) -> Array:
        value = jnp.asarray(value)
        event = value.shape[value.ndim - event_dim :]
        return jnp.broadcast_to(value, (*batch, *event))

    match base:
        case dist.Normal():
            return dist.Normal(widened(base.loc, 0), widened(base.scale, 0))
        case dist.MultivariateNormal():
            loc, tril = widened(base.loc, 1), widened(base.scale_tril, 2)
            return dist.MultivariateNormal(loc, scale_tril=tril)
        case dist.Delta():
            point = widened(base.v, base.event_dim)
            return dist.Delta(point, event_dim=base.event_dim)
    return base.expand(batch)


def outputs_first(array: ArrayLike, event_shape: tuple, trailing: int) -> Array:
    """Insert the output axis P = 1 where the event shape is (M,)."""
    array = jnp.asarray(array)
    if len(event_shape) == 1:
        return jnp.expand_dims(array, array.ndim - trailing)
    return array


def _dot(v: Array, a: Array) -> Array:
    """Σ_m v[..., m] a[m, n]."""
    return matmul(v, a)


@can_marginalise.register
def _(qv: dist.Delta) -> bool:
    return True


@project.register
def _(qv: dist.Delta, a):
    v = jnp.asarray(qv.v)
    return Projected(_dot(outputs_first(v, qv.event_shape, 1), a), None)


@can_marginalise.register
def _(qv: dist.MultivariateNormal) -> bool:
    return True


@project.register
def _(qv: dist.MultivariateNormal, a):
    return _full(qv, qv.event_shape, a)


@can_marginalise.register
def _(qv: dist.Independent) -> bool:
    base = qv.base_dist
    return isinstance(base, dist.Normal | dist.MultivariateNormal | dist.Delta)


@project.register
def _(qv: dist.Independent, a):
    base: Any = qv.base_dist
    shape = qv.event_shape
    match base:
        case dist.Normal():
            loc, scale = loc_and_scale(qv)
            factor = outputs_first(scale, shape, 1)[..., None] * a
            return Projected(_dot(outputs_first(loc, shape, 1), a), factor)
        case dist.MultivariateNormal():
            return _full(base, shape, a)
        case dist.Delta():
            v = jnp.asarray(base.v)
            return Projected(_dot(outputs_first(v, shape, 1), a), None)
    return project(base, a)


def loc_and_scale(qv: Any) -> tuple[Array, Array]:
    """Of an Independent(Normal), each with the full shape."""
    base, shape = qv.base_dist, qv.shape()
    return jnp.broadcast_to(base.loc, shape), jnp.broadcast_to(base.scale, shape)


def full_scale_tril(qv: Any) -> Array:
    """The factor of a MultivariateNormal with its whole batch shape, [.., M, M]."""
    tril = jnp.asarray(qv.scale_tril)
    return jnp.broadcast_to(tril, (*qv.batch_shape, *tril.shape[-2:]))


def _full(qv: Any, event_shape: tuple, a) -> Projected:
    """Full covariance S Sᵀ for every output: the factor is Sᵀ a."""
    loc = outputs_first(qv.loc, event_shape, 1)
    scale_tril = outputs_first(full_scale_tril(qv), event_shape, 2)
    return Projected(_dot(loc, a), _dot(jnp.swapaxes(scale_tril, -1, -2), a))


@can_marginalise.register
def _(qv: dist.MixtureSameFamily) -> bool:
    return can_marginalise(qv.component_distribution)


@project.register
def _(qv: dist.MixtureSameFamily, a):
    return project(qv.component_distribution, a)


@can_marginalise.register
def _(qv: Stacked) -> bool:
    return all(map(can_marginalise, qv.parts.values()))


@can_marginalise.register
def _(qv: Block) -> bool:
    return can_marginalise(qv.joint)


@project.register
def _(qv: Block, a):
    return _project_rows(qv.joint, qv, a)


@singledispatch
def _project_rows(joint, block: Block, a) -> Projected:
    """The moments of one block's values under the joint q(v)."""
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


def full_gaussian(qv: Any) -> tuple[Array, Array] | None:
    """(m, S), [P, M] and [P, M, M], of a Gaussian with full covariance an output.

    Both with a leading axis K under a mixture of such; None for any other q(v).
    """
    if isinstance(qv, dist.MixtureSameFamily):
        qv = qv.component_distribution
    shape = qv.event_shape
    base: Any = qv.base_dist if isinstance(qv, dist.Independent) else qv
    if not isinstance(base, dist.MultivariateNormal):
        return None
    return outputs_first(base.loc, shape, 1), outputs_first(
        full_scale_tril(base), shape, 2
    )
