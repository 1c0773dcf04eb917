"""Results as tables of Markdown."""

from typing import Any

from benchmarks.papers import results
from benchmarks.papers.experiment import Experiment, Measure, label
from benchmarks.papers.results import Cell, Row, Value


def tables(
    done: dict[str, tuple[Experiment, list[dict[str, Any]]]], is_named: bool
) -> str:
    """A table of the experiments with the same measures, then one of contrasts.

    ``is_named``: a case begins with the name of its experiment.
    """
    groups: dict[tuple[Measure, ...], list[tuple[str, Row]]] = {}
    contrasts: list[tuple[str, Row]] = []
    for name, (experiment, runs) in done.items():
        for row in results.rows(experiment, runs):
            words = escaped(row.case.get("contrast", label(row.case)))
            words = f"{name}: {words}" if is_named else words
            if "contrast" in row.case:
                contrasts.append((words, row))
            else:
                groups.setdefault(experiment.measures, []).append((words, row))
    every = list(groups.items())
    if contrasts:
        every.append(((contrasts[0][1].cells[0].measure,), contrasts))
    return "\n\n".join(table(measures, held) for measures, held in every)


def table(measures: tuple[Measure, ...], held: list[tuple[str, Row]]) -> str:
    """Measures side by side; where many have published values, one below the other."""
    cells = [cell for _, row in held for cell in row.cells]
    present = [m.name for m in measures if m.name in {c.measure.name for c in cells}]
    compared = {c.measure.name for c in cells if c.published is not None}
    if len(compared) > 2:
        lines = long_lines(held)
    else:
        lines = wide_lines(held, present, compared)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def long_lines(held: list[tuple[str, Row]]) -> list[list[str]]:
    """A line for each measure of each case."""
    head = ["case", "measure", "ours", "published", "difference", "splits"]
    lines = [head, ["---"] * len(head)]
    for words, row in held:
        for cell in row.cells:
            entries = of_cell(cell, True)
            line = [words, cell.measure.name, *entries]
            lines.append([*line, str(cell.num_splits)])
    return lines


def wide_lines(held, columns: list[str], compared: set[str]) -> list[list[str]]:
    """A line for each case."""
    head = ["case", "splits"]
    for name in columns:
        head += [name, "published", "difference"] if name in compared else [name]
    lines = [head, ["---"] * len(head)]
    for words, row in held:
        cells = {c.measure.name: c for c in row.cells}
        num_splits = max(c.num_splits for c in row.cells)
        line = [words, str(num_splits)]
        for column in columns:
            line += of_cell(cells.get(column), column in compared)
        lines.append(line)
    return lines


def of_cell(cell: Cell | None, is_compared: bool) -> list[str]:
    """Its entries in a table."""
    if cell is None:
        return [""] * (3 if is_compared else 1)
    ours = shown(cell.ours, cell.measure)
    if not is_compared:
        return [ours]
    if cell.published is None:
        return [ours, "", ""]
    gap = shown(cell.difference, cell.measure, signed=True)
    return [ours, as_printed(cell.published), f"**{gap}**" if cell.is_worse else gap]


def shown(value: Value | None, measure: Measure, signed: bool = False) -> str:
    """A value with its error, in the digits of the measure."""
    if value is None:
        return ""
    text = f"{value.mean:{'+' if signed else ''}.{measure.digits}f}"
    if value.error is not None:
        text += f" ± {value.error:.{measure.digits}f}"
    return text.replace("-", "−")


def as_printed(value: Value) -> str:
    """A published value with as many digits as it has in print."""
    text = (
        f"{value.mean:g}"
        if value.rounding == 0.5
        else f"{value.mean:.{_digits(value)}f}"
    )
    if value.error is not None:
        text += f" ± {value.error:.{_digits(value)}f}"
    return text.replace("-", "−")


def _digits(value: Value) -> int:
    return len(f"{2 * value.rounding:.10f}".rstrip("0").partition(".")[2])


def escaped(text: str) -> str:
    """Without what ends a cell of a table."""
    return text.replace("|", "\\|")
