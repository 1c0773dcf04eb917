"""One Gaussian for every process."""

from collections.abc import Callable
from typing import Literal

import numpyro.distributions as dist

from svgp_ppl.guides.processes import (
    ProcessGuide,
    Shapes,
    gaussian,
    off_zero,
    require_covariance,
)

__all__ = ["AutoGaussian"]


class AutoGaussian(ProcessGuide):
    """q(v) = N(m, S) for every process, independent of each other; ``rest`` for θ.

    The q(v) of process ``f`` has the parameters ``auto_f_loc``, [M] (or [P, M]), and
    ``auto_f_scale_tril``, [M, M] per output, or ``auto_f_scale`` when diagonal. It
    starts at the prior, N(0, I); where a likelihood sees several components, such as a
    product of two, at N(m, I) with a small random m, since no mean would move from 0.

    Args:
        model: The model.
        covariance: ``"full"`` or ``"diagonal"``.
        rest: A NumPyro autoguide class (or function of a model) for the other latent
            sites; ``AutoDelta`` finds their maximum a posteriori values.
        prefix: Prefix of the parameter names.

    Example:
        >>> import svgp_ppl as gp
        >>> guide = gp.AutoGaussian(model)
        >>> fit = gp.fit(random.key(0), model, guide, x, y)
    """

    def __init__(
        self,
        model: Callable,
        covariance: Literal["full", "diagonal"] = "full",
        **options,
    ):
        require_covariance(covariance)
        self.covariance = covariance
        super().__init__(model, **options)

    def variational(
        self, shapes: Shapes, param: Callable
    ) -> dict[str, dist.Distribution]:
        """A Gaussian for each process."""
        return {
            name: gaussian(
                f"{self.prefix}_{name}",
                shape,
                param,
                self.covariance,
                start=off_zero(shape) if self._is_product else None,
            )
            for name, shape in shapes.items()
        }
