"""A mixture of Gaussians over the whitened values (Dezfouli & Bonilla 2015)."""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
import numpyro.distributions as dist

from svgp_ppl.checks import require_count
from svgp_ppl.guides.processes import (
    Group,
    ProcessGuide,
    Shapes,
    gaussian,
    off_zero,
    require_covariance,
)
from svgp_ppl.variational import Stacked

__all__ = ["AutoMixture"]


class AutoMixture(ProcessGuide):
    """q(v) = Σ_k π_k Π_c N(m_kc, S_kc), components shared by all processes c.

    The posterior automated variational inference of Dezfouli & Bonilla (2015): within a
    component the processes are independent, between components they are not, which
    represents modes in which several processes change together. The expectation is
    Σ_k π_k E_k. The entropy is bounded by their equation 19, which with many whitened
    values costs more than a second mode gains; compare numbers of components under
    ``MarginalELBO(entropy="pairwise")``.

    Parameters: ``auto_logits``, [K]; for process ``f`` ``auto_f_locs``, [K, M] (or
    [K, P, M]), and ``auto_f_scales`` of that shape or ``auto_f_scale_trils``, with one
    more axis. Equal components would stay equal: they start at small random means, in
    pairs of opposite sign, so that a posterior that is symmetric under a change of sign
    gives both of a pair the same chance. A single one starts like
    :class:`AutoGaussian`. The weights would collapse to one component before the others
    have found a mode: ``gp.fit`` freezes them for the first half of its steps unless
    ``freeze=`` mentions them.

    Draws of a mixture are not reparameterised in NumPyro: under ``Trace_ELBO`` the
    value of the bound is right but its gradient is not. Train with ``MarginalELBO`` or
    ``TraceGraph_ELBO``; ``gp.fit`` refuses the other.

    Args:
        model: The model.
        num_components: Number of components K.
        covariance: ``"diagonal"`` or ``"full"``, of each process in each component.
        rest: A NumPyro autoguide class (or function of a model) for the other latent
            sites; ``AutoDelta`` finds their maximum a posteriori values.
        prefix: Prefix of the parameter names.

    Example:
        >>> import svgp_ppl as gp
        >>> guide = gp.AutoMixture(model, 2)
    """

    def __init__(
        self,
        model: Callable,
        num_components: int,
        covariance: Literal["diagonal", "full"] = "diagonal",
        **options,
    ):
        num_components = require_count(num_components, "num_components")
        require_covariance(covariance)
        self.num_components, self.covariance = num_components, covariance
        super().__init__(model, **options)

    def late_names(self) -> set[str]:
        """The weights, which collapse to one component before others find a mode."""
        return {f"{self.prefix}_logits"} if self.num_components > 1 else set()

    def variational(self, shapes: Shapes, param: Callable) -> dict[str, Group]:
        """One mixture for all processes."""
        dtype = jnp.result_type(float)
        logits = param(f"{self.prefix}_logits", jnp.zeros(self.num_components, dtype))
        parts = {n: self._components(n, s, param) for n, s in shapes.items()}
        qv = dist.MixtureSameFamily(dist.Categorical(logits=logits), Stacked(parts))
        return {f"{self.prefix}_mixture": Group(qv, shapes)}

    def _components(self, name: str, shape: tuple, param: Callable):
        """The K Gaussians of one process."""
        num_components = self.num_components

        def start(key):
            half = off_zero(((num_components + 1) // 2, *shape))(key)
            return jnp.concatenate([half, -half])[:num_components]

        return gaussian(
            f"{self.prefix}_{name}",
            shape,
            param,
            self.covariance,
            start=start if num_components > 1 or self._is_product else None,
            num_components=num_components,
        )
