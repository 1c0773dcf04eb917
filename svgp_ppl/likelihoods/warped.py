"""Warped Gaussian processes: t(y) = f + noise, with an increasing map t to learn."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array

from svgp_ppl.checks import is_concrete
from svgp_ppl.expectations import (
    GaussHermite,
    average,
    closed_form_cdf,
    closed_form_expectation,
    closed_form_log_predictive,
    predictive_mean_and_variance,
)
from svgp_ppl.likelihoods.values import Value, settle_scale
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["BoxCox", "TanhSum", "Warped"]

# Nodes of the moments of y. Exact to 1e-10 for the exponential, t = log, of a Gaussian
# of standard deviation 2.
_NUM_NODES = 40
# Newton steps, or bisections where Newton fails. Every two of them halve the bracket,
# which starts at twice the sum of the heights: to 1e-9 of that at worst, in practice to
# rounding, because the last steps are Newton's.
_NUM_STEPS = 60


@register_dataclass
@dataclass(frozen=True)
class Warped:
    """y = t⁻¹(f + scale ε): the data are Gaussian after the map t.

    p(y|f) = N(t(y); f, scale²) · abs(t'(y)) (Snelson, Rasmussen & Ghahramani 2003).
    The map acts on each datum by itself and is invertible. It is one of this module
    (:class:`TanhSum`, :class:`BoxCox`), or of NumPyro (the logarithm is
    ``ExpTransform().inv``), or an object with their methods: ``t(y)``, ``t.inv(g)``,
    ``t.log_abs_det_jacobian(y, g)``, and ``t.domain``, the support of y. Its values
    may be sites and params. Expectation and log predictive density have closed forms;
    the moments of y are integrals of t⁻¹ by 40 Gauss–Hermite nodes.

    Attributes:
        transform: The map t, from y to the real line.
        scale: Standard deviation of the noise after the map, a number or [N].

    Raises:
        ValueError: ``transform`` lacks one of these.

    Example:
        >>> from numpyro.distributions.transforms import ExpTransform
        >>> gp.likelihoods.Warped(ExpTransform().inv, 0.3)(jnp.zeros(4)).batch_shape
        (4,)
    """

    transform: Any
    scale: Value

    def __post_init__(self):
        settle_scale(self, "Warped")
        needed = ("__call__", "inv", "log_abs_det_jacobian", "domain")
        missing = [name for name in needed if not hasattr(self.transform, name)]
        if missing or isinstance(self.transform, type):
            raise ValueError(
                "transform must be a map from y to the real line, a NumPyro transform "
                "or an object with the methods of one, and is "
                f"{self.transform!r}. The logarithm is "
                "numpyro.distributions.transforms.ExpTransform().inv."
            )

    def __call__(self, f: Array) -> dist.Distribution:
        """The distribution of t⁻¹(f + scale ε)."""
        return _WarpedNormal(f, self.scale, self.transform)

    def quantiles(self, levels, latent_mean: Array, latent_variance: Array) -> Array:
        """Quantiles of y, t⁻¹(m + √(v + scale²) Φ⁻¹(level)), [levels, N].

        For a Gaussian q(v), with the moments of f that ``predict`` gives. For a
        mixture or for draws use ``jnp.quantile`` of ``Prediction.sample``.

        Args:
            levels: Probabilities in (0, 1), [levels].
            latent_mean: E f_n, [N].
            latent_variance: Var f_n, [N].

        Example:
            >>> log = dist.transforms.ExpTransform().inv
            >>> likelihood = gp.likelihoods.Warped(log, 0.5)
            >>> likelihood.quantiles([0.5], jnp.zeros(2), jnp.ones(2))
            Array([[1., 1.]], dtype=float32)
        """
        sd = jnp.sqrt(latent_variance + jnp.square(self.scale))
        level = jnp.asarray(levels, sd.dtype)[:, None]
        # A decreasing map takes the level p to 1 − p.
        ends = self.transform.inv(latent_mean + sd), self.transform.inv(latent_mean)
        e = jnp.where(ends[0] >= ends[1], ndtri(level), ndtri(1.0 - level))
        return self.transform.inv(latent_mean + sd * e)


class _WarpedNormal(dist.Distribution):
    """t⁻¹ of a normal variable."""

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("loc", "scale", "transform")

    def __init__(self, loc, scale, transform):
        self.loc, self.scale, self.transform = loc, scale, transform
        shape = jnp.broadcast_shapes(jnp.shape(loc), jnp.shape(scale))
        super().__init__(shape, ())

    @property
    def support(self):
        return self.transform.domain

    def sample(self, key: Any, sample_shape=()):
        noise = random.normal(key, sample_shape + self.batch_shape, self.loc.dtype)
        return self.transform.inv(self.loc + self.scale * noise)

    def log_prob(self, value, intermediates=None):
        g, log_slope = _warp(self.transform, value, self.loc.dtype)
        return dist.Normal(self.loc, self.scale).log_prob(g) + log_slope


def _warp(transform, y, dtype) -> tuple[Array, Array]:
    """t(y) and log |t'(y)|."""
    y = jnp.asarray(y, dtype)
    g = transform(y)
    return g, transform.log_abs_det_jacobian(y, g)


@closed_form_expectation.register
def _(likelihood: Warped, y, marginal: Marginal):
    # log N(t(y); m, s²) − v / (2 s²) + log |t'(y)|
    g, log_slope = _warp(likelihood.transform, y, marginal.mean.dtype)
    density = dist.Normal(marginal.mean, likelihood.scale).log_prob(g)
    spread = 0.5 * marginal.variance / jnp.square(likelihood.scale)
    return density - spread + log_slope


@closed_form_log_predictive.register
def _(likelihood: Warped, y, marginal: Marginal):
    # N(t(y); m, v + s²) |t'(y)|
    g, log_slope = _warp(likelihood.transform, y, marginal.mean.dtype)
    scale = jnp.sqrt(marginal.variance + jnp.square(likelihood.scale))
    return dist.Normal(marginal.mean, scale).log_prob(g) + log_slope


@closed_form_cdf.register
def _(likelihood: Warped, y, marginal: Marginal):
    # Φ((t(y) − m)/√(v + s²)), or the other tail for a decreasing map.
    scale = jnp.sqrt(marginal.variance + jnp.square(likelihood.scale))
    z = (likelihood.transform(y) - marginal.mean) / scale
    ends = likelihood.transform.inv(marginal.mean + scale)
    return ndtr(jnp.where(ends >= likelihood.transform.inv(marginal.mean), z, -z))


@predictive_mean_and_variance.register
def _(likelihood: Warped, marginal: Marginal):
    variance = marginal.variance + jnp.square(likelihood.scale)
    noisy = Marginal(marginal.mean, variance, None, marginal.log_weights)
    nodes, inverse = GaussHermite(_NUM_NODES), likelihood.transform.inv
    mean = noisy.average(average(inverse, noisy, nodes))
    square = average(lambda g: jnp.square(inverse(g) - mean), noisy, nodes)
    return mean, noisy.average(square)


# ---------------------------------------------------------------------------- the maps


@register_dataclass
@dataclass(frozen=True)
class TanhSum:
    """t(y) = y + Σ_i a_i tanh( b_i (y + c_i) ), with a_i, b_i >= 0.

    The map of Snelson, Rasmussen & Ghahramani (2003): smooth steps at −c_i, of height
    2 a_i and steepness b_i. Its inverse is found by Newton's method kept inside a
    bracket, and differentiated by the implicit function theorem.

    Attributes:
        height: a, [I].
        slope: b, [I].
        shift: c, [I].

    Raises:
        ValueError: The shapes differ; a concrete height or slope is negative.

    Example:
        >>> from svgp_ppl.likelihoods.warped import TanhSum
        >>> t = TanhSum(jnp.array([0.5]), jnp.array([2.0]), jnp.array([0.0]))
        >>> bool(jnp.allclose(t.inv(t(jnp.array([1.3]))), 1.3))
        True
    """

    height: Any
    slope: Any
    shift: Any

    domain: ClassVar[Any] = dist.constraints.real

    def __post_init__(self):
        held = (self.height, self.slope, self.shift)
        shapes = [np.shape(value) for value in held]
        if len(set(shapes)) != 1 or len(shapes[0]) != 1:
            raise ValueError(
                "height, slope and shift of TanhSum must have one shape, [I], and have "
                f"{shapes[0]}, {shapes[1]} and {shapes[2]}."
            )
        for name, value in (("height", self.height), ("slope", self.slope)):
            if is_concrete(value) and not np.all(np.asarray(value) >= 0):
                raise ValueError(
                    f"{name} of TanhSum must be >= 0, or t does not increase, and is "
                    f"{value}. As a param: constraint=constraints.positive."
                )

    def __call__(self, y: Array) -> Array:
        """t(y)."""
        return _tanh_sum(self.height, self.slope, self.shift, y)

    def inv(self, g: Array) -> Array:
        """t⁻¹(g)."""
        held = (self.height, self.slope, self.shift)
        a, b, c = (jnp.asarray(value, g.dtype) for value in held)
        return _inverse_of_tanh_sum(a, b, c, g)

    def log_abs_det_jacobian(self, y: Array, g: Array) -> Array:
        """log t'(y)."""
        return jnp.log(_slope_of_tanh_sum(self.height, self.slope, self.shift, y))


def _tanh_sum(height, slope, shift, y) -> Array:
    return y + jnp.sum(height * jnp.tanh(slope * (y[..., None] + shift)), axis=-1)


def _slope_of_tanh_sum(height, slope, shift, y) -> Array:
    """1 + Σ a b sech²(b (y + c)), at least 1."""
    tanh = jnp.tanh(slope * (y[..., None] + shift))
    return 1.0 + jnp.sum(height * slope * (1.0 - jnp.square(tanh)), axis=-1)


@jax.custom_jvp
def _inverse_of_tanh_sum(height, slope, shift, g) -> Array:
    reach = jnp.sum(jnp.abs(height))  # |t(y) − y| <= Σ a

    def step(_, state):
        low, high, y, moved = state
        excess = _tanh_sum(height, slope, shift, y) - g
        low, high = jnp.where(excess < 0, y, low), jnp.where(excess > 0, y, high)
        newton = -excess / _slope_of_tanh_sum(height, slope, shift, y)
        # Only steps that at least halve: Newton's method can run in circles.
        good = (y + newton >= low) & (y + newton <= high)
        good = good & (jnp.abs(newton) <= 0.5 * moved)
        y = jnp.where(good, y + newton, 0.5 * (low + high))
        return low, high, y, jnp.where(good, jnp.abs(newton), 0.5 * (high - low))

    start = g - reach, g + reach, g, jnp.full_like(g, 4.0 * reach)
    return jax.lax.fori_loop(0, _NUM_STEPS, step, start)[2]


@_inverse_of_tanh_sum.defjvp
def _(primals, tangents):
    # t(y; θ) = g:  t'(y) dy = dg − (∂t/∂θ) dθ
    a, b, c, g = primals
    y = _inverse_of_tanh_sum(a, b, c, g)
    _, moved = jax.jvp(lambda a, b, c: _tanh_sum(a, b, c, y), (a, b, c), tangents[:3])
    return y, (tangents[3] - moved) / _slope_of_tanh_sum(a, b, c, y)


@register_dataclass
@dataclass(frozen=True)
class BoxCox:
    """t(y) = (y^λ − 1)/λ for y > 0, and log y for λ = 0 (Box & Cox 1964).

    For λ ≠ 0 its range ends at −1/λ, which cuts off the Gaussian of f + noise: a value
    beyond it means y = 0 (λ > 0) or y = ∞ (λ < 0), and p(y|f) integrates to one less
    the mass beyond. Choose λ so that this mass is small for your data.

    Attributes:
        power: λ, a number, a site or a param.
    """

    power: Value

    domain: ClassVar[Any] = dist.constraints.positive

    def __call__(self, y: Array) -> Array:
        """t(y)."""
        # log y · (exp(z) − 1)/z with z = λ log y
        log_y = jnp.log(y)
        return log_y * _ratio(jnp.expm1, self.power * log_y, 0.5)

    def inv(self, g: Array) -> Array:
        """t⁻¹(g), 0 or ∞ beyond the range of t."""
        # log y = g · log(1 + z)/z with z = λ g
        z = self.power * g
        inside = z > -1.0
        log_y = g * _ratio(jnp.log1p, jnp.where(inside, z, 0.0), -0.5)
        end = jnp.where(jnp.asarray(self.power) > 0, 0.0, jnp.inf)
        return jnp.where(inside, jnp.exp(log_y), end)

    def log_abs_det_jacobian(self, y: Array, g: Array) -> Array:
        """log t'(y) = (λ − 1) log y."""
        return (self.power - 1.0) * jnp.log(y)


def _ratio(function, z: Array, half: float) -> Array:
    """function(z)/z = 1 + half · z + …, also at z = 0, with its derivative there."""
    # Below √eps the next term, z²/3 or z²/6, is less than rounding.
    tiny = jnp.abs(z) < jnp.finfo(jnp.result_type(z)).eps ** 0.5
    safe = jnp.where(tiny, 1.0, z)
    return jnp.where(tiny, 1.0 + half * z, function(safe) / safe)
