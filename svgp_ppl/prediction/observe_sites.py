"""The model at new inputs, one observe site of it at a time."""

from collections.abc import Callable, Hashable
from typing import Any

from svgp_ppl.checks import require_count
from svgp_ppl.expectations import (
    predictive_mean_and_variance,
    predictive_probabilities,
)
from svgp_ppl.prediction.averages import Average
from svgp_ppl.prediction.posterior_model import (
    ROWS_AT_A_TIME,
    PosteriorModel,
    every_draw,
    observed,
)
from svgp_ppl.primitives import Expected

__all__ = ["ObserveSites", "moments"]


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
        average: Average | None,
        *data,
        choose: Callable | None = None,
    ) -> Any:
        """``function(expected, key, *data)`` at every draw, or an average of it.

        Args:
            name: Name of the observe site.
            what: What determines the functions.
            function: Of what is observed, a key, and ``data``.
            average: What is returned; the values, on a new first axis, if None.
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
            ("prediction", name, what, size, num_draws),
            *data,
            batch_size=max(1, ROWS_AT_A_TIME // rows),
            average=average,
        )


def moments(expected: Expected, key) -> dict[str, Any]:
    """Moments of latent and data under one draw."""
    marginal = expected.marginal()
    return {
        "latent": (marginal.average(marginal.mean), marginal.total_variance),
        "data": predictive_mean_and_variance(expected.likelihood, marginal),
        "probs": predictive_probabilities(
            expected.likelihood, expected.support, marginal
        ),
    }
