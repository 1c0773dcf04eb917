"""A published experiment: what varies, what is measured, how long it may take."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Settings = dict[str, Any]
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Measure:
    """A number that a run gives: its name, its digits, which direction is better."""

    name: str
    digits: int = 3
    better: Literal["higher", "lower"] | None = None


@dataclass(frozen=True)
class Budget:
    """Splits, settings, and which of the cases; None is all of them."""

    splits: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    cases: tuple[Settings, ...] | None = None


@dataclass(frozen=True)
class Contrast:
    """What one case gains over another in a measure, split by split."""

    name: str
    measure: str
    case: Settings
    over: Settings


@dataclass(frozen=True, eq=False)
class Experiment:
    """Settings to numbers, for every case and split.

    Attributes:
        paper: Key of the paper, such as "deep-2017".
        name: What ``--experiment`` calls it.
        run: Settings (those of the budget and the case, and "checkpoint", a path that a
            long fit or chains may use) and the number of the split to numbers. Two
            entries are no measures: "errors", standard errors over the test rows by
            measure, and "curves", arrays that figures need.
        cases: What the rows of the table differ in.
        measures: The columns of the table.
        quick: Minutes on two cores.
        full: The settings of the paper.
        x64: Double precision.
        differs: What differs from the paper at any budget, in words.
        contrasts: Differences of cases on the same split.
    """

    paper: str
    name: str
    run: Callable[[Settings, int], Numbers]
    cases: tuple[Settings, ...]
    measures: tuple[Measure, ...]
    quick: Budget
    full: Budget
    x64: bool = False
    differs: str = ""
    contrasts: tuple[Contrast, ...] = ()

    def budget(self, name: str) -> Budget:
        """That of the name "quick" or "paper"."""
        return {"quick": self.quick, "paper": self.full}[name]

    def settings(self, budget: str) -> list[Settings]:
        """Those of every case."""
        held = self.budget(budget)
        cases = self.cases if held.cases is None else held.cases
        return [{**held.settings, **case} for case in cases]


def label(case: Settings) -> str:
    """A case in words: values that are words as they are, numbers by their names."""
    parts = []
    for name, value in case.items():
        if isinstance(value, bool):
            parts.append(name if value else f"no {name}")
        else:
            parts.append(value if isinstance(value, str) else f"{name} {value}")
    return ", ".join(parts)
