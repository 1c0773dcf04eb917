"""Plates whose rows are chosen elsewhere.

``numpyro.plate("data", N, subsample_size=B)`` draws B of N rows itself, with a list of
all N. Where the model is given the rows of a batch, or where only shapes are looked at,
that list is not wanted: the rows are 0, …, B − 1 of what the model was given.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from numpyro.handlers import Messenger

__all__ = ["first_rows", "require_plate"]


class first_rows(Messenger):
    """A NumPyro handler: subsampled plates take the first rows in place of drawn ones.

    Args:
        fn: Model or guide.
        size: Only plates of so many rows; all if None.
    """

    def __init__(self, fn: Callable | None = None, size: int | None = None):
        self.size = size
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        """Give a plate its rows, unless it has them."""
        if msg["type"] == "plate" and msg["value"] is None:
            size, rows = msg["args"]
            if self.size in (None, size):
                msg["value"] = jnp.arange(rows)


def require_plate(model_trace: dict[str, dict], size: int, rows: int) -> None:
    """Raise unless a plate of the model scales a batch of ``rows`` up to ``size`` data.

    Without it a batch would count as all the data there are.
    """
    plates = {
        name: tuple(site["args"])
        for name, site in model_trace.items()
        if site["type"] == "plate"
    }
    fitting = [(size, rows)] + [(size, None)] * (size == rows)
    if not any(args in fitting for args in plates.values()):
        found = ", ".join(
            f"'{name}' with {whole}" + (f" (subsample_size={part})" if part else "")
            for name, (whole, part) in plates.items()
        )
        raise ValueError(
            f"with batch_size={rows} the model is given {rows} of {size} rows, and one "
            "of its plates must say so, for the scale: write\n"
            f'    with numpyro.plate("data", {size}, subsample_size=len(x)):\n'
            "(the number of all rows may be an argument of the model). Its plates are: "
            f"{found or 'none'}."
        )
