"""Facts about the arguments that are known before anything is compiled.

Each check raises a ``ValueError`` that says what was expected, what came and what to
do. Values can only be looked at outside a trace; shapes and types always.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from numpyro.handlers import block, scope, trace
from numpyro.primitives import _PYRO_STACK, plate

__all__ = [
    "checked_inputs",
    "in_words",
    "is_concrete",
    "require_finite",
    "require_fitting_plate",
    "require_new_site",
]


def is_concrete(value) -> bool:
    """Whether the values can be looked at (inside ``jit`` they cannot)."""
    return not isinstance(value, Tracer)


def require_finite(value, what: str) -> None:
    """Raise if a concrete array holds NaN, infinity, or no numbers at all."""
    if not is_concrete(value):
        return
    value = np.asarray(value)
    if value.dtype.kind not in "biuf":
        raise ValueError(
            f"{what} must be real numbers and are of dtype {value.dtype}. Convert them "
            "first: np.asarray(..., dtype=float)."
        )
    if not np.all(np.isfinite(value)):
        bad = np.argwhere(~np.isfinite(value))[0]
        raise ValueError(
            f"{what} must be finite, and hold NaN or infinity, first at index "
            f"{tuple(int(i) for i in bad)}. Drop or impute those rows."
        )


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


def require_fitting_plate(name: str, num_data: int) -> None:
    """Raise if the plate of the data has another size than the data."""
    for handler in _PYRO_STACK:
        if isinstance(handler, plate) and handler.dim == -1:
            size = handler.subsample_size
            if size not in (1, num_data):
                raise ValueError(
                    f"site '{name}' has {num_data} data and stands in plate "
                    f"'{handler.name}' of {size}. Make the plate as long as x, or take "
                    "the rows of a subsample: with plate(...) as rows, f(x[rows]) and "
                    "obs=y[rows]."
                )


def require_new_site(name: str, prior: dist.Distribution, infer: dict) -> str:
    """The name under which handlers will record the site; raise if one has it already.

    The handlers are asked from the inside out, as messages travel: ``scope`` renames,
    and beyond a ``block`` that hides the site nobody sees it.
    """
    message: dict[str, Any] = {"type": "sample", "name": name, "fn": prior}
    message |= {"infer": infer, "is_observed": False, "value": None}
    for handler in reversed(_PYRO_STACK):
        match handler:
            case scope():
                handler.process_message(message)
            case block() if handler.hide_fn(message):
                break
            case trace() if message["name"] in handler.trace:
                raise ValueError(
                    f"the model has two sites named '{message['name']}'. Every process "
                    "needs a name of its own; one process seen at several inputs is "
                    "called several times: f(x1) - f(x2)."
                )
    return message["name"]
