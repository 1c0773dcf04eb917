"""One Gaussian for every process."""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro.distributions import constraints

from svgp_ppl.guides.processes import Held, ProcessGuide, full_covariance

__all__ = ["AutoGaussian"]


class AutoGaussian(ProcessGuide):
    """q(v) = N(m, S) for every process, independent of each other; ``rest`` for θ.

    The belief of process ``f`` has the parameters ``auto_f_loc``, [M] (or [P, M]), and
    ``auto_f_scale_tril``, [M, M] per output, or ``auto_f_scale`` when diagonal. It
    starts at the prior, N(0, I).

    Args:
        model: The model.
        covariance: ``"full"`` or ``"diagonal"``.
        rest: A NumPyro autoguide class (or function of a model) for the other latent
            sites; ``AutoDelta`` finds their maximum a posteriori values.
        prefix: Prefix of the parameter names.

    Example:
        >>> import svgp_ppl as gp
        >>> guide = gp.AutoGaussian(model)  # doctest: +SKIP
        >>> fit = gp.fit(random.key(0), model, guide, x, y)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Callable,
        covariance: Literal["full", "diagonal"] = "full",
        **options,
    ):
        if covariance not in ("full", "diagonal"):
            raise ValueError(
                f"covariance must be 'full' or 'diagonal', and not {covariance!r}."
            )
        self.covariance = covariance
        super().__init__(model, **options)

    def _beliefs(self, param: Callable) -> dict[str, Held]:
        return {n: Held(self._one(n, s, param)) for n, s in self._shapes.items()}

    def _one(self, name: str, shape: tuple, param: Callable) -> dist.Distribution:
        name = f"{self.prefix}_{name}"
        if self.covariance == "full":
            return full_covariance(name, shape, param)
        dtype = jnp.result_type(float)
        loc = param(f"{name}_loc", jnp.zeros(shape, dtype))
        scale = param(
            f"{name}_scale", jnp.ones(shape, dtype), constraints.softplus_positive
        )
        return dist.Normal(loc, scale).to_event(len(shape))
