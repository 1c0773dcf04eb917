"""Measurements: published experiments, speed, reliability, mistakes."""
