"""Gaussian process regression networks: y = W(x) f(x) + noise, both W and f processes.

With h = (f, w_1, …, w_P) Gaussian, each (W f)_p = w_pᵀ f is a quadratic form in h, so
its mean and the covariances between outputs are known, whatever the covariance of h:

    E w_pᵀ f               = m_pᵀ m_f + tr C_pf
    Cov(w_pᵀ f, w_rᵀ f)    = m_pᵀ V_f m_r + m_pᵀ C_fr m_f + m_fᵀ C_pf m_r
                             + m_fᵀ C_pr m_f
                             + Σ_ij ( V_f[i,j] C_pr[i,j] + C_pf[i,j] C_fr[i,j] ),

with V_f = Cov f, C_pf = Cov(w_p, f), C_pr = Cov(w_p, w_r).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from svgp_ppl.checks import require_count
from svgp_ppl.expectations import (
    closed_form_expectation,
    closed_form_log_predictive,
    log_average_by_trapezoid,
    log_predictive_density,
    nearest_singularity,
    predictive_mean_and_variance,
)
from svgp_ppl.expectations.box import log_average_on_box
from svgp_ppl.expectations.log_average import highest_peaks
from svgp_ppl.likelihoods.values import Value, require_components, settle_scale
from svgp_ppl.linalg import (
    floored_sqrt,
    safe_sqrt,
    small_cholesky,
    small_product,
)
from svgp_ppl.marginals import Marginal
from svgp_ppl.pytrees import register_dataclass

__all__ = ["GPRN"]

# Modes of the density of one node that get a grid of their own, besides two.
_NUM_PEAKS = 3


@register_dataclass
@dataclass(frozen=True)
class GPRN:
    """y = W f + scale ε, with W [P, Q] and f [Q] both components of the latent.

    Gaussian process regression network (Wilson, Knowles & Ghahramani 2012, as in
    Dezfouli & Bonilla 2015, without noise on the nodes f). The latent has Q (1 + P)
    components: first the nodes f_1 … f_Q, then W row by row, w_11 … w_1Q, w_21 … w_PQ:

        gp.stack([nodes(x), weights(x)])

    with ``num_outputs=Q`` for the nodes and ``num_outputs=P * Q`` for the weights. The
    expectation has a closed form, for correlated components too. The log predictive
    density integrates W in closed form where the components are independent (y is
    Gaussian given f, and its P entries are independent), which leaves an integral over
    the nodes alone. The signs of a node and of its column of W can be flipped together:
    a Gaussian q(v) settles on one choice, chains may not.

    Attributes:
        num_outputs: P. Static.
        num_nodes: Q. Static.
        scale: Standard deviation of the noise, a number or [P].

    Raises:
        ValueError: One of the numbers is not a positive integer.

    Example:
        >>> likelihood = gp.likelihoods.GPRN(num_outputs=2, num_nodes=1, scale=0.1)
        >>> likelihood(jnp.zeros((5, 3))).event_shape
        (2,)
    """

    num_outputs: int = field(metadata={"static": True})
    num_nodes: int = field(metadata={"static": True})
    scale: Value

    def __post_init__(self):
        require_count(self.num_outputs, "num_outputs", 1)
        require_count(self.num_nodes, "num_nodes", 1)
        settle_scale(self, "GPRN")

    def __call__(self, f: Array) -> dist.Distribution:
        """N(W f, scale² I) over [P]; the components f [.., N, Q + P Q]."""
        width = self.num_nodes * (1 + self.num_outputs)
        require_components(f, width, "GPRN", "num_nodes * (1 + num_outputs)")
        nodes, weights = self.split(f)
        mean = small_product(weights, nodes)
        return dist.Normal(mean, self.scale).to_event(1)

    def split(self, components: Array) -> tuple[Array, Array]:
        """The last axis split into nodes [.., Q] and weights [.., P, Q]."""
        nodes = components[..., : self.num_nodes]
        weights = components[..., self.num_nodes :]
        shape = (*weights.shape[:-1], self.num_outputs, self.num_nodes)
        return nodes, weights.reshape(shape)

    def of_entries(self, known: Any) -> "GPRN":
        """The likelihood of the known entries of y, a mask [N, P].

        Its closed forms are those of all entries, with weights of 0 and data of 0 for
        the unknown ones.
        """
        return _OfEntries(self.num_outputs, self.num_nodes, self.scale, known)

    def covariance(self, marginal: Marginal) -> Array:
        """Covariance between the outputs at each datum, noise included, [N, P, P].

        Args:
            marginal: Distribution of the latent, ``latent.marginal()``.
        """
        mean, covariance = _moments_of_product(self, marginal)
        outputs = Marginal(mean, None, covariance, marginal.log_weights)
        noise = jnp.square(jnp.broadcast_to(self.scale, (self.num_outputs,)))
        return outputs.total_covariance + jnp.diag(noise)


@register_dataclass
@dataclass(frozen=True)
class _OfEntries(GPRN):
    known: Any  # [N, P]

    def __call__(self, f: Array) -> dist.Distribution:
        whole: Any = super().__call__(f)
        return whole.base_dist.mask(self.known).to_event(1)

    def of_all(self, form: Callable, y: Any, marginal: Marginal) -> Array:
        """A log density of all entries, less that of the unknown ones."""
        whole = GPRN(self.num_outputs, self.num_nodes, self.scale)
        known = jnp.asarray(self.known, marginal.mean.dtype)
        nodes = jnp.ones((*known.shape[:-1], self.num_nodes), known.dtype)
        keep = jnp.concatenate([nodes, jnp.repeat(known, self.num_nodes, -1)], -1)
        covariance = marginal.covariance
        if covariance is not None:
            covariance = covariance * keep[..., :, None] * keep[..., None, :]
        mean, variance = marginal.mean * keep, marginal.variance * keep
        kept = Marginal(mean, variance, covariance, marginal.log_weights)
        scale = jnp.asarray(self.scale, known.dtype)
        unknown = (1.0 - known) * dist.Normal(0.0, scale).log_prob(0.0)
        return form(whole, y * known, kept) - jnp.sum(unknown, axis=-1)


def _product(subscripts: str, *arrays: Array) -> Array:
    return jnp.einsum(subscripts, *arrays, precision=jax.lax.Precision.HIGHEST)


def _mean_and_variance(likelihood: GPRN, marginal: Marginal) -> tuple[Array, Array]:
    """E (W f)_p and Var (W f)_p under each component, [.., N, P]."""
    if marginal.covariance is None:
        # Σ_q of products of independent variables: m_w² v_f + m_f² v_w + v_w v_f
        m_f, m_w = likelihood.split(marginal.mean)
        v_f, v_w = likelihood.split(marginal.variance)
        variance = small_product(jnp.square(m_w) + v_w, v_f)
        variance = variance + small_product(v_w, jnp.square(m_f))
        return small_product(m_w, m_f), variance
    mean, covariance = _moments_of_product(likelihood, marginal)
    return mean, jnp.diagonal(covariance, axis1=-2, axis2=-1)


def _moments_of_product(likelihood: GPRN, marginal: Marginal) -> tuple[Array, Array]:
    """E W f and Cov W f under each component, [.., N, P] and [.., N, P, P]."""
    c = marginal.full_covariance
    m_f, m_w = likelihood.split(marginal.mean)  # [.., N, Q] and [.., N, P, Q]
    *batch, p, q = m_w.shape
    v_f = c[..., :q, :q]
    c_wf = c[..., q:, :q].reshape(*batch, p, q, q)  # the weight first
    c_ww = c[..., q:, q:].reshape(*batch, p, q, p, q)
    mean = small_product(m_w, m_f) + jnp.trace(c_wf, axis1=-2, axis2=-1)
    one_sided = _product("...pi,...rji,...j->...pr", m_w, c_wf, m_f)
    covariance = (
        _product("...pi,...ij,...rj->...pr", m_w, v_f, m_w)
        + one_sided
        + jnp.swapaxes(one_sided, -1, -2)
        + _product("...i,...pirj,...j->...pr", m_f, c_ww, m_f)
        + _product("...ij,...pirj->...pr", v_f, c_ww)
        + _product("...pij,...rji->...pr", c_wf, c_wf)
    )
    return mean, covariance


@closed_form_expectation.register
def _(likelihood: GPRN, y, marginal: Marginal):
    # Σ_p log N(y_p; E (W f)_p, s_p²) − Var (W f)_p / (2 s_p²)
    mean, variance = _mean_and_variance(likelihood, marginal)
    density = dist.Normal(mean, likelihood.scale).log_prob(y)
    spread = 0.5 * variance / jnp.square(likelihood.scale)
    return jnp.sum(density - spread, axis=-1)


@closed_form_expectation.register
def _(likelihood: _OfEntries, y, marginal: Marginal):
    return likelihood.of_all(closed_form_expectation, y, marginal)


@predictive_mean_and_variance.register
def _(likelihood: GPRN, marginal: Marginal):
    mean, variance = marginal.total(*_mean_and_variance(likelihood, marginal))
    return mean, variance + jnp.square(likelihood.scale)


@closed_form_log_predictive.register
def _(likelihood: GPRN, y, marginal: Marginal):
    given = _given_nodes(likelihood, marginal)
    q = likelihood.num_nodes
    ones = jnp.ones_like(marginal.mean[..., :q])
    if q > 3:
        return log_predictive_density(given, y, Marginal(0.0 * ones, ones))
    if q > 1:
        return log_average_on_box(lambda e: given(e).log_prob(y), ones)
    single = Marginal(0.0 * ones[..., 0], ones[..., 0])

    def peaks(marginal):
        return highest_peaks(given, y, marginal, _NUM_PEAKS)

    return log_average_by_trapezoid(given, y, single, peaks)


@closed_form_log_predictive.register
def _(likelihood: _OfEntries, y, marginal: Marginal):
    return likelihood.of_all(closed_form_log_predictive, y, marginal)


@dataclass(frozen=True)
class _GivenNodes:
    """e -> p(y | f = m + F e), e standard normal, with the weights integrated out.

    (f, W) has the covariance factor [[F, 0], [A, C]]. Given e the weights are Gaussian
    with mean M + A e and covariance C Cᵀ, and so is y = W f + noise.
    """

    nodes: Array  # m [.., N, Q]
    of_nodes: Array  # F [.., N, Q, Q]
    weights: Array  # M [.., N, P, Q]
    slope: Array | None  # A [.., N, P, Q, Q]
    rest: Array  # C Cᵀ [.., N, P, Q, P, Q]; independent: its diagonal [.., N, P, Q]
    scale: Array

    def __call__(self, e: Array) -> Any:
        # A latent of one component has no axis for it.
        e = e[..., None] if self.nodes.shape[-1] == 1 else e
        f = self.nodes + small_product(self.of_nodes, e)
        if self.slope is None:
            variance = small_product(self.rest, jnp.square(f)) + jnp.square(self.scale)
            mean = small_product(self.weights, f)
            return dist.Normal(mean, jnp.sqrt(variance)).to_event(1)
        weights = self.weights + small_product(self.slope, e[..., None, :])
        # Σ_ij f_i f_j Cov(w_pi, w_rj | f)
        covariance: Any = 0.0
        for i in range(f.shape[-1]):
            for j in range(f.shape[-1]):
                product = (f[..., i] * f[..., j])[..., None, None]
                covariance = covariance + product * self.rest[..., :, i, :, j]
        noise = jnp.broadcast_to(self.scale, self.weights.shape[-2:-1])
        return _Normal(small_product(weights, f), covariance, jnp.square(noise))


class _Normal(NamedTuple):
    """N(mean [.., P], covariance [.., P, P] + diag noise [P]), for many small ones."""

    mean: Array
    covariance: Array
    noise: Array

    def log_prob(self, y) -> Array:
        """Cholesky factorisation and triangular solve, row by row.

        Written out in scalars, which compiles in a fraction of the time.
        """
        rows: list[list[Array]] = []
        solved: list[Array] = []
        total: Any = 0.0
        for p in range(self.mean.shape[-1]):
            row: list[Array] = []
            for r in range(p + 1):
                rest = self.covariance[..., p, r]
                for left, right in zip(row, rows[r] if r < p else row):
                    rest = rest - left * right
                if r < p:
                    row.append(rest / rows[r][r])
                else:  # the variance given the previous ones, negative only by rounding
                    rest = jnp.maximum(rest, 0.0) + self.noise[p]
                    row.append(jnp.sqrt(rest))
            z = y[..., p] - self.mean[..., p]
            for left, right in zip(row, solved):
                z = z - left * right
            solved.append(z / row[p])
            rows.append(row)
            total = total - jnp.log(row[p]) - 0.5 * jnp.square(solved[p])
        return total - 0.5 * len(rows) * jnp.log(2.0 * jnp.pi)


def _given_nodes(likelihood: GPRN, marginal: Marginal) -> _GivenNodes:
    q, p = likelihood.num_nodes, likelihood.num_outputs
    nodes, weights = likelihood.split(marginal.mean)
    scale = jnp.asarray(likelihood.scale, marginal.mean.dtype)
    if marginal.covariance is None:
        of_nodes, rest = likelihood.split(marginal.variance)
        factor = safe_sqrt(of_nodes)[..., None] * jnp.eye(q, dtype=scale.dtype)
        return _GivenNodes(nodes, factor, weights, None, rest, scale)
    factor = small_cholesky(marginal.covariance)
    batch = marginal.mean.shape[:-1]
    slope = factor[..., q:, :q].reshape(*batch, p, q, q)
    rest = _product("...ij,...kj->...ik", factor[..., q:, q:], factor[..., q:, q:])
    rest = rest.reshape(*batch, p, q, p, q)
    return _GivenNodes(nodes, factor[..., :q, :q], weights, slope, rest, scale)


@nearest_singularity.register
def _(likelihood: _GivenNodes, y):
    # One node: log det(f² C Cᵀ + scale²) is infinite at f = ± i scale / |C|.
    sd = floored_sqrt(jnp.square(likelihood.of_nodes[..., 0, 0]))
    rest = likelihood.rest[..., 0]
    if likelihood.slope is not None:
        rest = jnp.diagonal(rest[..., 0, :], axis1=-2, axis2=-1)
    width = jnp.min(likelihood.scale / floored_sqrt(rest), axis=-1)
    return -likelihood.nodes[..., 0] / sd, width / sd
