"""Likelihoods of overdispersed counts: negative binomial, extra zeros.

    NB:   log p = y log σ(u) + c log σ(−u) + log Γ(y + c) − log Γ(c) − log y!,
          u = f + log(exposure / c)

which is c/(y + c) of the binomial of y + c trials, not whole, with log odds u.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array

from svgp_ppl.checks import require_positive
from svgp_ppl.expectations import (
    Trapezoid,
    average_about,
    closed_form_expectation,
    incomplete,
    is_log_concave,
    nearest_singularity,
    predictive_mean_and_variance,
)
from svgp_ppl.likelihoods.counts import Poisson, rate_of
from svgp_ppl.likelihoods.logistic import mean_excess
from svgp_ppl.likelihoods.stirling import log_binomial
from svgp_ppl.likelihoods.values import Value, require_share, settle
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["NegativeBinomial", "ZeroInflatedPoisson"]


@register_dataclass
@dataclass(frozen=True)
class NegativeBinomial:
    """y ~ NB with mean μ = exposure · exp(f) and variance μ + μ²/concentration.

    A Poisson variable whose rate is Gamma distributed about μ; Poisson(exposure) in the
    limit of a large concentration.

    Attributes:
        concentration: c > 0, a number or [N]; small for strong overdispersion. Make it
            a site.
        exposure: Size of what is counted over, > 0, a number or [N].

    Raises:
        ValueError: One of them is not positive.

    Example:
        >>> gp.likelihoods.NegativeBinomial(2.0)(jnp.zeros(3)).variance
        Array([1.5, 1.5, 1.5], dtype=float32)
    """

    concentration: Value
    exposure: Value = 1.0

    def __post_init__(self):
        what = "of a NegativeBinomial likelihood"
        require_positive(self.concentration, f"the concentration {what}")
        require_positive(self.exposure, f"the exposure {what}")
        settle(self, "concentration", "exposure")

    def __call__(self, f: Array) -> dist.Distribution:
        """NB with mean exposure · exp(f)."""
        return _LogNegativeBinomial(f + jnp.log(self.exposure), self.concentration)


class _LogNegativeBinomial(dist.NegativeBinomial2):
    """By the logarithm of its mean, finite where exp over- or underflows."""

    pytree_data_fields = ("log_mean",)

    def __init__(self, log_mean, concentration):
        self.log_mean = log_mean
        super().__init__(rate_of(log_mean), concentration)

    def log_prob(self, value, intermediates=None):
        c: Any = self.concentration
        y = jnp.asarray(value, self.log_mean.dtype)
        u = self.log_mean - jnp.log(c)
        return _log_prob(y, jnp.asarray(c, y.dtype), u)


def _log_prob(y: Array, c: Array, u: Array) -> Array:
    return log_binomial(y, c, u) - jnp.log1p(y / c)


@closed_form_expectation.register
def _(likelihood: NegativeBinomial, y, marginal: Marginal):
    c, y = (
        jnp.asarray(value, marginal.mean.dtype)
        for value in (likelihood.concentration, y)
    )
    u = marginal.mean + jnp.log(likelihood.exposure / c)
    return _log_prob(y, c, u) - (y + c) * mean_excess(u, marginal.variance)


@is_log_concave.register
def _(likelihood: NegativeBinomial):
    # y u − (y + c) log(1 + e^u)
    return True


@nearest_singularity.register
def _(likelihood: NegativeBinomial, y):
    # σ(u) is infinite at u = ± i π.
    return jnp.log(likelihood.concentration / likelihood.exposure), jnp.pi


@predictive_mean_and_variance.register
def _(likelihood: NegativeBinomial, marginal: Marginal):
    # E μ = e^{m + v/2}, E μ² = e^v (E μ)²; Var y = E (μ + μ²/c) + Var μ
    m, v = marginal.mean + jnp.log(likelihood.exposure), marginal.variance
    mean, c = jnp.exp(m + 0.5 * v), jnp.asarray(likelihood.concentration)
    return marginal.total(
        mean, mean + jnp.square(mean) * (jnp.exp(v) / c + jnp.expm1(v))
    )


@register_dataclass
@dataclass(frozen=True)
class ZeroInflatedPoisson:
    """y = 0 with probability gate, otherwise y ~ Poisson(exposure · exp(f)).

    log p(y|f) of a positive count has Poisson's closed form; that of a zero,
    log(gate + (1 − gate) exp(−μ)), is integrated with nodes on its own scale. Where the
    gate changes with x as well, see the recipe with two processes in the cookbook.

    Attributes:
        gate: Probability of an extra zero, strictly between 0 and 1, a number or [N].
            Make it a site.
        exposure: Size of what is counted over, > 0, a number or [N].

    Raises:
        ValueError: One of them is outside its range.

    Example:
        >>> gp.likelihoods.ZeroInflatedPoisson(0.25)(jnp.zeros(2)).mean
        Array([0.75, 0.75], dtype=float32)
    """

    gate: Value
    exposure: Value = 1.0

    def __post_init__(self):
        what = "of a ZeroInflatedPoisson likelihood"
        require_share(self.gate, f"the gate {what}")
        require_positive(self.exposure, f"the exposure {what}")
        settle(self, "gate", "exposure")

    def __call__(self, f: Array) -> dist.Distribution:
        """The mixture of zero and Poisson(exposure · exp(f))."""
        return _GatedPoisson(Poisson(self.exposure)(f), self.gate)


class _GatedPoisson(dist.Distribution):
    """Zero with probability ``gate``, otherwise a draw of ``base``."""

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("base", "gate")

    def __init__(self, base, gate):
        self.base, self.gate = base, gate
        shape: Any = jnp.broadcast_shapes(base.batch_shape, jnp.shape(gate))
        super().__init__(shape, ())

    @property
    def support(self):
        return dist.constraints.nonnegative_integer

    def sample(self, key: Any, sample_shape=()):
        key_gate, key_count = random.split(key)
        shape = sample_shape + self.batch_shape
        is_zero = random.bernoulli(key_gate, self.gate, shape)
        return jnp.where(
            is_zero,
            0,
            self.base.expand(self.batch_shape).sample(key_count, sample_shape),
        )

    def log_prob(self, value, intermediates=None):
        log_rest = jnp.log1p(-self.gate)
        at_zero = jnp.logaddexp(jnp.log(self.gate), log_rest - self.base.rate)
        return jnp.where(value == 0, at_zero, log_rest + self.base.log_prob(value))

    def cdf(self, value):
        return self.gate + (1.0 - self.gate) * incomplete.cdf(self.base, value)

    @property
    def mean(self):
        return (1.0 - self.gate) * self.base.rate

    @property
    def variance(self):
        return self.mean * (1.0 + self.gate * self.base.rate)


@closed_form_expectation.register
def _(likelihood: ZeroInflatedPoisson, y, marginal: Marginal):
    zeros = jnp.zeros(jnp.shape(y), marginal.mean.dtype)
    singularity: Any = nearest_singularity(likelihood, zeros)

    def log_p(f) -> Any:
        return likelihood(f).log_prob(zeros)

    at_zero = average_about(log_p, marginal, singularity, Trapezoid().num_nodes)
    # No NaN in derivatives from what is not chosen.
    mean, variance = (
        jnp.where(y == 0, 0.0, a) for a in (marginal.mean, marginal.variance)
    )
    safe = Marginal(mean, variance, None, marginal.log_weights)
    counts: Any = closed_form_expectation(Poisson(likelihood.exposure), y, safe)
    return jnp.where(y == 0, at_zero, jnp.log1p(-likelihood.gate) + counts)


@nearest_singularity.register
def _(likelihood: ZeroInflatedPoisson, y):
    # e^{−μ} = −gate/(1 − gate) at μ = a ± i π with a = log((1 − gate)/gate), and
    # f = log μ − log(exposure); for positive counts as for Poisson.
    gate, log_exposure = likelihood.gate, jnp.log(likelihood.exposure)
    a = jnp.log1p(-gate) - jnp.log(gate)
    place = jnp.where(y == 0, 0.5 * jnp.log(jnp.square(a) + jnp.pi**2), 0.0)
    width = jnp.where(y == 0, jnp.arctan2(jnp.pi, a), 0.5 * jnp.pi)
    return place - log_exposure, width


@predictive_mean_and_variance.register
def _(likelihood: ZeroInflatedPoisson, marginal: Marginal):
    # E y = (1 − g) E μ, E y² = (1 − g) E (μ + μ²) with E μ² = e^v (E μ)²
    m, v = marginal.mean + jnp.log(likelihood.exposure), marginal.variance
    rate, gate = jnp.exp(m + 0.5 * v), jnp.asarray(likelihood.gate)
    spread = rate + jnp.square(rate) * (jnp.expm1(v) + gate)
    return marginal.total((1.0 - gate) * rate, (1.0 - gate) * spread)
