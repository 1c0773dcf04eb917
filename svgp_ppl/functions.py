"""Posterior draws of whole functions, from fits and from draws.

One draw of the posterior gives the whitened values of every process; each process is
then one function, drawn given them, for the length of one run of the model. Sums,
mixing, layers and several ``observe`` sites see the same function, so that whatever the
model makes of its processes is drawn jointly over inputs and sites.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array
from numpyro.primitives import Messenger

from svgp_ppl.arguments import take_apart
from svgp_ppl.primitives import is_inducing
from svgp_ppl.realised import ExactFunction, PathwiseFunction, Realised
from svgp_ppl.rerun import Rerun, Samples, choose_draws, observed, take_posterior

__all__ = ["FunctionMethod", "draw_functions", "realise"]

FunctionMethod = Literal["exact", "pathwise"]

# Numbers in the largest matrices of the draws evaluated at a time: 32 MB in float64.
_NUMBERS_AT_A_TIME = 2**22


def draw_functions(
    key,
    model: Callable,
    posterior,
    *args,
    num_draws: int = 100,
    method: FunctionMethod = "exact",
    num_features: int = 1024,
    params: Mapping[str, Any] | None = None,
    **kwargs,
) -> dict[str, Array]:
    """Draws of the latent of every ``observe`` site, joint over inputs and sites.

    Args:
        key: Random key.
        model: The model that was fitted or sampled.
        posterior: What ``fit`` or ``sample`` returns, ``(guide, params)``, or a dict of
            NumPyro samples, site -> [draws, ...].
        *args: Arguments of the model at the inputs asked for, without y.
        num_draws: Number of functions: draws of the guide, or draws of ``posterior``
            chosen without replacement (as often around as needed).
        method: ``"exact"`` draws the values jointly, O((M + N)³) a process and at most
            5000 rows; ``"pathwise"`` makes functions of random features, O(N (M +
            num_features)) (Wilson et al. 2020), with the same mean and covariance.
        num_features: Features of a pathwise function.
        params: Values of the ``param`` sites; only needed for a dict of samples.
        **kwargs: Keyword arguments of the model.

    Returns:
        Site name -> latent functions, [num_draws, N] or [num_draws, N, Q].

    Raises:
        ValueError: An argument is none of these; the posterior misses a process; too
            many rows for ``"exact"``, no known spectrum or too few features for
            ``"pathwise"``; or a factorisation failed.

    Example:
        >>> import svgp_ppl as gp
        >>> paths = gp.draw_functions(key, model, fitted, x_new)["y"]  # doctest: +SKIP
        >>> highest = x_new[jnp.argmax(paths, axis=1)]  # doctest: +SKIP
    """
    if method not in get_args(FunctionMethod):
        raise ValueError(
            f"method must be one of {get_args(FunctionMethod)}, and is {method!r}."
        )
    for name, value in {"num_draws": num_draws, "num_features": num_features}.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, and is {value!r}.")
    held = take_posterior(posterior, params)
    key_choice, key_model, key_runs, key_functions = random.split(key, 4)
    rerun = Rerun(model, held, *take_apart(args, kwargs), key_model, points=True)
    numbers = _numbers_of_a_draw(rerun, method, num_features)
    _require_all_rows(rerun.sites)

    indices = jnp.zeros(num_draws, int)
    if isinstance(held, Samples):
        indices = choose_draws(key_choice, held.num_draws, num_draws)
    draws = rerun.over_draws(
        lambda sites, key: {n: e.latent.mean for n, e in observed(sites).items()},
        indices,
        random.split(key_runs, num_draws),
        random.split(key_functions, num_draws),
        batch_size=min(num_draws, max(1, _NUMBERS_AT_A_TIME // numbers)),
        handler=lambda model, key: realise(model, key, method, num_features),
    )
    for name, values in draws.items():
        _require_finite(name, values)
    return draws


class realise(Messenger):
    """Every process becomes one function, drawn given its whitened values.

    A NumPyro handler, outside those that give the values. Each run of the model draws
    the functions that the key stands for.

    Args:
        fn: The model.
        key: Random key.
        method: As in :func:`draw_functions`.
        num_features: As in :func:`draw_functions`.
    """

    def __init__(self, fn, key, method: FunctionMethod, num_features: int):
        self.key, self.method, self.num_features = key, method, num_features
        super().__init__(fn)

    def process_message(self, msg):
        """Give the site its function in place of v."""
        if msg["type"] != "sample" or not is_inducing(msg):
            return
        name, value, shape = msg["name"], msg["value"], msg["fn"].event_shape
        if value is None:
            raise ValueError(
                f"the posterior has no whitened values of the process '{name}'. Was it "
                "made with this model?"
            )
        if jnp.shape(value) != shape:
            raise ValueError(
                f"the whitened values of process '{name}' must have shape {shape} and "
                f"have {jnp.shape(value)}. Was the posterior made with these inducing "
                "inputs? (A process cannot stand inside a plate: ask for several with "
                "num_outputs.)"
            )
        self.key, key = random.split(self.key)
        if self.method == "exact":
            function: Any = ExactFunction(key, value)
        else:
            jitter = msg["infer"]["inducing"]["jitter"]
            function = PathwiseFunction(key, value, jitter, self.num_features)
        msg["value"] = Realised(value, function)


def _numbers_of_a_draw(rerun: Rerun, method: FunctionMethod, num_features: int) -> int:
    """Numbers in the largest matrix of one draw."""
    n = max(expected.latent.num_data for expected in rerun.examples.values())
    inducing = filter(is_inducing, rerun.sites.values())
    m = max((site["fn"].event_shape[-1] for site in inducing), default=0)
    return (n + m) ** 2 if method == "exact" else (n + m) * max(num_features, m)


def _require_all_rows(sites: dict[str, dict]) -> None:
    """Raise if a plate takes other rows in every run: a function has its inputs."""
    for name, site in sites.items():
        if site["type"] == "plate":
            size, subsample_size = site["args"]
            if subsample_size not in (None, size):
                raise ValueError(
                    f"plate '{name}' takes {subsample_size} of {size} rows, others in "
                    "every run, and functions are drawn at all rows: run the model "
                    "without subsample_size."
                )


def _require_finite(name: str, draws: Array) -> None:
    finite = np.isfinite(draws).reshape(len(draws), -1).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{np.sum(~finite)} of {len(draws)} draws at site '{name}' are not finite: "
            "the Cholesky factorisation of k(z, z) or of k(x, x) failed, or the "
            'posterior holds NaN. Use float64, or method="pathwise", which factorises '
            "k(z, z) only; for that one, a larger jitter= of sparse_gp."
        )
