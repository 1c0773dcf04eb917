"""From weighted terms and q(v) to moments: the formulas of ``latent``.

An element is one output of one process at one set of inputs. The moments of all
elements are formed first, [E, N], and [E, E, N] if some of them are dependent; the
weights then map elements to components.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array

from svgp_ppl.checks import is_concrete
from svgp_ppl.features import LinearFunctional, covariance, has_rows, paired_covariance
from svgp_ppl.linalg import (
    PosteriorCache,
    cached_moments,
    column_dots,
    gaussian_moments,
    matmul,
    posterior_cache,
    weighted_sum,
    whiten,
)
from svgp_ppl.pytrees import register_dataclass
from svgp_ppl.rows.sharding import in_blocks
from svgp_ppl.variational import (
    Projected,
    full_gaussian,
    group_of,
    is_coupled,
    log_weights,
    project_outputs,
)

__all__ = [
    "Marginal",
    "Output",
    "Terms",
    "View",
    "affine_rows",
    "joint_moments",
    "marginal_moments",
]


@register_dataclass
@dataclass(frozen=True)
class Marginal:
    """Distribution of a latent at each datum: a Gaussian, or a mixture of Gaussians.

    Attributes:
        mean: [N] or [N, Q]; with a leading axis K under a mixture, as all the others.
        variance: Same shape as ``mean``.
        covariance: [N, Q, Q] between components, None when they are independent.
        log_weights: [K], None when there is no mixture.
    """

    mean: Any
    variance: Any
    covariance: Any = None
    log_weights: Any = None

    @property
    def is_single(self) -> bool:
        """Whether the latent has one component, without an axis of its own."""
        return jnp.ndim(self.mean) == (1 if self.log_weights is None else 2)

    def component(self, k) -> "Marginal":
        """Component k of a mixture; k may be an array of them."""
        covariance = None if self.covariance is None else self.covariance[k]
        return Marginal(self.mean[k], self.variance[k], covariance)

    @property
    def full_covariance(self) -> Array:
        """Covariance of the Q components at each datum, [.., N, Q, Q]."""
        if self.covariance is not None:
            return self.covariance
        variance = self.variance[..., None] if self.is_single else self.variance
        return variance[..., None] * jnp.eye(variance.shape[-1], dtype=variance.dtype)

    @property
    def total_variance(self) -> Array:
        """Variance of the whole mixture, the shape of one component's ``mean``."""
        return self.total(self.mean, self.variance)[1]

    @property
    def total_covariance(self) -> Array:
        """Covariance of the whole mixture at each datum, [N, Q, Q]."""
        if self.is_single:
            return self.total_variance[:, None, None]
        shift = self.mean - self.average(self.mean)
        spread = shift[..., :, None] * shift[..., None, :]
        return self.average(self.full_covariance + spread)

    def average(self, per_component: Array) -> Array:
        """Σ_k π_k value_k over the leading axis K; the value itself without one."""
        if self.log_weights is None:
            return per_component
        return weighted_sum(jnp.exp(self.log_weights), per_component)

    def total(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Mean and variance of a mixture, from those of something in each component."""
        whole = self.average(mean)
        return whole, self.average(variance + jnp.square(mean - whole))

    def log_average(self, per_component: Array) -> Array:
        """log Σ_k π_k exp(value_k); the value itself without a mixture."""
        if self.log_weights is None:
            return per_component
        return logsumexp(self.log_weights[:, None] + per_component, axis=0)


@dataclass(frozen=True, eq=False)
class View:
    """A process seen at one set of inputs; two views of the same thing are equal."""

    process: Any
    x: LinearFunctional
    # The caller's own object: its identity shows that two inputs are the same.
    source: Any = field(repr=False)

    def __eq__(self, other):
        if self.process.name != other.process.name or self.source is not other.source:
            return False
        # Inputs of NumPy may have been written into since.
        return isinstance(self.source, jax.Array) or _are_equal(self.x, other.x)

    def __hash__(self):
        return hash((self.process.name, id(self.source)))


def _are_equal(x: LinearFunctional, other: LinearFunctional) -> bool:
    pairs = zip(jax.tree.leaves(x), jax.tree.leaves(other))
    return all(np.array_equal(*pair) for pair in pairs if all(map(is_concrete, pair)))


Element = tuple[View, int]
Terms = dict[Element, Any]  # element -> weight: a number, or an array [N]
Output = tuple[str, int]  # name of its process, and number


def marginal_moments(
    terms: tuple[Terms, ...], chunk_size: int | None
) -> tuple[Array, Array, Array | None, Array | None]:
    """Moments of Q components at each datum, without their offsets.

    Args:
        terms: Per component, element -> weight. At least one element in total.
        chunk_size: Number of rows evaluated at a time, None for all.

    Returns:
        Mean and variance [.., Q, N], covariance [.., N, Q, Q] or None where the
        components are independent, log weights [K] or None.
    """
    elements = _elements(terms)
    views = list(dict.fromkeys(view for view, _ in elements))
    independent = _are_independent(elements)
    if independent:
        moments = {view: _moments_once(view, chunk_size) for view in views}
        mean = _stack(moments[view][0][..., p, :] for view, p in elements)
        gram = _stack(moments[view][1][..., p, :] for view, p in elements)
    else:
        mean, gram = _gram_once(elements, views, chunk_size)

    log_pi = _shared_log_weights(views)
    if _is_identity(terms, elements) and independent:
        return mean, gram, None, log_pi
    weights = _weight_matrix(terms, elements)  # [Q, E, N or 1]
    mean = jnp.sum(weights * mean[..., None, :, :], axis=-2)
    if independent:
        half = weights * gram[..., None, :, :]
    else:
        half = jnp.einsum("qen,...edn->...qdn", weights, gram, precision="highest")
    # Separately: if covariances are not needed, the compiler leaves them out.
    variance = jnp.sum(half * weights, axis=-2)
    users = [sum(element in t for t in terms) for element in elements]
    if independent and max(users) == 1:
        return mean, variance, None, log_pi
    covariance = jnp.einsum("...qdn,rdn->...nqr", half, weights, precision="highest")
    return mean, variance, covariance, log_pi


def _moments_once(view: View, chunk_size: int | None) -> tuple[Array, Array]:
    """``_moments`` of a view, which all latents that see it share."""

    def compute():
        cache = _cache(view, chunk_size)
        return view, _in_chunks(
            lambda xs: _moments(view, xs[0], cache), [view.x], chunk_size
        )

    return view.process.once((_identity(view), chunk_size), compute)[1]


def _gram_once(
    elements: list[Element], views: list[View], chunk_size: int | None
) -> tuple[Array, Array]:
    """Means [.., E, N] and covariances [.., E, E, N] of elements, shared likewise."""

    def evaluate(xs):
        seen = {view: _project(view, x) for view, x in zip(views, xs)}
        mean = _stack(seen[view].projected.mean[..., p, :] for view, p in elements)
        rows = [_stack(_covariance(e, d, seen) for d in elements) for e in elements]
        return mean, jnp.stack(jnp.broadcast_arrays(*rows), axis=-3)

    def compute():
        return elements, _in_chunks(evaluate, [view.x for view in views], chunk_size)

    names = tuple((id(view.process), _identity(view), p) for view, p in elements)
    return views[0].process.once((names, chunk_size), compute)[1]


def _identity(view: View) -> int:
    """What distinguishes views of a process: inputs, or itself if those may change.

    The object has to be kept together with results found by its identity.
    """
    return id(view.source if isinstance(view.source, jax.Array) else view)


def joint_moments(terms: tuple[Terms, ...]) -> tuple[Array, Array, Array | None]:
    """Moments of Q components over all N data together, without their offsets.

    Returns:
        Mean [.., Q, N], covariance [.., Q, N, Q, N], log weights [K] or None.
    """
    elements = _elements(terms)
    views = list(dict.fromkeys(view for view, _ in elements))
    seen = {view: _project(view, view.x) for view in views}
    mean = _stack(seen[view].projected.mean[..., p, :] for view, p in elements)
    weights = _weight_matrix(terms, elements)
    blocks: Any = 0.0
    for i, e in enumerate(elements):
        for j, d in enumerate(elements):
            block = _joint_covariance(e, d, seen)  # [.., N, N]
            if block is not None:
                left, right = weights[:, i, :, None, None], weights[:, j]
                blocks = blocks + left * block[..., None, :, None, :] * right
    mean = jnp.sum(weights * mean[..., None, :, :], axis=-2)
    return mean, blocks, _shared_log_weights(views)


def affine_rows(terms: Terms) -> tuple[dict[Output, Array], Array]:
    """A component as Σ_o φ_oᵀ v_o and its variance given v, at each datum.

    Returns:
        φ by output that it sees, [N, M]; the residual variance, [N].
    """
    seen = {view: _seen_once(view) for view in dict.fromkeys(view for view, _ in terms)}
    rows: dict[Output, Array] = {}
    residual: Any = 0.0
    for element, weight in terms.items():
        view, p = element
        output = (view.process.name, p)
        rows[output] = rows.get(output, 0.0) + (weight * seen[view].a).T
        for other, factor in terms.items():
            residual = residual + weight * factor * _covariance(element, other, seen)
    return rows, jnp.maximum(residual, 0.0)


# ------------------------------------------------------------------ the one projection


class _Seen(NamedTuple):
    """A view evaluated: a [M, N], the q(v)'s share of it, and the variances."""

    x: LinearFunctional
    a: Array
    projected: Projected
    variance: Array  # [.., P, N]


def _whiten(view: View, x: LinearFunctional) -> tuple[Array, Array]:
    """a = L⁻¹ k(z, x) and the residual k(x, x) − ‖a‖²."""
    process = view.process
    a = whiten(process.factor, covariance(process.kernel, process.features, x))
    # The difference is positive up to the rounding of the factorisation.
    residual = x.variance(process.kernel) - column_dots(a, a)
    return a, jnp.maximum(residual, 0.0)


def _seen_once(view: View) -> _Seen:
    """A view given v, which all latents that see it share."""

    def compute():
        a, residual = _whiten(view, view.x)
        outputs = view.process.num_outputs or 1
        point = Projected(jnp.zeros((outputs, a.shape[1]), a.dtype), None)
        variance = jnp.broadcast_to(residual, point.mean.shape)
        return view, _Seen(view.x, a, point, variance)

    return view.process.once(("given v", _identity(view)), compute)[1]


def _project(view: View, x: LinearFunctional) -> _Seen:
    """The moments of aᵀ v, and Var f(x) = k(x, x) − ‖a‖² + aᵀ S a."""
    a, variance = _whiten(view, x)
    projected = project_outputs(view.process.qv, a)
    if projected.factor is not None:
        variance = variance + column_dots(projected.factor, projected.factor)
    return _Seen(x, a, projected, jnp.broadcast_to(variance, projected.mean.shape))


def _cache(view: View, chunk_size: int | None) -> PosteriorCache | None:
    """What chunks share; None where there is one chunk, or it would not pay."""
    process, num_data = view.process, len(view.x)
    gaussian = full_gaussian(process.qv)
    if gaussian is None or chunk_size is None or num_data <= chunk_size:
        return None
    if num_data < _ROWS_TO_CACHE * len(process.scale_tril):
        return None
    return posterior_cache(process.factor, *gaussian)


# Data for each inducing variable from which on a cache pays.
_ROWS_TO_CACHE = 4


def _moments(
    view: View, x: LinearFunctional, cache: PosteriorCache | None
) -> tuple[Array, Array]:
    """Mean and variance of every output, [.., P, N], where no covariance is needed."""
    process = view.process
    gaussian = full_gaussian(process.qv)
    if gaussian is None:
        seen = _project(view, x)
        return seen.projected.mean, seen.variance
    k = covariance(process.kernel, process.features, x)
    variance = x.variance(process.kernel)
    of_q = process.factor, k, *gaussian
    if cache is None:
        mean, excess = gaussian_moments(*of_q)
    else:
        mean, excess = cached_moments(cache, variance, *of_q)
    return mean, variance + excess


def _covariance(e: Element, d: Element, seen: dict[View, _Seen]) -> Array:
    """Cov of two elements at each datum, [.., N]."""
    (view, p), (other, q) = e, d
    one, two = seen[view], seen[other]
    if e == d:
        return one.variance[..., p, :]
    total = jnp.zeros_like(one.variance[..., p, :])
    if not _depend(e, d):
        return total
    kernel = view.process.kernel
    if view.process.name == other.process.name and p == q:
        prior = paired_covariance(kernel, one.x, two.x)
        total = total + prior - column_dots(one.a, two.a)
    f, g = one.projected.factor, two.projected.factor
    if f is not None and g is not None:
        total = total + column_dots(f[..., p, :, :], g[..., q, :, :])
    return total


def _joint_covariance(e: Element, d: Element, seen) -> Array | None:
    """Cov of two elements over all pairs of data, [.., N, N]; None where it is zero."""
    if not _depend(e, d):
        return None
    (view, p), (other, q) = e, d
    one, two = seen[view], seen[other]
    total: Any = 0.0
    if view.process.name == other.process.name and p == q:
        kernel = view.process.kernel
        same = view == other
        prior = one.x.k_uu(kernel) if same else covariance(kernel, one.x, two.x)
        total = prior - matmul(one.a.T, two.a)
    f, g = one.projected.factor, two.projected.factor
    if f is not None and g is not None:
        left = jnp.swapaxes(f[..., p, :, :], -1, -2)
        total = total + matmul(left, g[..., q, :, :])
    return total


# -------------------------------------------------------------------- structure, static


def _elements(terms: tuple[Terms, ...]) -> list[Element]:
    return list(dict.fromkeys(element for t in terms for element in t))


def _depend(e: Element, d: Element) -> bool:
    """Whether two elements can be correlated under the q(v)."""
    (view, p), (other, q) = e, d
    if view.process.name == other.process.name and p == q:
        return True
    mine, theirs = view.process, other.process
    same = group_of(mine.name, mine.qv) == group_of(theirs.name, theirs.qv)
    return same and is_coupled(mine.qv) and is_coupled(theirs.qv)


def _are_independent(elements: list[Element]) -> bool:
    return not any(_depend(e, d) for i, e in enumerate(elements) for d in elements[:i])


def _is_identity(terms: tuple[Terms, ...], elements: list[Element]) -> bool:
    return len(terms) == len(elements) and all(
        list(t) == [e] and isinstance(t[e], float) and t[e] == 1.0
        for t, e in zip(terms, elements)
    )


def _shared_log_weights(views: list[View]) -> Array | None:
    """The mixture weights of the q(v); a latent can see only one mixture."""
    groups = {}
    for process in (view.process for view in views):
        weights = log_weights(process.qv)
        if weights is not None:
            groups[group_of(process.name, process.qv)] = weights
    if len(groups) > 1:
        raise ValueError(
            f"one latent depends on {len(groups)} separate mixtures "
            f"({sorted(groups)}); components are shared by all processes of a q(v): "
            "give them one joint q(v) with variational.split."
        )
    return next(iter(groups.values()), None)


# ------------------------------------------------------------------------------- layout


def _weight_matrix(terms: tuple[Terms, ...], elements: list[Element]) -> Array:
    """[Q, E, N], or [Q, E, 1] when no weight differs between data."""
    rows = [[t.get(element, 0.0) for element in elements] for t in terms]
    width = max(np.size(weight) for row in rows for weight in row)
    rows = [[jnp.broadcast_to(w, (width,)) for w in row] for row in rows]
    return jnp.stack([jnp.stack(row) for row in rows])


def _stack(arrays) -> Array:
    return jnp.stack(jnp.broadcast_arrays(*arrays), axis=-2)


def _in_chunks(evaluate: Callable, xs: list[LinearFunctional], size: int | None):
    """``evaluate`` on ``size`` rows of every device at a time, on all for None."""
    if size is None or size >= len(xs[0]):
        return evaluate(xs)
    if not all(map(has_rows, xs)):
        raise ValueError(
            "chunk_size cuts rows, which Concatenated features do not have: observe "
            "each of their parts at a site of its own, or leave chunk_size out."
        )
    return in_blocks(jax.checkpoint(evaluate), xs, size, axis=-1)
