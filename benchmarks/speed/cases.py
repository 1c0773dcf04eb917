"""The cases: what is computed, on which made-up data. NumPy alone; peers read it too.

S1   a step of a fit: Adam on everything (kernel, noise, z, m, S), full covariance
q(v), Gaussian likelihood, RBF with a lengthscale per column
S2   the same for labels (logit)
S3   the same for ten classes, one process with ten outputs
S4b  gradient of a sampler: log density in v and hyperparameters, labels
S4p  the same for counts
S5   a step of a deep GP of two layers, one draw a datum
S6   mean and variance of the data at 10,000 new points
S7   a step of a linear model of coregionalisation, 5 latents and 8 outputs
S8   a step on a minibatch of 1000 out of a million rows in memory, shuffled
"""

from typing import NamedTuple

import numpy as np

__all__ = ["CASES", "Case", "Data", "chosen", "data_of"]

NUM_CLASSES = 10
NUM_LATENTS, NUM_OUTPUTS = 5, 8
BATCH = 1000


class Case(NamedTuple):
    """A case.

    Attributes:
        name: Such as "S1-100".
        words: What it is.
        n: Data, or new points.
        m: Inducing inputs of a process.
        d: Columns of the inputs.
        steps: In a block, which is what is timed.
        width: Of the inner layer, in a deep GP.
    """

    name: str
    words: str
    n: int
    m: int
    d: int
    steps: int
    width: int = 0

    @property
    def kind(self) -> str:
        """The name without the size."""
        return self.name.split("-")[0]


_LABELS = "gradient of the log density in v and hyperparameters"
CASES = {
    case.name: case
    for case in (
        Case("S1-100", "Adam on everything, Gaussian likelihood", 10_000, 100, 8, 20),
        Case("S1-500", "Adam on everything, Gaussian likelihood", 10_000, 500, 8, 2),
        Case("S2", "Adam on everything, labels (logit)", 1024, 300, 20, 25),
        Case("S3", "Adam on everything, ten classes", 1024, 100, 784, 20),
        Case("S4b", f"{_LABELS}, labels (logit)", 1000, 100, 18, 150),
        Case("S4p", f"{_LABELS}, counts", 100, 30, 1, 2000),
        Case("S5-1", "deep GP of two layers, inner width 1", 10_000, 100, 8, 5, 1),
        Case("S5-8", "deep GP of two layers, inner width 8", 10_000, 100, 8, 3, 8),
        Case("S6", "mean and variance at 10,000 new points", 10_000, 500, 8, 5),
        Case("S7", "5 latents mixed to 8 outputs, Gaussian", 1000, 100, 8, 20),
        Case("S8", "minibatches of 1000 rows, Gaussian", 1_000_000, 100, 8, 100),
    )
}


class Data(NamedTuple):
    """Inputs [N, D], what is observed ([N] or [N, P]), inducing inputs [M, D]."""

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray


def data_of(case: Case, dtype: str) -> Data:
    """The same for everybody."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(case.n, case.d))
    signal = np.sin(x.sum(axis=1))
    noisy = signal + 0.1 * rng.normal(size=case.n)
    match case.kind:
        case "S2" | "S4b":
            y = (noisy > 0).astype(int)
        case "S3":
            y = np.digitize(noisy, np.quantile(noisy, np.linspace(0.1, 0.9, 9)))
        case "S4p":
            y = rng.poisson(np.exp(signal))
        case "S7":
            y = np.sin(x @ rng.normal(size=(case.d, NUM_OUTPUTS)) / 2)
            y = (y + 0.1 * rng.normal(size=y.shape)).astype(dtype)
        case _:
            y = noisy.astype(dtype)
    z = x[rng.choice(min(case.n, 10_000), case.m, replace=False)]
    return Data(x.astype(dtype), y, z.astype(dtype))


def chosen(names: list[str] | None) -> list[Case]:
    """Cases by name; "S1" is every case that begins so.

    Raises:
        SystemExit: There is none of a name.
    """
    found: dict[str, Case] = {}
    for name in names or [""]:
        fitting = {n: c for n, c in CASES.items() if n.startswith(name)}
        if not fitting:
            raise SystemExit(f"there is no case {name}, only {', '.join(CASES)}")
        found |= fitting
    return list(found.values())
