"""One belief over the whitened values of several processes, and what they share."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

__all__ = ["Block", "group_of", "is_coupled", "log_mixing", "log_weights", "split"]


class Block(dist.Distribution):
    """The share of one process in a joint belief over the v of several.

    As a distribution it is the point ``value``, the slice of the joint draw, so that a
    guide which samples the joint site and then one Block a process is an ordinary
    NumPyro guide; under ``MarginalELBO`` the joint belief itself is marginalised. Make
    them with :func:`split`.
    """

    support: Any = dist.constraints.real_vector
    pytree_data_fields = ("joint", "value")
    pytree_aux_fields = ("start", "group")
    arg_constraints: ClassVar[dict] = {}

    def __init__(self, joint, value, start: int, group: str):
        self.joint, self.value, self.start, self.group = joint, value, start, group
        super().__init__((), jnp.shape(value))

    def sample(self, key, sample_shape=()):
        """The slice itself."""
        return jnp.broadcast_to(self.value, sample_shape + self.event_shape)

    def log_prob(self, value, intermediates=None):
        """Zero: the density is counted once, at the joint site."""
        return jnp.zeros(jnp.shape(value)[: jnp.ndim(value) - len(self.event_shape)])


def split(
    group: str, joint: dist.Distribution, value: Array, shapes: Mapping[str, tuple]
) -> dict[str, Block]:
    """One Block a process, in the order of ``shapes``.

    Args:
        group: Name of the joint site in the guide.
        joint: Belief over the stacked values, event shape [ΣM].
        value: The draw of the joint site, [ΣM].
        shapes: Process name -> shape of its v, (M,) or (P, M).

    Raises:
        ValueError: The shapes do not add up to the size of the joint belief.

    Example:
        >>> from svgp_ppl.beliefs import split
        >>> joint = dist.MultivariateNormal(jnp.zeros(5), jnp.eye(5))
        >>> blocks = split("v", joint, jnp.arange(5.0), {"f": (2,), "g": (3,)})
        >>> blocks["g"].value.shape
        (3,)
    """
    sizes = {name: math.prod(s) for name, s in shapes.items()}
    (total,) = joint.event_shape
    if sum(sizes.values()) != total:
        raise ValueError(
            f"the joint belief '{group}' has {total} values, but its processes need "
            f"{sum(sizes.values())}: {dict(shapes)}. Give it one value per inducing "
            "input and output."
        )
    blocks, start = {}, 0
    for name, shape in shapes.items():
        part = value[start : start + sizes[name]].reshape(shape)
        blocks[name] = Block(joint, part, start, group)
        start += sizes[name]
    return blocks


def is_coupled(belief: dist.Distribution) -> bool:
    """Whether the belief correlates different outputs, or different processes."""
    if not isinstance(belief, Block):
        return False
    joint = belief.joint
    if isinstance(joint, dist.MixtureSameFamily):
        joint = joint.component_distribution
    return isinstance(joint, dist.MultivariateNormal)


def log_weights(belief: dist.Distribution) -> Array | None:
    """Log mixture weights [K] of a belief, None when it has one component."""
    if isinstance(belief, Block):
        return log_weights(belief.joint)
    if isinstance(belief, dist.MixtureSameFamily):
        return log_mixing(belief)
    return None


def log_mixing(belief: dist.MixtureSameFamily) -> Array:
    """Log mixture weights [K]."""
    mixing: Any = belief.mixing_distribution
    return jax.nn.log_softmax(mixing.logits)


def group_of(name: str, belief: dist.Distribution) -> str:
    """The name under which a process shares its belief with others."""
    return belief.group if isinstance(belief, Block) else name
