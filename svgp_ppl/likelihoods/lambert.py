"""Lambert's function of an exponential: where a straight line meets an exponential."""

import jax.numpy as jnp
from jaxtyping import Array

__all__ = ["log_lambert"]

# Enough from anywhere above the root.
_NEWTON_STEPS = 6


def log_lambert(a: Array) -> Array:
    """log w with w + log w = a, so that w = W(e^a), which cannot overflow.

    By Newton's method for log w: convex, and started above the root.
    """
    log_w = jnp.where(a > 1.0, jnp.log(jnp.maximum(a, 1.0)), a)
    for _ in range(_NEWTON_STEPS):
        w = jnp.exp(log_w)
        log_w = log_w - (log_w + w - a) / (1.0 + w)
    return log_w
