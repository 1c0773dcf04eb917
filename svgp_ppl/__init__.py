"""Sparse Gaussian processes for NumPyro models: one model, two inferences.

    Σ_n E_{q(f_n)} log p(y_n|f_n) − KL( q(v) ‖ N(0, I) ),   q(f_n) = ∫ p(f_n|v) q(v) dv

A family for q(v) is variational inference; a point is a log density for Hamiltonian
Monte Carlo. See ``sparse_gp`` and ``observe`` for the model, ``fit``, ``sample`` and
``predict`` for the rest.
"""

from svgp_ppl import (
    beliefs,
    datasets,
    deep,
    diagnostics,
    expectations,
    inducing,
    kernels,
    likelihoods,
    mcmc,
    plots,
)
from svgp_ppl.elbo import MarginalELBO
from svgp_ppl.fit import Fit, NonFiniteBoundError, fit
from svgp_ppl.functions import draw_functions
from svgp_ppl.guides import AutoCoupled, AutoDeep, AutoGaussian, AutoMixture
from svgp_ppl.latent import Latent, SparseGP, stack
from svgp_ppl.mcmc.sample import sample
from svgp_ppl.natural_gradient import natural_gradient
from svgp_ppl.pipeline import Hybrid, fit_and_sample
from svgp_ppl.predict import Prediction, predict
from svgp_ppl.primitives import Expected, observe, propagate, sparse_gp

__version__ = "0.1.0"

__all__ = [
    "AutoCoupled",
    "AutoDeep",
    "AutoGaussian",
    "AutoMixture",
    "Expected",
    "Fit",
    "Hybrid",
    "Latent",
    "MarginalELBO",
    "NonFiniteBoundError",
    "Prediction",
    "SparseGP",
    "beliefs",
    "datasets",
    "deep",
    "diagnostics",
    "draw_functions",
    "expectations",
    "fit",
    "fit_and_sample",
    "inducing",
    "kernels",
    "likelihoods",
    "mcmc",
    "natural_gradient",
    "observe",
    "plots",
    "predict",
    "propagate",
    "sample",
    "sparse_gp",
    "stack",
]
