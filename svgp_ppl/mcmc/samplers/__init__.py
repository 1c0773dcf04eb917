"""Samplers: each sees a log density and nothing else. BlackJAX underneath."""

from svgp_ppl.mcmc.samplers.chees import ChEES
from svgp_ppl.mcmc.samplers.gibbs import Gibbs
from svgp_ppl.mcmc.samplers.hmc import HMC
from svgp_ppl.mcmc.samplers.mclmc import MCLMC
from svgp_ppl.mcmc.samplers.nuts import NUTS
from svgp_ppl.mcmc.samplers.sampler import (
    Adaptive,
    HostAdaptation,
    HostAdapted,
    Sampler,
    StochasticGradient,
    TunesTogether,
    UsesPrior,
)
from svgp_ppl.mcmc.samplers.slice import EllipticalSlice
from svgp_ppl.mcmc.samplers.stochastic import SGHMC, SGLD

__all__ = [
    "HMC",
    "MCLMC",
    "NUTS",
    "SGHMC",
    "SGLD",
    "Adaptive",
    "ChEES",
    "EllipticalSlice",
    "Gibbs",
    "HostAdaptation",
    "HostAdapted",
    "Sampler",
    "StochasticGradient",
    "TunesTogether",
    "UsesPrior",
]
