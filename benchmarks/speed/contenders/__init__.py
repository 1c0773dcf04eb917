"""Who takes part: for each kind of case a function (case, data, dtype) -> block.

A block takes ``case.steps`` steps. It returns its seconds, or None, and is timed then.
"""
