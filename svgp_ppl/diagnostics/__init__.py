"""Draws to and from ArviZ, how well a sampler mixes, what is wrong with a run or fit.

Draws are a dict from names to arrays [chains, draws, ...] or the ArviZ object made of
them: ``InferenceData`` before ArviZ 1.0, an xarray ``DataTree`` since.
"""

from svgp_ppl.diagnostics.advice import Finding
from svgp_ppl.diagnostics.criteria import LOO, WAIC, loo, waic
from svgp_ppl.diagnostics.findings_of_fits import moving_bound
from svgp_ppl.diagnostics.fitted import Data, Fitted, Inputs, Moments, Site
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
from svgp_ppl.diagnostics.posterior import arrays_of, group, label, to_arviz
from svgp_ppl.diagnostics.report import Report, report, report_fit, report_of

__all__ = [
    "LOO",
    "WAIC",
    "Data",
    "Finding",
    "Fitted",
    "Inputs",
    "Moments",
    "Report",
    "Site",
    "arrays_of",
    "bfmi",
    "esjd",
    "ess",
    "ess_per_gradient",
    "ess_per_second",
    "group",
    "label",
    "loo",
    "moving_bound",
    "psrf",
    "report",
    "report_fit",
    "report_of",
    "rhat",
    "slowest",
    "summary",
    "to_arviz",
    "waic",
]
