"""Structured variational inference for coupled Gaussian processes (Adam 2017)."""
