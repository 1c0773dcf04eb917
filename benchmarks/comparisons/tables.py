"""Tables of the docs from the files of results; NumPy alone."""

import json
import re
from pathlib import Path

import numpy as np

__all__ = ["PAGES", "keep", "rendered", "write"]

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "cookbook.md", DOCS / "deep-models.md")
BLOCK = re.compile(r"(<!-- compared: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
# Measure -> heading and format.
MEASURES = {
    "rmse": ("RMSE", ".3f"),
    "nlpd": ("negative log density", ".3f"),
    "coverage": ("in 90 % intervals", ".0%"),
    "beside": ("beside their own", ".0%"),
    "r_hat": ("largest R-hat", ".2f"),
    "seconds": ("seconds", ".0f"),
}


def keep(name, runs):
    """Write runs: dicts of measures, with ``case``, ``seed`` and perhaps ``set``."""
    text = json.dumps(runs, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def write():
    """The pages, with the tables of what was measured."""
    for page in PAGES:
        page.write_text(rendered(page.read_text()))


def rendered(text):
    """The text with a table between each pair of marks."""

    def block(match):
        files = [RESULTS / f"{name}.json" for name in match[2].split()]
        runs = [r for f in files if f.exists() for r in json.loads(f.read_text())]
        return f"{match[1]}\n{table(runs)}\n\n{match[3]}" if runs else match[0]

    return BLOCK.sub(block, text)


def table(runs):
    """Means over seeds, with standard errors where there are three and more."""
    measures = [name for name in MEASURES if name in runs[0]]
    has_sets = "set" in runs[0]
    heads = [*(["set"] if has_sets else []), "", *(MEASURES[m][0] for m in measures)]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for group in dict.fromkeys((run.get("set"), run["case"]) for run in runs):
        some = [run for run in runs if (run.get("set"), run["case"]) == group]
        cells = list(group) if has_sets else [group[1]]
        for name in measures:
            values = [run[name] for run in some if run.get(name) is not None]
            cells.append(_cell(values, MEASURES[name][1]) if values else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values, form):
    text = format(np.mean(values), form)
    if form == ".3f" and len(values) > 2:
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        text += f" ± {format(error, form)}"
    return text
