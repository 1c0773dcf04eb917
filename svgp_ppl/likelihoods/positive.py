"""Likelihoods of positive numbers with a log link: Gamma and exponential.

    log p = c log c − c f + (c − 1) log y − c y e^{−f} − log Γ(c),   E y = e^f
          = −c (e^d − 1 − d) + ½ log c/2π − δ(c) − log y,   d = log y − f

with the δ of ``stirling``, and E e^{−f} = e^{−m + v/2}.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from svgp_ppl.checks import require_positive
from svgp_ppl.expectations import (
    closed_form_expectation,
    is_log_concave,
    nearest_singularity,
    predictive_mean_and_variance,
)
from svgp_ppl.likelihoods.counts import rate_of
from svgp_ppl.likelihoods.stirling import excess, stirling_error
from svgp_ppl.likelihoods.values import Value, settle
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["Exponential", "Gamma"]


@register_dataclass
@dataclass(frozen=True)
class Gamma:
    """y ~ Gamma with mean exp(f) and variance exp(2 f)/concentration, y > 0.

    Attributes:
        concentration: c > 0, the shape, a number or [N]; make it a site.

    Raises:
        ValueError: It is not positive.

    Example:
        >>> gp.likelihoods.Gamma(4.0)(jnp.zeros(2)).variance
        Array([0.25, 0.25], dtype=float32)
    """

    concentration: Value

    def __post_init__(self):
        require_positive(self.concentration, "the concentration of a Gamma likelihood")
        settle(self, "concentration")

    def __call__(self, f: Array) -> dist.Distribution:
        """Gamma with mean exp(f)."""
        return _LogGamma(f, self.concentration)


@register_dataclass
@dataclass(frozen=True)
class Exponential:
    """y ~ Exponential with mean exp(f), y > 0: ``Gamma(1.0)``.

    For times that may be censored use ``Weibull(1.0, censored)``, which is the same.

    Example:
        >>> gp.likelihoods.Exponential()(jnp.zeros(2)).mean
        Array([1., 1.], dtype=float32)
    """

    concentration: ClassVar[float] = 1.0

    def __call__(self, f: Array) -> dist.Distribution:
        """Exponential with mean exp(f)."""
        return _LogGamma(f, jnp.ones((), f.dtype))


class _LogGamma(dist.Gamma):
    """Gamma by the logarithm of its mean, finite where exp over- or underflows."""

    pytree_data_fields = ("log_mean",)

    def __init__(self, log_mean, concentration):
        self.log_mean = log_mean
        super().__init__(concentration, concentration * rate_of(-log_mean))

    def log_prob(self, value, intermediates=None):
        c, ratio = self.concentration, value * rate_of(-self.log_mean)
        return _log_density(c, value, self.log_mean, 0.0, ratio)


def _log_density(c: Any, y, log_mean: Array, more: Any, ratio: Array) -> Array:
    """log p by the logarithm of the mean and e^d, or their averages, e^{d + v/2}."""
    c, y = (jnp.asarray(value, log_mean.dtype) for value in (c, y))
    log_y = jnp.log(y)
    d = log_y - log_mean
    free = 0.5 * jnp.log(c / (2.0 * jnp.pi)) - stirling_error(c) - log_y
    return free - c * (excess(d + more, ratio) - d)


@closed_form_expectation.register
def _(likelihood: Gamma | Exponential, y, marginal: Marginal):
    # E e^−f = e^{−m + v/2}
    c, more = jnp.asarray(likelihood.concentration), 0.5 * marginal.variance
    ratio = y * jnp.exp(more - marginal.mean)
    return _log_density(c, y, marginal.mean, more, ratio)


@is_log_concave.register
def _(likelihood: Gamma | Exponential):
    # −c (f + y e^{−f})
    return True


@nearest_singularity.register
def _(likelihood: Gamma | Exponential, y):
    # exp(−c y e^{−f}) is a step: it stops falling where c y e^{−f} is negative.
    return jnp.log(likelihood.concentration * jnp.asarray(y, float)), 0.5 * jnp.pi


@predictive_mean_and_variance.register
def _(likelihood: Gamma | Exponential, marginal: Marginal):
    # E μ = e^{m + v/2}, Var μ = (E μ)² (e^v − 1); Var y = E μ²/c + Var μ
    v = marginal.variance
    mean = jnp.exp(marginal.mean + 0.5 * v)
    spread = jnp.exp(v) / jnp.asarray(likelihood.concentration) + jnp.expm1(v)
    return marginal.total(mean, jnp.square(mean) * spread)
