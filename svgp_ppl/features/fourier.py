"""Variational Fourier features of Matérn processes in one dimension.

Hensman, Durrande & Solin (2018). u_m = ⟨φ_m, f⟩ in the RKHS of k on [a, b], with φ = 1,
cos ω_m (x − a), sin ω_m (x − a) and ω_m = 2πm / (b − a). The inner product reproduces
f, so that k_uf(x) = φ(x) inside the interval, free of hyperparameters. For a Matérn
kernel of order p − ½, λ = √(2p − 1) / ℓ, spectral density s(ω) = q / (λ² + ω²)^p,

    ⟨g, h⟩ = (1/q) ∫_a^b (λ + ∂)^p g (λ + ∂)^p h + g(a)ᵀ P⁻¹ h(a),

g(a) = (g, g', …)(a) the state, P its stationary covariance (their inner products for
p = 1, 2 and 3 in one formula). Hence k_uu = diag(α) + B P⁻¹ Bᵀ with
α = (b − a) / 2s(ω_m), twice that for ω = 0, and B the states of φ. Beyond the interval
f follows from its state at the border: f(b + r) = Σ_j g_j(r) ∂ʲf(b) + noise, g_j
solving (λ + ∂)^p g = 0.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from svgp_ppl.checks import require_count
from svgp_ppl.features.states import (
    continuation,
    diffusion,
    order_of,
    stationary_covariance,
    variance_and_decay,
)
from svgp_ppl.kernels import Kernel
from svgp_ppl.linalg import matmul
from svgp_ppl.pytrees import register_dataclass

__all__ = ["Fourier"]


@register_dataclass
@dataclass(frozen=True)
class Fourier:
    """2 m + 1 variational Fourier features on the interval [a, b].

    Scaled by α^−½, so that k_uu is the identity plus a matrix of rank p. For
    ``Matern12``, ``Matern32`` and ``Matern52`` of one column (``active_columns`` picks
    it). Let the interval extend beyond the data by three lengthscales on both sides:
    the features have period b − a, and no number of them explains the rest of f, near a
    and b.

    Attributes:
        lower: a.
        upper: b.
        num_frequencies: m.

    Raises:
        ValueError: a is not below b, or m is not a positive integer.

    Example:
        >>> import svgp_ppl as gp
        >>> def model(x, y=None):
        ...     features = gp.features.Fourier(-1.0, 2.0, 20)
        ...     f = gp.sparse_gp("f", gp.kernels.Matern32(1.0, 0.3), features)
        ...     with numpyro.plate("data", len(x)):
        ...         gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)
    """

    lower: Any = field(metadata={"static": True})
    upper: Any = field(metadata={"static": True})
    num_frequencies: Any = field(metadata={"static": True})

    def __post_init__(self):
        """Check the values, which are not leaves of the pytree."""
        try:
            lower, upper = float(self.lower), float(self.upper)
        except (TypeError, ValueError):
            raise ValueError(
                "the interval of Fourier features is two numbers known before "
                f"compilation, and is {self.lower!r} to {self.upper!r}."
            ) from None
        if not -math.inf < lower < upper < math.inf:
            raise ValueError(
                "the interval [lower, upper] of Fourier features must be finite and "
                f"not empty, and is [{lower}, {upper}]."
            )
        require_count(self.num_frequencies, "num_frequencies of Fourier features")

    def __len__(self) -> int:
        return 2 * self.num_frequencies + 1

    def k_uu(self, kernel: Kernel) -> Float[Array, "M M"]:
        """I + B P⁻¹ Bᵀ, B scaled by α^−½."""
        scale, _ = self._scale(kernel)
        states = scale[:, None] * self._states(order_of(kernel))
        inner = jnp.linalg.inv(stationary_covariance(kernel))
        return jnp.eye(len(self)) + matmul(states, matmul(inner, states.T))

    def k_uf(self, kernel: Kernel, x: ArrayLike) -> Float[Array, "M N"]:
        """α^−½ φ(x), continued by the state beyond the interval.

        Raises:
            ValueError: The kernel is not a Matérn kernel of one column.
        """
        column = kernel.select(jnp.asarray(x))
        if column.shape[1] != 1:
            raise ValueError(
                f"Fourier features are of one column, and the kernel sees "
                f"{column.shape[1]}: give it one with active_columns=(d,), and add "
                "processes of other columns, f(x) + g(x)."
            )
        scale, decay = self._scale(kernel)
        x = column[:, 0]
        # Not jnp.clip, which has half the derivative at the ends.
        inside = jnp.where(
            x < self.lower, self.lower, jnp.where(x > self.upper, self.upper, x)
        )
        beyond = x - inside
        distance, side = jnp.abs(beyond), jnp.sign(beyond)
        phase = self._frequencies[1:, None] * (inside - self.lower)
        ones = jnp.ones((1, len(column)), phase.dtype)
        values = jnp.concatenate([ones, jnp.cos(phase), jnp.sin(phase)])
        weights = continuation(order_of(kernel), decay, distance)
        values = values * weights[0]
        for j, weight in enumerate(weights[1:], start=1):
            state = self._states(order_of(kernel))[:, j, None]
            values = values + state * (side**j * weight)
        return scale[:, None] * values

    @property
    def _frequencies(self) -> np.ndarray:
        """0 and ω_1 … ω_m."""
        step = 2 * np.pi / (self.upper - self.lower)
        return step * np.arange(self.num_frequencies + 1)

    def _scale(self, kernel: Kernel) -> tuple[Array, Array]:
        """α^−½, [M], and λ."""
        order, (variance, decay) = order_of(kernel), variance_and_decay(kernel)
        squares = np.square(self._frequencies)
        density = diffusion(order, variance, decay) / (decay**2 + squares) ** order
        scale = jnp.sqrt(2 * density / (self.upper - self.lower))
        scale = scale.at[0].divide(math.sqrt(2.0))
        return jnp.concatenate([scale, scale[1:]]), decay

    def _states(self, order: int) -> np.ndarray:
        """(φ, φ', …)(a) = (φ, φ', …)(b), [M, p]."""
        omega = self._frequencies
        zero, one = np.zeros_like(omega), np.ones_like(omega)
        cosine = np.stack([one, zero, -np.square(omega)][:order], axis=1)
        sine = np.stack([zero, omega, zero][:order], axis=1)
        return np.concatenate([cosine, sine[1:]])
