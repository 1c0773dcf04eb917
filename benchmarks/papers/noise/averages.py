"""Averages over the sets (Liu et al. 2019, table II), from the results of the sets."""

import numpy as np

from benchmarks.papers import results, runs
from benchmarks.papers.experiment import Budget, Experiment, Measure
from benchmarks.papers.noise.uci import ALONE, NOISES, TWO


def run(settings, split):
    """Means over the sets of this many classes that have results, and their number."""
    found = []
    for one in ALONE:
        if (one.name in TWO) == (settings["classes"] == "two"):
            _, held = results.found(one, runs.RESULTS)
            rows = [r for r in held if r["settings"]["noise"] == settings["noise"]]
            if rows:
                found.append(
                    [
                        np.mean([r["numbers"][n] for r in rows])
                        for n in ("accuracy", "nll")
                    ]
                )
    if not found:
        raise ValueError(
            "No set has a result: run the sets of tables III and IV first."
        )
    accuracy, nll = np.mean(found, axis=0)
    return {"accuracy": accuracy, "nll": nll, "sets": len(found)}


AVERAGES = Experiment(
    "noise-2019",
    "averages",
    run,
    cases=tuple(
        {"classes": classes, "noise": noise}
        for classes, noises in (("two", NOISES[:3]), ("several", NOISES))
        for noise in noises
    ),
    measures=(
        Measure("accuracy", 1, "higher"),
        Measure("nll", 3, "lower"),
        Measure("sets", 0),
    ),
    quick=Budget((0,)),
    full=Budget((0,)),
    differs="Over the sets that have a result here, without the number of the row: not "
    "the same average as the published one.",
)
