"""A fit as its report sees it: its losses, and what its data say of z, M and q(v)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

__all__ = ["Data", "Fitted", "Inputs", "Moments", "Site"]


class Inputs(NamedTuple):
    """One process at the inputs of one site, N rows.

    Attributes:
        a: The projection L⁻¹ k(z, x), [M, N].
        prior: k(x_n, x_n), [N].
        residual: k(x_n, x_n) − ‖a_n‖², [N].
        weights: Of each output in each component of the latent, [P, Q, N].
        nearest: For each row the row that is nearest to it, [N].
        similarity: Prior correlation with the nearest row, [N].
        spread: The largest Var(f(x) − f(x')) of two rows over k(x, x) + k(x', x').
        distance: To the nearest inducing input, [N]; NaN where these are no points.
        spacing: Median distance of an inducing input to the nearest other one, or NaN.
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
    values: dict[str, Any]


class Site(NamedTuple):
    """What an ``observe`` site says of its latent with Q components.

    Attributes:
        counts: Rows that are not masked, [N].
        score: ∂E/∂mean_n, scaled to all data, [N, Q].
        curvature: −2 ∂E/∂Cov_n, scaled to all data, [N, Q, Q]; 1/σ² of Gaussian noise.
        unexplained: Covariance of the latent given v, [N, Q, Q].
    """

    counts: Any
    score: Any
    curvature: Any
    unexplained: Any


class Moments(NamedTuple):
    """Of the q(v) of one process: v_p = loc_p + factor_pᵀ ε.

    Attributes:
        loc: [P, M].
        factor: [P, R, M]; the R normals ε are those of one output, or of all outputs
            and processes of a coupled q(v).
    """

    loc: Any
    factor: Any


class Data(NamedTuple):
    """What the arguments of the model add: arrays, of JAX while it is computed.

    Attributes:
        num_rows: Of the data that were looked at, and of all.
        sites: By name of the ``observe`` site.
        inputs: By site (or layer), process, and a number that tells several inputs of
            one process apart.
        moments: By process, family of its q(v) ("full", "diagonal", "coupled", "other")
            and the name of the q(v).
        is_deep: Whether layers are drawn.
        is_random: Whether expectations draw their nodes.
        is_point: Whether all that is no process is a point in the guide.
        only_q: Whether q(v) has the only parameters.
        log_weights: log p(y, v, θ) − log q(v, θ) of draws of the guide, [S]; none where
            only some rows were seen, or layers are drawn.
        cdf: Prior probability of less than the value, by site and kind of support
            ("positive", "interval"); means over draws where θ is drawn.
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
        data: What is known with the arguments of the model, None without them.
    """

    losses: Float[np.ndarray, " steps"]
    data: Data | None = None
