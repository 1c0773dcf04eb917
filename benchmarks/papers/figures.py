"""Figures of docs/papers/figures from the results."""

from pathlib import Path


def write(folder: Path) -> None:
    """Draw every figure whose results are there."""
