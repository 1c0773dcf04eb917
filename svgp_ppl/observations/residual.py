"""A tighter bound: the conditional p(f|u) with its covariance scaled.

What u leaves open of f at the data has the covariance K̃, r_n = K̃_nn. The bound takes
q(f|u) = p(f|u). With q(f|u) = N(·, R V Rᵀ), R Rᵀ = K̃ and V = diag(ν), it has the extra
term − KL( q(f|u) ‖ p(f|u) ) = − ½ Σ_i (ν_i − 1 − log ν_i), and is never worse at the
best ν (Titsias 2025; Bui, Ashman & Turner 2025).

*Gaussian likelihoods*, noise σ_n² = 1/d_n: with R = D^−½ (D^½ K̃ D^½)^½ the terms are
−½ ν_n r_n/σ_n², the best ν_n = 1/(1 + r_n/σ_n²), and −½ r_n/σ_n² is replaced by
−½ log(1 + r_n/σ_n²): a sum over data, which also works for a minibatch.

*Any other likelihood*: one ν for all, R = K̃^½, so that the marginal at a datum has
ν r_n in place of r_n, and the bound gains

    Σ_n [E_n(ν r_n) − E_n(r_n)] − ½ D (ν − 1 − log ν),

with D open values. The best ν solves 1/ν = 1 − (2/D) Σ_n ∂E_n/∂ν. Any ν gives a bound,
so ν is found by a few steps of that equation and then taken as a number. Where log p
is not concave in f they may end beside the best one, or at 1, which gains nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from svgp_ppl.expectations.dispatch import has_distribution_of
from svgp_ppl.latent import Latent
from svgp_ppl.likelihoods import Gaussian
from svgp_ppl.marginals import Marginal
from svgp_ppl.observations.expected import Expected

__all__ = ["Seen", "gain"]

_NUM_STEPS = 4
# A scale below the first would be lost in the rounding of a variance in float32.
_LEAST_SCALE, _MOST_SCALE = 1e-4, 10.0


class Seen(NamedTuple):
    """An ``observe`` site.

    Attributes:
        expected: Its distribution.
        value: Its data.
        mask: Which of them count, [N], or True.
        scale: What its log density is multiplied by, a number or [N]; None for 1.
        num_copies: How many data one stands for in the plates, which is part of it.
    """

    expected: Expected
    value: Any
    mask: Any
    scale: Any
    num_copies: float


def gain(sites: Sequence[Seen]) -> Float[Array, ""]:
    """What the bound gains over q(f|u) = p(f|u), in nats; at least 0.

    Raises:
        ValueError: A plate is subsampled, and a likelihood is not Gaussian.
    """
    if all(_is_gaussian(site.expected) for site in sites):
        return sum(map(_gain_of_gaussian, sites), jnp.zeros(()))
    if any(site.scale is not None for site in sites):
        raise ValueError(
            'MarginalELBO(conditional="scaled") needs all rows at every step, or '
            "likelihoods.Gaussian at every observe site: its one scale would follow "
            "the minibatch."
        )
    return _gain_by_one_scale(sites)


def _is_gaussian(expected: Expected) -> bool:
    is_gaussian = has_distribution_of(expected.likelihood, Gaussian)
    return is_gaussian and expected.latent.is_single


def _gain_of_gaussian(site: Seen) -> Array:
    """½ Σ_n (t r_n/σ_n² − log(1 + t r_n/σ_n²)) of data of weight t, times their copies.

    A datum of weight t has the precision t/σ_n²; one that stands for several is as many
    terms of the sum.
    """
    ratio = _residual(site.expected).variance
    ratio = ratio / jnp.square(site.expected.likelihood.scale)
    if site.scale is not None:
        ratio = ratio * (site.scale / site.num_copies)
    gains = jnp.where(site.mask, 0.5 * (ratio - jnp.log1p(ratio)), 0.0)
    return site.num_copies * jnp.sum(gains)


def _gain_by_one_scale(sites: Sequence[Seen]) -> Array:
    parts = [
        (site, site.expected.marginal(), _residual(site.expected)) for site in sites
    ]
    number = sum(_num_open(site) for site in sites)

    def expectations(scale):
        return sum(
            jnp.sum(jnp.where(site.mask, _with_scale(site, m, r, scale), 0.0))
            for site, m, r in parts
        )

    at_one, scale = expectations(jnp.ones(())), jnp.ones(())
    for _ in range(_NUM_STEPS):
        _, slope = jax.jvp(expectations, (scale,), (jnp.ones_like(scale),))
        scale = 1.0 / (1.0 - 2.0 * slope / number)
        in_range = (scale > 0.0) & (scale < _MOST_SCALE)
        scale = jnp.where(in_range, jnp.maximum(scale, _LEAST_SCALE), 1.0)
        scale = jax.lax.stop_gradient(scale)
    divergence = 0.5 * number * (scale - 1.0 - jnp.log(scale))
    return jnp.maximum(expectations(scale) - at_one - divergence, 0.0)


def _with_scale(site: Seen, marginal: Marginal, residual: Marginal, scale) -> Array:
    """E_n with the residual scaled, [N]."""
    less = 1.0 - scale
    covariance = marginal.covariance
    if covariance is not None:
        covariance = covariance - less * residual.total_covariance
    variance = marginal.variance - less * residual.variance
    scaled = Marginal(marginal.mean, variance, covariance, marginal.log_weights)
    return site.expected.log_prob_of(site.value, scaled)


def _num_open(site: Seen) -> Any:
    """Number of values of f that u leaves open at the data that count."""
    latent = site.expected.latent
    number = jnp.sum(jnp.broadcast_to(site.mask, (latent.num_data,)))
    return number * len(latent.terms)


def _residual(expected: Expected) -> Marginal:
    """The marginal where v is known: its (co)variance is what v leaves open."""
    latent: Latent = expected.latent.at_inducing_mean()
    return latent.marginal(expected.chunk_size)
