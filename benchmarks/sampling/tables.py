"""Tables of docs/choosing-a-sampler.md from the files of results."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["RESULTS", "line", "rendered", "write"]

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "choosing-a-sampler.md"
BLOCK = re.compile(r"(<!-- results: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = ("ESS min", "R-hat", "to 400", "min / s", "min / 1000 gradients")
HEAD += ("gradients per draw", "divergences")


def write() -> None:
    """The page, with the tables of what was measured."""
    PAGE.write_text(rendered(PAGE.read_text()))


def rendered(text: str) -> str:
    """The text with a table between each pair of marks."""

    def block(match: re.Match) -> str:
        names = match[2].split()
        return (
            match[1]
            + "\n"
            + "\n\n".join(table(name) for name in names)
            + "\n\n"
            + match[3]
        )

    return BLOCK.sub(block, text)


def read(name: str) -> dict[str, Any]:
    """A file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(name: str) -> str:
    """Problem and settings in the first cell; a row a sampler."""
    found = read(name)
    n, d = found["data"]
    settings = found["settings"]
    title = f"{found['problem']}, N = {n}, D = {d}, {found['precision']}"
    rows = [(title, *HEAD, "largest difference"), ("---",) * (len(HEAD) + 2)]
    reference = reference_of(found["rows"])
    for sampler, row in found["rows"].items():
        compared = found["rows"].get(reference)
        off = "–" if sampler == reference else difference(row, compared)
        rows.append((named(sampler), *cells(row), off))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    foot = (
        f"{settings['chains']} chains, {settings['warmup']} steps of warm-up and "
        f"{settings['draws']} draws each."
    )
    if (repeats := settings.get("repeats", 1)) > 1:
        foot += f" Means of {repeats} runs with different keys."
    return "\n".join(lines) + "\n\n" + foot


def named(sampler: str) -> str:
    """As the docs call it."""
    names = {
        "numpyro": "NumPyro's `NUTS`",
        "numpyro fitted": "NumPyro's `NUTS`, reparameterised",
        "importance": "`importance_sample`",
        "unwhitened": "`NUTS` on u = L v",
        "hsgp": "NumPyro's `NUTS`, HSGP",
        "slices": '`Gibbs("elliptical_slice")`',
    }
    first, _, rest = sampler.partition(" ")
    return names.get(sampler, f"`{first}`" + (f", {rest}" if rest else ""))


def reference_of(rows: dict[str, Any]) -> str | None:
    """What the others are compared with: plain NUTS, of NumPyro if it ran."""
    kinds = ("numpyro", "NUTS whitened", "NUTS fitted")
    return next((name for name in kinds if name in rows), None)


def difference(row: dict[str, Any], reference: dict[str, Any] | None) -> str:
    """Largest difference of means of log hyperparameters, in its standard errors."""
    if reference is None:
        return "–"
    worst = 0.0
    for name, values in row["moments"].items():
        if name in reference["moments"]:
            mean, sd, size = np.asarray(values)
            mean_0, sd_0, size_0 = np.asarray(reference["moments"][name])
            error = np.sqrt(sd**2 / size + sd_0**2 / size_0)
            worst = max(worst, float(np.max(np.abs(mean - mean_0) / error)))
    return f"{worst:.1f} se"


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """The numbers of a sampler."""
    least, gradients = row["ESS min"], row["gradients"]
    return (
        f"{least:.0f}",
        "–" if np.isnan(row["R-hat"]) else f"{row['R-hat']:.3f}",  # of one chain
        f"{row['to 400']:.1f} s",
        _rate(least / row["sampling"]),
        _rate(1000 * least / gradients) if gradients else "–",
        f"{row['gradients a draw']:.3g}" if gradients else "–",
        str(int(row["divergences"])),
    )


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def line(sampler: str, row: dict[str, Any]) -> str:
    """A row, as printed while it runs."""
    return f"{sampler:16s}" + "".join(f"{cell:>14s}" for cell in cells(row))
