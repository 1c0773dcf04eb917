"""Facts about the arguments that are known before anything is compiled.

Each check raises a ``ValueError`` that says what was expected, what was given and what
to do. Values can be read only outside a trace; shapes and types always.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer

from svgp_ppl.rows.sharding import automatic, first_true, is_sharded

__all__ = [
    "InvalidRow",
    "checked_inputs",
    "data_array",
    "in_full",
    "in_words",
    "is_concrete",
    "is_key",
    "is_real",
    "require_arguments",
    "require_count",
    "require_finite",
    "require_key",
    "require_positive",
    "warn_of_other_precision",
]


def is_concrete(value) -> bool:
    """Whether the values can be read (inside ``jit`` they cannot)."""
    return not isinstance(value, Tracer)


class InvalidRow(ValueError):
    """A row of the data that cannot be used.

    Args:
        words: Function from the number of the row to the message.
        row: Its number, counted from 0.
    """

    def __init__(self, words: Callable[[int], str], row: int):
        super().__init__(words(row))
        self.words, self.row = words, row

    def moved(self, by: int) -> "InvalidRow":
        """The same error for data in which these rows start at row ``by``."""
        return InvalidRow(self.words, self.row + by)


def data_array(value, what: str) -> Any:
    """Numbers in an array of JAX or of NumPy in the byte order of this machine.

    Args:
        value: Array-like: arrays, lists, columns of pandas.
        what: Its name in error messages.

    Raises:
        ValueError: It is no array, a masked one, ragged, or not of real numbers.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{what} are a masked array, whose mask would be lost: take .filled(0.0), "
            "and say which data are known by observe(..., mask=~y.mask)."
        )
    if isinstance(value, jax.Array):  # traced or not
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise ValueError(
                f"{what} must be real numbers and are a random key, which stands "
                "first, gp.fit(key, model, x, y), or has its name: "
                "gp.predict(model, fit, x, key=key)."
            )
        array: Any = automatic(value)
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            if "inhomogeneous" not in str(error):
                raise
            advice = ""
            if isinstance(value, tuple):
                advice = " A tuple such as (x, y) is passed as its parts: x, y."
            raise ValueError(
                f"{what} must be an array, and are rows of unequal length.{advice}"
            ) from None
        except jax.errors.JAXTypeError:  # of a list of traced numbers
            raise
        except TypeError:  # of xarray, for a Dataset
            raise _no_array(value, what) from None
        if array.dtype == object and array.ndim == 0:
            raise _no_array(value, what)
    if not is_real(array):
        advice = "np.asarray(..., dtype=float). Code text as numbers or leave it out."
        if array.dtype.kind in "mM":  # as floats they would count seconds or less
            unit = "np.timedelta64(1, 'D')"
            advice = f"t / {unit}, in days, so that lengthscales are days too."
            if array.dtype.kind == "M":
                advice = f"(t - t.min()) / {unit}, in days, so that lengthscales are "
                advice += "days too; for new inputs with the t.min() of the fit."
        raise ValueError(
            f"{what} must be real numbers and are of dtype {array.dtype}. Convert them "
            f"first: {advice}"
        )
    _require_representable(array, what)
    if isinstance(array, np.ndarray) and not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))  # files from other machines
    return array


def _no_array(value, what: str) -> ValueError:
    return ValueError(
        f"{what} must be an array, and are a {type(value).__name__}: of a sparse "
        "matrix take x.toarray(), of a lazy table x.collect(), of an xarray.Dataset "
        "x.to_dataarray().T."
    )


def _require_representable(array, what: str) -> None:
    """Refuse whole numbers that JAX would wrap around, where it has 32 bits."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    is_cut = np.issubdtype(array.dtype, np.integer) and dtype != array.dtype
    if is_cut and isinstance(array, np.ndarray) and array.size:
        ends, limits = (array.min(), array.max()), np.iinfo(dtype)
        if ends[0] < limits.min or ends[1] > limits.max:
            raise ValueError(
                f"{what} hold the number {max(ends, key=abs)}, which has no place in "
                f"{dtype}. Write numpyro.enable_x64() before anything else."
            )


def in_full(value, precision) -> Any:
    """Numbers that formulas of distributions can count with, an array of JAX.

    Integers have a sign and all bits: y + 1 is 0 for the largest ``uint8``, -y is
    256 - y, and logarithms of ``int32`` are ``float32``. Other numbers have at least
    the precision of the latent.
    """
    array: Any = jnp.asarray(value)
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    whole = jnp.result_type(int)
    if is_float or (array.dtype.kind == "u" and array.dtype.itemsize >= whole.itemsize):
        return array.astype(jnp.promote_types(array.dtype, precision))
    return array.astype(whole)


def is_real(array) -> bool:
    """Whether an array holds real numbers or truth values."""
    real = jnp.integer, jnp.floating, jnp.bool_
    is_number = any(jnp.issubdtype(array.dtype, kind) for kind in real)
    return is_number and array.dtype.kind != "m"  # NumPy counts durations as integers


def require_finite(
    value, what: str, advice: str = "Drop or impute those rows.", where=True
) -> None:
    """Raise if a concrete array holds NaN or infinity.

    Args:
        value: Array of real numbers.
        what: Its name in error messages.
        advice: What to do.
        where: Entries that count, of the shape of ``value``.
    """
    if not is_concrete(value) or not is_concrete(where):
        return
    if is_sharded(value) or is_sharded(where):
        with jax.ensure_compile_time_eval():
            found = first_true(~jnp.isfinite(value) & where)
    else:
        found = first_true(~np.isfinite(np.asarray(value)) & np.asarray(where))
    if found is None:
        return
    row, *rest = found
    raise InvalidRow(
        lambda row: (
            f"{what} must be finite, and hold NaN or infinity, first at index "
            f"{(row, *rest)}. {advice}"
        ),
        row,
    )


def require_count(value, what: str, least: int = 1) -> int:
    """An integer of at least ``least``; NumPy integers count.

    Raises:
        ValueError: It is anything else.
    """
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or value < least:
        kind = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{what} must be {kind}, and is {value!r}.")
    return int(value)


def require_key(
    key, what: str = "the first argument", of: Callable | None = None
) -> None:
    """Raise unless it is a random key of JAX.

    Args:
        key: What was given.
        what: Its name in error messages.
        of: A function that cannot be called inside of a trace.

    Raises:
        ValueError: It is an integer, None or something else; or is traced.
    """
    _require_untraced(key, of)
    if not is_key(key):
        raise ValueError(
            f"{what} must be a random key, jax.random.key(0), and is {key!r}."
        )


def is_key(value) -> bool:
    """Whether it can be a random key of JAX, typed or of two 32-bit numbers."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jnp.shape(value) == ()
    return dtype == jnp.uint32 and jnp.shape(value) == (2,)


def require_arguments(
    model: Callable, args: tuple, kwargs: dict, of: Callable | None = None
) -> None:
    """Raise unless a model can be called with these arguments.

    Args:
        model: The model.
        args: Its arguments.
        kwargs: Its keyword arguments.
        of: The function that takes both the model's arguments and options of its own,
            and cannot be called inside of a trace.

    Raises:
        ValueError: It is not a function, or does not take these arguments; or one of
            them is traced.
    """
    _require_untraced((args, kwargs), of)
    if not callable(model):
        raise ValueError(
            "the model must be a function with NumPyro sites, and is a "
            f"{type(model).__name__}."
        )
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):  # not written in Python
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(model, "__name__", type(model).__name__)
        raise ValueError(
            f"the model {name}{signature} cannot be called with these arguments: "
            f"{error}. Arguments that are no option of this function go to the model."
            + _options(of)
        ) from None


def _require_untraced(values: Any, of: Callable | None) -> None:
    """Refuse what JAX traces, to functions that run their own loops of programs."""
    if of is not None and not all(map(is_concrete, jax.tree.leaves(values))):
        raise ValueError(
            f"{of.__name__} cannot be called inside of jax.jit, vmap or grad: it runs "
            "compiled steps of its own, and returns numbers. Call it in a loop of "
            "Python; a second call with data of the same shapes compiles nothing."
        )


def _options(of: Callable | None) -> str:
    """A sentence with the options of a function that takes a model, for messages."""
    parameters = {} if of is None else inspect.signature(of).parameters
    names = [n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    return f" The options are {', '.join(names)}." if names else ""


def require_positive(
    value, what: str, *, or_zero: bool = False, or_infinite: bool = False
) -> None:
    """Raise if a concrete number, or one of an array, is not positive (or is NaN).

    Args:
        value: A number or an array.
        what: Its name in error messages.
        or_zero: Whether zero is allowed.
        or_infinite: Whether infinity is.
    """
    if not is_concrete(value):
        return
    array = np.atleast_1d(np.asarray(value))
    kind = "positive or zero" if or_zero else "positive"
    if not is_real(array):
        raise ValueError(f"{what} must be {kind}, and is {value!r}.")
    good = array >= 0 if or_zero else array > 0
    if np.all(good) and not or_infinite:
        kind, good = "finite", array < np.inf
    if not np.all(good):
        raise ValueError(f"{what} must be {kind}, and is {array[~good][0]}.")


def checked_inputs(x, what: str, like=None, rows: str = "N"):
    """The inputs x as a floating point array [N, D].

    Args:
        x: Array-like.
        what: Its name in error messages.
        like: Inducing inputs [M, D] whose width x must have, or None.
        rows: Letter of their number in error messages.

    Raises:
        ValueError: Wrong rank, no rows, wrong width, or values that are not finite.
    """
    x = data_array(x, what)
    shape = np.shape(x)
    if len(shape) != 2:
        advice = " For one column add [:, None]." if len(shape) == 1 else ""
        raise ValueError(
            f"{what} must have shape [{rows}, D] and have {shape}.{advice}"
        )
    if 0 in shape:
        raise ValueError(f"{what} are empty: their shape is {shape}.")
    if like is not None and shape[1] != np.shape(like)[1]:
        raise ValueError(
            f"{what} have {shape[1]} columns and the inducing inputs "
            f"{np.shape(like)[1]}. Give both the same columns; a kernel that sees only "
            "some of them says so with active_columns."
        )
    require_finite(x, what)
    # Memory that JAX shared with NumPy would change with it.
    x = jnp.array(x, copy=isinstance(x, np.ndarray))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(float)
    # Half precision cannot be factorised.
    return x.astype(jnp.float32) if jnp.finfo(x.dtype).bits < 32 else x


def warn_of_other_precision(what: str, precision: str) -> None:
    """Say that v was found in another precision, with another jitter.

    Args:
        what: What holds v, for the warning.
        precision: Name of the precision; empty if it is not known.
    """
    here = jnp.result_type(float).name
    if not precision or precision == here:
        return
    setting = "with" if precision == "float64" else "without"
    warnings.warn(
        f"{what} comes from computations in {precision}, and these are in {here}, with "
        "another jitter: where inducing inputs are close together, its whitened values "
        "stand for another function, and predictions are off. The same numbers come "
        f"{setting} numpyro.enable_x64() before anything else; or fit or sample again.",
        stacklevel=3,
    )


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
    if isinstance(support, type(dist.constraints.open_interval(0.0, 1.0))):
        low, high = np.max(support.lower_bound), np.max(support.upper_bound)
        return f"the numbers strictly between {low:g} and {high:g}"
    return str(support)
