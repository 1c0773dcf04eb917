"""What a posterior must have for a model that is run under it: values for its sites."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.handlers import Messenger

from svgp_ppl.checks import in_words, is_concrete
from svgp_ppl.guides.fitted import Guide
from svgp_ppl.handlers import is_inducing
from svgp_ppl.observations import is_latent
from svgp_ppl.prediction.posterior import Prior, Samples

__all__ = ["require_params", "require_same_latents", "require_sizes", "require_values"]


def require_params(sites: dict[str, dict], posterior: Samples | Guide | Prior) -> None:
    """Raise if a parameter would keep its initial value without anybody's wish.

    Without a fit it may: a model of one's own can have parameters that are not learned.
    """
    names = {name for name, site in sites.items() if site["type"] == "param"}
    missing, unknown = names - {*posterior.params}, {*posterior.params} - {*sites}
    if not missing or not (unknown or isinstance(posterior, Guide)):
        return
    came = f"only of {sorted(posterior.params)}" if posterior.params else "of none"
    unseen = [
        name
        for name, site in sites.items()
        if is_latent(site) and any(param.startswith(f"{name}_") for param in missing)
    ]
    advice = ""
    if isinstance(posterior, Guide) and unseen:
        advice = (
            f" If {unseen} had data in the fit: a new guide, as beside a loaded fit, "
            "has to see them once, numpyro.handlers.seed(guide, 0)(x, y)."
        )
    raise ValueError(
        f"params has no value of {sorted(missing)}, {came}. A fit gives the parameters "
        "of the guide and of the model together: fit.params of gp.fit, "
        f"svi.get_params(state) of numpyro.infer.SVI.{advice}"
    )


def require_same_latents(guide_trace: dict[str, dict], sites: dict[str, dict]) -> None:
    """Refuse other names of latent sites, which would be drawn from their priors.

    A part of a model lacks some, and new groups have new ones; both is a mistake.
    """
    known = {n for n, site in guide_trace.items() if site["type"] == "sample"}
    own = {n for n in known if "is_auxiliary" in guide_trace[n]["infer"]}
    lacking = known - own - {*sites}
    unknown = {n for n, site in sites.items() if is_latent(site)} - known
    if lacking and unknown:
        raise ValueError(
            f"the guide has no values of {sorted(unknown)}, and the model has no sites "
            f"{sorted(lacking)}, of which it has. Was it fitted with this model?"
        )


class require_sizes(Messenger):
    """Refuses values for other numbers of groups: JAX would take the last for new ones.

    A NumPyro handler, outside of those that give the values, so that it comes before
    what the model makes of them. A draw of one site for every group has the shape of
    the model in all dimensions. A guide, which is replayed, gives a plate its own rows,
    and the size shows it.
    """

    def process_message(self, msg: Any) -> None:
        """Compare the shape of a value with that which the site would draw."""
        is_plate = msg["type"] == "plate"
        if msg["value"] is None or not (is_plate or is_latent(msg)):
            return
        name, has = msg["name"], jnp.shape(msg["value"])
        if is_plate:
            size, rows = msg["args"]
            needs = (size,) if rows in (None, size) else has
        else:
            needs = tuple(msg["kwargs"].get("sample_shape") or ()) + msg["fn"].shape()
        if has != needs:
            grouped = ""
            if not is_plate and has[1:] == needs:
                grouped = (
                    " If the draws are grouped by chain, [chains, draws, ...], join "
                    "the chains: mcmc.get_samples() of NumPyro has done so."
                )
            raise ValueError(
                f"the posterior has values of '{name}' of shape {has}, and the model "
                f"needs {needs}.{grouped} If groups are new, keep the plate as it was "
                "and draw their values from the distribution of a group, at a site of "
                "its own. If every datum has a latent value, predict from draws that "
                "leave it out: with key=jax.random.key(...) it is drawn anew."
            )


def require_values(sites: dict[str, dict], posterior: Samples, key) -> None:
    """Refuse draws without values of a site, not finite, or outside of its support.

    With a key, sites besides the processes may be drawn from their priors.
    """
    missing = {
        name: site
        for name, site in sites.items()
        if (is_latent(site) or (is_inducing(site) and not site["is_observed"]))
        and name not in posterior.values
    }
    if any(map(is_inducing, missing.values())) or (missing and key is None):
        raise ValueError(
            f"the posterior has no draws of {sorted(missing)}, only of "
            f"{sorted(posterior.values)}. Was it made with this model? (A site that "
            "was observed then and is to be drawn now needs "
            "key=jax.random.key(...).)"
        )
    for name, values in posterior.values.items():
        is_used = name in sites and sites[name]["type"] == "sample"
        if is_used and is_concrete(values):
            finite = np.isfinite(np.asarray(values)).reshape(len(values), -1)
            num_bad = int(np.sum(~finite.all(axis=1)))
            if num_bad:
                raise ValueError(
                    f"{num_bad} of {len(values)} draws of site '{name}' are NaN or "
                    "infinite: leave these draws out."
                )
            if is_latent(sites[name]):
                _require_support(name, sites[name]["fn"].support, np.asarray(values))


def _require_support(name: str, support: Any, values: np.ndarray) -> None:
    """Refuse values beyond the ends of a support, up to rounding.

    Those of an unconstrained space are, such as the logarithm of a lengthscale.
    """
    support = getattr(support, "base_constraint", support)
    for end, sign in {"lower_bound": 1, "upper_bound": -1}.items():
        bound = getattr(support, end, None)
        if bound is None or not is_concrete(bound):
            continue
        bound = np.asarray(bound)
        least = sign * bound - 1e-6 * np.abs(bound)
        beyond = values[sign * values < least] if bound.ndim == 0 else values[:0]
        if beyond.size:
            raise ValueError(
                f"the posterior has the value {beyond[0]:.4g} of site '{name}', "
                f"outside of its support, {in_words(support)}: draws are in the "
                "constrained space of the model, as mcmc.get_samples() and "
                "guide.sample_posterior() give them."
            )
