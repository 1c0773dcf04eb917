"""Time and memory, measured beside the limit and beside other libraries."""
