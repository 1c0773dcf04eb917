"""What is random in a bound, and who can do with that.

A random bound is fine for Adam, if the gradient is unbiased. It is not for an optimiser
that compares values of the bound.
"""

import jax
import numpyro.distributions as dist
from jax.extend.core import Literal
from numpyro.infer import SVI, TraceGraph_ELBO
from numpyro.infer.elbo import ELBO
from numpyro.infer.svi import SVIState

from svgp_ppl.elbo import MarginalELBO, marginalised
from svgp_ppl.primitives import is_expected, is_layer

__all__ = [
    "is_point",
    "random_parts",
    "require_deterministic",
    "require_reparameterised",
]


def require_reparameterised(loss: ELBO, model_trace: dict, guide_trace: dict) -> None:
    """Refuse a loss whose gradient would be wrong, though its value is right."""
    if isinstance(loss, TraceGraph_ELBO):
        return
    exact = marginalised(model_trace) if isinstance(loss, MarginalELBO) else set()
    for name, site in guide_trace.items():
        is_drawn = site["type"] == "sample" and name not in exact
        if is_drawn and not (site["fn"].has_rsample or site["fn"].is_discrete):
            raise ValueError(
                f"draws of the guide's site '{name}' ({type(site['fn']).__name__}) are "
                f"not reparameterised, so {type(loss).__name__} has wrong gradients. "
                "Use loss=gp.MarginalELBO() (the default) for beliefs about processes, "
                "or numpyro.infer.TraceGraph_ELBO()."
            )


def require_deterministic(
    svi: SVI, state: SVIState, args: tuple, kwargs: dict, causes: list[str]
) -> None:
    """Refuse a bound that changes from step to step, before anything is compiled.

    Args:
        svi: The inference.
        state: Its state.
        args: Arguments of the model.
        kwargs: Keyword arguments of the model.
        causes: What is known to be random, for the message; see ``random_parts``.
    """

    def bound(key):
        return svi.evaluate(state._replace(rng_key=key), *args, **kwargs)

    if not causes and not _reads_its_argument(
        jax.make_jaxpr(bound)(state.rng_key).jaxpr
    ):
        return
    why = "; ".join(causes) or "it depends on the random key"
    raise ValueError(
        "this optimiser searches along a line (as optax.lbfgs does) and compares "
        f"values of the bound, but the bound is random: {why}. Use optax.adam, or make "
        "the bound deterministic: the full batch, point estimates of the other sites "
        "(rest=AutoDelta), closed forms or gp.expectations.GaussHermite."
    )


def random_parts(loss: ELBO, model_trace: dict, guide_trace: dict) -> list[str]:
    """What draws random numbers in a bound, in words."""
    exact = marginalised(model_trace) if isinstance(loss, MarginalELBO) else set()
    parts = []
    for name, site in model_trace.items():
        if site["type"] == "plate":
            size, rows = site["args"]
            if rows not in (None, size):
                parts.append(f"plate '{name}' is a subsample of {rows} out of {size}")
        elif is_layer(site):
            parts.append(f"layer '{name}' draws its values")
        elif is_expected(site) and site["fn"].key is not None:
            parts.append(f"the expectation of site '{name}' draws its nodes")
    for name, site in guide_trace.items():
        drawn = site["type"] == "sample" and name not in exact
        if drawn and not is_point(site["fn"]):
            parts.append(f"the guide draws site '{name}'")
    return parts


def _reads_its_argument(jaxpr) -> bool:
    """Whether an output depends on an input; draws that nobody uses do not count."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for equation in reversed(jaxpr.eqns):
        if any(v in needed for v in equation.outvars):
            needed |= {v for v in equation.invars if not isinstance(v, Literal)}
    return any(v in needed for v in jaxpr.invars)


def is_point(distribution) -> bool:
    """Whether a distribution is a point, under whatever it is wrapped in."""
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return isinstance(distribution, dist.Delta)
