"""Predictions at new inputs, from fits and from draws.

The model is run again at the new inputs once for every draw; a fit counts as one draw,
unless its guide (or a deep model) draws. Moments follow from the laws of total
expectation and variance, densities are averaged in probability.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from svgp_ppl.checks import is_key, require_count, require_key
from svgp_ppl.inducing_origin import require_same_z
from svgp_ppl.prediction.observe_sites import ObserveSites
from svgp_ppl.prediction.posterior import Samples, take_posterior
from svgp_ppl.prediction.posterior_model import PosteriorModel
from svgp_ppl.prediction.prediction import Prediction
from svgp_ppl.process_facts import require_same_processes
from svgp_ppl.rows import as_it_is_now

__all__ = ["Prediction", "predict"]


def predict(
    model: Callable,
    posterior,
    *args,
    params: Mapping[str, Any] | None = None,
    key=None,
    num_draws: int = 100,
    chunk_size: int | None = None,
    **kwargs,
) -> dict[str, Prediction]:
    """Run the model again at new inputs and predict at its ``observe`` sites.

    Args:
        model: The model that was fitted or sampled.
        posterior: What ``fit`` or ``sample`` returns, ``(guide, params)``, or a dict of
            NumPyro samples, site -> [draws, ...].
        *args: Arguments of the model at the new inputs, without y.
        params: Values of the ``param`` sites; only needed for a dict of samples.
        key: Random key; only needed when the guide or a deep model draws.
        num_draws: Number of such draws.
        chunk_size: Inputs projected at a time; chosen automatically if None.
        **kwargs: Keyword arguments of the model.

    Returns:
        Site name -> :class:`Prediction`, computed when first read: the moments of all
        sites together.

    Raises:
        ValueError: ``posterior`` is none of these or misses a process; or a key is
            needed.

    Example:
        >>> import svgp_ppl as gp
        >>> at_new = gp.predict(model, draws, x_new)["y"]
        >>> at_new.mean.shape, at_new.log_prob(y_new).shape
        ((2,), (2,))
    """
    if key is not None:
        require_key(key, "key")
    # Moments and densities are computed when they are read, maybe after the arguments
    # have been written into.
    args, kwargs = jax.tree.map(as_it_is_now, (args, kwargs))
    with _naming_a_key_among(args):
        require_same_z(posterior, model, args, kwargs)
        taken = take_posterior(posterior, params)
        runs = PosteriorModel(model, taken, args, kwargs, key)
        require_same_processes(posterior, runs.facts.processes)
    if runs.num_data and not runs.reads_inputs():
        warnings.warn(
            "the predictions do not depend on the arrays passed to the model as "
            "inputs: the processes are called with others, maybe with those of the "
            "fit. The model must take them from its argument: f(x), with x no variable "
            "from outside, and no latent site whose values the posterior has.",
            stacklevel=2,
        )
    if isinstance(runs.posterior, Samples):
        num_draws = runs.posterior.num_draws
    elif not runs.facts.is_random:
        num_draws = 1
    elif key is None:
        raise ValueError(
            "this prediction draws random numbers (latent sites of the guide, or of "
            "the model that the guide does not have, the layers of a deep model, or "
            "keys for which the model asks itself): pass key=jax.random.key(...)."
        )
    else:
        num_draws = require_count(num_draws, "num_draws")
    sites = ObserveSites(runs, num_draws, chunk_size)
    return _BySite({name: Prediction(sites, name) for name in runs.num_data})


@contextmanager
def _naming_a_key_among(args: tuple) -> Iterator[None]:
    """Say of an error that a key went to the model where its inputs are meant to be."""
    try:
        yield
    except Exception as error:
        if args and is_key(args[0]):
            error.add_note(
                "The first argument for the model is a random key. If its inputs were "
                "meant: predict takes the key by name, predict(x_new, key=key)."
            )
        raise


class _BySite(dict):
    """Predictions by site."""

    def __missing__(self, name):
        raise KeyError(
            f"there is no observe site {name!r}, only {', '.join(map(repr, self))}; "
            "moments of its latent are latent_mean and latent_variance."
        )
