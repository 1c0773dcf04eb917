"""Inducing features: what represents a process in place of values at points.

Any u with a covariance to f can be used (Lázaro-Gredilla & Figueiras-Vidal 2009):
values at points, derivatives, integrals over areas, projections on Fourier features.
``sparse_gp`` takes any of them in place of z. Those that are linear functionals of f
with rows of their own (``LinearFunctional``) can also be observed: ``f(areas)``.
"""

from svgp_ppl.features.areas import average, integral
from svgp_ppl.features.arguments import as_features, as_functional, jitter_of
from svgp_ppl.features.concatenated import Concatenated
from svgp_ppl.features.derivative import Derivative
from svgp_ppl.features.fourier import Fourier
from svgp_ppl.features.integral import Integral
from svgp_ppl.features.interface import (
    InducingFeatures,
    LinearFunctional,
    covariance,
    has_rows,
    paired_covariance,
)
from svgp_ppl.features.points import Points

__all__ = [
    "Concatenated",
    "Derivative",
    "Fourier",
    "InducingFeatures",
    "Integral",
    "LinearFunctional",
    "Points",
    "as_features",
    "as_functional",
    "average",
    "covariance",
    "has_rows",
    "integral",
    "jitter_of",
    "paired_covariance",
]
