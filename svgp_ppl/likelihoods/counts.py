"""Likelihoods of counts."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jaxtyping import Array

from svgp_ppl.checks import require_positive
from svgp_ppl.expectations import closed_form_expectation
from svgp_ppl.expectations.predictive import predictive_mean_and_variance
from svgp_ppl.likelihoods.values import Value
from svgp_ppl.marginals import Marginal

__all__ = ["Poisson"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Poisson:
    """y ~ Poisson(exposure · exp(f)).

    Attributes:
        exposure: Size of what is counted over (area, time, population), > 0, a number
            or [N]; the rate exp(f) is per unit of it.
    """

    exposure: Value = 1.0

    def __post_init__(self):
        require_positive(self.exposure, "the exposure of a Poisson likelihood")

    def __call__(self, f: Array) -> dist.Distribution:
        """Poisson(exposure · exp(f))."""
        return dist.Poisson(self.exposure * jnp.exp(f))


@closed_form_expectation.register
def _(likelihood: Poisson, y, marginal: Marginal):
    # y (m + log e) − e exp(m + v/2) − log y!
    rate = likelihood.exposure * jnp.exp(marginal.mean + 0.5 * marginal.variance)
    return y * (marginal.mean + jnp.log(likelihood.exposure)) - rate - gammaln(y + 1.0)


@predictive_mean_and_variance.register
def _(likelihood: Poisson, marginal: Marginal):
    # E exp(f) = exp(m + v/2), E exp(2 f) = exp(2 m + 2 v)
    rate = likelihood.exposure * jnp.exp(marginal.mean + 0.5 * marginal.variance)
    mean = marginal.average(rate)
    square = marginal.average(jnp.square(rate) * jnp.exp(marginal.variance))
    return mean, mean + square - jnp.square(mean)
