"""Predictions at more inputs than fit into memory, a batch of rows at a time."""

import mmap
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from svgp_ppl.checks import require_count
from svgp_ppl.prediction.predict import predict
from svgp_ppl.prediction.prediction import Prediction
from svgp_ppl.rows import pages_of, with_rows

__all__ = ["predict_batches"]


def predict_batches(
    model: Callable,
    posterior,
    *args,
    batch_size: int = 100_000,
    params: Mapping[str, Any] | None = None,
    key=None,
    num_draws: int = 100,
    chunk_size: int | None = None,
    **kwargs,
) -> Iterator[tuple[slice, dict[str, Prediction]]]:
    """Predict at any number of inputs in order, ``batch_size`` rows at a time.

    Inputs may be memory-mapped (``np.load(..., mmap_mode="r")``), in which case they
    are read batch by batch, and so may the arrays that results are written to: only one
    batch is in memory. All batches but the last share their compiled programs.

    Args:
        model: The model that was fitted or sampled.
        posterior: As for ``gp.predict``.
        *args: Arguments of the model at the new inputs, without y. Arrays as long as
            the first one are cut into batches.
        batch_size: Number of rows of a batch; the last one may have fewer.
        params: As for ``gp.predict``.
        key: As for ``gp.predict``; batch number i uses ``fold_in(key, i)``.
        num_draws: As for ``gp.predict``.
        chunk_size: As for ``gp.predict``.
        **kwargs: Keyword arguments of the model, cut like the others.

    Returns:
        An iterator over batches: their rows, and what ``gp.predict`` returns there.

    Raises:
        ValueError: There is no array to cut, or there is a table as long;
            ``batch_size`` is not a positive integer; or ``gp.predict`` refuses the
            arguments.

    Example:
        >>> mean = np.lib.format.open_memmap("mean.npy", "w+", np.float32, (len(x),))
        >>> for rows, at in gp.predict_batches(model, fitted, x, batch_size=100):
        ...     mean[rows] = at["y"].mean
    """
    size = require_count(batch_size, "batch_size")
    leaves, structure = jax.tree.flatten((args, kwargs))
    cut = with_rows((args, kwargs))
    num_rows = len(next(iter(cut.values())))
    options = {"params": params, "num_draws": num_draws, "chunk_size": chunk_size}

    def batches() -> Iterator[tuple[slice, dict[str, Prediction]]]:
        for number, start in enumerate(range(0, num_rows, size)):
            rows = slice(start, min(start + size, num_rows))
            some = [cut[i][rows] if i in cut else x for i, x in enumerate(leaves)]
            args, kwargs = structure.unflatten(some)
            one = None if key is None else jax.random.fold_in(key, number)
            yield rows, predict(model, posterior, *args, key=one, **options, **kwargs)
            for pages in filter(None, map(pages_of, cut.values())):
                pages.madvise(mmap.MADV_DONTNEED)

    return batches()
