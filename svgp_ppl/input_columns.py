"""The columns of the tables at which processes are seen, by their names.

A kernel tells columns by their places. Where inputs are tables, those of a prediction
must have the columns of the fit in the same order, which is remembered and compared.
"""

from collections.abc import Mapping
from typing import Any

from svgp_ppl.diagnostics.kept import known_of
from svgp_ppl.observations import latents_of

__all__ = ["columns_of", "require_same_columns"]


def columns_of(sites: dict[str, dict]) -> dict[str, list[list[str]]]:
    """Process -> the columns of each table that it is called with, in a trace."""
    latents = latents_of(sites).values()
    found: dict[str, list[list[str]]] = {}
    for view, _ in (element for a in latents for t in a.terms for element in t):
        names, known = _names(view.source), found.setdefault(view.process.name, [])
        if names and names not in known:
            known.append(names)
    return {process: tables for process, tables in found.items() if tables}


def require_same_columns(
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
