"""Expectations on some rows at a time.

The expectation at a datum depends on y_n, the marginal of f_n and the values that the
likelihood has for row n. Cut into chunks of rows, a quadrature with S nodes takes
S numbers for each row of one chunk, and is done again in the backward pass.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from svgp_ppl.marginals import Marginal
from svgp_ppl.rows.sharding import in_blocks

__all__ = ["in_chunks"]

_NUMBERS = (int, float, np.ndarray, np.generic, jax.Array)


def in_chunks(
    function: Callable, likelihood: Any, y: Array, marginal: Marginal, size: int | None
) -> Float[Array, " N"]:
    """``function(likelihood, y, marginal)`` on ``size`` rows of every device at a time.

    A likelihood that is a pytree (those of ``likelihoods``, and dataclasses registered
    by ``register_dataclass``) is cut along its fields with N rows. What a function
    f -> distribution refers to cannot be cut: it gets all rows at once.

    Args:
        function: It returns a number for each row that it is given.
        likelihood: f -> NumPyro distribution.
        y: Data, [N] (and event axes).
        marginal: Distribution of the latent at each datum.
        size: Rows of a chunk; None for all.
    """
    if size is None or size >= len(y):
        return function(likelihood, y, marginal)
    fields, structure = jax.tree.flatten(likelihood)
    have_rows = _fields_with_rows(fields, structure, y, marginal, size)
    if have_rows is None:
        return function(likelihood, y, marginal)
    axes = _axis_of_rows(marginal)

    def of_chunk(chunk):
        y, moments, cut = chunk
        here = {name: jnp.moveaxis(m, 0, axes[name]) for name, m in moments.items()}
        values = [cut.get(i, field) for i, field in enumerate(fields)]
        whole = jax.tree.unflatten(structure, values)
        return function(whole, y, replace(marginal, **here))

    moments = {n: jnp.moveaxis(getattr(marginal, n), a, 0) for n, a in axes.items()}
    rows = y, moments, {i: jnp.asarray(fields[i]) for i in have_rows}
    return in_blocks(jax.checkpoint(of_chunk), rows, size, axis=0)


def _axis_of_rows(marginal: Marginal) -> dict[str, int]:
    """The axis of each array of a marginal that has the N rows."""
    axis = -1 if marginal.is_single else -2
    axes = {"mean": axis, "variance": axis}
    return axes if marginal.covariance is None else {**axes, "covariance": -3}


def _fields_with_rows(
    fields: list, structure: Any, y: Array, marginal: Marginal, size: int
) -> list[int] | None:
    """Which fields have a value for every row; None if the likelihood cannot be cut."""
    if not all(isinstance(field, _NUMBERS) for field in fields):
        return None
    mean = marginal.mean if marginal.log_weights is None else marginal.mean[0]
    f, some = (jax.ShapeDtypeStruct((size, *a.shape[1:]), a.dtype) for a in (mean, y))

    def takes_chunks(which: list[int]) -> bool:
        cut = [f[:size] if i in which else f for i, f in enumerate(fields)]

        def log_prob(values, f, y):
            return jax.tree.unflatten(structure, values)(f).log_prob(y)

        try:
            return jax.eval_shape(log_prob, cut, f, some).shape == (size,)
        except (TypeError, ValueError):
            return False

    # Where no field is needed for every row, one with N entries is something else.
    as_long = [i for i, f in enumerate(fields) if np.shape(f)[:1] == y.shape[:1]]
    return next((each for each in ([], as_long) if takes_chunks(each)), None)
