"""The experiments of the papers, and which of ours answer each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """A paper: key, title of its page, how it is cited."""

    key: str
    title: str
    citation: str


@dataclass(frozen=True)
class Published:
    """A published experiment: where it stands, our experiments, our figures.

    ``settings``: those of the paper, in words. ``task``: what it was that the published
    scores are of, where it is not ours: of the experiments ``task_of``, or of all.
    """

    paper: str
    title: str
    where: str
    experiments: tuple[str, ...]
    settings: str
    figures: tuple[str, ...] = ()
    task: str = ""
    task_of: tuple[str, ...] = ()

    def task_in(self, experiment: str) -> str:
        """The task of the published scores of an experiment."""
        return self.task if experiment in (self.task_of or self.experiments) else ""


PAPERS = (
    Paper(
        "savigp-2015",
        "Black-box likelihoods",
        "A. Dezfouli and E. V. Bonilla (2015), *Scalable inference for Gaussian "
        "process models with black-box likelihoods*, NIPS 28",
    ),
    Paper(
        "mcmc-2015",
        "MCMC for sparse processes",
        "J. Hensman, A. G. de G. Matthews, M. Filippone and Z. Ghahramani (2015), "
        "*MCMC for variationally sparse Gaussian processes*, NIPS 28",
    ),
    Paper(
        "coupled-2017",
        "Coupled processes",
        "V. Adam (2017), *Structured variational inference for coupled Gaussian "
        "processes*, arXiv",
    ),
    Paper(
        "deep-2017",
        "Deep processes",
        "H. Salimbeni and M. P. Deisenroth (2017), *Doubly stochastic variational "
        "inference for deep Gaussian processes*, NIPS 30",
    ),
    Paper(
        "noise-2019",
        "Classification with additive noise",
        "H. Liu, Y.-S. Ong, X. Shen and J. Cai (2019), *Scalable Gaussian process "
        "classification with additive noise for various likelihoods*, arXiv",
    ),
)

_SWEEP = "FG, MoG1 and MoG2 at SF = M/N of 0.1, 0.2, 0.5 and 1"
_GPC = "M = 300 by k-means, minibatches of 1024, Adam 0.01, 10,000 steps, ten splits"
_DEEP = "M = 100 a layer, Adam 0.01, 20,000 steps of minibatches of 10,000, 20 splits"

_WITH_ROWS = "the number of the row is an input"
_ROWS_TELL = (
    "magic",
    "mushroom",
    "chess-krvk",
    "nursery",
    "page-blocks",
    "statlog-landsat",
    "statlog-shuttle",
    "thyroid",
    "wall-following",
)
_ROWS_TELL_COMBINED = tuple(f"{name}-combined" for name in _ROWS_TELL)

COVERAGE = (
    Published(
        "savigp-2015",
        "Boston, Gaussian noise",
        "supplement",
        ("boston",),
        f"{_SWEEP}, 300 of 506 rows, five splits; L-BFGS in turn",
        ("savigp-boston",),
    ),
    Published(
        "savigp-2015",
        "Abalone, warped",
        "figure 1",
        ("abalone",),
        f"{_SWEEP}, 1000 of 4177 rows, one split",
        ("savigp-abalone",),
    ),
    Published(
        "savigp-2015",
        "Coal-mining disasters, log Gaussian Cox process",
        "figure 2",
        ("coal",),
        "811 bins of 50 days, FG and MoG1 at four SF; kernel and offset fixed",
        ("savigp-coal",),
    ),
    Published(
        "savigp-2015",
        "Wisconsin breast cancer, logistic",
        "figure 3",
        ("wisconsin",),
        f"{_SWEEP}, 300 of 683 rows, five splits; error 0 to 4 %, NLP 0.1 to 0.2",
        ("savigp-wisconsin",),
    ),
    Published(
        "savigp-2015",
        "MNIST, softmax",
        "figure 4, left and middle",
        ("mnist",),
        "FG, all 60,000 images, SF 0.001, 0.004, 0.02, 0.04",
        ("savigp-mnist",),
    ),
    Published(
        "savigp-2015",
        "Sarcos, regression network",
        "figure 4, right",
        ("sarcos",),
        "44,484 rows, M = 1779, one node; SMSE of both torques below 0.009",
        ("savigp-sarcos",),
    ),
    Published(
        "savigp-2015",
        "USPS digits 4, 7, 9, softmax",
        "supplement",
        ("usps",),
        f"{_SWEEP}, 1233 of 2465 rows, five splits",
        ("savigp-usps",),
    ),
    Published(
        "savigp-2015",
        "Creep, warped",
        "supplement",
        ("creep",),
        f"{_SWEEP}, 800 of 2066 rows, one split",
        ("savigp-creep",),
    ),
    Published(
        "mcmc-2015",
        "Image segments",
        "figure 2",
        ("image",),
        "M = 5 to 100, z by k-means or fitted, one lengthscale or one a column; HMC, "
        "10,000 draws; ten splits",
        ("mcmc-image",),
    ),
    Published(
        "mcmc-2015",
        "Coal-mining disasters, held out",
        "section 5.2",
        ("coal-held-out",),
        "100 bins, M = 30 evenly spaced, HMC, 3000 draws; ten splits",
        ("mcmc-coal-held-out",),
    ),
    Published(
        "mcmc-2015",
        "Coal-mining disasters, posterior against exact MCMC",
        "figure 3",
        ("coal-posterior",),
        "M = 30; the exact process by MCMC beside it",
        ("mcmc-coal-posterior",),
    ),
    Published(
        "mcmc-2015",
        "Pines, 32 × 32 cells, sparse against full",
        "figure 4",
        ("pines",),
        "M = 225, fitted z, HMC; all cells by HMC",
        ("mcmc-pines",),
    ),
    Published(
        "mcmc-2015",
        "Pines, 64 × 64 cells",
        "figure 4",
        ("pines-64",),
        "M = 225, fitted z, HMC",
        ("mcmc-pines-64",),
    ),
    Published(
        "mcmc-2015",
        "Three clouds",
        "figure 5",
        ("clouds",),
        "750 points, M = 50, robust max with 1e-3; HMC, 10,000 draws",
        ("mcmc-clouds",),
    ),
    Published(
        "mcmc-2015",
        "MNIST, and the movement of z",
        "section 5.5, figure 6",
        ("mnist",),
        "all 60,000 images, M = 500, Adadelta, then HMC of 1000 draws",
        ("mcmc-mnist",),
    ),
    Published(
        "mcmc-2015",
        "HMC against Gibbs: effective sizes and PSRF",
        "supplement",
        ("chains",),
        "10 chains of 5000 draws of image (M = 100), coal (30) and clouds (50)",
        ("mcmc-chains",),
    ),
    Published(
        "coupled-2017",
        "Sum of two processes, moments and bounds",
        "table 1",
        ("table-1",),
        "500 data, M = 10 and 30, fitted z, hyperparameters of the exact process",
        ("coupled-moments",),
    ),
    Published(
        "coupled-2017",
        "Sum of two processes, the posteriors",
        "figure 1",
        ("table-1",),
        "as above",
        ("coupled-posteriors",),
    ),
    Published(
        "deep-2017",
        "kin8nm",
        "figure 1, tables 3 and 4",
        ("kin8nm",),
        _DEEP,
        ("deep-kin8nm",),
    ),
    Published(
        "deep-2017", "Energy", "figure 1, tables", ("energy",), _DEEP, ("deep-energy",)
    ),
    Published(
        "deep-2017",
        "The other UCI sets",
        "figure 1, tables",
        ("boston", "concrete", "naval", "power", "protein", "wine_red"),
        _DEEP,
        ("deep-others",),
    ),
    Published(
        "deep-2017",
        "Four and five layers, M = 500, seconds a step",
        "figure 1, table 3",
        ("depth", "step-time"),
        f"{_DEEP}; seconds a step at minibatches of 10,000 on one processor",
        ("deep-depth", "deep-step-time"),
    ),
    Published(
        "deep-2017",
        "Rectangles with images, MNIST",
        "section 4",
        ("rectangles-images", "mnist"),
        "M = 100, 100,000 steps; 12,000 and 60,000 rows",
        ("deep-mnist",),
    ),
    Published(
        "deep-2017",
        "Year, airline, taxi; HIGGS, SUSY",
        "table 1 and section 4",
        ("year", "airline", "taxi", "higgs", "susy"),
        "463,810 to 10⁹ rows, M = 100, 100,000 steps (taxi 500,000)",
        ("deep-large",),
    ),
    Published(
        "noise-2019",
        "Banana and three classes on the square",
        "figure 2",
        ("toys",),
        "M = 32, Matérn-3/2, 5000 steps",
        ("noise-banana", "noise-three-classes"),
    ),
    Published(
        "noise-2019",
        "UCI sets where the number of the row says nothing, RBF",
        "tables III and IV",
        (
            "adult",
            "ringnorm",
            "twonorm",
            "letter",
            "pendigits",
            "waveform",
            "waveform-noise",
            "wine-quality-white",
        ),
        _GPC,
        ("noise-uci",),
    ),
    Published(
        "noise-2019",
        "Other UCI sets, RBF",
        "tables III and IV",
        _ROWS_TELL,
        f"{_GPC}; {_WITH_ROWS}",
        ("noise-others",),
        task=_WITH_ROWS,
    ),
    Published(
        "noise-2019",
        "connect-4 and miniboone",
        "tables III and IV",
        ("connect-4", "miniboone"),
        _GPC,
    ),
    Published(
        "noise-2019",
        "UCI sets, Matérn-5/2 + RBF",
        "table V",
        (
            "adult-combined",
            "ringnorm-combined",
            "twonorm-combined",
            "letter-combined",
            "pendigits-combined",
            "waveform-combined",
            "waveform-noise-combined",
            "wine-quality-white-combined",
            *_ROWS_TELL_COMBINED,
            "connect-4-combined",
            "miniboone-combined",
        ),
        f"{_GPC}; {_WITH_ROWS}, and tells of the class in the sets from magic on",
        ("noise-combined", "noise-combined-others"),
        task=_WITH_ROWS,
        task_of=_ROWS_TELL_COMBINED,
    ),
    Published(
        "noise-2019",
        "Averages over the sets",
        "table II",
        ("averages",),
        "means over 7 sets of two classes and 12 of several",
        ("noise-averages",),
    ),
    Published(
        "noise-2019",
        "Flights in three classes",
        "figure 3",
        ("airline",),
        "two million flights, M = 200, 100,000 steps",
        ("noise-airline",),
    ),
    Published(
        "noise-2019",
        "Flip probability fixed and learned",
        "figure 4",
        ("adult-flip", "waveform-noise-flip"),
        f"{_GPC}; fixed at 1e-3",
        ("noise-flip",),
    ),
)
