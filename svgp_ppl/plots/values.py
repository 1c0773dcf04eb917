"""Draws of one site by its name."""

from typing import Any

import numpy as np

from svgp_ppl import diagnostics

__all__ = ["values_of"]


def values_of(posterior: Any, name: str) -> np.ndarray:
    """Draws of a site, [chains, draws, ...].

    Raises:
        ValueError: There is no such site.
    """
    arrays = diagnostics.arrays_of(posterior)
    if name not in arrays:
        raise ValueError(f"there is no '{name}' among {sorted(arrays)}.")
    return arrays[name]
