"""What went wrong, in words: the process or site that made a bound or density NaN."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions.util import scale_and_mask

from svgp_ppl.features import Points
from svgp_ppl.fitting.minibatches import Minibatches
from svgp_ppl.fitting.steps import Block, Steps
from svgp_ppl.handlers import is_inducing
from svgp_ppl.inducing_origin import named_arrays
from svgp_ppl.kernels import kernel_values
from svgp_ppl.linalg import cholesky, default_jitter
from svgp_ppl.rows.arrow import ArrowRows
from svgp_ppl.rows.sharding import first_true

__all__ = ["explain_failure", "explain_non_finite", "holes_in_arguments"]

_TOO_LONG = (
    "Every process and site is finite at the last finite values, so the step itself "
    "was too long: use a smaller step size."
)
_PERHAPS_TOO_LONG = (
    "The bound was finite before: if the last step was too long, use a smaller step "
    "size, or rate of natural_gradient."
)
_OF_BATCH = "(Rows of a site are those of the batch of that step.)"
_NO_DERIVATIVE = (
    "Every process and site is finite there: something in the model has no derivative "
    "at these values (a square root at 0, a branch of jnp.where that is not taken and "
    "is not finite), or the derivative overflows in this precision."
)


def explain_failure(steps: Steps, block: Block, number: int, arrays: Any) -> str:
    """Why a step failed, in words.

    Args:
        steps: The steps.
        block: What the block with the failed step returned.
        number: Number of the failed step.
        arrays: Arrays of the arguments of the block.
    """
    loss = float(block.losses[int(block.done)])
    if np.isfinite(loss):
        names = sorted(name for name, ok in block.is_finite.items() if not ok)
        what = (
            f"the gradient of the bound is not finite at step {number}, though the "
            f"bound is {-loss:.4g}: it would make {names} NaN or infinite."
        )
        otherwise = _NO_DERIVATIVE
    else:
        what, otherwise = f"the bound became {-loss} at step {number}.", _TOO_LONG
    try:
        data = steps.data
        arguments = data.at(arrays, int(block.done))
        at_step = block.state.rng_key, block.params, arguments
        reason = explain_non_finite(steps.traces(*at_step)[1], otherwise)
        if isinstance(data, Minibatches) and reason != otherwise:
            reason = f"{reason}\n{_OF_BATCH}"
        reason += holes_in_arguments(steps.given_model, data.args, data.kwargs)
    except ValueError as error:
        reason = f"The model refuses its values there: {error}"
    except Exception as error:  # the fit is worth more than the explanation
        reason = f"(Looking for the cause failed: {type(error).__name__}: {error})"
    if number and not np.isfinite(loss) and "step size" not in reason:
        reason = f"{reason}\n{_PERHAPS_TOO_LONG}"
    return f"{what}\n{reason}\nThe state before that step is in this error's .fit."


def explain_non_finite(model_trace: dict[str, dict], otherwise: str) -> str:
    """Sentences naming the processes and sites of a trace that are not finite.

    Args:
        model_trace: A trace of the model at the values that failed.
        otherwise: What to say when every process and observed site is finite.
    """
    processes = [
        _explain_process(name, site["infer"]["inducing"])
        for name, site in model_trace.items()
        if is_inducing(site)
    ]
    sites = [
        _explain_site(name, site)
        for name, site in model_trace.items()
        if site["type"] == "sample" and site["is_observed"]
    ]
    # A failed process makes its sites NaN: they matter only if no process failed.
    causes = [cause for cause in processes if cause] or [site for site in sites if site]
    return "\n".join(causes) or otherwise


def holes_in_arguments(model: Callable, args: tuple, kwargs: dict[str, Any]) -> str:
    """A line with the arguments that hold NaN or infinity; empty if none does.

    They are no mistake in data under a mask, or in what a model does not use.

    Args:
        model: The model.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    found = []
    for name, array in named_arrays(model, args, kwargs).items():
        is_in_file = isinstance(array, ArrowRows)  # rows were checked as they were read
        if is_in_file or not jnp.issubdtype(array.dtype, jnp.inexact):
            continue
        xp = jnp if isinstance(array, jax.Array) else np
        if hole := first_true(~xp.isfinite(array)):
            found.append(f"{name} (first at index {hole})")
    if not found:
        return ""
    return (
        f"\nArguments with NaN or infinity: {', '.join(found)}. What is computed of "
        "such entries is NaN too, unless a mask leaves them out: drop or impute them."
    )


def _explain_process(name: str, inducing: dict[str, Any]) -> str | None:
    kernel, features = inducing["kernel"], inducing["features"]
    gram, jitter = features.k_uu(kernel), inducing["jitter"]
    factor = cholesky(gram, jitter)
    if jnp.all(jnp.isfinite(factor)):
        return None
    if jitter is None:
        added = f"{default_jitter(gram.dtype):g} of the mean diagonal (the default)"
    else:
        added = f"{np.max(jitter):g}"
    values = ", ".join(
        f"{name} = {np.array2string(np.asarray(value), precision=4)}"
        for name, value in kernel_values(kernel).items()
    )
    failed = f"Process '{name}': the Cholesky factorisation of"
    facts = f"failed. {values}; dtype {gram.dtype}, jitter {added}"
    advice = (
        "a prior that keeps the lengthscale away from such values, a larger jitter=, "
        "a smaller step size, or float64."
    )
    if not isinstance(features, Points):
        kind = type(features).__name__
        return (
            f"{failed} k_uu of its features, {kind}, {facts}. Use fewer or other "
            f"features, {advice}"
        )
    i, j, distance = _closest_pair(np.asarray(features.z))
    return (
        f"{failed} k(z, z) {facts}; the two closest inducing inputs, rows {i} and {j} "
        f"of z, are {distance:.3g} apart. Use fewer inducing inputs or spread them "
        f"(gp.inducing.kmeans, greedy_variance), {advice}"
    )


def _explain_site(name: str, site: dict) -> str | None:
    # NumPyro would raise where a parameter is infinite, before it can be explained.
    with numpyro.validation_enabled(False):
        log_prob = site["fn"].log_prob(site["value"])
    value = np.asarray(scale_and_mask(log_prob, site["scale"]))
    if np.all(np.isfinite(value)):
        return None
    first = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
    return (
        f"Site '{name}': its log probability is {value[first]} first at datum {first}. "
        "Look at that datum, and at the range of its likelihood's parameters."
    )


def _closest_pair(z: np.ndarray) -> tuple[int, int, float]:
    squares = np.sum((z[:, None] - z[None]) ** 2, axis=-1)
    squares[np.diag_indices(len(z))] = np.inf
    i, j = np.unravel_index(np.argmin(squares), squares.shape)
    return int(min(i, j)), int(max(i, j)), float(np.sqrt(squares[i, j]))
