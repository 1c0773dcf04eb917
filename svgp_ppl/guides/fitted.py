"""A guide with the values of its parameters, in any form that a user may have."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.svi import SVIRunResult

__all__ = ["Guide", "as_guide", "guide_and_params"]


class Guide(NamedTuple):
    """A guide and its fitted parameters."""

    guide: Callable
    params: dict[str, Any]


def as_guide(given: Any) -> Guide | None:
    """The guide and the parameters of a fit; None if it is none.

    Args:
        given: What ``gp.fit`` returned, or ``(guide, params)``, where ``params`` may be
            all that numpyro's ``SVI.run`` returns.
    """
    parts = given
    if not isinstance(given, tuple | list):
        parts = getattr(given, "guide", None), getattr(given, "params", None)
    match parts:
        case (guide, SVIRunResult(params=params)) if callable(guide):
            return Guide(guide, dict(params))
        case (guide, params) if callable(guide) and isinstance(params, Mapping):
            return Guide(guide, dict(params))
    return None


def guide_and_params(given: Any, name: str) -> Guide:
    """The same, or an error.

    Args:
        given: As for :func:`as_guide`.
        name: Name of the argument, for the error.

    Raises:
        ValueError: It is neither.
    """
    found = as_guide(given)
    if found is not None:
        return found
    advice = ""
    if isinstance(given, SVIRunResult):
        advice = " It does not know its guide: write (guide, result)."
    elif isinstance(given, AutoGuide):
        advice = " A guide alone has no parameters: fit it first, gp.fit(key, model, "
        advice += "guide, ...)."
    raise ValueError(
        f"{name} must be what gp.fit returns, or (guide, params) with the params of "
        f"numpyro's SVI, and is a {type(given).__name__}.{advice}"
    )
