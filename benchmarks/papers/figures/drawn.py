"""Which figure shows which experiments, and how it is drawn."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from benchmarks.papers import pages, results
from benchmarks.papers.figures import posteriors, tables
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
# The figure's name, its paper, its experiments, what draws one, and the file's ending.
SINGLE = (
    *(
        (f"savigp-{name}", "savigp-2015", name, tables.against_sparsity)
        for name in ("boston", "abalone", "wisconsin", "usps", "creep")
    ),
    ("savigp-coal", "savigp-2015", "coal", posteriors.coal_by_sparsity),
    ("mcmc-image", "mcmc-2015", "image", tables.against_inducing),
    ("mcmc-coal-held-out", "mcmc-2015", "coal-held-out", tables.gains),
    ("mcmc-coal-posterior", "mcmc-2015", "coal-posterior", posteriors.coal_bands),
    ("mcmc-pines", "mcmc-2015", "pines", posteriors.pines_map),
    ("mcmc-clouds", "mcmc-2015", "clouds", posteriors.cloud_contours),
    ("mcmc-chains", "mcmc-2015", "chains", posteriors.convergence),
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
    ("deep-depth", "deep-2017", ("depth",), "log density", tables.beside_published),
    ("noise-uci", "noise-2019", UCI, "nll", tables.less_published),
    ("noise-flip", "noise-2019", FLIPS, "nll", tables.beside_published),
)


def write(folder: Path) -> None:
    """Draw every figure whose results are there into docs/papers/figures."""
    with mpl.rc_context(LOOK):
        for name, paper, experiment, draw in SINGLE:
            held = pages.BY_NAME[paper, experiment]
            _, runs = results.found(held, folder)
            if runs:
                saved(name, draw(held, runs))
        for name, paper, experiments, measure, draw in BESIDE:
            every = [pages.BY_NAME[paper, one] for one in experiments]
            held = [(one, results.found(one, folder)[1]) for one in every]
            held = [(one, runs) for one, runs in held if runs]
            if held:
                saved(name, draw(held, measure, len(experiments) > 1))


def saved(name: str, figure) -> None:
    """As SVG without a date; maps as PNG."""
    path = pages.DOCS / "figures"
    path.mkdir(parents=True, exist_ok=True)
    if name == "mcmc-pines":
        figure.savefig(path / f"{name}.png", dpi=200)
    else:
        figure.savefig(path / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)
