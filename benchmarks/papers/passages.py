"""Tables on other pages of the docs from the same results, between two comments.

<!-- papers: NAME -->
...
<!-- end -->
"""

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.papers import results
from benchmarks.papers.registry import EXPERIMENTS
from benchmarks.papers.results import Row
from benchmarks.papers.tables import shown

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("choosing-a-sampler.md", "likelihoods.md")
BLOCK = re.compile(r"(<!-- papers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOISES = ("step", "probit", "logit", "softmax")
Z = ("k-means", "fitted")
KERNELS = {"isotropic": "one lengthscale", "ARD": "one per column"}


def write(folder: Path) -> None:
    """The pages, with the tables of the results in a folder."""
    for name in PAGES:
        page = DOCS / name
        page.write_text(rendered(page.read_text(), folder))


def rendered(text: str, folder: Path) -> str:
    """The text with a table between each pair of marks."""

    def block(match: re.Match) -> str:
        lines = [f"| {' | '.join(line)} |" for line in TABLES[match[2]](folder)]
        return "\n".join([match[1], *lines, "", match[3]])

    return BLOCK.sub(block, text)


def noises(folder: Path) -> list[list[str]]:
    """Accuracy and −log p of each noise, on the sets with the settings of the paper."""
    lines = [["set", "splits", *NOISES], ["---"] * 6]
    for experiment in EXPERIMENTS:
        is_plain = not experiment.name.endswith(("-combined", "-flip"))
        if experiment.paper != "noise-2019" or not is_plain:
            continue
        budget, runs = results.found(experiment, folder)
        rows = [
            row
            for row in results.rows(experiment, runs)
            if row.case.keys() == {"noise"} and budget == "paper"
        ]
        each = {
            row.case["noise"]: [cell.ours.mean for cell in row.cells[:2]]
            for row in rows
        }
        if each:
            least = min(nll for _, nll in each.values())
            cells = {
                noise: f"{accuracy:.1f} / "
                + (f"**{nll:.4f}**" if nll == least else f"{nll:.4f}")
                for noise, (accuracy, nll) in each.items()
            }
            line = [experiment.name, _splits(rows)]
            lines.append([*line, *(cells.get(n, "") for n in NOISES)])
    return lines


def image_gains(folder: Path) -> list[list[str]]:
    """Held-out log probability gained by draws, a row for each M."""
    (experiment,) = [e for e in EXPERIMENTS if e.name == "image"]
    _, runs = results.found(experiment, folder)
    by_m: dict[int, list[Row]] = {}
    for row in results.rows(experiment, runs):
        by_m.setdefault(row.case["M"], []).append(row)
    kinds = [(kernel, z) for kernel in KERNELS for z in Z]
    head = ["M", "splits", *(f"{KERNELS[kernel]}, {z}" for kernel, z in kinds)]
    lines = [head, ["---"] * len(head)]
    for m, rows in by_m.items():
        gains = {}
        for row in rows:
            own = [r for r in runs if results.case_of(experiment, r) == row.case]
            gains[row.case["kernel"], row.case["z"]] = _gain(row, own)
        lines.append([str(m), _splits(rows), *(gains.get(k, "") for k in kinds)])
    return lines


def _gain(row: Row, runs: list[dict]) -> str:
    """Marked where the chains of a run disagree."""
    (gain,) = (cell for cell in row.cells if cell.measure.name == "gain")
    disagree = any(run["numbers"]["R-hat"] > 1.1 for run in runs)
    return shown(gain.ours, gain.measure) + " ¹" * disagree


def _splits(rows: list[Row]) -> str:
    """Their number; that of the fewest and of the most where they differ."""
    numbers = {cell.num_splits for row in rows for cell in row.cells}
    return "–".join(map(str, sorted({min(numbers), max(numbers)})))


TABLES: dict[str, Callable[[Path], list[list[str]]]] = {
    "noises": noises,
    "image_gains": image_gains,
}
