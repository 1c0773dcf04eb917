"""The model at new inputs, one observe site of it at a time."""

from collections.abc import Callable, Hashable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from svgp_ppl.checks import require_count
from svgp_ppl.expectations import predictive_probabilities
from svgp_ppl.linalg import matmul
from svgp_ppl.prediction.posterior_model import (
    ROWS_AT_A_TIME,
    PosteriorModel,
    every_draw,
    observed,
)
from svgp_ppl.primitives import Expected

__all__ = ["ObserveSites", "moments", "total_covariance", "total_moments"]


class ObserveSites:
    """The model at the new inputs, one observe site of it at a time."""

    def __init__(self, runs: PosteriorModel, num_draws: int, chunk_size: int | None):
        self.runs, self.num_draws = runs, num_draws
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
            rows = size or expected.chunk_size or ROWS_AT_A_TIME
            options = {"method": expected.method, "key": expected.key}
            latent = expected.latent
            return Expected(expected.likelihood, latent, chunk_size=rows, **options)

        rows = min(self.runs.num_data[name], ROWS_AT_A_TIME)
        return self.runs.over_draws(
            every_draw(num_draws) if choose is None else choose,
            lambda sites, *rest: function(chunked(observed(sites)[name]), *rest),
            reduce,
            ("prediction", name, what, size, num_draws),
            *data,
            batch_size=max(1, ROWS_AT_A_TIME // rows),
        )


def moments(expected: Expected, key) -> dict[str, Any]:
    """Moments of latent and data under one draw."""
    marginal = expected.marginal()
    return {
        "latent": (marginal.average(marginal.mean), marginal.total_variance),
        "data": (expected.mean, expected.variance),
        "probs": predictive_probabilities(
            expected.likelihood, expected.support, marginal
        ),
    }


def total_moments(each: dict[str, Any]) -> dict[str, Any]:
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


def total_covariance(each: tuple[Array, Array]) -> Array:
    """Covariance over the draws: mean of covariances + covariance of means."""
    means, covariances = each
    shift = means - jnp.mean(means, axis=0)
    flat = shift.reshape(len(shift), -1)
    spread = matmul(flat.T, flat) / len(flat)
    return jnp.mean(covariances, axis=0) + spread.reshape(covariances.shape[1:])
