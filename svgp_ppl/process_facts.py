"""What is remembered of processes: columns of their tables, kernels, inducing inputs.

A kernel tells columns by their places. Where inputs are tables, those of a prediction
must have the columns of the fit in the same order, which is remembered and compared.
And with another kernel, or at other inducing inputs, the same whitened values are those
of another function. Of a kernel, which is code, the names of its classes are
remembered; of a z that is neither a parameter nor computed from arguments
(``inducing_origin``), a digest.
"""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.core import Tracer

from svgp_ppl.diagnostics.kept import known_of
from svgp_ppl.handlers import is_inducing
from svgp_ppl.observations import latents_of
from svgp_ppl.runtime.digests import digest_of_values

__all__ = ["ProcessFacts", "process_facts_of", "require_same_processes"]


class ProcessFacts(NamedTuple):
    """What a fit or draws remember of the processes of a model.

    Attributes:
        input_columns: Columns of the tables that each process is called with.
        kernels: Classes of the kernel and of the inducing features of each process.
        inducing_digests: Digests of inducing inputs that are constants, by process.
    """

    input_columns: dict[str, list[list[str]]]
    kernels: dict[str, str]
    inducing_digests: dict[str, str]


def process_facts_of(sites: dict[str, dict]) -> ProcessFacts:
    """What is to be remembered of the processes in a trace."""
    kernels, digests = {}, {}
    for name, site in sites.items():
        if is_inducing(site):
            inducing = site["infer"]["inducing"]
            kinds = _kind(inducing["kernel"]), _kind(inducing["features"])
            kernels[name] = " at ".join(kinds)
            if digest := _digest_of_constants(inducing["z"]):
                digests[name] = digest
    return ProcessFacts(_columns_of(sites), kernels, digests)


def require_same_processes(posterior: Any, processes: ProcessFacts) -> None:
    """Compare what is remembered with what there is now.

    Args:
        posterior: A fit or draws; nothing is known of others.
        processes: The processes now.

    Raises:
        ValueError: A process is called with other columns.
    """
    _require_same_columns(posterior, processes.input_columns)
    kernels, digests = (
        known_of(posterior, name) for name in ("kernels", "inducing_digests")
    )
    for name, kernel in processes.kernels.items():
        digest = processes.inducing_digests.get(name)
        if kernel != (before := kernels.get(name, kernel)):
            warnings.warn(
                f"process '{name}' has {kernel}, and had {before} when the posterior "
                "was found, which with another kernel or other features means another "
                "function. If it is the same kernel written in another way, all is "
                "well.",
                stacklevel=3,
            )
        elif digest and digest != digests.get(name, digest):
            warnings.warn(
                f"the inducing inputs of process '{name}' are not those for which the "
                "posterior was found, where it means another function. Keep them with "
                "it, or make them a numpyro.param, which is part of it.",
                stacklevel=3,
            )


def _kind(part: Any) -> str:
    """Names of the classes of a kernel or of features, and the columns they see."""
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    values = [getattr(part, field.name) for field in fields]
    inner = ", ".join(_kind(v) for v in values if dataclasses.is_dataclass(v))
    columns = getattr(part, "active_columns", None)
    seen = "" if columns is None else f"[{', '.join(map(str, columns))}]"
    return type(part).__name__ + f"({inner})" * bool(inner) + seen


def _digest_of_constants(z: Any) -> str | None:
    """What distinguishes inducing inputs or features whose values are known."""
    leaves = jax.tree.leaves(z)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return None
    try:
        return " ".join(map(digest_of_values, leaves))
    except (TypeError, ValueError):  # an object that is no tree of arrays
        return None


def _columns_of(sites: dict[str, dict]) -> dict[str, list[list[str]]]:
    """Process -> the columns of each table that it is called with, in a trace."""
    latents = latents_of(sites).values()
    found: dict[str, list[list[str]]] = {}
    for view in (view for latent in latents for view in latent.views):
        names, known = _names(view.source), found.setdefault(view.process.name, [])
        if names and names not in known:
            known.append(names)
    return {process: tables for process, tables in found.items() if tables}


def _require_same_columns(
    posterior: Any, columns: Mapping[str, list[list[str]]]
) -> None:
    """Refuse tables with other columns than those of the fit, or in another order.

    Args:
        posterior: A fit or draws; nothing is known of others.
        columns: What the processes are called with now.

    Raises:
        ValueError: A process has others; says which, and what to pass.
    """
    known = known_of(posterior, "input_columns")
    for process, tables in columns.items():
        for names in tables:
            before = known.get(process, [names])
            if names in before:
                continue
            what = f"process '{process}' sees a table with the columns {names}, and "
            same = [table for table in before if sorted(table) == sorted(names)]
            if same:
                raise ValueError(
                    f"{what}was fitted to {same[0]}: a kernel tells columns by their "
                    f"places. Pass x[{same[0]}] (of Arrow x.select, of xarray "
                    "x.sel with the labels)."
                )
            raise ValueError(
                f"{what}was fitted to {before[0]}. If they are the same quantities in "
                "the same order, give them the same names."
            )


def _names(x: Any) -> list[str]:
    """The names of the columns of a table or of an xarray array; [] without."""
    if hasattr(x, "dims") and hasattr(x, "indexes"):
        names = x.indexes.get(x.dims[-1], [])
    else:  # the columns of a table of Arrow are their values
        names = getattr(x, "column_names", getattr(x, "columns", []))
    is_named = all(isinstance(name, str) for name in names)
    return [str(name) for name in names] if is_named else []
