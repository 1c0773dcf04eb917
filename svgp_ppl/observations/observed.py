"""Observed sites of a run: data, which of them are known, probabilities, draws, axes.

Shared by draws of a sampler and checks of a model. Rows that a mask leaves out are
dropped, and entries of a table become NaN: unknown values are not made up.
"""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from svgp_ppl.checks import is_concrete
from svgp_ppl.handlers import is_inducing, is_layer, unwrapped
from svgp_ppl.observations.expected import expected_of
from svgp_ppl.observations.missing import wide
from svgp_ppl.rows.sharding import is_sharded

__all__ = [
    "Observed",
    "data_of",
    "draw_of",
    "has_data",
    "known_part",
    "known_rows",
    "log_likelihood_groups",
    "log_likelihoods",
    "plate_axes",
    "warn_if_none_counts",
]


class Observed(NamedTuple):
    """The data of a site.

    Attributes:
        values: [N] (and event axes); whole numbers where the support is discrete.
        known: Which count, [N] or of the shape of the values.
    """

    values: Any
    known: Any


def has_data(site: dict) -> bool:
    """Whether a site has data; that of ``numpyro.factor`` is observed without any."""
    is_observed = site["type"] == "sample" and site["is_observed"]
    return is_observed and "is_auxiliary" not in site["infer"]


def data_of(sites: dict[str, dict]) -> dict[str, Observed]:
    """The data of every observed site of a trace."""
    found = {}
    for name, site in sites.items():
        if has_data(site):
            values, distribution = jnp.asarray(site["value"]), site["fn"]
            if distribution.support.is_discrete:
                values = values.astype(int)
            expected, mask = expected_of(site), unwrapped(distribution)[1]
            batch = distribution.batch_shape
            if expected is not None and expected.entries is not None:
                rows = jnp.broadcast_to(jnp.asarray(mask), batch)
                mask = expected.entries & wide(rows, jnp.ndim(values))
            shape = batch if jnp.ndim(mask) <= len(batch) else jnp.shape(values)
            found[name] = Observed(values, jnp.broadcast_to(jnp.asarray(mask), shape))
    return found


def warn_if_none_counts(name: str, mask: Any) -> None:
    """Say that the mask of a site, if its values can be read, is False everywhere."""
    is_known = is_concrete(mask) and not is_sharded(mask)
    # np.any of an array of JAX would be an operation of the trace that is under way.
    if is_known and not np.any(np.asarray(mask)):
        warnings.warn(
            f"no datum of site '{name}' counts: its mask is False everywhere. A mask "
            "is True where the data are known: mask=~np.isnan(y).",
            stacklevel=2,
        )


class LogLikelihoods(NamedTuple):
    """The terms of a site, [..., N]; without a latent and a scale the same twice.

    Attributes:
        log_likelihood: log E p(y_n | f_n).
        expected_log_likelihood: s_n E log p(y_n | f_n), the terms of the log density,
            with s_n that of ``numpyro.handlers.scale``.
    """

    log_likelihood: Any
    expected_log_likelihood: Any


def log_likelihoods(site: dict) -> LogLikelihoods:
    """The terms of the data of a site at one draw."""
    expected, y = expected_of(site), site["value"]
    if expected is None:
        density = terms = site["fn"].log_prob(y)
    else:
        density, terms = expected.log_predictive(y), expected.log_prob(y)
    scale = site["scale"]
    return LogLikelihoods(density, terms if scale is None else scale * terms)


def log_likelihood_groups(
    terms: dict[str, LogLikelihoods], data: dict[str, Observed]
) -> dict[str, dict[str, np.ndarray]]:
    """The groups of an ArviZ object, of the rows with any known entry.

    Args:
        terms: By site, [chains, draws, N].
        data: The data by site.
    """
    return {
        group: {
            name: _of_rows(getattr(of_site, group), data[name], 2)[0]
            for name, of_site in terms.items()
        }
        for group in LogLikelihoods._fields
    }


def draw_of(site: dict, key) -> jax.Array:
    """New data for an observed site; for a site without data, its draw in the trace."""
    if not site["is_observed"]:
        return site["value"]
    distribution = expected_of(site) or site["fn"]
    return distribution.sample(key)


def known_rows(data: Observed) -> np.ndarray | None:
    """Numbers of the rows with any known entry; None if that is all rows."""
    known = np.asarray(data.known)
    if not known.ndim:
        return None
    rows = known.reshape(len(known), -1).any(axis=1)
    return None if rows.all() else np.flatnonzero(rows)


def known_part(values, data: Observed, leading: int = 0) -> np.ndarray:
    """Data, or draws of them, without unknown rows; NaN at other holes.

    Args:
        values: [..., N] and event axes.
        data: The data of the site.
        leading: Number of axes before the rows.
    """
    values, known = _of_rows(values, data, leading)
    if known.all():
        return values
    missing = values.ndim - leading - known.ndim
    return np.where(known.reshape(known.shape + (1,) * missing), values, np.nan)


def _of_rows(values, data: Observed, leading: int) -> tuple[np.ndarray, np.ndarray]:
    values, known, rows = np.asarray(values), np.asarray(data.known), known_rows(data)
    if rows is None:
        return values, known
    return np.take(values, rows, axis=leading), known[rows]


def plate_axes(sites: dict[str, dict]) -> dict[str, tuple[str, ...]]:
    """Names of the leading axes of values, those of the plates around them.

    A site is left out unless plates name all axes of its batch, or if an axis cannot
    carry the name: its length differs, or ArviZ needs the name.
    """
    found = {}
    for name, site in sites.items():
        if site["type"] not in ("sample", "deterministic"):
            continue
        if is_layer(site) or is_inducing(site):
            continue
        shape = jnp.shape(site["value"])
        num_event = site["fn"].event_dim if site["type"] == "sample" else 0
        batch = shape[: len(shape) - num_event]
        frames = {frame.dim: frame for frame in site.get("cond_indep_stack", [])}
        fitting = [
            frames[dim].name
            for dim in range(-len(batch), 0)
            if dim in frames and frames[dim].size == batch[dim]
        ]
        if batch and len(fitting) == len(batch) and not {"chain", "draw"} & {*fitting}:
            found[name] = tuple(fitting)
    return found
