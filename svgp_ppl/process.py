"""A process: a kernel, inducing features and q(v), and its values where it is called.

With L Lᵀ = k_uu = Cov(u, u) and whitened values v,

    f(x) = m(x) + aᵀ v + residual,   a = L⁻¹ k_uf(x)
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from svgp_ppl.features import (
    InducingFeatures,
    LinearFunctional,
    Points,
    as_functional,
)
from svgp_ppl.kernels import Kernel
from svgp_ppl.latent import Latent
from svgp_ppl.linalg import CholeskyFactor
from svgp_ppl.marginals import View
from svgp_ppl.runtime import Once
from svgp_ppl.variational.sample_path import SamplePath

__all__ = ["SparseGP"]


@dataclass(frozen=True, eq=False)
class SparseGP:
    """One process, or ``num_outputs`` independent ones sharing kernel and features.

    Made by ``sparse_gp``. Calling it with inputs gives a :class:`Latent`.

    Attributes:
        name: Name of the site of v.
        kernel: Covariance function.
        features: Its inducing features: ``Points`` z, or others.
        factor: L with L Lᵀ = k_uu + jitter I, and its inverse.
        qv: The variational distribution of v: a NumPyro distribution.
        mean: Mean function x -> [N] (or [N, P]), or None for zero.
        num_outputs: P, or None for one output without an axis of its own.
    """

    name: str
    kernel: Kernel
    features: InducingFeatures
    factor: CholeskyFactor
    qv: dist.Distribution
    mean: Callable | None = None
    num_outputs: int | None = None
    # Moments that latents of this process share, while one program is traced.
    once: Once = field(default_factory=Once, init=False, repr=False)

    def __call__(self, x) -> Latent:
        """The latent f(x), [N] or [N, P].

        Args:
            x: Inputs [N, D]; or functionals of f, such as ``features.Derivative`` or
                ``features.integral``: the latent then holds their values.

        Raises:
            ValueError: x is not [N, D] with the width of z, is empty or not finite; or
                the derivative does not exist.
        """
        if isinstance(x, Latent):
            raise ValueError(
                f"the inputs of process '{self.name}' are a latent, whose values are "
                "not known: draw them, gp.propagate('h', h(x)), as between the layers "
                "of a deep model."
            )
        functional = as_functional(x, self)
        view = View(self, functional, source=x)
        outputs = 1 if self.num_outputs is None else self.num_outputs
        terms: tuple = tuple({(view, p): 1.0} for p in range(outputs))
        offsets: tuple = (0.0,) * outputs
        if self.mean is not None:
            offsets = self._mean_values(functional, outputs)
        if isinstance(self.qv, SamplePath):  # one function: its values, no variance
            values = self.qv.at(self, functional, source=x)
            terms = ({},) * outputs
            offsets = tuple(b + value for b, value in zip(offsets, values))
        return Latent(terms, offsets, len(functional), self.num_outputs is None)

    @property
    def z(self) -> Array:
        """The inducing inputs, [M, D].

        Raises:
            ValueError: Other features represent the process.
        """
        if not isinstance(self.features, Points):
            raise ValueError(
                f"process '{self.name}' has no inducing inputs z: it is represented by "
                f"{type(self.features).__name__}, see its attribute features."
            )
        return self.features.z

    @property
    def scale_tril(self) -> Array:
        """L, [M, M]."""
        return self.factor.tril

    @property
    def inducing_mean(self) -> Array:
        """m(z), the prior mean of u for every output, [P, M].

        Features that are not functionals describe f − m: their mean is zero.
        """
        outputs = 1 if self.num_outputs is None else self.num_outputs
        if self.mean is None or not isinstance(self.features, LinearFunctional):
            return jnp.zeros((outputs, len(self.features)), self.scale_tril.dtype)
        return jnp.stack(self._mean_values(self.features, outputs))

    def _mean_values(self, functional: LinearFunctional, outputs: int) -> tuple:
        """ℒ m, by output."""
        means = functional.of(lambda x: self._mean_at(x, outputs))
        return tuple(means[p] for p in range(outputs))

    def _mean_at(self, x: Array, outputs: int) -> Array:
        """m(x), [P, N]."""
        values = jnp.asarray(self.mean(x), x.dtype)  # type: ignore[misc]
        if values.shape == (len(x),):
            return jnp.broadcast_to(values, (outputs, len(x)))
        if values.shape == (len(x), outputs):
            return values.T
        raise ValueError(
            f"the mean function of process '{self.name}' returned shape "
            f"{values.shape}; expected ({len(x)},) or ({len(x)}, {outputs})."
        )
