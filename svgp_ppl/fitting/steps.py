"""The steps of a fit as two programs: its start, and a block of steps.

Many steps run in one dispatch (for a small model one call per step takes several times
as long); between blocks the progress is shown, the bound is checked and an interrupt is
noticed.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import SVI
from numpyro.infer.elbo import ELBO
from numpyro.infer.svi import SVIState
from numpyro.infer.util import transform_fn

from svgp_ppl.fitting.minibatches import Minibatches, Whole
from svgp_ppl.fitting.optimizers import as_numpyro, is_optax
from svgp_ppl.fitting.schedules import staged, unfreeze_steps
from svgp_ppl.guides.start import same_programs, start_of
from svgp_ppl.handlers import traces_of
from svgp_ppl.plates import first_rows
from svgp_ppl.runtime.compilation import (
    Program,
    as_jax_arrays,
    find,
    has_many_rows,
    inspected,
)

__all__ = ["Block", "Start", "Steps"]

# With so many rows, a thousand steps lose as much by slow loops as it takes to compile
# fast ones.
_MANY_ROWS = 20_000


class Start(NamedTuple):
    """Where a fit starts.

    Attributes:
        state: NumPyro's state of SVI.
        transforms: Parameter -> bijection from unconstrained values.
        params: Constrained values of the parameters.
    """

    state: SVIState
    transforms: dict[str, Any]
    params: dict[str, Any]


def _all_finite(tree: Any) -> jax.Array:
    """Whether all numbers of a parameter, which may be a tree, are finite."""
    leaves = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]
    return jnp.all(jnp.asarray(leaves, bool))  # none: priors of a network have them


class Block(NamedTuple):
    """What a block of steps returns.

    Attributes:
        state: After the last step whose bound and parameters are finite.
        params: Constrained values of the parameters there.
        losses: One per step, followed by that of a failed step, [block].
        done: Number of steps before a failure.
        is_finite: Parameter -> whether the last step left it finite.
    """

    state: SVIState
    params: dict[str, Any]
    losses: jax.Array
    done: jax.Array
    is_finite: dict[str, jax.Array]


class Steps:
    """Stochastic variational inference of one model, guide and loss.

    Args:
        model: The model.
        guide: The guide.
        optimizer: An optax transformation or an optimiser of NumPyro.
        loss: The loss.
        data: Arguments of the model at every step.
        freeze: Parameter or pattern -> number of first steps in which it does not move.
        variational_first: Number of steps in which only the parameters of q(v) move.

    Attributes:
        model: The model as it is run, on the rows of a batch.
        guide: Likewise.
        given_model: The model as given.
        given_guide: The guide as given.
        unfreeze_at: Parameter -> step at which it is unfrozen; known after ``start``.
        seconds: Time to compile the start.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        optimizer: Any,
        loss: ELBO,
        data: Whole | Minibatches,
        freeze: Mapping[str, int | float] | None,
        variational_first: int,
    ):
        self.model, self.given_model = model, model
        self.guide, self.given_guide = guide, guide
        if isinstance(data, Minibatches):
            self.model = first_rows(model, data.num_rows)
            self.guide = first_rows(guide, data.num_rows)
        self.optimizer, self.loss, self.data = optimizer, loss, data
        self.freeze, self.variational_first = freeze, variational_first
        of_guide = same_programs(guide)
        parts = (model, of_guide, optimizer, loss, freeze, variational_first)
        self.made_of = (*parts, data.made_of)
        self.unfreeze_at: dict[str, int] = {}
        self.seconds = 0.0

    def start(self, key, initial: dict | None, done: int) -> Start:
        """Parameters and state before the first step.

        Args:
            key: Random key.
            initial: Values of parameters to start from, by name.
            done: Number of steps taken before.

        Raises:
            ValueError: There are values of unknown parameters, or ``freeze=`` is
                invalid.
        """
        example = (key, initial, self.data.block(done, 1, 1))

        def run(key, initial, arrays):
            args, kwargs = self.data.at(arrays, 0)
            svi = SVI(self.model, self.guide, self._optim(), self.loss)
            state = svi.init(key, *args, init_params=initial, **kwargs)
            transforms = svi.constrain_fn.args[0]  # type: ignore[union-attr]
            return Start(state, transforms, svi.get_params(state))

        self._require_known(initial, run, example)
        made_of = ("start of a fit", start_of(self.given_guide), *self.made_of)
        program = find(run, made_of, *example, runs_once=True)
        self.seconds = program.seconds
        return program(*example)

    def _require_known(self, initial: dict | None, run: Callable, example) -> None:
        """Check the names of the parameters, if anything depends on them."""
        if not (initial or self.freeze or self.variational_first):
            return

        def unfreeze_at(*args):
            params = run(*args).params
            if unknown := sorted(set(initial or {}) - set(params)):
                raise ValueError(
                    f"init= has values of {unknown}, and the parameters of this model "
                    f"and guide are {sorted(params)}."
                )
            return unfreeze_steps(
                params, self.freeze, self.variational_first, self.given_guide
            )

        # Without the unknown ones the run is the same, and knows its own names.
        self.unfreeze_at = inspected(unfreeze_at, *example)
        if self.unfreeze_at and not is_optax(self.optimizer):
            raise ValueError("freeze= and variational_first= need an optax optimiser.")

    def _optim(self) -> Any:
        optimizer = self.optimizer
        if is_optax(optimizer):
            optimizer = staged(optimizer, self.unfreeze_at, self.given_guide)
        return as_numpyro(optimizer)

    def svi(self, transforms: dict[str, Any]) -> SVI:
        """NumPyro's SVI, as if already initialised."""
        svi = SVI(self.model, self.guide, self._optim(), self.loss)
        svi.constrain_fn = partial(transform_fn, transforms)
        return svi

    def free(self, start: Start) -> dict[str, Any]:
        """Unconstrained values of the parameters at the start."""
        return self.svi(start.transforms).optim.get_params(start.state.optim_state)

    def block(self, start: Start, size: int, arrays: Any) -> Program:
        """The program of up to ``size`` steps.

        Args:
            start: Where the fit starts.
            size: Number of steps at most.
            arrays: Arrays of the arguments of so many steps.

        Returns:
            (state, transforms, number of steps, arrays) -> :class:`Block`.
        """

        def run(state, transforms, count, arrays):
            svi = self.svi(transforms)

            def is_finite(state) -> dict[str, jax.Array]:
                params = svi.optim.get_params(state.optim_state)
                return {n: _all_finite(p) for n, p in params.items()}

            def step(carry):
                i, _, state, losses, _ = carry
                args, kwargs = self.data.at(arrays, i)
                after, loss = svi.update(state, *args, **kwargs)
                finite = is_finite(after)
                ok = jnp.all(jnp.stack([jnp.isfinite(loss), *finite.values()]))
                state = jax.lax.cond(ok, lambda: after, lambda: state)
                return i + ok, ok, state, losses.at[i].set(loss), finite

            def goes_on(carry):
                i, ok, *_ = carry
                return ok & (i < count)

            losses = jnp.zeros(size, jnp.result_type(float))
            carry = (jnp.zeros_like(count), True, state, losses, is_finite(state))
            done, _, state, losses, finite = jax.lax.while_loop(goes_on, step, carry)
            return Block(state, svi.get_params(state), losses, done, finite)

        made_of = ("steps of a fit", size, *self.made_of)
        given = start.state, start.transforms, np.int32(size), arrays
        return find(run, made_of, *given, runs_long=has_many_rows(arrays, _MANY_ROWS))

    def traces(
        self,
        key,
        params: Mapping[str, Any],
        arguments: tuple[tuple, dict] | None = None,
    ) -> tuple[dict, dict]:
        """Traces of the guide and of the model at parameters.

        Args:
            key: Random key.
            params: Values of the parameters.
            arguments: Arguments and keyword arguments; those of the first rows if None.
        """
        args, kwargs = arguments or self.data.first()
        args, kwargs = as_jax_arrays(args, kwargs)
        run = {"keys": (key, key), "values": params}
        return traces_of(self.guide, self.model, args, kwargs, **run)
