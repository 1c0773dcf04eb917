"""How chains mixed, as numbers of a run."""

import numpy as np

from svgp_ppl.diagnostics import ess, group, rhat


def mixing(draws) -> dict[str, float]:
    """Smallest effective size, largest R-hat, divergences, seconds of sampling."""
    divergent = group(draws, "sample_stats").get("diverging", np.zeros(1))
    return {
        "ESS": min(float(np.min(v)) for v in ess(draws).values()),
        "R-hat": max(float(np.max(v)) for v in rhat(draws).values()),
        "divergences": int(np.sum(divergent)),
        "sampling seconds": float(draws["posterior"].attrs["sampling_seconds"]),
    }
