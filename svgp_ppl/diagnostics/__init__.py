"""Draws to and from ArviZ, the mixing of a sampler, what is wrong with a run or fit.

Draws are a dict from names to arrays [chains, draws, ...] or the ArviZ object made of
them: ``InferenceData`` before ArviZ 1.0, an xarray ``DataTree`` since.
"""

from svgp_ppl.diagnostics.advice import Finding
from svgp_ppl.diagnostics.axes import Axes, axes_of
from svgp_ppl.diagnostics.criteria import LOO, WAIC, loo, waic
from svgp_ppl.diagnostics.mixing import (
    bfmi,
    esjd,
    ess,
    ess_per_gradient,
    ess_per_second,
    psrf,
    rhat,
    slowest,
    summary,
)
from svgp_ppl.diagnostics.posterior import (
    add_groups,
    arrays_of,
    group,
    hyperparameters,
    label,
    to_arviz,
)
from svgp_ppl.diagnostics.report import Report, report

__all__ = [
    "LOO",
    "WAIC",
    "Axes",
    "Finding",
    "Report",
    "add_groups",
    "arrays_of",
    "axes_of",
    "bfmi",
    "esjd",
    "ess",
    "ess_per_gradient",
    "ess_per_second",
    "group",
    "hyperparameters",
    "label",
    "loo",
    "psrf",
    "report",
    "rhat",
    "slowest",
    "summary",
    "to_arviz",
    "waic",
]
