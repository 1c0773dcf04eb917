"""How well a sampler mixes, per draw, per gradient and per second.

Draws are a dict from names to arrays [chains, draws, ...] or an ArviZ object.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from svgp_ppl.diagnostics.kept import kept_by
from svgp_ppl.diagnostics.posterior import (
    arrays_of,
    attributes_of,
    group,
    hyperparameters,
    load_arviz,
    require_draws,
    to_arviz,
)

__all__ = [
    "bfmi",
    "by_element",
    "esjd",
    "ess",
    "ess_per_gradient",
    "ess_per_second",
    "psrf",
    "rhat",
    "slowest",
    "summary",
]


def ess(draws: Any) -> dict[str, np.ndarray]:
    """Bulk effective sample size of every element (Vehtari et al., 2021).

    Args:
        draws: An ArviZ object, or arrays [chains, draws, ...] by name.

    Returns:
        Arrays [...] by name.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 500))
        >>> gp.diagnostics.ess({"x": x})["x"] > 1000
        np.True_
    """
    return by_element("ess", draws, "bulk")


def rhat(draws: Any) -> dict[str, np.ndarray]:
    """Rank-normalised split R̂ of every element (Vehtari et al., 2021).

    Args:
        draws: An ArviZ object, or arrays [chains, draws, ...] by name, of at least two
            chains.

    Returns:
        Arrays [...] by name; below 1.01 where the chains agree.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 500))
        >>> bool(gp.diagnostics.rhat({"x": x})["x"] < 1.01)
        True
    """
    return by_element("rhat", draws, "rank")


def by_element(statistic: str, draws: Any, method: str) -> dict[str, np.ndarray]:
    """A statistic of ArviZ for every element, arrays [...] by name.

    Args:
        statistic: Name of ArviZ's function.
        draws: An ArviZ object, or arrays [chains, draws, ...] by name.
        method: Its ``method``.
    """
    arrays = arrays_of(draws)
    # ArviZ does not take every name.
    numbered = to_arviz({f"x{i}": x for i, x in enumerate(arrays.values())})
    values = getattr(load_arviz(), statistic)(numbered, method=method)
    return {name: values[f"x{i}"].values for i, name in enumerate(arrays)}


def psrf(
    draws: Any, windows: Sequence[int] | None = None
) -> dict[str, Float[np.ndarray, "windows ..."]]:
    """√( (d + 3) / (d + 1) · V / W ), the classical potential scale reduction factor.

    For C chains of n draws with means x̄_c and variances s²_c::

        W = mean s²_c,   B = n var x̄_c,   V = (n − 1)/n W + (1 + 1/C) B/n,
        d = 2 V² / var V,
        var V = ((n − 1)/n)² var(s²_c)/C + ((1 + 1/C)/n)² 2 B²/(C − 1)
                + 2 (n − 1)(1 + 1/C)/n² · n/C · cov(s²_c, (x̄_c − x̄)²).

    Gelman & Rubin (1992), with the correction for the d degrees of freedom of Brooks &
    Gelman (1998): the point estimate of ``gelman.diag`` in R's coda, with no draws
    discarded.

    Args:
        draws: An ArviZ object, or arrays [chains, draws, ...] by name.
        windows: Ends x of the windows [1, x], to follow convergence along the run.
            ``None`` is one window, the whole run.

    Returns:
        Arrays [windows, ...] by name; NaN where nothing moves.

    Raises:
        ValueError: With a single chain, or a window that is not inside the run.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 1000))
        >>> gp.diagnostics.psrf({"x": x}, windows=[100, 1000])["x"].shape
        (2,)
    """
    arrays = arrays_of(draws)
    num_chains, num_draws = next(iter(arrays.values())).shape[:2]
    ends = [num_draws] if windows is None else list(windows)
    if num_chains < 2:
        raise ValueError(
            "The potential scale reduction factor compares chains and needs at least "
            "two; got one. Run more chains, or look at ess."
        )
    if not ends or min(ends) < 2 or max(ends) > num_draws:
        raise ValueError(
            f"windows must hold numbers of draws between 2 and {num_draws}; got {ends}."
        )
    return {
        name: np.stack([_psrf(values[:, :end]) for end in ends])
        for name, values in arrays.items()
    }


def _psrf(x: np.ndarray) -> np.ndarray:
    num_chains, n = x.shape[:2]
    spread = 1 + 1 / num_chains
    means, variances = np.mean(x, axis=1), np.var(x, axis=1, ddof=1)
    within = np.mean(variances, axis=0)
    between = n * np.var(means, axis=0, ddof=1)
    pooled = (n - 1) / n * within + spread * between / n

    squares = (means - np.mean(means, axis=0)) ** 2
    centred = (variances - within) * (squares - np.mean(squares, axis=0))
    covariance = np.sum(centred, axis=0) / (num_chains - 1)
    variance_of_pooled = (
        ((n - 1) / n) ** 2 * np.var(variances, axis=0, ddof=1) / num_chains
        + (spread / n) ** 2 * 2 * between**2 / (num_chains - 1)
        + 2 * (n - 1) * spread / n**2 * n / num_chains * covariance
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = 2 * pooled**2 / variance_of_pooled
        return np.asarray(np.sqrt((freedom + 3) / (freedom + 1) * pooled / within))


def ess_per_second(posterior: Any) -> float:
    """Mean over chains of (smallest ESS of the chain's parameters) / seconds.

    The time-normalised effective sample size of Hensman et al. (2015): the worst
    parameter decides. Chains that run side by side share one clock, and the seconds of
    runs that were joined add up.

    Args:
        posterior: An ArviZ object whose posterior has the attribute
            ``sampling_seconds``.

    Returns:
        Effective draws per second and chain.

    Raises:
        ValueError: If nothing says how long sampling took.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> posterior = gp.diagnostics.to_arviz(
        ...     {"x": rng.normal(size=(4, 100))},
        ...     attrs={"sampling_seconds": 2.0},
        ... )
        >>> gp.diagnostics.ess_per_second(posterior) > 1
        True
    """
    arrays = arrays_of(posterior)
    smallest = [
        _smallest_ess({name: x[chain : chain + 1] for name, x in arrays.items()})
        for chain in range(len(next(iter(arrays.values()))))
    ]
    return float(np.mean(smallest) / _attribute(posterior, "sampling_seconds"))


def ess_per_gradient(posterior: Any) -> float:
    """Smallest ESS over the parameters of all chains / gradients of all chains.

    Independent of the machine, but ignores what a sampler computes besides gradients;
    NaN for a sampler without gradients.

    Args:
        posterior: An ArviZ object whose posterior has the attribute
            ``num_gradients``.

    Raises:
        ValueError: If nothing says how many gradients were evaluated.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> posterior = gp.diagnostics.to_arviz(
        ...     {"x": rng.normal(size=(4, 100))},
        ...     attrs={"num_gradients": 4000},
        ... )
        >>> gp.diagnostics.ess_per_gradient(posterior) < 1
        True
    """
    num_gradients = _attribute(posterior, "num_gradients")
    smallest = _smallest_ess(posterior)
    return float(smallest / num_gradients) if num_gradients else float("nan")


def _smallest_ess(draws: Any) -> np.floating:
    return min(np.min(values) for values in ess(draws).values())


def _attribute(posterior: Any, name: str) -> float:
    attributes = attributes_of(posterior)
    if name not in attributes:
        raise ValueError(
            f"The posterior does not have the attribute '{name}', which gp.sample "
            f"sets; for draws from elsewhere: to_arviz(draws, attrs={{'{name}': 12}})."
        )
    return float(attributes[name])


def bfmi(posterior: Any) -> np.ndarray:
    """Bayesian fraction of missing information of every chain, [chains].

    mean (E_{t+1} − E_t)² / var E for the energies E of the draws (Betancourt 2016), by
    ArviZ: how far fresh momenta move the energy, relative to its spread. Below 0.3
    the chain walks slowly through the tails; NaN where the energy is not finite, or
    never changes.

    Args:
        posterior: An ArviZ object with the statistic ``energy``.

    Raises:
        ValueError: The sampler has no energy.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> posterior = gp.diagnostics.to_arviz(
        ...     {"x": rng.normal(size=(4, 100))},
        ...     sample_stats={"energy": rng.normal(size=(4, 100))},
        ... )
        >>> gp.diagnostics.bfmi(posterior).shape
        (4,)
    """
    stats = group(posterior, "sample_stats")
    if "energy" not in stats:
        raise ValueError("bfmi needs the energy of the draws: use NUTS or HMC.")
    with np.errstate(divide="ignore", invalid="ignore"):
        energy = np.asarray(stats["energy"], np.float64)
        return np.asarray(load_arviz().bfmi(energy))


def slowest(values: dict[str, np.ndarray], num: int = 20) -> list[tuple[str, tuple]]:
    """Name and index of the elements with the largest last values, worst first.

    For ``psrf``, whose first axis is that of the windows: the parameters that the
    figure of Hensman et al. (2015) follows.

    Args:
        values: Arrays [windows, ...] by name, such as ``psrf`` gives.
        num: Number of elements.

    Example:
        >>> gp.diagnostics.slowest({"x": np.array([[1.0, 1.5, 1.2]])}, 2)
        [('x', (1,)), ('x', (2,))]
    """
    last = [
        (value, name, tuple(int(i) for i in index))
        for name, array in values.items()
        for index, value in np.ndenumerate(array[-1])
        if np.isfinite(value)
    ]
    last.sort(key=lambda entry: -entry[0])
    return [(name, index) for _, name, index in last[:num]]


def esjd(draws: Any) -> float:
    """Mean over iterations and chains of ‖θ_{t+1} − θ_t‖², over all parameters.

    The expected squared jump distance (Pasarica & Gelman, 2010).

    Args:
        draws: An ArviZ object, or arrays [chains, draws, ...] by name.

    Example:
        >>> gp.diagnostics.esjd({"x": np.array([[0.0, 1.0, 3.0]])})
        2.5
    """
    jumps = [np.diff(x, axis=1) ** 2 for x in arrays_of(draws).values()]
    num_jumps = jumps[0].shape[0] * jumps[0].shape[1]
    return float(sum(np.sum(jump) for jump in jumps) / num_jumps)


def summary(posterior: Any, var_names: Sequence[str] | None = None) -> Any:
    """ArviZ's table of means, intervals, ESS and R̂: a pandas DataFrame.

    Args:
        posterior: An ArviZ object, or arrays [chains, draws, ...] by name.
        var_names: Variables to show; ``None`` shows all but the whitened values, where
            it is known which these are (:func:`hyperparameters`) and there are others.
            The columns of the interval are named by the installed ArviZ.

    Example:
        >>> gp.diagnostics.summary(draws).index.tolist()
        ['lengthscale']
    """
    if isinstance(posterior, dict):
        posterior = to_arviz(posterior)
    require_draws(posterior)
    if var_names is None and kept_by(posterior):
        var_names = hyperparameters(posterior)
    names = list(var_names) if var_names else None
    return load_arviz().summary(posterior, var_names=names)
