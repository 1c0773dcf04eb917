"""Where the parameters of an automatic guide start: its first key and data say it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import random
from numpyro.infer.autoguide import AutoGuide, AutoGuideList

from svgp_ppl.runtime.compilation import partition
from svgp_ppl.runtime.digests import digest

__all__ = ["start_anew", "start_of"]


def start_anew(guide: Callable, key, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Let an automatic guide start where a key says, whoever has run it before.

    That may have been a fit with another key or to other data, from which a prior may
    have its mean, or a prediction. With the same ones the guide stays as it is.

    Args:
        guide: The guide; a hand-written one does not remember where it has started.
        key: The key with which it will be set up.
        args: Arguments of the model, with which it will be set up.
        kwargs: Its keyword arguments.
    """
    arrays, _, _ = partition(args, kwargs)
    numbers = jnp.ravel(random.key_data(key)).tolist()
    words = (*numbers, digest(arrays))
    if not isinstance(guide, AutoGuide) or start_of(guide) == words:
        return
    for part in (guide, *(guide if isinstance(guide, AutoGuideList) else ())):
        part.prototype_trace = None
    guide._started_by = words  # type: ignore[attr-defined]


def start_of(guide: Callable) -> tuple[int | str, ...] | None:
    """The key and the data of :func:`start_anew`; None if there were none."""
    return getattr(guide, "_started_by", None)
