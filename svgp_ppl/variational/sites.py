"""Sites: the Gaussian factors that turn the prior of u into the q(u) of a fit.

At the hyperparameters θ̂ of a fit, q(u) is the prior times t(u), the product of the
*sites* (the word of expectation propagation; the dual parameters of Opper & Archambeau
2009, Khan & Lin 2017, Adam, Chang, Khan & Solin 2021). Any Gaussian t(u) is that of R
pseudo-data y of unit noise,

    t(u) ∝ exp(−½ ‖y − H u‖²),

and with t held fixed, at any other θ, u = m_θ(z) + L_θ v,

    q(v | θ) ∝ N(v; 0, I) t(u) = N(P⁻¹ Gᵀ (y − H m_θ(z)), P⁻¹),
    P(θ) = I + Gᵀ G,   G = H L_θ.

P is positive definite whatever H is. Processes that share a Gaussian share pseudo-data,
y = Σ_c H_c u_c + noise. Taken one after another, the q of u_c given those before it
has the pseudo-data y − Σ_{e<c} H_e u_e, and those after it, integrated out under their
priors at θ̂, add to the noise: exact at θ̂, and any choice gives a proper q(v | θ).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from svgp_ppl.linalg import (
    cholesky,
    factorised,
    matmul,
    solve_lower,
    solve_lower_transposed,
    weighted_sum,
)
from svgp_ppl.variational.joint import is_coupled, log_weights
from svgp_ppl.variational.projection import project_outputs

__all__ = [
    "Conditional",
    "Prior",
    "Sites",
    "conditional",
    "data_that_move",
    "gaussian_at",
    "moments",
    "pseudo_data_of",
    "rows_of",
    "sites_of",
]

# Directions in which the data shrink a variance by less than this share have no site:
# the remaining error of an optimiser would be amplified where L_θ is rougher.
_LEAST_PRECISION = 0.01
# H of a direction without a site where a guide starts, for u of unit variance. In units
# of u: in those of v it would grow where L_θ is rougher.
_WEAK = 0.01
# Pseudo-data move a direction of v of which they tell a tenth of a prior or more.
_LEAST_SEEN = 0.3


class Sites(NamedTuple):
    """The sites of one process: B groups of R pseudo-data.

    Either one group for each of the P outputs, of T = M values, or one of T = P M.

    Attributes:
        projection: H, [B, R, T].
        data: y, [B, R].
        of_others: H_e of the earlier processes that share the pseudo-data, [R, T_e].
    """

    projection: Array
    data: Array
    of_others: dict[str, Array]


class Conditional(NamedTuple):
    """q(v | θ) of one process, as v = C⁻ᵀ (shift + ξ) with ξ ~ N(0, I).

    Attributes:
        shift: Cᵀ E v, [B, T].
        precision_tril: C with C Cᵀ = P, [B, T, T].
    """

    shift: Array
    precision_tril: Array

    def value(self, xi: Array) -> Array:
        """v at ξ, any shape of B T values."""
        rows = jnp.reshape(xi, self.shift.shape) + self.shift
        solve = jax.vmap(solve_lower_transposed)
        return jnp.reshape(solve(self.precision_tril, rows[..., None]), jnp.shape(xi))

    def base(self, v: Array) -> Array:
        """ξ at v, its inverse."""
        rows = jnp.reshape(v, self.shift.shape)
        xi = jnp.sum(self.precision_tril * rows[..., None], axis=-2) - self.shift
        return jnp.reshape(xi, jnp.shape(v))

    def log_det(self) -> Float[Array, ""]:
        """log |∂v/∂ξ| = −Σ log C_ii."""
        diagonal = jnp.diagonal(self.precision_tril, axis1=-2, axis2=-1)
        return -jnp.sum(jnp.log(diagonal))


def conditional(
    sites: Sites,
    scale_tril: Float[Array, "M M"],
    mean: Float[Array, "P M"],
    others: Mapping[str, Array],
) -> Conditional:
    """q(v | θ) of a process whose prior is u = mean + L v.

    Args:
        sites: Sites of this process.
        scale_tril: L of every output.
        mean: Prior mean of u.
        others: u of the earlier processes, by name.
    """
    groups, _, size = sites.projection.shape
    g = _of_v(sites.projection, scale_tril)
    columns = mean.reshape(groups, size, 1)
    rest = sites.data - matmul(sites.projection, columns)[..., 0]
    for name, projection in sites.of_others.items():
        rest = rest - matmul(projection, others[name].reshape(-1))

    def one(g, rest):
        precision = jnp.eye(size, dtype=g.dtype) + matmul(g.T, g)
        tril = cholesky(precision, 0.0)
        return Conditional(solve_lower(tril, matmul(g.T, rest)[:, None])[:, 0], tril)

    return jax.vmap(one)(g, rest)


def _of_v(
    projection: Float[Array, "B R T"], scale_tril: Float[Array, "M M"]
) -> Float[Array, "B R T"]:
    """G = H L, with the L of every output."""
    groups, num_data, _ = projection.shape
    by_output = projection.reshape(groups, num_data, -1, len(scale_tril))
    return matmul(by_output, scale_tril).reshape(projection.shape)


def data_that_move(
    sites: Sites,
    scale_tril: Any,
    xi: Float[np.ndarray, "B T D"],
) -> Float[np.ndarray, "B R D"]:
    """The changes of y that move v as these changes of ξ do; on the host.

    Of v = C⁻ᵀ (shift + ξ), shift = C⁻¹ Gᵀ (y − H m_θ(z)), by the pseudo-inverse of
    C⁻¹ Gᵀ, without directions of v that the sites hardly see.

    Args:
        sites: Sites of one process.
        scale_tril: L of every output.
        xi: D changes.
    """
    given = jnp.asarray(sites.projection), jnp.asarray(scale_tril)
    g = np.asarray(_of_v(*given), float)
    transposed = np.swapaxes(g, -1, -2)
    tril = np.linalg.cholesky(np.eye(g.shape[-1]) + transposed @ g)
    # Singular values are those of G divided by √(1 + their square).
    by_data = np.linalg.solve(tril, transposed)
    return np.linalg.pinv(by_data, rcond=_LEAST_SEEN) @ xi


class Prior(NamedTuple):
    """A process at the fit: u = mean + L v for each output, [P, M] and [M, M]."""

    mean: Any
    scale_tril: Any


def rows_of(priors: Mapping[str, Prior]) -> dict[str, np.ndarray]:
    """Where the values of each process are in the stack of all, [P, M] by name."""
    rows, stop = {}, 0
    for name, prior in priors.items():
        start, stop = stop, stop + np.size(prior.mean)
        rows[name] = np.arange(start, stop).reshape(np.shape(prior.mean))
    return rows


def gaussian_at(
    projection: Float[Array, "B R T"],
    data: Float[Array, "B R"],
    priors: Sequence[Prior],
) -> tuple[Float[Array, "B T"], Float[Array, "B T T"]]:
    """q(v | θ) = N(m, S Sᵀ) of processes that share sites, all at once.

    Args:
        projection: H of the stacked u; of the outputs of one process if B > 1.
        data: y.
        priors: The processes at θ, in the order of the stack.

    Returns:
        m, and S, lower triangular.
    """
    groups, _, size = projection.shape
    columns, rest, stop = [], data, 0
    for prior in priors:
        start, stop = stop, stop + prior.mean.size // groups
        part = projection[..., start:stop]
        columns.append(_of_v(part, prior.scale_tril))
        mean = prior.mean.reshape(groups, -1, 1)
        rest = rest - matmul(part, mean)[..., 0]

    def one(g, rest):
        precision = jnp.eye(size, dtype=g.dtype) + matmul(g.T, g)
        # Rows and columns in reverse order: a lower factor there is an upper one here.
        upper_inverse = factorised(precision[::-1, ::-1], 0.0).inverse[::-1, ::-1]
        tril = upper_inverse.T
        return matmul(tril, matmul(upper_inverse, matmul(g.T, rest))), tril

    return jax.vmap(one)(jnp.concatenate(columns, axis=-1), rest)


def moments(qvs: Sequence[Any], sizes: Sequence[int]) -> tuple[Array, Array]:
    """Means [B, T] and covariances [B, T, T] of the v of processes that share a q(v).

    If the q(v) is coupled, all their values are one group; otherwise there is one
    process, with a group for each of its outputs. A mixture has the moments of the
    whole.

    Args:
        qvs: The q(v) of each process, of any type that ``project`` knows.
        sizes: M of each process.
    """
    parts = [project_outputs(qv, jnp.eye(m)) for qv, m in zip(qvs, sizes)]

    def grouped(array: Array) -> Array:  # [.., P, R, M] -> [.., B, R, T]
        if not is_coupled(qvs[0]):
            return array
        moved = jnp.swapaxes(array, -3, -2)
        return moved.reshape(*moved.shape[:-2], -1)[..., None, :, :]

    means = [grouped(part.mean[..., None, :]) for part in parts]
    mean = jnp.concatenate(means, axis=-1)[..., 0, :]
    pairs = zip(parts, means)
    factors = [
        jnp.zeros_like(mean) if part.factor is None else grouped(part.factor)
        for part, mean in pairs
    ]
    factor = jnp.concatenate(factors, axis=-1)
    covariance = matmul(jnp.swapaxes(factor, -1, -2), factor)
    log_pi = log_weights(qvs[0])
    if log_pi is None:
        return mean, covariance
    weights = jnp.exp(log_pi)
    centre = weighted_sum(weights, mean)
    shift = mean - centre
    spread = shift[..., :, None] * shift[..., None, :]
    return centre, weighted_sum(weights, covariance + spread)


def sites_of(
    loc: np.ndarray,
    covariance: np.ndarray,
    priors: Mapping[str, Prior],
    least_precision: float = _LEAST_PRECISION,
) -> dict[str, Sites]:
    """Sites of the processes that share N(m, S) over their v; on the host, in float64.

    In the coordinates of v the sites have the precision S⁻¹ − I = U diag(d) Uᵀ, so that
    H = √d Uᵀ L̂⁻¹ and y = H m_θ̂(z) + (1 + d)/√d Uᵀ m. Directions without data (d = 0,
    or below where q(v) is wider than the prior) have no site.

    Args:
        loc: m, [B, T].
        covariance: S, [B, T, T].
        priors: The processes at the fit, in the order of the stack; one if B > 1.
        least_precision: Smallest d of a direction with a site.
    """
    groups = []
    for m, s, of_group in _groups_of(loc, covariance, priors):
        projections, columns, data = _pseudo_data(m, s, of_group, least_precision)
        groups.append(_one_after_the_other(projections, columns, data, of_group))
    return {
        name: jax.tree.map(lambda *a: np.concatenate(a), *(g[name] for g in groups))
        for name in priors
    }


def pseudo_data_of(
    loc: np.ndarray,
    covariance: np.ndarray,
    priors: Mapping[str, Prior],
    least_precision: float = _LEAST_PRECISION,
) -> tuple[np.ndarray, np.ndarray]:
    """H [B, T, T] of the stacked u and y [B, T]; arguments as in :func:`sites_of`.

    They are where a guide starts: directions without a site have a weak one, since at
    H = 0 and y = 0 every derivative by them is zero, and none would ever be learnt.
    """
    groups = [
        _pseudo_data(m, s, of_group, least_precision, _WEAK)
        for m, s, of_group in _groups_of(loc, covariance, priors)
    ]
    projections = [np.concatenate([*of.values()], axis=1) for of, _, _ in groups]
    return np.stack(projections), np.stack([data for _, _, data in groups])


def _groups_of(loc, covariance, priors: Mapping[str, Prior]):
    """Mean, covariance and processes of every group."""
    if len(loc) == 1:
        yield loc[0], covariance[0], priors
        return
    ((name, prior),) = priors.items()
    for m, s, row in zip(loc, covariance, np.asarray(prior.mean)[:, None]):
        yield m, s, {name: Prior(row, prior.scale_tril)}


def _pseudo_data(
    loc,
    covariance,
    priors: Mapping[str, Prior],
    least_precision: float,
    weak: float = 0.0,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray]:
    """H and H L by process, and y; ``weak`` is H of directions without a site."""
    loc, covariance = np.asarray(loc, float), np.asarray(covariance, float)
    variances, directions = np.linalg.eigh((covariance + covariance.T) / 2)
    precisions = 1.0 / np.maximum(variances, 1e-12) - 1.0
    keep = precisions > least_precision
    d = np.where(keep, precisions, 1.0)
    # G at the fit, [R, ΣT]: the effect of v on the pseudo-data.
    seen = (np.where(keep, np.sqrt(d), 0.0) * directions).T
    data = np.where(keep, (1.0 + d) / np.sqrt(d), 0.0) * (directions.T @ loc)
    projections, columns = {}, {}
    stop = 0
    for name, prior in priors.items():
        start, stop = stop, stop + np.size(prior.mean)
        columns[name] = seen[:, start:stop]
        tril = np.asarray(prior.scale_tril, float)
        rows = columns[name].reshape(-1, len(tril))
        of_u = scipy.linalg.solve_triangular(tril, rows.T, trans=1, lower=True).T
        projections[name] = of_u.reshape(len(d), -1)
        if weak:
            size = weak / np.sqrt(np.mean(np.sum(np.square(tril), axis=1)))
            others = size * directions.T[:, start:stop]
            projections[name] = np.where(keep[:, None], projections[name], others)
            rows = projections[name].reshape(-1, len(tril)) @ tril
            columns[name] = rows.reshape(len(d), -1)
        data = data + projections[name] @ np.ravel(prior.mean)
    return projections, columns, data


def _one_after_the_other(projections, columns, data, priors) -> dict[str, Sites]:
    """The sites of each process given those before it, the later ones integrated out.

    y − Σ_{e ≤ c} H_e u_e ~ N(Σ_{e > c} H_e m_e, I + Σ_{e > c} G_e G_eᵀ).
    """
    names = list(priors)
    found = {}
    for i, name in enumerate(names):
        noise, rest = np.eye(len(data)), data
        for later in names[i + 1 :]:
            noise = noise + columns[later] @ columns[later].T
            rest = rest - projections[later] @ np.ravel(priors[later].mean)
        whiten = np.linalg.inv(np.linalg.cholesky(noise))
        found[name] = Sites(
            (whiten @ projections[name])[None],
            (whiten @ rest)[None],
            {e: whiten @ projections[e] for e in names[:i]},
        )
    return found
