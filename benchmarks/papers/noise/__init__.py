"""Scalable classification with additive noise (Liu et al. 2019)."""
