"""Likelihoods on the real line: Gaussian, with varying scale, and heavy-tailed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from svgp_ppl.checks import require_positive
from svgp_ppl.expectations import (
    Trapezoid,
    average,
    closed_form_cdf,
    closed_form_expectation,
    closed_form_log_predictive,
    log_average_by_trapezoid,
    nearest_singularity,
    predictive_mean_and_variance,
)
from svgp_ppl.likelihoods.stirling import stirling_error
from svgp_ppl.likelihoods.values import Value, settle, settle_scale
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = [
    "Gaussian",
    "HeteroscedasticGaussian",
    "StudentT",
    "mean_log_one_plus_square",
]

# Nodes in c t of ``mean_log_one_plus_square``: from where the square of the first node
# to where the rest of (1 + 2vt)^−½ at 1e10 is below the accuracy. A node costs as much
# as one of Gauss–Hermite, of which 32 would miss 1e-4 nats at df = 30 threefold.
_STEP = 0.75
_TAU = 3e-3 * np.exp(_STEP * np.arange(40))
_MOST_TAU = 30.0  # from here on e^−τ is left out
# Nodes over a log scale f_1: a spacing of 0.13 standard deviations.
_NODES_OF_LOG_SCALE = 128
# Nodes of ``_inverse_gamma_nodes``, and the fall of the log density at their ends.
_NUM_NODES, _FALL = 64, 16.0


@register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """y ~ N(f, scale²).

    Attributes:
        scale: Standard deviation of the noise, a number or [N].

    Example:
        >>> from svgp_ppl.likelihoods import Gaussian
        >>> gp.likelihoods.Gaussian(0.3)(jnp.zeros(4)).batch_shape
        (4,)
    """

    scale: Value

    def __post_init__(self):
        settle_scale(self, "Gaussian")

    def __call__(self, f: Array) -> dist.Distribution:
        """N(f, scale²)."""
        return dist.Normal(f, self.scale)


@closed_form_expectation.register
def _(likelihood: Gaussian, y, marginal: Marginal):
    # log N(y; m, s²) − v / (2 s²)
    density = dist.Normal(marginal.mean, likelihood.scale).log_prob(y)
    return density - 0.5 * marginal.variance / jnp.square(likelihood.scale)


@closed_form_log_predictive.register
def _(likelihood: Gaussian, y, marginal: Marginal):
    # N(y; m, v + s²)
    scale = jnp.sqrt(marginal.variance + jnp.square(likelihood.scale))
    return dist.Normal(marginal.mean, scale).log_prob(y)


@closed_form_cdf.register
def _(likelihood: Gaussian, y, marginal: Marginal):
    scale = jnp.sqrt(marginal.variance + jnp.square(likelihood.scale))
    return dist.Normal(marginal.mean, scale).cdf(y)


@predictive_mean_and_variance.register
def _(likelihood: Gaussian, marginal: Marginal):
    mean = marginal.average(marginal.mean)
    return mean, marginal.total_variance + jnp.square(likelihood.scale)


@register_dataclass
@dataclass(frozen=True)
class HeteroscedasticGaussian:
    """y ~ N(f_0, exp(f_1)²): two latent components, the mean and the log scale.

    Example:
        >>> gp.likelihoods.HeteroscedasticGaussian()(jnp.zeros((3, 2))).variance
        Array([1., 1., 1.], dtype=float32)
    """

    def __call__(self, f: Array) -> dist.Distribution:
        """N(f[..., 0], exp(f[..., 1])²)."""
        return dist.Normal(f[..., 0], jnp.exp(f[..., 1]))


def _first_two_components(marginal: Marginal):
    """Means and variances of both components, and their covariance."""
    covariance = 0.0 if marginal.covariance is None else marginal.covariance[..., 0, 1]
    mean, variance = marginal.mean, marginal.variance
    return mean[..., 0], mean[..., 1], variance[..., 0], variance[..., 1], covariance


@closed_form_expectation.register
def _(likelihood: HeteroscedasticGaussian, y, marginal: Marginal):
    # Under the weight exp(−2 f_1) the mean of f_0 moves by −2 Cov(f_0, f_1):
    # E (y − f_0)² e^{−2 f_1} = e^{−2 m_1 + 2 v_1} ( (y − m_0 + 2 c)² + v_0 ).
    m0, m1, v0, v1, c = _first_two_components(marginal)
    squares = jnp.exp(2.0 * (v1 - m1)) * (jnp.square(y - m0 + 2.0 * c) + v0)
    return -0.5 * jnp.log(2.0 * jnp.pi) - m1 - 0.5 * squares


@closed_form_log_predictive.register
def _(likelihood: HeteroscedasticGaussian, y, marginal: Marginal):
    given_log_scale, log_scale = _without_the_mean(marginal)
    return log_average_by_trapezoid(given_log_scale, y, log_scale)


@closed_form_cdf.register
def _(likelihood: HeteroscedasticGaussian, y, marginal: Marginal):
    given_log_scale, log_scale = _without_the_mean(marginal)
    method = Trapezoid(_NODES_OF_LOG_SCALE)
    return average(lambda f: given_log_scale(f).cdf(y), log_scale, method)


def _without_the_mean(marginal: Marginal) -> tuple[Callable, Marginal]:
    """f_1 -> p(y | f_1) with f_0, which is Gaussian given f_1, integrated out; q(f_1).

    y ~ N(m_0 + c/v_1 (f_1 − m_1), v_0 − c²/v_1 + e^{2 f_1}).
    """
    m0, m1, v0, v1, c = _first_two_components(marginal)
    slope = jnp.where(v1 > 0, c / jnp.where(v1 > 0, v1, 1.0), 0.0)
    rest = jnp.maximum(v0 - c * slope, 0.0)

    def given_log_scale(f1):
        mean = m0 + slope * (f1 - m1)
        return dist.Normal(mean, jnp.sqrt(rest + jnp.exp(2.0 * f1)))

    return given_log_scale, Marginal(m1, v1, None, marginal.log_weights)


@predictive_mean_and_variance.register
def _(likelihood: HeteroscedasticGaussian, marginal: Marginal):
    m0, m1, v0, v1, _ = _first_two_components(marginal)
    return marginal.total(m0, jnp.exp(2.0 * (m1 + v1)) + v0)


@register_dataclass
@dataclass(frozen=True)
class StudentT:
    """y ~ f + scale · t_df.

    Attributes:
        df: Degrees of freedom, > 0 (the variance exists for df > 2).
        scale: Scale of the noise, > 0, a number or [N].

    Example:
        >>> gp.likelihoods.StudentT(4.0, 0.5)(jnp.zeros(2)).variance
        Array([0.5, 0.5], dtype=float32)
    """

    df: Value
    scale: Value = 1.0

    def __post_init__(self):
        require_positive(self.df, "the df of a StudentT likelihood")
        settle(self, "df")
        settle_scale(self, "StudentT")

    def __call__(self, f: Array) -> dist.Distribution:
        """StudentT(df, f, scale)."""
        return _StudentT(self.df, f, self.scale)


class _StudentT(dist.StudentT):
    """Whose normalisation keeps its digits at many degrees of freedom."""

    def log_prob(self, value, intermediates=None):
        df: Any = self.df
        square = jnp.square((value - self.loc) / self.scale)
        rest = 0.5 * (df + 1.0) * jnp.log1p(square / df)
        return _log_peak(df, self.scale) - rest


def _log_peak(df: Value, scale: Value) -> Array:
    # log p(y|y) = log Γ(a + ½)/Γ(a) − ½ log 2πa − log s with a = df/2, by Stirling's
    # log Γ(x) = (x − ½) log x − x + ½ log 2π + δ(x): nothing cancels.
    a = 0.5 * jnp.asarray(df)
    departure = a * jnp.log1p(0.5 / a) - 0.5 + stirling_error(a + 0.5)
    return departure - stirling_error(a) - 0.5 * jnp.log(2.0 * jnp.pi) - jnp.log(scale)


@closed_form_expectation.register
def _(likelihood: StudentT, y, marginal: Marginal):
    # log p(y|f) = log p(y|y) − (df + 1)/2 log(1 + (y − f)² / (df s²))
    width = likelihood.scale * jnp.sqrt(likelihood.df)
    peak = _log_peak(likelihood.df, likelihood.scale)
    mean = (y - marginal.mean) / width
    rest = mean_log_one_plus_square(mean, marginal.variance / jnp.square(width))
    return peak - 0.5 * (likelihood.df + 1.0) * rest


def mean_log_one_plus_square(mean: Array, variance: Array) -> Array:
    """E log(1 + x²) for x ~ N(mean, variance), to 5e-6 for E x² up to 1e10.

    With c = 1 + E x² and Frullani's log c = ∫ (e^−t − e^−ct) dt/t, and in the same way
    for log(1 + x²), whose exponential has the expectation of a Gaussian integral,

        E log(1 + x²) = log c + ∫ { e^−ct − (1 + 2vt)^−½ e^(−t − m²t/(1 + 2vt)) } dt/t.

    The braces are O(c²t²) at zero. In log(ct) the trapezoidal rule converges like
    exp(−π²/h), and its nodes are the same for every datum. Where x is small, so is all
    of this, and near zero a brace is −e^−ct expm1(..) of a small number.
    """
    square = jnp.square(mean)
    variance = jnp.where(variance < 0.0, 0.0, variance)  # negative by rounding
    c = 1.0 + square + variance

    def nodes(tau) -> Array:
        return jnp.asarray(tau.reshape(-1, *(1,) * mean.ndim), mean.dtype)

    tau = nodes(_TAU[_TAU < _MOST_TAU])
    t = tau / c
    two = 2.0 * variance * t
    more = t * (variance + square * two / (1.0 + two)) - 0.5 * jnp.log1p(two)
    near = jnp.sum(jnp.exp(-tau) * jnp.expm1(more), axis=0)
    t = nodes(_TAU[_TAU >= _MOST_TAU]) / c
    root = jax.lax.rsqrt(1.0 + 2.0 * variance * t)
    far = jnp.sum(root * jnp.exp(-t * (1.0 + square * jnp.square(root))), axis=0)
    return jnp.log1p(square + variance) - _STEP * (near + far)


@closed_form_cdf.register
def _(likelihood: StudentT, y, marginal: Marginal):
    # t_df = Z τ^½ with τ ~ InvGamma(df/2, df/2): given τ, y is N(m, v + s² τ).
    tau, weights = _inverse_gamma_nodes(likelihood.df)

    def term(tau, weight):
        noise = jnp.square(likelihood.scale) * tau
        scale = jnp.sqrt(marginal.variance + noise)
        return weight * jax.scipy.special.ndtr((y - marginal.mean) / scale)

    return jnp.sum(jax.vmap(term)(tau, weights), axis=0)


def _inverse_gamma_nodes(df: Value) -> tuple[Array, Array]:
    """Nodes and weights of the mean over τ ~ InvGamma(df/2, df/2), each [64, ...].

    With τ = e^−u the density of u is exp{ df/2 (u − e^u) } up to a constant, analytic
    and decaying for |Im u| < π/2, so that the trapezoidal rule of step h errs like
    exp(−π²/h). Its ends are where the exponent has fallen by ``_FALL``: upwards
    e^u <= 1 + c + u with c = 2 ``_FALL`` / df, and u² <= 2c; downwards
    e^−d − 1 + d >= d² / (2 + d). To 1e-6 for df >= 1.
    """
    df = jnp.asarray(df)
    fall = 2.0 * _FALL / df
    above = jnp.minimum(jnp.sqrt(2.0 * fall), jnp.log1p(fall + jnp.sqrt(2.0 * fall)))
    below = 0.5 * fall + jnp.sqrt(0.25 * jnp.square(fall) + 2.0 * fall)
    u = jnp.linspace(-below, above, _NUM_NODES)
    exponent = 0.5 * df * (u - jnp.expm1(u))
    return jnp.exp(-u), jax.nn.softmax(exponent, axis=0)


@nearest_singularity.register
def _(likelihood: StudentT, y):
    # log(1 + (y − f)²/(df s²)) is infinite at f = y ± i s √df.
    return y, likelihood.scale * jnp.sqrt(likelihood.df)
