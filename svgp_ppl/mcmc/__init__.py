"""Markov chain Monte Carlo: the log density of a model, its coordinates, chains."""

from svgp_ppl.mcmc.chains import Chains, run_chains
from svgp_ppl.mcmc.coordinates import reparam_sites
from svgp_ppl.mcmc.moving_window import moving_window_em
from svgp_ppl.mcmc.pathfinder import Pathfinder
from svgp_ppl.mcmc.refit import refit
from svgp_ppl.mcmc.samplers import (
    HMC,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    Adaptive,
    ChEES,
    EllipticalSlice,
    Gibbs,
    HostAdaptation,
    HostAdapted,
    Sampler,
    StochasticGradient,
    TunesTogether,
    UsesPrior,
)

__all__ = [
    "HMC",
    "MCLMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "Adaptive",
    "ChEES",
    "Chains",
    "EllipticalSlice",
    "Gibbs",
    "HostAdaptation",
    "HostAdapted",
    "Pathfinder",
    "Sampler",
    "StochasticGradient",
    "TunesTogether",
    "UsesPrior",
    "moving_window_em",
    "refit",
    "reparam_sites",
    "run_chains",
]
