"""Data at the edge of what numbers can do, against NumPy; other forms of the same."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import QUIET, Case, X, Y, Z, fit, model_of
from jax import random
from scipy import special, stats

import svgp_ppl as gp


@dataclass(frozen=True)
class Problem:
    """Data, a kernel and a likelihood, in both routes.

    Attributes:
        x: Inputs.
        y: Data.
        z: Inducing inputs.
        likelihood: Of this package.
        log_p: log p(y | f) by NumPy or SciPy.
        variance: Of the kernel.
        lengthscale: Of the kernel.
        spread: Of q(v), whose factor is spread times a lower triangle.
        tolerance: In float32, and in float64.
        mask: Where y is known.
    """

    x: Any = field(default_factory=lambda: X)
    y: Any = field(default_factory=lambda: Y)
    z: Any = field(default_factory=lambda: Z)
    likelihood: Any = None
    log_p: Any = None
    variance: float = 1.3
    lengthscale: Any = 0.9
    spread: float = 0.5
    tolerance: tuple[float, float] = (2e-4, 1e-8)
    mask: Any = None


def qv_of(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Mean and factor of the q(v) at which the bound is compared."""
    m = len(problem.z)
    tril = np.tril(np.cos(np.arange(m * m).reshape(m, m))) * 0.3
    np.fill_diagonal(tril, np.linspace(0.6, 1.0, m))
    return np.sin(1.0 + np.arange(m)), problem.spread * tril


def moments(problem: Problem, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the latent, by NumPy in float64."""

    def k(a, b):
        scaled = (a[:, None] - b[None]) / np.asarray(problem.lengthscale)
        return problem.variance * np.exp(-0.5 * np.sum(scaled**2, axis=-1))

    x, z = (np.asarray(a, np.float64) for a in (problem.x, problem.z))
    jitter = (1e-6 if bits == 64 else 1e-5) * problem.variance
    tril = np.linalg.cholesky(k(z, z) + jitter * np.eye(len(z)))
    a = np.linalg.solve(tril, k(z, x))
    mean, factor = qv_of(problem)
    residual = problem.variance - np.sum(a**2, axis=0)
    return a.T @ mean, residual + np.sum((factor.T @ a) ** 2, axis=0)


def by_numpy(problem: Problem, bits: int) -> tuple[float, np.ndarray]:
    """The bound, and log E p(y_n | f_n) [N]."""
    mean, variance = moments(problem, bits)
    e = np.linspace(-80.0, 80.0, 200_001)[:, None]
    weights = stats.norm.logpdf(e) + np.log(e[1] - e[0])
    log_p = problem.log_p(np.asarray(problem.y), mean + np.sqrt(variance) * e)
    known = np.ones(len(mean), bool) if problem.mask is None else problem.mask
    expected = np.sum(np.exp(weights) * np.where(known, log_p, 0.0))
    loc, factor = qv_of(problem)
    divergence = np.sum(loc**2) + np.sum(factor**2) - len(loc)
    divergence = 0.5 * divergence - np.sum(np.log(np.diag(factor)))
    return expected - divergence, special.logsumexp(weights + log_p, axis=0)


def compared(problem: Problem, what: str) -> tuple:
    """The package's numbers by a fit of one step, or a prediction, and NumPy's."""
    bits = 64 if jax.config.jax_enable_x64 else 32
    kernel = partial(gp.kernels.RBF, problem.variance, problem.lengthscale)
    model = model_of(problem.likelihood, kernel=kernel, z=problem.z)
    guide = gp.AutoGaussian(model)
    loc, factor = qv_of(problem)
    params = {"auto_f_loc": jnp.asarray(loc), "auto_f_scale_tril": jnp.asarray(factor)}
    bound, predictive = by_numpy(problem, bits)
    tolerance = problem.tolerance[bits == 64]
    if what == "bound":
        data = {"mask": problem.mask} if problem.mask is not None else {}
        start = {"init": (guide, params), **QUIET, **data}
        key = random.key(0)
        fitted = gp.fit(key, model, guide, problem.x, problem.y, **start)
        return -fitted.losses[0], bound, tolerance
    at = gp.predict(model, (guide, params), problem.x)["y"]
    return at.log_prob(problem.y), predictive, max(tolerance, 1e-4)


def gaussian(scale):
    """Likelihood and log density of Gaussian noise."""
    log_p = lambda y, f: stats.norm.logpdf(y, f, scale)  # noqa: E731
    return {"likelihood": gp.likelihoods.Gaussian(scale), "log_p": log_p}


POISSON = {
    "likelihood": gp.likelihoods.Poisson(),
    "log_p": lambda y, f: y * f - np.exp(f) - special.gammaln(y + 1.0),
}
LOGIT = {
    "likelihood": gp.likelihoods.Bernoulli(),
    "log_p": lambda y, f: -np.logaddexp(0.0, np.where(y == 1, -f, f)),
}
PROBIT = {
    "likelihood": gp.likelihoods.Bernoulli("probit"),
    "log_p": lambda y, f: special.log_ndtr(np.where(y == 1, f, -f)),
}


def student(df, scale):
    """Likelihood and log density of heavy tails."""
    log_p = lambda y, f: stats.t.logpdf(y, df, f, scale)  # noqa: E731
    return {"likelihood": gp.likelihoods.StudentT(df, scale), "log_p": log_p}


def problems() -> dict[str, Problem]:
    """Problems by name."""
    wave = np.sin(X[:, 0])
    doubled = np.repeat(X[::2], 2, axis=0)
    flat = np.concatenate([X, np.ones_like(X)], axis=1)
    flat_z = np.concatenate([Z, np.ones_like(Z)], axis=1)
    normal, labels = gaussian(0.3), Y % 2
    one = {"x": X[:1], "z": X[:1]}
    found = {"as it should be": Problem(y=wave, **normal)}
    for power in (-6, -3, 3, 6):
        s = 10.0**power
        scaled = {"x": X * s, "z": Z * s, "lengthscale": 0.9 * s}
        found[f"x times 1e{power}"] = Problem(y=wave, **scaled, **normal)
    for shift, loose in ((1e2, 1e-3), (1e4, 5e-2)):
        moved = {"x": X + shift, "z": Z + shift, "tolerance": (loose, 1e-6)}
        found[f"x plus {shift:.0e}"] = Problem(y=wave, **moved, **normal)
    for noise in (1e-3, 1e-2, 1e2, 1e4):
        found[f"noise {noise:.0e}"] = Problem(y=wave, **gaussian(noise))
    for variance in (1e-6, 1e-2, 1e2, 1e4):
        found[f"variance {variance:.0e}"] = Problem(y=wave, variance=variance, **normal)
    for length in (1e-3, 1e-1, 1e1):
        loose = (5e-3, 1e-6) if length > 1 else (2e-4, 1e-8)
        found[f"lengthscale {length:.0e}"] = Problem(
            y=wave, lengthscale=length, tolerance=loose, **normal
        )
    for spread in (1e-6, 1e-3, 1e1):
        found[f"q(v) times {spread:.0e}"] = Problem(y=wave, spread=spread, **normal)
    found |= {
        "a constant column": Problem(flat, wave, flat_z, **normal),
        "an infinite lengthscale": Problem(
            flat, wave, flat_z, lengthscale=np.array([0.9, np.inf]), **normal
        ),
        "rows twice": Problem(doubled, wave, **normal),
        "N = 1": Problem(X[:1], wave[:1], **normal),
        "M = 1": Problem(y=wave, z=Z[:1], **normal),
        "N = M = 1": Problem(y=wave[:1], **one, **normal),
        "z = x": Problem(y=wave, z=X, tolerance=(2e-2, 1e-6), **normal),
        "z twice": Problem(
            y=wave, z=np.repeat(Z, 2, axis=0), tolerance=(2e-2, 1e-6), **normal
        ),
        "y times 30": Problem(y=30 * wave, **normal),
        "all y equal": Problem(y=0 * wave, **normal),
        "labels of one class": Problem(y=0 * labels, **LOGIT),
        "logit": Problem(y=labels, **LOGIT),
        "logit, wide": Problem(
            y=labels, variance=100.0, spread=3.0, tolerance=(2e-2, 2e-2), **LOGIT
        ),
        "probit": Problem(y=labels, tolerance=(2e-4, 1e-6), **PROBIT),
        "counts": Problem(**POISSON),
        "no counts": Problem(y=0 * Y, **POISSON),
        "counts of 1e5": Problem(y=Y + 100_000, tolerance=(1e-3, 1e-8), **POISSON),
        "heavy tails": Problem(y=wave, tolerance=(1e-3, 1e-3), **student(3.0, 0.5)),
        "an outlier": Problem(
            y=wave + 1e3 * (Y.max() == Y), tolerance=(1e-3, 1e-3), **student(3.0, 0.5)
        ),
        "noise of each datum": Problem(
            y=wave, **gaussian(np.geomspace(0.01, 10.0, 20))
        ),
    }
    return found


def right() -> Iterator[Case]:
    for name, problem in problems().items():
        for what in ("bound", "density"):
            run = partial(compared, problem, what)
            yield Case("right", f"{what}, {name}", run, is_right=True)
    known = np.arange(20) % 3 != 0
    holes = Problem(y=np.where(known, Y, np.nan), mask=known, **POISSON)
    for name, mask in {"a third missing": known, "all missing": 0 * known > 0}.items():
        problem = Problem(y=holes.y, mask=mask, **POISSON)
        run = partial(compared, problem, "bound")
        yield Case("right", f"bound, {name}", run, is_right=True)


def accepted() -> Iterator[Case]:
    """Arguments of another kind that mean the same."""

    def same(**options):
        plain = fit().losses
        tolerance = 1e-3 if "half" in options else 1e-5
        options.pop("half", None)
        return fit(**options).losses, plain, tolerance

    half = (X * 1024 / 5).astype(np.float16) / 1024 * 5  # what float16 can hold
    forms: dict[str, dict] = {
        "big-endian x": {"x": X.astype(">f8")},
        "big-endian y": {"y": Y.astype(">i4")},
        "float32 x": {"x": X.astype(np.float32)},
        "float16 x": {"x": half, "half": True},
        "a list of x": {"x": X.tolist()},
        "a list of y": {"y": Y.tolist()},
        "float y": {"y": Y * 1.0},
        "int8 y": {"y": Y.astype(np.int8)},
        "unsigned y": {"y": Y.astype(np.uint8)},
        "Fortran order": {"x": np.asfortranarray(np.repeat(X, 2, 1))[:, :1]},
        "every other row": {"x": np.repeat(X, 2, 0)[::2], "y": np.repeat(Y, 2)[::2]},
        "read-only": {"x": np.broadcast_to(X, X.shape)},
        "num_steps of NumPy": {"num_steps": np.int64(1)},
        "a plain mask": {"mask": np.ones(20, bool)},
        "an old key": {},
    }
    for name, options in forms.items():
        yield Case("accepted", name, partial(same, **options), is_right=True)
    labels = Y % 3
    model = model_of(gp.likelihoods.Softmax(3), num_outputs=3)
    for name, y in {"float": labels * 1.0, "int8": labels.astype(np.int8)}.items():
        run = lambda y=y: (fit(model, y=y).losses, fit(model, y=labels).losses, 1e-5)  # noqa: E731
        yield Case("accepted", f"{name} labels of classes", run, is_right=True)
    add = model_of(latent=lambda f, x: np.ones(len(x)) + 2 * f(x) - np.float64(0.5))
    other = model_of(latent=lambda f, x: f(x) * 2.0 + 0.5)
    run = lambda: (fit(add).losses, fit(other).losses, 1e-5)  # noqa: E731
    yield Case("accepted", "NumPy on the left", run, is_right=True)
