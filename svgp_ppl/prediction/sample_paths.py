"""Posterior draws of whole functions, from fits and from draws.

One draw of the posterior gives the whitened values of every process; each process is
then one function, drawn given them, for the length of one run of the model. Sums,
mixing, layers and several ``observe`` sites see the same function, so that whatever the
model makes of its processes is drawn jointly over inputs and sites.
"""

from collections.abc import Callable, Mapping
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array

from svgp_ppl.checks import is_concrete, require_count, require_key
from svgp_ppl.handlers import PathMethod, as_sample_paths
from svgp_ppl.inducing_origin import require_same_z
from svgp_ppl.observations import Expected, observe_sites
from svgp_ppl.prediction.posterior import Samples, choose_draws, take_posterior
from svgp_ppl.prediction.posterior_model import Draws, PosteriorModel
from svgp_ppl.process_facts import require_same_processes

__all__ = ["draw_functions"]

# Numbers in the largest matrices of the draws evaluated at a time: 32 MB in float64.
_NUMBERS_AT_A_TIME = 2**22


def draw_functions(
    key,
    model: Callable,
    posterior,
    *args,
    num_draws: int = 100,
    method: PathMethod = "exact",
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
            chosen without replacement (in as many rounds as needed).
        method: ``"exact"`` draws the values jointly, O((M + N)³) per process and at
            most 5000 rows; ``"pathwise"`` makes functions of random features, O(N (M +
            num_features)) (Wilson et al. 2020), with the same mean and covariance.
        num_features: Features of a pathwise function.
        params: Values of the ``param`` sites; only needed for a dict of samples.
        **kwargs: Keyword arguments of the model.

    Returns:
        Site name -> latent functions, [num_draws, N] or [num_draws, N, Q].

    Raises:
        ValueError: An argument is none of these; the posterior misses a process; one
            has its values from ``numpyro.handlers.do``; there are too many rows for
            ``"exact"``, or no known spectrum or too few features for ``"pathwise"``; or
            a factorisation failed.

    Example:
        >>> import svgp_ppl as gp
        >>> paths = gp.draw_functions(key, model, fitted, x_new)["y"]
        >>> highest = x_new[jnp.argmax(paths, axis=1)]
    """
    if method not in get_args(PathMethod):
        raise ValueError(
            f"method must be one of {get_args(PathMethod)}, and is {method!r}."
        )
    require_key(key)
    num_draws = require_count(num_draws, "num_draws")
    num_features = require_count(num_features, "num_features")
    taken = take_posterior(posterior, params)
    require_same_z(posterior, model, args, kwargs)
    key_choice, key_model, key_runs, key_functions = random.split(key, 4)
    runs = PosteriorModel(model, taken, args, kwargs, key_model, points=True)
    require_same_processes(posterior, runs.facts.processes)
    numbers = _numbers_of_a_draw(runs, method, num_features)

    def choose(_, key_choice, key_runs, key_functions) -> Draws:
        indices = jnp.zeros(num_draws, int)
        if isinstance(taken, Samples):
            indices = choose_draws(key_choice, taken.num_draws, num_draws)
        keys = (random.split(one, num_draws) for one in (key_runs, key_functions))
        return Draws(indices, *keys)

    draws = runs.over_draws(
        choose,
        lambda sites, *_: {n: _values(e, n) for n, e in observe_sites(sites).items()},
        ("sample paths", num_draws, method, num_features),
        key_choice,
        key_runs,
        key_functions,
        batch_size=min(num_draws, max(1, _NUMBERS_AT_A_TIME // numbers)),
        outer=lambda model, key: as_sample_paths(model, key, method, num_features),
    )
    for name, values in draws.items():
        _require_finite(name, values)
    return draws


def _values(expected: Expected, name: str) -> Array:
    """The functions at the inputs; nothing is left that would be random."""
    if any(expected.latent.terms):
        names = sorted(expected.latent.process_names)
        raise ValueError(
            f"site '{name}' sees {names} at values from numpyro.handlers.do, which "
            "hides them: no function can be drawn there. "
            "Use numpyro.handlers.condition."
        )
    return expected.latent.mean


def _numbers_of_a_draw(
    runs: PosteriorModel, method: PathMethod, num_features: int
) -> int:
    """Numbers in the largest matrix of one draw."""
    n, m = max(runs.num_data.values()), runs.facts.most_inducing
    return (n + m) ** 2 if method == "exact" else (n + m) * max(num_features, m)


def _require_finite(name: str, draws: Array) -> None:
    if not is_concrete(draws):  # inside of jax.jit, vmap or grad
        return
    finite = np.isfinite(np.asarray(draws)).reshape(len(draws), -1).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{np.sum(~finite)} of {len(draws)} draws at site '{name}' are not finite: "
            "the Cholesky factorisation of k(z, z) or of k(x, x) failed, or the "
            'posterior holds NaN. Use float64, or method="pathwise", which factorises '
            "k(z, z) only; for that one, a larger jitter= of sparse_gp."
        )
