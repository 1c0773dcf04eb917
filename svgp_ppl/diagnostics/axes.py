"""Names and labels of the axes of variables for an ArviZ object."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from svgp_ppl.diagnostics.kept import is_arviz
from svgp_ppl.diagnostics.posterior import SAMPLED_AXES, site_of

__all__ = ["Axes", "axes_of"]


class Axes(NamedTuple):
    """As ``to_arviz`` and ArviZ take them.

    Attributes:
        coords: Labels by dimension.
        dims: Names of the dimensions after chain and draw, by variable.
    """

    coords: dict[str, Any]
    dims: dict[str, list[str]]


def axes_of(
    shapes: Mapping[str, tuple[int, ...]],
    plates: Mapping[str, tuple[str, ...]],
    rows: Mapping[str, np.ndarray | None],
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    like: Any = None,
    other_rows: Collection[str] = (),
) -> Axes:
    """Axes of variables: those that the caller names, otherwise those of the plates.

    A variable with unknown rows gets a dimension of its own, such as ``y_data``, with
    the labels of its rows, as others may have all of them.

    Args:
        shapes: Shape of a variable without chain and draw, by name.
        plates: Names of leading axes, by name of the variable.
        rows: Numbers of the rows that are known, None for all, by variable.
        coords: Labels by dimension, from the caller.
        dims: Names of dimensions by variable, from the caller.
        like: An ArviZ object, whose names and labels apply where the caller gives none.
        other_rows: Variables whose rows need not be those of ``like``, and do not get
            their labels.

    Raises:
        ValueError: ``dims`` names an unknown variable, or more axes than it has;
            ``coords`` an unknown dimension, or one of another length.
    """
    others = _axes_within(like)
    inherited = {
        n: a for n, a in others.dims.items() if len(a) <= len(shapes.get(n, ()))
    }
    named = _consistent(shapes, plates) | inherited | _checked_dims(shapes, dims or {})
    labels = {name: np.asarray(values) for name, values in (coords or {}).items()}
    _require_labels(shapes, named, labels)
    for name in other_rows:
        for axis in named.get(name, [])[:1]:
            others.coords.pop(axis, None)
            others.coords.pop(f"{name}_{axis}", None)
    for name, known in rows.items():
        if known is None:
            continue
        by_default = [f"{name}_dim_{axis}" for axis in range(len(shapes[name]))]
        first, *rest = named.get(name, by_default)
        own = first if first.startswith(f"{name}_") else f"{name}_{first}"
        named[name] = [own, *rest]
        labels[own] = known
        whole = labels.get(first, others.coords.get(first))
        part = others.coords.get(own)
        if whole is not None and len(whole) == shapes[name][0]:
            labels[own] = whole[known]
        elif part is not None and len(part) == len(known):
            labels[own] = part
    lengths = _lengths(shapes, named)
    for axis, values in others.coords.items():
        if axis not in labels and lengths.get(axis, ("", -1))[1] == len(values):
            labels[axis] = values
    return Axes(labels, named)


def _axes_within(posterior: Any) -> Axes:
    """Names and labels of an ArviZ object, without its own and default ones."""
    coords, dims = {}, {}
    if is_arviz(posterior):
        for group in ("posterior", "log_likelihood", "observed_data"):
            if group not in posterior:
                continue
            for name, values in posterior[group].coords.items():
                coords[str(name)] = values.values
            for values in posterior[group].data_vars.values():
                axes = [axis for axis in values.dims if axis not in SAMPLED_AXES]
                by_default = f"{values.name}_"
                if axes and not any(axis.startswith(by_default) for axis in axes):
                    dims[site_of(values)] = axes
    return Axes(coords, dims)


def _lengths(shapes: Mapping, named: Mapping) -> dict[str, tuple[str, int]]:
    """A variable with a dimension, and its length, by dimension."""
    return {
        axis: (name, length)
        for name, axes in named.items()
        for axis, length in zip(axes, shapes[name])
    }


def _consistent(shapes: Mapping, plates: Mapping) -> dict[str, list[str]]:
    """The plates, except those of several lengths or with the name of a variable."""
    lengths: dict[str, set[int]] = {}
    for name, axes in plates.items():
        for axis, length in zip(axes, shapes[name]):
            lengths.setdefault(axis, set()).add(length)
    usable = {a for a, sizes in lengths.items() if len(sizes) == 1 and a not in shapes}
    return {n: list(axes) for n, axes in plates.items() if usable.issuperset(axes)}


def _checked_dims(shapes: Mapping, dims: Mapping[str, Any]) -> dict[str, list[str]]:
    found = {}
    for name, axes in dims.items():
        axes = [axes] if isinstance(axes, str) else list(axes)
        if name not in shapes:
            raise ValueError(
                f"dims names the axes of '{name}', and the variables are "
                f"{sorted(shapes)}."
            )
        if len(axes) > len(shapes[name]):
            raise ValueError(
                f"dims gives '{name}' the axes {axes}, and without chain and draw it "
                f"has the shape {tuple(shapes[name])}."
            )
        found[name] = axes
    return found


def _require_labels(shapes: Mapping, named: Mapping, labels: Mapping) -> None:
    lengths = _lengths(shapes, named)
    for axis, values in labels.items():
        if axis not in lengths:
            raise ValueError(
                f"coords labels the dimension '{axis}', and the dimensions are "
                f"{sorted(lengths)}: a plate of the model gives its name, or dims= "
                "does."
            )
        name, length = lengths[axis]
        if values.shape != (length,):
            raise ValueError(
                f"coords must give dimension '{axis}' of '{name}' {length} labels, and "
                f"gives an array of shape {values.shape}."
            )
