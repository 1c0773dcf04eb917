"""Figures of tables: ours beside published, a case a line."""

import numpy as np

from benchmarks.papers.experiment import label
from benchmarks.papers.figures.style import COLOURS, subplots
from benchmarks.papers.results import gains_by_split, rows


def lines_of(held, measure: str, is_named: bool):
    """Labels and cells of a measure, of all cases of pairs of experiment and runs."""
    lines = []
    for experiment, runs in held:
        for row in rows(experiment, runs):
            for cell in row.cells:
                if cell.measure.name == measure and "contrast" not in row.case:
                    prefix = f"{experiment.name}, " if is_named else ""
                    lines.append((prefix + label(row.case), cell))
    return lines


def one_a_line(lines, measure: str, is_named: bool):
    """Axes with a case a line, the first one on top, and lines between experiments."""
    figure, axes = subplots(1, 1, height=max(1.6, 0.9 + 0.3 * len(lines)))
    names = [name for name, _ in lines]
    axes.set_yticks(range(len(lines)), names)
    axes.set(ylim=(len(lines) - 0.5, -0.5))
    figure.supxlabel(measure, fontsize=12)
    sets = [name.partition(",")[0] for name in names]
    for i in range(1, len(sets)):
        if is_named and sets[i] != sets[i - 1]:
            axes.axhline(i - 0.5, color="0.85", lw=0.8)
    return figure, axes


def beside_published(held, measure: str, is_named: bool):
    """Ours (filled, two standard errors) and published values (hollow)."""
    lines = lines_of(held, measure, is_named)
    figure, axes = one_a_line(lines, measure, is_named)
    for i, (_, cell) in enumerate(lines):
        error = 2.0 * (cell.ours.error or 0.0)
        axes.errorbar(cell.ours.mean, i, xerr=error, fmt="o", color=COLOURS[0])
        if cell.published is not None:
            axes.plot(cell.published.mean, i, "s", mfc="none", mec=COLOURS[1], mew=1.6)
    axes.plot([], [], "o", color=COLOURS[0], label="ours, ± 2 s.e.")
    if any(cell.published is not None for _, cell in lines):
        axes.plot([], [], "s", mfc="none", mec=COLOURS[1], mew=1.6, label="published")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def less_published(held, measure: str, is_named: bool):
    """Ours less the published values, for sets of different scales."""
    every = lines_of(held, measure, is_named)
    lines = [(name, cell) for name, cell in every if cell.difference is not None]
    better = lines[0][1].measure.better
    name = f"{measure}, ours − published, ± 2 s.e. ({better} is better)"
    figure, axes = one_a_line(lines, name, is_named)
    axes.axvline(0.0, color="0.5", lw=0.8)
    for i, (_, cell) in enumerate(lines):
        gap, k = cell.difference, int(cell.is_worse)
        error = 2.0 * (gap.error or 0.0)
        axes.errorbar(gap.mean, i, xerr=error, fmt="os"[k], color=COLOURS[k])
    for k in sorted({int(cell.is_worse) for _, cell in lines}):
        name = "worse by more than 2 s.e." if k else "not worse"
        axes.plot([], [], "os"[k], color=COLOURS[k], label=name)
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def two_measures(experiment, runs, names: tuple[str, ...] = ()):
    """Two measures (the first ones without names) side by side, a case a line.

    Ours are filled, ± 2 standard errors, and published values hollow.
    """
    found = rows(experiment, runs)
    names = names or tuple(measure.name for measure in experiment.measures[:2])
    figure, axes = subplots(1, 2, height=max(2.2, 0.9 + 0.3 * len(found)), sharey=True)
    printed = {"color": COLOURS[1], "mfc": "none", "mew": 1.6}
    shown = [c for row in found for c in row.cells if c.measure.name in names]
    for ax, name in zip(axes, names, strict=True):
        for i, row in enumerate(found):
            for cell in (c for c in row.cells if c.measure.name == name):
                error = 2.0 * (cell.ours.error or 0.0)
                ax.errorbar(cell.ours.mean, i, xerr=error, fmt="o", color=COLOURS[0])
                if cell.published is not None:
                    ax.plot(cell.published.mean, i, "s", **printed)
        better = next(m.better for m in experiment.measures if m.name == name)
        ax.set(xlabel=f"{name} ({better} is better)" if better else name, xmargin=0.1)
    axes[0].set_yticks(range(len(found)), [label(row.case) for row in found])
    axes[0].set_ylim(len(found) - 0.5, -0.5)
    if any(cell.published is not None for cell in shown):
        has_errors = any(cell.ours.error is not None for cell in shown)
        own = "ours, ± 2 s.e." if has_errors else "ours"
        axes[0].plot([], [], "o", color=COLOURS[0], label=own)
        axes[0].plot([], [], "s", label="published", **printed)
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def gains(experiment, runs):
    """What draws gain over the Gaussian on every split, a column a contrast."""
    figure, axes = subplots(1, 1, height=3.0)
    for i, one in enumerate(experiment.contrasts):
        each = gains_by_split(experiment, one, runs)
        at = i + np.linspace(-0.2, 0.2, len(each))
        axes.plot(at, each, "o", color=COLOURS[i], alpha=0.8)
        axes.plot([i - 0.3, i + 0.3], [np.mean(each)] * 2, color=COLOURS[i], lw=2.5)
    axes.axhline(0.0, color="0.5", lw=0.8)
    names = [one.over["mode of"] for one in experiment.contrasts]
    axes.set_xticks(range(len(names)), names)
    axes.set(xlabel="coordinate of the mode", ylabel="gain of draws, nats")
    return figure
