"""The likelihood of ordered classes: a noisy latent between cutpoints.

With g = f + ε and logistic ε the class is the number of cutpoints below g. Between two
of them, a < b (McCullagh 1980),

    P = σ(b − f) − σ(a − f) = σ(b − f) σ(f − a) (1 − e^{a − b}),

a product: log P needs no difference of numbers near one, and E log P is that of the
logistic function, twice (``logistic``).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array

from svgp_ppl.checks import is_concrete
from svgp_ppl.expectations import (
    closed_form_expectation,
    closed_form_log_predictive,
    is_log_concave,
    log_average_by_trapezoid,
    nearest_singularity,
    predictive_mean_and_variance,
)
from svgp_ppl.likelihoods.logistic import mean_log_sigmoid, mean_sigmoid
from svgp_ppl.likelihoods.values import Value
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["Ordinal"]

# A class at least this wide, in units of the logistic error, has its probability from a
# difference, where that is at least this.
_WIDE, _LEAST_SHARE = 10.0, 1e-3


@register_dataclass
@dataclass(frozen=True)
class Ordinal:
    """P(y <= k | f) = σ(cutpoint_k − f), y in {0, …, C − 1}: ordered logistic.

    The cutpoints are usually a site. f + constant with all cutpoints moved by the same
    constant is the same model: give their location a prior, or fix one of them.

    Attributes:
        cutpoints: C − 1 increasing numbers, [C − 1].

    Raises:
        ValueError: The cutpoints are not finite and increasing.

    Example:
        >>> import numpyro
        >>> def cutpoints():
        ...     ordered = numpyro.distributions.transforms.OrderedTransform()
        ...     base = dist.Normal(0.0, 2.0).expand([3]).to_event(1)
        ...     prior = dist.TransformedDistribution(base, ordered)
        ...     return numpyro.sample("cutpoints", prior)
        >>> gp.likelihoods.Ordinal(jnp.array([-1.0, 1.0]))(jnp.zeros(2)).mean
        Array([1., 1.], dtype=float32)
    """

    cutpoints: Value

    def __post_init__(self):
        if isinstance(self.cutpoints, list | tuple):
            object.__setattr__(self, "cutpoints", np.asarray(self.cutpoints, float))
        cutpoints = self.cutpoints
        if not is_concrete(cutpoints):
            return
        array = np.asarray(cutpoints)
        is_line = array.ndim == 1 and len(array) > 0
        if not is_line or not np.all(np.isfinite(array)) or np.any(np.diff(array) <= 0):
            raise ValueError(
                "the cutpoints of an Ordinal likelihood must be C − 1 increasing "
                f"numbers, [C − 1], for C classes, and are {cutpoints!r}. As a site: a "
                "TransformedDistribution with OrderedTransform()."
            )

    def __call__(self, f: Array) -> dist.Distribution:
        """The ordered logistic distribution of a class."""
        return _OrderedLogistic(f, jnp.asarray(self.cutpoints, f.dtype))


class _OrderedLogistic(dist.Distribution):
    """The number of cutpoints below f + ε, ε logistic."""

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("location", "cutpoints")

    def __init__(self, location, cutpoints):
        self.location, self.cutpoints = location, cutpoints
        super().__init__(jnp.shape(location), ())

    @property
    def support(self):
        return dist.constraints.integer_interval(0, self.cutpoints.shape[0])

    def sample(self, key: Any, sample_shape=()):
        shape = sample_shape + self.batch_shape
        noisy = self.location + random.logistic(key, shape, self.location.dtype)
        return jnp.sum(noisy[..., None] > self.cutpoints, axis=-1)

    def log_prob(self, value, intermediates=None):
        log_sigmoid = jax.nn.log_sigmoid
        return _by_ends(
            self.cutpoints,
            value,
            lambda upper: log_sigmoid(upper - self.location),
            lambda lower: log_sigmoid(self.location - lower),
        )

    def cdf(self, value):
        k, last = jnp.asarray(value, int), self.cutpoints.shape[0]
        below = jax.nn.sigmoid(self._cutpoint(k) - self.location)
        return jnp.where(k >= last, 1.0, jnp.where(k < 0, 0.0, below))

    def _cutpoint(self, k: Array) -> Array:
        return self.cutpoints[jnp.clip(k, 0, self.cutpoints.shape[0] - 1)]

    @property
    def _moments(self) -> tuple[Array, Array]:
        log_odds = self.location[..., None] - self.cutpoints
        return _moments_of_class(jax.nn.sigmoid(log_odds), jax.nn.sigmoid(-log_odds))

    @property
    def mean(self):
        return self._moments[0]

    @property
    def variance(self):
        return self._moments[1]


def _by_ends(cutpoints: Array, y, below_upper, above_lower) -> Array:
    """log P or its expectation, from what each end of the class of y gives."""
    lower, upper, has_lower, has_upper = _ends(cutpoints, y)
    gap = jnp.where(has_lower & has_upper, upper - lower, 1.0)
    log_gap = jnp.where(has_lower & has_upper, jnp.log(-jnp.expm1(-gap)), 0.0)
    first = jnp.where(has_upper, below_upper(upper), 0.0)
    return first + jnp.where(has_lower, above_lower(lower), 0.0) + log_gap


def _ends(cutpoints: Array, y) -> tuple[Array, Array, Array, Array]:
    """Both ends of the class of y, and whether it has them (else it is the other)."""
    y, last = jnp.asarray(y, int), cutpoints.shape[0]
    lower, upper = (cutpoints[jnp.clip(k, 0, last - 1)] for k in (y - 1, y))
    return lower, upper, y > 0, y < last


def _moments_of_class(above: Array, below: Array) -> tuple[Array, Array]:
    """E y and Var y from p_k = P(y > k) and 1 − p_k, of which either may be tiny.

    y is the number of the k below it, and y > k implies y > j for j < k: E y = Σ_k p_k
    and Var y = Σ_k p_k (1 − p_k + 2 Σ_{j<k} (1 − p_j)).
    """
    both = 2.0 * jnp.cumsum(below, axis=-1) - below
    return jnp.sum(above, axis=-1), jnp.sum(above * both, axis=-1)


@closed_form_expectation.register
def _(likelihood: Ordinal, y, marginal: Marginal):
    mean, variance = marginal.mean, marginal.variance
    return _by_ends(
        jnp.asarray(likelihood.cutpoints, mean.dtype),
        y,
        lambda upper: mean_log_sigmoid(upper - mean, variance),
        lambda lower: mean_log_sigmoid(mean - lower, variance),
    )


@is_log_concave.register
def _(likelihood: Ordinal):
    # The probability of an interval under a log-concave error is (Prékopa 1973).
    return True


@nearest_singularity.register
def _(likelihood: Ordinal, y):
    # The singularities of σ at both ends of the class, c ± i π: between them.
    lower, upper, *_ = _ends(jnp.asarray(likelihood.cutpoints), y)
    return 0.5 * (lower + upper), jnp.pi


@closed_form_log_predictive.register
def _(likelihood: Ordinal, y, marginal: Marginal):
    # A wide class under a wide marginal is a box, whose two ends no grid has in common:
    # P = E σ(u − f) − E σ(l − f), or that of −f, whichever keeps its digits.
    cutpoints = jnp.asarray(likelihood.cutpoints, marginal.mean.dtype)
    lower, upper, has_lower, has_upper = _ends(cutpoints, y)
    is_wide = has_lower & has_upper & (upper - lower > _WIDE)
    lower, upper = lower - marginal.mean, upper - marginal.mean
    is_below = upper + lower < 0.0
    near, far = jnp.where(is_below, upper, -lower), jnp.where(is_below, lower, -upper)
    share = mean_sigmoid(near, marginal.variance)[0]
    share = share - mean_sigmoid(far, marginal.variance)[0]
    is_box = is_wide & (share > _LEAST_SHARE)
    box = jnp.log(jnp.where(is_box, share, 1.0))
    return jnp.where(is_box, box, log_average_by_trapezoid(likelihood, y, marginal))


@predictive_mean_and_variance.register
def _(likelihood: Ordinal, marginal: Marginal):
    cutpoints = jnp.asarray(likelihood.cutpoints, marginal.mean.dtype)
    shifted = marginal.mean[..., None] - cutpoints
    above, below = (
        marginal.average(mean_sigmoid(odds, marginal.variance[..., None])[0])
        for odds in (shifted, -shifted)
    )
    return _moments_of_class(above, below)
