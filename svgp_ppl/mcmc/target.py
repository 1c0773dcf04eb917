"""A model as the log density of its unconstrained latent values.

Σ_n E_{p(f_n|v)} log p(y_n|f_n) + log N(v; 0, I) + log p(θ) + log |Jacobian|: the second
reading of the bound (Hensman, Matthews, Filippone & Ghahramani 2015, eq. 6).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array
from numpyro.handlers import seed, substitute
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import (
    constrain_fn,
    find_valid_initial_params,
    log_density,
    unconstrain_fn,
)

from svgp_ppl.diagnostics import Axes, axes_of
from svgp_ppl.guides.fitted import require_same_rest
from svgp_ppl.handlers import (
    at_position,
    is_inducing,
    is_layer,
    require_no_process,
    set_up,
    trace_of,
)
from svgp_ppl.inducing_origin import origin_of_z
from svgp_ppl.layer_noise import evenly_spread
from svgp_ppl.mcmc.collapsed import IsIntegrated, collapsed, is_collapsible, recovered
from svgp_ppl.mcmc.given import noting_given
from svgp_ppl.mcmc.sites import base_of, in_sites
from svgp_ppl.observations import require_observed
from svgp_ppl.observations.apart import require_rows_apart
from svgp_ppl.observations.observed import (
    data_of,
    known_rows,
    plate_axes,
    warn_if_none_counts,
)
from svgp_ppl.plates import all_rows, drawn_rows, latents_of_rows, subsampled
from svgp_ppl.process_facts import ProcessFacts, process_facts_of
from svgp_ppl.runtime.compilation import call, look, partition
from svgp_ppl.runtime.nested import flattened

__all__ = ["Data", "Target"]

# With more products in a gradient, of whitened values and data, programs of hundreds of
# gradients are compiled in full.
_MOST_PRODUCTS = 200_000


class Data(NamedTuple):
    """The arrays that the log density of a model depends on.

    Attributes:
        arrays: Array arguments of the model.
        params: Values of the ``param`` sites, frozen.
        noise_keys: Keys of the fixed noise over which the log density is averaged.
        layer_key: Key of that of the layers, which is spread evenly over them.
        sites: Sites of the processes that are sampled as ξ (``mcmc.sites``).
    """

    arrays: list
    params: dict[str, Any]
    noise_keys: Any
    layer_key: Any
    sites: dict[str, Any]


class _Facts(NamedTuple):
    latent: list[str]  # in the order of the model
    whitened: list[str]
    layers: frozenset[str]
    is_collapsible: bool
    shapes: dict[str, tuple[int, ...]]
    plates: dict[str, tuple[str, ...]]
    processes: ProcessFacts


class Target:
    """The log density of a model with frozen ``param`` sites; how to read its draws.

    Everything that the model draws besides its sample sites (nodes of a Monte Carlo
    expectation, inner layers) uses fixed keys, so that the density is a function: with
    S draws ε_s of that noise

        log p̃(v, θ) = log p(v, θ) + (1/S) Σ_s Σ_n E_{p(f_n | v, ε_s)} log p(y_n | f_n).

    With ``minibatches`` a plate is subsampled, B of N rows. It sees all of them in this
    density; the estimate with a key scales the rows that the key draws,

        log p(v, θ) + (N/B) Σ_{n drawn} E_{p(f_n | v, ε)} log p(y_n | f_n).

    Args:
        key: Random key of the noise.
        model: The model.
        args: Its arguments.
        kwargs: Its keyword arguments.
        params: Values of ``param`` sites; the others are frozen at their initial ones.
        num_noise_draws: S.
        minibatches: Whether a sampler uses part of the data at each step.
        collapse: Whether v is integrated out if possible (``mcmc.collapsed``).

    Attributes:
        minibatches: Whether a sampler uses part of the data at each step.
        is_collapsed: Whether v is integrated out.
        inducing_origin: Digests of the arguments that the model computes z from.
        data: Second argument of the log density.
        combine: Its arrays to the arguments of the model.
        frozen: Values of the ``param`` sites, arrays by name; of trees their leaves.
        layouts: The trees, by name.
        observed: Data by site name, and which of them are known.
        made_of: What determines the log density besides ``data``.

    Raises:
        ValueError: A plate is subsampled, or none is where one must be; a latent site
            is discrete; there is no latent or no observed site.
    """

    def __init__(
        self,
        key,
        model: Callable,
        args: tuple,
        kwargs: dict,
        params: Mapping[str, Any],
        num_noise_draws: int = 1,
        *,
        minibatches: bool = False,
        collapse: bool = False,
    ):
        self._args, self._kwargs, self.minibatches = args, kwargs, minibatches
        arrays, self.combine, static = partition(args, kwargs)
        # Inside all other handlers: the keys that they give do not depend on rows.
        self._of_rows = drawn_rows(model)
        self._model = all_rows(model) if minibatches else model
        self.made_of = (model, static, num_noise_draws, minibatches, collapse)
        key_noise, key_layers, key_look = random.split(key, 3)
        given = jax.tree.map(jnp.asarray, dict(params))

        if minibatches:
            self._look(_require_minibatches, self._of_rows, key_look, given)
        noted = noting_given(self._model)
        self._facts = self._look(_facts_of, noted, key_look, given)
        noted.warn()
        self.is_collapsed = collapse and self._can_collapse(key_look, given)
        self._of_latent = collapsed(self._model) if self.is_collapsed else self._model

        def start(key, given, arrays):
            args, kwargs = self.combine(arrays)
            run = {"key": key, "values": given}
            sites = trace_of(self._model, args, kwargs, **run)
            frozen = {
                name: jax.tree.map(jnp.asarray, site["value"])
                for name, site in sites.items()
                if site["type"] == "param"
            }
            return frozen, data_of(sites), random.split(key, num_noise_draws)

        made_of = ("start of a target", *self.made_of)
        run = (key_noise, given, arrays)
        frozen, self.observed, noise_keys = call(start, made_of, *run, runs_once=True)
        for name, data in self.observed.items():
            warn_if_none_counts(name, data.known)
        self.data = Data(arrays, frozen, noise_keys, key_layers, {})
        self.frozen, self.layouts = flattened(frozen)
        args, kwargs = self.combine(arrays)  # those that are on the device already
        self.inducing_origin = origin_of_z(self._model, args, kwargs, frozen)

    @property
    def arguments(self) -> tuple[Callable, tuple, dict]:
        """The model, its arguments and its keyword arguments."""
        return self._model, self._args, self._kwargs

    def _look(self, function: Callable, model: Callable, key, params: dict) -> Any:
        """``function`` of a trace of the model, whose values are not computed."""

        def facts(args, kwargs, key, params):
            return function(trace_of(model, args, kwargs, key=key, values=params))

        return look(facts, self._args, self._kwargs, key, params)

    def _can_collapse(self, key, params: dict) -> bool:
        """Whether v can be integrated out of the model."""
        if not self._facts.is_collapsible:
            return False
        try:
            self._look(lambda _: None, collapsed(self._model), key, params)
        except IsIntegrated:
            return False
        return True

    @property
    def process_names(self) -> list[str]:
        """Names of the sites that hold whitened values, integrated out or not."""
        return self._facts.whitened

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the values that are kept, by site."""
        return self._facts.shapes

    @property
    def processes(self) -> ProcessFacts:
        """What the draws remember of the processes."""
        return self._facts.processes

    def axes(self, coords: Any, dims: Any) -> Axes:
        """Names and labels of the axes of the values that are kept."""
        rows = {name: known_rows(data) for name, data in self.observed.items()}
        return axes_of(self.shapes, self._facts.plates, rows, coords, dims)

    @property
    def is_expensive(self) -> bool:
        """Whether hundreds of gradients take longer than to compile them in full."""
        whitened = sum(math.prod(self.shapes[name]) for name in self.process_names)
        num_data = sum(np.size(data.values) for data in self.observed.values())
        return whitened * num_data > _MOST_PRODUCTS

    @property
    def is_deep(self) -> bool:
        """Whether a process is evaluated at draws of another."""
        return bool(self._facts.layers)

    @property
    def latent_names(self) -> list[str]:
        """Names of the latent sites that are sampled."""
        gone = self._facts.whitened if self.is_collapsed else []
        return [name for name in self._facts.latent if name not in gone]

    @property
    def whitened_names(self) -> list[str]:
        """Names of those that hold whitened values, whose prior is N(0, I)."""
        return [] if self.is_collapsed else self._facts.whitened

    def _frozen(self, model: Callable, data: Data, number: Any = 0) -> Callable:
        """A model with its parameters, and its noise of one of S numbers, frozen."""
        fixed = substitute(model, data=data.params)
        layers = data.layer_key, number, len(data.noise_keys)
        return evenly_spread(seed(fixed, data.noise_keys[number]), *layers)

    def _to_sample(self, model: Callable, data: Data, number: Any = 0) -> Callable:
        """The same in the sites that are sampled: with ξ in place of v."""
        # Inside seed, so that the noise has the same keys as in the model.
        return self._frozen(in_sites(model, data.sites), data, number)

    def logdensity_fn(self, position: dict, data: Data, key=None) -> jax.Array:
        """Log density of a position: a dict of unconstrained values by site name.

        A process with sites in ``data`` is given by its ξ, as ``f_base``.
        With a key, an unbiased estimate from the rows (and the noise) that it draws.
        """
        args, kwargs = self.combine(data.arrays)
        if key is not None:
            of_rows = in_sites(self._of_rows, data.sites)
            estimate = seed(substitute(of_rows, data=data.params), key)
            return _log_density(estimate, args, kwargs, position)

        def at_noise(number):
            model = self._to_sample(self._of_latent, data, number)
            return _log_density(model, args, kwargs, position)

        if len(data.noise_keys) == 1:  # faster to trace
            return at_noise(0)
        # What does not depend on the noise is computed once.
        return jnp.mean(jax.vmap(at_noise)(jnp.arange(len(data.noise_keys))))

    def constrain(self, position: dict, data: Data, key=None) -> dict[str, Any]:
        """Values at latent and deterministic sites, from a position.

        A v that is integrated out is drawn from the key.
        """
        args, kwargs = self.combine(data.arrays)
        model = recovered(self._model, key) if self.is_collapsed else self._model
        model = self._to_sample(model, data)
        values = constrain_fn(model, args, kwargs, position, return_deterministic=True)
        left_out = self._facts.layers | set(map(base_of, data.sites))
        return {n: v for n, v in values.items() if n not in left_out}

    def unconstrain(self, values: Mapping[str, jax.Array], data: Data) -> dict:
        """A position from values at the latent sites."""
        missing = [name for name in self.latent_names if name not in values]
        if missing:
            raise ValueError(
                f"init has no value of the latent site(s) {missing}, only of "
                f"{sorted(values)}. Was it fitted with this model?"
            )
        args, kwargs = self.combine(data.arrays)
        latent = {name: values[name] for name in self.latent_names}
        model = self._to_sample(self._of_latent, data)
        return unconstrain_fn(model, args, kwargs, latent)

    def initial_positions(self, key, num_chains: int) -> dict:
        """Uniform on (−2, 2) in every unconstrained value, redrawn until finite."""

        def draw(key, data):
            args, kwargs = self.combine(data.arrays)
            model = self._to_sample(self._of_latent, data)
            sites = trace_of(model, args, kwargs, key=key)
            example = self.unconstrain(
                {name: sites[name]["value"] for name in self.latent_names}, data
            )
            (positions, _, _), _ = find_valid_initial_params(
                random.split(key, num_chains),
                model,
                init_strategy=init_to_uniform,
                model_args=args,
                model_kwargs=kwargs,
                prototype_params=example,
            )
            return positions

        made_of = ("initial positions", num_chains, *self.made_of)
        return call(draw, made_of, key, self.data, runs_once=True)

    def positions_from(self, key, guide: Callable, params: dict, num_chains: int):
        """Positions drawn from a guide: v from its q(v), and the other sites."""
        set_up(guide, key, self._args, self._kwargs)

        def draw(key, params, data):
            args, kwargs = self.combine(data.arrays)

            def one(key):
                sites = trace_of(guide, args, kwargs, key=key, values=params)
                require_no_process(sites)
                _require_params(sites, params)
                require_same_rest(sites, params)
                values = {
                    name: site["value"]
                    for name, site in sites.items()
                    if site["type"] == "sample"
                }
                return self.unconstrain(values, data)

            return jax.vmap(one)(random.split(key, num_chains))

        made_of = ("positions from a guide", num_chains, guide, *self.made_of)
        return call(draw, made_of, key, params, self.data, runs_once=True)

    def trace_at(
        self, values: Mapping[str, Any], data: Data, number: Any = 0, outer: Any = None
    ) -> dict[str, dict]:
        """A trace of the model at values of the latent sites, v and not ξ.

        Its noise is that of one of S numbers; ``outer`` is a handler that sees the
        values.
        """
        args, kwargs = self.combine(data.arrays)
        model = self._frozen(self._model, data, number)
        return trace_of(model, args, kwargs, values=values, outer=outer)


def _log_density(model: Callable, args: tuple, kwargs: dict, position: dict) -> Array:
    """Log density of the unconstrained values of the latent sites."""
    value, _ = log_density(at_position(model, position), args, kwargs, {})
    return jnp.asarray(value)


def _facts_of(model_trace: dict[str, dict]) -> _Facts:
    _require_sampleable(model_trace)
    require_rows_apart(model_trace)
    latent = [
        name
        for name, site in model_trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    ]
    layers = frozenset(n for n, site in model_trace.items() if is_layer(site))
    whitened = [name for name in latent if is_inducing(model_trace[name])]
    shapes = {
        name: jnp.shape(site["value"])
        for name, site in model_trace.items()
        if site["type"] in ("sample", "deterministic") and name not in layers
    }
    return _Facts(
        latent,
        whitened,
        layers,
        is_collapsible(model_trace),
        shapes,
        plate_axes(model_trace),
        process_facts_of(model_trace),
    )


def _require_sampleable(model_trace: dict[str, dict]) -> None:
    # Checked first, because a count that was not passed is a discrete latent site.
    kinds = [s["is_observed"] for s in model_trace.values() if s["type"] == "sample"]
    if not any(kinds):
        raise ValueError(
            "the model has no observed site: was y passed? Its draws from the prior "
            "are numpyro.infer.Predictive(model, num_samples=...)."
        )
    require_observed(model_trace)
    if all(kinds):
        raise ValueError("the model has no latent site to sample.")
    for name, (size, rows) in subsampled(model_trace).items():
        raise ValueError(
            f"plate '{name}' sees {rows} of {size} data. "
            "MCMC needs a fixed log density, and a new subsample each time would "
            "change the posterior: drop subsample_size, and bound the memory with "
            "observe(chunk_size=). Where a pass over all data costs too much, "
            "sampler=svgp_ppl.mcmc.SGHMC() takes the model as it is; its draws are "
            "biased."
        )
    for name, site in model_trace.items():
        is_latent = site["type"] == "sample" and not site["is_observed"]
        if is_latent and site["fn"].support.is_discrete:
            raise ValueError(
                f"latent site '{name}' is discrete; sum it out of the likelihood (for "
                "example with numpyro.distributions.MixtureSameFamily)."
            )


def _require_params(guide_trace: dict[str, dict], params: Mapping[str, Any]) -> None:
    """Refuse parameters that leave all or part of a guide at its start."""
    kinds = {name: site["type"] for name, site in guide_trace.items()}
    missing = [n for n, kind in kinds.items() if kind == "param" and n not in params]
    if missing:
        raise ValueError(
            f"init has no value of the guide's parameter(s) {missing}, only of "
            f"{sorted(params)}. Are these the params of a fit of this guide?"
        )


def _require_minibatches(model_trace: dict[str, dict]) -> None:
    if not subsampled(model_trace):
        raise ValueError(
            "this sampler takes its gradients from minibatches, and no plate of the "
            "model is subsampled: write\n"
            '    with numpyro.plate("data", len(x), subsample_size=1000) as rows:\n'
            "        observe(..., f(x[rows]), obs=y[rows])\n"
            "or take NUTS(), which looks at all data at every step."
        )
    for name, plate in latents_of_rows(model_trace):
        raise ValueError(
            f"latent site '{name}' is in the subsampled plate '{plate}': it has a "
            "value for each of all data, and a minibatch does not say which are its "
            "own. Take NUTS(), without subsample_size."
        )
