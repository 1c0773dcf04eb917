"""Facts about the arguments that are known before anything is compiled.

Each check raises a ``ValueError`` that says what was expected, what came and what to
do. Values can only be looked at outside a trace; shapes and types always.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer

__all__ = [
    "InvalidRow",
    "checked_inputs",
    "in_words",
    "is_concrete",
    "require_count",
    "require_finite",
    "require_key",
    "require_positive",
]


def is_concrete(value) -> bool:
    """Whether the values can be looked at (inside ``jit`` they cannot)."""
    return not isinstance(value, Tracer)


class InvalidRow(ValueError):
    """A row of the data that cannot be used.

    Args:
        words: Number of the row -> the message.
        row: Counted from 0.
    """

    def __init__(self, words: Callable[[int], str], row: int):
        super().__init__(words(row))
        self.words, self.row = words, row

    def moved(self, by: int) -> "InvalidRow":
        """The same of data of which these are the rows from ``by`` on."""
        return InvalidRow(self.words, self.row + by)


def require_finite(value, what: str) -> None:
    """Raise if a concrete array holds NaN, infinity, or no numbers at all."""
    if not is_concrete(value):
        return
    value = np.atleast_1d(np.asarray(value))
    if value.dtype.kind not in "biuf":
        raise ValueError(
            f"{what} must be real numbers and are of dtype {value.dtype}. Convert them "
            "first: np.asarray(..., dtype=float)."
        )
    if np.all(np.isfinite(value)):
        return
    row, *rest = (int(i) for i in np.argwhere(~np.isfinite(value))[0])
    raise InvalidRow(
        lambda row: (
            f"{what} must be finite, and hold NaN or infinity, first at index "
            f"{(row, *rest)}. Drop or impute those rows."
        ),
        row,
    )


def require_count(value, what: str, least: int = 1) -> int:
    """An integer of at least ``least``, NumPy's included.

    Raises:
        ValueError: It is anything else.
    """
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{what} must be {kind}, and is {value!r}.")
    return int(value)


def require_key(key) -> None:
    """Raise unless it is a random key of JAX.

    Raises:
        ValueError: It is an integer, None or something else.
    """
    dtype = getattr(key, "dtype", None)
    is_typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    is_old = dtype == jnp.uint32 and jnp.shape(key) == (2,)
    if not (is_typed and jnp.shape(key) == ()) and not is_old:
        raise ValueError(
            f"the first argument must be a random key, jax.random.key(0), and is "
            f"{key!r}."
        )


def require_positive(value, what: str, *, or_zero: bool = False) -> None:
    """Raise if a concrete number, or one of an array, is not positive (or is NaN)."""
    if not is_concrete(value):
        return
    value = np.atleast_1d(np.asarray(value))
    if value.dtype.kind not in "iuf":
        return
    good = value >= 0 if or_zero else value > 0
    if not np.all(good):
        kind = "positive or zero" if or_zero else "positive"
        raise ValueError(f"{what} must be {kind}, and is {value[~good][0]}.")


def checked_inputs(x, what: str, like=None):
    """The inputs x as a floating point array [N, D].

    Args:
        x: Array-like.
        what: How to call it in an error message.
        like: Inducing inputs [M, D] whose width x must have, or None.

    Raises:
        ValueError: Wrong rank, no rows, another width, values that are not finite.
    """
    shape = np.shape(x)
    if len(shape) != 2:
        advice = " For one column add [:, None]." if len(shape) == 1 else ""
        raise ValueError(f"{what} must have shape [N, D] and have {shape}.{advice}")
    if 0 in shape:
        raise ValueError(f"{what} are empty: their shape is {shape}.")
    if like is not None and shape[1] != np.shape(like)[1]:
        raise ValueError(
            f"{what} have {shape[1]} columns and the inducing inputs "
            f"{np.shape(like)[1]}. Give both the same columns; a kernel that sees only "
            "some of them says so with active_columns."
        )
    require_finite(x, what)
    if isinstance(x, np.ndarray) and not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))  # files of other machines
    x = jnp.asarray(x)
    return x.astype(jnp.result_type(x, float)) if x.dtype.kind != "f" else x


def in_words(support) -> str:
    """A short description of a constraint."""
    names = [
        (dist.constraints.nonnegative_integer, "the integers 0, 1, 2, …"),
        (dist.constraints.boolean, "{0, 1}"),
        (dist.constraints.real, "the real line"),
        (dist.constraints.positive, "the positive numbers"),
    ]
    for constraint, words in names:
        if support is constraint or support == constraint:
            return words
    if isinstance(support, type(dist.constraints.integer_interval(0, 1))):
        low, high = np.max(support.lower_bound), np.max(support.upper_bound)
        return f"the integers {low} to {high}"
    return str(support)
