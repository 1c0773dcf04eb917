"""Kernels of the difference x − x', scaled by lengthscales."""

import abc
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl import linalg
from svgp_ppl.kernels.kernel import Kernel, Value, per_column, single
from svgp_ppl.kernels.pairs import Pairs
from svgp_ppl.pytrees import register_dataclass

__all__ = [
    "RBF",
    "Cosine",
    "Matern",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "RationalQuadratic",
    "Stationary",
]


@dataclass(frozen=True)
class Stationary(Kernel):
    """σ² ρ(r²) with r² = Σ_d ((x_d − x'_d) / ℓ_d)².

    Attributes:
        variance: σ².
        lengthscale: ℓ, one number or one for each active column.
    """

    variance: Value = 1.0
    lengthscale: Value = 1.0

    @abc.abstractmethod
    def _correlation(self, squared_distance: Array) -> Array:
        """ρ(r²), elementwise; ρ(0) = 1."""

    def _evaluate(self, pairs: Pairs) -> Array:
        lengthscale = per_column("lengthscale", self.lengthscale, pairs.x.shape[1])
        variance = single("variance", self.variance)
        return variance * self._correlation(pairs.squared_distance(lengthscale))

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return single("variance", self.variance) * jnp.ones(len(x), x.dtype)


@register_dataclass
@dataclass(frozen=True)
class RBF(Stationary):
    """σ² exp(−r²/2), the squared exponential: smooth functions.

    Example:
        >>> x = jnp.linspace(0.0, 1.0, 5)[:, None]
        >>> gp.kernels.RBF(variance=2.0, lengthscale=0.3)(x).shape
        (5, 5)
    """

    def _correlation(self, squared_distance: Array) -> Array:
        return jnp.exp(-0.5 * squared_distance)


@register_dataclass
@dataclass(frozen=True)
class RationalQuadratic(Stationary):
    """σ² (1 + r²/(2α))^(−α): a scale mixture of RBF kernels, RBF itself as α → ∞.

    Source: Rasmussen & Williams (2006), equation 4.19.

    Attributes:
        variance: σ².
        lengthscale: ℓ, one number or one for each active column.
        alpha: α.

    Example:
        >>> gp.kernels.RationalQuadratic(1.0, 0.5)(x, z).shape
        (20, 5)
    """

    alpha: Value = 1.0

    def _correlation(self, squared_distance: Array) -> Array:
        alpha = single("alpha", self.alpha)
        # The power through log1p keeps its digits when α is large.
        return jnp.exp(-alpha * jnp.log1p(0.5 * squared_distance / alpha))


@dataclass(frozen=True)
class Matern(Stationary):
    """σ² ρ(r), the Matérn family: Rasmussen & Williams (2006), section 4.2.1."""


# Written as functions of s = r², because the root would lose the slopes at s = 0: these
# are the variances of derivatives, ∂²k(x, x') / ∂x ∂x' = −2 ρ'(0) σ²/ℓ² at x = x'.


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern32(rate: float, s: Array) -> Array:
    """(1 + c r) exp(−c r), with the slope −c²/2 exp(−c r)."""
    scaled = rate * linalg.safe_sqrt(s)
    return (1.0 + scaled) * jnp.exp(-scaled)


@_matern32.defjvp
def _(rate, primals, tangents):
    (s,), (ds,) = primals, tangents
    slope = -0.5 * rate**2 * jnp.exp(-rate * linalg.safe_sqrt(s))
    return _matern32(rate, s), slope * ds


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern52(rate: float, s: Array) -> Array:
    """(1 + c r + c²r²/3) exp(−c r), with the slope −c²/6 (1 + c r) exp(−c r)."""
    scaled = rate * linalg.safe_sqrt(s)
    return (1.0 + scaled + scaled * scaled / 3.0) * jnp.exp(-scaled)


@_matern52.defjvp
def _(rate, primals, tangents):
    (s,), (ds,) = primals, tangents
    return _matern52(rate, s), -(rate**2) / 6.0 * _matern32(rate, s) * ds


@register_dataclass
@dataclass(frozen=True)
class Matern12(Matern):
    """σ² exp(−r): continuous functions without a derivative.

    Example:
        >>> gp.kernels.Matern12(1.0, 0.5)(x, z).shape
        (20, 5)
    """

    def _correlation(self, squared_distance: Array) -> Array:
        # The gradient at r = 0, where the kink is, is taken for 0.
        return jnp.exp(-linalg.safe_sqrt(squared_distance))


@register_dataclass
@dataclass(frozen=True)
class Matern32(Matern):
    """σ² (1 + √3 r) exp(−√3 r): functions with one derivative.

    Example:
        >>> gp.kernels.Matern32(1.0, 0.5)(x, z).shape
        (20, 5)
    """

    def _correlation(self, squared_distance: Array) -> Array:
        return _matern32(3**0.5, squared_distance)


@register_dataclass
@dataclass(frozen=True)
class Matern52(Matern):
    """σ² (1 + √5 r + 5r²/3) exp(−√5 r): functions with two derivatives.

    Example:
        >>> gp.kernels.Matern52(1.0, jnp.array([0.5]))(x, z).shape
        (20, 5)
    """

    def _correlation(self, squared_distance: Array) -> Array:
        return _matern52(5**0.5, squared_distance)


@register_dataclass
@dataclass(frozen=True)
class Periodic(Kernel):
    """A stationary kernel of s_d = sin(π (x_d − x'_d) / period_d) / ℓ_d.

    RBF and RationalQuadratic take r² = Σ_d s_d², as in MacKay (1998), equation 47; the
    Matérn kernels take r = Σ_d ``|s_d|``. Both as in GPflow: no factor 2 of the sine.
    For several columns Matern32 and Matern52 are then not positive definite: multiply
    one periodic kernel per column instead.

    Attributes:
        base: The stationary kernel, which keeps σ², ℓ and its own active columns.
        period: One number or one for each active column.

    Example:
        >>> kernel = gp.kernels.Periodic(gp.kernels.RBF(1.0, 0.5), period=2.0)
        >>> kernel(x).shape
        (20, 20)
    """

    base: Value
    period: Value = 1.0

    def _evaluate(self, pairs: Pairs) -> Array:
        base, pairs = self._stationary(), pairs.map(self.base.select)
        width = pairs.x.shape[1]
        period = per_column("period", self.period, width)
        lengthscale = per_column("lengthscale", base.lengthscale, width)
        sine = jnp.sin(jnp.pi * _turns(pairs.difference(), period)) / lengthscale
        if isinstance(base, Matern) and width > 1:
            squared_distance = jnp.square(jnp.sum(jnp.abs(sine), axis=-1))
        else:
            squared_distance = jnp.sum(jnp.square(sine), axis=-1)
        return single("variance", base.variance) * base._correlation(squared_distance)

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return self._stationary().diagonal(x)

    def _stationary(self) -> Stationary:
        if not isinstance(self.base, Stationary):
            raise ValueError(
                "expected a stationary base (RBF, RationalQuadratic, Matern12, "
                f"Matern32 or Matern52) for Periodic, got {type(self.base).__name__}"
            )
        if type(self.base)._evaluate is not Stationary._evaluate:
            raise ValueError(
                "Periodic takes the correlation of its base as a function of r², and "
                f"{type(self.base).__name__} writes _evaluate anew: write "
                "_correlation, or a kernel of its own in place of Periodic"
            )
        return self.base


@register_dataclass
@dataclass(frozen=True)
class Cosine(Kernel):
    """σ² cos(2π Σ_d (x_d − x'_d) / ℓ_d): a sinusoid of random phase.

    Attributes:
        variance: σ².
        lengthscale: ℓ, the wavelength, one number or one for each active column.

    Example:
        >>> gp.kernels.Cosine(1.0)(x, z).shape
        (20, 5)
    """

    variance: Value = 1.0
    lengthscale: Value = 1.0

    def _evaluate(self, pairs: Pairs) -> Array:
        lengthscale = per_column("lengthscale", self.lengthscale, pairs.x.shape[1])
        phase = jnp.sum(_turns(pairs.difference(), lengthscale), axis=-1)
        return single("variance", self.variance) * jnp.cos(2 * jnp.pi * phase)

    def _evaluate_diagonal(self, x: Float[Array, "N D"]) -> Array:
        return single("variance", self.variance) * jnp.ones(len(x), x.dtype)


def _turns(difference: Array, period: Array) -> Array:
    """(x − x')/period, less its nearest whole number.

    Whole turns are taken off before the division, which would round their number: with
    a day of 24 hours, say, nothing is lost over years in float32.
    """
    whole = jnp.round(difference / period)
    # None of an infinite period.
    return (difference - jnp.where(whole == 0.0, 0.0, whole * period)) / period
