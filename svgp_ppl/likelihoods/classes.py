"""Likelihoods of labels 0 to C − 1, with one latent component for each class."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from jax.scipy.special import logsumexp
from jaxtyping import Array

from svgp_ppl.checks import require_count
from svgp_ppl.expectations import (
    closed_form_expectation,
    closed_form_log_predictive,
    is_log_concave,
    predictive_mean_and_variance,
    predictive_probabilities,
)
from svgp_ppl.expectations.moments import moments_of_label
from svgp_ppl.likelihoods.gumbel import log_mean_softmax_of_independent
from svgp_ppl.likelihoods.largest import probability_of_largest
from svgp_ppl.likelihoods.softmax import (
    differences,
    log_mean_softmax,
    mean_log_softmax,
)
from svgp_ppl.likelihoods.values import (
    Value,
    noise_variance,
    require_components,
    require_flip,
    settle,
)
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["AdditiveNoiseCategorical", "Softmax"]


@register_dataclass
@dataclass(frozen=True)
class AdditiveNoiseCategorical:
    """y = argmax_c (f_c + ε_c), ε_c ~ N(0, a), and any other class with probability δ.

    Liu et al. (2019). With g = f + ε the label has P(y|g) = 1 − δ where g_y is the
    largest, and δ/(C − 1) otherwise. Let S = P(g_y is the largest) under
    q(g) = N(m, Σ + a I). As in :class:`AdditiveNoiseBernoulli` the expectation is that
    of the model with g as part of the latent, and predictions are exact:

        expectation     S log(1 − δ) + (1 − S) log( δ / (C − 1) )         (equation 18)
        P(y)            S (1 − δ) + (1 − S) δ / (C − 1)                   (equation 19)

    S is one integral when the components are independent at a datum, and an integral
    over C − 2 dimensions, by fixed quasi-random points, when they are correlated
    (mixed by a matrix, or under one joint q(v)). Noise ``"step"`` is the robust-max
    likelihood (Hernández-Lobato et al. 2011, Hensman et al. 2015). With q(v)
    fixed the bound is largest at δ = 1 − mean_n S_n.

    Attributes:
        num_classes: C, at least 2; the latent has as many components. Static.
        noise: The variance a: a number, or ``"step"`` (0), ``"probit"`` (1),
            ``"logit"`` (2.897). Static.
        flip: δ, strictly between 0 and 1: a number, a site or a param, or [N].

    Raises:
        ValueError: One of these is outside its range.

    Example:
        >>> likelihood = gp.likelihoods.AdditiveNoiseCategorical(3, "step", flip=1e-3)
        >>> likelihood(jnp.zeros((5, 3))).batch_shape
        (5,)
    """

    num_classes: int = field(metadata={"static": True})
    noise: str | float = field(default="step", metadata={"static": True})
    flip: Value = 1e-3

    def __post_init__(self):
        require_count(self.num_classes, "num_classes", 2)
        noise_variance(self.noise)
        require_flip(self.flip)
        settle(self, "flip")

    def __call__(self, f: Array) -> dist.Distribution:
        """The label given f [.., N, C], with the noise integrated out."""
        name = "AdditiveNoiseCategorical"
        require_components(f, self.num_classes, name, "one component for each class")
        return _NoisyLargest(f, noise_variance(self.noise), self.flip)


class _NoisyLargest(dist.Distribution):
    """The class whose f_c + ε_c is the largest, or any other with probability flip."""

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("f", "flip")
    pytree_aux_fields = ("noise",)

    def __init__(self, f, noise, flip):
        self.f, self.noise, self.flip = f, noise, flip
        super().__init__(jnp.shape(f)[:-1], ())

    @property
    def support(self):
        return dist.constraints.integer_interval(0, jnp.shape(self.f)[-1] - 1)

    def sample(self, key: Any, sample_shape=()):
        key_noise, key_flip, key_other = random.split(key, 3)
        num_classes, shape = self.f.shape[-1], sample_shape + self.batch_shape
        noise = random.normal(key_noise, (*shape, num_classes), self.f.dtype)
        largest = jnp.argmax(self.f + self.noise**0.5 * noise, axis=-1)
        step = random.randint(key_other, shape, 1, num_classes)
        is_flipped = random.uniform(key_flip, shape) < self.flip
        return jnp.where(is_flipped, jnp.mod(largest + step, num_classes), largest)

    def log_prob(self, value, intermediates=None):
        shape = jnp.broadcast_shapes(jnp.shape(value), self.batch_shape)
        f = jnp.broadcast_to(self.f, (*shape, self.f.shape[-1]))
        y = jnp.broadcast_to(_as_class(value), shape)
        s = probability_of_largest(y, Marginal(f, jnp.zeros_like(f)), self.noise)
        return _log_mixture(s, self.flip, self.f.shape[-1])


def _as_class(y) -> Array:
    return jnp.asarray(y).astype(int)


def _log_mixture(s: Array, flip: Value, num_classes: int) -> Array:
    """log( S (1 − δ) + (1 − S) δ/(C − 1) )."""
    return jnp.log(s * (1.0 - flip) + (1.0 - s) * flip / (num_classes - 1))


def _probability_of_own(likelihood, y, marginal: Marginal) -> Array:
    noise = noise_variance(likelihood.noise)
    return probability_of_largest(_as_class(y), marginal, noise)


@closed_form_expectation.register
def _(likelihood: AdditiveNoiseCategorical, y, marginal: Marginal):
    # S log(1 − δ) + (1 − S) log( δ/(C − 1) )
    s, flip = _probability_of_own(likelihood, y, marginal), likelihood.flip
    wrong = jnp.log(flip) - jnp.log(likelihood.num_classes - 1.0)
    return s * jnp.log1p(-flip) + (1.0 - s) * wrong


@closed_form_log_predictive.register
def _(likelihood: AdditiveNoiseCategorical, y, marginal: Marginal):
    s = _probability_of_own(likelihood, y, marginal)
    return _log_mixture(s, likelihood.flip, likelihood.num_classes)


@register_dataclass
@dataclass(frozen=True)
class Softmax:
    """P(y = c | f) = exp(f_c) / Σ_c' exp(f_c').

    ``bound="gumbel"`` replaces the expectation by a closed-form lower bound (Liu et al.
    2019, equation 25). The Gumbel noise that turns an argmax into a softmax is kept as
    a variable with the best q(ε) = Gumbel(log θ, 1) that does not depend on f; with θ
    at its optimum this is Jensen's inequality,

        E log p(y|f) = −E log( 1 + Σ_{c ≠ y} exp(f_c − f_y) ) >= −log(1 + P),
        P = Σ_{c ≠ y} E exp(f_c − f_y) = Σ_{c ≠ y} exp( m_c − m_y + Var(f_c − f_y)/2 ).

    Var(f_c − f_y) is v_c + v_y for independent components, less twice their covariance
    otherwise. The bound is exact for a latent that is known exactly. It is evaluated in
    log space and cannot overflow, but falls by half a nat for every unit of that
    variance, where the expectation falls with its square root; see the documentation of
    likelihoods for the consequences. Predictions are those of the softmax either way.

    Attributes:
        num_classes: C, at least 2; the latent has as many components. Static.
        bound: None for the expectation itself, by quadrature over differences of two
            or three components, or quasi-Monte Carlo; or ``"gumbel"``. Static.

    Raises:
        ValueError: One of these is outside its range.

    Example:
        >>> gp.likelihoods.Softmax(3, bound="gumbel")(jnp.zeros((5, 3))).batch_shape
        (5,)
    """

    num_classes: int = field(metadata={"static": True})
    bound: Literal["gumbel"] | None = field(default=None, metadata={"static": True})

    def __post_init__(self):
        require_count(self.num_classes, "num_classes", 2)
        if self.bound not in (None, "gumbel"):
            raise ValueError(f"bound must be None or 'gumbel', and not {self.bound!r}.")

    def __call__(self, f: Array) -> dist.Distribution:
        """Categorical with logits f [.., N, C]."""
        require_components(
            f, self.num_classes, "Softmax", "one component for each class"
        )
        return dist.CategoricalLogits(f)


@closed_form_expectation.register
def _(likelihood: Softmax, y, marginal: Marginal):
    y = _as_class(y)
    if likelihood.bound is None:
        few = likelihood.num_classes <= 3
        return mean_log_softmax(y, marginal) if few else None
    # −log(1 + P) = −softplus(log P)
    d = differences(y, marginal)
    return -jax.nn.softplus(logsumexp(d.mean + 0.5 * d.variance, axis=-1))


@closed_form_log_predictive.register
def _(likelihood: Softmax, y, marginal: Marginal):
    if likelihood.num_classes <= 3:
        return log_mean_softmax(_as_class(y), marginal)
    if marginal.covariance is None:
        return log_mean_softmax_of_independent(_as_class(y), marginal)
    return None


@is_log_concave.register
def _(likelihood: Softmax):
    # f_y less a logarithm of a sum of exponentials, which is convex
    return True


@predictive_mean_and_variance.register
def _(likelihood: AdditiveNoiseCategorical | Softmax, marginal: Marginal):
    support = dist.constraints.integer_interval(0, likelihood.num_classes - 1)
    probs: Any = predictive_probabilities(likelihood, support, marginal)
    return moments_of_label(probs)
