"""Covariance functions k(x, x'): all pairs, pairs by row, and the diagonal.

A kernel is a pytree of values. Sites own parameters; a kernel is made from them anew
wherever it is needed.
"""

# Registers the spectra with features.spectral_terms.
import svgp_ppl.kernels.spectral  # noqa: F401
from svgp_ppl.kernels.adapters import FunctionKernel, TinygpKernel, as_kernel
from svgp_ppl.kernels.dot_product import ArcCosine, Linear, Polynomial
from svgp_ppl.kernels.kernel import (
    Constant,
    Kernel,
    Product,
    Sum,
    White,
    kernel_values,
)
from svgp_ppl.kernels.stationary import (
    RBF,
    Cosine,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)

__all__ = [
    "RBF",
    "ArcCosine",
    "Constant",
    "Cosine",
    "FunctionKernel",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "Sum",
    "TinygpKernel",
    "White",
    "as_kernel",
    "kernel_values",
]
