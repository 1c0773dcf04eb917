"""Likelihoods of labels 0 and 1."""

from dataclasses import dataclass, field
from typing import Literal

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array

from svgp_ppl.expectations import (
    closed_form_expectation,
    closed_form_log_predictive,
    is_log_concave,
    log_predictive_density,
    nearest_singularity,
    predictive_mean_and_variance,
    predictive_probabilities,
)
from svgp_ppl.likelihoods.logistic import mean_log_sigmoid, mean_sigmoid
from svgp_ppl.likelihoods.probit import NEAREST_ZERO, log_ndtr, mean_log_ndtr
from svgp_ppl.likelihoods.values import Value, noise_variance, require_flip, settle
from svgp_ppl.linalg import floored_sqrt
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["AdditiveNoiseBernoulli", "Bernoulli"]


@register_dataclass
@dataclass(frozen=True)
class Bernoulli:
    """y ~ Bernoulli(g(f)), y in {0, 1}.

    Attributes:
        link: ``"logit"``, g(f) = 1 / (1 + exp(−f)); or ``"probit"``, g(f) = Φ(f).

    Example:
        >>> gp.likelihoods.Bernoulli(link="probit")(jnp.zeros(2)).mean
        Array([0.5, 0.5], dtype=float32)
    """

    link: Literal["logit", "probit"] = field(default="logit", metadata={"static": True})

    def __post_init__(self):
        if self.link not in ("logit", "probit"):
            raise ValueError(f"link must be 'logit' or 'probit', and not {self.link!r}")

    def __call__(self, f: Array) -> dist.Distribution:
        """Bernoulli with log odds f, or log Φ(f) − log Φ(−f)."""
        if self.link == "logit":
            return dist.Bernoulli(logits=f)
        return dist.Bernoulli(logits=log_ndtr(f) - log_ndtr(-f))


@closed_form_expectation.register
def _(likelihood: Bernoulli, y, marginal: Marginal):
    sign = jnp.where(y == 1, 1.0, -1.0).astype(marginal.mean.dtype)
    mean_log = mean_log_sigmoid if likelihood.link == "logit" else mean_log_ndtr
    return mean_log(sign * marginal.mean, marginal.variance)


@is_log_concave.register
def _(likelihood: Bernoulli):
    # For either label and both links.
    return True


@nearest_singularity.register
def _(likelihood: Bernoulli, y):
    # σ(f) is infinite at f = ± i π.
    return (0.0, jnp.pi) if likelihood.link == "logit" else NEAREST_ZERO


@closed_form_log_predictive.register
def _(likelihood: Bernoulli, y, marginal: Marginal):
    if likelihood.link == "logit":
        return None
    # E Φ(±f) = Φ(±m / √(1 + v))
    z = marginal.mean / jnp.sqrt(1.0 + marginal.variance)
    return log_ndtr(jnp.where(y == 1, z, -z))


@register_dataclass
@dataclass(frozen=True)
class AdditiveNoiseBernoulli:
    """y = 1 where f + ε > 0, ε ~ N(0, a), and flipped with probability δ.

    Liu et al. (2019). With g = f + ε the label has P(y|g) = 1 − δ where it is on the
    side of g, and δ otherwise. g is integrated out differently in two places:

    - *Expectation.* The bound is that of the model with g as part of the latent, so
      the noise is averaged outside the logarithm (equation 8),

          E_{q(g)} log p(y|g) = log(1 − δ) Φ(z) + log δ Φ(−z),
          z = ±m / √(a + v),   q(g) = N(m, a + v).

      It is at most E_{q(f)} log p(y|f) (Jensen), and equal to it for a = 0. When v is
      known exactly, as under a sampler, it is still this augmented bound, and not
      log p(y|f). ``observe(method=Trapezoid())`` gives the larger expectation, with
      the noise inside the logarithm: for a > 0 only, as a step has no useful gradient.
    - *Prediction*, draws and ``__call__`` are exact (equation 9):
      P(y = 1 | f) = δ + (1 − 2δ) Φ(f/√a), E P(y = 1 | f) = δ + (1 − 2δ) Φ(m/√(a + v)).

    With q(v) fixed the bound is largest at δ = 1 − mean_n Φ(z_n) (equation
    27), the expected share of data on the wrong side. The bound always prefers a = 0,
    so a is chosen and not learned.

    Attributes:
        noise: The variance a: a number, or ``"step"`` (0), ``"probit"`` (1),
            ``"logit"`` (2.897). Static.
        flip: δ, strictly between 0 and 1: a number, a site or a param, or [N].

    Raises:
        ValueError: One of these is outside its range.

    Example:
        >>> likelihood = gp.likelihoods.AdditiveNoiseBernoulli("probit", flip=1e-3)
        >>> likelihood(jnp.zeros(3)).probs
        Array([0.5, 0.5, 0.5], dtype=float32)
    """

    noise: str | float = field(default="step", metadata={"static": True})
    flip: Value = 1e-3

    def __post_init__(self):
        noise_variance(self.noise)
        require_flip(self.flip)
        settle(self, "flip")

    def __call__(self, f: Array) -> dist.Distribution:
        """Bernoulli with probability δ + (1 − 2δ) Φ(f/√a)."""
        z = f / floored_sqrt(jnp.full_like(f, noise_variance(self.noise)))
        return dist.Bernoulli(
            logits=_log_mixture(z, self.flip) - _log_mixture(-z, self.flip)
        )


def _log_mixture(z: Array, flip: Value) -> Array:
    """log( (1 − δ) Φ(z) + δ Φ(−z) ), accurate on both sides."""
    one_side, other_side = ndtr(z), ndtr(-z)
    p = (1.0 - flip) * one_side + flip * other_side
    rest = flip * one_side + (1.0 - flip) * other_side
    # The branch not taken must have finite derivatives too.
    high = p > 0.5
    at_most_half = jnp.where(high, rest, p)
    return jnp.where(high, jnp.log1p(-at_most_half), jnp.log(at_most_half))


def _signed_ratio(likelihood: AdditiveNoiseBernoulli, y, marginal: Marginal) -> Array:
    """±m / √(a + v), with the sign of the label."""
    sd = floored_sqrt(noise_variance(likelihood.noise) + marginal.variance)
    return jnp.where(y == 1, 1.0, -1.0) * marginal.mean / sd


@closed_form_expectation.register
def _(likelihood: AdditiveNoiseBernoulli, y, marginal: Marginal):
    # log((1 − δ)/δ) Φ(z) + log δ
    z = _signed_ratio(likelihood, y, marginal)
    return jnp.log1p(-likelihood.flip) * ndtr(z) + jnp.log(likelihood.flip) * ndtr(-z)


@nearest_singularity.register
def _(likelihood: AdditiveNoiseBernoulli, y):
    # log(δ + (1 − 2δ) Φ(z)) with the noise inside, z = ±f/√a: the logarithm of a tail,
    # −z²/2, meets the floor log δ at z = Φ⁻¹(δ), where the slope changes by |z|.
    z, sd = ndtri(jnp.asarray(likelihood.flip)), noise_variance(likelihood.noise) ** 0.5
    place = jnp.where(y == 1, z, -z)
    return sd * place, sd * 2.0 / jnp.maximum(jnp.abs(z), 1.0)


@closed_form_log_predictive.register
def _(likelihood: AdditiveNoiseBernoulli, y, marginal: Marginal):
    # log( δ + (1 − 2δ) Φ(z) )
    return _log_mixture(_signed_ratio(likelihood, y, marginal), likelihood.flip)


@predictive_mean_and_variance.register
def _(likelihood: Bernoulli | AdditiveNoiseBernoulli, marginal: Marginal):
    # E y = p and Var y = p (1 − p), of which 1 − p loses its digits near p = 1
    probability, rest = (_probability(likelihood, label, marginal) for label in (1, 0))
    return probability, probability * rest


@predictive_probabilities.register
def _(likelihood: Bernoulli | AdditiveNoiseBernoulli, support, marginal: Marginal):
    return _probability(likelihood, 1, marginal)


def _probability(likelihood, label: int, marginal: Marginal) -> Array:
    """P(y_n = label), [N].

    That of the logistic function is a sum of twenty terms, thirty times as fast as its
    logarithm, which has to be right where the probability is nothing.
    """
    if isinstance(likelihood, Bernoulli) and likelihood.link == "logit":
        sign = 1.0 if label else -1.0
        probability, _ = mean_sigmoid(sign * marginal.mean, marginal.variance)
        return marginal.average(probability)
    y = jnp.full(marginal.mean.shape[-1], label, marginal.mean.dtype)
    return jnp.exp(log_predictive_density(likelihood, y, marginal))
