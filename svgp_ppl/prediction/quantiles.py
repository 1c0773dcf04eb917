"""Quantiles of a prediction, from its distribution function averaged over draws.

    F(a) = mean over draws of E_q P(y <= a | f)

That of whole numbers from a known first one on is the sum of P(y = k), as long as few
are needed: all places together then take less than one by the distribution function.
"""

from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from svgp_ppl.expectations import incomplete
from svgp_ppl.expectations.cumulative import (
    latent_cdf,
    predictive_cdf,
    predictive_mass,
    within_support,
)
from svgp_ppl.handlers import unwrapped
from svgp_ppl.observations import Expected
from svgp_ppl.prediction import averages, inversion
from svgp_ppl.prediction.observe_sites import ObserveSites

__all__ = ["cdf_of", "quantiles_of_data", "quantiles_of_latent"]

# Nodes for the cdf of one draw. Draws shift their nodes independently: their number
# times the square of this one is what counts.
_NODES, _FEWEST_NODES = 512, 24
# How many whole numbers have their probabilities summed, as far as the levels are not
# reached by fewer, and at how many numbers and inputs: beyond, rounding errors of a sum
# in float32 are felt, and the table is large.
_NUMBERS_OF_LABELS, _MOST_ENTRIES = (16, 64, 256, 512, 1024), 2**22


def quantiles_of_latent(
    sites: ObserveSites, name: str, levels: np.ndarray, mean: Any, variance: Any
) -> np.ndarray:
    """Of f at every input, [levels, N] or [levels, N, Q]."""

    def cdf(expected: Expected, key, places, _) -> Any:
        return latent_cdf(places, expected.marginal())

    return _inverted(sites, name, "latent", cdf, levels, mean, variance)


def quantiles_of_data(
    sites: ObserveSites,
    name: str,
    levels: np.ndarray,
    mean: Any,
    variance: Any,
    support: Any,
) -> np.ndarray:
    """Of y at every input, [levels, N] (and event axes).

    Args:
        sites: The observe sites.
        name: Name of one of them.
        levels: Probabilities in (0, 1), [levels].
        mean: Mean of y, only a place to start from.
        variance: Its variance; may be infinite.
        support: Of y.

    Raises:
        ValueError: The likelihood has no distribution function.
    """
    if support.is_discrete:
        found = _by_sums(sites, name, levels, mean, variance, support)
        if found is not None:
            return found
    num_nodes = _num_nodes(sites)

    def cdf(expected: Expected, key, places, lost) -> Any:
        marginal, likelihood = expected.marginal(), expected.likelihood
        try:
            return predictive_cdf(
                likelihood, cdf_of, places, marginal, num_nodes, key, lost
            )
        except NotImplementedError:
            raise ValueError(
                f"the likelihood of site '{name}', {expected.called}, has no "
                "cumulative distribution function: pass key=jax.random.key(...), "
                "and the quantiles are those of draws."
            ) from None

    what = ("data", num_nodes)
    if not support.is_discrete:
        found = _inverted(sites, name, what, cdf, levels, mean, variance)
        return np.clip(found, *_ends(support))

    def at(places: np.ndarray) -> np.ndarray:
        given = _given(places, levels, mean)
        found = sites.over_draws(name, ("cdf", what), cdf, averages.mean, *given)
        return np.asarray(found)

    moments = np.asarray(mean), np.asarray(variance)
    return inversion.inverted_among_whole(at, levels, *moments, sites.num_draws)


def _num_nodes(sites: ObserveSites) -> int:
    return max(int(_NODES / sites.num_draws**0.5), _FEWEST_NODES)


def _given(places: Any, levels: np.ndarray, like: Any) -> tuple[Any, Any]:
    """Places, and what may be left out: one program for all levels."""
    lost = inversion.negligible(levels)
    return jnp.asarray(places, like.dtype), jnp.asarray(lost, like.dtype)


def _inverted(sites, name: str, what, cdf, levels, mean, variance) -> np.ndarray:
    """Quantiles by the distribution function and its derivative."""

    def with_slope(expected: Expected, key, places, lost) -> Any:
        along = (jnp.ones_like(places),)
        both = jax.jvp(lambda a: cdf(expected, key, a, lost), (places,), along)
        return jnp.stack(both)

    def at(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        given = _given(places, levels, mean)
        found = sites.over_draws(
            name, ("cdf", what, "slope"), with_slope, averages.mean, *given
        )
        value, slope = np.asarray(found, np.float64)
        return value, slope

    return inversion.inverted(at, levels, np.asarray(mean), np.asarray(variance))


def _ends(support: Any) -> tuple[float, float]:
    """Numbers that data cannot pass; infinite where they are not known.

    Places are in double precision, and F at one a little above 1 may be that at 1.
    """
    support = getattr(support, "base_constraint", support)
    low = getattr(support, "lower_bound", None)
    high = getattr(support, "upper_bound", None)
    return (
        float(low) if isinstance(low, Real) else -np.inf,
        float(high) if isinstance(high, Real) else np.inf,
    )


def _by_sums(
    sites: ObserveSites, name: str, levels, mean, variance, support: Any
) -> np.ndarray | None:
    """Quantiles among few whole numbers; None if there are many, or no first one."""
    first = getattr(support, "lower_bound", None)
    if not isinstance(first, int | np.integer):
        return None
    num_nodes = _num_nodes(sites)

    def mass(expected: Expected, key, places, lost) -> Any:
        marginal, likelihood = expected.marginal(), expected.likelihood
        return predictive_mass(
            likelihood, mass_of, places, marginal, num_nodes, key, lost
        )

    about = inversion.about(np.max(levels), np.asarray(mean), np.asarray(variance))
    for number in _NUMBERS_OF_LABELS:
        if number * mean.size > _MOST_ENTRIES:
            break
        if first + number <= about:
            continue
        labels = first + np.arange(number)
        labels = labels.reshape(-1, *(1,) * mean.ndim)
        places = np.broadcast_to(labels, (number, *mean.shape))
        try:
            given = _given(places, levels, mean)
            found = sites.over_draws(
                name, ("mass", num_nodes), mass, averages.mean, *given
            )
        except NotImplementedError:
            break
        cumulative = np.cumsum(np.asarray(found, np.float64), axis=0)
        if np.all(cumulative[-1] >= np.max(levels)):
            labels = inversion.of_labels(np.moveaxis(cumulative, 0, -1), levels)
            return (first + labels).astype(cumulative.dtype)
    return None


def mass_of(distribution: Any, value: Any) -> Any:
    """P(y = value) of every entry, whatever wraps the distribution.

    Raises:
        NotImplementedError: It is one of several numbers together.
    """
    inner, _ = unwrapped(distribution)
    if inner.event_shape:
        raise NotImplementedError
    return jnp.where(inner.support(value), jnp.exp(inner.log_prob(value)), 0.0)


def cdf_of(distribution: Any, value: Any) -> Any:
    """P(y <= value) of every entry, whatever wraps the distribution.

    Raises:
        NotImplementedError: The distribution has no cdf.
    """
    inner, _ = unwrapped(distribution)
    if type(inner).cdf is dist.TransformedDistribution.cdf:
        return _through(inner.transforms, inner.base_dist, value)
    try:
        below = incomplete.cdf(inner, value)
    except NotImplementedError:
        below = _summed(inner, value)
    return within_support(inner.support, value, below)


def _summed(distribution: Any, value: Any) -> Any:
    """The cdf as a sum over labels, if these are the same for all data."""
    support: Any = distribution.support
    if not isinstance(support, type(dist.constraints.integer_interval(0, 1))):
        raise NotImplementedError
    low, high = support.lower_bound, support.upper_bound
    if np.ndim(low) or np.ndim(high):
        raise NotImplementedError
    shape = jnp.broadcast_shapes(distribution.batch_shape, jnp.shape(value))

    def add(label, total):
        p = jnp.exp(distribution.log_prob(jnp.full(jnp.shape(value), label)))
        return total + jnp.where(label <= value, p, 0.0)

    return jax.lax.fori_loop(low, high + 1, add, jnp.zeros(shape))


def _through(transforms: list, base: Any, value: Any) -> Any:
    """The cdf of a transformed distribution, whose inverses may leave the support."""
    if not transforms:
        return cdf_of(base, value)
    *earlier, last = transforms
    below = _through(earlier, base, last.inv(value))
    below = jnp.where(last.sign < 0, 1.0 - below, below)
    return within_support(last.codomain, value, below)
