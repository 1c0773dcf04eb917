"""Doubly stochastic deep Gaussian processes (Salimbeni & Deisenroth 2017)."""
