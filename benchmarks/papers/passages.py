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
    lines = [["set", *NOISES], ["---"] * 5]
    for experiment in EXPERIMENTS:
        is_plain = not experiment.name.endswith(("-combined", "-flip"))
        if experiment.paper != "noise-2019" or not is_plain:
            continue
        budget, runs = results.found(experiment, folder)
        each = {
            row.case["noise"]: [cell.ours.mean for cell in row.cells[:2]]
            for row in results.rows(experiment, runs)
            if row.case.keys() == {"noise"} and budget == "paper"
        }
        if each:
            least = min(nll for _, nll in each.values())
            cells = {
                noise: f"{accuracy:.1f} / "
                + (f"**{nll:.4f}**" if nll == least else f"{nll:.4f}")
                for noise, (accuracy, nll) in each.items()
            }
            lines.append([experiment.name, *(cells.get(n, "") for n in NOISES)])
    return lines


def image_gains(folder: Path) -> list[list[str]]:
    """Held-out log probability gained by draws, a row for each M."""
    (experiment,) = [e for e in EXPERIMENTS if e.name == "image"]
    _, runs = results.found(experiment, folder)
    gains: dict[int, dict[tuple[str, str], str]] = {}
    for row in results.rows(experiment, runs):
        cells = {cell.measure.name: cell for cell in row.cells}
        text = shown(cells["gain"].ours, cells["gain"].measure)
        mark = " ¹" if cells["R-hat"].ours.mean > 1.1 else ""
        kind = row.case["kernel"], row.case["z"]
        gains.setdefault(row.case["M"], {})[kind] = text + mark
    kinds = [(kernel, z) for kernel in KERNELS for z in Z]
    head = ["M", *(f"{KERNELS[kernel]}, {z}" for kernel, z in kinds)]
    rows = [[str(m), *(of_m.get(k, "") for k in kinds)] for m, of_m in gains.items()]
    return [head, ["---"] * len(head), *rows]


TABLES: dict[str, Callable[[Path], list[list[str]]]] = {
    "noises": noises,
    "image_gains": image_gains,
}
