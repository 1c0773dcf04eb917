"""Missing data: which rows or entries of y count, and what replaces the others.

A mask [N] leaves out rows. A mask of the shape of y, [N, P], leaves out entries of a
table, which needs a likelihood whose entries are independent given f,

    log p(y_n | f_n) = Σ_p mask_np log p(y_np | f_n),

and rows with no known entry are left out. Values of y where the mask is False are
replaced before anything is computed: a NaN there would reappear in derivatives, where
zero times NaN is NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from svgp_ppl.checks import is_concrete
from svgp_ppl.pytrees import register_dataclass
from svgp_ppl.rows.sharding import automatic, is_sharded

__all__ = ["checked_mask", "filled", "of_entries", "over_rows", "wide"]


def checked_mask(mask, name: str, batch_shape: tuple, event_shape: tuple) -> Any:
    """A mask as a boolean array, of the rows or of all entries of y.

    Args:
        mask: Array-like.
        name: Name of the site.
        batch_shape: (N,).
        event_shape: () or that of a row of y, such as (P,).

    Raises:
        ValueError: It is not boolean, or has another shape.
    """
    mask = automatic(mask) if isinstance(mask, jax.Array) else np.asarray(mask)
    if mask.dtype != bool:
        raise ValueError(
            f"the mask of site '{name}' must be boolean, True where y is known, and is "
            f"of dtype {mask.dtype}: mask.astype(bool), or ~np.isnan(y)."
        )
    full = batch_shape + event_shape
    if mask.shape not in (batch_shape, full):
        shapes = f"{batch_shape}" if full == batch_shape else f"{batch_shape} or {full}"
        advice = " Write mask[:, 0]." if mask.shape == (*batch_shape, 1) else ""
        raise ValueError(
            f"the mask of site '{name}' must have shape {shapes} and has {mask.shape}."
            + advice
        )
    return mask


def over_rows(mask: Any, event_shape: tuple) -> Any:
    """Rows with any known entry, [N]."""
    if np.ndim(mask) == 1 or not event_shape:
        return mask
    return mask.any(axis=tuple(range(1, np.ndim(mask))))


def wide(mask: Any, ndim: int) -> Any:
    """A mask with ``ndim`` axes; a mask of rows broadcasts over the axes of a row."""
    with jax.ensure_compile_time_eval():
        return mask.reshape(mask.shape + (1,) * (ndim - mask.ndim))


def filled(obs: Any, mask: Any, support: Any) -> Any:
    """The data, with a value of the support where the mask is False."""
    values: Any = np.zeros(np.shape(obs))
    try:
        with jax.ensure_compile_time_eval():
            values = support.feasible_like(values)
    except (AttributeError, NotImplementedError):
        pass  # a support of another package
    where = wide(mask, np.ndim(obs))
    is_spread = is_sharded(obs) or is_sharded(mask)
    if not is_spread and all(map(is_concrete, (obs, mask, values))):
        values = np.asarray(values).astype(obs.dtype)
        return np.where(np.asarray(where), np.asarray(obs), values)
    with jax.ensure_compile_time_eval():
        return jnp.where(where, obs, jnp.asarray(values).astype(obs.dtype))


def of_entries(likelihood: Callable, mask: Any) -> Any:
    """The likelihood of the known entries of y: its own form of it, if it has one."""
    own = getattr(likelihood, "of_entries", None)
    return KnownEntries(likelihood, mask) if own is None else own(mask)


@register_dataclass
@dataclass(frozen=True)
class KnownEntries:
    """The likelihood of the known entries of y.

    Attributes:
        likelihood: f -> distribution, independent between the entries of a row.
        mask: Which entries are known, [N, P].
    """

    likelihood: Callable
    mask: Any

    def __call__(self, f: Array) -> dist.Distribution:
        """The distribution of y, whose log probability is that of the known entries.

        Raises:
            ValueError: Its entries are not independent given f.
        """
        whole = self.likelihood(f)
        if not isinstance(whole, dist.Independent) or whole.base_dist.event_shape:
            raise ValueError(
                f"a mask of shape {jnp.shape(self.mask)} leaves out entries of a row, "
                "which takes a likelihood of independent entries, such as "
                "dist.Normal(f, scale).to_event(1), and not a "
                f"{type(whole).__name__}. Give a mask [N] of whole rows, or write one "
                "observe for each output."
            )
        known = whole.base_dist.mask(self.mask)
        return known.to_event(whole.reinterpreted_batch_ndims)
