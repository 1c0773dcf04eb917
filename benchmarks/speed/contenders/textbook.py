"""The textbook: a triangular solve and plain autodiff."""

from functools import partial

from benchmarks.speed import by_hand
from benchmarks.speed.contenders import hand

__all__ = ["CASES"]

CASES = {
    "S1": partial(hand.fitting, by_hand.textbook),
    "S2": partial(hand.fitting, by_hand.textbook),
    "S4b": partial(hand.density, by_hand.textbook),
    "S4p": partial(hand.density, by_hand.textbook),
}
