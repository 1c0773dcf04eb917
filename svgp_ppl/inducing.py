"""Where to put the inducing inputs z, before or instead of learning them.

Everything here runs once, on the host, on concrete data, and says what is wrong with
them. ``kmeans`` suits most problems, ``greedy_variance`` is the best start when the
kernel is roughly known, ``grid`` suits one or two columns.
"""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike
from scipy.cluster.vq import kmeans2, vq

from svgp_ppl import linalg
from svgp_ppl.checks import (
    data_array,
    is_concrete,
    require_count,
    require_key,
)
from svgp_ppl.kernels import Kernel, as_kernel
from svgp_ppl.rounding import require_digits

__all__ = ["greedy_variance", "grid", "kmeans", "subset"]

# Meant to be an int (or a tuple of ints); a wrong one gets a helpful message.
Count = Any

# Lloyd's iterations per round, and rounds of replacing the centres that lost their
# rows: a start needs no more, since z is learned or judged by the bound afterwards.
_ITERATIONS = 20
_ROUNDS = 10


def kmeans(x: ArrayLike, m: Count, *, seed: int = 0) -> Float[Array, "M D"]:
    """Centres of ``m`` clusters of the rows of ``x``.

    Lloyd's algorithm from a k-means++ start (Arthur & Vassilvitskii 2007). The columns
    count as given: standardise them first if their scales are not comparable. Every
    centre has rows of its own and no two are equal. The time grows as N m; for millions
    of rows a random part of them does as well.

    Args:
        x: Inputs [N, D].
        m: Number of centres, at most the number of distinct rows.
        seed: Seed of the random start.

    Raises:
        ValueError: If ``x`` is not a finite matrix, or ``m`` does not suit it.

    Example:
        >>> gp.inducing.kmeans(np.array([[0.0], [0.1], [5.0], [5.1]]), 2).shape
        (2, 1)
    """
    rows = _finite_rows(x)
    _distinct_rows(rows, m)
    rng = np.random.default_rng(seed)
    # scipy expands ‖x − z‖² for wide x, which would lose data far from the origin.
    origin = rows.mean(axis=0, dtype=np.float64)
    wide = rows - origin
    centres = _spread(wide, wide[rng.integers(len(wide))][None], m, rng)
    for _ in range(_ROUNDS):
        with warnings.catch_warnings():
            # "One of the clusters is empty": it is refilled below.
            warnings.simplefilter("ignore", UserWarning)
            centres, _ = kmeans2(wide, centres, iter=_ITERATIONS, minit="matrix")
        nearest, _ = vq(wide, centres)
        # Equal after rounding to the precision of x counts as equal.
        rounded = (centres[np.unique(nearest)] + origin).astype(rows.dtype)
        kept = np.unique(rounded, axis=0)
        centres = _spread(wide, kept - origin, m)
        if len(kept) == m:
            break
    return jnp.asarray((centres + origin).astype(rows.dtype))


def _spread(
    rows: np.ndarray,
    centres: np.ndarray,
    m: int,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """``centres``, with rows added until there are ``m``.

    Rows are drawn with probability proportional to the squared distance from the
    nearest centre (k-means++); without a generator, the farthest row is taken.
    """
    if len(centres) == m:
        return centres
    squares = np.full(len(rows), np.inf)
    for centre in centres:
        squares = np.minimum(squares, np.square(rows - centre).sum(axis=1))
    for _ in range(m - len(centres)):
        if rng is None:
            row = rows[np.argmax(squares)]
        else:
            row = rows[rng.choice(len(rows), p=squares / squares.sum())]
        centres = np.concatenate([centres, row[None]])
        squares = np.minimum(squares, np.square(rows - row).sum(axis=1))
    return centres


def greedy_variance(x: ArrayLike, m: Count, kernel: Any) -> Float[Array, "M D"]:
    """``m`` rows of ``x`` chosen one by one where the conditional variance is largest.

    The pivots of a Cholesky factorisation of k(x, x): Burt, Rasmussen & van der Wilk
    (2020). O(N m²) time, O(N m) memory. Among equal variances (the first choice for a
    stationary kernel) the earliest row is taken.

    Args:
        x: Inputs [N, D].
        m: Number of rows, at most the number of distinct rows.
        kernel: Anything that :func:`svgp_ppl.kernels.as_kernel` takes, with roughly
            correct values.

    Raises:
        ValueError: If ``x`` is not a finite matrix, or ``m`` or ``kernel`` is unsuited.

    Example:
        >>> x = np.linspace(0.0, 1.0, 50)[:, None]
        >>> gp.inducing.greedy_variance(x, 5, gp.kernels.RBF(lengthscale=0.2)).shape
        (5, 1)
    """
    rows = jnp.asarray(_distinct_rows(_finite_rows(x), m))
    return rows[_pivots(as_kernel(kernel), rows, m)]


@functools.partial(jax.jit, static_argnames="m")
def _pivots(kernel: Kernel, x: Float[Array, "N D"], m: int) -> Int[Array, " M"]:
    """The first ``m`` pivots of the Cholesky factorisation of k(x, x)."""
    prior = kernel.diagonal(x)
    # A conditional variance below this is rounding: never divide by its root.
    floor = jnp.finfo(prior.dtype).eps * jnp.max(prior)

    def step(j: Array, carry: tuple[Array, Array, Array]):
        pivots, factor, variance = carry
        i = jnp.argmax(variance)
        scale = jnp.sqrt(jnp.maximum(variance[i], floor))
        # L_nj = (k(x_n, x_i) − Σ_{l<j} L_nl L_il) / √variance_i
        column = kernel(x, x[i][None])[:, 0] - linalg.matmul(factor[:, i], factor)
        rest = jnp.maximum(variance - jnp.square(column / scale), 0.0)
        # A chosen row stays chosen: −1 is below every variance.
        rest = jnp.where(variance < 0, -1.0, rest).at[i].set(-1.0)
        return pivots.at[j].set(i), factor.at[j].set(column / scale), rest

    start = (
        jnp.zeros(m, int),
        jnp.zeros((m, len(x)), prior.dtype),
        prior,
    )
    return lax.fori_loop(0, m, step, start)[0]


def grid(x: ArrayLike, m: Count) -> Float[Array, "M D"]:
    """An even grid over the bounding box of ``x``, its borders included.

    Args:
        x: Inputs [N, D].
        m: Number of points in total (for D > 1 a D-th power), or a tuple with the
            number along each column; a single point along a column is in the middle.

    Raises:
        ValueError: If ``x`` is not a finite matrix, ``m`` does not suit it, or points
            would coincide because a column is constant.

    Example:
        >>> gp.inducing.grid(np.array([[0.0, 0.0], [1.0, 2.0]]), (3, 5)).shape
        (15, 2)
    """
    rows = _finite_rows(x)
    lower, upper = rows.min(axis=0), rows.max(axis=0)
    axes = []
    for column, count in enumerate(_counts(m, rows.shape[1])):
        low, high = lower[column], upper[column]
        if count > 1 and low == high:
            raise ValueError(
                f"expected a spread in every column of x, but column {column} is "
                f"constant: put 1 in its place in a tuple m, got {m!r}"
            )
        if count == 1:
            low = low + (high - low) / 2
        axes.append(np.linspace(low, high, count, dtype=rows.dtype))
    mesh = np.meshgrid(*axes, indexing="ij")
    return jnp.asarray(np.stack([axis.ravel() for axis in mesh], axis=1))


def _counts(m: Count, width: int) -> tuple[int, ...]:
    """The number of grid points along each of ``width`` columns."""
    if isinstance(m, tuple):
        if len(m) != width:
            raise ValueError(
                f"expected a tuple m with {width} numbers, one for each column of x, "
                f"got {m!r}"
            )
        return tuple(_count(count) for count in m)
    side = round(_count(m) ** (1 / width))
    if side**width != m:
        raise ValueError(
            f"expected m to be the number of points of a grid in {width} columns, "
            f"such as {side**width} = {' * '.join([str(side)] * width)}; got {m}. A "
            f"tuple gives the number along each column, such as m={(side,) * width}"
        )
    return (side,) * width


def subset(x: ArrayLike, m: Count, key: Array) -> Float[Array, "M D"]:
    """``m`` distinct rows of ``x``, drawn at random without replacement.

    Args:
        x: Inputs [N, D].
        m: Number of rows, at most the number of distinct rows.
        key: A ``jax.random`` key.

    Raises:
        ValueError: If ``x`` is not a finite matrix, or ``m`` does not suit it.

    Example:
        >>> gp.inducing.subset(np.arange(8.0)[:, None], 3, random.key(0)).shape
        (3, 1)
    """
    rows = jnp.asarray(_distinct_rows(_finite_rows(x), m))
    require_key(key, "key")
    return random.choice(key, rows, (m,), replace=False)


def _finite_rows(x: ArrayLike) -> np.ndarray:
    """``x`` on the host, as floats of the precision JAX gives it."""
    if not is_concrete(x):
        raise ValueError(
            "inducing inputs are chosen from data, and x has no values inside of a "
            "model: choose z before it, z = gp.inducing.kmeans(x, 20), and let the "
            "model use that. (So z is also the same where the model predicts.)"
        )
    rows = np.asarray(data_array(x, "the inputs x"))
    if rows.ndim != 2:
        raise ValueError(
            f"expected inputs x of shape [N, D], got {rows.shape}: a single column is "
            "written x[:, None]"
        )
    if rows.size == 0:
        raise ValueError(
            f"expected at least one row and one column in x, got shape {rows.shape}: "
            "was everything filtered out?"
        )
    floating = np.issubdtype(rows.dtype, np.floating)
    dtype = jax.dtypes.canonicalize_dtype(rows.dtype if floating else np.float64)
    finite = np.isfinite(rows.astype(dtype)).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"expected finite inputs x, got {np.count_nonzero(~finite)} rows with NaN "
            f"or infinity, the first at {np.argmin(finite)}: drop or impute them"
        )
    # Of a column that is rounded to one number, z would not show that it varies.
    require_digits(rows, "the inputs x")
    return rows.astype(np.promote_types(dtype, np.float32))


def _distinct_rows(rows: np.ndarray, m: Count) -> np.ndarray:
    """``rows`` without repetitions, in order of first appearance: at least ``m``."""
    _, first = np.unique(rows, axis=0, return_index=True)
    if _count(m) > len(first):
        raise ValueError(
            f"expected m to be at most the number of distinct rows of x, {len(first)} "
            f"(of {len(rows)}, in {rows.dtype}), got {m}: equal inducing inputs make "
            f"k(z, z) singular, use m={len(first)} or less"
        )
    return rows[np.sort(first)]


def _count(m: Count) -> int:
    """``m``, a positive integer."""
    return require_count(m, "m, the number of inducing inputs,")
