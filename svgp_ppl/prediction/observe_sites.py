"""The model at new inputs: its observe sites, one at a time or all at once."""

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

from svgp_ppl.checks import require_count
from svgp_ppl.expectations import (
    predictive_mean_and_variance,
    predictive_probabilities,
)
from svgp_ppl.observations import Expected, observe_sites
from svgp_ppl.prediction.averages import Average, by_name, total_moments
from svgp_ppl.prediction.posterior_model import (
    ROWS_AT_A_TIME,
    PosteriorModel,
    every_draw,
)

__all__ = ["ObserveSites", "moments_of"]


class ObserveSites:
    """The model at the new inputs: its observe sites, one at a time or all at once."""

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
            function: Function of the expected site, a key, and ``data``.
            average: The average to return; the values, on a new first axis, if None.
            *data: Further arrays.
            choose: Which draws; all of them if None.
        """
        return self._over_draws(
            [name],
            (name, what),
            lambda sites, *rest: function(sites[name], *rest),
            average,
            *data,
            choose=choose,
        )

    def moments(self, name: str) -> dict[str, Any]:
        """Moments of a site; the first call finds those of all in one run of the model.

        If the likelihood of another site fails, only this one is run.
        """
        try:
            return self._of_all_sites[name]
        except (NotImplementedError, ValueError):
            if len(self.runs.num_data) == 1:
                raise
            return self.over_draws(name, "moments", moments_of, total_moments)

    @cached_property
    def _of_all_sites(self) -> dict[str, dict[str, Any]]:
        return self._over_draws(
            list(self.runs.num_data),
            ("moments",),
            lambda sites, key: {n: moments_of(e, key) for n, e in sites.items()},
            by_name(total_moments),
        )

    def _over_draws(
        self,
        names: list[str],
        what: tuple,
        function: Callable,
        average: Average | None,
        *data,
        choose: Callable | None = None,
    ) -> Any:
        """``function({name: expected}, key, *data)``, likewise."""
        size, num_draws = self.chunk_size, self.num_draws

        def chunked(expected: Expected) -> Expected:
            latent = expected.latent
            default = ROWS_AT_A_TIME if latent.has_rows else None
            rows = size or expected.chunk_size or default
            options = {"method": expected.method, "key": expected.key}
            return Expected(expected.likelihood, latent, chunk_size=rows, **options)

        def of_sites(sites, *rest):
            found = observe_sites(sites)
            return function({name: chunked(found[name]) for name in names}, *rest)

        rows = min(sum(self.runs.num_data[name] for name in names), ROWS_AT_A_TIME)
        return self.runs.over_draws(
            every_draw(num_draws) if choose is None else choose,
            of_sites,
            ("prediction", *what, size, num_draws),
            *data,
            batch_size=max(1, ROWS_AT_A_TIME // rows),
            average=average,
        )


def moments_of(expected: Expected, key) -> dict[str, Any]:
    """Moments of latent and data under one draw.

    Those of data are None where NumPyro has no mean or variance of the distribution.
    """
    marginal = expected.marginal()
    try:
        data = predictive_mean_and_variance(expected.likelihood, marginal)
    except NotImplementedError:
        data = None
    return {
        "latent": (marginal.average(marginal.mean), marginal.total_variance),
        "data": data,
        "probs": predictive_probabilities(
            expected.likelihood, expected.support, marginal
        ),
    }
