"""Parameters that keep their start for a number of steps, then move.

A frozen parameter must leave no trace in the optimiser, or it jumps when it is
unfrozen. With its gradient set to zero, Adam would not know that its moments are young:
they are zero but the step count is not, and the first steps are three times too long.
With its update discarded, moments would be made of gradients nobody followed. So
parameters unfrozen at the same step have an optimiser of their own, which first runs at
that step.

An optimiser that searches along a line moves all parameters together, and cannot be
split. It sees the loss as a function of the free parameters only, and starts afresh at
every unfreezing, since its memory is of another function.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from svgp_ppl.checks import require_count
from svgp_ppl.fitting.optimizers import searches
from svgp_ppl.guides.processes import ProcessGuide

__all__ = ["NEVER", "Freezing", "frozen_with", "staged", "unfreeze_steps"]

# The step at which parameters are unfrozen that stay frozen for ever.
NEVER = int(np.iinfo(np.int32).max)


class Freezing(optax.GradientTransformationExtraArgs):
    """A transformation that has its own way of freezing parameters.

    Attributes:
        freeze: Function of (parameter -> step at which it is unfrozen) and of the guide
            that gives the transformation that does so.
    """

    freeze: Callable[[Mapping[str, int], Any], optax.GradientTransformationExtraArgs]

    def __new__(cls, init, update, freeze):
        """Like the tuple of optax, with one more attribute."""
        self = super().__new__(cls, init, update)
        self.freeze = freeze
        return self


class SearchState(NamedTuple):
    """Steps so far, and the state of the optimiser."""

    count: Array
    inner: Any


def frozen_with(freeze: Any, late: Mapping[str, int | float]) -> Any:
    """``freeze``, and of ``late`` what it does not name."""
    if not isinstance(freeze, Mapping | None):
        return freeze
    for pattern in freeze or ():
        late = {n: step for n, step in late.items() if not fnmatchcase(n, pattern)}
    return {**late, **(freeze or {})} or None


def unfreeze_steps(
    params: dict,
    freeze: Mapping[str, int | float] | None,
    variational_first: int,
    guide: Callable,
) -> dict[str, int]:
    """Parameter -> step at which it is unfrozen, for those that are frozen at all.

    Args:
        params: All parameters, by name.
        freeze: Name or pattern (as for files) -> number of steps, infinite for ever.
        variational_first: Number of steps in which all but those of q(v) are frozen.
        guide: The guide, which knows those of q(v).

    Raises:
        ValueError: A pattern matches nothing, a number of steps is not one, every
            parameter would be frozen at once, or the guide cannot be asked.
    """
    variational_first = require_count(variational_first, "variational_first", 0)
    if freeze is not None and not isinstance(freeze, Mapping):
        raise ValueError(
            "freeze must be a dict, parameter or pattern -> number of steps, and is "
            f"{freeze!r}."
        )
    names, steps = set(params), {}
    if variational_first:
        if not isinstance(guide, ProcessGuide):
            raise ValueError(
                "variational_first= needs to know which parameters are those of q(v), "
                "as AutoGaussian and its siblings do. For another guide name the rest: "
                f"freeze={{name: {variational_first}}}, with names of {sorted(names)}."
            )
        steps = dict.fromkeys(
            names - guide.variational_names(params), variational_first
        )
    for pattern, count in (freeze or {}).items():
        what = f"the number of steps freeze['{pattern}']"
        count = NEVER if count == np.inf else require_count(count, what, 0)
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ValueError(
                f"freeze['{pattern}'] matches none of the parameters {sorted(names)}."
            )
        steps |= {name: max(count, steps.get(name, 0)) for name in found}
    steps = {name: count for name, count in steps.items() if count > 0}
    if names and steps.keys() == names:
        raise ValueError(
            f"every parameter would be frozen for the first {min(steps.values())} "
            "steps; leave one of them free."
        )
    return steps


def staged(
    optimizer: optax.GradientTransformation,
    unfreeze_at: Mapping[str, int],
    guide: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """The optimiser, with each parameter of ``unfreeze_at`` frozen until that step.

    Args:
        optimizer: An optax transformation, for parameters in a dict.
        unfreeze_at: Parameter -> number of first steps in which it does not move at
            all. Those without an entry move from the start.
        guide: The guide, which may know the parameters of q(v).
    """
    if isinstance(optimizer, Freezing):
        return optimizer.freeze(unfreeze_at, guide)
    if not unfreeze_at:
        return optax.with_extra_args_support(optimizer)
    own = optax.with_extra_args_support(optimizer)
    stages = {0, *unfreeze_at.values()}

    def from_step(step: int) -> Any:
        is_due: Any = lambda count: count >= step  # noqa: E731
        return optax.transforms.conditionally_mask(own, is_due)

    by_stage = optax.partition(
        {step: from_step(step) for step in stages},
        lambda params: {name: unfreeze_at.get(name, 0) for name in params},
    )
    together = _searching(own, unfreeze_at)

    def init(params: Any) -> Any:
        return (together if searches(own, params) else by_stage).init(params)

    def update(updates: Any, state: Any, params: Any = None, **extra_args) -> Any:
        chosen = together if searches(own, params) else by_stage
        return chosen.update(updates, state, params, **extra_args)

    return optax.GradientTransformationExtraArgs(init, update)


def _searching(own: Any, unfreeze_at: Mapping[str, int]) -> Any:
    """An optimiser that searches along a line, moving the free parameters only."""

    def init(params: Any) -> SearchState:
        return SearchState(jnp.zeros((), int), own.init(params))

    def update(updates: Any, state: Any, params: Any = None, **extra_args) -> Any:
        free = {n: state.count >= unfreeze_at.get(n, 0) for n in params}

        def where_free(p, otherwise):
            return {
                n: jax.tree.map(partial(jnp.where, free[n]), p[n], otherwise[n])
                for n in p
            }

        def masked(tree):
            return where_free(tree, jax.tree.map(jnp.zeros_like, tree))

        def of_free(p):
            return extra_args["value_fn"](where_free(p, jax.lax.stop_gradient(p)))

        inner = state.inner
        for step in {unfreeze_at.get(n, 0) for n in params} - {0}:
            inner = jax.tree.map(
                lambda fresh, old, now=state.count == step: jnp.where(now, fresh, old),
                own.init(params),
                inner,
            )
        slopes = masked(updates)
        more = {**extra_args, "grad": slopes, "value_fn": of_free}
        moves, inner = own.update(slopes, inner, params, **more)
        return masked(moves), SearchState(state.count + 1, inner)

    return optax.GradientTransformationExtraArgs(init, update)
