"""The kernel interface and its algebra: sums, products, constants, noise."""

import abc
import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from svgp_ppl.kernels.pairs import AllPairs, Pairs, RowPairs
from svgp_ppl.pytrees import register_dataclass

__all__ = [
    "Constant",
    "Kernel",
    "Product",
    "Sum",
    "Value",
    "White",
    "kernel_values",
    "may_vanish",
    "per_column",
    "single",
]

# A float, an array or a tracer, and whatever JAX puts in the place of a leaf.
Value = Any


def single(name: str, value: Value) -> Array:
    """``value`` as an array of rank 0.

    Raises:
        ValueError: If it is not one number.
    """
    value = jnp.asarray(value)
    if value.shape != ():
        raise ValueError(
            f"expected one number for {name}, got an array of shape {value.shape}: "
            "index it, or vmap over the kernel"
        )
    return value


def per_column(name: str, value: Value, width: int) -> Array:
    """``value`` as an array of rank 0, or [D] with one number for each column.

    Raises:
        ValueError: If it has another shape.
    """
    value = jnp.asarray(value)
    if value.shape not in ((), (width,)):
        raise ValueError(
            f"expected one number for {name}, or {width}: one for each column of the "
            "inputs (x, or z of a process) that the kernel sees; got an array of shape "
            f"{value.shape}. Change the shape of {name} or the columns of the inputs, "
            "or choose the columns with active_columns"
        )
    return value


def kernel_values(kernel: Any) -> dict[str, Value]:
    """Values of a kernel and its parts that must be positive, or at least not negative.

    Those that may be zero, :func:`may_vanish` names.
    """
    return {name: value for name, (value, _) in _checked_values(kernel).items()}


def may_vanish(kernel: Any) -> set[str]:
    """Names of the :func:`kernel_values` that may be zero, as parts of a sum may be."""
    found = _checked_values(kernel).items()
    return {name for name, (_, may_be_zero) in found if may_be_zero}


def _checked_values(kernel: Any, prefix: str = "") -> dict[str, tuple[Value, bool]]:
    positive = ("lengthscale", "variance", "period", "alpha")
    not_negative = getattr(kernel, "not_negative", ())
    values = {}
    fields = dataclasses.fields(kernel) if dataclasses.is_dataclass(kernel) else ()
    for part in fields:
        value = getattr(kernel, part.name)
        name = f"{prefix}{part.name}"
        if dataclasses.is_dataclass(value):
            values |= _checked_values(value, f"{name}.")
        elif part.name in (*positive, *not_negative):
            is_of_part = prefix != "" and part.name == "variance"
            values[name] = value, is_of_part or part.name in not_negative
    return values


@dataclass(frozen=True)
class Kernel(abc.ABC):
    """k(x, x'), a covariance function as a pytree of values.

    ``kernel(x)`` is the Gram matrix [N, N], ``kernel(x, y)`` the cross Gram [N, M],
    ``kernel.diagonal(x)`` and ``kernel.paired(x, y)`` the values k(x_n, x_n) and
    k(x_n, y_n), both [N]. ``k1 + k2``, ``k1 * k2``, ``2.0 * k1`` and ``sum([k1, k2])``
    are kernels.

    A new kernel is a frozen dataclass, registered with
    ``svgp_ppl.register_dataclass``, that has :meth:`_evaluate` and
    :meth:`_evaluate_diagonal`; both get the active columns only.

    Attributes:
        active_columns: The columns of x that the kernel sees, all by default. In a sum
            or product the columns of the parts count among those of the whole.
    """

    active_columns: tuple[int, ...] | None = field(
        default=None, kw_only=True, metadata={"static": True}
    )

    # Fields that may be zero and not negative, which a derivative of the kernel may be:
    # they are checked where a process is made.
    not_negative: ClassVar[tuple[str, ...]] = ()

    # A NumPy number on the left of * leaves the product to the kernel.
    __array_ufunc__ = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited = cls._evaluate_diagonal
        is_abstract = getattr(inherited, "__isabstractmethod__", False)
        own = vars(cls)
        if "_evaluate" in own and "_evaluate_diagonal" not in own and not is_abstract:
            raise TypeError(
                f"the kernel {cls.__name__} writes _evaluate anew and inherits "
                f"{inherited.__qualname__}, the k(x, x) of another kernel: write "
                "_evaluate_diagonal too (super()._evaluate_diagonal(x), if that holds)."
            )

    @abc.abstractmethod
    def _evaluate(self, pairs: Pairs) -> Array:
        """k for every pair: [N, M] or [N]."""

    @abc.abstractmethod
    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        """k(x_n, x_n), shape [N], without a matrix [N, N]."""

    def __call__(self, x: ArrayLike, y: ArrayLike | None = None) -> Float[Array, "N M"]:
        """k(x_n, y_m); without ``y`` the Gram matrix k(x_n, x_m).

        Args:
            x: Inputs [N, D].
            y: Inputs [M, D].

        Raises:
            ValueError: If an input is not [N, D], or a value does not fit the columns.
        """
        if y is None:
            return self.over(AllPairs(_rows(x)))
        x, y = _same_width(x, y)
        return self.over(AllPairs(x, y))

    def diagonal(self, x: ArrayLike) -> Float[Array, " N"]:
        """k(x_n, x_n) for the rows of ``x`` [N, D]."""
        return self._evaluate_diagonal(self.select(_rows(x)))

    def paired(self, x: ArrayLike, y: ArrayLike) -> Float[Array, " N"]:
        """k(x_n, y_n) for the rows of ``x`` and ``y``, both [N, D].

        Raises:
            ValueError: As for a call, and if the lengths differ.
        """
        x, y = _same_width(x, y)
        if len(x) != len(y):
            raise ValueError(
                f"expected as many rows in x as in y, got {len(x)} and {len(y)}: the "
                "paired form goes row by row, kernel(x, y) takes all pairs"
            )
        return self.over(RowPairs(x, y))

    def over(self, pairs: Pairs) -> Array:
        """k for every pair of full rows: the active columns, then :meth:`_evaluate`."""
        return self._evaluate(pairs.map(self.select))

    def select(self, x: Float[Array, "N D"]) -> Array:
        """The active columns of ``x``."""
        columns, width = self.active_columns, x.shape[-1]
        if columns is None:
            return x
        # JAX would quietly take the last column for one out of range.
        if not (isinstance(columns, tuple) and columns) or not all(
            isinstance(column, int) and -width <= column < width for column in columns
        ):
            raise ValueError(
                f"expected a tuple of columns of x, each below {width}, for "
                f"active_columns; got {columns!r}"
            )
        return x[:, np.asarray(columns)]

    def __add__(self, other: Any) -> "Kernel":
        _require_kernel(other)
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __radd__(self, other: Any) -> "Kernel":
        # sum() starts from 0.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, other: Any) -> "Kernel":
        if isinstance(other, Kernel):
            return Product(self, other)
        _require_kernel(other)
        return Product(Constant(other), self) if jnp.isscalar(other) else NotImplemented

    def __rmul__(self, other: Any) -> "Kernel":
        return self * other


def _require_kernel(other: Any) -> None:
    """Refuse functions and kernels of others, which might make one of their own."""
    if callable(other) and not isinstance(other, Kernel):
        raise TypeError(
            f"a kernel is combined with kernels, and got a {type(other).__name__}: "
            "write gp.kernels.as_kernel(...) around a function or a tinygp kernel."
        )


def _rows(x: ArrayLike) -> Float[Array, "N D"]:
    """``x`` as an array of floats, its rank checked."""
    x = jnp.asarray(x)
    if x.ndim != 2:
        raise ValueError(
            f"expected inputs of shape [N, D], got {x.shape}: a single column is "
            "written x[:, None]"
        )
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def _same_width(x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    x, y = _rows(x), _rows(y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"expected as many columns in x as in y, got {x.shape[1]} and "
            f"{y.shape[1]}: give both in full, active_columns chooses among them"
        )
    return x, y


@register_dataclass
@dataclass(frozen=True)
class Sum(Kernel):
    """k1(x, x') + k2(x, x'), written ``k1 + k2``.

    Example:
        >>> kernel = gp.kernels.RBF(1.0, 0.5) + gp.kernels.Constant(2.0)
        >>> kernel(x, z).shape
        (20, 5)
    """

    first: Value
    second: Value

    def _evaluate(self, pairs: Pairs) -> Array:
        return self.first.over(pairs) + self.second.over(pairs)

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return self.first.diagonal(x) + self.second.diagonal(x)


@register_dataclass
@dataclass(frozen=True)
class Product(Kernel):
    """k1(x, x') k2(x, x'), written ``k1 * k2``; ``2.0 * k1`` scales by a constant.

    Example:
        >>> kernel = 2.0 * gp.kernels.RBF(1.0, 0.5) * gp.kernels.Linear(1.0)
        >>> kernel(x, z).shape
        (20, 5)
    """

    first: Value
    second: Value

    def _evaluate(self, pairs: Pairs) -> Array:
        return self.first.over(pairs) * self.second.over(pairs)

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return self.first.diagonal(x) * self.second.diagonal(x)


@register_dataclass
@dataclass(frozen=True)
class Constant(Kernel):
    """σ², the covariance of one unknown level.

    Example:
        >>> gp.kernels.Constant(2.0)(x, z).shape
        (20, 5)
    """

    variance: Value = 1.0

    def _evaluate(self, pairs: Pairs) -> Array:
        ones = jnp.ones_like(pairs.same_row(), dtype=pairs.x.dtype)
        return single("variance", self.variance) * ones

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return single("variance", self.variance) * jnp.ones(len(x), x.dtype)


@register_dataclass
@dataclass(frozen=True)
class White(Kernel):
    """σ² if x and x' are the same row of the same array, else 0.

    The noise goes by position, as in GPflow: ``kernel(x)`` is σ² I, while
    ``kernel(x, y)`` and ``kernel.paired(x, y)`` are 0 even where the values agree.

    Example:
        >>> gp.kernels.White(0.1)(x, z).shape
        (20, 5)
    """

    variance: Value = 1.0

    def _evaluate(self, pairs: Pairs) -> Array:
        same = pairs.same_row().astype(pairs.x.dtype)
        return single("variance", self.variance) * same

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return single("variance", self.variance) * jnp.ones(len(x), x.dtype)
