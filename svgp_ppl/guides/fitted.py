"""A guide with the values of its parameters, in any form that a user may have."""

import warnings
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from numpyro.infer.autoguide import AutoGuide, AutoLaplaceApproximation
from numpyro.infer.svi import SVIRunResult

from svgp_ppl.checks import warn_of_other_precision
from svgp_ppl.guides.processes import ProcessGuide
from svgp_ppl.handlers import is_point, trace_of
from svgp_ppl.rows import is_array
from svgp_ppl.runtime.compilation import as_jax_arrays
from svgp_ppl.runtime.dependence import inputs_read
from svgp_ppl.variational import Block

__all__ = [
    "DRAWS_OF_CENTRE",
    "Guide",
    "as_guide",
    "centre_of",
    "drawn_sites",
    "guide_and_params",
    "require_apart",
    "require_same_rest",
    "still_frozen",
    "warn_of_mode",
]

# Draws of a guide that determine its centre; all are equal for point estimates.
DRAWS_OF_CENTRE = 64


class Guide(NamedTuple):
    """A guide and its fitted parameters."""

    guide: Callable
    params: dict[str, Any]


def as_guide(given: Any) -> Guide | None:
    """The guide and the parameters of a fit; None if it is none.

    Parameters of the other precision are a warning, and become ones of this one.

    Args:
        given: What ``gp.fit`` returned, or ``(guide, params)``, where ``params`` may be
            all that numpyro's ``SVI.run`` returns.
    """
    parts = given
    if not isinstance(given, tuple | list):
        parts = getattr(given, "guide", None), getattr(given, "params", None)
    match parts:
        case (guide, SVIRunResult(params=params)) if callable(guide):
            return Guide(guide, _in_this_precision(params))
        case (guide, params) if callable(guide) and isinstance(params, Mapping):
            return Guide(guide, _in_this_precision(params))
    return None


def _in_this_precision(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, converted if all of them come from the other precision.

    Some may be of single precision by choice, as those of a network.
    """
    here = jnp.result_type(float)
    other = jnp.dtype({"float32": "float64", "float64": "float32"}[here.name])

    def converted(leaf: Any) -> Any:
        is_other = isinstance(leaf, jax.Array) and leaf.dtype == other
        return leaf.astype(here) if is_other else leaf

    found = {a.dtype for a in jax.tree.leaves(params) if isinstance(a, jax.Array)}
    if other not in found or here in found:
        return dict(params)
    warn_of_other_precision("the fit", other.name)
    return jax.tree.map(converted, dict(params))


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


def warn_of_mode(guide: Callable) -> None:
    """Warn of NumPyro's Laplace approximation, which draws nothing but its mode.

    Args:
        guide: A guide that has been set up.
    """
    is_rest = isinstance(guide, ProcessGuide)
    if isinstance(guide.rest if is_rest else guide, AutoLaplaceApproximation):
        advice = "Take rest=AutoMultivariateNormal."
        if not is_rest:
            advice = "Pass draws in place of it: guide.sample_posterior(key, params, "
            advice += "sample_shape=(1000,))."
        warnings.warn(
            "NumPyro's AutoLaplaceApproximation, run as a guide, gives its mode and no "
            f"draws of its Gaussian: its sites are taken for known. {advice}",
            stacklevel=4,
        )


def still_frozen(given: Any) -> set[str]:
    """Parameters that a fit had frozen to its end; none are known of a pair."""
    unfreeze_at = getattr(given, "unfreeze_at", {})
    return {name for name, step in unfreeze_at.items() if step > len(given.losses)}


def centre_of(
    key, guide: Callable, params: Mapping[str, Any], args: tuple, kwargs: dict
) -> dict[str, jax.Array]:
    """θ̂, the mean of draws of every latent site of a guide that has been set up."""

    def draw(key):
        sites = trace_of(guide, args, kwargs, key=key, values=params)
        return {n: s["value"] for n, s in sites.items() if s["type"] == "sample"}

    draws = jax.vmap(draw)(random.split(key, DRAWS_OF_CENTRE))
    return {name: jnp.mean(values, axis=0) for name, values in draws.items()}


def drawn_sites(guide_trace: dict[str, dict], exact: Set[str]) -> list[str]:
    """Sites that a guide draws: neither points nor among those that are exact."""
    return [
        name
        for name, site in guide_trace.items()
        if site["type"] == "sample" and name not in exact and not is_point(site["fn"])
    ]


def require_same_rest(
    guide_trace: Mapping[str, dict], params: Mapping[str, Any]
) -> None:
    """Refuse a point at a site with the parameters of NumPyro's ``AutoNormal``.

    Both have a ``loc``, which there is unconstrained: it would be taken for the value.

    Args:
        guide_trace: A trace of the guide.
        params: Parameters of a fit.

    Raises:
        ValueError: There is such a site.
    """
    sites = ((n, s) for n, s in guide_trace.items() if s["type"] == "sample")
    points = [name for name, site in sites if is_point(site["fn"])]
    unused = params.keys() - guide_trace.keys()
    if names := sorted(name for name in points if f"{name}_auto_scale" in unused):
        raise ValueError(
            f"the parameters of {names} have a scale, and the guide has a point there: "
            "they are those of a fit with rest=AutoNormal. Construct the guide as it "
            "was, AutoGaussian(model, rest=AutoNormal)."
        )


def require_apart(
    given: Guide,
    args: tuple,
    kwargs: dict,
    guide_trace: Mapping[str, dict],
    exact: Set[str],
) -> None:
    """Refuse a guide whose sites depend on the draw of a v that is integrated out.

    They would be taken for independent of it.

    Args:
        given: The guide, which has been set up, and its parameters.
        args: Arguments of the model.
        kwargs: Its keyword arguments.
        guide_trace: A trace of the guide.
        exact: Names of the sites that are integrated out.

    Raises:
        ValueError: A site depends on one of them.
    """
    drawn = {n for n, site in guide_trace.items() if site["type"] == "sample"}
    integrated = sorted(drawn & exact)
    if isinstance(given.guide, ProcessGuide) or not integrated or len(drawn) == 1:
        return
    args, kwargs = as_jax_arrays(args, kwargs)

    def run(values: Mapping[str, Any]) -> list[Any]:
        values = {**given.params, **values}
        sites = trace_of(given.guide, args, kwargs, key=random.key(0), values=values)
        of_sites = [sites[name]["fn"] for name in drawn]
        # A block is the point that was drawn, of a joint q(v) that was not.
        of_sites = [q.joint if isinstance(q, Block) else q for q in of_sites]
        return [leaf for leaf in jax.tree.leaves(of_sites) if is_array(leaf)]

    values = {name: guide_trace[name]["value"] for name in integrated}
    are_read = inputs_read(jax.make_jaxpr(run)(values).jaxpr)
    if read := [name for name, is_read in zip(values, are_read) if is_read]:
        raise ValueError(
            f"other sites of the guide depend on its draw of {read}, which is "
            "integrated out: it would be taken for independent of them. Draw the "
            "others first, and let q(v) depend on their values; of several processes "
            "make one joint q(v), gp.variational.split."
        )
