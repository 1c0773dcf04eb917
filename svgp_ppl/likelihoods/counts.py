"""Likelihoods of counts."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jaxtyping import Array

from svgp_ppl.checks import require_positive
from svgp_ppl.expectations import (
    closed_form_expectation,
    closed_form_log_predictive,
    is_log_concave,
    log_average_by_trapezoid,
    nearest_singularity,
    predictive_mean_and_variance,
)
from svgp_ppl.likelihoods.lambert import log_lambert
from svgp_ppl.likelihoods.stirling import MANY, excess, stirling_series
from svgp_ppl.likelihoods.values import Value, settle
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["Poisson", "mode_below_exponential", "rate_of"]


@register_dataclass
@dataclass(frozen=True)
class Poisson:
    """y ~ Poisson(exposure · exp(f)).

    Attributes:
        exposure: Size of what is counted over (area, time, population), > 0, a number
            or [N]; the rate exp(f) is per unit of it.

    Example:
        >>> gp.likelihoods.Poisson(exposure=2.0)(jnp.zeros(2)).mean
        Array([2., 2.], dtype=float32)
    """

    exposure: Value = 1.0

    def __post_init__(self):
        require_positive(self.exposure, "the exposure of a Poisson likelihood")
        settle(self, "exposure")

    def __call__(self, f: Array) -> dist.Distribution:
        """Poisson(exposure · exp(f))."""
        return _LogPoisson(f + jnp.log(self.exposure))


def rate_of(log_rate: Array) -> Array:
    """exp(log_rate), at most √max, 1e19 in float32.

    The lowest log probability is then −√max, which is finite.
    """
    highest = 0.5 * jnp.log(jnp.finfo(jnp.result_type(log_rate, float)).max)
    return jnp.exp(jnp.minimum(log_rate, highest))


def _log_prob(count: Array, mean: Array, more: Any, rate: Array) -> Array:
    """y m − r − log y! for r = exp(m + b) with b = ``more``.

    Of the terms of a large count y nearly everything cancels. By Stirling's series it
    is

        y (m − log y − (r/y − 1)) − ½ log 2πy − δ(y),

    with r/y − 1 = expm1(m − log y + b).
    """
    few = count * mean - rate - gammaln(count + 1.0)
    y = jnp.maximum(count, MANY)
    apart = mean - jnp.log(y)
    many = y * (apart - excess(apart + more, rate / y))
    many = many - 0.5 * jnp.log(2 * jnp.pi * y) - stirling_series(y)
    return jnp.where(count < MANY, few, many)


class _LogPoisson(dist.Poisson):
    """Poisson by the logarithm of its rate, finite where exp over- or underflows."""

    pytree_data_fields = ("log_rate",)

    def __init__(self, log_rate):
        self.log_rate = log_rate
        super().__init__(rate_of(log_rate))

    def log_prob(self, value, intermediates=None):
        count = jnp.asarray(value, jnp.result_type(self.log_rate, float))
        return _log_prob(count, self.log_rate, 0.0, jnp.asarray(self.rate))


@closed_form_expectation.register
def _(likelihood: Poisson, y, marginal: Marginal):
    # y (m + log e) − e exp(m + v/2) − log y!
    mean = marginal.mean + jnp.log(likelihood.exposure)
    y, more = jnp.asarray(y, mean.dtype), 0.5 * marginal.variance
    return _log_prob(y, mean, more, jnp.exp(mean + more))


@is_log_concave.register
def _(likelihood: Poisson):
    # y f − exposure · e^f
    return True


@nearest_singularity.register
def _(likelihood: Poisson, y):
    # log p has none, but exp(−exposure · e^f) is a step: it stops falling where
    # exposure · e^f is negative, at f = −log(exposure) ± i π/2.
    return -jnp.log(likelihood.exposure), 0.5 * jnp.pi


@closed_form_log_predictive.register
def _(likelihood: Poisson, y, marginal: Marginal):
    log_exposure = jnp.log(likelihood.exposure)

    def mode(marginal):
        return mode_below_exponential(y, 1.0, log_exposure, marginal)[None]

    return log_average_by_trapezoid(likelihood, y, marginal, mode)


def mode_below_exponential(slope, power, offset, marginal: Marginal) -> Array:
    """The one mode of N(f; m, v) exp(s f − e^{k f + b}), in standard deviations from m.

    f = m + v (s − k r) with r = e^{k f + b}, or w + log w = a for w = v k² r and
    a = log(v k²) + k (m + v s) + b (Lambert's function of e^a). A climb from m would
    take one step for every unit of k f, and none where the exponential overflows.

    Args:
        slope: s, a number or [N].
        power: k ≠ 0, a number or [N].
        offset: b, a number or [N].
        marginal: N(m, v), [.., N].

    Returns:
        [.., N], without derivatives.
    """
    m, v = marginal.mean, marginal.variance
    s, k, b = (jnp.asarray(value, m.dtype) for value in (slope, power, offset))
    v = jnp.maximum(v, jnp.finfo(m.dtype).tiny)
    log_scale = jnp.log(v) + 2.0 * jnp.log(jnp.abs(k))
    a = log_scale + k * (m + v * s) + b
    log_w = log_lambert(a)
    # v (s − k r) and f − m are equal; the first has the rounding of v k r = w/k, the
    # second that of f and m.
    moved, f = jnp.exp(log_w) / k, (log_w - log_scale - b) / k
    is_far = jnp.abs(moved) > jnp.abs(f) + jnp.abs(m)
    mode = jnp.where(is_far, f - m, v * s - moved) / jnp.sqrt(v)
    return jax.lax.stop_gradient(mode)


@predictive_mean_and_variance.register
def _(likelihood: Poisson, marginal: Marginal):
    # E e^f = e^{m + v/2} and Var e^f = (E e^f)² (e^v − 1)
    rate = likelihood.exposure * jnp.exp(marginal.mean + 0.5 * marginal.variance)
    spread = jnp.square(rate) * jnp.expm1(marginal.variance)
    return marginal.total(rate, rate + spread)
