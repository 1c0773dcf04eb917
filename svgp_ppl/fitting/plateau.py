"""When a fit stops early: the rule of ``patience`` and ``tolerance``."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Plateau"]


class Plateau(NamedTuple):
    """A bound that hardly rises.

    Attributes:
        patience: Number of steps whose mean is compared with that of as many before;
            None if a fit never stops early.
        tolerance: The least gain, in nats.
        first: Step from which losses count: those before are of a fit that this one
            continues, perhaps of other data, or of parameters still frozen.
    """

    patience: int | None
    tolerance: float
    first: int = 0

    def is_reached(self, history: Sequence[np.ndarray]) -> bool:
        """Whether the mean of the last steps is hardly below that of those before."""
        if self.patience is None:
            return False
        losses = np.concatenate(history)[self.first :]
        if len(losses) < 2 * self.patience:
            return False
        before = np.mean(losses[-2 * self.patience : -self.patience])
        return bool(before - np.mean(losses[-self.patience :]) <= self.tolerance)
