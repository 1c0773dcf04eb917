"""Predictions at new inputs, from fits and from draws.

The model is run again at the new inputs once for every draw; a fit counts as one draw,
unless its guide (or a deep model) draws. Moments follow from the laws of total
expectation and variance, densities are averaged in probability.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from jax.scipy.special import logsumexp
from jaxtyping import Array

from svgp_ppl.checks import data_array, require_count, require_key
from svgp_ppl.expectations import predictive_probabilities
from svgp_ppl.linalg import matmul
from svgp_ppl.missing import checked_mask, filled, over_rows
from svgp_ppl.prediction.posterior import (
    Draws,
    Rerun,
    Samples,
    choose_draws,
    observed,
    take_posterior,
)
from svgp_ppl.primitives import Expected

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
        num_data = self._run.rerun.num_data[self._name]
        return f"Prediction of '{self._name}' at {num_data} inputs"

    @cached_property
    def _moments(self) -> dict[str, Any]:
        return self._run.over_draws(self._name, "moments", _moments, _total_moments)

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
        if self._run.rerun.has_layers:
            raise ValueError(
                "latent_covariance is not known for a deep model, whose layers are "
                "drawn at each input by itself. Take it of gp.draw_functions(...): "
                "jnp.cov(draws, rowvar=False)."
            )
        return self._run.over_draws(
            self._name, "covariance", lambda e, key: e.latent.joint(), _total_covariance
        )

    def log_prob(self, y, mask=None) -> Array:
        """Log predictive density of every datum in nats, log E p(y_n | f_n), [N].

        Args:
            y: Data, [N] (and event axes).
            mask: Where y is known, as for ``gp.observe``: [N], or of the shape of y.
                What is not known adds nothing; a row of which nothing is known is 0.

        Raises:
            ValueError: The prediction cannot have these data.
        """
        name = self._name

        def check(sites) -> None:
            expected = observed(sites)[name]
            shapes = expected.batch_shape, expected.event_shape
            known = None if mask is None else checked_mask(mask, name, *shapes)
            expected.checked_data(name, y, known)

        def density(expected: Expected, key, y, *masks) -> Array:
            if not masks:
                return expected.log_predictive(y)
            (known,) = masks
            y = filled(y, known, expected.support)
            value = expected.of_entries(known).log_predictive(y)
            return jnp.where(over_rows(known, expected.event_shape), value, 0.0)

        self._run.rerun.look(check)
        masks = () if mask is None else (jnp.asarray(mask),)
        return self._run.over_draws(
            name,
            ("density", len(masks)),
            density,
            lambda each: logsumexp(each, axis=0) - jnp.log(len(each)),
            jnp.asarray(data_array(y, f"the data of site '{name}'")),
            *masks,
        )

    def sample(self, key, n: int) -> Array:
        """n draws of y at each input (independent between inputs), [n, N]."""
        return self._draw("data", lambda expected, key: expected.sample(key), key, n)

    def sample_latent(self, key, n: int) -> Array:
        """n draws of f at each input (independent between inputs), [n, N] or [n, N, Q].

        Quantiles of any function of f follow: ``jnp.quantile(jnp.exp(draws), ...)``.
        """
        return self._draw(
            "latent", lambda expected, key: expected.sample_latent(key), key, n
        )

    def _draw(self, what: str, function: Callable, key, n: int) -> Array:
        require_key(key)
        n, num_draws = require_count(n, "the number of draws"), self._run.num_draws

        def choose(key_model, key) -> Draws:
            key_choice, key_draw = random.split(key)
            chosen = choose_draws(key_choice, num_draws, n)
            run_keys = _keys_of(key_model, chosen)
            return Draws(chosen, run_keys, random.split(key_draw, n))

        return self._run.over_draws(
            self._name,
            (what, n),
            lambda expected, key, _: function(expected, key),
            lambda each: each,
            key,
            choose=choose,
        )


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
    if key is not None:
        require_key(key, "key")
    rerun = Rerun(model, take_posterior(posterior, params), args, kwargs, key)
    if isinstance(rerun.posterior, Samples):
        num_draws = rerun.posterior.num_draws
    elif not rerun.is_random:
        num_draws = 1
    elif key is None:
        raise ValueError(
            "this prediction draws random numbers (latent sites of the guide, or of "
            "the model that the guide does not have, or the layers of a deep model): "
            "pass key=jax.random.key(...)."
        )
    else:
        num_draws = require_count(num_draws, "num_draws")
    run = _Run(rerun, num_draws, chunk_size)
    return {name: Prediction(run, name) for name in rerun.num_data}


class _Run:
    """The model at the new inputs, one observe site of it at a time."""

    def __init__(self, rerun: Rerun, num_draws: int, chunk_size: int | None):
        self.rerun, self.num_draws = rerun, num_draws
        if chunk_size is not None:
            chunk_size = require_count(chunk_size, "chunk_size")
        self.chunk_size = chunk_size

    def over_draws(
        self,
        name: str,
        what: Hashable,
        function: Callable,
        reduce: Callable,
        *data,
        choose: Callable | None = None,
    ) -> Any:
        """``reduce`` of ``function(expected, key, *data)`` at every draw.

        Args:
            name: Name of the observe site.
            what: What determines the functions.
            function: Of what is observed, a key, and ``data``.
            reduce: Of its values on a new first axis.
            *data: Further arrays.
            choose: Which draws; all of them if None.
        """
        size, num_draws = self.chunk_size, self.num_draws

        def chunked(expected: Expected) -> Expected:
            rows = size or expected.chunk_size or _ROWS_AT_A_TIME
            options = {"method": expected.method, "key": expected.key}
            latent = expected.latent
            return Expected(expected.likelihood, latent, chunk_size=rows, **options)

        def all_draws(key, *_) -> Draws:
            keys = random.split(random.fold_in(key, 0), num_draws)
            indices = jnp.arange(num_draws)
            return Draws(indices, _keys_of(key, indices), keys)

        rows = min(self.rerun.num_data[name], _ROWS_AT_A_TIME)
        return self.rerun.over_draws(
            all_draws if choose is None else choose,
            lambda sites, *rest: function(chunked(observed(sites)[name]), *rest),
            reduce,
            ("prediction", name, what, size, num_draws),
            *data,
            batch_size=max(1, _ROWS_AT_A_TIME // rows),
        )


def _keys_of(key, indices: Array) -> Any:
    """The key with which each draw is run."""
    return jax.vmap(lambda index: random.fold_in(key, index))(indices)


def _moments(expected: Expected, key) -> dict[str, Any]:
    """Moments of latent and data under one draw."""
    marginal = expected.marginal()
    return {
        "latent": (marginal.average(marginal.mean), marginal.total_variance),
        "data": (expected.mean, expected.variance),
        "probs": predictive_probabilities(
            expected.likelihood, expected.support, marginal
        ),
    }


def _total_moments(each: dict[str, Any]) -> dict[str, Any]:
    """Moments over the draws: E = mean of means, Var = mean variance + spread."""

    def total(means, variances):
        mean = jnp.mean(means, axis=0)
        return mean, jnp.mean(variances + jnp.square(means - mean), axis=0)

    latent_mean, latent_variance = total(*each["latent"])
    mean, variance = total(*each["data"])
    probs = None if each["probs"] is None else jnp.mean(each["probs"], axis=0)
    return {
        "latent_mean": latent_mean,
        "latent_variance": latent_variance,
        "mean": mean,
        "variance": variance,
        "probs": probs,
    }


def _total_covariance(each: tuple[Array, Array]) -> Array:
    """Covariance over the draws: mean of covariances + covariance of means."""
    means, covariances = each
    shift = means - jnp.mean(means, axis=0)
    flat = shift.reshape(len(shift), -1)
    spread = matmul(flat.T, flat) / len(flat)
    return jnp.mean(covariances, axis=0) + spread.reshape(covariances.shape[1:])
