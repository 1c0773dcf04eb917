"""The fastest form by hand that keeps the accuracy."""

from functools import partial

from benchmarks.speed import by_hand
from benchmarks.speed.contenders import hand

__all__ = ["CASES"]

CASES = {
    "S1": partial(hand.fitting, by_hand.limit),
    "S2": partial(hand.fitting, by_hand.limit),
    "S4b": partial(hand.density, by_hand.limit),
    "S4p": partial(hand.density, by_hand.limit),
}
