"""log E p(y|f) by quadrature, with nodes where the integrand is.

They gather at its modes and on the scale of its own curvature, as in adaptive
Gauss–Hermite quadrature (Naylor & Smith 1982; Liu & Pierce 1994).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jaxtyping import Array

from svgp_ppl.expectations.broad import average_if_broad
from svgp_ppl.expectations.climb import (
    best_of_likelihood,
    climb,
    derivatives,
    log_likelihood_at,
)
from svgp_ppl.expectations.dispatch import by_likelihood
from svgp_ppl.expectations.nodes import shifted
from svgp_ppl.expectations.trapezoid import (
    even_exponentials,
    in_deviations,
    nearest_singularity,
)
from svgp_ppl.marginals import Marginal

__all__ = ["highest_peaks", "is_log_concave", "log_average_by_trapezoid"]

# Half-width, in standard deviations, outside which a Gaussian holds 1e-22.
_REACH = 10.0
# Nodes about each centre. A likelihood 1e-4 times narrower than the marginal gets a
# spacing of 0.2 of its width; a logit under a variance of 1e3 (a step of width 0.03
# standard deviations) gets 0.05 standard deviations: error 1e-5 nats.
_NUM_NODES = 128
# Nodes without a density, as where a tail underflows, may hold this share of the whole.
_NEGLIGIBLE = 1e-6
# Exponent of the partition of unity between the two centres: the mass of a peak of
# width s at distance d is seen by the other grid as (s/d)^3; the blending adds an error
# of exp(−2π² / (4 · spacing)).
_SHARPNESS = 4
# Widths of a peak down to 2⁻¹⁴ standard deviations.
_NUM_HALVINGS = 15
# Points of the scan for peaks, an eighth of a standard deviation apart.
_NUM_SCANNED = 161


@by_likelihood
def is_log_concave(likelihood) -> bool:
    """Whether f -> log p(y | f) is concave for every y; False if unknown.

    Then N(f; m, v) p(y | f) has one mode, and log E p(y | f) is found at a fraction of
    the cost. Register a function for a likelihood of your own.
    """
    return False


def log_average_by_trapezoid(
    likelihood: Callable,
    y: Array,
    marginal: Marginal,
    starts: Array | Callable[[Marginal], Array] | None = None,
) -> Array:
    """log ∫ N(e; 0, 1) p(y | m + s e) de under each component, [N] or [K, N].

    An even grid where p is broad within all marginals (``broad``). Otherwise the
    trapezoidal rule in t with e = c + r sinh t, c a mode of the integrand and r the
    scale of its curvature, resolves the likelihood and the marginal however different
    their widths. If they disagree there are two modes, the marginal's and the
    likelihood's; a registered singularity and ``starts`` add others. Each has its own
    grid, and a partition of unity shares the integrand between them. A likelihood that
    is registered as log-concave has one mode.

    A density may be NaN or infinite far out, where its formula underflows. Such nodes
    are left out if they hold a millionth at most with the highest density of all
    others: beyond c standard deviations a Gaussian has less than exp(−c²/2). The
    average is NaN if not.

    Args:
        likelihood: f -> NumPyro distribution.
        y: Data, [N].
        marginal: Distribution of a latent with one component.
        starts: Further places from which to climb to a mode, in standard deviations
            from the mean, [C, N] or [C, K, N], or a function that finds them; see
            :func:`highest_peaks`.
    """

    def at_modes(mean, variance):
        return _at_modes(likelihood, y, Marginal(mean, variance), starts)

    is_concave = is_log_concave(likelihood)
    return average_if_broad(at_modes, likelihood, y, marginal, is_concave)


def _at_modes(likelihood: Callable, y: Array, marginal: Marginal, starts: Any) -> Array:
    """The same by grids about modes."""
    if callable(starts):
        starts = jax.lax.stop_gradient(starts(marginal))
    centre, scale = jax.lax.stop_gradient(_centres(likelihood, y, marginal, starts))
    low = jnp.arcsinh((jnp.minimum(-_REACH, centre - _REACH) - centre) / scale)
    high = jnp.arcsinh((jnp.maximum(_REACH, centre + _REACH) - centre) / scale)
    step = (high - low) / (_NUM_NODES - 1)
    up = even_exponentials(low, step, _NUM_NODES)  # exp t, [nodes, centres, ..]
    down = 1.0 / up
    e = centre + scale * 0.5 * (up - down)
    weights = scale * 0.5 * (up + down) * step * _shares(e, centre, scale)
    log_p = likelihood(shifted(marginal, e)).log_prob(y)
    is_known = log_p < jnp.inf
    log_p = jnp.where(is_known, log_p, -jnp.inf)
    terms = dist.Normal(0.0, 1.0).log_prob(e) + log_p
    value = logsumexp(terms, axis=(0, 1), b=weights)
    nearest = jnp.min(jnp.where(is_known, jnp.inf, jnp.square(e)), axis=(0, 1))
    lost = jnp.max(log_p, axis=(0, 1)) - 0.5 * nearest
    is_enough = jnp.isinf(nearest) | (lost < value + jnp.log(_NEGLIGIBLE))
    return jnp.where(is_enough, value, jnp.nan)


def _shares(e: Array, centre: Array, scale: Array) -> Array:
    """What the nodes of every grid have of the integrand, [nodes, centres, ..].

    By the density of nodes of each grid, dt/de = 1/√(r² + (e − c)²), to a power.
    """
    tiny = jnp.finfo(e.dtype).tiny

    def square(centre, scale):
        return jnp.maximum(jnp.square(scale) + jnp.square(e - centre), tiny)

    ratios = (square(centre, scale) / square(*other) for other in zip(centre, scale))
    total = sum((ratio ** (_SHARPNESS // 2) for ratio in ratios), start=jnp.zeros(()))
    return 1.0 / total


def highest_peaks(likelihood, y: Array, marginal: Marginal, num_peaks: int) -> Array:
    """Local maxima of −e²/2 + log p(y | m + s e) on a grid, the highest, [C, ..].

    For likelihoods with several modes of their own. In the logarithm a narrow peak has
    a wide foot: a mode is seen unless two of them share a cell of the grid, which is an
    eighth of a standard deviation, and finer about a registered singularity.
    """
    mean = marginal.mean
    grid = jnp.linspace(-_REACH, _REACH, _NUM_SCANNED, dtype=mean.dtype)
    grid = grid.reshape(-1, *(1,) * mean.ndim) + jnp.zeros_like(mean)
    singularity = nearest_singularity(likelihood, y)
    if singularity is not None:
        place, width = in_deviations(mean, marginal.variance, singularity)
        grid = jnp.concatenate([grid, place + width * jnp.sinh(grid)])
        grid = jnp.sort(jnp.clip(grid, -_REACH, _REACH), axis=0)
    heights = log_likelihood_at(likelihood, y, marginal)(grid) - 0.5 * jnp.square(grid)
    ends = jnp.full_like(heights[:1], -jnp.inf)
    before = jnp.concatenate([ends, heights[:-1]])
    after = jnp.concatenate([heights[1:], ends])
    is_peak = (heights >= before) & (heights > after)
    ranked = jnp.where(is_peak, heights, -jnp.inf)
    _, which = jax.lax.top_k(jnp.moveaxis(ranked, 0, -1), num_peaks)
    return jnp.take_along_axis(grid, jnp.moveaxis(which, -1, 0), axis=0)


def _centres(likelihood, y, marginal: Marginal, starts: Array | None):
    """Centres of grids and their widths, in standard deviations, [C, ..].

    One mode if the likelihood is log-concave, otherwise two or more; and the registered
    singularity of a likelihood, if there is one: a step that is much narrower than the
    marginal has no mode of its own.
    """
    log_likelihood = log_likelihood_at(likelihood, y, marginal)
    find = _one_mode if is_log_concave(likelihood) else _modes
    centre, scale = find(log_likelihood, marginal.mean, starts)
    singularity = nearest_singularity(likelihood, y)
    if singularity is None:
        return centre, scale
    place, width = in_deviations(marginal.mean, marginal.variance, singularity)
    width = jnp.minimum(width, 1.0)
    add = (jnp.broadcast_to(x, marginal.mean.shape)[None] for x in (place, width))
    return tuple(map(jnp.concatenate, zip((centre, scale), add)))


def _modes(
    log_likelihood: Callable, like: Array, starts: Array | None
) -> tuple[Array, Array]:
    """Modes of −e²/2 + ℓ(e), and the scales of their curvature, at most 1; [C, ..].

    Reached from the middle of the marginal, from the maximum of the likelihood (often
    the same mode) and from ``starts``.
    """
    best = best_of_likelihood(log_likelihood, _best_of_grid(log_likelihood, like))
    begin = jnp.stack([jnp.zeros_like(best), best])
    begin = begin if starts is None else jnp.concatenate([begin, starts])
    centre, scale = _modes_from(begin, log_likelihood)
    return centre, jnp.minimum(scale, _half_width(_integrand(log_likelihood), centre))


def _one_mode(
    log_likelihood: Callable, like: Array, starts: Array | None
) -> tuple[Array, Array]:
    """The same for a concave ℓ, [1, ..]: from ``starts``, or the best of a grid."""
    objective = _integrand(log_likelihood)
    begin = _best_of_grid(objective, like)[None] if starts is None else starts
    return _modes_from(begin, log_likelihood)


def _integrand(log_likelihood: Callable) -> Callable:
    """−e²/2 + ℓ(e)."""
    return lambda e: -0.5 * jnp.square(e) + log_likelihood(e)


def _modes_from(begin: Array, log_likelihood: Callable) -> tuple[Array, Array]:
    """Modes and scales by Newton's method on each datum at once, [C, ..].

    Uses the absolute curvature if the likelihood is not log-concave.
    """
    objective = _integrand(log_likelihood)

    def newton(e):
        slope, curvature = derivatives(objective, e)
        return slope / jnp.maximum(jnp.abs(curvature), 1.0)

    centre = climb(objective, newton, begin)
    slope, curvature = derivatives(objective, centre)
    # Unknown where second derivatives overflow.
    precision = jnp.where(jnp.isfinite(curvature), jnp.maximum(-curvature, 1.0), 1.0)
    # A climb that has not converged may end where the curvature is absurd: its grid is
    # no finer than the step that remained.
    left = jnp.nan_to_num(jnp.abs(slope) / precision)
    return centre, jnp.maximum(1.0 / jnp.sqrt(precision), jnp.minimum(left, 1.0))


def _half_width(objective: Callable, centre: Array) -> Array:
    """How far from a mode half a nat is lost on both sides: a power of 2, at most 1.

    At a kink, such as the mode of a Laplace density, the curvature says nothing of it.
    """
    away = 0.5 ** jnp.arange(_NUM_HALVINGS, dtype=centre.dtype)
    away = away.reshape(-1, *(1,) * centre.ndim)
    beside = jnp.maximum(objective(centre - away), objective(centre + away))
    is_lower = objective(centre) - beside >= 0.5
    return jnp.min(jnp.where(is_lower, away, 1.0), axis=0)


def _best_of_grid(function: Callable, like: Array) -> Array:
    """The maximum of an elementwise function, to half a standard deviation, [..]."""
    grid = jnp.linspace(-_REACH, _REACH, 41, dtype=like.dtype)
    heights = function(grid.reshape(-1, *(1,) * like.ndim) + jnp.zeros_like(like))
    return grid[jnp.argmax(jnp.where(jnp.isnan(heights), -jnp.inf, heights), axis=0)]
