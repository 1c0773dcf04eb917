"""Figures of docs/papers/figures from the results alone."""

from benchmarks.papers.figures.drawn import write

__all__ = ["write"]
