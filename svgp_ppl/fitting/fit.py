"""Stochastic variational inference: the loop over blocks of compiled steps."""

import os
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import optax
from jax import random
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.elbo import ELBO

from svgp_ppl.checks import require_arguments, require_count, require_key
from svgp_ppl.elbo import MarginalELBO
from svgp_ppl.fitting.checks import (
    Facts,
    facts_of,
    require_deterministic,
    require_valid_rows,
)
from svgp_ppl.fitting.failures import explain_failure
from svgp_ppl.fitting.minibatches import Minibatches, Whole, blocks_of
from svgp_ppl.fitting.optimizers import is_optax, searches
from svgp_ppl.fitting.plateau import Plateau
from svgp_ppl.fitting.result import Fit, NonFiniteBoundError
from svgp_ppl.fitting.resuming import at_the_end_of, fit_in, frozen_in, how_to_go_on
from svgp_ppl.fitting.schedules import NEVER, frozen_with
from svgp_ppl.fitting.steps import Start, Steps
from svgp_ppl.guides.fitted import guide_and_params
from svgp_ppl.guides.processes import ProcessGuide
from svgp_ppl.guides.start import default_guide, start_anew
from svgp_ppl.handlers import NumPyroOptimizer, set_up
from svgp_ppl.inducing_origin import moved, origin_of_z
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.process_facts import require_same_processes
from svgp_ppl.rows.sharding import local
from svgp_ppl.runtime import Progress, progress_bar
from svgp_ppl.runtime.checkpoints import Checkpoint

__all__ = ["fit"]

# Enough updates of the bar to watch the bound move, few enough that a block of cheap
# steps is long compared with a dispatch.
_NUM_BLOCKS = 50
_SHORTEST_BLOCK = 10

# The default bound: a single object, so that its compiled programs are found again.
_BOUND = MarginalELBO()
_ADAM = optax.adam(1e-2)

_UNSAVED = "the fit goes on, and is returned at the end: fit.save(another_path)."


def fit(
    key,
    model: Callable,
    guide: Callable | Any = None,
    *args,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 2000,
    loss: ELBO | None = None,
    init: Fit | tuple[Callable, Mapping[str, Any]] | None = None,
    freeze: Mapping[str, int | float] | None = None,
    variational_first: int = 0,
    batch_size: int | None = None,
    patience: int | None = None,
    tolerance: float = 1e-4,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
    **kwargs,
) -> Fit:
    """Maximise the marginalised bound over the parameters of guide and model.

    The plain NumPyro route, ``SVI(model, guide, optimizer, MarginalELBO()).run(...)``,
    gives the same numbers; this one shows the bound in nats and per datum, can be
    interrupted without losing the work done, can be continued, and says what went wrong
    when the bound stops being finite. A second fit of the same model and guide, with
    data of the same shapes, compiles nothing.

    Args:
        key: Random key.
        model: NumPyro model.
        guide: NumPyro guide, ``AutoGaussian(model)`` or a hand-written one; if an
            argument of the model is in its place, it is ``AutoGaussian(model)``.
        *args: Arguments of model and guide.
        optimizer: An optax transformation; ``optax.adam(1e-2)`` if None. One that
            searches along a line, such as ``optax.lbfgs()``, needs a bound that is not
            random.
        num_steps: Number of steps, at most.
        loss: ``MarginalELBO()`` if None.
        init: An earlier fit of the same model and guide with the same optimiser to
            continue from; or ``(guide, params)``, to start from such parameters.
        freeze: Parameter, or a pattern such as ``"*lengthscale*"`` -> number of first
            steps in which it keeps its start, ``np.inf`` for all. With ``init`` the
            step count continues, and what an earlier fit has frozen stays so unless it
            is named here. The weights of an ``AutoMixture`` are frozen for half of
            ``num_steps`` (as first given, with ``checkpoint``) unless they are named
            here: ``freeze={"auto_logits": 0}``.
        variational_first: Number of first steps in which only the parameters of q(v)
            move (Hensman, Matthews, Filippone & Ghahramani 2015).
        batch_size: Number of rows B that the model is given at each step, of the array
            arguments that are as long as the first one; drawn without replacement in
            every epoch. The model's plate has the size N of all rows:
            ``numpyro.plate("data", N, subsample_size=len(x))``.
        patience: Stop early at a plateau: when the mean bound of the last ``patience``
            steps exceeds that of the ``patience`` steps before by no more than
            ``tolerance``. Steps of an ``init`` do not count.
        tolerance: Tolerance of ``patience``, in nats per datum.
        checkpoint: File for the fit so far, written about every half minute and at the
            end. If it exists, the same call continues from it, and with a larger
            ``num_steps`` a finished fit gets more; not with several processes of JAX.
        progress: Whether to show a progress bar.
        **kwargs: Keyword arguments of model and guide.

    Returns:
        The fit. After a keyboard interrupt, the fit so far (with a warning).

    Raises:
        ValueError: The arguments are not what the model expects, an ``observe`` site
            has no data, the guide misses a process, a count is not positive, the loss
            would have wrong gradients because draws of the guide are not
            reparameterised, the optimiser cannot use a random bound, the model's plate
            does not scale minibatches, a site is mutable, the support of a latent site
            depends on another site, ``init`` is of another model, guide or optimiser,
            or the checkpoint cannot be written, or is that of another fit; or ``init``
            stands for earlier data, or its params were edited.
        NonFiniteBoundError: The bound or its gradient is NaN or infinite; says which
            process or site, and holds the last finite fit.

    Example:
        >>> import svgp_ppl as gp
        >>> fitted = gp.fit(
        ...     random.key(0), model, gp.AutoGaussian(model), x, y, progress=False
        ... )
        >>> fitted.losses.shape
        (2000,)
    """
    require_key(key, of=fit)
    if guide is None or not callable(guide):
        args = args if guide is None else (guide, *args)
        guide = None
    require_arguments(model, args, kwargs, fit)
    guide = default_guide(model) if guide is None else guide
    _require_objects(model, guide, optimizer, loss, tolerance)
    num_steps = require_count(num_steps, "num_steps")
    patience = None if patience is None else require_count(patience, "patience")
    file = None if checkpoint is None else Checkpoint(checkpoint, "fit", _UNSAVED)
    optimizer = _ADAM if optimizer is None else optimizer
    loss = _BOUND if loss is None else loss
    key_start, key_look = random.split(key)
    earlier, initial = _origin(init)
    order = _order(key) if earlier is None else earlier.seed
    data = _data(args, kwargs, batch_size, order)
    late = _late(guide, optimizer, num_steps, earlier, initial, file)
    frozen = frozen_with(freeze, late)
    steps = Steps(model, guide, optimizer, loss, data, frozen, variational_first)
    require_valid_rows(steps.model, data, key_look)
    _set_up(steps, key_start, init)
    done = 0 if earlier is None else len(earlier.losses)
    start = steps.start(key_start, initial, done)
    if earlier is not None:
        start = at_the_end_of(earlier, start, steps)
    facts = facts_of(steps, start, key_look)
    require_same_processes(init, facts.processes)
    if is_optax(optimizer) and searches(optimizer, steps.free(start)):
        require_deterministic(steps, start, facts.random_parts)
    origin = _inducing_origin(model, args, kwargs, data, start.params)
    run = _Run(
        steps, start, earlier, order, facts, origin, _block_size(num_steps, data)
    )
    plateau = run.plateau(patience, tolerance)
    with single_threaded_lapack():
        return run.to_the_end(num_steps, plateau, file, progress)


def _origin(init) -> tuple[Fit | None, dict | None]:
    """What ``init`` continues, or the parameters from which it starts."""
    if init is None:
        return None, None
    if isinstance(init, Fit):
        if init.has_earlier_data:
            raise ValueError(
                "init= is what gp.update returned, and fit would forget the earlier "
                "data that it stands for. For more steps call gp.update(key, earlier "
                "fit, x_new, y_new, num_steps=...) again; to start from its "
                "parameters, with all data, write init=(fit.guide, fit.params)."
            )
        return init, None
    return None, guide_and_params(init, "init").params


def _data(args, kwargs, batch_size: Any, order: int) -> Whole | Minibatches:
    """Arguments of the model at every step."""
    if batch_size is None:
        return Whole(args, kwargs)
    size = int(batch_size) if isinstance(batch_size, np.integer) else batch_size
    return Minibatches(args, kwargs, size, order)


def _set_up(steps: Steps, key, init) -> None:
    """Let the guide run the model, with the same key as in NumPyro's ``SVI.init``."""
    key = random.split(key, 3)[2]
    if init is None:
        start_anew(steps.given_guide, key, *steps.data.first())
    set_up(steps.guide, key, *steps.data.first())


def _inducing_origin(
    model: Callable, args, kwargs, data: Whole | Minibatches, params: dict
) -> dict[str, str]:
    """What z is computed from, unless that is another thing in every step."""
    seen = data.at(data.block(0, 1, 1), 0)
    origin = origin_of_z(model, *seen, params)
    for name in moved(origin, model, args, kwargs):
        raise ValueError(
            f"the inducing inputs are computed from {name}, of which every step has "
            "other rows: choose z once, outside of the model."
        )
    return origin


def _late(
    guide, optimizer, num_steps: int, earlier: Fit | None, initial, file
) -> dict[str, int]:
    """What is frozen unless it is named: as in an earlier fit, or by the guide."""
    if earlier is not None:
        return dict(earlier.unfreeze_at)
    names = guide.late_names() if isinstance(guide, ProcessGuide) else ()
    if not names or not is_optax(optimizer):
        return {}
    began = frozen_in(file)
    return {n: began.get(n, num_steps // 2) for n in names if n not in (initial or ())}


def _require_objects(model, guide, optimizer, loss, tolerance) -> None:
    """Refuse a class, a number or a name in place of a guide, optimiser or loss."""
    if isinstance(model, AutoGuide):
        raise ValueError(
            "the model comes before its guide: fit(key, model, guide, ...)."
        )
    if isinstance(guide, type):
        raise ValueError(
            f"guide must be an object such as gp.AutoGaussian(model), and is {guide!r}."
        )
    if not isinstance(tolerance, int | float | np.number) or np.isnan(tolerance):
        raise ValueError(f"tolerance must be a number of nats, and is {tolerance!r}.")
    is_known = optimizer is None or is_optax(optimizer)
    if not is_known and not isinstance(optimizer, NumPyroOptimizer):
        raise ValueError(
            "optimizer must be an optax transformation, such as optax.adam(1e-2), and "
            f"is {optimizer!r}."
        )
    if loss is not None and not isinstance(loss, ELBO):
        raise ValueError(
            f"loss must be an object such as gp.MarginalELBO(), and is {loss!r}."
        )


def _order(key) -> int:
    """The seed of the order of minibatches that goes with a key."""
    bits = np.asarray(random.key_data(key)).ravel().astype(np.uint64)
    return int(np.bitwise_xor.reduce(bits * np.uint64(0x9E3779B97F4A7C15)) >> 32)


class _Reached(NamedTuple):
    """Where a fit stands. Replaced as a whole, so that an interrupt finds it intact.

    Attributes:
        state: NumPyro's state of SVI.
        params: Constrained values of the parameters there.
        history: Losses of the steps so far, one array per block.
        seconds: Time that they took.
        stopped: Whether the fit ends there, at a plateau.
    """

    state: Any
    params: dict[str, Any]
    history: tuple[np.ndarray, ...]
    seconds: float
    stopped: bool = False


class _Run:
    """A fit in progress: where it stands, and its history."""

    def __init__(
        self,
        steps: Steps,
        start: Start,
        earlier: Fit | None,
        order: int,
        facts: Facts,
        origin: Mapping[str, str],
        size: int,
    ):
        self.steps, self.start, self.order, self.facts = steps, start, order, facts
        self.origin, self.size = origin, size
        self.reached = _Reached(start.state, start.params, (), 0.0)
        self.earlier, self.first = None, 0
        self.compile_seconds, self.interrupted = 0.0, False
        if earlier is not None:
            self._continue(earlier)

    def _continue(self, earlier: Fit) -> None:
        """Stand where another fit has ended."""
        before = {"history": (earlier.losses,), "seconds": earlier.seconds}
        state, params = self.start.state, earlier.params
        self.reached = self.reached._replace(state=state, params=params, **before)
        self.earlier, self.first = earlier, len(earlier.losses)
        self.compile_seconds = earlier.compile_seconds

    def _go_on(self, file: Checkpoint, num_steps: int) -> int:
        """Go on from the file, if it exists; returns the number of steps left."""
        parts = self.steps, self.start, self.earlier, self.order, self.size
        in_file = fit_in(file, *parts)
        if in_file is None:
            return num_steps
        found, self.start = in_file
        left = num_steps + self.first - len(found.losses)
        self._continue(found)
        self.reached = self.reached._replace(stopped=found.stopped_early)
        return left

    def plateau(self, patience: int | None, tolerance: float) -> Plateau:
        """When to stop early: once nothing is frozen but for good."""
        steps = [at for at in self.steps.unfreeze_at.values() if at < NEVER]
        first = max(self.first, *steps, 0)
        return Plateau(patience, tolerance * self.facts.num_data, first)

    def so_far(self) -> Fit:
        """The fit up to here."""
        state, params, history, seconds, stopped = self.reached
        state, params = local((state, params))
        return Fit(
            params=params,
            losses=np.concatenate(history) if history else np.zeros(0),
            guide=self.steps.given_guide,
            state=state,
            seed=self.order,
            stopped_early=stopped,
            compile_seconds=self.compile_seconds,
            seconds=seconds,
            unfreeze_at=self.steps.unfreeze_at,
            model=self.steps.given_model,
            inducing_origin=self.origin,
            **self.facts.processes._asdict(),
            has_earlier_data=self.facts.has_earlier_data,
            interrupted=self.interrupted,
        )

    def to_the_end(
        self,
        num_steps: int,
        plateau: Plateau,
        file: Checkpoint | None,
        progress: bool,
    ) -> Fit:
        """Take the steps, or fewer if a plateau or the user ends them."""
        if file is not None:
            num_steps = self._go_on(file, num_steps)
            stopped, history = self.reached.stopped, self.reached.history
            if num_steps <= 0 or (stopped and plateau.is_reached(history)):
                return self.so_far()
        bar = progress_bar(num_steps, "fit", progress)
        try:
            for count in self._blocks(num_steps, plateau, bar):
                bar.set_postfix_str(self._words())
                bar.update(count)
                if self.reached.stopped:
                    break
                if file is not None and file.is_due():
                    file.save(self.so_far().save)
        except KeyboardInterrupt:
            if not self.reached.history:
                raise
            self.interrupted = True
            steps = sum(map(len, self.reached.history))
            next_call = how_to_go_on(file, self.facts.has_earlier_data)
            warnings.warn(
                f"interrupted: returning the fit after {steps} steps; {next_call}.",
                stacklevel=3,
            )
        except NonFiniteBoundError as error:
            if file is not None and error.fit is not None:
                file.save(error.fit.save)
            raise
        finally:
            bar.close()
        if file is not None:
            file.save(self.so_far().save)
        return self.so_far()

    def _blocks(self, num_steps: int, plateau: Plateau, bar: Progress):
        """Run the steps, block by block; yields the number of steps taken."""
        program, taken = None, 0
        began = time.perf_counter()
        blocks = blocks_of(self.steps.data, self.first, num_steps, self.size)
        for count, arrays in blocks:
            if program is None:
                bar.set_postfix_str("compiling")
                program = self.steps.block(self.start, self.size, arrays)
                self.compile_seconds += self.steps.seconds + program.seconds
                bar.reset()
                began = time.perf_counter()
            before = self.reached
            given = (self.start.transforms, np.int32(count), arrays)
            block = program(before.state, *given)
            done = int(block.done)
            losses = np.asarray(block.losses)[:done]
            seconds = before.seconds + time.perf_counter() - began
            history = (*before.history, losses)
            stopped = done == count and plateau.is_reached(history)
            self.reached = _Reached(
                block.state, block.params, history, seconds, stopped
            )
            if done < count:
                number = self.first + taken + done
                message = explain_failure(self.steps, block, number, arrays)
                raise NonFiniteBoundError(message, self.so_far())
            taken += count
            yield count
            # Time from here on, waiting for rows included, belongs to the next steps.
            began = time.perf_counter()

    def _words(self) -> str:
        """The bound of the last block."""
        num_data = self.facts.num_data
        bound = -float(np.mean(self.reached.history[-1]))
        words = f"bound {bound:.4g} nats, {bound / num_data:.4f} per datum"
        return words + ", stopped early" * self.reached.stopped


def _block_size(num_steps: int, data: Whole | Minibatches) -> int:
    """Steps in one dispatch."""
    size = min(num_steps, max(_SHORTEST_BLOCK, num_steps // _NUM_BLOCKS))
    return min(size, data.longest_block or size)
