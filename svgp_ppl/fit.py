"""Stochastic variational inference: NumPyro's SVI in blocks of compiled steps.

Many steps run in one dispatch (for a small model one call a step takes several times
as long), and between blocks the progress is shown, the bound is checked and an
interrupt is heard.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI
from numpyro.infer.elbo import ELBO
from numpyro.infer.svi import SVIState
from tqdm.auto import tqdm

from svgp_ppl.checkpoints import restored
from svgp_ppl.elbo import MarginalELBO, hold_beliefs
from svgp_ppl.failures import explain_non_finite
from svgp_ppl.fitted import Fit, NonFiniteBoundError
from svgp_ppl.minibatches import Minibatches, Whole
from svgp_ppl.optimizers import Informed, searches
from svgp_ppl.plates import first_rows, num_observed, require_plate
from svgp_ppl.randomness import (
    random_parts,
    require_deterministic,
    require_reparameterised,
)
from svgp_ppl.stages import releases, staged

__all__ = ["Fit", "NonFiniteBoundError", "fit"]

# Enough updates of the bar to see the bound move, few enough that a block of cheap
# steps is long compared with a dispatch.
_NUM_BLOCKS = 50
_SHORTEST_BLOCK = 10
_SECONDS_BETWEEN_CHECKPOINTS = 30.0

_TOO_LONG = (
    "Every process and site is finite at the last finite values, so the step itself "
    "was too long: use a smaller step size."
)


def fit(
    key,
    model: Callable,
    guide: Callable,
    *args,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 2000,
    loss: ELBO | None = None,
    init: Fit | tuple[Callable, Mapping[str, Any]] | None = None,
    hold: Mapping[str, int] | None = None,
    belief_first: int = 0,
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
    interrupted without losing what was done, continued, and says what went wrong when
    the bound stops being finite.

    Args:
        key: Random key.
        model: NumPyro model.
        guide: NumPyro guide, ``AutoGaussian(model)`` or one written by hand.
        *args: Arguments of model and guide.
        optimizer: An optax transformation; ``optax.adam(1e-2)`` if None. One that
            searches along a line, such as ``optax.lbfgs()``, needs a bound that is not
            random.
        num_steps: Number of steps, at most.
        loss: ``MarginalELBO()`` if None.
        init: An earlier fit of the same model and guide with the same optimiser to
            continue from; or ``(guide, params)``, to start from such parameters.
        hold: Parameter, or a pattern such as ``"*lengthscale*"`` -> number of first
            steps in which it stays where it starts. Steps count on with ``init``.
        belief_first: Number of first steps in which only the parameters of beliefs
            about processes move (Hensman, Matthews, Filippone & Ghahramani 2015).
        batch_size: Number of rows B that the model is given at a step, of the array
            arguments that are as long as the first one; drawn without replacement in
            every epoch. The model's plate has the size N of all rows:
            ``numpyro.plate("data", N, subsample_size=len(x))``.
        patience: Stop early at a plateau: when the mean bound of the last ``patience``
            steps exceeds that of the ``patience`` steps before by no more than
            ``tolerance``.
        tolerance: In nats per datum.
        checkpoint: File for the fit so far, about every half minute and at the end;
            continue with ``init=Fit.load(checkpoint, guide)``.
        progress: Whether to show a progress bar.
        **kwargs: Keyword arguments of model and guide.

    Returns:
        The fit. After a keyboard interrupt, the fit so far (with a warning).

    Raises:
        ValueError: The arguments are not what the model expects, the guide misses a
            process, a count is not positive, the loss would have wrong gradients
            because draws of the guide are not reparameterised, the optimiser cannot do
            with a random bound, the model's plate does not scale minibatches, or
            ``init`` is of another model, guide or optimiser.
        NonFiniteBoundError: The bound is NaN or infinite; says which process or site.

    Example:
        >>> import svgp_ppl as gp
        >>> fitted = gp.fit(
        ...     random.key(0), model, gp.AutoGaussian(model), x, y
        ... )  # doctest: +SKIP
    """
    counts = {"num_steps": num_steps, "patience": 1 if patience is None else patience}
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, and is {value!r}.")
    if checkpoint is not None and not Path(checkpoint).parent.is_dir():
        raise ValueError(f"checkpoint={checkpoint}: there is no such folder.")
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    is_optax = isinstance(optimizer, optax.GradientTransformation)
    loss = MarginalELBO() if loss is None else loss
    key_init, key_look = random.split(key)
    earlier, start = _origin(init)
    if earlier is None:
        order, done = int(random.bits(random.fold_in(key_look, 0))), 0
    else:
        order, done = earlier.seed, len(earlier.losses)
    if batch_size is None:
        run, guide_run, data = model, guide, Whole(args, kwargs)
    else:
        data = Minibatches(args, kwargs, batch_size, order)
        run, guide_run = (first_rows(fn, data.num_rows) for fn in (model, guide))
    svi = SVI(run, guide_run, Informed(optimizer) if is_optax else optimizer, loss)

    def look(params: dict | None, step: int) -> tuple[dict, dict]:
        args, kwargs = data.arguments(step)
        return _traces(run, guide_run, key_look, params, args, kwargs)

    # The first run is outside jit: here the arguments are checked.
    first_args, first_kwargs = data.arguments(done)
    try:
        state = svi.init(key_init, *first_args, init_params=start, **first_kwargs)
    except RuntimeError as error:
        if "Cannot find valid initial parameters" not in str(error):
            raise
        reason = explain_non_finite(look(None, done)[0], otherwise=str(error))
        raise NonFiniteBoundError(
            f"the log density of the model is not finite at the start.\n{reason}", None
        ) from error
    free = svi.optim.get_params(state.optim_state)
    release = releases(svi.get_params(state), hold, belief_first, guide)
    if unknown := sorted(set(start or {}) - set(free)):
        raise ValueError(
            f"init= has values of {unknown}, and the parameters of this model and "
            f"guide are {sorted(free)}."
        )
    if release:
        if not is_optax:
            raise ValueError("hold= and belief_first= need an optax optimiser.")
        svi.optim = Informed(staged(optimizer, release))
        state = state._replace(optim_state=svi.optim.init(free))
    if earlier is not None:
        state = restored(earlier.state, state)
    model_trace, guide_trace = look(svi.get_params(state), done)
    require_reparameterised(loss, model_trace, guide_trace)
    if isinstance(data, Minibatches):
        require_plate(model_trace, data.num_rows, data.batch_size)
    if is_optax and searches(optimizer, free):
        causes = [] if batch_size is None else [f"batch_size={batch_size}"]
        causes += random_parts(loss, model_trace, guide_trace)
        require_deterministic(svi, state, first_args, first_kwargs, causes)
    num_data = num_observed(model_trace)
    block = min(num_steps, max(_SHORTEST_BLOCK, num_steps // _NUM_BLOCKS))
    block = min(block, data.longest_block or block)

    run_block = _compiled_steps(svi, data, block)
    history = [] if earlier is None else [earlier.losses]
    released = max(release.values(), default=0)
    stopped, saved = False, time.monotonic()

    def so_far() -> Fit:
        params, losses = svi.get_params(state), np.concatenate(history)
        return Fit(params, losses, guide, state, order, stopped)

    with tqdm(total=num_steps, desc="fit", disable=not progress) as bar:
        try:
            arrays = data.block(done, min(block, num_steps), block)
            for start in range(0, num_steps, block):
                count = min(block, num_steps - start)
                after, losses = run_block(state, count, arrays)
                # While the steps run, the rows of the next ones are gathered.
                rest = min(block, num_steps - start - count)
                ahead = data.block(done + start + count, rest, block) if rest else None
                losses = np.asarray(losses)[:count]
                bad = np.flatnonzero(~np.isfinite(losses))
                if len(bad):
                    # The block is deterministic: run it again up to the failing step.
                    first = int(bad[0])
                    state, _ = run_block(state, first, arrays)
                    history.append(losses[:first])
                    failed = look(svi.get_params(state), done + start + first)[0]
                    raise NonFiniteBoundError(
                        f"the bound became {-losses[first]} at step {start + first}.\n"
                        + explain_non_finite(failed, _TOO_LONG)
                        + "\nThe state before that step is in this error's .fit.",
                        so_far(),
                    )
                state, arrays = after, ahead
                history.append(losses)
                bound = -float(np.mean(losses))
                words = f"bound {bound:.4g} nats, {bound / num_data:.4f} per datum"
                if patience is not None:
                    settled = np.concatenate(history)[released:]
                    stopped = _is_plateau(settled, patience, tolerance * num_data)
                bar.update(count)
                bar.set_postfix_str(words + ", stopped early" * stopped)
                if stopped:
                    break
                if checkpoint is not None and time.monotonic() - saved > (
                    _SECONDS_BETWEEN_CHECKPOINTS
                ):
                    so_far().save(checkpoint)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            if not history:
                raise
            warnings.warn(
                f"interrupted: returning the fit after {sum(map(len, history))} steps; "
                "continue with fit(..., init=this).",
                stacklevel=2,
            )
    fitted = so_far()
    if checkpoint is not None:
        fitted.save(checkpoint)
    return fitted


def _origin(init) -> tuple[Fit | None, dict | None]:
    """What ``init`` continues, or the parameters from which it starts."""
    match init:
        case None:
            return None, None
        case Fit():
            return init, None
        case (_, Mapping()):
            return None, dict(init[1])
    raise ValueError(
        "init must be what gp.fit returns, or (guide, params), and is a "
        f"{type(init).__name__}."
    )


def _traces(model, guide, key, params: dict | None, args, kwargs) -> tuple[dict, dict]:
    """Traces of the model at what the guide holds, at its prior without params."""
    seen, guide_trace = seed(model, key), {}
    if params is not None:
        held = substitute(seed(guide, key), data=params)
        guide_trace = trace(held).get_trace(*args, **kwargs)
        seen = substitute(hold_beliefs(seen, guide_trace), data=params)
    return trace(seen).get_trace(*args, **kwargs), guide_trace


def _compiled_steps(svi: SVI, data: Minibatches | Whole, block: int) -> Callable:
    """Up to ``block`` steps in one dispatch: the state after them and their losses."""

    @jax.jit
    def run_block(state: SVIState, count, arrays):
        def step(i, carry):
            state, losses = carry
            args, kwargs = data.at(arrays, i)
            state, value = svi.update(state, *args, **kwargs)
            return state, losses.at[i].set(value)

        losses = jnp.zeros(block, jnp.result_type(float))
        return jax.lax.fori_loop(0, count, step, (state, losses))

    return run_block


def _is_plateau(losses: np.ndarray, patience: int, tolerance: float) -> bool:
    """Whether the mean of the last steps is hardly below that of the ones before."""
    if len(losses) < 2 * patience:
        return False
    before = np.mean(losses[-2 * patience : -patience])
    return bool(before - np.mean(losses[-patience:]) <= tolerance)
