"""A run as its report sees it: draws element by element, and how they were made."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from svgp_ppl.diagnostics.posterior import arrays_of, attributes_of, group, label

__all__ = ["Run", "run_of"]

# A chain is stuck if it stands still for this share of its draws, and for this many:
# a random walk that accepts a quarter of its proposals seldom waits for 30.
_STILL_SHARE = 0.1
_STILL_DRAWS = 50

# Sums to one, unit diagonals and the like differ by a few units of rounding.
_ROUNDING = 16


@dataclass(frozen=True)
class Run:
    """Draws of all elements of all variables, and what is known of the sampler.

    Attributes:
        posterior: The argument of the report.
        draws: Draws in double precision.
        names: Names of the elements, such as f[3].
        epsilon: Relative rounding of the precision in which an element was stored.
        stats: Statistics of the draws by name, each [chains, draws]; others, such as
            those of several step methods, are left out.
        attributes: Those of the posterior, set by ``gp.sample``. All may be absent.
    """

    posterior: Any
    draws: Float[np.ndarray, "chains draws elements"]
    names: list[str]
    epsilon: Float[np.ndarray, " elements"]
    stats: dict[str, np.ndarray]
    attributes: dict[str, Any]

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return self.draws.shape[0]

    @property
    def num_draws(self) -> int:
        """Draws of a chain."""
        return self.draws.shape[1]

    @property
    def sampler(self) -> str | None:
        """Name of the sampler's class; None where it is not known."""
        return self.attributes.get("sampler")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Fields of the sampler by name; empty where they are not known."""
        if self.sampler is None:
            return {}
        try:
            found = json.loads(self.attributes.get("sampler_settings", "{}"))
        except (TypeError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def is_single(self) -> bool:
        """Whether an element was stored in less than double precision."""
        return bool(np.any(self.epsilon > np.finfo(np.float64).eps))

    @cached_property
    def finite(self) -> Bool[np.ndarray, " elements"]:
        """Whether an element is finite in all draws."""
        return np.asarray(np.isfinite(self.draws).all(axis=(0, 1)))

    @cached_property
    def constant(self) -> Bool[np.ndarray, " elements"]:
        """Whether an element is one and the same in all draws of all chains.

        Such an element is taken for a constant deterministic site, such as a fixed
        column, as long as others move. Chains that are stuck would each have a value of
        their own, unless all started at the same place.
        """
        with np.errstate(invalid="ignore"):
            low, high = self.draws.min(axis=(0, 1)), self.draws.max(axis=(0, 1))
            allowed = _ROUNDING * self.epsilon * np.maximum(np.abs(low), np.abs(high))
            return np.asarray(self.finite & (high - low <= allowed))

    @cached_property
    def still(self) -> Int[np.ndarray, "2 chains elements"]:
        """First draw and length of the longest stretch in which an element is still."""
        length = np.ones(self.draws[:, 0].shape, int)
        longest, last = length.copy(), np.zeros_like(length)
        for t in range(1, self.num_draws):
            length = np.where(self.draws[:, t] == self.draws[:, t - 1], length + 1, 1)
            last = np.where(length > longest, t, last)
            longest = np.maximum(longest, length)
        return np.stack([last - longest + 1, longest])

    @cached_property
    def stuck(self) -> Bool[np.ndarray, "chains elements"]:
        """Whether a chain stands still in an element that ought to move.

        It is stuck if it stands still for a tenth of the run and fifty draws, or for
        all of it, at a value that occurs nowhere else. Values that do are legitimate
        and happen to repeat: those of an indicator, or of something clipped.
        """
        first, length = self.still
        long = min(self.num_draws, max(_STILL_DRAWS, _STILL_SHARE * self.num_draws))
        stuck = (length >= long) & self.finite & ~self.constant
        times = np.arange(self.num_draws)[:, None]
        for element in np.flatnonzero(stuck.any(axis=0)):
            start, end = first[:, element], first[:, element] + length[:, element]
            in_stretch = ((times >= start) & (times < end)).T
            elsewhere = self.draws[..., element][~in_stretch]
            values = self.draws[np.arange(self.num_chains), start, element]
            stuck[:, element] &= ~np.isin(values, elsewhere)
        return stuck

    @cached_property
    def moving(self) -> Bool[np.ndarray, " elements"]:
        """Whether an element has statistics: it is finite, and moves in all chains."""
        return self.finite & ~self.constant & ~self.stuck.any(axis=0)

    @property
    def is_stuck(self) -> bool:
        """Whether a chain stands still somewhere, or nothing moves at all."""
        nothing_moves = len(self.names) > 0 and self.constant.all()
        return bool(self.stuck.any() or nothing_moves)


def run_of(posterior: Any) -> Run:
    """A run from an ArviZ object, or from arrays by name.

    Raises:
        ValueError: There are no draws, or nothing beside them in an ArviZ object.
    """
    arrays = arrays_of(posterior)
    is_dict = isinstance(posterior, dict)
    if not is_dict and "posterior" not in posterior:
        raise ValueError(
            "a posterior by itself does not say how its draws were made, and "
            "divergences would not be seen: give the whole object, draws and not "
            "draws.posterior."
        )
    stored = posterior if is_dict else group(posterior, "posterior")
    shape = next(iter(arrays.values())).shape[:2]
    if 0 in shape:
        raise ValueError(f"There are no draws: {shape[0]} chains of {shape[1]}.")
    names, epsilon = [], []
    for name, values in arrays.items():
        elements = [label(name, index) for index in np.ndindex(values.shape[2:])]
        names += elements
        epsilon += [_epsilon(stored[name])] * len(elements)
    stats = {} if is_dict else group(posterior, "sample_stats")
    return Run(
        posterior=posterior,
        draws=np.concatenate(
            [x.reshape(*shape, int(np.prod(x.shape[2:]))) for x in arrays.values()],
            axis=-1,
        ),
        names=names,
        epsilon=np.asarray(epsilon, np.float64),
        stats={name: x for name, x in stats.items() if x.shape == shape},
        attributes={} if is_dict else attributes_of(posterior),
    )


def _epsilon(values: Any) -> float:
    dtype = np.asarray(values).dtype
    kind = dtype if np.issubdtype(dtype, np.floating) else np.dtype(np.float64)
    return float(np.finfo(kind).eps)
