"""Plates whose rows are chosen elsewhere.

``numpyro.plate("data", N, subsample_size=B)`` draws B of N rows itself, with a list of
all N. Where the model is given the rows of a batch, or where only shapes are looked at,
that list is not wanted: the rows are 0, …, B − 1 of what the model was given. A sampler
wants all of the rows at times, and at others B of them for less than the price of N.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Int
from numpyro.handlers import Messenger

__all__ = [
    "all_rows",
    "drawn_rows",
    "first_rows",
    "num_observed",
    "require_plate",
    "subsampled",
]


def subsampled(model_trace: dict[str, dict]) -> dict[str, tuple[int, int]]:
    """Size N and number of rows B of the plates that see only some of their rows."""
    plates = {n: s for n, s in model_trace.items() if s["type"] == "plate"}
    sizes = {n: (s["args"][0], len(s["value"])) for n, s in plates.items()}
    return {name: (size, rows) for name, (size, rows) in sizes.items() if size != rows}


class all_rows(Messenger):
    """A NumPyro handler: subsampled plates take all their rows, and scale nothing."""

    def process_message(self, msg: Any) -> None:
        """Give a plate its rows, unless it has them."""
        if msg["type"] == "plate" and msg["value"] is None:
            size, _ = msg["args"]
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


class drawn_rows(Messenger):
    """A NumPyro handler: subsampled plates draw each of their rows from all of them.

    Independently, so the price is that of B rows, where NumPyro's draw without
    replacement has the price of N. Either way each row is expected B/N times, and the
    scale N/B of the plate makes a sum over the rows unbiased for that over all data;
    its variance is (N − 1)/(N − B) times larger. The key is that of
    ``numpyro.handlers.seed``.
    """

    def process_message(self, msg: Any) -> None:
        """Tell a plate how to draw."""
        if msg["type"] == "plate" and msg["value"] is None:
            msg["fn"] = _with_replacement


def _with_replacement(size: int, rows: int, rng_key: Any = None) -> Int[Array, " rows"]:
    return random.randint(rng_key, (rows,), 0, size)


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


def num_observed(model_trace: dict[str, Any]) -> float:
    """Number of observed data, counting what a subsampled plate stands for."""
    total = 0.0
    for site in model_trace.values():
        if site["type"] == "sample" and site["is_observed"]:
            scale = 1.0 if site["scale"] is None else float(site["scale"])
            total += scale * float(np.prod(site["fn"].batch_shape))
    return max(total, 1.0)
