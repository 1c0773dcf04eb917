"""Likelihoods with mean total · σ(f): successes in a number of trials, and shares."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from svgp_ppl.checks import in_full, is_concrete, require_positive
from svgp_ppl.expectations import (
    closed_form_expectation,
    is_log_concave,
    nearest_singularity,
    predictive_mean_and_variance,
)
from svgp_ppl.likelihoods.logistic import mean_excess, mean_sigmoid, sigmoid_variance
from svgp_ppl.likelihoods.stirling import log_binomial
from svgp_ppl.likelihoods.values import Value, settle
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["Beta", "Binomial"]


@register_dataclass
@dataclass(frozen=True)
class Binomial:
    """y ~ Binomial(total_count, σ(f)): successes in a number of trials.

    Attributes:
        total_count: Number of trials, whole and > 0, a number or [N].

    Raises:
        ValueError: ``total_count`` is not whole and positive.

    Example:
        >>> gp.likelihoods.Binomial(10)(jnp.zeros(2)).mean
        Array([5., 5.], dtype=float32)
    """

    total_count: Value

    def __post_init__(self):
        total, what = self.total_count, "the total_count of a Binomial likelihood"
        require_positive(total, what)
        if is_concrete(total):
            array = np.asarray(total)
            if np.any(array != np.round(array)):
                raise ValueError(f"{what} must be whole numbers, and is {total!r}.")

    def __call__(self, f: Array) -> dist.Distribution:
        """Binomial with log odds f."""
        return _Successes(f, self.total_count)


class _Successes(dist.BinomialLogits):
    """Binomial, whose values are counts and not classes."""

    @property
    def support(self):
        return _UpTo(self.total_count)

    def sample(self, key: Any, sample_shape=()):
        """Draws, whatever kind of integers the numbers of trials are."""
        f = jnp.asarray(self.logits)
        whole = dist.BinomialLogits(f, in_full(self.total_count, f.dtype))
        return whole.sample(key, sample_shape)

    def log_prob(self, value, intermediates=None):
        """Smooth in f, where NumPyro's form has no curvature at f = 0."""
        f = jnp.asarray(self.logits)
        n, y = (jnp.asarray(count, f.dtype) for count in (self.total_count, value))
        return log_binomial(y, n - y, f)


class _UpTo(dist.constraints.Constraint):
    """The integers from 0 to a number, which may differ between data."""

    is_discrete = True
    lower_bound = 0

    def __init__(self, total_count):
        self.total_count = total_count

    def __call__(self, x):
        return (x >= 0) & (x <= self.total_count) & (x % 1 == 0)

    def __str__(self) -> str:
        return "the integers 0 to total_count"

    def feasible_like(self, prototype):
        return jnp.zeros_like(prototype)

    def tree_flatten(self):
        return (self.total_count,), (("total_count",), {})


@closed_form_expectation.register
def _(likelihood: Binomial, y, marginal: Marginal):
    # y E log σ(f) + (n − y) E log σ(−f) = y E f − n E log(1 + e^f)
    n, y = (
        jnp.asarray(value, marginal.mean.dtype) for value in (likelihood.total_count, y)
    )
    at_mean = log_binomial(y, n - y, marginal.mean)
    return at_mean - n * mean_excess(marginal.mean, marginal.variance)


@is_log_concave.register
def _(likelihood: Binomial):
    # y log σ(f) + (n − y) log σ(−f)
    return True


@predictive_mean_and_variance.register
def _(likelihood: Binomial, marginal: Marginal):
    # With p = σ(f): Var y = n E p (1 − p) + n² Var p
    n = jnp.asarray(likelihood.total_count, marginal.mean.dtype)
    p, spread = mean_sigmoid(marginal.mean, marginal.variance)
    variance = sigmoid_variance(marginal.mean, marginal.variance)
    return marginal.total(n * p, n * spread + jnp.square(n) * variance)


@register_dataclass
@dataclass(frozen=True)
class Beta:
    """y ~ Beta(c p, c (1 − p)) with p = σ(f): a share with mean p, 0 < y < 1.

    Var(y | f) = p (1 − p) / (1 + c).

    Attributes:
        concentration: c > 0, a number or [N]; make it a site.

    Raises:
        ValueError: It is not positive.

    Example:
        >>> gp.likelihoods.Beta(3.0)(jnp.zeros(2)).variance
        Array([0.0625, 0.0625], dtype=float32)
    """

    concentration: Value

    def __post_init__(self):
        require_positive(self.concentration, "the concentration of a Beta likelihood")
        settle(self, "concentration")

    def __call__(self, f: Array) -> dist.Distribution:
        """Beta with mean σ(f)."""
        # Far out σ underflows; log p then uses the smallest number.
        tiny = jnp.finfo(f.dtype).tiny
        shares = jax.nn.sigmoid(f), jax.nn.sigmoid(-f)
        return _Share(*(jnp.maximum(self.concentration * p, tiny) for p in shares))


class _Share(dist.Beta):
    """Beta without the ends, where its density is zero or infinite."""

    support = dist.constraints.open_interval(0.0, 1.0)

    def log_prob(self, value, intermediates=None):
        """That of a trials and b others with log odds log y/(1 − y), a b/(a + b) dy."""
        a, b = jnp.asarray(self.concentration1), jnp.asarray(self.concentration0)
        log_y, log_rest = jnp.log(value), jnp.log1p(-value)
        free = jnp.log(a) + jnp.log(b) - jnp.log(a + b) - log_y - log_rest
        return free + log_binomial(a, b, log_y - log_rest)


@nearest_singularity.register
def _(likelihood: Binomial | Beta, y):
    return 0.0, jnp.pi  # of σ, at ± i π


@predictive_mean_and_variance.register
def _(likelihood: Beta, marginal: Marginal):
    p, spread = mean_sigmoid(marginal.mean, marginal.variance)
    variance = sigmoid_variance(marginal.mean, marginal.variance)
    return marginal.total(p, spread / (1.0 + likelihood.concentration) + variance)
