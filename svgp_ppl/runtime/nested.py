"""Parameters that are trees, such as the weights of a network, as arrays by name.

Files and ArviZ objects hold arrays by name. A tree of dicts, lists and tuples becomes
one array for each leaf, ``net.0.weight``, and a layout from which it is built again.
Where a weight has a prior, NumPyro's ``random_flax_module`` leaves its shape alone.
"""

from collections.abc import Mapping
from typing import Any

import jax
from numpyro.contrib.module import ParamShape

__all__ = ["flattened", "rebuilt"]

_SEQUENCES = {"list": list, "tuple": tuple}


def flattened(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays by name, and the layouts of those values that are trees.

    Returns:
        The arrays; name -> layout, plain enough for JSON.

    Raises:
        ValueError: Two arrays would have the same name.
    """
    arrays: dict[str, Any] = {}
    layouts = {name: _layout(arrays, name, value) for name, value in values.items()}
    return arrays, {name: layout for name, layout in layouts.items() if layout != name}


def rebuilt(arrays: Mapping[str, Any], layouts: Mapping[str, Any]) -> dict[str, Any]:
    """The values that were flattened.

    Raises:
        ValueError: A tree has nodes besides dicts, lists, tuples and shapes.
    """
    values = dict(arrays)
    trees = {name: _tree(values, layout) for name, layout in layouts.items()}
    return values | trees


def _layout(arrays: dict[str, Any], name: str, value: Any) -> Any:
    """The layout of a tree, whose leaves are put into ``arrays``: a leaf's is its name.

    That of other nodes than dicts, lists and tuples only says what they are.
    """
    kind, parts = type(value).__name__, None
    if isinstance(value, ParamShape):
        return {kind: list(value.shape)}
    if type(value) is dict and all(isinstance(key, str | int) for key in value):
        parts = list(value.items())
    elif type(value) in (list, tuple):
        parts = list(enumerate(value))
    elif value is not None and not jax.tree_util.all_leaves([value]):
        kind, parts = f"a {kind}", list(enumerate(jax.tree.leaves(value)))
    if parts is not None:
        return {kind: [[k, _layout(arrays, f"{name}.{k}", v)] for k, v in parts]}
    if value is None:
        return None
    if name in arrays:
        raise ValueError(f"two parameters, or parts of them, are named '{name}'.")
    arrays[name] = value
    return name


def _tree(arrays: dict[str, Any], layout: Any) -> Any:
    """The tree, whose leaves are taken out of ``arrays``."""
    if layout is None:
        return None
    if isinstance(layout, str):
        return arrays.pop(layout)
    ((kind, entries),) = layout.items()
    if kind == ParamShape.__name__:
        return ParamShape(tuple(entries))
    parts = {key: _tree(arrays, part) for key, part in entries}
    if kind == "dict":
        return parts
    if kind not in _SEQUENCES:
        raise ValueError(
            f"a parameter is {kind} with the arrays {[name for _, name in entries]}. "
            "Files and draws hold dicts, lists and tuples of arrays only, and do not "
            "give it back: keep fit.params, and pass params=fit.params."
        )
    return _SEQUENCES[kind](parts.values())
