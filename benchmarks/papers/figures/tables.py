"""Figures of tables: ours beside published, and measures against a setting."""

import numpy as np

from benchmarks.papers.experiment import label
from benchmarks.papers.figures.style import COLOURS, subplots
from benchmarks.papers.results import rows


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


def one_a_line(lines, measure: str):
    """Axes with a case a line, the first one on top."""
    figure, axes = subplots(1, 1, height=max(1.6, 0.9 + 0.3 * len(lines)))
    axes.set_yticks(range(len(lines)), [name for name, _ in lines])
    axes.set(xlabel=measure, ylim=(len(lines) - 0.5, -0.5))
    return figure, axes


def beside_published(held, measure: str, is_named: bool):
    """Ours (filled, two standard errors) and published values (hollow)."""
    lines = lines_of(held, measure, is_named)
    figure, axes = one_a_line(lines, measure)
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
    figure, axes = one_a_line(lines, name)
    axes.axvline(0.0, color="0.5", lw=0.8)
    for i, (_, cell) in enumerate(lines):
        gap = cell.difference
        colour = COLOURS[1] if cell.is_worse else COLOURS[0]
        axes.errorbar(gap.mean, i, xerr=2.0 * (gap.error or 0.0), fmt="o", color=colour)
    return figure


def against_sparsity(experiment, runs):
    """Both measures against SF, a line a family, ± 2 standard errors."""
    found = rows(experiment, runs)
    figure, axes = subplots(1, 2)
    families = list(dict.fromkeys(row.case["q(v)"] for row in found))
    for ax, measure in zip(axes, experiment.measures, strict=True):
        for i, family in enumerate(families):
            cells = {
                row.case["SF"]: cell
                for row in found
                for cell in row.cells
                if row.case["q(v)"] == family and cell.measure == measure
            }
            at = np.arange(len(cells)) + 0.12 * (i - 1)
            ax.errorbar(
                at,
                [c.ours.mean for c in cells.values()],
                [2.0 * (c.ours.error or 0.0) for c in cells.values()],
                fmt="osD"[i] + "-",
                color=COLOURS[i],
                lw=1,
                label=family,
            )
            ax.set_xticks(range(len(cells)), [f"{sf:g}" for sf in cells])
        name = f"{measure.name}, %" if "rate" in measure.name else measure.name
        ax.set(xlabel="M / N", ylabel=name)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3
    )
    return figure


def against_inducing(experiment, runs):
    """Held-out log probability of image segments against M, four panels in one row."""
    found = rows(experiment, runs)
    figure, axes = subplots(1, 2, sharey=True)
    for ax, kernel in zip(axes, ("isotropic", "ARD"), strict=True):
        for i, z in enumerate(("k-means", "fitted")):
            own = [r for r in found if r.case["kernel"] == kernel and r.case["z"] == z]
            own = sorted(own, key=lambda r: r.case["M"])
            for style, name in (("--", "Gaussian"), ("-", "draws")):
                values = [
                    next(c for c in r.cells if c.measure.name == name).ours.mean
                    for r in own
                ]
                at = [r.case["M"] for r in own]
                ax.plot(at, values, style, marker="os"[i], color=COLOURS[i])
        ax.set(xscale="log", xlabel="M", title=kernel)
        at = sorted({r.case["M"] for r in found})
        ax.set_xticks(at, [str(m) for m in at])
        ax.minorticks_off()
    axes[0].set_ylabel("held-out log probability")
    for i, z in enumerate(("k-means", "fitted z")):
        axes[1].plot([], [], "os"[i], color=COLOURS[i], label=z)
    for style, name in (("--", "Gaussian"), ("-", "draws")):
        axes[1].plot([], [], style, color="0.3", label=name)
    figure.legend(
        *axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=4
    )
    return figure


def gains(experiment, runs):
    """What draws gain over the Gaussian on every split, a column a contrast."""
    figure, axes = subplots(1, 1, height=3.0)
    for i, one in enumerate(experiment.contrasts):
        both = []
        for case in (one.case, one.over):
            own = [r for r in runs if case.items() <= r["settings"].items()]
            both.append({r["split"]: r["numbers"][one.measure] for r in own})
        each = [both[0][split] - both[1][split] for split in sorted(both[0])]
        at = i + np.linspace(-0.2, 0.2, len(each))
        axes.plot(at, each, "o", color=COLOURS[i], alpha=0.8)
        axes.plot([i - 0.3, i + 0.3], [np.mean(each)] * 2, color=COLOURS[i], lw=2.5)
    axes.axhline(0.0, color="0.5", lw=0.8)
    names = [one.over["mode of"] for one in experiment.contrasts]
    axes.set_xticks(range(len(names)), names)
    axes.set(xlabel="coordinate of the mode", ylabel="gain of draws, nats")
    return figure
