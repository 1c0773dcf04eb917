"""Gaussians for a deep model, with narrow inner layers (Salimbeni & Deisenroth)."""

from collections.abc import Callable
from typing import Literal

import numpyro.distributions as dist

from svgp_ppl.guides.processes import (
    ProcessGuide,
    Shapes,
    gaussian,
    require_covariance,
)
from svgp_ppl.handlers import is_layer

__all__ = ["AutoDeep"]


class AutoDeep(ProcessGuide):
    """``AutoGaussian`` with the start that deep models need.

    Processes whose latents go through ``propagate`` start at N(0, ``inner_scale``² I),
    so that the layers above see the linear means and not noise; all others start at the
    prior (Salimbeni & Deisenroth 2017, supplement). Parameters have the names that
    ``AutoGaussian`` gives them.

    Args:
        model: The model.
        covariance: ``"full"`` or ``"diagonal"``.
        inner_scale: Standard deviation of the inner whitened values at the start.
        rest: A NumPyro autoguide class (or function of a model) for the other latent
            sites; ``AutoDelta`` finds their maximum a posteriori values.
        prefix: Prefix of the parameter names.

    Example:
        >>> import svgp_ppl as gp
        >>> guide = gp.AutoDeep(model)
        >>> fit = gp.fit(random.key(0), model, guide, x, y)
    """

    def __init__(
        self,
        model: Callable,
        covariance: Literal["full", "diagonal"] = "full",
        *,
        inner_scale: float = 1e-5,
        **options,
    ):
        require_covariance(covariance)
        if not inner_scale > 0:
            raise ValueError(f"inner_scale must be positive, and is {inner_scale}.")
        self.covariance, self.inner_scale = covariance, inner_scale
        super().__init__(model, **options)

    def variational(
        self, shapes: Shapes, param: Callable
    ) -> dict[str, dist.Distribution]:
        """A Gaussian for each process, narrow for inner layers."""
        scales = dict.fromkeys(self._inner(), self.inner_scale)
        return {
            name: gaussian(
                f"{self.prefix}_{name}",
                shape,
                param,
                self.covariance,
                scales.get(name, 1.0),
            )
            for name, shape in shapes.items()
        }

    def _inner(self) -> set[str]:
        """Names of the processes below the last layer."""
        sites = dict(self.prototype_trace or {}).values()
        layers = [site["infer"]["layer"] for site in sites if is_layer(site)]
        return set().union(*layers)
