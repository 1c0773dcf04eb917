"""Figures of measures against a setting: sparsity, inducing inputs, nodes, layers."""

import numpy as np

from benchmarks.papers.figures.style import COLOURS, subplots
from benchmarks.papers.results import published, rows

HOLLOW = {"ls": "none", "mfc": "none", "mew": 1.6}


def cells_by(found, name: str, measure, **case):
    """Cells of a measure by a setting, of the rows of a case."""
    return {
        row.case[name]: cell
        for row in found
        for cell in row.cells
        if cell.measure == measure and case.items() <= row.case.items()
    }


def with_errors(ax, at, cells, shape: str, **look):
    """Ours at these places, ± 2 standard errors."""
    means = [cell.ours.mean for cell in cells]
    errors = [2.0 * (cell.ours.error or 0.0) for cell in cells]
    ax.errorbar(at, means, errors, fmt=shape, **look)


def printed_by(experiment, name: str, measure, **case):
    """Published means by a setting, also of cases without a run."""
    values = {
        one[name]: published(experiment, one, measure.name)
        for one in experiment.cases
        if case.items() <= one.items()
    }
    return {at: value.mean for at, value in values.items() if value is not None}


def against_sparsity(experiment, runs):
    """Both measures against SF, a line a family, ± 2 standard errors."""
    found = rows(experiment, runs)
    figure, axes = subplots(1, 2)
    families = list(dict.fromkeys(row.case.get("q(v)") for row in found))
    printed = [printed_by(experiment, "SF", m) for m in experiment.measures]
    factors = sorted({row.case["SF"] for row in found}.union(*printed))
    for ax, measure, theirs in zip(axes, experiment.measures, printed, strict=True):
        for i, family in enumerate(families):
            case = {"q(v)": family} if family else {}
            cells = cells_by(found, "SF", measure, **case)
            shift = 0.12 * (i - (len(families) - 1) / 2)
            at = np.array([factors.index(sf) for sf in cells]) + shift
            look = {"color": COLOURS[i], "label": family or "ours, FG"}
            with_errors(ax, at, cells.values(), "osD"[i] + "-", lw=1, **look)
        if theirs:
            at = [factors.index(sf) for sf in theirs]
            look = {"mec": COLOURS[1], "label": "published", **HOLLOW}
            ax.errorbar(at, list(theirs.values()), fmt="s", **look)
        ax.set_xticks(range(len(factors)), [f"{sf:g}" for sf in factors])
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
                is_hollow = name == "Gaussian"  # rings around the draws
                look = {"mfc": "none", "ms": 10} if is_hollow else {}
                ax.plot(at, values, style, marker="os"[i], color=COLOURS[i], **look)
        ax.set(xscale="log", xlabel="M", title=kernel)
        at = sorted({r.case["M"] for r in found})
        ax.set_xticks(at, [str(m) for m in at])
        ax.minorticks_off()
    axes[0].set_ylabel("held-out log probability")
    for i, z in enumerate(("k-means", "fitted z")):
        axes[1].plot([], [], "os"[i] + "-", color=COLOURS[i], label=z)
    for style, name in (("--", "Gaussian"), ("-", "draws")):
        look = {"mfc": "none", "ms": 10} if name == "Gaussian" else {}
        axes[1].plot([], [], style, marker="o", color="0.3", label=name, **look)
    figure.legend(
        *axes[1].get_legend_handles_labels(), loc="outside upper center", ncols=4
    )
    return figure


def against_nodes(experiment, runs):
    """SMSE of both torques by the number of nodes, ± 2 standard errors."""
    found = rows(experiment, runs)
    figure, ax = subplots(1, 1, height=3.0)
    for i, measure in enumerate(experiment.measures[:2]):
        name, shift = measure.name.partition(", ")[2], 0.05 * (2 * i - 1)
        cells = cells_by(found, "nodes", measure)
        at = np.array(list(cells)) + shift
        with_errors(ax, at, cells.values(), "os"[i], color=COLOURS[i], label=name)
        theirs = printed_by(experiment, "nodes", measure)
        at, values = np.array(list(theirs)) + shift, list(theirs.values())
        ax.plot(at, values, "v", mec=COLOURS[i], **HOLLOW)
    ax.errorbar([], [], fmt="v", mec="0.3", label="published, below this", **HOLLOW)
    ax.set_xticks((0, 1, 2), ("independent", "1 node", "2 nodes"))
    ax.set(xlim=(-0.4, 2.4), ylim=(0.0, None), ylabel="SMSE")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def against_layers(experiment, runs, scale: str = "linear"):
    """The first measure by layers and M: ours filled, published values hollow."""
    found, measure = rows(experiment, runs), experiment.measures[0]
    figure, ax = subplots(1, 1, height=3.4)
    for i, num_inducing in enumerate((100, 500)):
        ours = cells_by(found, "layers", measure, M=num_inducing)
        theirs = printed_by(experiment, "layers", measure, M=num_inducing)
        end, look = f"M = {num_inducing}", {"color": COLOURS[i]}
        if ours:
            name = f"ours, {end}"
            with_errors(
                ax, list(ours), ours.values(), "os"[i] + "-", label=name, **look
            )
        if theirs:
            look |= {**HOLLOW, "ls": "--", "lw": 1.0, "label": f"published, {end}"}
            ax.errorbar(list(theirs), list(theirs.values()), marker="os"[i], **look)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(xlabel="layers", ylabel=measure.name, yscale=scale)
    ax.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside upper center", ncols=2)
    return figure
