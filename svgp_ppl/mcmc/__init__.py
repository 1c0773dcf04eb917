"""Samplers: each sees a log density and nothing else. BlackJAX underneath."""

from svgp_ppl.mcmc.chains import Chains, Sampler, run_chains
from svgp_ppl.mcmc.nuts import NUTS

__all__ = ["NUTS", "Chains", "Sampler", "run_chains"]
