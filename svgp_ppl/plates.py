"""Plates: which of its rows a plate takes, rules for their sizes; and no ``scan``."""

from collections.abc import Callable, Iterator, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Int
from numpyro.contrib.control_flow import scan
from numpyro.handlers import Messenger, infer_config
from numpyro.primitives import plate

from svgp_ppl.checks import is_concrete
from svgp_ppl.handlers import enclosing

__all__ = [
    "all_rows",
    "drawn_rows",
    "first_rows",
    "latents_of_rows",
    "numbered_rows",
    "outside_of_plates",
    "require_all_rows",
    "require_batch_plate",
    "require_fitting_plates",
    "require_outside_plates",
    "require_outside_scan",
    "subsampled",
]


def subsampled(model_trace: dict[str, dict]) -> dict[str, tuple[int, int]]:
    """Size N and number of rows B of the plates that see only some of their rows."""
    plates = {n: s for n, s in model_trace.items() if s["type"] == "plate"}
    sizes = {n: (s["args"][0], len(s["value"])) for n, s in plates.items()}
    return {name: (size, rows) for name, (size, rows) in sizes.items() if size != rows}


def latents_of_rows(model_trace: dict[str, dict]) -> Iterator[tuple[str, str]]:
    """Latent sites with a value for each row of a subsampled plate, and that plate."""
    plates = subsampled(model_trace)
    for name, site in model_trace.items():
        if site["type"] == "sample" and not site["is_observed"]:
            for frame in site["cond_indep_stack"]:
                if frame.name in plates:
                    yield name, frame.name


class all_rows(Messenger):
    """A NumPyro handler: subsampled plates take all their rows, and scale nothing."""

    def process_message(self, msg: Any) -> None:
        """Give a plate its rows, unless it has them."""
        if msg["type"] == "plate" and msg["value"] is None:
            size, _ = msg["args"]
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


class drawn_rows(Messenger):
    """A NumPyro handler: subsampled plates draw each of their rows from all of them.

    The draws are independent, so the cost is that of B rows, where NumPyro's draw
    without replacement costs N. Either way each row is expected B/N times, and the
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
    """A NumPyro handler: subsampled plates take the first rows instead of drawn ones.

    Args:
        fn: Model or guide.
        size: Only plates of so many rows; all if None.
    """

    def __init__(self, fn: Callable | None = None, size: int | None = None):
        self.size = size
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        """Give a plate its rows, unless it has them."""
        if msg["type"] != "plate":
            return
        size, rows = msg["args"]
        rows = size if rows is None else rows
        is_whole = rows == size
        if self.size in (None, size) and (is_whole or msg["value"] is None):
            # A concrete array, so that the data it selects can be read.
            with jax.ensure_compile_time_eval():
                msg["value"] = jnp.asarray(np.arange(rows))


class numbered_rows(Messenger):
    """A NumPyro handler: plates that take so many rows say that they are these.

    Args:
        fn: Model or guide.
        numbers: The numbers, maybe traced.
    """

    def __init__(self, fn: Callable, numbers: Any):
        self.numbers = numbers
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        """Give a plate its rows."""
        if msg["type"] == "plate":
            size, rows = msg["args"]
            if (size if rows is None else rows) == len(self.numbers):
                msg["value"] = self.numbers


def require_fitting_plates(name: str, num_data: int) -> None:
    """Raise if a plate around the data has another size, or is not their dimension."""
    for handler in enclosing(plate):
        size = handler.subsample_size
        if handler.dim != -1:
            raise ValueError(
                f"site '{name}' is in plate '{handler.name}' of dimension "
                f"{handler.dim}, which would count its {num_data} data {size} times. "
                "An observe site has one dimension of data, -1: drop dim= of the plate "
                "that goes with x, and take the site out of other plates (write one "
                "observe for each of their elements)."
            )
        if size not in (1, num_data):
            if num_data > handler.size:
                raise ValueError(
                    f"site '{name}' has {num_data} data and is in plate "
                    f"'{handler.name}' of {handler.size} in all. Make the plate as "
                    "long as x; for predictions at more rows than a model of batches "
                    f"has: numpyro.plate('{handler.name}', max({handler.size}, "
                    "len(x)), subsample_size=len(x))."
                )
            raise ValueError(
                f"site '{name}' has {num_data} data and is in plate "
                f"'{handler.name}' of {size}. Make the plate as long as x, or take "
                "the rows of a subsample: with plate(...) as rows, f(x[rows]) and "
                "obs=y[rows]."
            )


def require_outside_plates(name: str) -> None:
    """Raise in a plate, where the prior of a process would count for every row."""
    if around := [handler.name for handler in enclosing(plate)]:
        raise ValueError(
            f"the process '{name}' is made inside the plate(s) {around}, where its "
            "prior would count once for every row: call sparse_gp before the plate "
            "(for several processes, with num_outputs=)."
        )


def require_outside_scan(name: str) -> None:
    """Raise in the body of ``scan``, which marks each of its sites with the step."""
    marks = [handler.config_fn for handler in enclosing(infer_config)]
    if any(getattr(mark, "__module__", "") == scan.__module__ for mark in marks):
        raise ValueError(
            f"site '{name}' is made in the body of numpyro.contrib.control_flow.scan, "
            "which takes ordinary sites only. Make processes before the scan, with "
            "num_outputs= for several, let the body return its values for each step, "
            "and observe after it: gp.observe('y', likelihood, f(x) + values, obs=y)."
        )


def require_batch_plate(
    model_trace: dict[str, dict], size: int, rows: int, others: Set[int]
) -> None:
    """Raise unless plates of the model scale a batch of ``rows`` up to ``size`` data.

    Without one, a batch would count as all the data; a site outside of it, as ``rows``,
    unless ``numpyro.handlers.scale`` is around it with size / rows.

    Args:
        model_trace: A trace of the model with a batch.
        size: Number of all rows.
        rows: Number of those in a batch.
        others: Lengths of arrays that are passed whole.
    """
    plates = _sizes_of_plates(model_trace)
    fitting = [(size, rows), (size, None if size == rows else rows)]
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
    for name, site in model_trace.items():
        is_data = site["type"] == "sample" and site["is_observed"]
        is_batch = rows < size and rows not in others
        if not (is_data and is_batch) or _stands_for(site, plates, size / rows):
            continue
        if site["fn"].batch_shape[-1:] == (rows,):
            raise ValueError(
                f"site '{name}' has {rows} rows of a batch, which would not count as "
                f"all of {size}: put it in a plate that says so, "
                f'numpyro.plate("data", {size}, subsample_size=len(x)), as the other '
                "sites. (If they are no part of a batch, choose another batch_size.)"
            )


def outside_of_plates(
    model_trace: dict[str, dict],
) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Data as long as the rows of a subsampled plate, in no such plate and not scaled.

    Yields:
        Name of the site, and name, size N and number of rows B of the plate.
    """
    plates = _sizes_of_plates(model_trace)
    for within, (size, rows) in subsampled(model_trace).items():
        for name, site in model_trace.items():
            is_data = site["type"] == "sample" and site["is_observed"]
            if not is_data or _stands_for(site, plates, size / rows):
                continue
            if site["fn"].batch_shape[-1:] == (rows,):
                yield name, within, (size, rows)


def _sizes_of_plates(sites: dict[str, dict]) -> dict[str, tuple]:
    """Size and ``subsample_size`` of every plate, by name."""
    return {n: tuple(s["args"]) for n, s in sites.items() if s["type"] == "plate"}


def _stands_for(site: dict, plates: dict[str, tuple], times: float) -> bool:
    """Whether a site is in a subsampled plate, or counts so many times without one."""
    frames = [plates.get(frame.name) for frame in site["cond_indep_stack"]]
    if any(frame and frame[1] not in (None, frame[0]) for frame in frames):
        return True
    scale = site["scale"]
    is_known = scale is not None and is_concrete(scale)
    return is_known and bool(np.allclose(np.asarray(scale), times))


def require_all_rows(sites: dict[str, dict], lengths: Set[int]) -> None:
    """Raise if a plate takes new rows in every run, not as many as an argument has."""
    for name, (size, subsample_size) in _sizes_of_plates(sites).items():
        if subsample_size not in (None, size, *lengths):
            raise ValueError(
                f"plate '{name}' takes {subsample_size} of {size} rows, different "
                "ones in every run, and a prediction is at all rows: make the "
                "plate as long as x, without subsample_size. (Its size may be an "
                "argument of the model.)"
            )
