"""Runs of an experiment, kept as they end; what is there is not run again."""

import json
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from benchmarks.papers import provenance
from benchmarks.papers.experiment import Experiment, label

RESULTS = Path(__file__).parent / "results"


def path_of(out: Path, experiment: Experiment, budget: str, split: int) -> Path:
    """The file of a split: a JSON list of runs, one for each case."""
    return out / experiment.paper / f"{experiment.name}-{budget}-{split}.json"


def read(path: Path) -> list[dict[str, Any]]:
    """The runs in a file; none without it."""
    return json.loads(path.read_text()) if path.exists() else []


def run(experiment: Experiment, budget: str, splits: Sequence[int], out: Path) -> None:
    """Run every case of these splits that has no run with the same settings yet.

    A long fit, or long chains, leave a file beside the results until the run ends, from
    which the same command goes on.
    """
    cases = enumerate(experiment.settings(budget))
    todo = [(s, *case) for s, case in product(splits, cases)]
    for split, number, settings in tqdm(
        todo, desc=f"{experiment.paper} {experiment.name}"
    ):
        path = path_of(out, experiment, budget, split)
        runs, settings = read(path), plain(settings, 12)
        if any(one["settings"] == settings for one in runs):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint = path.with_name(f"{path.stem}-{number}.checkpoint")
        begin, goes_on = time.perf_counter(), checkpoint.exists()
        with jax.enable_x64(experiment.x64):
            held = {**settings, "checkpoint": checkpoint}
            numbers = dict(experiment.run(held, split))
        curves = numbers.pop("curves", {})
        row = {
            "settings": settings,
            "split": split,
            "seconds": None if goes_on else round(time.perf_counter() - begin, 1),
            "numbers": plain(numbers, 6),
            "curves": plain(curves, 4),
            "versions": provenance.versions(),
            "machine": provenance.machine(),
        }
        _write(path, [*runs, row])
        checkpoint.unlink(missing_ok=True)
        tqdm.write(f"split {split}, {label(settings)}: {row['numbers']}")


def _write(path: Path, runs: list[dict[str, Any]]) -> None:
    """One line a run, and the old file until the new one is whole."""
    text = "[\n" + ",\n".join(json.dumps(one, sort_keys=True) for one in runs) + "\n]\n"
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


def plain(value: Any, digits: int) -> Any:
    """What JSON gives back: lists, numbers of so many significant digits, no arrays."""
    if isinstance(value, dict):
        return {str(k): plain(v, digits) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, digits) for v in value]
    if isinstance(value, (bool, str, int)) or value is None:
        return value
    if np.ndim(value) > 0:
        return plain(np.asarray(value).tolist(), digits)
    value = np.asarray(value).item()
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
