"""One q(v) over the whitened values of several processes, and what they share."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

__all__ = [
    "Block",
    "Stacked",
    "group_of",
    "is_coupled",
    "log_mixing",
    "log_weights",
    "split",
    "unstack",
]


class Block(dist.Distribution):
    """The share of one process in a joint q(v) over the v of several.

    As a distribution it is the point ``value``, the slice of the joint draw, so that a
    guide which samples the joint site and then one Block per process is an ordinary
    NumPyro guide; under ``MarginalELBO`` the joint q(v) itself is marginalised. Make
    blocks with :func:`split`.

    Example:
        >>> joint = dist.Normal(jnp.zeros(5), 1.0).to_event(1)
        >>> block = gp.variational.Block(joint, jnp.ones(3), start=2, group="v")
        >>> block.event_shape
        (3,)
    """

    support: Any = dist.constraints.real_vector
    pytree_data_fields = ("joint", "value")
    pytree_aux_fields = ("start", "group")
    arg_constraints: ClassVar[dict] = {}

    def __init__(self, joint, value, start: int, group: str):
        self.joint, self.value, self.start, self.group = joint, value, start, group
        super().__init__((), jnp.shape(value))

    @property
    def has_rsample(self) -> bool:
        """Whether derivatives of the slice are those of the joint draw."""
        return self.joint.has_rsample

    def sample(self, key, sample_shape=()):
        """The slice itself."""
        return jnp.broadcast_to(self.value, sample_shape + self.event_shape)

    def log_prob(self, value, intermediates=None):
        """Zero: the density is counted once, at the joint site."""
        return jnp.zeros(jnp.shape(value)[: jnp.ndim(value) - len(self.event_shape)])


class Stacked(dist.Distribution):
    """Independent q(v) of several processes, as one over their stacked v.

    The components of a mixture that several processes share: batch shape (K,), event
    shape (ΣM,).

    Args:
        parts: Process name -> q(v), of one batch shape, in the order of the stack.

    Example:
        >>> normal = dist.Normal(jnp.zeros((2, 3)), 1.0).to_event(1)
        >>> gp.variational.Stacked({"f": normal, "g": normal}).shape()
        (2, 6)
    """

    support: Any = dist.constraints.real_vector
    pytree_data_fields = ("parts",)
    arg_constraints: ClassVar[dict] = {}

    def __init__(self, parts: Mapping[str, Any]):
        self.parts = dict(parts)
        (batch_shape,) = {part.batch_shape for part in self.parts.values()}
        size = sum(math.prod(part.event_shape) for part in self.parts.values())
        super().__init__(batch_shape, (size,))

    @property
    def has_rsample(self) -> bool:
        """Whether every part can be differentiated through its draws."""
        return all(part.has_rsample for part in self.parts.values())

    def _stack(self, of: Callable[[Any], Array], leading: tuple) -> Array:
        flat = [of(part).reshape(*leading, -1) for part in self.parts.values()]
        return jnp.concatenate(flat, axis=-1)

    @property
    def mean(self) -> Array:
        """Means, [K, ΣM]."""
        return self._stack(lambda part: part.mean, self.batch_shape)

    @property
    def variance(self) -> Array:
        """Variances, [K, ΣM]."""
        return self._stack(lambda part: part.variance, self.batch_shape)

    def sample(self, key, sample_shape=()):
        """Draws, sample shape + [K, ΣM]."""
        assert key is not None
        keys = iter(jax.random.split(key, len(self.parts)))
        return self._stack(
            lambda part: part.sample(next(keys), sample_shape),
            (*sample_shape, *self.batch_shape),
        )

    def log_prob(self, value, intermediates=None):
        """Sum of the log densities of the parts."""
        pairs = zip(self.parts.values(), self.unstack(jnp.asarray(value)).values())
        return sum(part.log_prob(v) for part, v in pairs)

    def entropy(self) -> Array:
        """Entropies, [K]."""
        return sum((part.entropy() for part in self.parts.values()), jnp.zeros(()))

    def unstack(self, value: Array) -> dict[str, Array]:
        """The values of each part, from stacked ones, [.., ΣM]."""
        return unstack(value, {n: p.event_shape for n, p in self.parts.items()})


def unstack(value: Array, shapes: Mapping[str, tuple]) -> dict[str, Array]:
    """Stacked values [.., ΣM] -> process name -> values, [.., M] or [.., P, M].

    Example:
        >>> values = gp.variational.unstack(jnp.arange(5.0), {"f": (2,), "g": (3,)})
        >>> values["g"]
        Array([2., 3., 4.], dtype=float32)
    """
    values, start = {}, 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        values[name] = value[..., start:stop].reshape(*value.shape[:-1], *shape)
        start = stop
    return values


def split(
    group: str, joint: dist.Distribution, value: Array, shapes: Mapping[str, tuple]
) -> dict[str, Block]:
    """One Block per process, in the order of ``shapes``.

    Args:
        group: Name of the joint site in the guide.
        joint: Variational distribution over the stacked values, event shape [ΣM].
        value: The draw of the joint site, [ΣM].
        shapes: Process name -> shape of its v, (M,) or (P, M).

    Raises:
        ValueError: The shapes do not add up to the size of the joint q(v).

    Example:
        >>> from svgp_ppl.variational import split
        >>> joint = dist.MultivariateNormal(jnp.zeros(5), jnp.eye(5))
        >>> shapes = {"f": (2,), "g": (3,)}
        >>> blocks = gp.variational.split("v", joint, jnp.arange(5.0), shapes)
        >>> blocks["g"].value.shape
        (3,)
    """
    size = sum(map(math.prod, shapes.values()))
    (total,) = joint.event_shape
    if size != total:
        raise ValueError(
            f"the joint q(v) '{group}' has {total} values, but its processes need "
            f"{size}: {dict(shapes)}. Give it one value per inducing input and output."
        )
    blocks, start = {}, 0
    for name, part in unstack(value, shapes).items():
        blocks[name] = Block(joint, part, start, group)
        start += part.size
    return blocks


def is_coupled(qv: dist.Distribution) -> bool:
    """Whether the q(v) correlates different outputs, or different processes."""
    if not isinstance(qv, Block):
        return False
    joint = qv.joint
    if isinstance(joint, dist.MixtureSameFamily):
        joint = joint.component_distribution
    return not isinstance(joint, dist.Independent | dist.Delta | Stacked)


def log_weights(qv: dist.Distribution) -> Array | None:
    """Log mixture weights [K] of a q(v), None when it has one component."""
    if isinstance(qv, Block):
        return log_weights(qv.joint)
    if isinstance(qv, dist.MixtureSameFamily):
        return log_mixing(qv)
    return None


def log_mixing(qv: dist.MixtureSameFamily) -> Array:
    """Log mixture weights [K]."""
    mixing: Any = qv.mixing_distribution
    return jax.nn.log_softmax(mixing.logits)


def group_of(name: str, qv: dist.Distribution) -> str:
    """The name under which a process shares its q(v) with others."""
    return qv.group if isinstance(qv, Block) else name
