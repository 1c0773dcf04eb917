"""What a better Gaussian q(v) would add to the bound of a fit, at the same θ and z.

With q(v) = N(m, S) on the stacked v, the bound is E(m, S) − KL(q ‖ N(0, I)). With the
rows B_n of a latent, ρ_n = b_n + B_n v + ..., its derivatives give

    P = I + Σ_n B_nᵀ W_n B_n,   g = Σ_n B_nᵀ s_n − m,   s = ∂E/∂mean, W = −2 ∂E/∂Cov,

and N(m + P⁻¹ g, P⁻¹) is the result of a natural-gradient step of length 1 for a q(v)
that couples everything (Khan & Rue 2023). The bound gains

    KL(q ‖ N(m + P⁻¹ g, P⁻¹)) = ½ gᵀ P⁻¹ g                          the mean
        + ½ Σ_b ( tr P_bb S_bb − log|P_bb S_bb| − M_b )             its own covariances
        + ½ ( Σ_b log|P_bb| − log|P| )                              the family of q(v)

with b the blocks that q(v) treats as independent: exactly if the likelihood is
Gaussian, otherwise to second order.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from svgp_ppl.diagnostics.fitted import Facts, Moments

__all__ = ["Gains", "gains_of"]

_MOST_VALUES = 3000  # of v altogether; more would take long to factorise


class Gains(NamedTuple):
    """What is lost compared with the best Gaussian, in nats.

    Attributes:
        own: Loss by the mean and by the covariances that q(v) has.
        family: Loss by covariances that the family of q(v) does not have.
        understated: By process, the ratio of the posterior sd of its values at the data
            under the best q(v) to that under the best of this family; in root mean
            square.
    """

    own: float
    family: float
    understated: dict[str, float]


class _Stacked(NamedTuple):
    """The q(v) of all processes as one Gaussian, [ΣM]."""

    slices: dict[tuple[str, int], slice]
    loc: Float[np.ndarray, " T"]
    covariance: Float[np.ndarray, "T T"]
    block: Int[np.ndarray, " T"]


def gains_of(facts: Facts) -> Gains | None:
    """The three terms; None if a q(v) is not Gaussian, or the model is deep.

    Also None if P is not positive definite, as may happen if the likelihood is not
    log-concave: no step of length 1 is possible then.
    """
    gaussians = {key: q for key, q in facts.moments.items() if q is not None}
    if facts.is_deep or not gaussians or len(gaussians) < len(facts.moments):
        return None
    if sum(q.loc.size for q in gaussians.values()) > _MOST_VALUES:
        return None
    stacked = _stacked(gaussians)
    precision, gradient = _precision(facts, stacked)
    same = stacked.block[:, None] == stacked.block
    try:
        whole = np.linalg.cholesky(precision)
        blocks = np.linalg.cholesky(np.where(same, precision, 0.0))
        of_q = np.linalg.cholesky(stacked.covariance)
    except np.linalg.LinAlgError:
        return None
    step = np.linalg.solve(precision, gradient)
    trace = np.sum(precision * stacked.covariance) - len(precision)
    own = 0.5 * gradient @ step + 0.5 * trace - _log_sum(blocks) - _log_sum(of_q)
    family = _log_sum(blocks) - _log_sum(whole)
    return Gains(own, family, _understated(facts, stacked, whole, blocks))


def _log_sum(factor: np.ndarray) -> float:
    """Half of log|C Cᵀ|."""
    return float(np.sum(np.log(np.diagonal(factor))))


def _stacked(gaussians: dict[tuple[str, str, str], Moments]) -> _Stacked:
    slices, total = {}, 0
    for (name, *_), q in gaussians.items():
        for p, row in enumerate(q.loc):
            slices[name, p] = slice(total, total + len(row))
            total += len(row)
    covariance, block = np.zeros((total, total)), np.arange(total)
    shared: dict[str, list] = {}
    for (name, family, group), q in gaussians.items():
        for p, factor in enumerate(q.factor):
            here = slices[name, p]
            # All coupled outputs share their noise; others have their own.
            group_of_it = group if family == "coupled" else f"{name} {p}"
            shared.setdefault(group_of_it, []).append((here, factor))
            if family != "diagonal":
                block[here] = -1 - list(shared).index(group_of_it)
    for parts in shared.values():
        for here, left in parts:
            for there, right in parts:
                covariance[here, there] = left.T @ right
    loc = np.concatenate([q.loc.ravel() for q in gaussians.values()])
    return _Stacked(slices, loc, covariance, block)


def _precision(facts: Facts, stacked: _Stacked) -> tuple[np.ndarray, np.ndarray]:
    """P and g."""
    total = len(stacked.loc)
    precision, gradient = np.eye(total), -stacked.loc.copy()
    for name, site in facts.sites.items():
        num_rows, width = site.score.shape
        rows = np.zeros((num_rows, width, total))
        for (at, process, _), seen in facts.inputs.items():
            if at != name:
                continue
            for p, weights in enumerate(seen.weights):
                here = stacked.slices[process, p]
                rows[..., here] += weights.T[..., None] * seen.a.T[:, None]
        rows = rows[site.counts]
        weighted = np.einsum("nqr,nrt->nqt", site.curvature[site.counts], rows)
        precision += np.tensordot(rows, weighted, axes=((0, 1), (0, 1)))
        gradient += np.tensordot(site.score[site.counts], rows, axes=2)
    return (precision + precision.T) / 2, gradient


def _understated(facts: Facts, stacked: _Stacked, whole, blocks) -> dict[str, float]:
    """By process: sd under the best q(v) over sd under the best of its family."""
    everything, own = (_inverse(factor) for factor in (whole, blocks))
    ratios: dict[str, float] = {}
    for (_, process, _), seen in facts.inputs.items():
        for p, weights in enumerate(seen.weights):
            here = stacked.slices[process, p]
            used = np.any(weights != 0, axis=0)
            if not used.any():
                continue
            a, residual = seen.a[:, used], np.mean(seen.residual[used])

            def variance(covariance, a=a, here=here, residual=residual):
                return residual + np.sum(a * (covariance[here, here] @ a)) / a.shape[1]

            ratio = float(np.sqrt(variance(everything) / variance(own)))
            ratios[process] = max(ratios.get(process, 1.0), ratio)
    return ratios


def _inverse(factor: np.ndarray) -> np.ndarray:
    """(C Cᵀ)⁻¹."""
    half = np.linalg.solve(factor, np.eye(len(factor)))
    return half.T @ half
