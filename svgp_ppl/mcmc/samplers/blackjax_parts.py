"""What is imported from inside BlackJAX: the one home of its private names.

Its public interface is what ``import blackjax`` shows: ``blackjax.nuts.build_kernel``
and the like. The names below lie deeper, because a chain here is driven step by step
(docs/decisions/0005), and may move with any release; tests/test_private_names.py says
what each of them is needed for.
"""

from blackjax.adaptation.chees_adaptation import base as chees_start_and_update
from blackjax.adaptation.mclmc_adaptation import MCLMCAdaptationState
from blackjax.adaptation.metric_recipes import MetricCore, lookup_recipe
from blackjax.adaptation.step_size import (
    DualAveragingAdaptationState,
    dual_averaging_adaptation,
)
from blackjax.adaptation.window_adaptation import build_schedule
from blackjax.mcmc.dynamic_hmc import DynamicHMCState, halton_sequence
from blackjax.mcmc.elliptical_slice import EllipSliceState
from blackjax.mcmc.hmc import HMCState
from blackjax.mcmc.integrators import IntegratorState
from blackjax.mcmc.metrics import Metric
from blackjax.mcmc.random_walk import RWState
from blackjax.mcmc.random_walk import normal as normal_proposal
from blackjax.optimizers.lbfgs import (
    bfgs_sample,
    lbfgs_inverse_hessian_factors,
    minimize_lbfgs,
)
from blackjax.sgmcmc.diffusions import overdamped_langevin
from blackjax.sgmcmc.diffusions import sghmc as sghmc_diffusion
from blackjax.smc.resampling import systematic
from blackjax.util import pytree_size

__all__ = [
    "DualAveragingAdaptationState",
    "DynamicHMCState",
    "EllipSliceState",
    "HMCState",
    "IntegratorState",
    "MCLMCAdaptationState",
    "Metric",
    "MetricCore",
    "RWState",
    "bfgs_sample",
    "build_schedule",
    "chees_start_and_update",
    "dual_averaging_adaptation",
    "halton_sequence",
    "lbfgs_inverse_hessian_factors",
    "lookup_recipe",
    "minimize_lbfgs",
    "normal_proposal",
    "overdamped_langevin",
    "pytree_size",
    "sghmc_diffusion",
    "systematic",
]
