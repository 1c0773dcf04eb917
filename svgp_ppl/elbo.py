"""The bound of SVI with the processes marginalised.

    Σ_n E_{q(f_n)} log p(y_n|f_n) − Σ_groups KL( q(v) ‖ N(0, I) ) + the other sites


The guide runs first. Where its q(v) can be marginalised, the model's site of v receives
the distribution itself in place of a draw from it; latents then have Gaussian marginals
and ``observe`` sites give variational expectations. All other latent sites are sampled
and scored as in NumPyro's ``Trace_ELBO``. The bound knows sites and distributions, but
no kernels.
"""

import math
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from numpyro.distributions.util import scale_and_mask
from numpyro.infer.elbo import ELBO

from svgp_ppl.handlers import (
    is_layer,
    marginalised,
    mutable,
    times_counted,
    traces_of,
    unwrapped,
)
from svgp_ppl.observations import observe_sites, require_observed
from svgp_ppl.observations.averaged import require_averaged
from svgp_ppl.observations.residual import Seen, gain
from svgp_ppl.variational import Entropy, expected_log_prior, group_of, prior_kl

__all__ = ["MarginalELBO", "require_data"]


class MarginalELBO(ELBO):
    """Evidence lower bound with the whitened values integrated out in closed form.

    For ``numpyro.infer.SVI(..., loss=MarginalELBO())``. With a Gaussian q(v), point
    estimates for the rest and a deterministic expectation, the loss has no noise. A
    q(v) outside ``variational`` (a normalising flow, say) is sampled like any other
    site. A guide whose other sites depend on the draw of v is not supported: ``gp.fit``
    and ``gp.predict`` refuse it. Sites of NumPyro's own that read moments of a latent,
    ``numpyro.sample("y", dist.Normal(f(x).mean, 0.1), obs=y)``, are refused here.
    ``numpyro.handlers.scale`` and ``mask`` count as in ``Trace_ELBO``: around the prior
    of a process they temper it, in the guide they are those of log q(v).

    Args:
        num_particles: Draws of the other latent sites per evaluation.
        vectorize_particles: ``True`` for ``vmap``, ``False`` for a loop, or a callable.
        entropy: Entropy of a mixture q(v): ``"jensen"``, a deterministic lower bound
            (Dezfouli & Bonilla 2015, eq. 19); ``"pairwise"``, another, exact for
            components that are equal or far apart (Kolchinsky & Tracey 2017); or
            ``"monte_carlo"``, unbiased.
        num_entropy_draws: Draws per component for ``"monte_carlo"``.
        conditional: What q(f|u) is: ``"prior"``, p(f|u) itself; or ``"scaled"``, p(f|u)
            with the best scale of its covariance, a bound that is never looser and
            costs little more (Titsias 2025; Bui, Ashman & Turner 2025). With
            likelihoods other than ``Gaussian`` it needs all rows at every step. A
            process that is observed may not go through ``propagate`` as well.

    Example:
        >>> import optax, svgp_ppl as gp
        >>> from numpyro.infer import SVI
        >>> svi = SVI(model, gp.AutoGaussian(model), optax.adam(1e-2),
        ...           loss=gp.MarginalELBO())
    """

    def __init__(
        self,
        num_particles: int = 1,
        vectorize_particles: Any = True,
        *,
        entropy: Entropy = "jensen",
        num_entropy_draws: int = 16,
        conditional: Literal["prior", "scaled"] = "prior",
    ):
        super().__init__(num_particles, vectorize_particles)
        if entropy not in get_args(Entropy):
            raise ValueError(
                f"entropy must be one of {get_args(Entropy)}, and is {entropy!r}."
            )
        if conditional not in ("prior", "scaled"):
            raise ValueError(
                f'conditional must be "prior" or "scaled", and is {conditional!r}.'
            )
        self.conditional = conditional
        self.entropy: Entropy = entropy
        self.num_entropy_draws = num_entropy_draws

    def loss_with_mutable_state(
        self, rng_key, param_map, model, guide, *args, **kwargs
    ) -> Any:
        """The negative bound, and the values of NumPyro's ``mutable`` sites."""

        def one_particle(key):
            return self._bound(key, param_map, model, guide, args, kwargs)

        if self.num_particles == 1:
            bound, state = one_particle(rng_key)
            return {"loss": -bound, "mutable_state": state}
        keys = random.split(rng_key, self.num_particles)
        bounds, _ = self.vectorize_particles_fn(one_particle, keys)
        return {"loss": -jnp.mean(bounds), "mutable_state": None}

    def _bound(self, key, params, model, guide, args, kwargs):
        key_model, key_guide, key_entropy = random.split(key, 3)
        run: dict[str, Any] = {"keys": (key_guide, key_model), "values": params}
        guide_trace, model_trace = traces_of(guide, model, args, kwargs, **run)
        require_data(model_trace)
        again = {"key": key_model, "values": {**params, **mutable(guide_trace)}}
        require_averaged(model_trace, guide_trace, model, args, kwargs, **again)

        bound, groups = jnp.zeros(()), {}
        for name, site in model_trace.items():
            if site["type"] != "sample":
                continue
            if isinstance(site["value"], dist.Distribution):
                of_guide = times_counted(guide_trace[name])
                groups[group_of(name, site["value"])] = (site["value"], of_guide)
                bound += _more_of_prior(site, of_guide)
            else:
                bound += _log_prob(site)
        integrated_out = marginalised(model_trace)
        for name, site in guide_trace.items():
            if site["type"] == "sample" and name not in integrated_out:
                bound -= _log_prob(site)
        keys = random.split(key_entropy, max(len(groups), 1))
        for (qv, times), one_key in zip(groups.values(), keys):
            divergence = prior_kl(
                qv,
                entropy=self.entropy,
                key=one_key,
                num_draws=self.num_entropy_draws,
            )
            bound -= times * divergence
        if self.conditional == "scaled":
            bound += gain(_seen(model_trace))
        state = {**mutable(guide_trace), **mutable(model_trace)}
        return bound, state or None


def require_data(model_trace: dict[str, dict]) -> None:
    """Raise unless the model has data, at each of its ``observe`` sites.

    Without them a bound is that of another model, in which the missing data are latent.
    """
    require_observed(model_trace)
    if not any(
        s["type"] == "sample" and s["is_observed"] for s in model_trace.values()
    ):
        raise ValueError(
            "the model has no observed site: was y passed? Draws from its prior are "
            "numpyro.infer.Predictive(model, num_samples=...)."
        )


def _more_of_prior(site: dict, of_guide: Any) -> Any:
    """(s − s') E log N(v; 0, I): a divergence counts s' times, and the prior s times.

    s is what ``numpyro.handlers.scale`` and ``mask`` make of the process in the model,
    and s', ``of_guide``, of its q(v) in the guide; as in ``Trace_ELBO``.
    """
    more = times_counted(site) - of_guide
    if isinstance(more, float) and more == 0.0:
        return more
    return more * expected_log_prior(site["value"])


def _seen(model_trace: dict[str, dict]) -> list[Seen]:
    """The ``observe`` sites, with the masks around them.

    Raises:
        ValueError: One of them sees a process that goes through a layer too.
    """
    layers = [site["infer"]["layer"] for site in model_trace.values() if is_layer(site)]
    found, drawn = [], set().union(*layers)
    for name, expected in observe_sites(model_trace).items():
        site = model_trace[name]
        both = expected.latent.process_names & drawn
        if both:
            raise ValueError(
                f"site '{name}' sees the process(es) {sorted(both)}, which go through "
                'propagate as well: with MarginalELBO(conditional="scaled") the layer '
                "would be drawn from another p(f|u) than the data are taken to see, "
                'and the result be no bound. Take conditional="prior".'
            )
        _, mask = unwrapped(site["fn"])
        frames = [frame.name for frame in site["cond_indep_stack"]]
        plates = [model_trace[name] for name in frames if name in model_trace]
        size = math.prod(plate["args"][0] for plate in plates)
        num_seen = math.prod(len(plate["value"]) for plate in plates)
        found.append(
            Seen(expected, site["value"], mask, site["scale"], size / num_seen)
        )
    return found


def _log_prob(site: dict) -> jax.Array:
    if site["intermediates"]:
        value = site["fn"].log_prob(site["value"], site["intermediates"])
    else:
        value = site["fn"].log_prob(site["value"])
    return jnp.sum(scale_and_mask(value, site["scale"]))
