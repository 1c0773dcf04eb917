"""Samplers: each sees a log density and nothing else. BlackJAX underneath."""

from svgp_ppl.mcmc.chains import Chains, run_chains
from svgp_ppl.mcmc.chees import ChEES
from svgp_ppl.mcmc.coordinates import reparam_sites
from svgp_ppl.mcmc.gibbs import Gibbs
from svgp_ppl.mcmc.hmc import HMC
from svgp_ppl.mcmc.mclmc import MCLMC
from svgp_ppl.mcmc.moving_window import moving_window_em
from svgp_ppl.mcmc.nuts import NUTS
from svgp_ppl.mcmc.pathfinder import Pathfinder
from svgp_ppl.mcmc.sampler import (
    Adaptive,
    HostAdaptation,
    HostAdapted,
    Sampler,
    StochasticGradient,
    TunesTogether,
)
from svgp_ppl.mcmc.slice import EllipticalSlice
from svgp_ppl.mcmc.stochastic import SGHMC, SGLD

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
    "moving_window_em",
    "reparam_sites",
    "run_chains",
]
