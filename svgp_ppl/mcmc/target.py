"""A model as the log density of its unconstrained latent values.

Σ_n E_{p(f_n|v)} log p(y_n|f_n) + log N(v; 0, I) + log p(θ) + log |Jacobian|: the second
reading of the bound (Hensman, Matthews, Filippone & Ghahramani 2015, eq. 6).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.handlers import block, seed, substitute, trace
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import (
    constrain_fn,
    find_valid_initial_params,
    potential_energy,
    unconstrain_fn,
)

from svgp_ppl.arguments import take_apart
from svgp_ppl.plates import all_rows, drawn_rows, subsampled
from svgp_ppl.primitives import is_inducing, is_layer

__all__ = ["Target", "make_target"]


class Target(NamedTuple):
    """What a sampler needs of a model, and how to read its draws.

    Attributes:
        logdensity_fn: (position, data) -> log density; a position is a dict of
            unconstrained values by site name. With a key as third argument, an unbiased
            estimate from the rows (and the random nodes) that the key draws.
        constrain: (position, data) -> dict of values at latent and deterministic sites.
        data: Array arguments of the model, passed through ``jit``.
        model: The model with its parameters frozen and its first random nodes fixed.
        with_nodes: Key of random nodes -> the model with these.
        node_keys: Keys of the nodes over which the log density is averaged.
        args: Arguments of the model.
        kwargs: Keyword arguments of the model.
        model_trace: A trace of the model.
        params: Values of the ``param`` sites, frozen.
    """

    logdensity_fn: Callable[..., jax.Array]
    constrain: Callable[[dict, list], dict]
    data: list
    model: Callable
    with_nodes: Callable[[Any], Callable]
    node_keys: Any
    args: tuple
    kwargs: dict
    model_trace: dict[str, dict]
    params: dict[str, jax.Array]

    def latent_names(self) -> list[str]:
        """Names of the latent sites."""
        return [
            name
            for name, site in self.model_trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        ]

    def whitened_names(self) -> list[str]:
        """Names of the sites that hold whitened values, whose prior is N(0, I)."""
        sites = self.model_trace
        return [name for name in self.latent_names() if is_inducing(sites[name])]

    def observed(self) -> dict[str, np.ndarray]:
        """Data by site name."""
        return {
            name: np.asarray(site["value"])
            for name, site in self.model_trace.items()
            if site["type"] == "sample" and site["is_observed"]
        }

    def unconstrain(self, values: Mapping[str, jax.Array], data: list) -> dict:
        """A position from values at the latent sites."""
        missing = [name for name in self.latent_names() if name not in values]
        if missing:
            raise ValueError(
                f"init has no value of the latent site(s) {missing}, only of "
                f"{sorted(values)}. Was it fitted with this model?"
            )
        args, kwargs = self.put_back(data)
        latent = {name: values[name] for name in self.latent_names()}
        return unconstrain_fn(self.model, args, kwargs, latent)

    def put_back(self, data: list) -> tuple[tuple, dict]:
        """The arguments of the model with these arrays in their places."""
        return take_apart(self.args, self.kwargs)[1](data)

    def initial_positions(self, key, num_chains: int) -> dict:
        """Uniform on (−2, 2) in every unconstrained value, redrawn until finite."""

        @jax.jit
        def draw(keys, data):
            args, kwargs = self.put_back(data)
            example = self.unconstrain(
                {n: self.model_trace[n]["value"] for n in self.latent_names()}, data
            )
            (positions, _, _), _ = find_valid_initial_params(
                keys,
                self.model,
                init_strategy=init_to_uniform,
                model_args=args,
                model_kwargs=kwargs,
                prototype_params=example,
            )
            return positions

        return draw(random.split(key, num_chains), self.data)

    def positions_from(self, key, guide: Callable, params: dict, num_chains: int):
        """Positions drawn from a guide: v from its belief, the rest as it has them."""
        if getattr(guide, "prototype_trace", guide) is None:
            # An automatic guide looks at the model once, and not inside of jit.
            with block():
                seed(guide, key)(*self.args, **self.kwargs)

        @jax.jit
        def draw(keys, data):
            args, kwargs = self.put_back(data)

            def one(key):
                run = substitute(seed(guide, key), data=params)
                sites = trace(run).get_trace(*args, **kwargs)
                values = {
                    name: site["value"]
                    for name, site in sites.items()
                    if site["type"] == "sample"
                }
                return self.unconstrain(values, data)

            return jax.vmap(one)(keys)

        return draw(random.split(key, num_chains), self.data)


def make_target(
    key,
    model: Callable,
    args: tuple,
    kwargs: dict,
    params: Mapping[str, Any],
    num_nodes: int = 1,
    *,
    minibatches: bool = False,
) -> Target:
    """The target of a model, with ``param`` sites frozen at ``params``.

    Sites missing in ``params`` are frozen at their initial values. Everything that the
    model draws besides its sample sites (nodes of a Monte Carlo expectation, inner
    layers) uses fixed keys, so that the density is a function: with S nodes ε_s

        log p̃(v, θ) = log p(v, θ) + (1/S) Σ_s Σ_n E_{p(f_n | v, ε_s)} log p(y_n | f_n).

    With ``minibatches`` a plate is subsampled, B of N rows. It sees all of them in this
    density, and in the estimate that has a key it scales those that the key draws,

        log p(v, θ) + (N/B) Σ_{n drawn} E_{p(f_n | v, ε)} log p(y_n | f_n).

    Raises:
        ValueError: A plate is subsampled, or none is where one has to be; a latent site
            is discrete; there is no latent or no observed site.
    """
    key_nodes, key_look = random.split(key)
    # Inside of all other handlers: the keys that they give do not depend on the rows.
    of_rows = drawn_rows(model)
    if minibatches:
        look = seed(substitute(of_rows, data=dict(params)), key_look)
        _require_minibatches(trace(look).get_trace(*args, **kwargs))
        model = all_rows(model)
    fixed = seed(substitute(model, data=dict(params)), key_nodes)
    model_trace = trace(seed(fixed, key_look)).get_trace(*args, **kwargs)
    _require_sampleable(model_trace)
    frozen = {
        name: jnp.asarray(site["value"])
        for name, site in model_trace.items()
        if site["type"] == "param"
    }
    frozen_model = substitute(model, data=frozen)
    node_keys = random.split(key_nodes, num_nodes)

    def with_nodes(key):
        return seed(frozen_model, key)

    fixed = with_nodes(node_keys[0])
    arrays, put_back = take_apart(args, kwargs)
    layers = {name for name, site in model_trace.items() if is_layer(site)}

    def logdensity_fn(position, data, key=None):
        args, kwargs = put_back(data)
        if key is not None:
            estimate = seed(substitute(of_rows, data=frozen), key)
            return -jnp.asarray(potential_energy(estimate, args, kwargs, position))

        def at_nodes(key):
            potential = potential_energy(with_nodes(key), args, kwargs, position)
            return -jnp.asarray(potential)

        # What does not depend on the nodes is computed once.
        return jnp.mean(jax.vmap(at_nodes)(node_keys))

    def constrain(position, data):
        args, kwargs = put_back(data)
        values = constrain_fn(fixed, args, kwargs, position, return_deterministic=True)
        return {name: v for name, v in values.items() if name not in layers}

    return Target(
        logdensity_fn,
        constrain,
        arrays,
        fixed,
        with_nodes,
        node_keys,
        args,
        kwargs,
        model_trace,
        frozen,
    )


def _require_sampleable(model_trace: dict[str, dict]) -> None:
    # First, because a count that nobody passed is a discrete latent site.
    kinds = [s["is_observed"] for s in model_trace.values() if s["type"] == "sample"]
    if not any(kinds):
        raise ValueError(
            "the model has no observed site: was y passed? Its draws from the prior "
            "are numpyro.infer.Predictive(model, num_samples=...)."
        )
    if all(kinds):
        raise ValueError("the model has no latent site to sample.")
    for name, (size, rows) in subsampled(model_trace).items():
        raise ValueError(
            f"plate '{name}' sees {rows} of {size} data. "
            "MCMC needs a fixed log density, and a new subsample each time would "
            "change the posterior: drop subsample_size, and bound the memory with "
            "observe(chunk_size=). Where a pass over all data is too dear, "
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


def _require_minibatches(model_trace: dict[str, dict]) -> None:
    plates = subsampled(model_trace)
    if not plates:
        raise ValueError(
            "this sampler takes its gradients from minibatches, and no plate of the "
            "model is subsampled: write\n"
            '    with numpyro.plate("data", len(x), subsample_size=1000) as rows:\n'
            "        observe(..., f(x[rows]), obs=y[rows])\n"
            "or take NUTS(), which looks at all data at every step."
        )
    for name, site in model_trace.items():
        if site["type"] == "sample" and not site["is_observed"]:
            local = [f.name for f in site["cond_indep_stack"] if f.name in plates]
            if local:
                raise ValueError(
                    f"latent site '{name}' stands in the subsampled plate "
                    f"'{local[0]}': it has a value for each of all data, and a "
                    "minibatch does not say which are its own. Take NUTS(), without "
                    "subsample_size."
                )
