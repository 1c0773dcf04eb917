"""The facts of a fit that its report puts into words: numbers, not judgements.

One program runs model and guide as the bound does and examines the ``observe`` sites
(``observations``). Where the guide draws more than whitened values, a second one weighs
draws of all of it by the model's log density.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array
from numpyro.distributions import constraints
from numpyro.distributions.util import scale_and_mask
from numpyro.infer.autoguide import AutoGuide

from svgp_ppl.diagnostics.fitted import Facts, Fitted
from svgp_ppl.diagnostics.report import Report, report_fit, report_of
from svgp_ppl.fitting.checks import (
    require_shared_latents,
    require_valid_rows,
    takes_other_rows,
)
from svgp_ppl.fitting.minibatches import Minibatches, Whole
from svgp_ppl.fitting.observations import (
    inputs_of,
    moments_of,
    observations_of,
    weights_of,
)
from svgp_ppl.fitting.result import Fit
from svgp_ppl.guides.fitted import (
    drawn_sites,
    guide_and_params,
    require_same_rest,
)
from svgp_ppl.handlers import (
    counts_once,
    is_inducing,
    is_layer,
    marginalised,
    set_up,
    trace_of,
    traces_of,
    unwrapped,
)
from svgp_ppl.observations import is_latent, observe_sites
from svgp_ppl.plates import all_rows, first_rows
from svgp_ppl.rows import in_batches, is_array
from svgp_ppl.runtime.compilation import call, look
from svgp_ppl.runtime.dependence import inputs_read, outputs_zero

__all__ = ["fitted_of"]

# If there are more rows, so many of them represent all, always the same ones.
_MOST_ROWS = 1000
_SEED = 0

# Draws for the tail of the weights: 3√1000 = 95 of them are in it.
_NUM_DRAWS = 1000
_DRAWS_AT_A_TIME = 25

# Supports with an end. The prior of a scale has one; that of an effect has none.
_SUPPORTS = {
    "positive": (
        type(constraints.positive),
        type(constraints.nonnegative),
        type(constraints.softplus_positive),
        type(constraints.greater_than(0.0)),
        type(constraints.greater_than_eq(0.0)),
    ),
    "interval": (
        type(constraints.interval(0.0, 1.0)),
        type(constraints.unit_interval),
    ),
}


@report_of.register
def _(fit: Fit, *args, **kwargs) -> Report:
    return report_fit(fitted_of(fit, *args, **kwargs))


def fitted_of(fit: Fit, *args, **kwargs) -> Fitted:
    """The facts of a fit.

    Args:
        fit: The fit.
        *args: Arguments of its model, data included; without them, its losses only.
        **kwargs: Keyword arguments of its model.

    Raises:
        ValueError: The fit does not know its model; an ``observe`` site has no data.
    """
    losses, model = np.asarray(fit.losses, np.float64), fit.model
    if model is None and isinstance(fit.guide, AutoGuide):
        model = fit.guide.model
    needs_none = model is not None and not inspect.signature(model).parameters
    if not (args or kwargs or needs_none):
        return Fitted(losses)
    if model is None:
        raise ValueError(
            "a fit that was loaded from a file, with a guide written by hand, does not "
            "know its model: gp.Fit.load(path, guide, model)."
        )
    return Fitted(losses, _Assessment(fit, model, args, kwargs).facts())


class _Assessment:
    """Model and guide at the parameters of a fit, on all rows or on some of them."""

    def __init__(self, fit: Fit, model: Callable, args: tuple, kwargs: dict):
        self.params = guide_and_params(fit, "fit").params
        self.has_earlier_data = fit.has_earlier_data
        self.rows: Whole | Minibatches = Whole(args, kwargs)
        require_valid_rows(model, self.rows, random.key(_SEED))
        self.model, self.guide = all_rows(model), all_rows(fit.guide)
        leaves = [x for x in jax.tree.leaves((args, kwargs)) if is_array(x)]
        lengths = [len(x) for x in leaves if np.ndim(x)]
        self.num_rows = lengths[0] if lengths else 0
        self.num_seen = self.num_rows
        if self.num_rows > _MOST_ROWS:
            self._take_some(fit, model, args, kwargs, lengths)
        set_up(fit.guide, random.key(_SEED), *self.rows.first())
        self.arrays = self.rows.block(0, 1, 1)
        self.made_of = (model, fit.guide, self.rows.made_of)

    def _take_some(
        self, fit: Fit, model: Callable, args: tuple, kwargs: dict, lengths: list[int]
    ) -> None:
        """Keep only some rows, unless the model insists on all of them."""
        # Another number than that of other arrays, whose rows are all seen.
        size = next(n for n in range(_MOST_ROWS, 0, -1) if n not in lengths)
        some = Minibatches(args, kwargs, size, _SEED)
        # A plate of all data gets these rows, any other plate all of its own.
        of_some = all_rows(first_rows(model, self.num_rows))

        def run(args, kwargs, key, params) -> None:
            sites = trace_of(of_some, args, kwargs, key=key, values=params)
            require_shared_latents(sites)

        try:
            look(run, *some.first(), random.key(_SEED), self.params)
        except ValueError:
            return
        if takes_other_rows(of_some, some, self.params, random.key(_SEED)):
            return
        self.rows, self.num_seen, self.model = some, size, of_some
        self.guide = all_rows(first_rows(fit.guide, self.num_rows))

    def traces(self, key, params, arrays) -> tuple[dict, dict]:
        """Traces of the guide, and of the model with its q(v) in force."""
        args, kwargs = self.rows.at(arrays, 0)
        run = {"keys": random.split(key), "values": params}
        return traces_of(self.guide, self.model, args, kwargs, **run)

    def facts(self) -> Facts:
        """All of them."""

        def of_traces(params, arrays, key) -> Facts:
            key_trace, key_weights = random.split(key)
            guide_trace, model_trace = self.traces(key_trace, params, arrays)
            return self._facts(key_weights, guide_trace, model_trace)

        made_of = ("facts of a fit", *self.made_of)
        run = (self.params, self.arrays, random.key(_SEED))
        facts = call(of_traces, made_of, *run, runs_once=True)
        facts = jax.tree.map(_on_the_host, facts)
        facts = facts._replace(without_slope=self._without_slope())
        if self.has_earlier_data:
            # The model does not know them: the best q(v) and k-hat would be others.
            unknown = dict.fromkeys(facts.moments)
            facts = facts._replace(moments=unknown, log_weights=facts.log_weights[:0])
        if facts.is_point:
            return facts
        log_weights, cdf = self._weights_of_everything()
        is_part = self.num_seen < self.num_rows
        if facts.is_deep or is_part or self.has_earlier_data:
            log_weights = log_weights[:0]
        return facts._replace(log_weights=log_weights, cdf=cdf)

    def _facts(self, key, guide_trace: dict, model_trace: dict) -> Facts:
        require_same_rest(guide_trace, self.params)
        sites = model_trace.values()
        is_deep = any(map(is_layer, sites))
        is_point = not drawn_sites(guide_trace, marginalised(model_trace))
        are_exact = all(
            isinstance(site["value"], dist.Distribution) and counts_once(site)
            for site in sites
            if is_inducing(site)
        )
        log_weights = jnp.zeros(0)
        if self.num_seen == self.num_rows and is_point and are_exact and not is_deep:
            log_weights = weights_of(key, model_trace, _NUM_DRAWS)
        observed = observe_sites(model_trace).values()
        num_rows = self.num_seen, self.num_rows
        if self.num_seen == self.num_rows:  # those of tables are counted at the sites
            most = max([self.num_rows, *(e.latent.num_data for e in observed)])
            num_rows = most, most
        return Facts(
            num_rows=num_rows,
            sites=observations_of(model_trace, self.num_seen, self.num_rows),
            inputs=inputs_of(model_trace),
            moments=moments_of(model_trace),
            is_deep=is_deep,
            is_random=any(expected.key is not None for expected in observed),
            is_point=is_point,
            only_q=not any(s["type"] == "param" or is_latent(s) for s in sites),
            log_weights=log_weights,
            cdf=_cdf(model_trace),
        )

    def _without_slope(self) -> list[str]:
        """Sites whose value the likelihood depends on, with a derivative of 0 at all.

        That of ``jnp.where(x < tau, a, b)`` in ``tau`` is so when it is traced; nothing
        is computed.
        """

        def names(args, kwargs, params, arrays, key) -> list[str]:
            guide_trace, model_trace = self.traces(key, params, arrays)
            args, kwargs = self.rows.at(arrays, 0)

            def log_likelihood(values):
                run = {"key": key, "values": {**params, **values}}
                sites = trace_of(
                    self.model, args, kwargs, guide_trace=guide_trace, **run
                )
                return _log_density({n: s for n, s in sites.items() if _is_data(s)})

            values = {n: s["value"] for n, s in model_trace.items() if _may_move(s)}
            both = jax.make_jaxpr(jax.value_and_grad(log_likelihood))(values).jaxpr
            are_zero = outputs_zero(both)[1:]
            found = zip(sorted(values), inputs_read(both, first=1), are_zero)
            return [name for name, is_read, is_zero in found if is_read and is_zero]

        return look(names, (), {}, self.params, self.arrays, random.key(_SEED))

    def _weights_of_everything(self) -> tuple[np.ndarray, dict]:
        """log p(y, v, θ) − log q(v, θ) of draws of the guide, and θ in its prior."""

        def weigh(params, arrays, keys) -> Any:
            args, kwargs = self.rows.at(arrays, 0)

            def one(key):
                key_guide, key_model = random.split(key)
                run = {"key": key_guide, "values": params}
                guide_trace = trace_of(self.guide, args, kwargs, **run)
                drawn = {
                    name: site["value"]
                    for name, site in guide_trace.items()
                    if site["type"] == "sample"
                }
                run = {"key": key_model, "values": {**params, **drawn}}
                model_trace = trace_of(self.model, args, kwargs, **run)
                log_weight = _log_density(model_trace) - _log_density(guide_trace)
                return log_weight, _cdf(model_trace)

            return in_batches(one, keys, _DRAWS_AT_A_TIME)

        keys = random.split(random.key(_SEED), _NUM_DRAWS)
        made_of = ("weights of a fit", *self.made_of)
        run = (self.params, self.arrays, keys)
        log_weights, cdf = call(weigh, made_of, *run, runs_once=True)
        means = {name: np.mean(np.asarray(v), axis=0) for name, v in cdf.items()}
        return np.asarray(log_weights, np.float64), means


def _on_the_host(leaf: Any) -> Any:
    value = np.asarray(leaf)
    if np.issubdtype(value.dtype, np.floating):
        return value.astype(np.float64)
    return value


def _is_data(site: dict) -> bool:
    return site["type"] == "sample" and site["is_observed"]


def _may_move(site: dict) -> bool:
    """Whether a site of the model has a real value, or an array, for a fit to find."""
    if not (is_latent(site) or site["type"] == "param"):
        return False
    return is_array(site["value"]) and jnp.issubdtype(site["value"].dtype, jnp.floating)


def _log_density(sites: dict[str, dict]) -> Array:
    total = jnp.zeros(())
    for site in sites.values():
        if site["type"] == "sample":
            log_prob = site["fn"].log_prob(site["value"])
            total += jnp.sum(scale_and_mask(log_prob, site["scale"]))
    return total


def _cdf(model_trace: dict[str, dict]) -> dict[tuple[str, str], Array]:
    """Prior probability of a smaller value, by name and kind of support."""
    found = {}
    for name, site in model_trace.items():
        if not is_latent(site):
            continue
        prior = unwrapped(site["fn"])[0]
        for kind, supports in _SUPPORTS.items():
            if isinstance(prior.support, supports):
                try:
                    found[name, kind] = prior.cdf(site["value"])
                except NotImplementedError:
                    continue
    return found
