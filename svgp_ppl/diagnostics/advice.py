"""What to try, in words that take account of what was done already."""

from typing import NamedTuple

from svgp_ppl.diagnostics.run import Run

__all__ = [
    "Finding",
    "any_of",
    "better_moves",
    "better_start",
    "in_nats",
    "longer_warmup",
    "smaller_steps",
    "stable_arithmetic",
]

# A dense metric needs a window of the warm-up with more draws than dimensions: of 1000
# steps the last one has 500.
_MOST_DENSE_DIMENSIONS = 200


class Finding(NamedTuple):
    """Something that is wrong.

    Attributes:
        what: What was measured, and what was expected.
        try_this: What usually helps.
    """

    what: str
    try_this: str


def any_of(*options: str | list[str]) -> str:
    """A sentence of the options that are not empty."""
    parts: list[str] = []
    for option in options:
        parts += [option] if isinstance(option, str) else option
    return "; ".join(parts) + "."


def in_nats(value: float) -> str:
    """A difference of bounds, with its unit: 3.68 nats, 1041 nats."""
    return f"{value:.0f} nats" if abs(value) >= 100 else f"{value:.3g} nats"


def better_start(run: Run) -> list[str]:
    """A fit to start from: one, if there was none, or one of a wider family."""
    if run.attributes.get("num_blocks", 1) > 1:
        together = "where the data see processes or outputs together"
        return [f"init= a fit with gp.AutoCoupled(model), {together}"]
    if run.attributes.get("init") == "fit":
        return []
    if run.sampler is None:
        return ["a start from an approximate posterior"]
    return ["init= a Gaussian fit"]


def longer_warmup(run: Run) -> str:
    """Twice the warm-up."""
    if "num_warmup" not in run.attributes:
        return "a longer warm-up"
    number = int(run.attributes["num_warmup"])
    return f"a longer warm-up (num_warmup={2 * number if number else 1000})"


def smaller_steps(run: Run) -> str:
    """The setting of the sampler that makes its steps smaller."""
    match run.settings:
        case {"target_acceptance_rate": now}:
            higher = [rate for rate in (0.8, 0.95, 0.99) if rate > now]
            if higher:
                setting = f"target_acceptance_rate={higher[0]}"
                return f"smaller steps, {run.sampler}({setting})"
            return "another parameterisation (the steps are as small as they can be)"
        case {"step_size_bounds": [low, high]}:
            setting = f"step_size_bounds=({low / 10:g}, {high:g})"
            return f"smaller steps, {run.sampler}({setting})"
        case {"desired_energy_variance": now}:
            setting = f"desired_energy_variance={now / 10:g}"
            return f"smaller steps, {run.sampler}({setting})"
        case {"step_size": now}:
            return f"smaller steps, {run.sampler}(step_size={now / 2:g})"
    return "smaller steps, such as those of a higher target acceptance rate"


def better_moves(run: Run) -> list[str]:
    """Starts and samplers whose draws are each worth more."""
    options = better_start(run)
    match run.settings:
        case {"num_steps_a_draw": now}:
            return [*options, f"{run.sampler}(num_steps_a_draw={2 * now})"]
        case {"metric": "diagonal"} if len(run.names) <= _MOST_DENSE_DIMENSIONS:
            return [*options, f'{run.sampler}(metric="dense")']
    if run.sampler is None:
        return [*options, "another sampler or parameterisation"]
    if run.sampler != "NUTS":
        return [*options, "NUTS()"]
    return [*options, 'another sampler (see the page "Choosing a sampler")']


def stable_arithmetic(run: Run) -> list[str]:
    """Double precision if it was single, and priors away from the extremes."""
    priors = "priors that keep lengthscales and variances away from 0 and infinity"
    return [priors, "float64"] if run.is_single else [priors]
