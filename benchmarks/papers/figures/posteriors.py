"""Figures of posteriors: bands, maps, contours, correlations, convergence."""

import numpy as np

import svgp_ppl as gp
from benchmarks.papers.figures.style import BLUE, COLOURS, ORANGE, RED, subplots
from benchmarks.papers.mcmc.clouds import square
from benchmarks.papers.noise import toys


def of_case(runs, **case):
    """The first run with these settings; None without one."""
    fitting = [r for r in runs if case.items() <= r["settings"].items()]
    return fitting[0] if fitting else None


def of_process(runs, name: str):
    """Runs of the process of this name."""
    return [run for run in runs if run["settings"]["process"] == name]


def coal_bands(experiment, runs):
    """Rate and band of 90 per cent: Gaussian, sparse draws, exact process."""
    figure, axes = subplots(1, 1, height=3.4)
    cases = (
        ({"posterior": "draws", "M": 100}, "exact process", "0.35"),
        ({"posterior": "draws", "M": 30}, "draws, M = 30", BLUE),
        ({"posterior": "Gaussian", "M": 30}, "Gaussian, M = 30", RED),
    )
    for case, name, colour in cases:
        run = of_case(runs, **case)
        if run is None:
            continue
        curves = run["curves"]
        years = np.array(curves["year"])
        axes.plot(years, curves["mean"], color=colour, label=name)
        for end in ("low", "high"):
            axes.plot(years, curves[end], "--", color=colour, lw=1.0)
        if colour == "0.35":
            axes.fill_between(years, curves["low"], curves["high"], color="0.9", lw=0)
    axes.plot([], [], "--", color="0.5", lw=1.0, label="5 and 95 %")
    counts = np.array(curves["count"])
    name, tops = f"counts, up to {counts.max()}", -0.9 + 0.8 * counts / counts.max()
    axes.vlines(years, -0.9, tops, color="k", lw=1.5, label=name)
    axes.set(xlabel="year", ylabel="disasters a year", yticks=range(5))
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def coal_by_sparsity(experiment, runs):
    """Intensity a bin by FG and MoG1, a line for each sparsity factor."""
    figure, axes = subplots(1, 2, sharey=True)
    for ax, family in zip(axes, ("FG", "MoG1"), strict=True):
        own = [r for r in runs if r["settings"]["q(v)"] == family]
        for i, run in enumerate(sorted(own, key=lambda r: r["settings"]["SF"])):
            curves, name = run["curves"], f"SF {run['settings']['SF']:g}"
            years = 1851.2 + np.array(curves["day"]) / 365.25
            # Dashes take turns: lines that coincide are striped, and none is hidden.
            for curve, width, dash in (
                ("mean", 2.6, 3),
                ("low", 1.2, 4),
                ("high", 1.2, 4),
            ):
                look = {"lw": width, "ls": (dash * i, (dash, dash * (len(own) - 1)))}
                ax.plot(years, curves[curve], color=COLOURS[i], **look)
            ax.plot([], [], color=COLOURS[i], lw=2.6, label=name)
        ax.set(title=family, xlabel="year")
    axes[0].plot([], [], color="0.5", lw=1.2, label="5 and 95 %")
    axes[0].set_ylabel("disasters in 50 days")
    axes[0].legend()
    return figure


def pines_map(experiment, runs):
    """Mean intensity of every process that has been run, with trees and z."""
    look = {"height": 5.2 / len(runs) + 0.5, "squeeze": False, "sharey": True}
    figure, axes = subplots(1, len(runs), **look)
    top = max(np.max(run["curves"]["intensity"]) for run in runs)
    for ax, run in zip(axes[0], runs, strict=True):
        cells, curves = run["settings"]["cells"], run["curves"]
        held = gp.datasets.pines(cells)
        values = np.array(curves["intensity"]).reshape(cells, cells).T
        image = ax.imshow(
            values, origin="lower", extent=(0, 10, 0, 10), vmin=0.0, vmax=top
        )
        if run["settings"]["process"] == "sparse":
            z = np.array(curves["z"])
            ax.plot(*z.T, "+", color="w", ms=5 - len(runs), mew=0.5)
        sizes, look = 12.0 * held.y / len(runs), {"lw": 0.5, "ec": "k"}
        ax.scatter(*held.x.T, sizes, color=ORANGE, zorder=3, **look)
        name = f"{run['settings']['process']}, {cells} × {cells}"
        ax.set(title=name, xlabel="m", xticks=range(0, 11, 2))
    axes[0, 0].set_ylabel("m")
    axes[0, 0].plot([], [], "o", color=ORANGE, mec="k", mew=0.5, ms=5, label="trees")
    axes[0, 0].plot([], [], "k+", ms=5, label="z (white)")
    figure.legend(loc="outside upper center", ncols=2)
    figure.colorbar(image, ax=axes[0], label="trees per m²")
    return figure


def cloud_contours(experiment, runs):
    """Probability 0.95 and 0.5 of each class by both posteriors, and the data."""
    runs = sorted(runs, key=lambda run: run["settings"]["flip"])
    figure, axes = subplots(
        len(runs), 2, sharex=True, sharey=True, height=3.2, squeeze=False
    )
    for run, row in zip(runs, axes, strict=True):
        for ax, name in zip(row, ("Gaussian", "draws"), strict=True):
            cloud_contour(ax, run["curves"], name)
            ax.set(title=f"{name}, flip probability {run['settings']['flip']}")
    return figure


def cloud_contour(ax, curves, name: str):
    """One of the posteriors, and z."""
    held = gp.datasets.three_classes()
    sides = [np.unique(column) for column in square(held.x).T]
    probs = np.array(curves[name]).reshape(len(sides[0]), len(sides[1]), 3)
    for c in range(3):
        rows = held.y == c
        ax.plot(*held.x[rows].T, ".", color=COLOURS[c], ms=2.5, alpha=0.5)
        ax.contour(
            *sides,
            probs[..., c].T,
            levels=(0.5, 0.95),
            colors=COLOURS[c],
            linewidths=(0.8, 1.8),
        )
    ax.plot(*np.array(curves["z"]).T, "k+", ms=5, mew=0.8)


def toy_contours(experiment, runs, name: str):
    """Class probabilities of the step and the softmax, data, and z."""
    held = gp.datasets.banana() if name == "banana" else toys.three_classes()
    own = [r for r in runs if r["settings"]["data"] == name and "probs" in r["curves"]]
    figure, axes = subplots(1, len(own), height=3.6, squeeze=False, sharey=True)
    sides = [np.unique(column) for column in toys.square(held.x).T]
    for ax, run in zip(axes[0], own, strict=True):
        probs = np.array(run["curves"]["probs"]).reshape(*map(len, sides), -1)
        for c in range(held.num_classes):
            rows = held.y == c
            ax.plot(*held.x[rows].T, ".", color=COLOURS[c], ms=4, alpha=0.6)
        for c in range(probs.shape[-1]):
            colour = "k" if probs.shape[-1] == 1 else COLOURS[c]
            ax.contour(
                *sides,
                probs[..., c].T,
                levels=(0.1, 0.5, 0.9) if colour == "k" else (0.5, 0.9),
                colors=colour,
                linewidths=(0.8, 1.8, 0.8) if colour == "k" else (1.8, 0.8),
            )
        ax.plot(*np.array(run["curves"]["z"]).T, "k+", ms=6, mew=1.0)
        ax.set(title=run["settings"]["noise"])
    thin = "0.1 and 0.9" if held.num_classes == 2 else "0.9"
    axes[0, 0].plot([], [], "k", lw=1.8, label="probability 0.5")
    axes[0, 0].plot([], [], "k", lw=0.8, label=thin)
    axes[0, 0].plot([], [], "k+", ms=6, mew=1.0, label="z")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def additive(experiment, runs):
    """Posterior correlations at the data, and the sd of f by each q(v)."""
    own = [r for r in runs if r["curves"]]
    figure, axes = subplots(1, 2)
    names, heights, colours = [], [], ("0.75", *COLOURS)
    for i, run in enumerate(own):
        settings, curves = run["settings"], run["curves"]
        name = settings["q(v)"] + (f", M = {settings['M']}" if "M" in settings else "")
        names.append(name)
        heights.append(np.mean(curves["sd f"]))
        if settings["q(v)"] != "mean field":
            is_exact = settings["q(v)"] == "exact"  # grey, and the others over it
            axes[0].hist(
                curves["correlation"],
                np.linspace(-1.0, -0.8, 21),
                histtype="stepfilled" if is_exact else "step",
                color=colours[i],
                lw=1.6,
            )
    axes[0].set(xlabel="correlation of f and g", ylabel="data")
    axes[0].text(-0.8, 200.0, "mean field: 0", ha="right")
    axes[1].barh(range(len(names)), heights, color=colours[: len(names)])
    axes[1].set_yticks(range(len(names)), names)
    axes[1].invert_yaxis()
    axes[1].set(xlabel="mean sd of f")
    return figure


def convergence(experiment, runs):
    """PSRF of the slowest parameter after so many draws."""
    figure, axes = subplots(1, 1, height=3.0)
    for i, run in enumerate(runs):
        name = ", ".join(
            run["settings"][k]
            for k in ("data", "kernel", "sampler")
            if k in run["settings"]
        )
        table = np.array(run["curves"]["psrf"])
        style = {"color": COLOURS[i % 6], "ls": ("-", "--")[i // 6]}
        excess = np.maximum(table.max(1) - 1.0, 1e-3)  # curves have four digits
        axes.plot(run["curves"]["draws"], excess, label=name, **style)
    axes.set(xlabel="draws", ylabel="largest PSRF − 1", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside upper center", ncols=2)
    return figure
