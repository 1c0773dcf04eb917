"""A function at every row, some rows at a time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from svgp_ppl.rows import filled_batches, in_batches


@pytest.mark.parametrize("size", [1, 3, 5, 10, 40])
def test_every_row_has_its_value_and_the_function_is_traced_once(size):
    traces = itertools.count()

    def function(row):
        next(traces)
        return {"sum": row["x"].sum(), "next": row["i"] + 1}

    rows = {"x": jnp.arange(30.0).reshape(10, 3), "i": np.arange(10)}
    found = jax.jit(lambda rows: in_batches(function, rows, size))(rows)
    assert next(traces) == 1
    np.testing.assert_array_equal(found["sum"], np.arange(30.0).reshape(10, 3).sum(1))
    np.testing.assert_array_equal(found["next"], np.arange(1, 11))


def test_the_last_batch_is_filled_up_with_the_last_row():
    np.testing.assert_array_equal(filled_batches(5, 3), [[0, 1, 2], [3, 4, 4]])
    np.testing.assert_array_equal(filled_batches(2, 3), [[0, 1]])
