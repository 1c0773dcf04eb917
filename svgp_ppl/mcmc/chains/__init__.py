"""Chains of any sampler: their phases, run side by side, interrupted and continued."""

from svgp_ppl.mcmc.chains.run import Chains, run_chains

__all__ = ["Chains", "run_chains"]
