"""Numbers of the README, the manuscript and prose are those of the results."""

import re
from pathlib import Path

import numpy as np

from benchmarks.papers import runs
from benchmarks.papers.registry import EXPERIMENTS
from benchmarks.sampling import tables
from benchmarks.speed import results, steps

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def row_of(beginning: str) -> tuple[str, str]:
    """The last two cells of a row of the README's table: here, there."""
    (row,) = re.findall(rf"^\| {re.escape(beginning)} \|.*\|$", README, re.M)
    here, there = row.strip("| ").split(" | ")[-2:]
    return here, there


def coal(sampler: str) -> dict[str, float]:
    row = tables.read("coal")["rows"][sampler]
    return {"a second": row["ESS min"] / row["sampling"], "to 400": row["to 400"]}


def step(contender: str) -> float:
    held = results.read(results.RESULTS, "steps")["rows"]
    keys = {"case": "S1-100", "dtype": "float64"}
    (row,) = [r for r in held if all(r[k] == v for k, v in keys.items())]
    found = steps.median(row, contender)
    assert found is not None
    return found


def signed(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def gains() -> dict[str, tuple[float, np.ndarray]]:
    """By the mode of the Gaussian on coal: its mean, and the gain of the draws."""
    (experiment,) = [e for e in EXPERIMENTS if e.name == "coal-held-out"]
    found: dict[str, list[float]] = {}
    for split in experiment.full.splits:
        for run in runs.read(runs.path_of(runs.RESULTS, experiment, "paper", split)):
            mode = run["settings"].get("mode of", "draws")
            found.setdefault(mode, []).append(run["numbers"]["log probability"])
    draws = np.array(found.pop("draws"))
    each = {mode: np.array(values) for mode, values in found.items()}
    return {mode: (float(v.mean()), draws - v) for mode, v in each.items()}


def pines() -> dict[str, dict[str, float]]:
    """Of the budget that the page shows: that of the paper where it has been run."""
    (experiment,) = [e for e in EXPERIMENTS if e.name == "pines"]
    for budget in ("paper", "quick"):
        found = runs.read(runs.path_of(runs.RESULTS, experiment, budget, 0))
        if found:
            return {r["settings"]["process"]: r["numbers"] for r in found}
    raise AssertionError("there are no results")


def test_the_readme_has_the_numbers_of_the_results():
    both = coal("NUTS fitted"), coal("SGPMC 40 steps, target 0.97")
    assert row_of("GPflow's `SGPMC`") == (
        f"{both[0]['a second']:.0f}", f"{both[1]['a second']:.1f}"
    )  # fmt: skip
    both = coal("NUTS fitted")["to 400"], coal("numpyro")["to 400"]
    assert row_of("NumPyro's `NUTS` on this model") == tuple(f"{s:.2g}" for s in both)
    both = [pines()[kind]["seconds an effective draw"] for kind in ("sparse", "full")]
    assert row_of("a process value in every cell of a map") == (
        f"{both[0]:.2f}", f"{both[1]:.0f}"
    )  # fmt: skip
    ours, gpflow, gpytorch = map(step, ("svgp_ppl", "gpflow", "gpytorch"))
    assert row_of("GPflow") == (f"{ours:.1f}", f"{gpflow:.0f}")
    assert row_of("GPyTorch") == (f"{ours:.1f}", f"{gpytorch:.0f}")


def test_the_manuscript_has_the_numbers_of_the_results():
    text = " ".join((ROOT / "docs" / "paper" / "paper.md").read_text().split())
    ours, theirs = coal("NUTS fitted")["to 400"], coal("numpyro")["to 400"]
    assert f"in {ours:.2g} seconds on two processor cores" in text
    assert f"own sampler on the same model takes {theirs:.2g}." in text


def test_the_page_on_samplers_has_the_gains_of_coal():
    text = tables.PAGE.read_text()
    for mean, gain in gains().values():
        number = len(gain)
        error = gain.std(ddof=1) / number**0.5
        words = f"| {gain.mean():.4f} ± {error:.4f} | {(gain > 0).sum()} of {number}"
        assert re.search(rf"\| {signed(mean)}[^|]* {re.escape(words)} ", text), words
    draws = mean + gain.mean()  # of any mode
    assert f"{signed(draws)} with draws" in text


def test_the_page_on_samplers_has_the_scores_of_the_clouds():
    text = " ".join(tables.PAGE.read_text().split())
    (experiment,) = [e for e in EXPERIMENTS if e.name == "clouds"]
    of = {
        run["settings"]["flip"]: run["numbers"]
        for run in runs.read(runs.path_of(runs.RESULTS, experiment, "quick", 0))
    }

    def both(flip: str, measure: str, digits: int) -> list[str]:
        values = [of[flip][f"{measure}, {name}"] for name in ("draws", "Gaussian")]
        return [signed(value, digits) for value in values]

    draws, gaussian = both("fixed", "log probability", 3)
    assert f"is {draws} against {gaussian} with the Gaussian" in text
    draws, gaussian = both("sampled", "log probability", 3)
    assert f"gives {draws} and {gaussian}." in text
    draws, gaussian = both("fixed", "sure", 1)
    assert f"{draws} % of the square, and on {gaussian} %" in text


def test_the_page_on_samplers_has_the_costs_of_the_pines():
    text = " ".join(tables.PAGE.read_text().split())
    for kind, numbers in pines().items():
        gradients, milliseconds, seconds = (
            numbers[name]
            for name in (
                "gradients an effective draw",
                "ms a gradient",
                "seconds an effective draw",
            )
        )
        time = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
        words = f"{gradients:.0f} gradients of {milliseconds:.2g} ms, {time} s"
        assert words in text, kind
