"""Observations given latents: their distribution, and what is known of the data."""

from svgp_ppl.observations.expected import (
    Expected,
    expected_of,
    is_latent,
    latents_of,
    observe_sites,
    require_observed,
)

__all__ = [
    "Expected",
    "expected_of",
    "is_latent",
    "latents_of",
    "observe_sites",
    "require_observed",
]
