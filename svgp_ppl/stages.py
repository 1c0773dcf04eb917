"""Parameters that stay where they start for a number of steps, then move.

What is held must leave no trace in the optimiser, or it jumps when it is released. With
its gradient set to zero, Adam would forget that its moments are young: they are zero,
the step count is not, and the first steps are three times too long. With its update
thrown away, moments would be made of gradients nobody followed. So parameters released
at the same step have an optimiser of their own, which first runs at that step.

An optimiser that searches along a line moves all parameters together, and cannot be
split. It sees the loss as a function of the free parameters only, and starts afresh at
every release: its memory is of another function.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from svgp_ppl.guides.processes import ProcessGuide
from svgp_ppl.optimizers import searches

__all__ = ["Holding", "releases", "staged"]


class Holding(optax.GradientTransformationExtraArgs):
    """A transformation that holds parameters in a way of its own.

    Attributes:
        hold: Parameter name -> step of its release, to the transformation that does so.
    """

    hold: Callable[[Mapping[str, int]], optax.GradientTransformationExtraArgs]

    def __new__(cls, init, update, hold):
        """Like the tuple of optax, with one attribute more."""
        self = super().__new__(cls, init, update)
        self.hold = hold
        return self


class StagedState(NamedTuple):
    """Steps so far, and the state of the optimiser of each stage."""

    count: Array
    inner: Any


def releases(
    params: dict, hold: Mapping[str, int] | None, belief_first: int, guide: Callable
) -> dict[str, int]:
    """Parameter -> step at which it is released, for those that are held at all.

    Args:
        params: All parameters, by name.
        hold: Name or pattern (as of files) -> number of steps.
        belief_first: Number of steps in which all but the beliefs' are held.
        guide: The guide, to ask which those are.

    Raises:
        ValueError: A pattern matches nothing, a number of steps is not one, every
            parameter would be held at once, or the guide cannot be asked.
    """
    if not isinstance(belief_first, int) or belief_first < 0:
        raise ValueError(
            f"belief_first must be a number of steps, and is {belief_first!r}."
        )
    names, steps = set(params), {}
    if belief_first:
        if not isinstance(guide, ProcessGuide):
            raise ValueError(
                "belief_first= needs to know which parameters are those of beliefs, as "
                "AutoGaussian and its siblings do. For another guide say what waits: "
                f"hold={{name: {belief_first}}}, with names of {sorted(names)}."
            )
        steps = dict.fromkeys(names - guide.belief_names(params), belief_first)
    for pattern, count in (hold or {}).items():
        if not isinstance(count, int) or count < 0:
            raise ValueError(
                f"hold['{pattern}'] must be a number of steps, and is {count!r}."
            )
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ValueError(
                f"hold['{pattern}'] matches none of the parameters {sorted(names)}."
            )
        steps |= {name: max(count, steps.get(name, 0)) for name in found}
    steps = {name: count for name, count in steps.items() if count > 0}
    if names and steps.keys() == names:
        raise ValueError(
            f"every parameter would be held for the first {min(steps.values())} steps; "
            "leave one of them free."
        )
    return steps


def staged(
    optimizer: optax.GradientTransformation, release: Mapping[str, int]
) -> optax.GradientTransformationExtraArgs:
    """The optimiser, with each parameter of ``release`` held until that step.

    Args:
        optimizer: An optax transformation, for parameters in a dict.
        release: Parameter -> number of first steps in which it does not move at all.
            Those without an entry move from the start.
    """
    if isinstance(optimizer, Holding):
        return optimizer.hold(release)
    informed: Any = optax.with_extra_args_support(optimizer)

    def stages(params: dict) -> dict[int, list[str]]:
        steps = sorted({release.get(name, 0) for name in params})
        return {s: [n for n in params if release.get(n, 0) == s] for s in steps}

    def init(params: Any) -> StagedState:
        start = jnp.zeros((), int)
        if searches(informed, params):
            return StagedState(start, informed.init(params))
        each = [{n: params[n] for n in names} for names in stages(params).values()]
        return StagedState(start, tuple(map(informed.init, each)))

    def update(updates: Any, state: Any, params: Any = None, **told) -> Any:
        move = move_together if searches(informed, params) else move_by_stage
        updates, inner = move(updates, state, params, told)
        return updates, StagedState(state.count + 1, inner)

    def move_by_stage(gradients, state, params, told):
        moves, states = {}, []
        for (step, names), inner in zip(stages(params).items(), state.inner):
            own = {n: gradients[n] for n in names}
            values = {n: params[n] for n in names}

            def move(own=own, inner=inner, values=values):
                more = {**told, "grad": own}
                return informed.update(own, inner, values, **more)

            def stay(inner=inner, values=values):
                return jax.tree.map(jnp.zeros_like, values), inner

            if step == 0:
                move_of_stage, after = move()
            else:
                move_of_stage, after = jax.lax.cond(state.count >= step, move, stay)
            moves |= move_of_stage
            states.append(after)
        return moves, tuple(states)

    def move_together(gradients, state, params, told):
        free = {n: state.count >= release.get(n, 0) for n in params}

        def masked(tree):
            zero = jax.tree.map(jnp.zeros_like, tree)
            return {n: jnp.where(free[n], tree[n], zero[n]) for n in tree}

        def of_free(p):
            fixed = jax.lax.stop_gradient(p)
            return told["value_fn"]({n: jnp.where(free[n], p[n], fixed[n]) for n in p})

        inner = state.inner
        for step in stages(params).keys() - {0}:
            inner = jax.tree.map(
                lambda fresh, old, now=state.count == step: jnp.where(now, fresh, old),
                informed.init(params),
                inner,
            )
        slopes = masked(gradients)
        more = {**told, "grad": slopes, "value_fn": of_free}
        moves, inner = informed.update(slopes, inner, params, **more)
        return masked(moves), inner

    return optax.GradientTransformationExtraArgs(init, update)
