"""Going on: the state of an earlier fit, and the file of this one.

A function cannot be compared with one of another process. The model, guide, optimiser
and data of a file are recognised by what they do: its first steps are taken again, and
must have the same losses.
"""

import jax
import jax.numpy as jnp
import numpy as np

from svgp_ppl.fitting.result import Fit
from svgp_ppl.fitting.steps import Start, Steps
from svgp_ppl.runtime.checkpoints import Checkpoint, read, restored
from svgp_ppl.runtime.compilation import call

__all__ = ["at_the_end_of", "fit_in", "frozen_in", "how_to_go_on"]

# Steps that are taken again: after ten, another learning rate has shown itself.
_NUM_STEPS_AGAIN = 10

# Relative difference of a parameter that another program or machine may make.
_ROUNDING = 1e-4

_OTHER_FIT = (
    "{source} was fitted with another model, guide, optimiser, freeze= or precision. A "
    "new optimiser starts from its parameters by init=(fit.guide, fit.params). What "
    "differs: {{}}."
)


def at_the_end_of(fit: Fit, start: Start, steps: Steps, source: str = "init=") -> Start:
    """The start of a fit that goes on where another one has ended.

    Args:
        fit: The other one.
        start: With the state that belongs to model, guide and optimiser.
        steps: The steps of the fit that goes on.
        source: Where it comes from, for the error.

    Raises:
        ValueError: It has a state of another kind; or other parameters than its state,
            which would have no effect.
    """
    name = source.replace("{", "{{").replace("}", "}}")
    state = restored(fit.state, start.state, _OTHER_FIT.format(source=name))
    start = start._replace(state=jax.tree.map(jnp.asarray, state))
    params = _params_of(steps, start)
    either = sorted(params.keys() | fit.params.keys())
    of_both = ((name, fit.params.get(name), params.get(name)) for name in either)
    if names := [name for name, *values in of_both if not _are_close(*values)]:
        raise ValueError(
            f"{source} has other values of {names} than the state with which its fit "
            "goes on: its params were changed, or their constraints depend on the "
            "data. To start from them, with a new optimiser, write init=(fit.guide, "
            "fit.params)."
        )
    return start


def _params_of(steps: Steps, start: Start) -> dict:
    """The parameters for which the state at a start stands."""

    def run(state, transforms):
        return steps.svi(transforms).get_params(state)

    made_of = ("parameters of a state", *steps.made_of)
    given = start.state, start.transforms
    return jax.device_get(call(run, made_of, *given, runs_once=True))


def _are_close(came, wanted) -> bool:
    """Whether two values of a parameter, which may be trees, are equal to rounding."""
    came, wanted = jax.tree.leaves(came), jax.tree.leaves(wanted)
    if list(map(np.shape, came)) != list(map(np.shape, wanted)):
        return False
    return all(
        np.allclose(a, b, _ROUNDING, _ROUNDING * np.max(np.abs(b), initial=0.0))
        for a, b in zip(came, wanted)
    )


def frozen_in(file: Checkpoint | None) -> dict[str, int]:
    """Parameter -> step at which the fit in a file unfreezes it; {} without a file."""
    if file is None or jax.process_count() > 1 or not file.exists():
        return {}
    steps = read(file.path, "fit")[0].get("unfreeze_at", {})
    return {name: int(step) for name, step in steps.items()}


def fit_in(
    file: Checkpoint,
    steps: Steps,
    start: Start,
    earlier: Fit | None,
    order: int,
    size: int,
) -> tuple[Fit, Start] | None:
    """The fit that an earlier call has left in a file, and the start of its next step.

    None if there is no file, or all of it is in what this fit continues.

    Args:
        file: The file.
        steps: The steps of this fit.
        start: Its start.
        earlier: The fit that it continues, if any.
        order: The seed of its minibatches.
        size: Steps in a block of this fit, so that one program does for both.

    Raises:
        ValueError: The file is of another fit; says what differs.
    """
    # The files of several processes may be some steps apart.
    if jax.process_count() > 1 or not file.exists():
        return None
    found = Fit.load(file.path, steps.given_guide, steps.given_model)
    before = np.zeros(0) if earlier is None else earlier.losses
    number = min(len(found.losses), len(before))
    continues = np.array_equal(found.losses[:number], before[:number])
    if continues and number == len(found.losses):
        return None

    def refuse(difference: str) -> None:
        raise ValueError(
            f"checkpoint={file.path} holds another fit, which this one would replace: "
            f"{difference}. Choose another name, or delete the file. That fit is "
            "gp.Fit.load(path, guide)."
        )

    if not continues:
        refuse("it has other losses than init")
    if found.seed != order:
        refuse("its random key is another one")
    if found.unfreeze_at != steps.unfreeze_at:
        refuse(
            f"its parameters were frozen for {found.unfreeze_at} steps, and would be "
            f"for {steps.unfreeze_at}"
        )
    next_start = at_the_end_of(found, start, steps, f"checkpoint={file.path}")
    came = found.losses[len(before) :][: min(_NUM_STEPS_AGAIN, size)]
    wanted = _losses(steps, start, len(before), len(came), size)
    if not np.allclose(came, wanted, rtol=_tolerance(start), equal_nan=True):
        refuse(
            f"its first losses are {came[:3].tolist()}, and should be "
            f"{wanted[:3].tolist()}, so its model, guide, data, loss or optimiser is "
            "another one"
        )
    return found, next_start


def how_to_go_on(file: Checkpoint | None, has_earlier_data: bool) -> str:
    """What to do with a fit that was interrupted, as a clause.

    Args:
        file: Its file, if it has one.
        has_earlier_data: Whether it is what ``gp.update`` returns.
    """
    if file is not None:
        return "the same call goes on from its checkpoint"
    if has_earlier_data:
        return (
            "it stands for a part of what the new data say, and to go on from it would "
            "count them twice: call gp.update again with the earlier fit"
        )
    return "continue with fit(..., init=this)"


def _losses(
    steps: Steps, start: Start, first: int, count: int, size: int
) -> np.ndarray:
    """Losses of the steps from number ``first`` on, by the program of a block."""
    arrays = steps.data.block(first, count, size)
    program = steps.block(start, size, arrays)
    given = (start.transforms, np.int32(count), arrays)
    return np.asarray(program(start.state, *given).losses)[:count]


def _tolerance(start: Start) -> float:
    """Relative error of a loss: not bit by bit, the machine may be another one."""
    leaves = jax.tree.leaves(start.params)
    return 1e-9 if jnp.result_type(float, *leaves) == jnp.float64 else 1e-4
