"""Draws to and from ArviZ, and how well a sampler mixes, per draw and per second.

Draws are a dict from names to arrays [chains, draws, ...] or the ArviZ object made of
them: ``InferenceData`` before ArviZ 1.0, an xarray ``DataTree`` since. Only
:func:`to_arviz` and what it returns know which.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import arviz
import numpy as np
from jaxtyping import Float

__all__ = [
    "esjd",
    "ess",
    "ess_per_second",
    "group",
    "psrf",
    "rhat",
    "summary",
    "to_arviz",
]


def to_arviz(
    draws: Mapping[str, Any],
    *,
    sample_stats: Mapping[str, Any] | None = None,
    observed_data: Mapping[str, Any] | None = None,
    constant_data: Mapping[str, Any] | None = None,
    log_likelihood: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """Draws, and what belongs to them, as the object of the installed ArviZ.

    Args:
        draws: Arrays [chains, draws, ...] by name: the group ``posterior``.
        sample_stats: Arrays [chains, draws] by name, such as ``diverging``.
        observed_data: What was conditioned on, arrays by name.
        constant_data: Inputs and frozen parameters, arrays by name.
        log_likelihood: Arrays [chains, draws, data...] by name of the observed site.
        coords: Labels by dimension.
        dims: Names of the dimensions after chain and draw, by variable.
        attrs: Attributes of the group ``posterior``; ``sampling_seconds`` is what
            :func:`ess_per_second` reads.

    Returns:
        ``InferenceData`` (ArviZ 0.x) or ``DataTree`` (ArviZ 1.x).

    Raises:
        ValueError: If draws, statistics and log likelihoods do not share their chains
            and draws.

    Example:
        >>> posterior = to_arviz({"scale": np.ones((4, 100))})
        >>> group(posterior, "posterior")["scale"].shape
        (4, 100)
    """
    groups = {
        "posterior": draws,
        "sample_stats": sample_stats,
        "log_likelihood": log_likelihood,
        "observed_data": observed_data,
        "constant_data": constant_data,
    }
    arrays = {
        name: {key: np.asarray(value) for key, value in content.items()}
        for name, content in groups.items()
        if content is not None
    }
    sampled = ("posterior", "sample_stats", "log_likelihood")
    _check_leading_axes({k: v for k, v in arrays.items() if k in sampled})

    build: Any = arviz.from_dict
    if int(arviz.__version__.split(".")[0]) < 1:
        result = build(**arrays, coords=coords, dims=dims)
    else:
        result = build(arrays, coords=coords, dims=dims)
    result["posterior"].attrs.update(attrs or {})
    return result


def group(posterior: Any, name: str) -> dict[str, np.ndarray]:
    """Arrays of one group of an ArviZ object, by name; empty when it has no such group.

    Example:
        >>> group(to_arviz({"scale": np.ones((4, 100))}), "observed_data")
        {}
    """
    if name not in posterior:
        return {}
    return {key: value.values for key, value in posterior[name].data_vars.items()}


def ess(draws: Any) -> dict[str, np.ndarray]:
    """Bulk effective sample size of every element (Vehtari et al., 2021).

    Args:
        draws: An ArviZ object, or arrays [chains, draws, ...] by name.

    Returns:
        Arrays [...] by name.

    Example:
        >>> ess({"x": np.random.default_rng(0).normal(size=(4, 500))})["x"] > 1000
        np.True_
    """
    arrays = _arrays(draws)
    values: Any = arviz.ess(to_arviz(arrays), method="bulk")
    return {name: values[name].values for name in arrays}


def rhat(draws: Any) -> dict[str, np.ndarray]:
    """Rank-normalised split R̂ of every element (Vehtari et al., 2021).

    Args:
        draws: An ArviZ object, or arrays [chains, draws, ...] by name, of at least two
            chains.

    Returns:
        Arrays [...] by name; below 1.01 where the chains agree.
    """
    arrays = _arrays(draws)
    values: Any = arviz.rhat(to_arviz(arrays), method="rank")
    return {name: values[name].values for name in arrays}


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
            ``None`` is the whole run, one window.

    Returns:
        Arrays [windows, ...] by name; NaN where nothing moves.

    Raises:
        ValueError: With a single chain, or a window that is not inside the run.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(4, 1000))
        >>> psrf({"x": x}, windows=[100, 1000])["x"].shape
        (2,)
    """
    arrays = _arrays(draws)
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
    parameter decides. Chains that run side by side share one clock.

    Args:
        posterior: An ArviZ object whose posterior has the attribute
            ``sampling_seconds``.

    Returns:
        Effective draws per second and chain.

    Raises:
        ValueError: If nothing says how long sampling took.
    """
    attributes = posterior["posterior"].attrs
    if "sampling_seconds" not in attributes:
        raise ValueError(
            "The posterior does not say how long sampling took: it needs the attribute "
            "'sampling_seconds', e.g. to_arviz(draws, attrs={'sampling_seconds': 12})."
        )
    arrays = _arrays(posterior)
    num_chains = len(next(iter(arrays.values())))
    smallest = []
    for chain in range(num_chains):
        alone = ess({name: x[chain : chain + 1] for name, x in arrays.items()})
        smallest.append(min(np.min(values) for values in alone.values()))
    return float(np.mean(smallest) / attributes["sampling_seconds"])


def esjd(draws: Any) -> float:
    """Mean over iterations and chains of ‖θ_{t+1} − θ_t‖², over all parameters.

    The expected squared jump distance (Pasarica & Gelman, 2010).

    Args:
        draws: An ArviZ object, or arrays [chains, draws, ...] by name.

    Example:
        >>> esjd({"x": np.array([[0.0, 1.0, 3.0]])})
        2.5
    """
    jumps = [np.diff(x, axis=1) ** 2 for x in _arrays(draws).values()]
    num_jumps = jumps[0].shape[0] * jumps[0].shape[1]
    return float(sum(np.sum(jump) for jump in jumps) / num_jumps)


def summary(posterior: Any, var_names: Sequence[str] | None = None) -> Any:
    """ArviZ's table of means, intervals, ESS and R̂: a pandas DataFrame, a row each.

    Args:
        posterior: An ArviZ object, or arrays [chains, draws, ...] by name.
        var_names: Variables to show; ``None`` shows all. The columns of the interval
            are named by the installed ArviZ.
    """
    if isinstance(posterior, dict):
        posterior = to_arviz(posterior)
    names = None if var_names is None else list(var_names)
    return arviz.summary(posterior, var_names=names)


def _arrays(draws: Any) -> dict[str, np.ndarray]:
    """Draws by name, in double precision."""
    # An ArviZ object is a Mapping too (of groups), but never a dict.
    arrays = draws if isinstance(draws, dict) else group(draws, "posterior")
    if not arrays:
        raise ValueError("There are no draws: the posterior is empty or absent.")
    arrays = {name: np.asarray(x, dtype=np.float64) for name, x in arrays.items()}
    _check_leading_axes({"draws": arrays})
    return arrays


def _check_leading_axes(groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    shapes = {
        f"{name}[{key!r}]": value.shape
        for name, arrays in groups.items()
        for key, value in arrays.items()
    }
    if len({shape[:2] for shape in shapes.values()}) > 1 or any(
        len(shape) < 2 for shape in shapes.values()
    ):
        raise ValueError(
            "Every array needs the leading axes [chains, draws], the same for all; the "
            f"shapes are {shapes}. For a single chain add an axis: values[None]."
        )
