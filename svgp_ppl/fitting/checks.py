"""What is known about a fit before its first step, and what is refused.

A random bound is fine for Adam if the gradient is unbiased. It is not for an optimiser
that compares values of the bound.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpyro.infer import TraceGraph_ELBO
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.elbo import ELBO

from svgp_ppl.checks import InvalidRow, is_concrete
from svgp_ppl.elbo import MarginalELBO, require_data
from svgp_ppl.fitting.minibatches import Minibatches, Whole
from svgp_ppl.fitting.steps import Start, Steps
from svgp_ppl.guides.fitted import Guide, drawn_sites, require_apart
from svgp_ppl.handlers import is_layer, marginalised, trace_of, unwrapped
from svgp_ppl.observations import expected_of, is_latent, observe_sites
from svgp_ppl.observations.apart import require_rows_apart
from svgp_ppl.observations.observed import warn_if_none_counts
from svgp_ppl.plates import (
    first_rows,
    latents_of_rows,
    numbered_rows,
    outside_of_plates,
    require_batch_plate,
    subsampled,
)
from svgp_ppl.process_facts import ProcessFacts, process_facts_of
from svgp_ppl.runtime.compilation import as_jax_arrays, inspected, look
from svgp_ppl.runtime.dependence import inputs_read, lengths_indexed

__all__ = [
    "Facts",
    "facts_of",
    "require_deterministic",
    "require_shared_latents",
    "require_valid_rows",
    "takes_other_rows",
]

# Rows that are checked together before a fit with minibatches.
_ROWS_AT_A_TIME = 100_000


class Facts(NamedTuple):
    """What the traces of model and guide say.

    Attributes:
        num_data: Number of observed data, including those that a subsample stands for.
        random_parts: Parts of the bound that draw random numbers, in words.
        processes: What is remembered of the processes.
        has_earlier_data: Whether the model stands for data that are not passed.
    """

    num_data: float
    random_parts: list[str]
    processes: ProcessFacts
    has_earlier_data: bool


def facts_of(steps: Steps, start: Start, key) -> Facts:
    """Examine model and guide together.

    Raises:
        ValueError: The loss would have wrong gradients, though its value is right; or
            no plate of the model scales a batch; or a site is mutable; or the support
            of a latent site depends on another site.
    """

    def facts(key, params) -> tuple[Facts, list[str], list[tuple]]:
        guide_trace, model_trace = steps.traces(key, params)
        is_marginal = isinstance(steps.loss, MarginalELBO)
        exact = marginalised(model_trace) if is_marginal else set()
        _require_reparameterised(steps.loss, guide_trace, exact)
        given = Guide(steps.guide, params)
        require_apart(given, *steps.data.first(), guide_trace, exact)
        require_rows_apart(model_trace)
        _warn_of_other_sites(model_trace, guide_trace)
        _require_nothing_mutable({**guide_trace, **model_trace})
        if isinstance(steps.data, Minibatches):
            sizes = steps.data.num_rows, steps.data.batch_size
            require_batch_plate(model_trace, *sizes, steps.data.lengths_of_others)
            require_shared_latents(model_trace)
        parts = _random_parts(model_trace, guide_trace, exact)
        has_earlier_data = any(map(_is_memory, model_trace.values()))
        found = _num_observed(model_trace), parts, process_facts_of(model_trace)
        latent = [name for name, site in model_trace.items() if is_latent(site)]
        computed = [name for name in latent if _ends(model_trace[name])]
        outside = [*outside_of_plates(model_trace)]
        return Facts(*found, has_earlier_data), computed, outside

    found, computed, outside = inspected(facts, key, start.params)
    if isinstance(steps.data, Minibatches):
        _require_rows_of_batch(steps, steps.data, start, key)
    else:
        for one in outside:
            _require_inside(steps, start, key, one)
    if isinstance(steps.given_guide, AutoGuide):
        for name in computed:
            _require_fixed_support(name, steps, start, key)
    return found


def takes_other_rows(function: Callable, data: Minibatches, params, key) -> bool:
    """Whether rows of a plate are taken of an array of all data that is no argument.

    They are numbers within a batch, and would be the first rows of that array.

    Args:
        function: Model or guide.
        data: The batches.
        params: Values at ``param`` sites, by name.
        key: Random key.
    """

    def run(numbers, arrays) -> None:
        seen = numbered_rows(function, numbers)
        trace_of(seen, *data.at(arrays, 0), key=key, values=params)

    if data.batch_size == data.num_rows:
        return False
    numbers = np.arange(data.batch_size)
    try:
        traced = jax.make_jaxpr(run)(numbers, data.block(0, 1, 1))
    except jax.errors.TracerArrayConversionError:  # they index an array of NumPy
        return True
    return data.num_rows in lengths_indexed(traced.jaxpr)


def _require_rows_of_batch(steps: Steps, data: Minibatches, start: Start, key) -> None:
    """Refuse a model or guide that takes other rows of an array than those of x."""
    for name in ("model", "guide"):
        function = getattr(steps, f"given_{name}")
        if takes_other_rows(function, data, start.params, key):
            size, last = data.num_rows, data.batch_size - 1
            raise ValueError(
                f"the rows that a plate of all {size} data gives are numbers within a "
                f"batch, 0 to {last}, and the {name} takes them of an array that is no "
                "argument: its first rows, at every step. Pass the array as an "
                "argument, which is cut into batches like x; of a site or a param take "
                f"[row], with np.arange({size}) as the argument row."
            )


def _require_inside(steps: Steps, start: Start, key, outside: tuple) -> None:
    """Refuse data of the rows that a subsampled plate takes, if they are outside of it.

    Args:
        steps: The inference.
        start: Start of the fit.
        key: Random key.
        outside: One of ``outside_of_plates``.
    """
    name, plate, (size, rows) = outside
    args, kwargs = as_jax_arrays(*steps.data.first())

    def log_prob(numbers, params) -> jax.Array:
        values = {**params, plate: numbers}
        site = trace_of(steps.model, args, kwargs, key=key, values=values)[name]
        return site["fn"].log_prob(site["value"])

    traced = jax.make_jaxpr(log_prob)(np.arange(rows), start.params)
    if inputs_read(traced.jaxpr)[0]:
        raise ValueError(
            f"site '{name}' has the {rows} rows that plate '{plate}' takes, which "
            f"would not count as all of {size}: it must be inside of the plate."
        )


def _ends(site: dict) -> list[Tracer]:
    """What is computed, by traced operations, of the ends of a support."""
    leaves = jax.tree.leaves(site["fn"].support)
    return [leaf for leaf in leaves if isinstance(leaf, Tracer)]


def _require_fixed_support(name: str, steps: Steps, start: Start, key) -> None:
    """Refuse a support that other sites move: a guide of NumPyro keeps its first one.

    Values of the fit would stay inside of that one, or leave the one of the model.
    """

    def ends(key, params) -> list[Tracer]:
        return _ends(steps.traces(key, params)[1][name])

    traced = jax.make_jaxpr(ends)(key, start.params)
    if any(inputs_read(traced.jaxpr)):
        raise ValueError(
            f"the support of latent site '{name}' depends on another site, and the "
            "guide keeps the support that it has at the start. Draw from a fixed one, "
            "and scale what it gives: dist.Uniform(0.0, 1.0), times the other site, in "
            "place of dist.Uniform(0.0, other). Chains without a fit, "
            "gp.sample(key, model, ...), take the model as it is."
        )


def _is_memory(site: dict) -> bool:
    """Whether a site is what a fit has learnt of earlier data (``update``)."""
    return site["type"] == "sample" and "memory" in site["infer"]


def require_shared_latents(model_trace: dict[str, dict]) -> None:
    """Refuse latents of single data where only some rows are passed to the model."""
    for name, plate in latents_of_rows(model_trace):
        size, rows = subsampled(model_trace)[plate]
        raise ValueError(
            f"latent site '{name}' has a value for each of {size} data, and the model, "
            f"which is passed {rows} rows of them, does not know which are its own. "
            "Draw all values in a plate of their own, and pass "
            f"np.arange({size}) as one more argument, which is cut into batches as "
            f"well: {name}[row]. Or leave out batch_size, and write "
            f"plate('{plate}', {size}, subsample_size={rows}) as rows, with f(x[rows]) "
            "and obs=y[rows]."
        )


def require_valid_rows(model: Callable, data: Whole | Minibatches, key) -> None:
    """Run the model on all rows, for the checks of its sites; nothing is computed.

    Raises:
        ValueError: What ``sparse_gp`` and ``observe`` refuse, with the number of the
            offending row, if there is one; or an ``observe`` site has no data.
    """
    # Plates give their rows as numbers, so that y[rows] can be read.
    seen = first_rows(model)

    def check(args, kwargs, key) -> None:
        sites = trace_of(seen, args, kwargs, key=key)
        require_data(sites)
        if isinstance(data, Whole):
            for name in observe_sites(sites):
                warn_if_none_counts(name, unwrapped(sites[name]["fn"])[1])

    look(check, *data.first(), key)
    if isinstance(data, Whole):
        return
    # Rows spread over several devices are not copied: all of them at once.
    at_once = data.num_rows if data.is_spread else _ROWS_AT_A_TIME
    size = max(data.batch_size, at_once)
    if size > data.batch_size:
        try:
            look(check, *data.rows_from(0, size), key)
        except InvalidRow:
            raise
        except Exception:  # a model that takes B rows and no others
            size = data.batch_size
    for first in range(0, data.num_rows, size):
        first = max(0, min(first, data.num_rows - size))
        try:
            look(check, *data.rows_from(first, size), key)
        except InvalidRow as error:
            raise error.moved(first) from None
        finally:
            data.forget_pages()


def require_deterministic(steps: Steps, start: Start, random_parts: list[str]) -> None:
    """Refuse a bound that changes from step to step, before anything is compiled.

    Args:
        steps: The inference.
        start: Start of the fit.
        random_parts: Parts known to be random.
    """
    data = steps.data
    causes = [f"batch_size={data.batch_size}"] if isinstance(data, Minibatches) else []
    causes += random_parts
    args, kwargs = as_jax_arrays(*data.first())
    svi = steps.svi(start.transforms)

    def bound(key):
        return svi.evaluate(start.state._replace(rng_key=key), *args, **kwargs)

    if not causes:
        traced = jax.make_jaxpr(bound)(start.state.rng_key)
        if not any(inputs_read(traced.jaxpr)):
            return
    why = "; ".join(causes) or "it depends on the random key"
    raise ValueError(
        "this optimiser searches along a line (as optax.lbfgs does) and compares "
        f"values of the bound, but the bound is random: {why}. Use optax.adam, or make "
        "the bound deterministic: the full batch, point estimates of the other sites "
        "(rest=AutoDelta), closed forms or gp.expectations.GaussHermite."
    )


def _require_reparameterised(loss: ELBO, guide_trace: dict, exact: set[str]) -> None:
    """Refuse a loss whose gradient would be wrong, though its value is right."""
    if isinstance(loss, TraceGraph_ELBO):
        return
    for name, site in guide_trace.items():
        is_drawn = site["type"] == "sample" and name not in exact
        if is_drawn and not (site["fn"].has_rsample or site["fn"].is_discrete):
            marginal = "gp.MarginalELBO() (the default) for processes, or "
            use = "" if isinstance(loss, MarginalELBO) else marginal
            raise ValueError(
                f"draws of the guide's site '{name}' ({type(site['fn']).__name__}) are "
                f"not reparameterised, so {type(loss).__name__} has wrong gradients. "
                f"Use loss={use}numpyro.infer.TraceGraph_ELBO()."
            )


def _warn_of_other_sites(model_trace: dict, guide_trace: dict) -> None:
    """Say which latent sites only the model has, and which only the guide."""

    def latent(trace: dict[str, dict]) -> set[str]:
        return {
            name
            for name, site in trace.items()
            if site["type"] == "sample"
            and not (site["is_observed"] or is_layer(site) or expected_of(site))
            and not {"is_auxiliary", "enumerate"} & {*site["infer"]}
        }

    of_model, of_guide = latent(model_trace), latent(guide_trace)
    if missing := sorted(of_model - of_guide):
        warnings.warn(
            f"the guide has no site {missing}: drawn from the prior at every step, as "
            "if the data said nothing about it. Was the guide made of this model?",
            stacklevel=2,
        )
    if unknown := sorted(of_guide - of_model):
        warnings.warn(
            f"the guide has a site {unknown}, and the model has none of that name. Was "
            "the guide made of this model?",
            stacklevel=2,
        )


def _require_nothing_mutable(sites: dict[str, dict]) -> None:
    """Refuse values that change when the model runs: a ``Fit`` does not keep them."""
    for name, site in sites.items():
        if site["type"] == "mutable":
            raise ValueError(
                f"the site '{name}' is mutable (batch normalisation has such sites), "
                "and fit would lose its value. Use numpyro.infer.SVI(model, guide, "
                "optimizer, gp.MarginalELBO()), whose state has it as mutable_state."
            )


def _random_parts(model_trace: dict, guide_trace: dict, exact: set[str]) -> list[str]:
    """Parts of a bound that draw random numbers, in words."""
    parts = []
    for name, site in model_trace.items():
        expected = expected_of(site)
        if site["type"] == "plate":
            size, rows = site["args"]
            if rows not in (None, size):
                parts.append(f"plate '{name}' is a subsample of {rows} out of {size}")
        elif is_layer(site):
            parts.append(f"layer '{name}' draws its values")
        elif expected is not None and expected.key is not None:
            parts.append(f"the expectation of site '{name}' draws its nodes")
    drawn = drawn_sites(guide_trace, exact)
    return parts + [f"the guide draws site '{name}'" for name in drawn]


def _num_observed(model_trace: dict[str, Any]) -> float:
    """Number of observed data, including those that a subsampled plate stands for."""
    total = 0.0
    for site in model_trace.values():
        if site["type"] == "sample" and site["is_observed"]:
            scale, (_, mask) = site["scale"], unwrapped(site["fn"])
            scale = scale if scale is not None and is_concrete(scale) else 1.0
            mask = mask if is_concrete(mask) else True
            with jax.ensure_compile_time_eval():  # rows may be on several devices
                weight = float(jnp.mean(jnp.asarray(scale) * jnp.asarray(mask)))
            total += weight * math.prod(site["fn"].batch_shape)
    return max(total, 1.0)
