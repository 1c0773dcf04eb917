"""Tables of the documentation from the results.

A page says where a table stands by two comments, ``% table: NAME`` and ``% end``; what
is between them is written by ``python -m benchmarks.speed page``.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import results, steps
from benchmarks.speed.cases import CASES
from benchmarks.speed.chains import METHODS
from benchmarks.speed.chains import ratio as ratio_of_chains
from benchmarks.speed.scaling import ALONG, BASE, exponent

__all__ = ["DOCS", "PAGES", "rendered", "write"]

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = (
    "performance.md",
    "minibatches.md",
    "decisions/0020-expectations-on-the-scale-of-the-likelihood.md",
)
_TABLE = re.compile(r"(?<=% table: )(\w+)\n.*?(?=% end)", re.DOTALL)
_KINDS = ("float64", "float32")
_NAMES = {"gpflow": "GPflow", "gpytorch": "GPyTorch", "gpflux": "GPflux"}

# Case, contender, precision -> at least so many times the time of ours.
TARGETS = {
    ("S1-100", "gpflow", "float64"): 2.2,
    ("S1-500", "gpflow", "float64"): 2.5,
    ("S2", "gpflow", "float64"): 1.6,
    ("S4b", "gpflow", "float64"): 2.3,
    ("S4p", "gpflow", "float64"): 5.0,
    ("S1-100", "gpflow", "float32"): 1.5,
    ("S1-500", "gpflow", "float32"): 1.5,
    ("S2", "gpflow", "float32"): 1.5,
    ("S4b", "gpflow", "float32"): 1.5,
    ("S5-1", "gpflux", "float64"): 1.5,
    ("S5-8", "gpflux", "float64"): 1.5,
}


def write(folder: Path) -> None:
    """The tables of all pages, from the results in a folder."""
    for name in PAGES:
        path = DOCS / name
        path.write_text(rendered(path.read_text(), folder))
    if (folder / "scaling.json").exists():
        draw_scaling(folder, DOCS / "figures" / "scaling.svg")


def draw_scaling(folder: Path, path: Path) -> None:
    """Cost of a step against each size, both in logarithms, on one scale of cost."""
    from benchmarks.papers.figures.style import BLUE, LOOK, plt, subplots

    held = _read(folder, "scaling")
    figure, axes = subplots(2, 3, height=2.3, sharey=True)
    for axis, along in zip(axes.flat, ALONG):
        rows = _along(held, along)
        times = [np.median(row["milliseconds"]) for row in rows]
        values = [row["value"] for row in rows]
        axis.loglog(values, times, "o-", color=BLUE)
        axis.set_xticks(values, [_short(v) for v in values], fontsize=9)
        axis.set_xticks([], minor=True)
        axis.set_yticks([1, 10, 100], ["1", "10", "100"])
        axis.set_title(along, fontsize=11)
        slope = f"exponent {exponent(rows):.2f}"
        axis.text(0.05, 0.88, slope, transform=axis.transAxes, fontsize=10)
    for axis in axes[:, 0]:
        axis.set_ylabel("ms a step")
    with plt.rc_context(LOOK):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _short(value: int) -> str:
    """Thousands by a letter."""
    return f"{value // 1000}k" if value >= 1000 else str(value)


def rendered(text: str, folder: Path) -> str:
    """A page with its tables."""

    def table(match: re.Match) -> str:
        name = match.group(1)
        return f"{name}\n\n{TABLES[name](folder)}\n\n"

    return _TABLE.sub(table, text)


def _read(folder: Path, name: str) -> list[dict[str, Any]]:
    return results.read(folder, name)["rows"]


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _digits(value: float | None, number: int = 2) -> str:
    """So many significant digits, without an exponent."""
    if value is None:
        return "–"
    value = float(f"{value:.{number}g}")
    return f"{value:,.0f}" if value >= 10 ** (number - 1) else f"{value:g}"


def _pair(kinds: dict[str, dict], shown: Callable[[dict], str]) -> str:
    """float64 / float32."""
    return " / ".join(shown(kinds[d]) if d in kinds else "–" for d in _KINDS)


def _by_case(folder: Path) -> dict[str, dict[str, dict]]:
    """Case -> precision -> row, in the order of the cases."""
    found: dict[str, dict[str, dict]] = {name: {} for name in CASES}
    for row in _read(folder, "steps"):
        found[row["case"]][row["dtype"]] = row
    return {name: kinds for name, kinds in found.items() if kinds}


def cases(folder: Path) -> str:
    """Milliseconds of ours, and ratios."""
    lines = []
    for name, kinds in _by_case(folder).items():
        case = CASES[name]
        sizes = f"N = {case.n:,}, M = {case.m}, D = {case.d}"
        line = [f"{name}: {case.words}; {sizes}"]
        line.append(_pair(kinds, lambda r: _digits(steps.median(r, "svgp_ppl"), 3)))
        for peer in ("limit", "textbook"):
            line.append(_pair(kinds, lambda r: _ratio(r, "svgp_ppl", peer)))  # noqa: B023
        for peer in _NAMES:
            line.append(_pair(kinds, lambda r: _ratio(r, peer, "svgp_ppl")))  # noqa: B023
        lines.append(["–" if set(cell) <= set("–/ ") else cell for cell in line])
    heads = ["case", "ours, ms", "ours / limit", "ours / textbook"]
    return _table([*heads, *(f"{name} / ours" for name in _NAMES.values())], lines)


def _ratio(row: dict, above: str, below: str) -> str:
    return _digits(steps.ratio(row, above, below))


def targets(folder: Path) -> str:
    """What was aimed at, what was found, and what the form by hand would reach."""
    held, lines = _by_case(folder), []
    for name, kinds in held.items():
        for dtype in _KINDS:
            found = dtype in kinds and steps.ratio(kinds[dtype], "svgp_ppl", "limit")
            if found:
                line = [name, dtype, "limit", "at most 1.15", _digits(found, 3)]
                lines.append([*line, "yes" if found <= 1.15 else "no", "–"])
    of_gpytorch = {(c, "gpytorch", d): 3.0 for c in held for d in _KINDS}
    for (name, peer, dtype), least in (TARGETS | of_gpytorch).items():
        row = held[name].get(dtype)
        found = row and steps.ratio(row, peer, "svgp_ppl")
        if not row or found is None:
            continue
        line = [name, dtype, _NAMES[peer], f"at least {least:g}", _digits(found, 3)]
        line += ["yes" if found >= least else "no", _ratio(row, peer, "limit")]
        lines.append(line)
    heads = ["case", "precision", "against", "aim", "measured", "met"]
    return _table([*heads, "limit against the same"], lines)


def start(folder: Path) -> str:
    """Memory, and what the first block costs."""
    lines = []
    everybody = ("svgp_ppl", *_NAMES)
    for name, kinds in _by_case(folder).items():
        for what in ("gained_gib", "first_processor_seconds"):
            words = "GiB" if what == "gained_gib" else "seconds"
            line = [f"{name}, {words}"]
            for who in everybody:
                held = {d: r["contenders"].get(who, {}) for d, r in kinds.items()}
                line.append(_pair(held, lambda c: _digits(c.get(what))))  # noqa: B023
            lines.append(["–" if set(cell) <= set("–/ ") else cell for cell in line])
    return _table(["case", "ours", *_NAMES.values()], lines)


def throughput(folder: Path) -> str:
    """Rows a second of minibatches in memory."""
    kinds, line = _by_case(folder).get("S8", {}), []
    everybody = {"svgp_ppl": "ours", "gpflow": "GPflow", "gpytorch": "GPyTorch"}
    for dtype, row in sorted(kinds.items()):
        times = [steps.median(row, who) for who in everybody]
        rates = [_digits(t and 1e6 / t) for t in times]
        line.append([dtype, *rates])
    return _table(["rows a second", *everybody.values()], line)


def scaling(folder: Path) -> str:
    """Milliseconds against sizes, and exponents."""
    rows, lines = _read(folder, "scaling"), []
    for along in ALONG:
        mine = _along(rows, along)
        times = [
            f"{r['value']:,}: {_digits(np.median(r['milliseconds']))}" for r in mine
        ]
        lines.append([along, ", ".join(times), f"{exponent(mine):.2f}"])
    base = ", ".join(f"{k} = {v:,}" for k, v in BASE.items())
    heads = ["size", f"milliseconds a step (the others: {base})", "exponent at the end"]
    return _table(heads, lines)


def _along(rows: list[dict[str, Any]], along: str) -> list[dict[str, Any]]:
    return sorted((r for r in rows if r["along"] == along), key=lambda r: r["value"])


def chains(folder: Path) -> str:
    """Threads against one vectorised program."""
    rows = _read(folder, "chains")
    heads = [f"{r['case']}, N = {r['n']:,}, M = {r['m']}" for r in rows]
    lines = [["gradients a second, parallel / vectorized"]]
    lines[0] += [f"{ratio_of_chains(r):.2f}" for r in rows]
    for words, key in (
        ("gradients a second", "gradients_a_second"),
        ("processor milliseconds a gradient", "processor_ms"),
        ("first draw with nothing compiled, seconds", "first_seconds"),
    ):
        line = [f"{words}, {', '.join(METHODS)}"]
        for row in rows:
            values = [float(np.median(row["methods"][m][key])) for m in METHODS]
            line.append(", ".join(_digits(v) for v in values))
        lines.append(line)
    return _table(["", *heads], lines)


def predictions(folder: Path) -> str:
    """Points a second."""
    lines = []
    for row in _read(folder, "predictions"):
        seconds, n = float(np.median(row["seconds"])), row["n"]
        used = 1e6 * float(np.median(row["processor_seconds"])) / n
        what = f"{row['draws']:,} draws" if row["draws"] else "fit"
        what += ", from a file into another" * row["case"].startswith("file")
        line = [f"{what}, M = {row['m']}, {n:,} points, {row['dtype']}"]
        line += [_digits(seconds), _digits(n / seconds), _digits(used)]
        lines.append([*line, _digits(row["gained_gib"])])
    heads = ["from", "seconds", "points a second", "µs of processor a point"]
    return _table([*heads, "GiB above the start"], lines)


def minibatches(folder: Path) -> str:
    """A step from files."""
    names, lines = {"npy": "NumPy", "arrow": "Arrow"}, []
    for row in _read(folder, "minibatches"):
        line = [f"{row['n']:,}, {names[row['kind']]}"]
        line += [_digits(np.median(row["milliseconds"])), _digits(row["gather_ms"])]
        lines.append([*line, str(row["gained_mb"]), str(row["gained_at_peak_mb"])])
    heads = ["rows, file", "a step, ms", "to gather its rows, ms"]
    return _table([*heads, "MB gained", "MB at the peak"], lines)


def density(folder: Path) -> str:
    """The density of all data in chunks."""
    lines = []
    for row in _read(folder, "density"):
        line = [f"{row['n']:,}", str(row["m"]), str(row["chains"])]
        line += [_digits(row["gradient_seconds"]), _digits(row["gained_gib"])]
        lines.append([*line, _digits(row["data_gib"])])
    heads = ["N", "M", "chains", "seconds a gradient of all chains"]
    return _table([*heads, "GiB above the start", "GiB of data"], lines)


def expectations(folder: Path) -> str:
    """Rules of our own against fixed nodes."""
    rows = _read(folder, "expectations")
    likelihoods = list(dict.fromkeys(r["likelihood"] for r in rows))
    held = {(r["n"], r["likelihood"]): f"{r['ratio']:.1f}" for r in rows}
    lines = [
        [str(n), *(held[n, name] for name in likelihoods)]
        for n in dict.fromkeys(r["n"] for r in rows)
    ]
    return _table(["N", *likelihoods], lines)


def made_with(folder: Path) -> str:
    """Machines, each with the tables that were made on it, and versions."""
    held, machines = results.read(folder, "steps"), {}
    for name in ("steps", "chains", "predictions", "scaling", "density"):
        if (folder / f"{name}.json").exists():
            one = results.read(folder, name)["machine"]
            what = f"{one['cores']} cores of {one['processor']}"
            machines.setdefault(what, []).append(name)
    versions = dict(held["versions"])
    for row in held["rows"]:
        for facts in row["contenders"].values():
            known = facts.get("versions", {}).items()
            versions |= {k: v for k, v in known if k not in ("numpy", "python")}
    made = "; ".join(f"{what} ({', '.join(n)})" for what, n in machines.items())
    words = ", ".join(f"{k} {v}" for k, v in versions.items())
    return f"{made}; {words}."


TABLES: dict[str, Callable[[Path], str]] = {
    "cases": cases,
    "targets": targets,
    "start": start,
    "throughput": throughput,
    "scaling": scaling,
    "chains": chains,
    "predictions": predictions,
    "minibatches": minibatches,
    "density": density,
    "expectations": expectations,
    "made_with": made_with,
}
