"""Sparse Gaussian processes for NumPyro models: one model, two inferences.

    Σ_n E_{q(f_n)} log p(y_n|f_n) − KL( q(v) ‖ N(0, I) ),   q(f_n) = ∫ p(f_n|v) q(v) dv

With a family for q(v) this is variational inference; with a point it is a log density
for Hamiltonian Monte Carlo. See ``sparse_gp`` and ``observe`` for the model, ``fit``,
``sample`` and ``predict`` for the rest.
"""

import importlib
from typing import TYPE_CHECKING

from svgp_ppl import (
    datasets,
    deep,
    diagnostics,
    expectations,
    features,
    guides,
    inducing,
    kernels,
    likelihoods,
    mcmc,
    variational,
)
from svgp_ppl.diagnostics import hyperparameters
from svgp_ppl.elbo import MarginalELBO
from svgp_ppl.fitting import (
    Fit,
    NonFiniteBoundError,
    fit,
    natural_gradient,
    update,
)
from svgp_ppl.guides import AutoCoupled, AutoDeep, AutoGaussian, AutoMixture, AutoSites
from svgp_ppl.latent import Latent, stack
from svgp_ppl.mcmc.hybrid import Hybrid, fit_and_sample
from svgp_ppl.mcmc.importance import importance_sample
from svgp_ppl.mcmc.sample import sample
from svgp_ppl.observations import Expected
from svgp_ppl.prediction import (
    Prediction,
    draw_functions,
    log_likelihood,
    posterior_predictive,
    predict,
    predict_batches,
    prior_predictive,
)
from svgp_ppl.primitives import observe, propagate, sparse_gp
from svgp_ppl.process import SparseGP
from svgp_ppl.pytrees import register_dataclass
from svgp_ppl.rows import arrow_rows, shard
from svgp_ppl.runtime import cache_compilations

if TYPE_CHECKING:
    from svgp_ppl import plots

__version__ = "0.1.0"

__all__ = [
    "AutoCoupled",
    "AutoDeep",
    "AutoGaussian",
    "AutoMixture",
    "AutoSites",
    "Expected",
    "Fit",
    "Hybrid",
    "Latent",
    "MarginalELBO",
    "NonFiniteBoundError",
    "Prediction",
    "SparseGP",
    "arrow_rows",
    "cache_compilations",
    "datasets",
    "deep",
    "diagnostics",
    "draw_functions",
    "expectations",
    "features",
    "fit",
    "fit_and_sample",
    "guides",
    "hyperparameters",
    "importance_sample",
    "inducing",
    "kernels",
    "likelihoods",
    "log_likelihood",
    "mcmc",
    "natural_gradient",
    "observe",
    "plots",
    "posterior_predictive",
    "predict",
    "predict_batches",
    "prior_predictive",
    "propagate",
    "register_dataclass",
    "sample",
    "shard",
    "sparse_gp",
    "stack",
    "update",
    "variational",
]


def __getattr__(name: str):
    """``plots`` at its first use: Matplotlib is imported by those who draw."""
    if name == "plots":
        return importlib.import_module("svgp_ppl.plots")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
