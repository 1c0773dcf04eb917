"""Averages over draws of the posterior, updated draw by draw.

Nothing grows with the number of draws. A batch of draws b is added to the moments of
those before, a, by (Chan, Golub & LeVeque 1983, eq. 1.3)

    n = n_a + n_b,   δ = mean_b − mean_a,   mean = mean_a + δ n_b/n,
    M = M_a + M_b + δ² n_a n_b/n,

with M the sum of squared deviations from the mean; the variances of the draws
themselves are added to it, and M/n is the total variance. A batch has weights: zero for
padding.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from svgp_ppl.linalg import matmul, weighted_sum

__all__ = [
    "Average",
    "by_name",
    "log_mean_exp",
    "mean",
    "total_covariance",
    "total_moments",
]


class Average(NamedTuple):
    """An average over any number of draws.

    Attributes:
        of_batch: Values of the draws of a batch, on a first axis, and their weights, to
            a partial result.
        added: Partial results of two disjoint sets of draws, to that of both.
        result: Partial result of all draws, to the average.
        nothing: Shapes of a partial result, to that of no draws.
    """

    of_batch: Callable[[Any, Array], Any]
    added: Callable[[Any, Any], Any]
    result: Callable[[Any], Any]
    nothing: Callable[[Any], Any] = lambda shapes: _filled(shapes, 0.0)


def _filled(shapes: Any, value: float) -> Any:
    return jax.tree.map(lambda a: jnp.full(a.shape, value, a.dtype), shapes)


class _Spread(NamedTuple):
    """Number of draws, their mean, and the sum of squares around it."""

    number: Float[Array, ""]
    mean: Array
    squares: Array


def _mean(weights: Array, values: Array) -> Array:
    """Σ_s w_s values_s / Σ_s w_s, where padding may be infinite.

    By differences from the first: a thousand values that are nearly the same, such as
    probabilities near 1, leave five digits of single precision in a sum.
    """
    counts = (weights > 0.0).reshape(-1, *(1,) * (values.ndim - 1))
    first = jnp.where(jnp.isfinite(values[0]), values[0], 0.0)
    shift = jnp.where(counts, values - first, 0.0)
    weights = weights.astype(values.dtype)
    # Not with w_s/Σ w: jaxlib 0.9 begins a sum of products at what is added to it.
    return first + weighted_sum(weights, shift) / jnp.sum(weights)


def _squares(shift: Array) -> Array:
    """Σ δ² over the first axis."""
    return jnp.sum(jnp.square(shift), axis=0)


def _products(shift: Array) -> Array:
    """Σ δ δᵀ over the first axis, between all entries of δ."""
    flat = shift.reshape(len(shift), -1)
    return matmul(flat.T, flat).reshape(shift.shape[1:] * 2)


def _spread(values: tuple[Array, Array], weights, squares: Callable) -> _Spread:
    """Partial result from the means and (co)variances of a batch of draws."""
    means, variances = values
    weights = weights.astype(means.dtype)
    number = jnp.sum(weights)
    centre = _mean(weights, means)
    roots = jnp.sqrt(weights).reshape(-1, *(1,) * (means.ndim - 1))
    within = number * _mean(weights, variances)
    return _Spread(number, centre, within + squares(roots * (means - centre)))


def _both(a: _Spread, b: _Spread, squares: Callable) -> _Spread:
    number = a.number + b.number
    shift = b.mean - a.mean
    between = squares(shift[None]) * (a.number * b.number / number)
    mean = a.mean + shift * (b.number / number)
    return _Spread(number, mean, a.squares + b.squares + between)


def _mean_of_batch(values: Any, weights: Array) -> tuple[Any, Array]:
    return jax.tree.map(partial(_mean, weights), values), jnp.sum(weights)


def _mean_of_both(a: tuple[Any, Array], b: tuple[Any, Array]) -> tuple[Any, Array]:
    number = a[1] + b[1]

    def of_leaf(mean, other):
        both = mean + (other - mean) * (b[1] / number).astype(mean.dtype)
        is_finite = jnp.isfinite(mean) & jnp.isfinite(other)
        return jnp.where(is_finite, both, mean + other)

    return jax.tree.map(of_leaf, a[0], b[0]), number


# E of every leaf.
mean = Average(_mean_of_batch, _mean_of_both, lambda known: known[0])


def _moments_of_batch(values: dict[str, Any], weights: Array) -> dict[str, Any]:
    """``{name: (means, variances)}``, and plain values under ``probs``.

    Moments of data that are not known are None.
    """
    known = {
        name: None if values[name] is None else _spread(values[name], weights, _squares)
        for name in ("latent", "data")
    }
    return known | {"probs": mean.of_batch(values["probs"], weights)}


def _moments_added(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    known = {
        name: None if a[name] is None else _both(a[name], b[name], _squares)
        for name in ("latent", "data")
    }
    return known | {"probs": mean.added(a["probs"], b["probs"])}


def _moments_result(known: dict[str, Any]) -> dict[str, Any]:
    latent, data = known["latent"], known["data"]
    return {
        "latent_mean": latent.mean,
        "latent_variance": latent.squares / latent.number,
        "mean": None if data is None else data.mean,
        "variance": None if data is None else data.squares / data.number,
        "probs": mean.result(known["probs"]),
    }


# For latent and data: E = mean of means, Var = mean variance + spread of the means.
total_moments = Average(_moments_of_batch, _moments_added, _moments_result)

# The same with a covariance between all entries, from (means, covariances).
total_covariance = Average(
    lambda values, weights: _spread(values, weights, _products),
    lambda a, b: _both(a, b, _products),
    lambda known: known.squares / known.number,
)


def _log_sum_of_batch(values: Array, weights: Array) -> tuple[Array, Array]:
    scale = weights.reshape(-1, *(1,) * (values.ndim - 1))
    total = logsumexp(values, axis=0, b=scale.astype(values.dtype))
    return total, jnp.sum(weights).astype(values.dtype)


# log E exp of the values.
log_mean_exp = Average(
    _log_sum_of_batch,
    lambda a, b: (jnp.logaddexp(a[0], b[0]), a[1] + b[1]),
    lambda known: known[0] - jnp.log(known[1]),
    lambda shapes: (_filled(shapes[0], -jnp.inf), _filled(shapes[1], 0.0)),
)


def by_name(average: Average) -> Average:
    """The same average of every entry of a dict."""
    return Average(
        lambda values, weights: {
            name: average.of_batch(value, weights) for name, value in values.items()
        },
        lambda a, b: {name: average.added(a[name], b[name]) for name in a},
        lambda known: {name: average.result(known[name]) for name in known},
        lambda shapes: {name: average.nothing(shapes[name]) for name in shapes},
    )
