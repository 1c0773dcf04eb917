"""The model, run again at new inputs under what was learnt.

What ``predict`` and ``draw_functions`` share: a fit, a guide or draws become one
posterior, and the model is run once for every draw of it, in one compiled program.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array

from svgp_ppl.checks import is_concrete, require_arguments
from svgp_ppl.compilation import as_jax_arrays, call, look, partition
from svgp_ppl.diagnostics import group
from svgp_ppl.fitting import Fit
from svgp_ppl.handlers import (
    is_inducing,
    is_layer,
    is_point,
    marginalised,
    require_all_rows,
    set_up,
    trace_of,
)
from svgp_ppl.primitives import Expected, expected_of

__all__ = [
    "Draws",
    "Guide",
    "Rerun",
    "Samples",
    "choose_draws",
    "observed",
    "take_posterior",
]


class Samples(NamedTuple):
    """Draws of the latent sites, [draws, ...], and the frozen parameters."""

    values: dict[str, Array]
    params: dict[str, Any]

    @property
    def num_draws(self) -> int:
        """Number of draws."""
        return len(next(iter(self.values.values())))


class Guide(NamedTuple):
    """A guide and its fitted parameters."""

    guide: Callable
    params: dict[str, Any]


class Draws(NamedTuple):
    """Which draws of the posterior the model is run for, and with which keys.

    Attributes:
        indices: Numbers of the draws, [n].
        run_keys: Keys with which guide and model are run, [n].
        keys: Keys for what is asked of each run, [n].
    """

    indices: Array
    run_keys: Any
    keys: Any


def take_posterior(posterior, params: Mapping[str, Any] | None) -> Samples | Guide:
    """What ``fit`` or ``sample`` returns, (guide, params) or a dict of samples.

    Raises:
        ValueError: It is none of these, or its sites differ in the number of draws.
    """
    match posterior:
        case Fit():
            return Guide(posterior.guide, dict(posterior.params))
        case (guide, fitted) if callable(guide) and isinstance(fitted, Mapping):
            return Guide(guide, dict(fitted))
        case dict() if posterior:
            values = {n: jnp.asarray(v) for n, v in posterior.items()}
            return _samples(values, params or {})
    draws = group(posterior, "posterior") if isinstance(posterior, Mapping) else {}
    if not draws:
        came = f"is a {type(posterior).__name__}"
        if isinstance(posterior, Mapping) and "warmup_posterior" in posterior:
            came = "has no draws: its warm-up was interrupted"
        raise ValueError(
            "posterior must be what gp.fit or gp.sample returns, (guide, params), or a "
            f"dict of samples, and {came}."
        )
    flat = {n: jnp.asarray(v.reshape(-1, *v.shape[2:])) for n, v in draws.items()}
    frozen = params if params is not None else group(posterior, "constant_data")
    return _samples(flat, frozen)


def _samples(values: dict[str, Array], params: Mapping[str, Any]) -> Samples:
    lengths = {name: jnp.shape(value)[:1] for name, value in values.items()}
    if len(set(lengths.values())) > 1 or () in lengths.values():
        raise ValueError(
            "the samples need the same leading axis of draws at every site, and have "
            f"shapes { ({n: jnp.shape(v) for n, v in values.items()}) }."
        )
    if 0 in next(iter(lengths.values())):
        raise ValueError("the posterior has no draws: its arrays have length 0.")
    return Samples(values, {n: jnp.asarray(v) for n, v in params.items()})


def choose_draws(key, num_draws: int, n: int) -> Array:
    """Indices of n draws of the posterior, [n].

    Without replacement, as often around as needed: no draw is favoured.
    """
    return random.permutation(key, num_draws)[jnp.arange(n) % num_draws]


class Rerun:
    """The model at the new inputs, ready to be run for every draw.

    Args:
        model: The model.
        posterior: The posterior.
        args: Arguments of the model.
        kwargs: Keyword arguments of the model.
        key: Random key; None when nothing is drawn.
        points: Whether v is drawn from the guide, in place of its whole q(v).
    """

    def __init__(
        self,
        model: Callable,
        posterior: Samples | Guide,
        args: tuple,
        kwargs: dict,
        key=None,
        *,
        points: bool = False,
    ):
        require_arguments(model, args, kwargs)
        self.model, self.posterior = model, posterior
        self.key, self.points = key, points
        self._args, self._kwargs = args, kwargs
        self._arrays, self._combine, static = partition(args, kwargs)
        # What travels through programs: a guide is code.
        self._leaves: Any = posterior
        guide = None
        if isinstance(posterior, Guide):
            guide, self._leaves = posterior.guide, posterior.params
            set_up(guide, random.key(0), *as_jax_arrays(args, kwargs))
        self._made_of = (model, guide, points, static)

    def _trace(self, posterior, key, args, kwargs, outer=None) -> dict[str, dict]:
        key_guide, key_model = random.split(key)
        run: dict[str, Any] = {"key": key_model, "outer": outer}
        if isinstance(posterior, Samples):
            values = {**posterior.params, **posterior.values}
            return trace_of(self.model, args, kwargs, values=values, **run)
        params = posterior.params
        guide_trace = trace_of(
            posterior.guide, args, kwargs, key=key_guide, values=params
        )
        if self.points:
            guide_trace = _as_points(guide_trace)
        run |= {"values": params, "guide_trace": guide_trace}
        return trace_of(self.model, args, kwargs, **run)

    def _one(self, leaves, index) -> Samples | Guide:
        """The posterior at one draw."""
        if isinstance(leaves, Samples):
            values = {n: v[index] for n, v in leaves.values.items()}
            return Samples(values, leaves.params)
        assert isinstance(self.posterior, Guide)
        return Guide(self.posterior.guide, leaves)

    def look(self, function: Callable[[dict[str, dict]], Any]) -> Any:
        """Facts of the trace at the first draw; the arguments are checked on the way.

        Args:
            function: Of the trace, whose values are not computed, to plain facts.
        """

        def facts(args, kwargs, leaves, key):
            return function(self._trace(self._one(leaves, 0), key, args, kwargs))

        key = random.key(0) if self.key is None else self.key
        return look(facts, self._args, self._kwargs, self._leaves, key)

    @cached_property
    def num_data(self) -> dict[str, int]:
        """Rows of the latent of every observe site.

        Raises:
            ValueError: There is none, or the posterior misses a site.
        """

        def facts(sites):
            if isinstance(self.posterior, Samples):
                _require_draws(sites, self.posterior, self.key)
            return {n: e.latent.num_data for n, e in observed(sites).items()}

        found = self.look(facts)
        if not found:
            raise ValueError(
                "the model has no observe site to predict; for other sites use "
                "numpyro.infer.Predictive."
            )
        return found

    @cached_property
    def has_layers(self) -> bool:
        """Whether the model draws layers."""
        return self.look(lambda sites: any(map(is_layer, sites.values())))

    @cached_property
    def is_random(self) -> bool:
        """Whether guide or model draw anything besides the whitened values."""
        assert isinstance(self.posterior, Guide)
        guide, params = self.posterior

        def draws(args, kwargs, key, params) -> bool:
            run = {"key": key, "values": params}
            guide_trace = trace_of(guide, args, kwargs, **run)
            sites = trace_of(self.model, args, kwargs, guide_trace=guide_trace, **run)
            exact = marginalised(sites)
            of_guide = (
                site["type"] == "sample" and n not in exact and not is_point(site["fn"])
                for n, site in guide_trace.items()
            )
            of_model = (
                is_layer(site) or (_is_latent(site) and name not in guide_trace)
                for name, site in sites.items()
            )
            return any(of_guide) or any(of_model)

        return look(draws, self._args, self._kwargs, random.key(0), params)

    @cached_property
    def most_inducing(self) -> int:
        """The largest number of inducing inputs of a process.

        Raises:
            ValueError: A plate takes other rows in every run.
        """

        def facts(sites):
            require_all_rows(sites)
            inducing = filter(is_inducing, sites.values())
            return max((site["fn"].event_shape[-1] for site in inducing), default=0)

        return self.look(facts)

    def over_draws(
        self,
        choose: Callable[..., Draws],
        function: Callable,
        reduce: Callable,
        made_of: tuple,
        *data,
        batch_size: int,
        outer: Callable | None = None,
    ) -> Any:
        """``reduce`` of ``function(sites, key, *data)`` at every draw.

        Args:
            choose: Keys to the draws the model is run for: those of ``self.key`` and
                ``data``.
            function: Of the trace of the model, a key, and ``data``.
            reduce: Of its values on a new first axis.
            made_of: What determines these functions.
            *data: Further arrays.
            batch_size: Draws evaluated at a time.
            outer: ``(model, key) -> model``, a handler to run the model under.
        """

        def run(leaves, arrays, key, data):
            args, kwargs = self._combine(arrays)

            def one(draw):
                index, run_key, key = draw
                posterior = self._one(leaves, index)
                under = None if outer is None else partial(outer, key=key)
                sites = self._trace(posterior, run_key, args, kwargs, under)
                return function(sites, key, *data)

            draws = tuple(choose(key, *data))
            return reduce(jax.lax.map(one, draws, batch_size=batch_size))

        key = random.key(0) if self.key is None else self.key
        made_of = (*made_of, batch_size, *self._made_of)
        return call(run, made_of, self._leaves, self._arrays, key, data)


def observed(sites: dict[str, dict]) -> dict[str, Expected]:
    """The ``observe`` sites of a trace, by name."""
    found = {name: expected_of(site) for name, site in sites.items()}
    return {name: expected for name, expected in found.items() if expected is not None}


def _is_latent(site: dict) -> bool:
    """Whether a site of a model is neither data nor the values of a process."""
    is_drawn = site["type"] == "sample" and not site["is_observed"]
    return is_drawn and expected_of(site) is None and not is_inducing(site)


def _as_points(guide_trace: dict[str, dict]) -> dict[str, dict]:
    """The trace with a point in place of every q(v): what it drew is its value."""
    return {
        name: {**site, "fn": dist.Delta(site["value"])}
        if site["type"] == "sample"
        else site
        for name, site in guide_trace.items()
    }


def _require_draws(sites: dict[str, dict], posterior: Samples, key) -> None:
    missing = {
        name: site
        for name, site in sites.items()
        if (_is_latent(site) or (is_inducing(site) and not site["is_observed"]))
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
