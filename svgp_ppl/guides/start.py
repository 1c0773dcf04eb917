"""Where the parameters of an automatic guide start: its first key says it."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import random
from numpyro.infer.autoguide import AutoGuide, AutoGuideList

__all__ = ["start_anew", "start_of"]


def start_anew(guide: Callable, key) -> None:
    """Let an automatic guide start where a key says, whoever has run it before.

    That may have been a fit with another key, or a prediction. With the same key the
    guide stays as it is.

    Args:
        guide: The guide; a hand-written one does not remember where it has started.
        key: The key with which it will be set up.
    """
    words = tuple(jnp.ravel(random.key_data(key)).tolist())
    if not isinstance(guide, AutoGuide) or start_of(guide) == words:
        return
    for part in (guide, *(guide if isinstance(guide, AutoGuideList) else ())):
        part.prototype_trace = None
    guide._started_by = words  # type: ignore[attr-defined]


def start_of(guide: Callable) -> tuple[int, ...] | None:
    """The key of :func:`start_anew`, in numbers; None if there was none."""
    return getattr(guide, "_started_by", None)
