"""One Gaussian over the whitened values of several processes (Adam 2017)."""

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random

from svgp_ppl.guides.blocks import as_blocks, groups_of, require_processes
from svgp_ppl.guides.processes import Group, ProcessGuide, Shapes, gaussian, off_zero

__all__ = ["AutoCoupled"]

# Standard deviation at the start where components may be multiplied. From the prior,
# the covariance of two factors would grow to the mean of their product before their
# means have moved, and would hold these at zero.
_NARROW = 0.3


class AutoCoupled(ProcessGuide):
    """q(v₁, …, v_C) = N(m, S) with one full covariance over the stacked v.

    The posterior of additive processes is strongly correlated, since the data determine
    their sum. Independent Gaussians cannot represent that, which lowers the bound and
    distorts every statement about one of the processes (Adam 2017).

    The q(v) of the block of ``f`` and ``g`` is the site ``auto_f_g``, with the
    parameters ``auto_f_g_loc``, [ΣM], and ``auto_f_g_scale_tril``, [ΣM, ΣM]; several
    outputs of one process are stacked too. It starts like :class:`AutoGaussian`,
    but with a standard deviation of 0.3 where a likelihood sees several components.

    Args:
        model: The model.
        blocks: Names of the processes of each block; None for all processes in one
            block. A process in no block has a Gaussian of its own, as in
            :class:`AutoGaussian`.
        rest: A NumPyro autoguide class (or function of a model) for the other latent
            sites; ``AutoDelta`` finds their maximum a posteriori values.
        prefix: Prefix of the parameter names.

    Raises:
        ValueError: A block names no process of the model, two name the same one, or
            the joined names of two q(v) are the same.

    Example:
        >>> import svgp_ppl as gp
        >>> guide = gp.AutoCoupled(model)
        >>> guide = gp.AutoCoupled(model, [["f", "g"]])
    """

    def __init__(
        self,
        model: Callable,
        blocks: Sequence[Sequence[str]] | None = None,
        **options,
    ):
        self.blocks = as_blocks(blocks)
        super().__init__(model, **options)

    def _setup_prototype(self, *args, **kwargs):
        super()._setup_prototype(*args, **kwargs)
        require_processes(self.blocks, self._shapes, self.prefix)

    def variational(
        self, shapes: Shapes, param: Callable
    ) -> dict[str, dist.Distribution | Group]:
        """A Gaussian for each block, and for each process in none."""
        found: dict[str, dist.Distribution | Group] = {}
        for group, members in groups_of(self.blocks, shapes, self.prefix).items():
            if members is None:
                stem, shape = f"{self.prefix}_{group}", shapes[group]
                start = off_zero(shape) if self._is_product else None
                found[group] = gaussian(stem, shape, param, start=start)
                continue
            size = sum(math.prod(shape) for shape in members.values())
            start, scale = None, 1.0
            if self._is_product:
                start, scale = _stacked_off_zero(list(members.values())), _NARROW
            joint = gaussian(group, (size,), param, scale=scale, start=start)
            found[group] = Group(joint, members)
        return found


def _stacked_off_zero(shapes: Sequence[tuple[int, ...]]) -> Callable:
    """A start of the means of processes away from zero, stacked [ΣM]."""
    starts = [off_zero(shape) for shape in shapes]

    def start(key):
        keys = random.split(key, len(starts))
        return jnp.concatenate([jnp.ravel(f(k)) for f, k in zip(starts, keys)])

    return start
