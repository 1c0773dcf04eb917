"""Which figure shows which experiments, and how it is drawn."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from benchmarks.papers import pages, results
from benchmarks.papers.coverage import COVERAGE
from benchmarks.papers.figures import against, digits, posteriors, tables
from benchmarks.papers.figures.style import LOOK

UCI = (
    "ringnorm",
    "twonorm",
    "letter",
    "pendigits",
    "waveform",
    "waveform-noise",
    "wine-quality-white",
    "adult",
)
FLIPS = ("adult-flip", "waveform-noise-flip")
OTHERS = ("boston", "concrete", "naval", "power", "protein", "wine_red")
LARGE = ("year", "airline", "taxi")
OTHER_UCI, COMBINED = (
    next(one for one in COVERAGE if name in one.figures)
    for name in ("noise-others", "noise-combined")
)
_ALONE = tuple(e for e in COMBINED.experiments if not COMBINED.task_in(e))
# The figure's name, its paper, its experiments, and what draws it.
SINGLE = (
    *(
        (f"savigp-{name}", "savigp-2015", name, against.against_sparsity)
        for name in ("boston", "abalone", "wisconsin", "usps", "creep", "mnist")
    ),
    ("savigp-sarcos", "savigp-2015", "sarcos", against.against_nodes),
    ("savigp-coal", "savigp-2015", "coal", posteriors.coal_by_sparsity),
    ("mcmc-image", "mcmc-2015", "image", against.against_inducing),
    ("mcmc-coal-held-out", "mcmc-2015", "coal-held-out", tables.gains),
    ("mcmc-coal-posterior", "mcmc-2015", "coal-posterior", posteriors.coal_bands),
    ("mcmc-pines", "mcmc-2015", "pines", posteriors.pines_map),
    (
        "mcmc-pines-64",
        "mcmc-2015",
        "pines pines-64",
        lambda e, r: posteriors.pines_map(e, posteriors.of_process(r, "sparse")),
    ),
    ("mcmc-clouds", "mcmc-2015", "clouds", posteriors.cloud_contours),
    ("mcmc-mnist", "mcmc-2015", "mnist", digits.movement),
    ("mcmc-chains", "mcmc-2015", "chains", posteriors.convergence),
    ("deep-mnist", "deep-2017", "mnist", against.against_layers),
    (
        "deep-step-time",
        "deep-2017",
        "step-time",
        lambda e, r: against.against_layers(e, r, "log"),
    ),
    ("noise-airline", "noise-2019", "airline", tables.two_measures),
    ("noise-averages", "noise-2019", "averages", tables.two_measures),
    (
        "coupled-moments",
        "coupled-2017",
        "table-1",
        lambda e, r: tables.two_measures(e, r, ("gap", "correlation")),
    ),
    ("coupled-posteriors", "coupled-2017", "table-1", posteriors.additive),
    (
        "noise-banana",
        "noise-2019",
        "toys",
        lambda e, r: posteriors.toy_contours(e, r, "banana"),
    ),
    (
        "noise-three-classes",
        "noise-2019",
        "toys",
        lambda e, r: posteriors.toy_contours(e, r, "three classes"),
    ),
)
BESIDE = (
    ("deep-kin8nm", "deep-2017", ("kin8nm",), "log density", tables.beside_published),
    ("deep-energy", "deep-2017", ("energy",), "log density", tables.beside_published),
    ("deep-others", "deep-2017", OTHERS, "log density", tables.less_published),
    ("deep-large", "deep-2017", LARGE, "log density", tables.beside_published),
    ("deep-depth", "deep-2017", ("depth",), "log density", tables.beside_published),
    ("noise-uci", "noise-2019", UCI, "nll", tables.less_published),
    ("noise-others", "noise-2019", OTHER_UCI.experiments, "nll", tables.less_published),
    ("noise-combined", "noise-2019", _ALONE, "nll", tables.less_published),
    (
        "noise-combined-others",
        "noise-2019",
        COMBINED.task_of,
        "nll",
        tables.less_published,
    ),
    ("noise-flip", "noise-2019", FLIPS, "nll", tables.beside_published),
)


def write(folder: Path) -> None:
    """Draw every figure whose results are there into docs/papers/figures."""
    with mpl.rc_context(LOOK):
        for name, paper, experiments, draw in SINGLE:
            names = experiments.split()
            held = having_runs(paper, names, folder)
            if len(held) == len(names):
                runs = [run for _, each in held for run in each]
                saved(name, draw(held[0][0], runs))
        for name, paper, experiments, measure, draw in BESIDE:
            held = having_runs(paper, experiments, folder)
            if held:
                saved(name, draw(held, measure, len(experiments) > 1))


def having_runs(paper: str, names: Sequence[str], folder: Path):
    """Those of a paper's experiments that have runs, and the runs."""
    every = [pages.BY_NAME[paper, name] for name in names]
    held = [(one, results.found(one, folder)[1]) for one in every]
    return [(one, runs) for one, runs in held if runs]


def saved(name: str, figure) -> None:
    """As SVG without a date; maps as PNG."""
    path = pages.DOCS / "figures"
    path.mkdir(parents=True, exist_ok=True)
    if name.startswith("mcmc-pines"):
        figure.savefig(path / f"{name}.png", dpi=200)
    else:
        figure.savefig(path / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
