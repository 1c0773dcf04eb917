"""Maximising the bound: the loop, its result, and the optimisers it uses."""

from svgp_ppl.fitting.assessment import fitted_of
from svgp_ppl.fitting.fit import fit
from svgp_ppl.fitting.natural_gradient import natural_gradient
from svgp_ppl.fitting.result import Fit, NonFiniteBoundError
from svgp_ppl.fitting.streaming import update

__all__ = [
    "Fit",
    "NonFiniteBoundError",
    "fit",
    "fitted_of",
    "natural_gradient",
    "update",
]
