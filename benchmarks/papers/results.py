"""Runs as numbers with errors, beside the published ones."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.experiment import Contrast, Experiment, Measure, Settings
from benchmarks.papers.runs import read

PUBLISHED = Path(__file__).parent / "published.json"


@dataclass(frozen=True)
class Value:
    """A mean, its standard error (None: there is none), half its last digit."""

    mean: float
    error: float | None = None
    rounding: float = 0.0

    @classmethod
    def printed(cls, text: str) -> "Value":
        """A value as papers print it, "-2.47(0.05)" or "97.5"."""
        number, _, error = text.rstrip(")").partition("(")
        digits = len(number.partition(".")[2])
        return cls(float(number), float(error) if error else None, 0.5 * 10.0**-digits)


@dataclass(frozen=True)
class Cell:
    """A measure of a case: ours over so many splits, and the published value."""

    measure: Measure
    ours: Value
    num_splits: int
    published: Value | None = None

    @property
    def difference(self) -> Value | None:
        """Ours less the published one; the errors are independent."""
        if self.published is None:
            return None
        known = [e for e in (self.ours.error, self.published.error) if e is not None]
        error = float(np.hypot.reduce(known)) if self.ours.error is not None else None
        return Value(self.ours.mean - self.published.mean, error)

    @property
    def is_comparable(self) -> bool:
        """Whether one direction is better, and there is a published value."""
        return self.published is not None and self.measure.better is not None

    @property
    def is_worse(self) -> bool:
        """Whether ours is worse by more than two standard errors and the rounding."""
        gap = self.difference
        if not self.is_comparable or gap is None or gap.error is None:
            return False
        sign = 1.0 if self.measure.better == "higher" else -1.0
        return sign * gap.mean < -2.0 * gap.error - self.published.rounding


@dataclass(frozen=True)
class Row:
    """A case with its cells, or a contrast with one."""

    case: Settings
    cells: tuple[Cell, ...]


def found(experiment: Experiment, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The larger budget that has runs of today's settings, and these runs.

    Without any the budget is "quick" and the list empty.
    """
    for budget in ("paper", "quick"):
        wanted = [json.dumps(s, sort_keys=True) for s in experiment.settings(budget)]
        files = sorted(
            (folder / experiment.paper).glob(f"{experiment.name}-{budget}-*")
        )
        every = [one for path in files for one in read(path)]
        held = [r for r in every if json.dumps(r["settings"], sort_keys=True) in wanted]
        if held:
            return budget, held
    return "quick", []


def rows(experiment: Experiment, runs: Sequence[dict[str, Any]]) -> list[Row]:
    """A row for each case that has runs, and for each contrast of two of them."""
    each = [_row(experiment, case, _of_case(runs, case)) for case in experiment.cases]
    gains = [_contrast(experiment, one, runs) for one in experiment.contrasts]
    return [row for row in (*each, *gains) if row is not None]


def published(experiment: Experiment, case: Settings, measure: str) -> Value | None:
    """What the paper prints for it."""
    for entry in _published().get(experiment.paper, {}).get(experiment.name, ()):
        if entry["case"] == case and measure in entry:
            return Value.printed(entry[measure])
    return None


def average(values: Sequence[float], error: float | None = None) -> Value:
    """Mean over splits with its error; of one split, the error over its test rows."""
    if len(values) > 1:
        error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return Value(float(np.mean(values)), error)


def _of_case(runs, case: Settings) -> list[dict[str, Any]]:
    return [r for r in runs if case.items() <= r["settings"].items()]


def _row(experiment: Experiment, case: Settings, runs) -> Row | None:
    # {"M": 10} is also among the settings of {"M": 10, "z": "fitted"}: of the cases of
    # a run the longest is its own.
    own = [r for r in runs if case_of(experiment, r) == case]
    cells = []
    for measure in experiment.measures:
        numbers = [r["numbers"] for r in own if measure.name in r["numbers"]]
        if numbers:
            error = numbers[0].get("errors", {}).get(measure.name)
            ours = average([n[measure.name] for n in numbers], error)
            theirs = published(experiment, case, measure.name)
            cells.append(Cell(measure, ours, len(numbers), theirs))
    return Row(case, tuple(cells)) if cells else None


def case_of(experiment: Experiment, run) -> Settings:
    fitting = [c for c in experiment.cases if c.items() <= run["settings"].items()]
    return max(fitting, key=len)


def _contrast(experiment: Experiment, one: Contrast, runs) -> Row | None:
    measure = next(m for m in experiment.measures if m.name == one.measure)
    gains = gains_by_split(experiment, one, runs)
    if not gains:
        return None
    case = {"contrast": one.name}
    theirs = published(experiment, case, one.measure)
    return Row(case, (Cell(measure, average(gains), len(gains), theirs),))


def gains_by_split(experiment: Experiment, one: Contrast, runs) -> list[float]:
    """What one case has more than the other, on every split that both have."""

    def by_split(case: Settings) -> dict[int, float]:
        own = [r for r in runs if case_of(experiment, r) == case]
        return {r["split"]: r["numbers"][one.measure] for r in own}

    a, b = by_split(one.case), by_split(one.over)
    return [a[split] - b[split] for split in sorted(a.keys() & b.keys())]


@cache
def _published() -> dict[str, Any]:
    return json.loads(PUBLISHED.read_text())
