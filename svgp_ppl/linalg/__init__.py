"""Linear algebra: the one Cholesky, the one jitter; every numerical policy."""

from svgp_ppl.linalg.distances import inner_product, squared_distance
from svgp_ppl.linalg.factors import (
    cholesky,
    default_jitter,
    floored_sqrt,
    inverse_lower,
    matmul,
    safe_sqrt,
    single_threaded_lapack,
    small_cholesky,
    small_product,
    solve_lower,
    solve_lower_transposed,
)
from svgp_ppl.linalg.projection import whitened_moments

__all__ = [
    "cholesky",
    "default_jitter",
    "floored_sqrt",
    "inner_product",
    "inverse_lower",
    "matmul",
    "safe_sqrt",
    "single_threaded_lapack",
    "small_cholesky",
    "small_product",
    "solve_lower",
    "solve_lower_transposed",
    "squared_distance",
    "whitened_moments",
]
