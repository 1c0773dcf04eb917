"""Figures of what ArviZ does not draw: matplotlib axes in, axes out."""

from svgp_ppl.plots.correlations import correlated_inputs, correlation
from svgp_ppl.plots.draws import density, ess, joint, psrf
from svgp_ppl.plots.fits import bound, inducing_inputs
from svgp_ppl.plots.functions import (
    chain_bands,
    class_contours,
    function_band,
    prediction_band,
    subplots,
)

__all__ = [
    "bound",
    "chain_bands",
    "class_contours",
    "correlated_inputs",
    "correlation",
    "density",
    "ess",
    "function_band",
    "inducing_inputs",
    "joint",
    "prediction_band",
    "psrf",
    "subplots",
]
