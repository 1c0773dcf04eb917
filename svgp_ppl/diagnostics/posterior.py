"""Draws to and from ArviZ.

Draws are a dict from names to arrays [chains, draws, ...] or the ArviZ object made of
them: ``InferenceData`` before ArviZ 1.0, an xarray ``DataTree`` since. Only
:func:`to_arviz` and what it returns know which.
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from svgp_ppl.diagnostics.kept import kept_by

__all__ = [
    "ARVIZ_GROUPS",
    "EXPECTED",
    "SAMPLED_AXES",
    "add_groups",
    "arrays_of",
    "attributes_of",
    "group",
    "hyperparameters",
    "label",
    "load_arviz",
    "require_draws",
    "require_sampled_axes",
    "site_of",
    "to_arviz",
]

# Of a variable that cannot have the name of its site.
_SITE = "site"
SAMPLED_AXES = ("chain", "draw")

# The group of E log p(y_n | f_n), which ArviZ does not know.
EXPECTED = "expected_log_likelihood"

# Those that checks of a model make; what a fit was drawn to comes first.
ARVIZ_GROUPS = (
    "posterior",
    "posterior_predictive",
    "log_likelihood",
    EXPECTED,
    "prior",
    "prior_predictive",
    "observed_data",
    "constant_data",
)


def load_arviz() -> Any:
    """ArviZ, imported at its first use.

    With pandas, xarray and Matplotlib it takes as long as all else that ``import
    svgp_ppl`` does. Its notice of the changes in version 1.0 is left out: both work.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def to_arviz(
    draws: Mapping[str, Any] | None,
    *,
    sample_stats: Mapping[str, Any] | None = None,
    observed_data: Mapping[str, Any] | None = None,
    constant_data: Mapping[str, Any] | None = None,
    log_likelihood: Mapping[str, Any] | None = None,
    expected_log_likelihood: Mapping[str, Any] | None = None,
    posterior_predictive: Mapping[str, Any] | None = None,
    prior: Mapping[str, Any] | None = None,
    prior_predictive: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Any] | None = None,
    warmup_posterior: Mapping[str, Any] | None = None,
    warmup_sample_stats: Mapping[str, Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Any:
    """Draws, and what belongs to them, as an object of the installed ArviZ.

    Args:
        draws: Arrays [chains, draws, ...] by name: the group ``posterior``; None if
            there are none.
        sample_stats: Arrays [chains, draws] by name, such as ``diverging``.
        observed_data: The data conditioned on, arrays by name.
        constant_data: Inputs and frozen parameters, arrays by name.
        log_likelihood: Arrays [chains, draws, data...] by name of the observed site.
        expected_log_likelihood: The same of the terms of the density that the draws are
            of, where these are other ones (:func:`loo`).
        posterior_predictive: Data drawn given the draws, [chains, draws, data...].
        prior: Draws of the prior, arrays [chains, draws, ...] by name.
        prior_predictive: Data drawn given those, [chains, draws, data...].
        coords: Labels by dimension.
        dims: Names of the dimensions after chain and draw, by variable.
        warmup_posterior: Positions in the warm-up, arrays [chains, steps, ...].
        warmup_sample_stats: Its statistics, arrays [chains, steps] by name.
        attrs: Attributes of the group ``posterior`` (where there is none, of
            ``warmup_posterior`` or ``prior``); ``sampling_seconds`` is what
            :func:`ess_per_second` reads.

    Returns:
        ``InferenceData`` (ArviZ 0.x) or ``DataTree`` (ArviZ 1.x).

    Raises:
        ValueError: If draws, statistics and log likelihoods do not share their chains
            and draws.

    Example:
        >>> posterior = gp.diagnostics.to_arviz({"scale": np.ones((4, 100))})
        >>> gp.diagnostics.group(posterior, "posterior")["scale"].shape
        (4, 100)
    """
    groups = {
        "posterior": draws,
        "sample_stats": sample_stats,
        "log_likelihood": log_likelihood,
        EXPECTED: expected_log_likelihood,
        "posterior_predictive": posterior_predictive,
        "prior": prior,
        "prior_predictive": prior_predictive,
        "observed_data": observed_data,
        "constant_data": constant_data,
        "warmup_posterior": warmup_posterior,
        "warmup_sample_stats": warmup_sample_stats,
    }
    arrays = {
        name: {key: np.asarray(value) for key, value in content.items()}
        for name, content in groups.items()
        if content is not None
    }
    of_data = ("log_likelihood", EXPECTED, "posterior_predictive")
    for together in (
        ("posterior", "sample_stats", *of_data),
        ("prior", "prior_predictive"),
    ):
        _check_leading_axes({k: v for k, v in arrays.items() if k in together})

    named = _without_slashes({name for held in arrays.values() for name in held})
    held = {key: {named(n): v for n, v in a.items()} for key, a in arrays.items()}
    options: dict[str, Any] = {
        "coords": {named(name): labels for name, labels in (coords or {}).items()},
        "dims": {named(n): [*map(named, axes)] for n, axes in (dims or {}).items()},
    }
    if warmup_posterior is not None:
        options["save_warmup"] = True
    with warnings.catch_warnings():
        if draws is None:  # one position per chain is intended
            warnings.filterwarnings("ignore", "More chains .* than draws")
            warnings.filterwarnings("ignore", "Found chain dimension to be longer")
        result = _as_arviz(held, options)
    _keep_sites(result, arrays, named)
    owners = (n for n in ("posterior", "warmup_posterior", "prior") if n in arrays)
    if attrs:
        result[next(owners)].attrs.update(attrs)
    return result


def _without_slashes(taken: Collection[str]) -> Callable[[Any], Any]:
    """A function from the name of a site or of an axis to that in an ArviZ object.

    Neither a ``DataTree`` nor a netCDF file can have names with a slash, such as those
    of scoped sites and of networks, ``net/weight``: it becomes a dot (and an underscore
    follows where that is the name of another). The variable keeps the name of its site
    as an attribute.

    Args:
        taken: Names of all variables.
    """

    def named(name: Any) -> Any:
        if not isinstance(name, str) or "/" not in name:
            return name
        name = name.replace("/", ".")
        return f"{name}_" if name in taken else name

    return named


def _keep_sites(result: Any, arrays: dict[str, dict], named: Callable) -> None:
    """Attributes of variables that have not the names of their sites."""
    for key, content in arrays.items():
        for name in filter(lambda name: named(name) != name, content):
            result[key].variables[named(name)].attrs[_SITE] = name


def _as_arviz(arrays: dict[str, dict], options: dict[str, Any]) -> Any:
    """A ``DataTree``; or an ``InferenceData``, which takes no groups of others."""
    arviz = load_arviz()
    build: Any = arviz.from_dict
    if int(arviz.__version__.split(".")[0]) >= 1:
        return build(arrays, **options)
    known = {name: held for name, held in arrays.items() if name != EXPECTED}
    result = build(**known, **options)
    if EXPECTED in arrays:
        axes = {name: options[name] for name in ("coords", "dims")}
        other = build(log_likelihood=arrays[EXPECTED], **axes)
        result[EXPECTED] = other["log_likelihood"]
    _restore_numbers(result, arrays)
    return result


def _restore_numbers(result: Any, arrays: dict) -> None:
    """Numbers among data and parameters, to which ArviZ before 1.0 gives an axis."""
    for name in ("observed_data", "constant_data"):
        held = arrays.get(name, {})
        numbers = [key for key, value in held.items() if value.ndim == 0]
        axes = {axis for key in numbers for axis in result[name][key].dims}
        if axes:  # an assignment to result[name] would list the group twice
            setattr(result, name, result[name].squeeze(list(axes), drop=True))


def add_groups(posterior: Any, others: Any) -> Any:
    """Put the groups of another ArviZ object into this one, replacing its own.

    Returns:
        The first, changed.

    Example:
        >>> posterior = gp.diagnostics.to_arviz({"scale": np.ones((4, 100))})
        >>> data = gp.diagnostics.to_arviz(None, observed_data={"y": np.zeros(3)})
        >>> both = gp.diagnostics.add_groups(posterior, data)
        >>> gp.diagnostics.group(both, "observed_data")["y"].shape
        (3,)
    """
    for name in ARVIZ_GROUPS:
        if name in others:
            if name in posterior:
                del posterior[name]
            posterior[name] = others[name].copy()
    return posterior


def hyperparameters(posterior: Any) -> list[str]:
    """Names of the variables that are not whitened values, for ArviZ's ``var_names``.

    Args:
        posterior: What ``gp.sample``, ``gp.posterior_predictive`` of a fit or
            ``gp.prior_predictive`` returns.

    Raises:
        ValueError: It is another object, which does not say which are whitened.

    Example:
        >>> import svgp_ppl as gp
        >>> gp.hyperparameters(draws)
        ['lengthscale']
    """
    kept = kept_by(posterior)
    if kept is None:
        raise ValueError(
            "these draws do not say which of their variables are whitened values, as "
            "those of gp.sample do. Leave the processes out by name: "
            'var_names=["~f"].'
        )
    name = "posterior" if "posterior" in posterior else "prior"
    variables = posterior[name].data_vars.values()
    return [str(v.name) for v in variables if site_of(v) not in kept.whitened_sites]


def group(posterior: Any, name: str) -> dict[str, np.ndarray]:
    """Arrays of one group of an ArviZ object, by name; empty when it has no such group.

    Raises:
        ValueError: It is another object, such as a fit.

    Example:
        >>> posterior = gp.diagnostics.to_arviz({"scale": np.ones((4, 100))})
        >>> gp.diagnostics.group(posterior, "observed_data")
        {}
    """
    require_draws(posterior)
    if name not in posterior:
        return {}
    variables = posterior[name].data_vars.values()
    return {site_of(variable): _ordered(variable) for variable in variables}


def _ordered(variable: Any) -> np.ndarray:
    """Its values, chains and draws first, whatever the order in the object."""
    first = [axis for axis in SAMPLED_AXES if axis in variable.dims]
    return variable.transpose(*first, ...).values


def require_sampled_axes(posterior: Any) -> None:
    """Raise if a draw or a chain was selected without its axis.

    Args:
        posterior: An ArviZ object, or its posterior; arrays by name have no such axes.
    """
    if isinstance(posterior, dict):
        return
    held = posterior.get("posterior", posterior)
    for variable in getattr(held, "data_vars", {}).values():
        for axis in SAMPLED_AXES:
            if axis not in variable.dims:
                raise ValueError(
                    f"the draws have no axis '{axis}': select by a list or a slice, "
                    f"which keep it, as in draws.sel({axis}=[0])."
                )


def site_of(variable: Any) -> str:
    """The name of the site of a variable of an ArviZ object."""
    return variable.attrs.get(_SITE, variable.name)


def require_draws(posterior: Any) -> None:
    """Raise if an object holds no draws, such as a fit."""
    if not isinstance(posterior, Mapping):
        raise ValueError(
            "expected draws, what gp.sample returns, another ArviZ object (of NumPyro: "
            "arviz.from_numpyro(mcmc)) or arrays [chains, draws, ...] by name, and got "
            f"a {type(posterior).__name__}. A fit is judged by "
            "gp.diagnostics.report(fit, x, y)."
        )


def label(name: str, index: tuple) -> str:
    """Name of an element: ``f[3]``, or ``variance`` where there is no index.

    Example:
        >>> gp.diagnostics.label("f", (3,))
        'f[3]'
    """
    return name + (f"[{', '.join(map(str, index))}]" if index else "")


def attributes_of(posterior: Any) -> dict[str, Any]:
    """Attributes of the draws; seconds and gradients are those of all runs in them.

    Where runs were joined, xarray and ArviZ keep what the first took; ArviZ lists
    others that differ as ``combined_...``. Otherwise seconds are taken to be in
    proportion to gradients.

    Args:
        posterior: An ArviZ object.
    """
    attributes = dict(posterior["posterior"].attrs)
    first = attributes.get("num_gradients", 0)
    steps = group(posterior, "sample_stats").get("n_steps", np.zeros(0, int))
    total = max(first, int(np.sum(steps)))
    if "num_gradients" in attributes:
        attributes["num_gradients"] = total
    if "sampling_seconds" in attributes:
        share = total / first if first else 1.0
        seconds = attributes["sampling_seconds"] * share
        seconds = attributes.get("combined_sampling_seconds", seconds)
        attributes["sampling_seconds"] = float(np.sum(seconds))
    return attributes


def arrays_of(draws: Any) -> dict[str, np.ndarray]:
    """Draws by name, in double precision.

    Args:
        draws: An ArviZ object, its posterior, or arrays [chains, draws, ...] by name.

    Raises:
        ValueError: There are no draws, or they lack these axes.

    Example:
        >>> sorted(gp.diagnostics.arrays_of(draws))
        ['f', 'lengthscale']
    """
    # An ArviZ object is a Mapping too (of groups), but never a dict.
    arrays = draws if isinstance(draws, dict) else group(draws, "posterior")
    require_sampled_axes(draws)
    if not arrays and "posterior" not in draws:  # the posterior itself
        held = getattr(draws, "data_vars", {})
        arrays = {name: _ordered(variable) for name, variable in held.items()}
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
