"""Predictions at new inputs, from fits and from draws.

The model is run again at the new inputs once for every draw; a fit counts as one draw,
unless its guide (or a deep model) draws. Moments follow from the laws of total
expectation and variance, densities are averaged in probability.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jax.scipy.special import logsumexp
from jaxtyping import Array

from svgp_ppl.arguments import take_apart
from svgp_ppl.predictive import predictive_probabilities
from svgp_ppl.primitives import Expected, is_layer
from svgp_ppl.rerun import Rerun, Samples, choose_draws, is_random, take_posterior

__all__ = ["Prediction", "predict"]

# Rows (test inputs times draws) projected at a time: memory without loss of speed.
_ROWS_AT_A_TIME = 5000


class Prediction:
    """What is predicted at one ``observe`` site, for N new inputs.

    Attributes:
        latent_mean: E f_n, [N] or [N, Q].
        latent_variance: Var f_n, same shape.
        mean: E y_n, [N] (and event axes).
        variance: Var y_n, same shape.
        probs: P(y_n = 1), [N], for y in {0, 1}; class probabilities, [N, C], for y in
            {0, …, C − 1}; None otherwise.
    """

    def __init__(self, run: "_Run", name: str):
        self._run, self._name = run, name

    def __repr__(self) -> str:
        return f"Prediction of '{self._name}' at {len(self.mean)} inputs"

    @cached_property
    def _moments(self) -> dict[str, Any]:
        def moments(expected: Expected, key) -> dict:
            marginal = expected.marginal()
            return {
                "latent": (marginal.average(marginal.mean), marginal.total_variance),
                "data": (expected.mean, expected.variance),
                "probs": predictive_probabilities(
                    expected.likelihood, expected.support, marginal
                ),
            }

        each = self._run.over_draws(self._name, moments)
        latent_mean, latent_variance = _total_moments(*each["latent"])
        mean, variance = _total_moments(*each["data"])
        probs = None if each["probs"] is None else jnp.mean(each["probs"], axis=0)
        return {
            "latent_mean": latent_mean,
            "latent_variance": latent_variance,
            "mean": mean,
            "variance": variance,
            "probs": probs,
        }

    @property
    def latent_mean(self) -> Array:
        """E f_n, [N] or [N, Q]."""
        return self._moments["latent_mean"]

    @property
    def latent_variance(self) -> Array:
        """Var f_n, [N] or [N, Q]."""
        return self._moments["latent_variance"]

    @property
    def mean(self) -> Array:
        """E y_n, [N]."""
        return self._moments["mean"]

    @property
    def variance(self) -> Array:
        """Var y_n, [N]."""
        return self._moments["variance"]

    @property
    def probs(self) -> Array | None:
        """Class probabilities, [N] for y in {0, 1} and [N, C] for C classes."""
        return self._moments["probs"]

    @cached_property
    def latent_covariance(self) -> Array:
        """Cov of f over all inputs together, [N, N] or [N, Q, N, Q].

        Raises:
            ValueError: The model has layers: theirs are drawn input by input.
        """
        if any(map(is_layer, self._run.rerun.sites.values())):
            raise ValueError(
                "latent_covariance is not known for a deep model, whose layers are "
                "drawn at each input by itself. Take it of gp.draw_functions(...): "
                "jnp.cov(draws, rowvar=False)."
            )
        each = self._run.over_draws(self._name, lambda e, key: e.latent.joint())
        means, covariances = each
        shift = means - jnp.mean(means, axis=0)
        flat = shift.reshape(len(shift), -1)
        spread = (flat.T @ flat / len(flat)).reshape(covariances.shape[1:])
        return jnp.mean(covariances, axis=0) + spread

    def log_prob(self, y) -> Array:
        """Log predictive density of every datum in nats, log E p(y_n | f_n), [N]."""
        y = jnp.asarray(y)

        def density(expected: Expected, key, y):
            expected.require_valid(self._name, y)
            return expected.log_predictive(y)

        self._run.examples[self._name].require_valid(self._name, y)
        each = self._run.over_draws(self._name, density, y)
        return logsumexp(each, axis=0) - jnp.log(len(each))

    def sample(self, key, n: int) -> Array:
        """n draws of y at each input (independent between inputs), [n, N]."""
        return self._draw(lambda expected, key: expected.sample(key), key, n)

    def sample_latent(self, key, n: int) -> Array:
        """n draws of f at each input (independent between inputs), [n, N] or [n, N, Q].

        Quantiles of any function of f follow: ``jnp.quantile(jnp.exp(draws), ...)``.
        """
        return self._draw(lambda expected, key: expected.sample_latent(key), key, n)

    def _draw(self, function: Callable, key, n: int) -> Array:
        key_choice, key_draw = random.split(key)
        chosen = choose_draws(key_choice, self._run.num_draws, n)
        keys = random.split(key_draw, n)
        return self._run.over_draws(self._name, function, keys=keys, chosen=chosen)


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
        chunk_size: Inputs projected at a time; chosen by itself if None.
        **kwargs: Keyword arguments of the model.

    Returns:
        Site name -> :class:`Prediction`, computed when first read.

    Raises:
        ValueError: ``posterior`` is none of these or misses a process; or a key is
            needed.

    Example:
        >>> import svgp_ppl as gp
        >>> at_new = gp.predict(model, draws, x_new)["y"]  # doctest: +SKIP
        >>> at_new.mean, at_new.log_prob(y_new)  # doctest: +SKIP
    """
    held = take_posterior(posterior, params)
    arrays, put_back = take_apart(args, kwargs)
    if isinstance(held, Samples):
        num_draws = held.num_draws
    elif not is_random(model, held, args, kwargs):
        num_draws, key = 1, random.key(0)
    elif key is None:
        raise ValueError(
            "this prediction draws random numbers (other latent sites of the guide, or "
            "the layers of a deep model): pass key=jax.random.key(...)."
        )
    rerun = Rerun(model, held, arrays, put_back, key)
    run = _Run(rerun, num_draws, chunk_size)
    return {name: Prediction(run, name) for name in run.examples}


class _Run:
    """The model at the new inputs, one observe site of it at a time."""

    def __init__(self, rerun: Rerun, num_draws: int, chunk_size: int | None):
        self.rerun, self.num_draws, self.chunk_size = rerun, num_draws, chunk_size

    @property
    def examples(self) -> dict[str, Expected]:
        """The observe sites at the first draw."""
        return self.rerun.examples

    def over_draws(self, name: str, function: Callable, *data, keys=None, chosen=None):
        """``function(expected, key, *data)`` for every draw, on a new first axis."""
        indices = jnp.arange(self.num_draws) if chosen is None else chosen
        if keys is None:
            keys = random.split(self.rerun.key_of(0), len(indices))

        def of_site(sites, key, *data):
            return function(self._chunked(sites[name]["fn"]), key, *data)

        run_keys = jax.vmap(self.rerun.key_of)(indices)
        batch_size = self._batch(name)
        return self.rerun.over_draws(
            of_site, indices, run_keys, keys, *data, batch_size=batch_size
        )

    def _chunked(self, expected: Expected) -> Expected:
        size = self.chunk_size or expected.chunk_size or _ROWS_AT_A_TIME
        options = {"method": expected.method, "key": expected.key, "chunk_size": size}
        return Expected(expected.likelihood, expected.latent, **options)

    def _batch(self, name: str) -> int:
        rows = min(self.examples[name].latent.num_data, _ROWS_AT_A_TIME)
        return max(1, _ROWS_AT_A_TIME // rows)


def _total_moments(means: Array, variances: Array) -> tuple[Array, Array]:
    """Moments over the draws: E = mean of means, Var = mean variance + spread."""
    mean = jnp.mean(means, axis=0)
    return mean, jnp.mean(variances + jnp.square(means - mean), axis=0)
