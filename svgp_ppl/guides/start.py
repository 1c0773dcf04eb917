"""Where automatic guides start, and which of them have the same programs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from numpyro.infer.autoguide import AutoGuide, AutoGuideList

from svgp_ppl.checks import is_concrete
from svgp_ppl.guides.gaussian import AutoGaussian
from svgp_ppl.rows import is_array
from svgp_ppl.runtime.compilation import partition
from svgp_ppl.runtime.digests import digest

__all__ = ["default_guide", "same_programs", "start_anew", "start_of"]


def default_guide(model: Callable) -> AutoGaussian:
    """The guide of a fit that is given none.

    Another fit of the model makes another one, and is not traced again for that.
    """
    guide = AutoGaussian(model)
    guide._same_programs = ("the default guide", model)  # type: ignore[attr-defined]
    return guide


def same_programs(guide: Callable) -> Any:
    """What guides with the same programs have in common: the guide, unless by default.

    Apart from where they start, which :func:`start_of` distinguishes.
    """
    return getattr(guide, "_same_programs", guide)


def start_anew(guide: Callable, key, args: tuple, kwargs: dict[str, Any]) -> None:
    """Let an automatic guide start where a key says, whoever has run it before.

    That may have been a fit with another key or to other data, from which a prior may
    have its mean, or a prediction. With the same ones the guide stays as it is.

    Args:
        guide: The guide; a hand-written one does not remember where it has started.
        key: The key with which it will be set up.
        args: Arguments of the model, with which it will be set up.
        kwargs: Its keyword arguments.
    """
    if not isinstance(guide, AutoGuide):
        return
    arrays, _, _ = partition(args, kwargs)
    words = (*jnp.ravel(random.key_data(key)).tolist(), digest(arrays))
    if getattr(guide, "_started_by", None) == words:
        return
    for part in (guide, *(guide if isinstance(guide, AutoGuideList) else ())):
        part.prototype_trace = None
    guide._started_by = words  # type: ignore[attr-defined]


def start_of(guide: Callable) -> str | None:
    """What distinguishes where an automatic guide starts: the arrays that it holds."""
    if not isinstance(guide, AutoGuide):
        return None
    parts: list[Any] = [guide]
    for part in parts:
        parts += part if isinstance(part, AutoGuideList) else ()
        parts += [v for v in vars(part).values() if isinstance(v, AutoGuide)]
    held = [jax.tree.leaves(vars(part)) for part in parts]
    return digest(
        [[x for x in leaves if is_array(x) and is_concrete(x)] for leaves in held]
    )
