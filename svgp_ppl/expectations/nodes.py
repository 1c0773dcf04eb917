"""Averages over a Gaussian by quadrature or by draws: methods, nodes and weights.

By default the method depends on the number of components. One: the trapezoidal rule for
a likelihood that says where its logarithm bends
(:func:`~svgp_ppl.expectations.trapezoid.nearest_singularity`), Gauss–Hermite with 20
nodes for any other; two or three: tensor Gauss–Hermite; more: randomised quasi-Monte
Carlo over univariate standard normals (Dezfouli & Bonilla 2015, theorem 1).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, UInt32

from svgp_ppl.linalg import safe_sqrt, small_cholesky, small_product, weighted_sum
from svgp_ppl.marginals import Marginal

__all__ = [
    "REACH",
    "ClosedForm",
    "GaussHermite",
    "Method",
    "MonteCarlo",
    "QuasiMonteCarlo",
    "Trapezoid",
    "average",
    "default_method",
    "hermite_grid",
    "is_random",
    "normal_nodes",
    "normals_at",
    "num_components",
    "points",
    "shifted",
    "sobol_points",
]


@dataclass(frozen=True)
class ClosedForm:
    """The likelihood's own formula; an error if it has none.

    Example:
        >>> method = gp.expectations.ClosedForm()
    """


@dataclass(frozen=True)
class GaussHermite:
    """Gauss–Hermite quadrature, ``num_nodes`` per component (tensor grid for several).

    Exact for polynomials of degree 2 ``num_nodes`` − 1 in each component.

    Example:
        >>> method = gp.expectations.GaussHermite(40)
    """

    num_nodes: int = 20


@dataclass(frozen=True)
class MonteCarlo:
    """Independent draws, shared by all data: error O(1/√num_draws).

    Example:
        >>> method = gp.expectations.MonteCarlo(64)
    """

    num_draws: int = 128


@dataclass(frozen=True)
class QuasiMonteCarlo:
    """Sobol' points, shifted at random: unbiased, error nearly O(1/num_draws).

    ``num_draws`` should be a power of two.

    Example:
        >>> method = gp.expectations.QuasiMonteCarlo(256)
    """

    num_draws: int = 128


@dataclass(frozen=True)
class Trapezoid:
    """The trapezoidal rule for one component, with nodes on two scales.

    These are even over the marginal, 8.5 standard deviations on either side, and dense
    about the nearest registered singularity of a likelihood (``nearest_singularity``),
    so that the marginal may be much wider than the likelihood.

    Example:
        >>> method = gp.expectations.Trapezoid(60)
    """

    num_nodes: int = 48


Method = ClosedForm | GaussHermite | MonteCarlo | QuasiMonteCarlo | Trapezoid

# Tensor grids of 20 nodes cost 400 evaluations per datum for two components; 10 nodes
# keep three components at 1000.
_NODES_PER_COMPONENT = {1: 20, 2: 20, 3: 10}
# Half-width of a trapezoidal rule in standard deviations: outside it the Gaussian
# density is below 1e-16, and times the square of the latent, the fastest growth of a
# logarithm, below 1e-14.
REACH = 8.5


def num_components(marginal: Marginal) -> int:
    """Q, the number of latent components at a datum."""
    return 1 if marginal.is_single else marginal.mean.shape[-1]


def default_method(num_components: int) -> Method:
    """The method for a likelihood without closed form or known singularity."""
    if num_components in _NODES_PER_COMPONENT:
        return GaussHermite(_NODES_PER_COMPONENT[num_components])
    return QuasiMonteCarlo()


def is_random(method: Method | None, num_components: int) -> bool:
    """Whether the method draws its nodes."""
    method = default_method(num_components) if method is None else method
    return isinstance(method, MonteCarlo | QuasiMonteCarlo)


def average(
    function: Callable[[Array], Array],
    marginal: Marginal,
    method: Method | None = None,
    key: Array | None = None,
) -> Array:
    """E function(f) under each Gaussian component, f [S, .., N] or [S, .., N, Q]."""
    if method is None or isinstance(method, ClosedForm):
        method = default_method(num_components(marginal))
    nodes, weights = normal_nodes(method, num_components(marginal), key)
    values = function(points(marginal, nodes.astype(marginal.mean.dtype)))
    return weighted_sum(weights.astype(values.dtype), values)


def points(marginal: Marginal, nodes: Float[Array, "S Q"]) -> Array:
    """The latent at standard normal nodes: mean + C ε with C Cᵀ the covariance.

    Returns:
        [S, .., N], or [S, .., N, Q] for several components.
    """
    if marginal.is_single:
        return shifted(marginal, nodes.reshape(-1, *(1,) * marginal.mean.ndim))
    ones = (1,) * (marginal.mean.ndim - 1)
    return shifted(marginal, nodes.reshape(len(nodes), *ones, -1))


def shifted(marginal: Marginal, noise: Array) -> Array:
    """mean + C noise, with C Cᵀ the covariance at each datum.

    Args:
        marginal: Distribution of the latent.
        noise: Broadcasts to [..., N], or to [..., N, Q] for several components.
    """
    if marginal.covariance is None:
        return marginal.mean + safe_sqrt(marginal.variance) * noise
    factor = small_cholesky(marginal.covariance)
    return marginal.mean + small_product(factor, noise)


def normal_nodes(
    method: Method, num_components: int, key: Array | None = None
) -> tuple[Array, Array]:
    """Standard normal nodes [S, Q] and weights [S] that sum to one."""
    match method:
        case GaussHermite(num_nodes):
            nodes, weights = hermite_grid(num_nodes, num_components)
            return jnp.asarray(nodes), jnp.asarray(weights)
        case Trapezoid(num_nodes):
            if num_components > 1:
                raise ValueError(
                    "Trapezoid is a rule for one component, and this latent has "
                    f"{num_components}; choose GaussHermite, QuasiMonteCarlo or "
                    "MonteCarlo."
                )
            nodes = jnp.linspace(-REACH, REACH, num_nodes)
            if key is not None:  # the rule is as good anywhere
                shift = random.uniform(key, minval=-0.5, maxval=0.5)
                nodes = nodes + shift * (2.0 * REACH / (num_nodes - 1))
            weights = jnp.exp(-0.5 * jnp.square(nodes))
            return nodes[:, None], weights / jnp.sum(weights)
        case MonteCarlo(num_draws):
            key = random.key(0) if key is None else key
            nodes = random.normal(key, (num_draws, num_components))
        case QuasiMonteCarlo(num_draws):
            points = jnp.asarray(sobol_points(num_draws, num_components))
            if key is not None:
                points ^= random.bits(key, (num_components,), points.dtype)
            nodes = normals_at(points, jnp.result_type(float))
        case _:
            raise ValueError(
                "method must be ClosedForm, GaussHermite, Trapezoid, QuasiMonteCarlo "
                f"or MonteCarlo of svgp_ppl.expectations, and not {method!r}."
            )
    return nodes, jnp.full(num_draws, 1.0 / num_draws)


@cache
def hermite_grid(num_nodes: int, num_components: int) -> tuple[np.ndarray, np.ndarray]:
    """Tensor grid for the standard normal: nodes [num_nodes^Q, Q] and weights."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    weights = weights / weights.sum()
    grid = np.meshgrid(*[nodes] * num_components, indexing="ij")
    products = np.meshgrid(*[weights] * num_components, indexing="ij")
    flat = np.stack([g.ravel() for g in grid], axis=1)
    return flat, np.prod([p.ravel() for p in products], axis=0)


def normals_at(points: UInt32[Array, "*S Q"], dtype) -> Float[Array, "*S Q"]:
    """Standard normals at points of the unit cube, given by their binary digits."""
    uniform = (points.astype(dtype) + 0.5) * 2.0**-32
    # Away from 0 and 1, where ndtri is infinite, by only a rounding error: a wider
    # margin would cut the tails off and bias every estimate.
    edge = 0.5 * jnp.finfo(uniform.dtype).eps
    return ndtri(jnp.clip(uniform, edge, 1.0 - edge))


@cache
def sobol_points(num_draws: int, num_components: int) -> np.ndarray:
    """Scrambled Sobol' points in the unit cube, [S, Q], as 32 binary digits each.

    After XOR with the same random bits (a digital shift, L'Ecuyer & Lemieux 2002) each
    is uniform on the cube, and together they are spread as evenly as before.
    """
    from scipy.stats import qmc  # a third of a second, and few models need it

    engine = qmc.Sobol(num_components, scramble=True, rng=np.random.default_rng(0))
    points = engine.random_base2((num_draws - 1).bit_length())[:num_draws]
    return (points * 2.0**32).astype(np.uint32)
