"""A pseudo-random order of N rows, one position at a time, without a list of them.

A Feistel network permutes [0, 4^b); positions that fall on N or beyond walk along their
cycle until they are inside, which leaves a permutation of [0, N) (Black & Rogaway 2002,
"Ciphers with arbitrary finite domains", sections 3 and 4). The domain is at most four
times too large, so a walk takes four steps at most on average. The rounds mix with the
finaliser of SplitMix64 (Steele, Lea & Flood 2014).
"""

import numpy as np

__all__ = ["permuted"]

# Four rounds are enough for a large domain and ideal rounds (Luby & Rackoff 1988);
# small domains want more.
_NUM_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permuted(positions: np.ndarray, size: int, key: tuple[int, int]) -> np.ndarray:
    """Rows at these positions of a pseudo-random order of ``size`` rows.

    Args:
        positions: Integers in [0, size), any shape.
        size: Number of rows N.
        key: Two integers, such as a seed and the number of the epoch. Each gives an
            order of its own.

    Returns:
        Integers in [0, size), of the shape of ``positions``; distinct where those are.
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    start = _mix(_mix(np.full(1, key[0], np.uint64)) ^ np.uint64(key[1]))
    round_keys = _mix(start + _GOLDEN * np.arange(1, _NUM_ROUNDS + 1, dtype=np.uint64))

    def shuffle(value):
        left, right = value >> half, value & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        return (left << half) | right

    rows = shuffle(np.asarray(positions).astype(np.uint64).ravel())
    while np.any(outside := rows >= size):
        rows[outside] = shuffle(rows[outside])
    return rows.astype(np.int64).reshape(np.shape(positions))


def _mix(value: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64, on arrays (whose overflow is silent, as wanted)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
