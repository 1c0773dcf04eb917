"""Ours, the limit, the textbook and peers, each in a process of its own, in turns.

In a round everybody runs a block, one after the other, so that ratios within a round
have the same machine. All start at the same time: what the first block takes, which
compiles, is seconds of processor.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.cases import Case, chosen

__all__ = ["in_words", "median", "ratio", "rows"]

OWN = ("svgp_ppl", "limit", "textbook")
_ROOT = Path(__file__).parent.parent.parent


class Contender:
    """A process that runs blocks when it is asked.

    Args:
        name: A module of ``contenders``.
        python: Interpreter that has its packages.
        case: The case.
        dtype: "float32" or "float64".
    """

    def __init__(self, name: str, python: str, case: Case, dtype: str):
        command = [python, "-m", "benchmarks.speed.worker", name, case.name, dtype]
        options = {"PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
        self.name = name
        self.process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=os.environ | options,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.start: dict[str, Any] = {}
        self.rounds: list[dict[str, float]] = []

    def wait(self) -> None:
        """Until it has run its first block."""
        self.start = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line.strip() else {"missing": "failed"}

    @property
    def takes_part(self) -> bool:
        """Whether it is installed and has this case."""
        return "missing" not in self.start

    def block(self) -> None:
        """Run a block."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "missing" in answer:
            self.start, self.rounds = answer, []
        else:
            self.rounds.append(answer)

    def end(self) -> None:
        """End the process."""
        self.process.communicate()

    def facts(self) -> dict[str, Any]:
        """What is kept of it: times of all rounds, memory of the last."""
        if not self.rounds:
            return self.start
        last = self.rounds[-1]
        return {
            "milliseconds": [_short(each["milliseconds"]) for each in self.rounds],
            "first_processor_seconds": _short(self.start["first"]),
            "gained_gib": _short(last["gained"]),
            "peak_gib": _short(last["peak"]),
            "versions": self.start["versions"],
        }


def rows(options) -> Iterator[dict[str, Any]]:
    """A row for every case."""
    dtype = "float64" if options.x64 else "float32"
    peers = (one.partition("=") for one in options.beside)
    beside = {name: python or sys.executable for name, _, python in peers}
    for case in chosen(options.cases):
        yield measured(case, dtype, options.rounds, beside)


def measured(
    case: Case, dtype: str, rounds: int, beside: dict[str, str]
) -> dict[str, Any]:
    """A row of the results.

    Args:
        case: The case.
        dtype: Precision.
        rounds: Number of rounds.
        beside: Peer -> interpreter that has it.
    """
    with contextlib.ExitStack() as stack:
        everybody = []
        for name, python in (dict.fromkeys(OWN, sys.executable) | beside).items():
            contender = Contender(name, python, case, dtype)
            stack.callback(contender.end)
            everybody.append(contender)
        for contender in everybody:
            contender.wait()
        for _ in range(rounds):
            for contender in filter(lambda c: c.takes_part, everybody):
                contender.block()
        found = {c.name: c.facts() for c in everybody}
    found = {n: f for n, f in found.items() if n not in OWN or "missing" not in f}
    row = {"case": case.name, "n": case.n, "m": case.m, "d": case.d, "dtype": dtype}
    return row | {"contenders": found}


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def median(row: dict[str, Any], name: str) -> float | None:
    """Milliseconds of a contender."""
    found = row["contenders"].get(name, {}).get("milliseconds")
    return None if found is None else float(np.median(found))


def ratio(row: dict[str, Any], above: str, below: str) -> float | None:
    """The median over the rounds of the ratio of two contenders."""
    times = [
        row["contenders"].get(name, {}).get("milliseconds") for name in (above, below)
    ]
    if None in times:
        return None
    return float(np.median(np.divide(*times)))


def in_words(row: dict[str, Any]) -> Iterator[str]:
    """A line for each contender, as they are measured."""
    for name, facts in row["contenders"].items():
        time, against = median(row, name), ratio(row, name, "svgp_ppl")
        if time is None:
            yield f"{row['case']:8s}{row['dtype']:9s}{name:10s}{facts['missing']}"
        else:
            yield (
                f"{row['case']:8s}{row['dtype']:9s}{name:10s}{time:10.3f} ms"
                f"{against or 0:8.2f} x ours"
                f"{facts['first_processor_seconds']:8.1f} s of processor first"
                f"{facts['gained_gib']:8.2f} GiB gained"
            )
