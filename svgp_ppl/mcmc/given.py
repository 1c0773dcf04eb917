"""Latent sites whose values a handler in the model gives, and a sampler moves."""

import warnings
from typing import Any

from numpyro.handlers import Messenger

from svgp_ppl.handlers import is_inducing

__all__ = ["noting_given"]


class noting_given(Messenger):
    """A NumPyro handler: takes note of values that ``substitute`` has given inside.

    A sampler gives every latent site a value of its own, which takes the place of that
    one; only ``condition`` and ``do`` make a site known.

    Args:
        fn: The model.
    """

    def __init__(self, fn):
        self.names: set[str] = set()
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        """Note the site if it has a value already."""
        is_latent = msg["type"] == "sample" and not msg["is_observed"]
        if is_latent and msg["value"] is not None and not is_inducing(msg):
            self.names.add(msg["name"])

    def warn(self) -> None:
        """Say which values are not kept."""
        if self.names:
            warnings.warn(
                "the values that a handler in the model, numpyro.handlers.substitute, "
                f"gives the latent site(s) {sorted(self.names)} are not kept: chains "
                "sample them. numpyro.handlers.condition, or do, holds a site at a "
                "value.",
                stacklevel=4,
            )
