"""Products in full precision.

By default accelerators multiply float32 matrices in reduced precision, which a
covariance matrix does not survive; on a CPU this changes nothing.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

__all__ = ["matmul", "weighted_sum"]

_HIGHEST = jax.lax.Precision.HIGHEST


def matmul(a: ArrayLike, b: ArrayLike) -> Array:
    """a @ b."""
    return jnp.matmul(a, b, precision=_HIGHEST)


def weighted_sum(weights: ArrayLike, values: ArrayLike) -> Array:
    """Σ_s w_s values_s over the first axis."""
    return jnp.tensordot(weights, values, axes=1, precision=_HIGHEST)
