"""A fit as its report sees it: its losses, and what data say about z, M and q(v)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

__all__ = ["Facts", "Fitted", "Inputs", "Moments", "Site"]


class Inputs(NamedTuple):
    """One process at the inputs of one site, N rows.

    Attributes:
        a: The projection L⁻¹ k(z, x), [M, N].
        prior: k(x_n, x_n), [N].
        residual: k(x_n, x_n) − ‖a_n‖², [N].
        weights: Weight of each output in each component of the latent, [P, Q, N].
        nearest: For each row the number of the nearest row, [N].
        similarity: Prior correlation with the nearest row, [N].
        spread: The largest Var(f(x) − f(x')) of two rows over k(x, x) + k(x', x').
        distance: Distance to the nearest inducing input, [N]; NaN without points.
        spacing: Median distance of an inducing input to the nearest other one, or NaN.
        between_nodes: Of a row that is an integral, the prior correlation of f at
            neighbouring nodes, along the column where it is smallest, [N]; NaN of
            others.
        values: Lengthscales, variances and periods of the kernel.
    """

    a: Any
    prior: Any
    residual: Any
    weights: Any
    nearest: Any
    similarity: Any
    spread: Any
    distance: Any
    spacing: Any
    between_nodes: Any
    values: dict[str, Any]


class Site(NamedTuple):
    """What an ``observe`` site says about its latent with Q components.

    Attributes:
        counts: Rows that are not masked, [N].
        score: ∂E/∂mean_n, scaled to all data, [N, Q].
        curvature: −2 ∂E/∂Cov_n, scaled to all data, [N, Q, Q]; 1/σ² of Gaussian noise.
        unexplained: Covariance of the latent given v, [N, Q, Q].
        moments: Mean and standard deviation of y less the offset of the latent; NaN
            unless y and the latent are single real numbers.
        stands_for: Number of data that a row stands for, 1 unless only some are seen.
        quadrature: What more Gauss–Hermite nodes add to E, scaled to all data; how many
            nodes a component there are, and how many more would be. Zeros without them.
    """

    counts: Any
    score: Any
    curvature: Any
    unexplained: Any
    moments: tuple[Any, Any]
    stands_for: Any
    quadrature: tuple[Any, Any, Any]


class Moments(NamedTuple):
    """Moments of the q(v) of one process: v_p = loc_p + factor_pᵀ ε.

    Attributes:
        loc: [P, M].
        factor: [P, R, M]; the R normals ε are those of one output, or of all outputs
            and processes of a coupled q(v).
    """

    loc: Any
    factor: Any


class Facts(NamedTuple):
    """What the arguments of the model add: arrays, JAX's while being computed.

    Attributes:
        num_rows: Number of rows examined, and of all rows.
        sites: By name of the ``observe`` site.
        inputs: By site (or layer), process, and a number that distinguishes several
            inputs of one process.
        moments: By process, family of its q(v) ("full", "diagonal", "coupled", "other")
            and name of the q(v).
        is_deep: Whether layers are drawn.
        is_random: Whether expectations draw their nodes.
        is_point: Whether all sites that are not processes are points in the guide.
        only_q: Whether q(v) has the only parameters.
        log_weights: log p(y, v, θ) − log q(v, θ) of draws of the guide, [S]; empty if
            only some rows were seen, layers are drawn, or the fit stands for earlier
            data.
        cdf: Prior probability of a smaller value, by site and kind of support
            ("positive", "interval"); means over draws where θ is drawn.
        without_slope: Sites that the likelihood depends on with a derivative of 0.
    """

    num_rows: tuple[Any, Any]
    sites: dict[str, Site]
    inputs: dict[tuple[str, str, int], Inputs]
    moments: dict[tuple[str, str, str], Moments | None]
    is_deep: Any
    is_random: Any
    is_point: Any
    only_q: Any
    log_weights: Any
    cdf: dict[tuple[str, str], Any]
    without_slope: Sequence[str] = ()

    @property
    def is_part(self) -> bool:
        """Whether some rows stand for all."""
        seen, of = self.num_rows
        return bool(seen < of)


@dataclass(frozen=True)
class Fitted:
    """A fit.

    Attributes:
        losses: Negative bound in nats at every step.
        facts: The facts that need the arguments of the model, None without them.
    """

    losses: Float[np.ndarray, " steps"]
    facts: Facts | None = None
