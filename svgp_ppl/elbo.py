"""The bound of SVI with the processes marginalised.

    Σ_n E_{q(f_n)} log p(y_n|f_n) − Σ_groups KL( q(v) ‖ N(0, I) ) + the other sites


The guide runs first. Where it holds a belief that can be marginalised, the model's site
of v receives the belief itself in place of a draw from it; latents then have Gaussian
marginals and ``observe`` sites give expectations. All other latent sites are sampled
and scored as in NumPyro's ``Trace_ELBO``. The bound knows sites and beliefs, no
kernels.
"""

from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from numpyro.distributions.util import scale_and_mask
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer.elbo import ELBO

from svgp_ppl.beliefs import Entropy, group_of, is_belief, kl_to_white
from svgp_ppl.primitives import is_inducing

__all__ = ["MarginalELBO", "hold_beliefs", "marginalised"]


class MarginalELBO(ELBO):
    """Evidence lower bound with the whitened values integrated out in closed form.

    For ``numpyro.infer.SVI(..., loss=MarginalELBO())``. With a Gaussian belief, point
    estimates for the rest and a deterministic expectation, the loss has no noise. A
    belief outside ``beliefs`` (a normalising flow, say) is sampled like any other site.
    A guide whose other sites depend on the draw of v is not supported.

    Args:
        num_particles: Draws of the other latent sites per evaluation.
        vectorize_particles: ``True`` for ``vmap``, ``False`` for a loop, or a callable.
        entropy: Entropy of a mixture belief: ``"jensen"``, a deterministic lower bound
            (Dezfouli & Bonilla 2015, eq. 19); ``"pairwise"``, another, exact for
            components that are equal or far apart (Kolchinsky & Tracey 2017); or
            ``"monte_carlo"``, unbiased.
        num_entropy_draws: Draws per component for ``"monte_carlo"``.

    Example:
        >>> import optax, svgp_ppl as gp
        >>> from numpyro.infer import SVI
        >>> svi = SVI(model, gp.AutoGaussian(model), optax.adam(1e-2),
        ...           loss=gp.MarginalELBO())  # doctest: +SKIP
    """

    def __init__(
        self,
        num_particles: int = 1,
        vectorize_particles: Any = True,
        *,
        entropy: Entropy = "jensen",
        num_entropy_draws: int = 16,
    ):
        super().__init__(num_particles, vectorize_particles)
        if entropy not in get_args(Entropy):
            raise ValueError(
                f"entropy must be one of {get_args(Entropy)}, and is {entropy!r}."
            )
        self.entropy: Entropy = entropy
        self.num_entropy_draws = num_entropy_draws

    def loss_with_mutable_state(
        self, rng_key, param_map, model, guide, *args, **kwargs
    ) -> Any:
        """The negative bound, and the values of ``numpyro.mutable`` sites."""

        def one_particle(key):
            return self._bound(key, param_map, model, guide, args, kwargs)

        if self.num_particles == 1:
            bound, mutable = one_particle(rng_key)
            return {"loss": -bound, "mutable_state": mutable}
        keys = random.split(rng_key, self.num_particles)
        bounds, _ = self.vectorize_particles_fn(one_particle, keys)
        return {"loss": -jnp.mean(bounds), "mutable_state": None}

    def _bound(self, key, params, model, guide, args, kwargs):
        key_model, key_guide, key_entropy = random.split(key, 3)
        seeded_guide = substitute(seed(guide, key_guide), data=params)
        guide_trace = trace(seeded_guide).get_trace(*args, **kwargs)
        params = {**params, **_mutable(guide_trace)}
        held = hold_beliefs(seed(model, key_model), guide_trace)
        model_trace = trace(substitute(held, data=params)).get_trace(*args, **kwargs)

        bound, groups = jnp.zeros(()), {}
        for name, site in model_trace.items():
            if site["type"] != "sample":
                continue
            if isinstance(site["value"], dist.Distribution):
                groups[group_of(name, site["value"])] = (site["value"], site["scale"])
            else:
                if is_inducing(site):
                    _require_in_guide(name, site, guide_trace)
                bound += _log_prob(site)
        integrated_out = marginalised(model_trace)
        for name, site in guide_trace.items():
            if site["type"] == "sample" and name not in integrated_out:
                bound -= _log_prob(site)
        keys = random.split(key_entropy, max(len(groups), 1))
        for (belief, scale), one_key in zip(groups.values(), keys):
            divergence = kl_to_white(
                belief,
                entropy=self.entropy,
                key=one_key,
                num_draws=self.num_entropy_draws,
            )
            bound -= divergence if scale is None else scale * divergence
        mutable = {**_mutable(guide_trace), **_mutable(model_trace)}
        return bound, mutable or None


class hold_beliefs(replay):
    """Replay a guide, with beliefs in place of the draws of whitened values.

    A NumPyro handler: a model under it sees each process with its belief in force.
    """

    def __init__(self, fn=None, trace=None):
        super().__init__(fn, trace)

    def process_message(self, msg):
        """Give the site its belief, or what ``replay`` would."""
        name = msg.get("name")
        if msg["type"] == "sample" and is_inducing(msg) and name in self.trace:
            belief = self.trace[name]["fn"]
            # A point is left to replay: a guide may give it a log density of its own.
            if is_belief(belief) and not isinstance(belief, dist.Delta):
                msg["value"] = belief
                return
        infer = msg.get("infer", {})
        super().process_message(msg)
        if "inducing" in infer:  # replay puts the guide's in its place
            msg["infer"] = {**msg["infer"], **infer}


def marginalised(model_trace: dict[str, dict]) -> set[str]:
    """Names of the guide's sites that the model holds as beliefs, not as draws."""
    names = set()
    for name, site in model_trace.items():
        if isinstance(site.get("value"), dist.Distribution):
            names |= {name, group_of(name, site["value"])}
    return names


def _log_prob(site: dict) -> jax.Array:
    if site["intermediates"]:
        value = site["fn"].log_prob(site["value"], site["intermediates"])
    else:
        value = site["fn"].log_prob(site["value"])
    return jnp.sum(scale_and_mask(value, site["scale"]))


def _mutable(sites: dict) -> dict:
    return {n: s["value"] for n, s in sites.items() if s["type"] == "mutable"}


def _require_in_guide(name: str, site: dict, guide_trace: dict) -> None:
    if not site["is_observed"] and name not in guide_trace:
        raise ValueError(
            f"the guide has no site for the process '{name}'. Use "
            f'gp.AutoGaussian(model), or add numpyro.sample("{name}", ...) with a '
            f"distribution over v, event shape {site['fn'].event_shape}."
        )
