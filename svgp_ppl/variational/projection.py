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
    "loc_and_scale",
    "loc_and_scale_tril",
    "outputs_first",
    "project",
    "project_outputs",
    "simplified",
]


class Projected(NamedTuple):
    """Moments of aᵀ v: the last axis of v, M, becomes the N data.

    ``mean`` is [.., N] and ``factor`` [.., R, N], so that the q(v)'s covariance of two
    projections is Σ_r factor factor'; ``factor`` is None for a point. The leading axes
    are those of v: the outputs [P], and before them the components [K] of a mixture.
    The axis R is private to each output, unless :func:`is_coupled`: then all outputs of
    all processes of the joint q(v) share it.
    """

    mean: Array
    factor: Array | None


@singledispatch
def project(qv, a: Float[Array, "M N"]) -> Projected:
    """Moments of aᵀ v under the q(v); see :class:`Projected`.

    The open function: a family of your own, any NumPyro distribution with Gaussian
    marginals, is marginalised once its class is registered here. It is written for
    event shape (M,), with whatever batch axes: several outputs (``to_event``), blocks
    of a joint q(v) and components of a mixture follow.

    Args:
        qv: The variational distribution, of shape [.., M].
        a: The projection L⁻¹ k(z, x).

    Raises:
        ValueError: The class is not registered.

    Example:
        >>> import svgp_ppl as gp
        >>> qv = dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3))
        >>> mean, factor = gp.variational.project(qv, jnp.ones((3, 5)))
        >>> mean.shape, factor.shape
        ((5,), (3, 5))
    """
    raise ValueError(
        f"cannot marginalise a {type(qv).__name__} over whitened values. Expected "
        "a Delta, a Normal or MultivariateNormal (with to_event for several outputs), "
        "a Block, or a MixtureSameFamily of those; a family of your own is registered "
        "with gp.variational.project.register."
    )


def project_outputs(qv: Any, a: Float[Array, "M N"]) -> Projected:
    """``project`` with an axis of outputs, P = 1 where the event shape is (M,).

    Returns:
        Mean [.., P, N] and factor [.., P, R, N].
    """
    mean, factor = project(qv, a)
    if len(qv.event_shape) == 1:
        mean = mean[..., None, :]
        factor = None if factor is None else factor[..., None, :, :]
    return Projected(mean, factor)


def can_marginalise(qv: Any) -> bool:
    """Whether :func:`project` knows this distribution (others have to be sampled).

    Example:
        >>> gp.variational.can_marginalise(dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        True
        >>> gp.variational.can_marginalise(dist.StudentT(4.0, jnp.zeros(3)).to_event(1))
        False
    """
    match qv:
        case Block():
            return can_marginalise(qv.joint)
        case Stacked():
            # The weights of a mixture are those of the whole q(v), not of a part.
            are_whole = not any(map(_has_mixture, qv.parts.values()))
            return are_whole and all(map(can_marginalise, qv.parts.values()))
        case dist.MixtureSameFamily():
            components = qv.component_distribution
            return not _has_mixture(components) and can_marginalise(components)
        case dist.Independent() if _has_mixture(qv.base_dist):
            return False
        case dist.Independent(base_dist=dist.Normal()):
            return True
        case dist.Independent():
            return can_marginalise(qv.base_dist)
        case dist.Normal():  # whose axes are no event
            return False
    return project.dispatch(type(qv)) is not project.dispatch(object)


def _has_mixture(qv: Any) -> bool:
    base = qv.base_dist if isinstance(qv, dist.Independent) else qv
    return isinstance(base, dist.MixtureSameFamily)


def simplified(qv: Any, event_shape: tuple) -> Any:
    """The same distribution of v without ``expand``, its axes those of one event.

    ``Normal(m, s).expand([M]).to_event(1)`` and ``Normal(m, s)`` with m of shape [M]
    are N(m, diag s²) as much as ``Normal(m, s).to_event(1)`` is; so is the latter with
    m of shape [P, M], its first axis one of outputs and not of components.

    Args:
        qv: What a guide has at the site of v.
        event_shape: Shape of v, [M] or [P, M].
    """
    base = qv.base_dist if isinstance(qv, dist.Independent) else qv
    if isinstance(base, dist.ExpandedDistribution):
        batch, base = base.batch_shape, base.base_dist
        base = _expanded(base, batch)
    elif tuple(qv.event_shape) == tuple(event_shape):
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


@project.register
def _(qv: dist.Delta, a):
    return Projected(matmul(jnp.asarray(qv.v), a), None)


@project.register
def _(qv: dist.Normal, a):
    loc, scale = loc_and_scale(qv)
    return Projected(matmul(loc, a), scale[..., None] * a)


@project.register
def _(qv: dist.MultivariateNormal, a):
    """Full covariance S Sᵀ: the factor is Sᵀ a."""
    loc, scale_tril = loc_and_scale_tril(qv)
    return Projected(matmul(loc, a), matmul(jnp.swapaxes(scale_tril, -1, -2), a))


@project.register
def _(qv: dist.Independent, a):
    return project(qv.base_dist, a)


@project.register
def _(qv: dist.MixtureSameFamily, a):
    return project(qv.component_distribution, a)


@project.register
def _(qv: Block, a):
    return _project_rows(qv.joint, qv, a)


def loc_and_scale(qv: Any) -> tuple[Array, Array]:
    """Of a Normal, with ``to_event`` or without, each with the full shape."""
    base: Any = qv.base_dist if isinstance(qv, dist.Independent) else qv
    shape = qv.shape()
    return jnp.broadcast_to(base.loc, shape), jnp.broadcast_to(base.scale, shape)


def loc_and_scale_tril(qv: Any) -> tuple[Array, Array]:
    """Of a MultivariateNormal, each with its whole batch shape: [.., M], [.., M, M]."""
    shape = qv.shape()
    scale_tril = jnp.broadcast_to(qv.scale_tril, (*shape, shape[-1]))
    return jnp.broadcast_to(qv.loc, shape), scale_tril


# ------------------------------------------------------- one process of a joint q(v)


@singledispatch
def _project_rows(joint, block: Block, a) -> Projected:
    """The moments of one block's values under the joint q(v).

    Of any family: those of all values, with a where the block is and 0 elsewhere.
    """
    size, num_data = a.shape

    def of_output(start) -> Projected:
        nothing = jnp.zeros((*joint.event_shape, num_data), a.dtype)
        return project(joint, jax.lax.dynamic_update_slice(nothing, a, (start, 0)))

    if len(block.event_shape) == 1:
        return of_output(block.start)
    starts = block.start + size * jnp.arange(block.event_shape[0])
    return jax.vmap(of_output, out_axes=Projected(-2, -3))(starts)  # pyright: ignore


def _rows(array: ArrayLike, block: Block, axis: int) -> Array:
    """The rows of one block, in its own shape where ``axis`` was."""
    array = jnp.asarray(array)
    size = block.value.size
    part = jax.lax.slice_in_dim(array, block.start, block.start + size, axis=axis)
    axis = axis % array.ndim
    shape = (*part.shape[:axis], *block.event_shape, *part.shape[axis + 1 :])
    return part.reshape(shape)


@_project_rows.register
def _(joint: dist.MultivariateNormal, block, a):
    loc = _rows(jnp.asarray(joint.loc), block, -1)
    rows = _rows(jnp.asarray(joint.scale_tril), block, -2)  # [P, M, ΣM]
    return Projected(matmul(loc, a), matmul(jnp.swapaxes(rows, -1, -2), a))


@_project_rows.register
def _(joint: dist.Independent, block, a):
    loc, scale = (_rows(each, block, -1) for each in loc_and_scale(joint))
    return Projected(matmul(loc, a), scale[..., None] * a)


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
    """(m, S), [P, M] and [P, M, M], of a Gaussian with full covariance per output.

    Both with a leading axis K under a mixture of such; None for any other q(v).
    """
    if isinstance(qv, dist.MixtureSameFamily):
        qv = qv.component_distribution
    shape = qv.event_shape
    base: Any = qv.base_dist if isinstance(qv, dist.Independent) else qv
    if not isinstance(base, dist.MultivariateNormal):
        return None
    loc, scale_tril = loc_and_scale_tril(base)
    return outputs_first(loc, shape, 1), outputs_first(scale_tril, shape, 2)
