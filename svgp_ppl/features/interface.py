"""The interface of an inducing feature, and the covariances that follow from it.

Inducing variables u_1 … u_M are jointly Gaussian with f ~ GP(0, k). All that a sparse
process needs of them is

    k_uu = Cov(u, u),   k_uf(x) = Cov(u, f(x)),

since a = L⁻¹ k_uf(x), L Lᵀ = k_uu, and the residual k(x, x) − ‖a‖² follow
(Lázaro-Gredilla & Figueiras-Vidal 2009). A linear functional is u_m = ℒ_m f, and is
defined by its effect on a function g; then, with ℒ acting on the named argument,

    k_uf(x) = ℒ_t k(t, x),   k_uu = ℒ_s ℒ_t k(t, s),   Cov(u, ℒ f) = ℒ_x k_uf(x):

The same code serves features that represent a process and data that are derivatives or
integrals of it.
"""

import abc
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from svgp_ppl.kernels import Kernel
from svgp_ppl.linalg import default_jitter

__all__ = [
    "InducingFeatures",
    "LinearFunctional",
    "covariance",
    "default_jitter_of",
    "has_rows",
    "paired_covariance",
]


@runtime_checkable
class InducingFeatures(Protocol):
    """M variables u that are jointly Gaussian with f: what ``sparse_gp`` takes as z.

    Arrays among its values make it a pytree
    (``svgp_ppl.register_dataclass``); then they can be parameters or data.
    """

    def __len__(self) -> int:
        """M."""
        ...

    def k_uu(self, kernel: Kernel) -> Float[Array, "M M"]:
        """Cov(u, u) under the prior f ~ GP(0, kernel)."""
        ...

    def k_uf(self, kernel: Kernel, x: ArrayLike) -> Float[Array, "M N"]:
        """Cov(u, f(x_n)) for inputs x [N, D], differentiable in x."""
        ...


class LinearFunctional(abc.ABC):
    """ℒ_1 f, …, ℒ_N f: values, derivatives or integrals of f, one per row.

    They serve as inducing features, and as data: ``f(functional)``. A new one is a
    frozen dataclass with arrays [N, ...], registered with
    ``svgp_ppl.register_dataclass``, that has :meth:`of` and :meth:`checked`.
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """N."""

    @abc.abstractmethod
    def of(self, function: Callable[[Array], Array]) -> Float[Array, "*K N"]:
        """ℒ_n g for every row.

        Args:
            function: g, ``x [n, D] -> [*K, n]`` for any n, each row on its own.
        """

    @abc.abstractmethod
    def checked(self, what: str) -> "LinearFunctional":
        """The same with its arrays checked and in floating point.

        Args:
            what: Its name in error messages.

        Raises:
            ValueError: An array has the wrong shape, or is not finite.
        """

    def require_kernel(self, kernel: Kernel, what: str) -> None:  # noqa: B027
        """Raise a ``ValueError`` if ℒ f does not exist for this kernel."""

    def k_uu(self, kernel: Kernel) -> Float[Array, "N N"]:
        """ℒ_s ℒ_t k(t, s)."""
        return covariance(kernel, self, self)

    def k_uf(self, kernel: Kernel, x: ArrayLike) -> Float[Array, "M N"]:
        """ℒ_t k(t, x) for inputs x [N, D]."""
        return self.of(lambda t: kernel(x, t)).T

    def variance(self, kernel: Kernel) -> Float[Array, " N"]:
        """Var ℒ_n f, without a matrix [N, N]."""
        return paired_covariance(kernel, self, self)


def covariance(
    kernel: Kernel, features: InducingFeatures, functional: LinearFunctional
) -> Float[Array, "M N"]:
    """Cov(u, ℒ f) = ℒ_x k_uf(x)."""
    return functional.of(lambda x: features.k_uf(kernel, x))


def paired_covariance(
    kernel: Kernel, left: LinearFunctional, right: LinearFunctional
) -> Float[Array, " N"]:
    """Cov(ℒ_n f, ℒ'_n f), row by row."""
    if not (has_rows(left) and has_rows(right)):
        return jnp.diagonal(covariance(kernel, left, right))

    def of_one(*rows: Any) -> Array:
        one, other = jax.tree.map(lambda row: row[None], rows)
        return covariance(kernel, one, other)[0, 0]

    return jax.vmap(of_one)(left, right)


def has_rows(functional: LinearFunctional) -> bool:
    """Whether ℒ_n depends only on row n of its arrays."""
    arrays = jax.tree.leaves(functional)
    return all(np.shape(array)[:1] == (len(functional),) for array in arrays)


def default_jitter_of(gram: Float[Array, "M M"]) -> Float[Array, " M"]:
    """Jitter for k_uu whose variables differ in scale: relative to each variance."""
    return default_jitter(gram.dtype) * jnp.diagonal(gram)
