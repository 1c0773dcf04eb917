"""Scalable inference for Gaussian processes with black-box likelihoods.

Dezfouli & Bonilla (2015).
"""
