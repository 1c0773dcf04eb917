"""Matérn processes of one dimension as states (f, f', …) of a linear system.

A Matérn kernel of order p − ½, λ = √(2p − 1) / ℓ, is the covariance of the stationary
solution of (λ + ∂)^p f = √q white noise: Hartikainen & Särkkä (2010).
"""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl.kernels import Kernel, Matern12, Matern32, Matern52

__all__ = [
    "continuation",
    "diffusion",
    "order_of",
    "stationary_covariance",
    "variance_and_decay",
]

_ORDERS = {Matern12: 1, Matern32: 2, Matern52: 3}


def order_of(kernel: Kernel) -> int:
    """p of a Matérn kernel of order p − ½."""
    if type(kernel) not in _ORDERS:
        raise ValueError(
            "Fourier features are known for Matern12, Matern32 and Matern52, and the "
            f"kernel is {type(kernel).__name__}. A factor goes into its variance; a "
            "sum of kernels is a sum of processes, f(x) + g(x)."
        )
    return _ORDERS[type(kernel)]


def variance_and_decay(kernel: Any) -> tuple[Array, Array]:
    """σ² and λ = √(2p − 1) / ℓ."""
    root = math.sqrt(2 * order_of(kernel) - 1)
    lengthscale = jnp.reshape(jnp.asarray(kernel.lengthscale, float), ())
    return jnp.asarray(kernel.variance, float), root / lengthscale


def diffusion(order: int, variance: Array, decay: Array) -> Array:
    """q of the spectral density q / (λ² + ω²)^p, whose integral over 2π is σ²."""
    return (2.0, 4.0, 16.0 / 3.0)[order - 1] * variance * decay ** (2 * order - 1)


def stationary_covariance(kernel: Kernel) -> Float[Array, "p p"]:
    """P = Cov of (f, f', …) at one point: ±∂^(i+j) k(0)."""
    order, (variance, decay) = order_of(kernel), variance_and_decay(kernel)
    square, zero = decay**2, jnp.zeros(())
    if order < 3:
        return variance * jnp.diag(jnp.stack([jnp.ones(()), square])[:order])
    slope = square / 3
    rows = [[jnp.ones(()), zero, -slope], [zero, slope, zero]]
    rows.append([-slope, zero, square**2])
    return variance * jnp.stack([jnp.stack(row) for row in rows])


def continuation(order: int, decay: Array, r: Array) -> list[Array]:
    """g_j(r) with (λ + ∂)^p g_j = 0 and ∂ⁱg_j(0) = [i = j]."""
    fall, scaled = jnp.exp(-decay * r), decay * r
    if order == 1:
        return [fall]
    if order == 2:
        return [fall * (1 + scaled), fall * r]
    first = 1 + scaled + jnp.square(scaled) / 2
    return [fall * first, fall * r * (1 + scaled), fall * jnp.square(r) / 2]
