"""The model, run again at new inputs under the posterior.

Shared by predictions, sample paths and checks: the model is run once for every draw of
the posterior, in one compiled program.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array
from numpyro.handlers import substitute

from svgp_ppl.checks import require_arguments
from svgp_ppl.guides.fitted import (
    Guide,
    drawn_sites,
    require_apart,
    require_same_rest,
    warn_of_mode,
)
from svgp_ppl.handlers import (
    is_inducing,
    is_layer,
    marginalised,
    set_up,
    trace_of,
)
from svgp_ppl.keys import asks_for_keys
from svgp_ppl.layer_noise import evenly_spread
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.observations import expected_of, is_latent, observe_sites
from svgp_ppl.plates import require_all_rows
from svgp_ppl.prediction.averages import Average
from svgp_ppl.prediction.inputs import may_be_inputs, read_by_predictions
from svgp_ppl.prediction.posterior import Prior, Samples
from svgp_ppl.prediction.requirements import (
    require_params,
    require_same_latents,
    require_sizes,
    require_values,
)
from svgp_ppl.process_facts import ProcessFacts, process_facts_of
from svgp_ppl.rows import filled_batches, in_batches
from svgp_ppl.runtime.compilation import (
    as_jax_arrays,
    call,
    look,
    partition,
    traced_once,
)
from svgp_ppl.runtime.dependence import inputs_read

__all__ = [
    "ROWS_AT_A_TIME",
    "Draws",
    "PosteriorModel",
    "averaged",
    "every_draw",
    "keys_of",
]

# Rows (inputs times draws) projected at a time: saves memory without loss of speed.
ROWS_AT_A_TIME = 2500


class Draws(NamedTuple):
    """Which draws of the posterior the model is run for, and with which keys.

    Attributes:
        indices: Numbers of the draws, [n].
        run_keys: Keys with which guide and model are run, [n].
        keys: Keys for the function of each run, [n].
        noise_numbers: Which of the evenly spread draws of the layers' noise each run
            has, [n]; None for one that is its own.
    """

    indices: Array
    run_keys: Any
    keys: Any
    noise_numbers: Any = None


class _Facts(NamedTuple):
    """Facts from one run of the model.

    Attributes:
        num_data: Rows of the latent of every observe site, by name.
        has_layers: Whether the model draws layers.
        is_random: Whether guide or model draw anything besides the whitened values.
        processes: What is remembered of the processes.
        most_inducing: The largest number of inducing inputs of a process.
        guide_names: Names of the sites of the guide, none without one.
        may_be_inputs: Numbers of the arrays that may be meant as inputs, if none is.
    """

    num_data: dict[str, int]
    has_layers: bool
    is_random: bool
    processes: ProcessFacts
    most_inducing: int
    guide_names: set[str]
    may_be_inputs: list[int]


class PosteriorModel:
    """The model at the new inputs, ready to be run for every draw.

    Args:
        model: The model.
        posterior: The posterior.
        args: Arguments of the model.
        kwargs: Keyword arguments of the model.
        key: Random key; None when nothing is drawn.
        points: Whether v is drawn from the guide, instead of using its whole q(v).
    """

    def __init__(
        self,
        model: Callable,
        posterior: Samples | Guide | Prior,
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
        # What is passed to programs: a guide is code.
        self._leaves: Any = posterior
        guide = None
        if isinstance(posterior, Guide):
            guide, self._leaves = posterior.guide, posterior.params
            set_up(guide, random.key(0), *as_jax_arrays(args, kwargs))
            warn_of_mode(guide)
        self._made_of = (model, guide, points, static)

    def _traces(
        self, posterior, key, args, kwargs, outer=None
    ) -> tuple[dict[str, dict], dict[str, dict]]:
        """The sites of the guide, none without one, and those of the model."""
        key_guide, key_model = random.split(key)
        run: dict[str, Any] = {"key": key_model, "outer": outer}
        if not isinstance(posterior, Guide):
            values = posterior.params
            if isinstance(posterior, Samples):
                values = {**values, **posterior.values}
            return {}, trace_of(self.model, args, kwargs, values=values, **run)
        params = posterior.params
        guide_trace = trace_of(
            posterior.guide, args, kwargs, key=key_guide, values=params
        )
        if self.points:
            guide_trace = _as_points(guide_trace)
        run |= {"values": params, "guide_trace": guide_trace}
        return guide_trace, trace_of(self.model, args, kwargs, **run)

    def _one(self, leaves, index) -> Samples | Guide | Prior:
        """The posterior at one draw."""
        if isinstance(leaves, Samples):
            values = {n: v[index] for n, v in leaves.values.items()}
            return Samples(values, leaves.params)
        if isinstance(self.posterior, Guide):
            return Guide(self.posterior.guide, leaves)
        return leaves

    def look(self, function: Callable[[dict[str, dict]], Any]) -> Any:
        """Facts of the trace at the first draw; the arguments are checked as well.

        Args:
            function: From the trace, whose values are not computed, to plain facts.
        """
        return self._look(lambda _, sites: function(sites))

    def _look(
        self,
        function: Callable[[dict[str, dict], dict[str, dict]], Any],
        outer: Callable[[Callable], Callable] | None = None,
    ) -> Any:
        """The same of the traces of guide and model, a handler around the model."""

        def facts(args, kwargs, leaves, key):
            run = (self._one(leaves, 0), key, args, kwargs, outer or _of_shapes)
            return function(*self._traces(*run))

        key = random.key(0) if self.key is None else self.key
        return look(facts, self._args, self._kwargs, self._leaves, key)

    @property
    def arguments(self) -> tuple[tuple, dict]:
        """Arguments of the model, by position and by name."""
        return self._args, self._kwargs

    @cached_property
    def facts(self) -> _Facts:
        """What one run of the model says, whose arguments are checked."""
        keys = asks_for_keys()

        def outer(model: Callable) -> Callable:
            keys.fn = _of_shapes(model)
            return keys

        def facts(guide_trace, sites) -> _Facts:
            require_all_rows(sites, _lengths((self._args, self._kwargs)))
            require_params({**guide_trace, **sites}, self.posterior)
            if isinstance(self.posterior, Samples):
                require_values(sites, self.posterior, self.key)
            if isinstance(self.posterior, Guide):
                require_same_latents(guide_trace, sites)
                require_same_rest(guide_trace, self.posterior.params)
                given = (self.posterior, *self.arguments, guide_trace)
                require_apart(*given, marginalised(sites))
            num_data = {n: e.latent.num_data for n, e in observe_sites(sites).items()}
            sizes = [s["fn"].event_shape[-1] for s in sites.values() if is_inducing(s)]
            return _Facts(
                num_data=num_data,
                has_layers=any(map(is_layer, sites.values())),
                is_random=keys.found or _any_drawn(guide_trace, sites),
                processes=process_facts_of(sites),
                most_inducing=max(sizes, default=0),
                guide_names=set(guide_trace),
                may_be_inputs=may_be_inputs(sites, self.arguments, self._arrays),
            )

        return self._look(facts, outer)

    def require_fit(self) -> None:
        """Raise unless the posterior fits the model, which has something to predict."""
        _ = self.num_data

    @property
    def num_data(self) -> dict[str, int]:
        """Rows of the latent of every observe site.

        Raises:
            ValueError: There is none, or the posterior misses a site.
        """
        if not self.facts.num_data:
            raise ValueError(
                "the model has no observe site to predict; for other sites use "
                "numpyro.infer.Predictive."
            )
        return self.facts.num_data

    def reads_inputs(self) -> bool:
        """Whether predictions depend on the arrays passed that may be inputs.

        Runs the model again, unless a process is called with an argument as it is.
        """
        meant = self.facts.may_be_inputs
        if not meant:
            return True

        def used(arrays) -> tuple[list, list]:
            args, kwargs = self._combine(arrays)
            run = (self._one(self._leaves, 0), random.key(0), args, kwargs, _of_shapes)
            return read_by_predictions(self._traces(*run)[1])

        made, (inputs, _) = jax.make_jaxpr(used, return_shape=True)(self._arrays)
        are_read = inputs_read(made.jaxpr)
        of_inputs = inputs_read(made.jaxpr, first=len(inputs))
        return any(of_inputs) or all(are_read[i] for i in meant)

    def over_draws(
        self,
        choose: Callable[..., Draws],
        function: Callable,
        made_of: tuple,
        *data,
        batch_size: int,
        average: Average | None = None,
        outer: Callable | None = None,
        num_noise_draws: int | None = None,
        runs_once: bool = False,
    ) -> Any:
        """``function(sites, key, *data)`` at every draw, or an average of it.

        For an average at each row the noise of layers is spread evenly over the draws.

        Args:
            choose: Function from ``self.key`` and ``data`` to the draws for which the
                model is run.
            function: Function of the trace of the model, a key, and ``data``.
            made_of: What determines these functions.
            *data: Further arrays.
            batch_size: Draws evaluated at a time.
            average: The average to return; the values, on a new first axis, if None.
            outer: ``(model, key) -> model``, a handler to run the model under.
            num_noise_draws: Number of draws of the layers' noise, if ``choose`` numbers
                them.
            runs_once: Whether the program is made quickly and runs slowly.
        """

        def run(leaves, arrays, key, data):
            args, kwargs = self._combine(arrays)
            draws = choose(key, *data)
            total = len(draws.indices)
            # Of a number that every_draw has not used.
            key_layers = random.fold_in(random.fold_in(key, total), total)
            if average is not None:
                draws = draws._replace(noise_numbers=jnp.arange(total))

            def one(draw):
                index, run_key, key, number = draw

                def under(model: Callable) -> Callable:
                    model = model if outer is None else outer(model, key)
                    if number is None:
                        return model
                    of = num_noise_draws or total
                    return evenly_spread(model, key_layers, number, of)

                posterior = self._one(leaves, index)
                _, sites = self._traces(posterior, run_key, args, kwargs, under)
                return function(sites, key, *data)

            if average is None:
                return in_batches(one, tuple(draws), batch_size)
            return averaged(one, tuple(draws), average, batch_size)

        key = random.key(0) if self.key is None else self.key
        made_of = (*made_of, batch_size, *self._made_of)
        given = (self._leaves, self._arrays, key, data)
        with single_threaded_lapack():
            # Wait until it is done: the threads are those of the whole process.
            found = call(run, made_of, *given, runs_once=runs_once)
            return jax.block_until_ready(found)


def averaged(function: Callable, draws: Any, average: Average, size: int) -> Any:
    """The average of ``function(draw)``, ``size`` draws at a time."""
    num_draws = len(jax.tree.leaves(draws)[0])
    rows = jnp.asarray(filled_batches(num_draws, size))
    num_batches, size = rows.shape
    # What fills up the last batch does not count again.
    weights = (jnp.arange(rows.size) < num_draws).astype(float).reshape(rows.shape)

    def known_of(batch):
        rows, weights = batch
        some = jax.tree.map(lambda leaf: leaf[rows], draws)
        if size > 1:
            values = jax.vmap(function)(some)
        else:  # a branch of one draw stays a branch
            values = function(jax.tree.map(lambda leaf: leaf[0], some))
            values = jax.tree.map(lambda leaf: leaf[None], values)
        return average.of_batch(values, weights)

    batches = rows, weights
    first = jax.tree.map(lambda leaf: leaf[0], batches)
    if num_batches == 1:
        return average.result(known_of(first))
    known_of, shapes = traced_once(known_of, first)

    def add(known, batch):
        return average.added(known, known_of(batch)), None

    known, _ = jax.lax.scan(add, average.nothing(shapes), batches)
    return average.result(known)


def every_draw(num_draws: int) -> Callable[..., Draws]:
    """All draws of the posterior in their order, for ``over_draws``."""

    def choose(key, *_) -> Draws:
        # Of a number that is no draw's, which has a key of its own.
        keys = random.split(random.fold_in(key, num_draws), num_draws)
        indices = jnp.arange(num_draws)
        return Draws(indices, keys_of(key, indices), keys)

    return choose


def keys_of(key, indices: Array) -> Any:
    """The key with which each draw is run."""
    return jax.vmap(lambda index: random.fold_in(key, index))(indices)


def _of_shapes(model: Callable) -> Callable:
    """The model with zeros for data that it would draw: facts need only their shape.

    Values of other sizes than the model would draw are refused.
    """

    def zeros(site: dict) -> Array | None:
        expected = expected_of(site)
        if expected is None or site["is_observed"]:
            return None
        kind = int if expected.support.is_discrete else float
        return jnp.zeros(site["fn"].shape(), kind)

    return require_sizes(substitute(model, substitute_fn=zeros))


def _any_drawn(guide_trace: dict[str, dict], sites: dict[str, dict]) -> bool:
    """Whether anything besides the whitened values of q(v) is drawn."""
    of_model = (
        is_layer(site) or (is_latent(site) and name not in guide_trace)
        for name, site in sites.items()
    )
    return bool(drawn_sites(guide_trace, marginalised(sites))) or any(of_model)


def _as_points(guide_trace: dict[str, dict]) -> dict[str, dict]:
    """The trace with a point in place of every q(v): the value that it drew."""
    return {
        name: {**site, "fn": dist.Delta(site["value"])}
        if site["type"] == "sample"
        else site
        for name, site in guide_trace.items()
    }


def _lengths(arguments: Any) -> set[int]:
    """Numbers of rows of the arguments of a model."""
    return {len(leaf) for leaf in jax.tree.leaves(arguments) if np.ndim(leaf)}
