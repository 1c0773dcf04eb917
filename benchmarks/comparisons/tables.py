"""Tables of the docs from the files of results; NumPy alone."""

import json
import re
from pathlib import Path

import numpy as np

__all__ = ["PAGES", "keep", "kept", "rendered", "write"]

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[2] / "docs"
PAGES = tuple(
    DOCS / f"{name}.md"
    for name in ("choosing-a-sampler", "cookbook", "deep-models", "likelihoods")
)
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


def kept(name):
    """The runs that were written; none if there is no file."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else []


def write():
    """The pages, with the tables of what was measured."""
    for page in PAGES:
        page.write_text(rendered(page.read_text()))


def rendered(text):
    """The text with a table between each pair of marks."""

    def block(match):
        runs = [run for name in match[2].split() for run in kept(name)]
        if not runs:
            return match[0]
        lines = paired(runs) if "published" in runs[0] else table(runs)
        return f"{match[1]}\n{lines}\n\n{match[3]}"

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


def paired(runs):
    """The maximum beside draws on the same splits, and what was published."""
    heads = ["set", "density", "maximum", "draws", "draws − maximum"]
    heads += ["published: maximum", "draws", "smallest ESS", "largest R-hat"]
    heads += ["divergences", "seconds"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name in dict.fromkeys(run["set"] for run in runs):
        some = [run for run in runs if run["set"] == name]
        published = [f"{some[0]['published'][w]:.3f}" for w in ("maximum", "draws")]
        seconds = (np.mean([r[f"seconds_{w}"] for r in some]) for w in ("fit", "draws"))
        chains = [
            f"{min(run['ess'] for run in some):.0f}",
            f"{max(run['r_hat'] for run in some):.2f}",
            f"{sum(run['divergences'] for run in some)}",
            " + ".join(f"{each:.0f}" for each in seconds),
        ]
        for measure, title in (("nlpd", "of each row"), ("joint", "of all together")):
            maximum, draws = (
                np.array([run[which][measure] for run in some])
                for which in ("maximum", "draws")
            )
            cells = [_cell(each, ".3f") for each in (maximum, draws, draws - maximum)]
            cells = [cell.replace("-", "−") for cell in cells]
            beside = ["", "", *chains]
            if measure == "joint":
                beside = [*published, *("" for _ in chains)]
            lines.append("| " + " | ".join([name, title, *cells, *beside]) + " |")
    return "\n".join(lines)


def _cell(values, form):
    text = format(np.mean(values), form)
    if form == ".3f" and len(values) > 2:
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        text += f" ± {format(error, form)}"
    return text
