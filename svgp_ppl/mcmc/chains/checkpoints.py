"""Runs of chains as files, from which they continue as if nothing had happened.

A file holds the positions of the chains, what was tuned, all outputs so far, and what
distinguishes this run from others. The key of a step depends on its number alone, so
that the other draws are the same numbers whenever, and in whatever blocks, they are
drawn.
"""

import dataclasses
import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from svgp_ppl.mcmc.chains.phases import Phase, Phases, Start, joined
from svgp_ppl.runtime.checkpoints import Checkpoint, Stored, read, restored, write
from svgp_ppl.runtime.compilation import call
from svgp_ppl.runtime.digests import as_numbers, digest

__all__ = ["Reached", "Rows", "RunFile", "facts_of"]

_UNSAVED = "the chains go on, and their draws are returned at the end."
_REFUSED = (
    "{path} is the checkpoint of another run: {{}}. With the arguments of that run its "
    "chains go on (num_samples alone may differ); for this one give another "
    "checkpoint=, or delete the file."
)


class Rows:
    """Outputs of the steps of a phase, as they arrive.

    Args:
        num_steps: Number of steps; a file may hold more.

    Attributes:
        tree: Arrays [num_steps, chains, ...]; None before the first step. Entries
            beyond the steps that are done have no meaning.
    """

    def __init__(self, num_steps: int):
        self._num_steps, self.tree = num_steps, None

    def put(self, first: int, outputs: Any) -> None:
        """Store outputs of the steps from ``first`` on."""
        if self.tree is None:
            num_steps = max(self._num_steps, len(jax.tree.leaves(outputs)[0]))
            self.tree = jax.tree.map(
                lambda a: np.empty((num_steps, *a.shape[1:]), a.dtype), outputs
            )
        for all_rows, new in zip(jax.tree.leaves(self.tree), jax.tree.leaves(outputs)):
            all_rows[first : first + len(new)] = new

    def between(self, first: int, last: int) -> Any:
        """Outputs of some steps, {} if there was none."""
        if self.tree is None:
            return {}
        return jax.tree.map(lambda a: a[first:last], self.tree)


class Reached(NamedTuple):
    """Where a run stands. Replaced as a whole, so that an interrupt finds it intact.

    Attributes:
        phase: The phase.
        done: Number of its steps that are done.
        carry: State by group, leaves [chains of the group, ...].
        tuned: What the sampler tuned by group; each None in the warm-up.
        num_warmup_steps: Steps of the warm-up that are done.
        seconds: Time of the steps, by phase.
    """

    phase: Phase
    done: int
    carry: tuple
    tuned: tuple
    num_warmup_steps: int
    seconds: dict[str, float]


class RunFile:
    """The checkpoint of a run.

    Args:
        path: Name of the file.

    Raises:
        ValueError: No file can be written there, or there is one of another kind.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = path
        self._file = Checkpoint(path, "chains", _UNSAVED)
        self._facts: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self._found: tuple[dict[str, Any], Stored] | None = None
        self._saved: Reached | None = None

    def before(self, facts: dict[str, Any], compute: Callable[[], Any]) -> Any:
        """What a run needs before its first step: computed once, then from the file.

        Computed again, on another kind of processor, it would have other last digits,
        or an optimiser would have taken another path.

        Args:
            facts: What it depends on besides the data; plain values by name.
            compute: Returns nested dicts of arrays.

        Raises:
            ValueError: The file is of another run; says what differs.
        """
        self._facts = facts
        if self._file.exists():
            record, _ = self._found = read(self._file.path, "chains")
            _require_same(json.loads(record["facts"]), facts, self._refusal())
            arrays, form = record["before"], json.loads(record["form"])
            return jax.tree.map(lambda number: arrays[str(number)], form)
        computed = jax.device_get(compute())
        leaves, structure = jax.tree.flatten(computed)
        self._before = {
            "before": {str(i): leaf for i, leaf in enumerate(leaves)},
            "form": json.dumps(structure.unflatten(range(len(leaves)))),
        }
        return computed

    def _refusal(self) -> str:
        name = str(self.path).replace("{", "{{").replace("}", "}}")
        return _REFUSED.format(path=name)

    def is_due(self) -> bool:
        """Whether it is time to write again."""
        return self._file.is_due()

    def steps_between(self, count: int, seconds: float) -> int:
        """Steps between two writes, if ``count`` take ``seconds``; at least one."""
        return max(1, int(count * self._file.seconds_between / max(seconds, 1e-9)))

    def save(self, reached: Reached, rows: dict[str, Rows], compiling: float) -> None:
        """Write the run, unless already written; a failure is a warning.

        Args:
            reached: Where it stands.
            rows: Outputs of each phase.
            compiling: Seconds of compilation.
        """
        if reached is self._saved:
            return
        warmup = rows["warmup"].between(0, reached.num_warmup_steps)
        record = {
            **self._before,
            "facts": json.dumps(self._facts),
            "phase": reached.phase,
            "done": reached.done,
            "num_warmup_steps": reached.num_warmup_steps,
            "seconds": json.dumps(reached.seconds),
            "compiling": compiling,
            "warmup stats": warmup.get("stats", {}),
        }
        if reached.phase == "sample" and reached.done:
            outputs = rows["sample"].between(0, reached.done)
            draws = enumerate(jax.tree.leaves(outputs["draws"]))
            record["draws"] = {str(i): leaf for i, leaf in draws}
            record["stats"] = outputs["stats"]
        state = joined(zip(reached.carry, reached.tuned))
        if self._file.save(lambda path: write(path, "chains", record, state)):
            self._saved = reached

    def load(
        self,
        facts: dict[str, Any],
        start: Start,
        phases: Phases,
        positions: Any,
        rows: dict[str, Rows],
    ) -> tuple[Reached, float] | None:
        """Where the stored run stood, and its seconds of compilation.

        Args:
            facts: What distinguishes this run from others, by :func:`facts_of`.
            start: Its start.
            phases: Its programs.
            positions: Positions with the number and form of those of the draws.
            rows: Outputs of each phase, to be filled.

        Returns:
            None if there is no file.

        Raises:
            ValueError: The file is of another run; says what differs.
        """
        self._facts |= facts
        if not self._file.exists():
            return None
        record, stored = self._found or read(self._file.path, "chains")
        self._found, refusal = None, self._refusal()
        _require_same(json.loads(record["facts"]), self._facts, refusal)
        self._before = {n: record[n] for n in ("before", "form") if n in record}
        phase: Phase = record["phase"]
        fresh: list = [(warmup, None) for warmup in start.warmup]
        if phase == "sample":
            fresh = [phases.finish(warmup) for warmup in start.warmup]
        groups = phases.groups(restored(stored, joined(fresh), refusal))
        carry, tuned = zip(*map(_as_before, groups, fresh))
        if record["warmup stats"]:
            rows["warmup"].put(0, {"stats": record["warmup stats"]})
        if "draws" in record:
            structure = jax.tree.structure(positions)
            leaves = [record["draws"][str(i)] for i in range(structure.num_leaves)]
            draws = structure.unflatten(leaves)
            rows["sample"].put(0, {"draws": draws, "stats": record["stats"]})
        seconds = json.loads(record["seconds"])
        number = record["num_warmup_steps"]
        self._saved = Reached(phase, record["done"], carry, tuned, number, seconds)
        return self._saved, record["compiling"]


def _as_before(state: Any, fresh: Any) -> Any:
    """Arrays of a file with their former types: JAX's weak ones are weak again."""

    def run(state, fresh):
        return jax.tree.map(lambda new, old: old.at[...].set(new), state, fresh)

    return call(run, ("state of chains from a file",), state, fresh, runs_once=True)


# -------------------------------------------------------------- what tells runs apart

_PLURAL = ("plain arguments", "coordinates", "latent sites")
_OF_MODEL = ("latent sites", "log density")


def facts_of(
    key: Any,
    positions: Any,
    data: Any,
    sampler: Any,
    made_of: Any,
    num_warmup: int,
    logdensity: np.ndarray,
) -> dict[str, Any]:
    """What distinguishes a run from others, in values that a file can hold.

    A function cannot be compared with one of another process: the model is recognised
    by the log density at the start of the chains, which depends on its code and data.
    """
    leaves = jax.tree.leaves(positions)
    plain = int | float | str | np.generic
    options = [v for v in jax.tree.leaves(made_of) if isinstance(v, plain)]
    return {
        "sampler": _in_words(sampler),
        "num_warmup": num_warmup,
        "num_chains": len(leaves[0]),
        "precision": str(np.asarray(logdensity).dtype),
        "key": np.asarray(as_numbers(key)).tolist(),
        "plain arguments": repr(options),
        "data": digest(data),
        "log density": np.asarray(logdensity, float).tolist(),
    }


def _in_words(option: Any) -> str:
    """A sampler or one of its options, the same in every process.

    The ``repr`` of an array leaves out most of a large one, and that of a function or
    another object may be its address.
    """
    if dataclasses.is_dataclass(option) and not isinstance(option, type):
        fields = [field.name for field in dataclasses.fields(option) if field.repr]
        parts = [f"{name}={_in_words(getattr(option, name))}" for name in fields]
        return f"{type(option).__qualname__}({', '.join(parts)})"
    if isinstance(option, np.ndarray | jax.Array):
        return f"{option.dtype}{list(option.shape)} {digest(option)}"
    if isinstance(option, tuple | list):
        inside = ", ".join(map(_in_words, option)) + "," * (len(option) == 1)
        return f"[{inside}]" if isinstance(option, list) else f"({inside})"
    if isinstance(option, partial):
        return _in_words((option.func, *option.args, *option.keywords.items()))
    if hasattr(option, "__qualname__"):  # functions and classes
        return option.__qualname__
    is_address = type(option).__repr__ is object.__repr__
    return type(option).__qualname__ if is_address else repr(option)


def _require_same(found: dict[str, Any], facts: dict[str, Any], refusal: str) -> None:
    """Compare the facts of a file with those expected; the first difference counts.

    Raises:
        ValueError: They differ; says how.
    """
    words = {
        "key": "its random key is another one",
        "data": "its data, or the fit that it starts from, are others",
        "init": "it starts from another init=",
    }
    for name, wanted in facts.items():
        came: Any = found.get(name)
        if name == "log density":  # not bit by bit: it may come from another machine
            precision = 1e-3 if facts["precision"] == "float32" else 1e-6
            is_same = np.allclose(came, wanted, rtol=precision, atol=precision)
        else:
            is_same = came == wanted
        if not is_same:
            verb = "are" if name in _PLURAL else "is"
            plain = f"its {name} {verb} {came}, and should be {wanted}"
            if name in _OF_MODEL:
                plain += ", so its model is another one"
            raise ValueError(refusal.format(words.get(name, plain)))
