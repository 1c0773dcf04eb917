"""Stochastic variational inference: NumPyro's SVI in blocks of compiled steps.

Many steps run in one dispatch (for a small model one call a step takes several times
as long), and between blocks the progress is shown, the bound is checked and an
interrupt is heard.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI, TraceGraph_ELBO
from numpyro.infer.elbo import ELBO
from numpyro.infer.svi import SVIState
from tqdm.auto import tqdm

from svgp_ppl.arguments import take_apart
from svgp_ppl.elbo import MarginalELBO, hold_beliefs, marginalised
from svgp_ppl.failures import explain_non_finite

__all__ = ["Fit", "NonFiniteBoundError", "fit"]

# Enough updates of the bar to see the bound move, few enough that a block of cheap
# steps is long compared with a dispatch.
_NUM_BLOCKS = 50
_SHORTEST_BLOCK = 10

_TOO_LONG = (
    "Every process and site is finite at the last finite values, so the step itself "
    "was too long: use a smaller step size."
)


@dataclass(frozen=True)
class Fit:
    """A fitted guide.

    Attributes:
        params: Values of the ``param`` sites of model and guide, by name.
        losses: Negative bound in nats at every step, [num_steps].
        guide: The guide they belong to.
        state: NumPyro's ``SVIState`` after the last step, to continue from.
    """

    params: dict[str, jax.Array]
    losses: np.ndarray
    guide: Callable
    state: SVIState

    def __repr__(self) -> str:
        last = self.losses[-min(len(self.losses), 100) :]
        bound = f"{-np.mean(last):.3f}" if len(last) else "none"
        names = ", ".join(self.params)
        return f"Fit({len(self.losses)} steps, bound {bound} nats, params: {names})"


class NonFiniteBoundError(FloatingPointError):
    """The bound is NaN or infinite; ``fit`` holds the last finite state.

    ``fit`` is None when there is no such state: the bound is not finite at the start.
    """

    def __init__(self, message: str, fit: Fit | None):
        super().__init__(message)
        self.fit = fit


def fit(
    key,
    model: Callable,
    guide: Callable,
    *args,
    optimizer: optax.GradientTransformation | None = None,
    num_steps: int = 2000,
    loss: ELBO | None = None,
    init: Fit | None = None,
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
        optimizer: An optax transformation; ``optax.adam(1e-2)`` if None.
        num_steps: Number of steps.
        loss: ``MarginalELBO()`` if None.
        init: An earlier fit of the same model and guide to continue from.
        progress: Whether to show a progress bar.
        **kwargs: Keyword arguments of model and guide.

    Returns:
        The fit. After a keyboard interrupt, the fit so far (with a warning).

    Raises:
        ValueError: The arguments are not what the model expects, the guide misses a
            process, ``num_steps`` is not positive, or the loss would have wrong
            gradients because draws of the guide are not reparameterised.
        NonFiniteBoundError: The bound is NaN or infinite; says which process or site.

    Example:
        >>> import svgp_ppl as gp
        >>> fitted = gp.fit(
        ...     random.key(0), model, gp.AutoGaussian(model), x, y
        ... )  # doctest: +SKIP
    """
    if not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(f"num_steps must be a positive integer, and is {num_steps!r}.")
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    loss = MarginalELBO() if loss is None else loss
    svi = SVI(model, guide, optimizer, loss)
    key_init, key_look = random.split(key)
    arrays, put_back = take_apart(args, kwargs)

    def look(params: dict | None) -> tuple[dict, dict]:
        """Traces of the model at what the guide holds, at its prior without params."""
        run, guide_trace = seed(model, key_look), {}
        if params is not None:
            held = substitute(seed(guide, key_look), data=params)
            guide_trace = trace(held).get_trace(*args, **kwargs)
            run = substitute(hold_beliefs(run, guide_trace), data=params)
        return trace(run).get_trace(*args, **kwargs), guide_trace

    # The first run is outside jit: here the arguments are checked.
    try:
        state = svi.init(key_init, *args, **kwargs)
    except RuntimeError as error:
        if "Cannot find valid initial parameters" not in str(error):
            raise
        reason = explain_non_finite(look(None)[0], otherwise=str(error))
        raise NonFiniteBoundError(
            f"the log density of the model is not finite at the start.\n{reason}", None
        ) from error
    if init is not None:
        state = init.state
    model_trace, guide_trace = look(svi.get_params(state))
    _require_reparameterised(loss, model_trace, guide_trace)
    num_data = _num_data(model_trace)
    block = min(num_steps, max(_SHORTEST_BLOCK, num_steps // _NUM_BLOCKS))

    @jax.jit
    def run_block(state: SVIState, count, arrays):
        args, kwargs = put_back(arrays)

        def step(i, carry):
            state, losses = carry
            state, value = svi.update(state, *args, **kwargs)
            return state, losses.at[i].set(value)

        losses = jnp.zeros(block, jnp.result_type(float))
        return jax.lax.fori_loop(0, count, step, (state, losses))

    history = [] if init is None else [init.losses]

    def so_far() -> Fit:
        return Fit(svi.get_params(state), np.concatenate(history), guide, state)

    with tqdm(total=num_steps, desc="fit", disable=not progress) as bar:
        try:
            for start in range(0, num_steps, block):
                count = min(block, num_steps - start)
                after, losses = run_block(state, count, arrays)
                losses = np.asarray(losses)[:count]
                bad = np.flatnonzero(~np.isfinite(losses))
                if len(bad):
                    # The block is deterministic: run it again up to the failing step.
                    first = int(bad[0])
                    state, _ = run_block(state, first, arrays)
                    history.append(losses[:first])
                    raise NonFiniteBoundError(
                        f"the bound became {-losses[first]} at step {start + first}.\n"
                        + explain_non_finite(look(svi.get_params(state))[0], _TOO_LONG)
                        + "\nThe state before that step is in this error's .fit.",
                        so_far(),
                    )
                state = after
                history.append(losses)
                bound = -float(np.mean(losses))
                bar.update(count)
                bar.set_postfix_str(
                    f"bound {bound:.4g} nats, {bound / num_data:.4f} per datum"
                )
        except KeyboardInterrupt:
            if not history:
                raise
            warnings.warn(
                f"interrupted: returning the fit after {sum(map(len, history))} steps; "
                "continue with fit(..., init=this).",
                stacklevel=2,
            )
    return so_far()


def _require_reparameterised(loss: ELBO, model_trace: dict, guide_trace: dict) -> None:
    """Refuse a loss whose gradient would be wrong, though its value is right."""
    if isinstance(loss, TraceGraph_ELBO):
        return
    exact = marginalised(model_trace) if isinstance(loss, MarginalELBO) else set()
    for name, site in guide_trace.items():
        is_drawn = site["type"] == "sample" and name not in exact
        if is_drawn and not (site["fn"].has_rsample or site["fn"].is_discrete):
            raise ValueError(
                f"draws of the guide's site '{name}' ({type(site['fn']).__name__}) are "
                f"not reparameterised, so {type(loss).__name__} has wrong gradients. "
                "Use loss=gp.MarginalELBO() (the default) for beliefs about processes, "
                "or numpyro.infer.TraceGraph_ELBO()."
            )


def _num_data(model_trace: dict[str, Any]) -> float:
    """Number of observed data, counting what a subsampled plate stands for."""
    total = 0.0
    for site in model_trace.values():
        if site["type"] == "sample" and site["is_observed"]:
            scale = 1.0 if site["scale"] is None else float(site["scale"])
            total += scale * float(np.prod(site["fn"].batch_shape))
    return max(total, 1.0)
