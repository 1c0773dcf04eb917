"""The interface of a sampler: a handful of pure functions on one chain."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from svgp_ppl.mcmc.samplers.tuning import rounds

__all__ = [
    "CHAINS",
    "Adaptive",
    "AdaptsOnHost",
    "HostAdaptation",
    "HostAdapted",
    "Sampler",
    "StepsThenAdapts",
    "StochasticGradient",
    "TunesTogether",
    "UsesPrior",
    "is_biased",
    "require_numbers",
    "require_positive",
    "tunes_together",
]

# Name of the axis of chains, for samplers that tune on all chains together.
CHAINS = "chains"


@runtime_checkable
class Sampler(Protocol):
    """One chain of a Markov chain Monte Carlo method, as pure functions of arrays.

    ``logdensity_fn(position)`` has one argument here. The state is all that the next
    step needs and has a field ``position``; info is everything else, a NamedTuple of
    scalars whose names become the statistics of the draws. ``n_steps``, the number of
    gradient evaluations, is compulsory (zero for a method without gradients);
    ``diverging``, ``step_size`` and ``acceptance_rate`` are shown by the progress bar
    if present. A sampler is hashable (a frozen dataclass): it is static in the compiled
    code.

    All chains follow one schedule, so a ``lax.cond`` on its entries stays a branch when
    the chains are vectorised, and rare expensive work costs nothing at other steps.
    """

    def init(self, key: Any, position: Any, logdensity_fn: Callable) -> Any:
        """State of the warm-up at a position."""
        ...

    def schedule(self, num_warmup: int) -> Any:
        """What each warm-up step should do: arrays with leading axis num_warmup."""
        ...

    def warmup_step(
        self, key: Any, warmup: Any, logdensity_fn: Callable, entry: Any
    ) -> tuple[Any, Any]:
        """Next state of the warm-up, and info; ``entry`` is one row of the schedule."""
        ...

    def finish(self, warmup: Any) -> tuple[Any, Any]:
        """State and tuned parameters with which the sampling phase starts."""
        ...

    def step(
        self, key: Any, state: Any, logdensity_fn: Callable, tuned: Any
    ) -> tuple[Any, Any]:
        """Next state, and info."""
        ...


@runtime_checkable
class Adaptive(Sampler, Protocol):
    """A sampler whose warm-up takes the same steps as its sampling phase, then adapts.

    Both phases are then one program, which is compiled in half the time.
    ``warmup_step`` is the step with the current tuning and the adaptation after it.
    """

    def current(self, warmup: Any) -> tuple[Any, Any]:
        """State, and the tuning of the next step of the warm-up."""
        ...

    def adapt(self, warmup: Any, state: Any, info: Any, entry: Any) -> Any:
        """The warm-up after a step: its new state and info, a row of the schedule."""
        ...


class HostAdaptation(NamedTuple):
    """How the host adapts a sampler between the rounds of its warm-up.

    Attributes:
        round_length: Steps of a round.
        update: Statistics of a round, arrays [round_length, chains] by name, to the
            tuned parameters of the next one, leaves [chains, ...]; after the last round
            to those of the sampling phase.
    """

    round_length: int
    update: Callable[[dict[str, np.ndarray]], Any]


@runtime_checkable
class HostAdapted(Sampler, Protocol):
    """A sampler that the host adapts between the rounds of its warm-up.

    Its schedule is a whole number of rounds, and the state of its warm-up has a field
    ``tuned``, which is replaced after every round. The program of a round is compiled
    once.
    """

    def host_adaptation(self, num_chains: int, num_warmup: int) -> HostAdaptation:
        """A new adaptation, for one run."""
        ...


@runtime_checkable
class StochasticGradient(Sampler, Protocol):
    """A sampler that uses part of the data at each step, and is biased.

    Its log density has two readings: ``logdensity_fn(position)`` is that of all data,
    ``logdensity_fn(position, key)`` an unbiased estimate from the minibatch that the
    key draws. What a model draws besides its rows (layers of a deep model, nodes of
    ``MonteCarlo``) is fixed in the first reading and drawn anew in the second.
    """

    takes_minibatches: ClassVar[bool]


def is_biased(sampler: Any) -> bool:
    """Whether a sampler uses part of the data at each step."""
    return isinstance(sampler, StochasticGradient) and sampler.takes_minibatches


@runtime_checkable
class UsesPrior(Protocol):
    """A dataclass of a sampler that relies on the prior N(0, I) of whitened values.

    It moves v itself and not other coordinates; ``gp.sample`` fills in ``whitened``,
    the names of the sites with that prior.
    """

    whitened: tuple[str, ...]


@runtime_checkable
class TunesTogether(Protocol):
    """A sampler that tunes on all chains at once, which therefore are vectorised.

    Their axis is named :data:`CHAINS`: ``jax.lax.all_gather`` sees all chains.
    """

    tunes_together: ClassVar[bool]


def tunes_together(sampler: Any) -> bool:
    """Whether a sampler is :class:`TunesTogether`, and says so."""
    return isinstance(sampler, TunesTogether) and sampler.tunes_together


class StepsThenAdapts:
    """``warmup_step`` of an :class:`Adaptive` sampler."""

    def warmup_step(
        self: Any, key: Any, warmup: Any, logdensity_fn: Callable, entry: Any
    ) -> tuple[Any, Any]:
        """A step with the current tuning, then the adaptation."""
        state, tuned = self.current(warmup)
        state, info = self.step(key, state, logdensity_fn, tuned)
        return self.adapt(warmup, state, info, entry), info


class AdaptsOnHost(StepsThenAdapts):
    """An :class:`Adaptive` sampler that the host tunes: nothing adapts in a round.

    Its warm-up has the fields ``state`` and ``tuned``.
    """

    num_rounds: int

    def schedule(self, num_warmup: int) -> Int[Array, " num_warmup"]:
        """Whole rounds; only what the host decides in between differs."""
        length, number = rounds(num_warmup, self.num_rounds)
        return jnp.zeros(length * number, int)

    def current(self, warmup: Any) -> tuple[Any, Any]:
        """State, and the tuning of this round."""
        return warmup.state, warmup.tuned

    def adapt(self, warmup: Any, state: Any, info: Any, entry: Any) -> Any:
        """The host adapts, between rounds."""
        del info, entry
        return warmup._replace(state=state)

    def finish(self, warmup: Any) -> tuple[Any, Any]:
        """State, and the best tuning that was found."""
        return warmup.state, warmup.tuned


def require_numbers(sampler: Any) -> None:
    """Raise unless the settings of a sampler are the numbers they should be.

    Args:
        sampler: A dataclass, with fields annotated as ``int`` or ``float``.

    Raises:
        ValueError: A count is not an integer, or another setting not a finite number.
    """
    for field in dataclasses.fields(sampler):
        value, name = getattr(sampler, field.name), field.name
        is_count = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if field.type in (int, "int") and not is_count:
            raise ValueError(f"{name} must be an integer, and is {value!r}.")
        is_number = is_count or isinstance(value, float | np.floating)
        if field.type in (float, "float") and not (is_number and np.isfinite(value)):
            raise ValueError(f"{name} must be a finite number, and is {value!r}.")


def require_positive(sampler: Any, *names: str) -> None:
    """Raise unless these settings of a sampler, which are numbers, are positive."""
    for name in names:
        value = getattr(sampler, name)
        if value <= 0:
            raise ValueError(f"{name} must be positive, and is {value}.")
