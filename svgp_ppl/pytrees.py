"""Dataclasses as pytrees whose structures tell their classes apart."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey, register_pytree_with_keys

__all__ = ["register_dataclass"]

Class = TypeVar("Class", bound=type)


def register_dataclass(cls: Class) -> Class:
    """Make a dataclass a pytree, for kernels, likelihoods and features of one's own.

    As ``jax.tree_util.register_dataclass``: a field whose metadata says ``static`` is
    part of the structure, every other field holds leaves. Since JAX 0.10 the structures
    of two classes with fields of the same names compare equal there, and ``jax.jit``
    runs what it compiled for the one for the other wherever their hashes fall
    together; here they differ. And a tree that JAX takes apart and puts together is not
    made anew: ``__post_init__`` sees what a user passes, never a placeholder. ``==``
    compares arrays by their values.

    Args:
        cls: The class, a dataclass.

    Returns:
        The class.

    Raises:
        TypeError: If it is no dataclass.

    Example:
        >>> from dataclasses import dataclass
        >>> @gp.register_dataclass
        ... @dataclass(frozen=True)
        ... class Noise:
        ...     scale: float = 1.0
        >>> jax.tree.leaves(Noise(0.5))
        [0.5]
    """
    node: Any = cls
    if not dataclasses.is_dataclass(node):
        raise TypeError(f"expected a dataclass, got {cls!r}: put @dataclass below")
    fields = [field for field in dataclasses.fields(node) if field.init]
    is_whole = len(fields) == len(dataclasses.fields(node))
    static = [field.name for field in fields if field.metadata.get("static", False)]
    data = [field.name for field in fields if field.name not in static]

    def flatten(tree):
        structure = tuple(getattr(tree, name) for name in static)
        return tuple(getattr(tree, name) for name in data), structure

    def flatten_with_keys(tree):
        values, structure = flatten(tree)
        return tuple(zip(map(GetAttrKey, data), values, strict=True)), structure

    def unflatten(structure, values):
        given = dict(zip(static, structure, strict=True))
        given |= zip(data, values, strict=True)
        if not is_whole:  # the other fields are computed from these
            return cls(**given)
        tree = object.__new__(cls)
        for name, value in given.items():
            object.__setattr__(tree, name, value)
        return tree

    register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    cast(Any, cls).__eq__ = _with_arrays(cast(Any, cls.__eq__))
    return cls


def _with_arrays(equal: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``==`` of a dataclass, where Python finds that arrays have no truth value.

    From Python 3.13 on it gives what the last field does, which may be an array.
    """

    @functools.wraps(equal)
    def run(self, other):
        try:
            found = equal(self, other)
        except ValueError:
            found = None
        if found is NotImplemented or isinstance(found, bool):
            return found
        names = [f.name for f in dataclasses.fields(self) if f.compare]
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        return all(_is_same(*pair) for pair in pairs)

    return run


def _is_same(one: Any, other: Any) -> bool:
    if not any(isinstance(value, np.ndarray | jax.Array) for value in (one, other)):
        return bool(one == other)
    # Not by NumPy's array_equal, to which traced arrays are never equal.
    return np.shape(one) == np.shape(other) and bool(jnp.all(one == other))
