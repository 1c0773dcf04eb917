"""Inputs whose differences are lost to rounding: refused, rather than all alike."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from svgp_ppl.checks import is_concrete

__all__ = ["require_digits", "require_resolved", "require_resolved_at"]

# The distance of neighbouring numbers, in standard deviations of the inducing inputs.
_COARSEST = 0.01


def require_resolved(z, what: str) -> None:
    """Refuse concrete inputs that are all equal, or whose differences are rounded off.

    A column of many may be so if z came in the precision that is set and the column
    says nothing, such as one that is zero but for a few rows, where z learned the same
    value everywhere: see ``require_resolved_at``.

    Args:
        z: Array [M, D], in any precision.
        what: Its name in error messages.
    """
    if not is_concrete(z):
        return
    came, precision = np.asarray(z), jnp.result_type(float)
    values = came.astype(np.float64)
    if len(values) > 1 and not np.any(values.std(axis=0)):
        raise ValueError(
            f"{what} are all the same, {values[0].tolist()}. Far from 0 rounding makes "
            f"them so in {precision}: subtract a constant from x and z while they are "
            "float64 (in NumPy), or write numpyro.enable_x64() before anything else."
        )
    is_rounded = came.dtype.itemsize > precision.itemsize
    if is_rounded or np.all(_is_coarse(values) | (values.std(axis=0) == 0.0)):
        require_digits(values, what)


def require_resolved_at(x, z, what: str) -> None:
    """Refuse concrete z with a column whose differences are rounded off, as those of x.

    Args:
        x: Array [N, D], in any precision.
        z: Array [M, D].
        what: The name of z in error messages.
    """
    if is_concrete(x) and is_concrete(z) and np.any(_is_coarse(np.asarray(z))):
        require_digits(np.asarray(z), what, _is_coarse(np.asarray(x)))


def require_digits(x, what: str, columns: Any = True) -> None:
    """Refuse inputs with a column whose differences are rounded off.

    Args:
        x: Array [N, D] of NumPy, in the precision in which it came.
        what: Its name in error messages.
        columns: Which columns are asked for, [D], or all.
    """
    for column in np.flatnonzero(_is_coarse(x) & columns):
        farthest, sd, gap = (a[column] for a in _digits(x))
        raise ValueError(
            f"{what} lose their differences: column {column} has a standard deviation "
            f"of {sd:.3g}, and near {farthest:.3g} the numbers of "
            f"{jnp.result_type(float)} are {gap:.2g} apart. Subtract the same constant "
            "from x and z while they are float64 (in NumPy), or write "
            "numpyro.enable_x64() before anything else."
        )


def _digits(x) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest size, the standard deviation and the rounding of columns, [D]."""
    values = x.astype(np.float64, copy=False)
    farthest = np.abs(values).max(axis=0)
    gap = farthest * float(jnp.finfo(jnp.result_type(float)).eps)
    return farthest, values.std(axis=0), gap


def _is_coarse(x) -> np.ndarray:
    """Which columns vary by no more than a hundred roundings, [D]."""
    _, sd, gap = _digits(x)
    return (sd > 0) & (gap > _COARSEST * sd)
