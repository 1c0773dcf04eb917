"""The command: a paper's experiments, the list of all, the checks, or the pages.

Results go below ``--out``; a run that is there already is skipped.
"""

import argparse
from pathlib import Path

from benchmarks.papers import runs
from benchmarks.papers.registry import EXPERIMENTS


def parse(arguments=None):
    """The options; None reads the command line."""
    papers = sorted({e.paper for e in EXPERIMENTS})
    parser = argparse.ArgumentParser("python -m benchmarks.papers")
    parser.add_argument("name", choices=["list", "pages", "checks", *papers])
    parser.add_argument("--experiment", nargs="+", help="all of the paper without it")
    parser.add_argument("--splits", type=int, nargs="+", help="those of the budget")
    parser.add_argument("--budget", choices=["quick", "paper"], default="quick")
    parser.add_argument("--out", type=Path, default=runs.RESULTS)
    return parser.parse_args(arguments)


def chosen(paper: str, names: list[str] | None):
    """The experiments of those names.

    Raises:
        SystemExit: The paper has no experiment of a name.
    """
    held = {e.name: e for e in EXPERIMENTS if e.paper == paper}
    wrong = set(names or ()) - set(held)
    if wrong:
        raise SystemExit(f"{paper} has {', '.join(held)}; not {', '.join(wrong)}")
    return [held[name] for name in names or held]


def main():
    options = parse()
    if options.name == "list":
        for one in EXPERIMENTS:
            print(f"{one.paper:14s}{one.name:22s}{len(one.cases)} cases")
        return
    if options.name == "pages":
        from benchmarks.papers import figures, pages, passages

        figures.write(options.out)
        pages.write(options.out)
        passages.write(options.out)
        return
    if options.name == "checks":
        from benchmarks.papers import checks

        checks.write(options.out)
        return
    for experiment in chosen(options.name, options.experiment):
        splits = options.splits or experiment.budget(options.budget).splits
        runs.run(experiment, options.budget, splits, options.out)


if __name__ == "__main__":
    main()
