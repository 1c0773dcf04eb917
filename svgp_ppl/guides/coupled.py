"""One Gaussian over the whitened values of several processes (Adam 2017)."""

import math
from collections.abc import Callable, Sequence

import numpyro.distributions as dist

from svgp_ppl.guides.processes import (
    Group,
    ProcessGuide,
    Shapes,
    gaussian,
    off_zero,
)

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
        ValueError: A block names no process of the model, or two name the same one.

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
        if isinstance(blocks, str) or any(isinstance(b, str) for b in blocks or ()):
            raise ValueError(
                "blocks must be a list of lists of names, such as [['f', 'g']], and is "
                f"{blocks!r}."
            )
        self.blocks = blocks if blocks is None else [list(names) for names in blocks]
        super().__init__(model, **options)

    def _setup_prototype(self, *args, **kwargs):
        super()._setup_prototype(*args, **kwargs)
        named = [name for names in self.blocks or [] for name in names]
        unknown = set(named) - set(self._shapes)
        if unknown:
            raise ValueError(
                f"blocks name {sorted(unknown)}; the processes of the model are "
                f"{sorted(self._shapes)}."
            )
        twice = {name for name in named if named.count(name) > 1}
        if twice:
            raise ValueError(
                f"{sorted(twice)} are in more than one block: one q(v) has to hold "
                "all that a process is coupled with."
            )

    def variational(
        self, shapes: Shapes, param: Callable
    ) -> dict[str, dist.Distribution | Group]:
        """A Gaussian for each block, and for each process in none."""
        found: dict[str, dist.Distribution | Group] = {}
        for group, members in self._members(shapes).items():
            if members is None:
                stem, shape = f"{self.prefix}_{group}", shapes[group]
                start = off_zero(shape) if self._is_product else None
                found[group] = gaussian(stem, shape, param, start=start)
                continue
            size = sum(math.prod(shape) for shape in members.values())
            start = self._off_zero(list(members.values()))
            scale = 1.0 if start is None else _NARROW
            joint = gaussian(group, (size,), param, scale=scale, start=start)
            found[group] = Group(joint, members)
        return found

    def _members(self, shapes: Shapes) -> dict[str, Shapes | None]:
        """Name of a block -> its members; of a process in none -> None."""
        free, blocks = dict(shapes), {}
        for names in [list(free)] if self.blocks is None else self.blocks:
            members = {name: free.pop(name) for name in names}
            blocks["_".join([self.prefix, *members])] = members
        return blocks | dict.fromkeys(free)
