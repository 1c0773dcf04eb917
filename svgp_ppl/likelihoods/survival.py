"""Likelihoods of values, some of which are only known to lie beyond a limit.

A censored datum has the probability of all values that it may have: P(value > y) for a
time that had not ended at y. Draws and moments are those of the value itself.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gamma, gammaln
from jaxtyping import Array
from scipy.special import zeta

from svgp_ppl.checks import is_concrete, require_positive
from svgp_ppl.expectations import (
    closed_form_cdf,
    closed_form_expectation,
    closed_form_log_predictive,
    is_log_concave,
    log_average_by_trapezoid,
    nearest_singularity,
    predictive_mean_and_variance,
)
from svgp_ppl.likelihoods.counts import mode_below_exponential, rate_of
from svgp_ppl.likelihoods.gaussian import Gaussian
from svgp_ppl.likelihoods.probit import log_ndtr, mean_log_ndtr
from svgp_ppl.likelihoods.values import Value, settle, settle_scale
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["CensoredGaussian", "Weibull"]

# From this concentration on a power series in its inverse, right to 1e-15; the highest
# power first.
_SHARP = 4.0
_POWERS = np.arange(48, 1, -1)
_LOG_RATIO = zeta(_POWERS) * (2.0**_POWERS - 2.0) * (-1.0) ** _POWERS / _POWERS
_LOG_RATIO = np.append(_LOG_RATIO, [0.0, 0.0])


@register_dataclass
@dataclass(frozen=True)
class CensoredGaussian:
    """y ~ N(f, scale²), some values only known to be above (or below) y.

    The Tobit model (Tobin 1958); with y = log t, survival with log-normal times.

    Attributes:
        scale: Standard deviation of the noise, a number or [N].
        censored: 1 (or True) where the value is above y, −1 where it is below, 0 where
            it is y; a number or [N]. Use 0 for predictions at other inputs.

    Raises:
        ValueError: The scale is not positive, or ``censored`` has other values.

    Example:
        >>> likelihood = gp.likelihoods.CensoredGaussian(1.0, np.array([0, 1]))
        >>> likelihood(jnp.zeros(2)).log_prob(jnp.zeros(2))
        Array([-0.9189385, -0.6931472], dtype=float32)
    """

    scale: Value
    censored: Value = 0

    def __post_init__(self):
        settle_scale(self, "CensoredGaussian")
        _require_codes(self.censored, (-1, 0, 1), "CensoredGaussian")

    def __call__(self, f: Array) -> dist.Distribution:
        """N(f, scale²) with the probability of what is known."""
        return _Censored(dist.Normal(f, self.scale), f, self)

    def _log_known(self, f: Array, y) -> Array:
        """log p(y | f), or the log probability of all values beyond y."""
        sign = jnp.asarray(self.censored, f.dtype)
        tail = log_ndtr(sign * (f - y) / self.scale)
        return jnp.where(sign == 0, dist.Normal(f, self.scale).log_prob(y), tail)


@register_dataclass
@dataclass(frozen=True)
class Weibull:
    """y ~ Weibull with scale exp(f), some of them censored: log y = f + error.

    P(value > y) = exp(−(y e^{−f})^k): an accelerated failure time model, in which f is
    the logarithm of the time scale; it also has proportional hazards.
    Expectations have a closed form, censored or not.

    Attributes:
        concentration: k > 0, the shape, a number or [N]; below 1 the hazard falls with
            time, 1 is the exponential distribution. Make it a site.
        censored: True (or 1) where the value is above y, a boolean or [N].
            Use False for predictions at other inputs.

    Raises:
        ValueError: The concentration is not positive, or ``censored`` has other values.

    Example:
        >>> likelihood = gp.likelihoods.Weibull(1.0, np.array([True]))
        >>> likelihood(jnp.zeros(1)).log_prob(jnp.ones(1))
        Array([-1.], dtype=float32)
    """

    concentration: Value
    censored: Value = False

    def __post_init__(self):
        what = "the concentration of a Weibull likelihood"
        require_positive(self.concentration, what)
        settle(self, "concentration")
        _require_codes(self.censored, (0, 1), "Weibull")

    def __call__(self, f: Array) -> dist.Distribution:
        """Weibull with scale exp(f) and the probability of what is known."""
        return _Censored(dist.Weibull(rate_of(f), self.concentration), f, self)

    def _log_known(self, f: Array, y) -> Array:
        """log p(y | f), or the log probability of all times after y."""
        hazard = rate_of(self.concentration * (jnp.log(y) - f))
        return _log_density(self, y, f, hazard)


class _Censored(dist.Distribution):
    """A distribution whose log probability is that of what is known."""

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("base", "f", "likelihood")

    def __init__(
        self,
        base: dist.Distribution,
        f: Array,
        likelihood: CensoredGaussian | Weibull,
    ):
        self.base, self.f, self.likelihood = base, f, likelihood
        batch = jnp.broadcast_shapes(base.batch_shape, jnp.shape(likelihood.censored))
        super().__init__(batch, ())

    @property
    def support(self):
        return self.base.support

    def sample(self, key: Any, sample_shape=()):
        return self.base.expand(self.batch_shape).sample(key, sample_shape)

    def log_prob(self, value, intermediates=None):
        return self.likelihood._log_known(self.f, value)

    def cdf(self, value):
        return self.base.cdf(value)

    @property
    def mean(self):
        return self.base.mean

    @property
    def variance(self):
        return self.base.variance


def _require_codes(censored, codes: tuple, name: str) -> None:
    """Raise unless concrete censoring codes are among ``codes``."""
    if not is_concrete(censored):
        return
    array = np.asarray(censored)
    if array.dtype.kind not in "biuf" or not np.all(np.isin(array, codes)):
        words = {-1: "−1 (the value is below)", 0: "0 (it is y)", 1: "1 (it is above)"}
        raise ValueError(
            f"censored of a {name} likelihood must hold "
            f"{', '.join(words[code] for code in codes)}, and is {censored!r}."
        )


# -------------------------------------------------------------------------- Gaussian


@closed_form_expectation.register
def _(likelihood: CensoredGaussian, y, marginal: Marginal):
    # E log Φ(g) with g = ±(f − y)/s ~ N(±(m − y)/s, v/s²)
    scale = likelihood.scale
    sign = jnp.asarray(likelihood.censored, marginal.mean.dtype)
    seen: Any = closed_form_expectation(Gaussian(scale), y, marginal)
    z, v = sign * (marginal.mean - y) / scale, marginal.variance / jnp.square(scale)
    return jnp.where(sign == 0, seen, mean_log_ndtr(z, v))


@closed_form_log_predictive.register
def _(likelihood: CensoredGaussian, y, marginal: Marginal):
    # E Φ(g) = Φ(±(m − y)/√(v + s²))
    scale = likelihood.scale
    sign = jnp.asarray(likelihood.censored, marginal.mean.dtype)
    seen: Any = closed_form_log_predictive(Gaussian(scale), y, marginal)
    sd = jnp.sqrt(marginal.variance + jnp.square(scale))
    return jnp.where(sign == 0, seen, log_ndtr(sign * (marginal.mean - y) / sd))


@closed_form_cdf.register
def _(likelihood: CensoredGaussian, y, marginal: Marginal):
    return closed_form_cdf(Gaussian(likelihood.scale), y, marginal)


@predictive_mean_and_variance.register
def _(likelihood: CensoredGaussian, marginal: Marginal):
    return predictive_mean_and_variance(Gaussian(likelihood.scale), marginal)


# --------------------------------------------------------------------------- Weibull


def _log_density(likelihood: Weibull, y, f: Array, hazard: Array) -> Array:
    """log p by f and the cumulative hazard (y e^{−f})^k, or by their averages."""
    k, y = likelihood.concentration, jnp.asarray(y, f.dtype)
    rise = jnp.log(k) + (k - 1.0) * jnp.log(y) - k * f
    return jnp.where(jnp.asarray(likelihood.censored) == 1, 0.0, rise) - hazard


@closed_form_expectation.register
def _(likelihood: Weibull, y, marginal: Marginal):
    # E e^{−k f} = e^{−k m + k² v/2}
    k, y = likelihood.concentration, jnp.asarray(y, marginal.mean.dtype)
    exponent = k * (jnp.log(y) - marginal.mean) + 0.5 * k * k * marginal.variance
    return _log_density(likelihood, y, marginal.mean, jnp.exp(exponent))


@closed_form_log_predictive.register
def _(likelihood: Weibull, y, marginal: Marginal):
    # exp(−k f − e^{k (log y − f)}), or the second term alone
    k, y = likelihood.concentration, jnp.asarray(y, marginal.mean.dtype)
    slope = jnp.where(jnp.asarray(likelihood.censored) == 1, 0.0, -k)

    def mode(marginal):
        return mode_below_exponential(slope, -k, k * jnp.log(y), marginal)[None]

    return log_average_by_trapezoid(likelihood, y, marginal, mode)


@is_log_concave.register
def _(likelihood: Weibull):
    # −k f − (y e^{−f})^k, or the second term alone
    return True


@nearest_singularity.register
def _(likelihood: Weibull, y):
    # exp(−(y e^{−f})^k) is a step: it stops falling where the power is negative.
    return jnp.log(jnp.asarray(y, float)), 0.5 * jnp.pi / likelihood.concentration


@predictive_mean_and_variance.register
def _(likelihood: Weibull, marginal: Marginal):
    # E y = E e^f Γ(1 + 1/k), E y² = E e^{2f} Γ(1 + 2/k): the first squared, times
    # e^v (1 + s) with s = Γ(1 + 2/k) / Γ(1 + 1/k)² − 1
    k, v = jnp.asarray(likelihood.concentration), marginal.variance
    mean = jnp.exp(marginal.mean + 0.5 * v) * gamma(1.0 + 1.0 / k)
    spread = jnp.exp(v) * _relative_variance(k) + jnp.expm1(v)
    return marginal.total(mean, jnp.square(mean) * spread)


def _relative_variance(k: Array) -> Array:
    """Γ(1 + 2/k) / Γ(1 + 1/k)² − 1, which is near π²/6k² for large k.

    There its logarithms cancel, and are log Γ(1 + x) = −γ x + Σ_n ζ(n) (−x)ⁿ/n, n >= 2.
    """
    is_sharp = k > _SHARP
    x, blunt = 1.0 / jnp.where(is_sharp, k, _SHARP), jnp.where(is_sharp, 1.0, k)
    sharp = jnp.polyval(jnp.asarray(_LOG_RATIO, x.dtype), x)
    ratio = gammaln(1.0 + 2.0 / blunt) - 2.0 * gammaln(1.0 + 1.0 / blunt)
    return jnp.expm1(jnp.where(is_sharp, sharp, ratio))
