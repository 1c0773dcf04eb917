"""Whether a bound still rises, from the losses alone."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

__all__ = ["FEWEST_STEPS", "Trend", "last_bound", "relevant", "trend_of"]

FEWEST_STEPS = 10  # a line through fewer has no noise to speak of
_WINDOW = 0.1  # share of the steps
_SHORTEST_WINDOW = 5
_STANDARD_ERRORS = 3.0
_SLOWEST_DECAY = 0.75  # from window to window, which counts at most three more
_LARGEST_AUTOCORRELATION = 0.95
_NORMAL_MAD = 1.4826  # standard deviations in a median absolute deviation

# What a better bound must be worth before it matters, in nats and as a share of the
# bound.
_NATS, _SHARE = 1.0, 1e-3


class Trend(NamedTuple):
    """How the bound moved at the end.

    Attributes:
        steps: Number of steps in a window, the last tenth.
        rise: Rise in the last window, by a straight line, nats.
        error: Standard error of ``rise``.
        further: What more steps would add, nats, if the rise goes on decaying
            as it did from the window before.
        lost: The mean bound of the best window less that of the last, nats, if it is
            more than noise; 0 otherwise.
        least: The smallest rise in the last window that is more than noise, nats.
    """

    steps: int
    rise: float
    error: float
    further: float
    lost: float
    least: float


def relevant(bound: float) -> float:
    """Nats that count as a difference between bounds of this size."""
    return max(_NATS, _SHARE * abs(bound))


def last_bound(losses: Float[np.ndarray, " steps"]) -> float:
    """The mean bound of the last tenth, or the last value if few; NaN without any."""
    if len(losses) < FEWEST_STEPS:
        return -float(losses[-1]) if len(losses) else float("nan")
    return -float(np.mean(losses[-_window(losses) :]))


def trend_of(losses: Float[np.ndarray, " steps"]) -> Trend:
    """The slope of the last tenth of a fit against its noise.

    The bound is regressed on the step: b̂ with standard error s √(12/n³) for n steps
    with independent errors, and √((1 + ρ)/(1 − ρ)) times that where they follow an
    autoregression with coefficient ρ (Zwiers & von Storch 1995). s is robust, since
    single minibatches may be far off. With the rises Δ₁ and Δ₂ of the last two windows,
    r = Δ₂/Δ₁, the rises to come add up to Δ₂ r/(1 − r).

    Args:
        losses: Negative bound at every step, at least ``FEWEST_STEPS``.
    """
    bound = -np.asarray(losses, np.float64)
    n = _window(losses)
    rise, error = _line(bound[-n:])
    before, _ = _line(bound[-2 * n : -n])
    decay = rise / before if before > rise > 0 else _SLOWEST_DECAY
    decay = float(np.clip(decay, 0.0, _SLOWEST_DECAY))
    least = _STANDARD_ERRORS * error
    is_noise = abs(rise) < least
    further = 0.0 if is_noise else max(rise, 0.0) * decay / (1 - decay)
    return Trend(n, rise, error, further, _lost(bound, n), least)


def _window(losses: Float[np.ndarray, " steps"]) -> int:
    return max(_SHORTEST_WINDOW, round(_WINDOW * len(losses)))


def _line(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """The rise of the straight line through values, and its standard error."""
    n = len(values)
    time = np.arange(n) - (n - 1) / 2
    slope = time @ values / (time @ time)
    errors = values - np.mean(values) - slope * time
    scale = _NORMAL_MAD * np.median(np.abs(errors - np.median(errors)))
    total = errors @ errors
    rho = errors[1:] @ errors[:-1] / total if total > 0 else 0.0
    rho = np.clip(rho, 0.0, _LARGEST_AUTOCORRELATION)
    error = scale * np.sqrt(12 / n**3 * (1 + rho) / (1 - rho))
    return float(slope * (n - 1)), float(error * (n - 1))


def _lost(bound: Float[np.ndarray, " steps"], n: int) -> float:
    """How far the last window is below the best one."""
    windows = bound[len(bound) % n :].reshape(-1, n)
    middle = np.median(windows, axis=1)
    spread = np.median(np.abs(windows - middle[:, None]), axis=1)
    best = int(np.argmax(middle))
    noise = _NORMAL_MAD * np.hypot(spread[best], spread[-1]) / np.sqrt(n)
    lost = float(middle[best] - middle[-1])
    return lost if lost > _STANDARD_ERRORS * noise else 0.0
