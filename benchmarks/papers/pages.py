"""Pages of docs/papers from the results: tables, first lines, the list of all."""

from collections import Counter
from pathlib import Path

from benchmarks.papers import notes, results
from benchmarks.papers.coverage import COVERAGE, PAPERS, Paper, Published
from benchmarks.papers.experiment import Experiment, label
from benchmarks.papers.registry import EXPERIMENTS
from benchmarks.papers.results import Cell
from benchmarks.papers.tables import as_printed, escaped, shown, tables

DOCS = Path(__file__).parent.parent.parent / "docs" / "papers"
NOTES = "notes-on-the-papers"
BY_NAME = {(e.paper, e.name): e for e in EXPERIMENTS}
FOOT = """\
± is the standard error over splits; of a single split, over its test rows. A
difference is ours less the published value, with the errors of both where they are
known; bold ones are worse by more than two standard errors and the rounding of the
published value. All numbers come from the files in `benchmarks/papers/results`;
`python -m benchmarks.papers pages` writes this page.
"""


def write(folder: Path) -> None:
    """The pages of the results in a folder, into docs/papers."""
    DOCS.mkdir(parents=True, exist_ok=True)
    for name, text in rendered(folder).items():
        (DOCS / name).write_text(text)


def rendered(folder: Path) -> dict[str, str]:
    """Text by the name of the file."""
    pages = {f"{paper.key}.md": page(paper, folder) for paper in PAPERS}
    return {"index.md": index(folder), f"{NOTES}.md": notes.page(folder)} | pages


def page(paper: Paper, folder: Path) -> str:
    """A paper: what is worse first, then an experiment a section."""
    published = [one for one in COVERAGE if one.paper == paper.key]
    parts = [f"# {paper.title}", first_line(published, folder), f"{paper.citation}."]
    shown_already: set[str] = set()
    for one in published:
        parts.append(section(one, folder, set(one.experiments) <= shown_already))
        shown_already |= set(one.experiments)
    parts += ["## How these were made", FOOT + made_with(published, folder)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def first_line(published: list[Published], folder: Path) -> str:
    """How many scores are worse than published by more than two standard errors.

    Of runs at the paper's budget each one is named; of quick ones the experiments are,
    and the tables have the scores.
    """
    groups: dict[tuple[str, str], dict[str, list[tuple[str, Cell]]]] = {}
    tasks = {e: one.task_in(e.name) for one in published for e in experiments_of(one)}
    for experiment, task in tasks.items():
        budget, runs = results.found(experiment, folder)
        found = [
            (label(row.case), cell)
            for row in results.rows(experiment, runs)
            for cell in row.cells
            if cell.is_comparable
        ]
        if found:
            groups.setdefault((task, budget), {})[experiment.name] = found
    if not groups:
        return "The paper prints no score that stands beside one of these."
    order = sorted(groups, key=lambda group: (group[0], group[1] != "paper"))
    return "\n\n".join(_compared(*group, groups[group]) for group in order)


def _compared(task: str, budget: str, cells: dict[str, list[tuple[str, Cell]]]) -> str:
    """The line of one task and budget."""
    number = sum(map(len, cells.values()))
    worse = {
        name: [(case, cell) for case, cell in each if cell.is_worse]
        for name, each in cells.items()
    }
    total = sum(map(len, worse.values()))
    if budget == "paper":
        named = "; ".join(
            f"{name}, {case}: {cell.measure.name} "
            f"{shown(cell.difference, cell.measure, signed=True)}"
            for name, each in worse.items()
            for case, cell in each
        )
        begin = f"With the settings of the paper ({', '.join(cells)})"
    else:
        named = ", ".join(
            f"{name} {len(each)} of {len(cells[name])}"
            for name, each in worse.items()
            if each
        )
        begin = "With a part of the paper's steps, rows or splits (the quick budget)"
    if task:
        where = f"Where in the paper {task} ([notes](notes-on-the-papers.md))"
        begin = f"{where}, {begin[0].lower()}{begin[1:]}"
    verb = "are" if total > 1 else "is"
    text = (
        f"{begin}, {total or 'none'} of the {number} scores with a published value "
        f"{verb} worse than that by more than two standard errors"
    )
    return f"**{text}:** {named}." if total else f"{text}."


def differences(experiments) -> list[str]:
    """What differs from the paper; with their names, where it is of a few only."""
    names: dict[str, list[str]] = {}
    for experiment in experiments:
        if experiment.differs:
            names.setdefault(experiment.differs, []).append(experiment.name)
    return [
        text if 2 * len(of) > len(experiments) else f"{', '.join(of)}: {text}"
        for text, of in names.items()
    ]


def section(one: Published, folder: Path, is_shown: bool) -> str:
    """An experiment of the paper: command, settings, table, figures."""
    experiments = [] if is_shown else experiments_of(one)
    parts = [f"## {one.title}", f"{one.where[0].upper()}{one.where[1:]} of the paper: "]
    parts[-1] += f"{one.settings}."
    parts.append(f"```\n{command(one)}\n```")
    held = {e.name: (e, *results.found(e, folder)) for e in experiments}
    parts += differences(experiments)
    done = {name: entry for name, entry in held.items() if entry[2]}
    for budget in ("paper", "quick"):
        of_budget = {n: (e, r) for n, (e, b, r) in done.items() if b == budget}
        if of_budget:
            parts += [
                settings_line(budget, of_budget),
                tables(of_budget, len(experiments) > 1),
            ]
    missing = [name for name in held if name not in done]
    if missing:
        parts.append(f"No result yet: {', '.join(missing)}.")
    for name in one.figures:
        path = figure_of(name)
        if path:
            parts.append(f"![{one.title}]({path})")
    return "\n\n".join(parts)


def settings_line(budget: str, done: dict[str, tuple[Experiment, list]]) -> str:
    """The settings that the cases share, and who differs."""
    lines: dict[str, list[str]] = {}
    for name, (experiment, _) in done.items():
        settings = dict(experiment.budget(budget).settings)
        words = ", ".join(f"{k} {v}" for k, v in settings.items()) or "no other"
        lines.setdefault(words, []).append(name)
    if len(lines) == 1:
        return f"Budget *{budget}*: {next(iter(lines))}."
    each = "; ".join(f"{', '.join(names)}: {words}" for words, names in lines.items())
    return f"Budget *{budget}*: {each}."


def made_with(published: list[Published], folder: Path) -> str:
    """Versions and processors of all runs of a page."""
    runs = [
        run
        for experiment in dict.fromkeys(e for p in published for e in experiments_of(p))
        for run in results.found(experiment, folder)[1]
    ]
    if not runs:
        return "\nNothing has been run yet."
    versions = sorted({f"{k} {v}" for run in runs for k, v in run["versions"].items()})
    machines = Counter(
        f"{run['machine']['cores']} cores of {run['machine']['processor']}"
        for run in runs
    )
    return (
        f"\n{len(runs)} runs on {'; '.join(sorted(machines))}. {', '.join(versions)}."
    )


def index(folder: Path) -> str:
    """All published experiments: command, result, figure, settings, ours, published."""
    lines = [
        "| paper | experiment | result | figure | ours | published |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    num_results = num_figures = 0
    for one in COVERAGE:
        result, ours, theirs = headline(one, folder)
        figures = [name for name in one.figures if figure_of(name)]
        num_results += bool(result)
        num_figures += bool(figures)
        anchor = f"{one.paper}.md#{slug(one.title)}"
        lines.append(
            f"| [{one.paper}]({one.paper}.md) | [{one.title}]({anchor}) | "
            f"{result or 'none yet'} | {'yes' if figures else ''} | {ours} | {theirs} |"
        )
    commands = "\n".join(
        f"| {one.title} | `{command(one)}` | {one.settings} |" for one in COVERAGE
    )
    toctree = "\n".join([*(paper.key for paper in PAPERS), NOTES])
    return f"""# The papers' experiments

{len(COVERAGE)} experiments of five papers; {num_results} have a result here and
{num_figures} a figure. *quick* is a budget of minutes on two cores, *paper* that of the
paper. One number of each experiment stands for all; its page has the others.

{chr(10).join(lines)}

## Commands and published settings

| experiment | command | settings of the paper |
| --- | --- | --- |
{commands}

`--budget paper` takes the settings of the paper, `--splits 0 1 2` these splits, `--out`
another folder. A run whose result is there is skipped, and a long one that was stopped
has a file to go on from, so that the same command goes on where it was. Data come from
the folder that `SVGP_PPL_DATA` names.

```{{toctree}}
:maxdepth: 1

{toctree}
```
"""


def headline(one: Published, folder: Path) -> tuple[str, str, str]:
    """Budget and splits, and one number of ours, beside a published one if any."""
    for experiment in experiments_of(one):
        budget, runs = results.found(experiment, folder)
        if not runs:
            continue
        splits = len({run["split"] for run in runs})
        result = f"{budget}, {splits} split{'s' if splits > 1 else ''}"
        rows = results.rows(experiment, runs)
        each = [(row, cell) for row in rows for cell in row.cells]
        row, cell = max(each, key=lambda e: (e[1].is_comparable, _is_published(e[1])))
        case = row.case.get("contrast", label(row.case))
        ours = f"{experiment.name}, {case}: {cell.measure.name} "
        theirs = as_printed(cell.published) if cell.published else ""
        return result, escaped(ours) + shown(cell.ours, cell.measure), theirs
    return "", "", ""


def _is_published(cell: Cell) -> bool:
    return cell.published is not None


def experiments_of(one: Published) -> list[Experiment]:
    """Those that answer a published experiment."""
    return [BY_NAME[one.paper, name] for name in one.experiments]


def command(one: Published) -> str:
    """What runs them."""
    names = " ".join(one.experiments)
    return f"python -m benchmarks.papers {one.paper} --experiment {names}"


def figure_of(name: str) -> str | None:
    """Path of a figure from a page, if it has been drawn."""
    for ending in ("svg", "png"):
        if (DOCS / "figures" / f"{name}.{ending}").exists():
            return f"figures/{name}.{ending}"
    return None


def slug(title: str) -> str:
    """The anchor of a heading, as MyST makes it."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")
