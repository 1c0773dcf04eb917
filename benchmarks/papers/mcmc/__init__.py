"""MCMC for variationally sparse Gaussian processes (Hensman et al. 2015)."""
