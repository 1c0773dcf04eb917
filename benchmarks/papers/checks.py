"""Checks behind the notes on the papers: a number each, from data and formulas."""

import json
from pathlib import Path

import numpy as np
from scipy import stats

import svgp_ppl as gp
from benchmarks.papers import data, scores
from benchmarks.papers.deep.regression import linear
from benchmarks.papers.runs import plain
from svgp_ppl.datasets.stored import stored

LEAKS = ("magic", "chess_krvk", "wall_following", "letter", "waveform")


def row_number(name: str) -> float:
    """Per cent right of the nearest row number's label, 90 % of the rows known.

    Rows are in the order of the source; its first column, the number, is the input.
    """
    y = stored(f"cls_{name}", "X and y", "UCI")["y"]
    order = np.random.RandomState(0).permutation(len(y))
    train, test = np.sort(order[: int(0.9 * len(y))]), order[int(0.9 * len(y)) :]
    right = np.clip(np.searchsorted(train, test), 1, len(train) - 1)
    left = right - 1
    is_left = test - train[left] <= train[right] - test
    nearest = np.where(is_left, train[left], train[right])
    return 100.0 * float(np.mean(y[nearest] == y[test]))


def jensen_gap(num_values: int = 7) -> float:
    """Entropy of a Gaussian less −log ∫ q², a value, nats: (1 − log 2) / 2."""
    root = np.random.RandomState(0).randn(num_values, num_values)
    covariance = root @ root.T + np.eye(num_values)
    exact = stats.multivariate_normal(cov=covariance).entropy()
    at_zero = stats.multivariate_normal(cov=2.0 * covariance).logpdf(
        np.zeros(num_values)
    )
    return float(exact + at_zero) / num_values


def boston_densities() -> dict[str, float]:
    """Mean NLPD of least squares, by the definition and by the released formula."""
    held = data.boston(0)
    x, x_test = (np.column_stack([a, np.ones(len(a))]) for a in (held.x, held.x_test))
    weights = np.linalg.lstsq(x, held.y, rcond=None)[0]
    squares = (held.y_test - x_test @ weights) ** 2
    variance = np.mean((held.y - x @ weights) ** 2)
    defined = 0.5 * squares / variance + 0.5 * np.log(2 * np.pi * variance)
    released = 0.25 * squares / variance + np.log(2 * np.pi * variance)
    return {"defined": float(defined.mean()), "released": float(released.mean())}


def linear_on_energy(number: int = 4000) -> dict[str, float]:
    """Means of least squares on energy over random splits; deviations of 20-means."""
    held = gp.datasets.uci("energy")
    x = np.concatenate([held.x, held.x_test])
    y = np.concatenate([held.y, held.y_test])
    random, rows = np.random.RandomState(0), []
    for _ in range(number):
        order = random.permutation(len(y))
        test, train = order[: len(held.y_test)], order[len(held.y_test) :]
        split = held._replace(x=x[train], y=y[train], x_test=x[test], y_test=y[test])
        mean, density = linear(split)
        row = scores.of_regression(mean, density, y[test], y[train], held.y_scale)
        rows.append([row["RMSE"], row["log density"]])
    (rmse, density), deviations = np.mean(rows, 0), np.std(rows, 0) / np.sqrt(20)
    return {
        "RMSE": rmse,
        "RMSE, deviation": deviations[0],
        "log density": density,
        "log density, deviation": deviations[1],
    }


def beta_prior() -> dict[str, float]:
    """Log density of Beta(0.2, 5) at a flip probability of 0.1 less that at 1e-3."""
    prior = stats.beta(0.2, 5.0)
    return {"0.1 against 0.001": float(prior.logpdf(0.1) - prior.logpdf(1e-3))}


def measured() -> dict:
    """All checks."""
    pines = stored("pines", "X [126, 2] and source_rows_127", "NIPS2015")
    image = gp.datasets.image()
    trees = pines["source_rows_127"]
    return {
        "row number": {name: row_number(name) for name in LEAKS},
        "jensen": jensen_gap(),
        "boston": boston_densities(),
        "beta": beta_prior(),
        "pines": {"rows": len(trees), "distinct": len(np.unique(trees, axis=0))},
        "image": {"train": len(image.y), "test": len(image.y_test)},
        "banana": len(stored("banana", "extra_y", "GPCnoise")["extra_y"]),
        "energy": linear_on_energy(),
        "columns": {n: gp.datasets.uci(n).x.shape[1] for n in ("naval", "wine_red")},
    }


def write(folder: Path) -> None:
    """The checks into ``checks.json``."""
    text = json.dumps(plain(measured(), 6), indent=1, sort_keys=True)
    (folder / "checks.json").write_text(text + "\n")
