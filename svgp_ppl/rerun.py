"""The model, run again at new inputs under what was learnt.

What ``predict`` and ``draw_functions`` share: a fit, a guide or draws become one
posterior, and the model is traced once for every draw of it, compiled.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array
from numpyro.handlers import seed, substitute, trace

from svgp_ppl.diagnostics import group
from svgp_ppl.elbo import hold_beliefs, marginalised
from svgp_ppl.fit import Fit
from svgp_ppl.primitives import Expected, is_expected, is_inducing, is_layer
from svgp_ppl.randomness import is_point

__all__ = [
    "Guide",
    "Rerun",
    "Samples",
    "choose_draws",
    "is_random",
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


def take_posterior(posterior, params: Mapping[str, Any] | None) -> Samples | Guide:
    """What ``fit`` or ``sample`` returns, (guide, params) or a dict of samples.

    Raises:
        ValueError: It is none of these.
    """
    match posterior:
        case Fit():
            return Guide(posterior.guide, dict(posterior.params))
        case (guide, fitted) if callable(guide) and isinstance(fitted, Mapping):
            return Guide(guide, dict(fitted))
        case dict() if posterior:
            values = {n: jnp.asarray(v) for n, v in posterior.items()}
            return Samples(values, dict(params or {}))
    draws = group(posterior, "posterior") if isinstance(posterior, Mapping) else {}
    if not draws:
        raise ValueError(
            "posterior must be what gp.fit or gp.sample returns, (guide, params), or a "
            f"dict of samples, and is a {type(posterior).__name__}."
        )
    flat = {n: jnp.asarray(v).reshape(-1, *v.shape[2:]) for n, v in draws.items()}
    frozen = params if params is not None else group(posterior, "constant_data")
    return Samples(flat, {n: jnp.asarray(v) for n, v in frozen.items()})


def choose_draws(key, num_draws: int, n: int) -> Array:
    """Indices of n draws of the posterior, [n].

    Without replacement, as often around as needed: no draw is favoured.
    """
    return random.permutation(key, num_draws)[jnp.arange(n) % num_draws]


def is_random(model: Callable, held: Guide, args: tuple, kwargs: dict) -> bool:
    """Whether guide or model draw anything besides the whitened values."""
    run = seed(substitute(held.guide, data=held.params), random.key(0))
    guide_trace = trace(run).get_trace(*args, **kwargs)
    held_model = hold_beliefs(seed(model, random.key(0)), guide_trace)
    sites = trace(substitute(held_model, data=held.params)).get_trace(*args, **kwargs)
    held_as_beliefs = marginalised(sites)
    random_guide = any(
        s["type"] == "sample" and n not in held_as_beliefs and not is_point(s["fn"])
        for n, s in guide_trace.items()
    )
    return random_guide or any(map(is_layer, sites.values()))


class Rerun:
    """The model at the new inputs, ready to be run for every draw.

    Args:
        model: The model.
        held: The posterior.
        arrays: Array arguments of the model, and how to put them back in place: see
            ``arguments.take_apart``.
        put_back: The same.
        key: Random key; None when nothing is drawn.
        points: Whether v is drawn from the guide, in place of holding its beliefs.
    """

    def __init__(
        self,
        model: Callable,
        held: Samples | Guide,
        arrays: list,
        put_back: Callable,
        key=None,
        *,
        points: bool = False,
    ):
        self.model, self.held = model, held
        self.arrays, self.put_back = arrays, put_back
        self.key, self.points = key, points
        # What travels through jit: a guide is code.
        self.leaves = held if isinstance(held, Samples) else held.params

    def _trace(self, held, key, arrays, handler=None) -> dict[str, dict]:
        args, kwargs = self.put_back(arrays)
        key_guide, key_model = random.split(key)
        model = substitute(seed(self.model, key_model), data=held.params)
        if isinstance(held, Samples):
            run = substitute(model, data=held.values)
        else:
            guide = substitute(seed(held.guide, key_guide), data=held.params)
            guide_trace: Any = trace(guide).get_trace(*args, **kwargs)
            if self.points:
                guide_trace = _as_points(guide_trace)
            run = hold_beliefs(model, guide_trace)
        run = run if handler is None else handler(run)
        return trace(run).get_trace(*args, **kwargs)

    def _one(self, leaves, index):
        """The posterior at one draw."""
        if isinstance(leaves, Samples):
            values = {n: v[index] for n, v in leaves.values.items()}
            return Samples(values, leaves.params)
        assert isinstance(self.held, Guide)
        return Guide(self.held.guide, leaves)

    def key_of(self, index) -> Array:
        """The key with which draw ``index`` is run."""
        return random.fold_in(random.key(0) if self.key is None else self.key, index)

    @cached_property
    def sites(self) -> dict[str, dict]:
        """The trace at the first draw; the arguments are checked on the way."""
        sites = self._trace(self._one(self.leaves, 0), self.key_of(0), self.arrays)
        if isinstance(self.held, Samples):
            _require_draws(sites, self.held, self.key)
        return sites

    @cached_property
    def examples(self) -> dict[str, Expected]:
        """The observe sites at the first draw.

        Raises:
            ValueError: There are none.
        """
        found = observed(self.sites)
        if not found:
            raise ValueError(
                "the model has no observe site to predict; for other sites use "
                "numpyro.infer.Predictive."
            )
        return found

    def over_draws(
        self,
        function: Callable,
        indices,
        run_keys,
        keys,
        *data,
        batch_size: int,
        handler: Callable | None = None,
    ):
        """``function(sites, key, *data)`` for every draw, on a new first axis.

        Args:
            function: Of the trace of the model, and a key.
            indices: Which draws of the posterior, [n].
            run_keys: Keys with which guide and model are run, [n].
            keys: Keys for ``function`` and for ``handler``, [n].
            *data: Further arrays for ``function``.
            batch_size: Draws evaluated at a time.
            handler: ``(model, key) -> model``, a handler to run the model under.
        """

        @jax.jit
        def run(leaves, arrays, packed, data):
            def one(packed):
                index, run_key, key = packed
                under = None if handler is None else partial(handler, key=key)
                held = self._one(leaves, index)
                sites = self._trace(held, run_key, arrays, under)
                return function(sites, key, *data)

            return jax.lax.map(one, packed, batch_size=batch_size)

        return run(self.leaves, self.arrays, (indices, run_keys, keys), data)


def observed(sites: dict[str, dict]) -> dict[str, Expected]:
    """The ``observe`` sites of a trace, by name."""
    return {name: site["fn"] for name, site in sites.items() if is_expected(site)}


def _as_points(guide_trace: dict[str, dict]) -> dict[str, dict]:
    """The trace with a point in place of every belief: what it drew is what is held."""
    return {
        name: {**site, "fn": dist.Delta(site["value"])}
        if site["type"] == "sample"
        else site
        for name, site in guide_trace.items()
    }


def _require_draws(sites: dict[str, dict], held: Samples, key) -> None:
    missing = {
        name: site
        for name, site in sites.items()
        if site["type"] == "sample"
        and not (site["is_observed"] or is_expected(site))
        and name not in held.values
    }
    if any(map(is_inducing, missing.values())) or (missing and key is None):
        raise ValueError(
            f"the posterior has no draws of {sorted(missing)}, only of "
            f"{sorted(held.values)}. Was it made with this model? (A site that was "
            "observed then and is to be drawn now needs key=jax.random.key(...).)"
        )
