"""Linear algebra: the one Cholesky, the one jitter; every numerical policy."""

from svgp_ppl.linalg.distances import inner_product, squared_distance
from svgp_ppl.linalg.factors import (
    CholeskyFactor,
    cholesky,
    default_jitter,
    factorised,
    floored_sqrt,
    safe_sqrt,
    small_cholesky,
    solve_lower,
    solve_lower_transposed,
)
from svgp_ppl.linalg.products import column_dots, matmul, small_product, weighted_sum
from svgp_ppl.linalg.projection import (
    PosteriorCache,
    cached_moments,
    gaussian_moments,
    posterior_cache,
    whiten,
)
from svgp_ppl.linalg.threads import single_threaded_lapack

__all__ = [
    "CholeskyFactor",
    "PosteriorCache",
    "cached_moments",
    "cholesky",
    "column_dots",
    "default_jitter",
    "factorised",
    "floored_sqrt",
    "gaussian_moments",
    "inner_product",
    "matmul",
    "posterior_cache",
    "safe_sqrt",
    "single_threaded_lapack",
    "small_cholesky",
    "small_product",
    "solve_lower",
    "solve_lower_transposed",
    "squared_distance",
    "weighted_sum",
    "whiten",
]
