"""Predictions at new inputs, from fits and from draws.

The model is run again at the new inputs once for every draw; a fit counts as one draw,
unless its guide (or a deep model) draws. Moments follow from the laws of total
expectation and variance, densities are averaged in probability.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from jax.scipy.special import logsumexp
from jaxtyping import Array
from numpyro.handlers import seed, substitute, trace

from svgp_ppl.arguments import take_apart
from svgp_ppl.diagnostics import group
from svgp_ppl.elbo import hold_beliefs, marginalised
from svgp_ppl.fit import Fit
from svgp_ppl.predictive import predictive_probabilities
from svgp_ppl.primitives import Expected, is_inducing, is_layer

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
        """Cov of f over all inputs together, [N, N] or [N, Q, N, Q]."""
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
        num_draws = self._run.num_draws
        # Without replacement, as often around as needed: no draw is favoured.
        order = random.permutation(key_choice, num_draws)
        chosen = order[jnp.arange(n) % num_draws]
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
    held = _take_posterior(posterior, params)
    arrays, put_back = take_apart(args, kwargs)
    if isinstance(held, _Samples):
        num_draws = len(next(iter(held.values.values())))
    elif not _draws(model, held, args, kwargs):
        num_draws, key = 1, random.key(0)
    elif key is None:
        raise ValueError(
            "this prediction draws random numbers (other latent sites of the guide, or "
            "the layers of a deep model): pass key=jax.random.key(...)."
        )
    run = _Run(model, held, arrays, put_back, num_draws, key, chunk_size)
    if not run.examples:
        raise ValueError(
            "the model has no observe site to predict; for other sites use "
            "numpyro.infer.Predictive."
        )
    return {name: Prediction(run, name) for name in run.examples}


class _Samples(NamedTuple):
    """Draws of the latent sites, [draws, ...], and the frozen parameters."""

    values: dict[str, Array]
    params: dict[str, Any]


class _Guide(NamedTuple):
    guide: Callable
    params: dict[str, Any]


def _take_posterior(posterior, params) -> _Samples | _Guide:
    match posterior:
        case Fit():
            return _Guide(posterior.guide, dict(posterior.params))
        case (guide, fitted) if callable(guide) and isinstance(fitted, Mapping):
            return _Guide(guide, dict(fitted))
        case dict() if posterior:
            values = {n: jnp.asarray(v) for n, v in posterior.items()}
            return _Samples(values, dict(params or {}))
    draws = group(posterior, "posterior") if isinstance(posterior, Mapping) else {}
    if not draws:
        raise ValueError(
            "posterior must be what gp.fit or gp.sample returns, (guide, params), or a "
            f"dict of samples, and is a {type(posterior).__name__}."
        )
    flat = {n: jnp.asarray(v).reshape(-1, *v.shape[2:]) for n, v in draws.items()}
    frozen = params if params is not None else group(posterior, "constant_data")
    return _Samples(flat, {n: jnp.asarray(v) for n, v in frozen.items()})


def _draws(model, held: _Guide, args, kwargs) -> bool:
    """Whether guide or model draw anything besides the whitened values."""
    run = seed(substitute(held.guide, data=held.params), random.key(0))
    guide_trace = trace(run).get_trace(*args, **kwargs)
    held_model = hold_beliefs(seed(model, random.key(0)), guide_trace)
    sites = trace(substitute(held_model, data=held.params)).get_trace(*args, **kwargs)
    held_as_beliefs = marginalised(sites)
    random_guide = any(
        s["type"] == "sample" and n not in held_as_beliefs and not _is_point(s["fn"])
        for n, s in guide_trace.items()
    )
    has_layers = any(map(is_layer, sites.values()))
    return random_guide or has_layers


def _is_point(distribution) -> bool:
    base = getattr(distribution, "base_dist", distribution)
    return isinstance(base, dist.Delta)


class _Run:
    """The model at the new inputs, ready to be run for every draw."""

    def __init__(self, model, held, arrays, put_back, num_draws, key, chunk_size):
        self.model, self.held = model, held
        self.arrays, self.put_back = arrays, put_back
        self.num_draws, self.key, self.chunk_size = num_draws, key, chunk_size
        # What travels through jit: a guide is code.
        self.leaves = held if isinstance(held, _Samples) else held.params

    def _trace(self, held, key, arrays) -> dict[str, dict]:
        args, kwargs = self.put_back(arrays)
        key_guide, key_model = random.split(key)
        model = substitute(seed(self.model, key_model), data=held.params)
        if isinstance(held, _Samples):
            return trace(substitute(model, data=held.values)).get_trace(*args, **kwargs)
        guide = substitute(seed(held.guide, key_guide), data=held.params)
        guide_trace = trace(guide).get_trace(*args, **kwargs)
        return trace(hold_beliefs(model, guide_trace)).get_trace(*args, **kwargs)

    def _one(self, leaves, index):
        """The posterior at one draw."""
        if isinstance(leaves, _Samples):
            values = {n: v[index] for n, v in leaves.values.items()}
            return _Samples(values, leaves.params)
        return _Guide(self.held.guide, leaves)

    def _key(self, index):
        return random.fold_in(random.key(0) if self.key is None else self.key, index)

    @cached_property
    def examples(self) -> dict[str, Expected]:
        """The observe sites at the first draw; the arguments are checked on the way."""
        sites = self._trace(self._one(self.leaves, 0), self._key(0), self.arrays)
        if isinstance(self.held, _Samples):
            _require_draws(sites, self.held, self.key)
        return {
            name: site["fn"]
            for name, site in sites.items()
            if site["type"] == "sample" and isinstance(site["fn"], Expected)
        }

    def over_draws(self, name: str, function: Callable, *data, keys=None, chosen=None):
        """``function(expected, key, *data)`` for every draw, on a new first axis."""
        indices = jnp.arange(self.num_draws) if chosen is None else chosen
        keys = random.split(self._key(0), len(indices)) if keys is None else keys

        @jax.jit
        def run(leaves, arrays, indices, keys, data):
            def one(packed):
                index, key = packed
                held = self._one(leaves, index)
                sites = self._trace(held, self._key(index), arrays)
                expected = self._chunked(sites[name]["fn"])
                return function(expected, key, *data)

            return jax.lax.map(one, (indices, keys), batch_size=self._batch(name))

        return run(self.leaves, self.arrays, indices, keys, data)

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


def _require_draws(sites: dict[str, dict], held: _Samples, key) -> None:
    missing = {
        name: site
        for name, site in sites.items()
        if site["type"] == "sample"
        and not (site["is_observed"] or isinstance(site["fn"], Expected))
        and name not in held.values
    }
    if any(map(is_inducing, missing.values())) or (missing and key is None):
        raise ValueError(
            f"the posterior has no draws of {sorted(missing)}, only of "
            f"{sorted(held.values)}. Was it made with this model? (A site that was "
            "observed then and is to be drawn now needs key=jax.random.key(...).)"
        )
