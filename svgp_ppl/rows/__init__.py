"""Rows of data: arrays, files, several devices, and batches of rows."""

from svgp_ppl.rows.arrays import (
    as_it_is_now,
    is_array,
    is_table,
    named_rows,
    pages_of,
    with_rows,
)
from svgp_ppl.rows.arrow import ArrowRows, arrow_rows
from svgp_ppl.rows.batches import filled_batches, in_batches
from svgp_ppl.rows.sharding import shard

__all__ = [
    "ArrowRows",
    "arrow_rows",
    "as_it_is_now",
    "filled_batches",
    "in_batches",
    "is_array",
    "is_table",
    "named_rows",
    "pages_of",
    "shard",
    "with_rows",
]
