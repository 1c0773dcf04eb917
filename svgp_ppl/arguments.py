"""The arguments of a model, taken apart into arrays and the rest.

Arrays travel through ``jit`` as arguments, so that data are never baked into compiled
code as constants; flags, sizes and None stay what they are.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["take_apart"]

_Rebuild = Callable[[list], tuple[tuple, dict]]


def take_apart(args: tuple, kwargs: dict[str, Any]) -> tuple[list, _Rebuild]:
    """The array leaves of the arguments, and how to put traced ones back in place.

    Returns:
        The arrays, and a function arrays -> (args, kwargs).
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    is_array = [isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves]
    arrays = [jnp.asarray(leaf) for leaf, yes in zip(leaves, is_array) if yes]

    def put_back(traced: list) -> tuple[tuple, dict]:
        waiting = iter(traced)
        full = [next(waiting) if yes else leaf for leaf, yes in zip(leaves, is_array)]
        return jax.tree.unflatten(structure, full)

    return arrays, put_back
