"""What is wrong according to the statistics of a sampler and its settings."""

import numpy as np

from svgp_ppl.diagnostics.advice import (
    Finding,
    any_of,
    better_start,
    longer_warmup,
    smaller_steps,
    stable_arithmetic,
)
from svgp_ppl.diagnostics.mixing import bfmi
from svgp_ppl.diagnostics.run import Run

__all__ = [
    "biased_draws",
    "cut_off_trajectories",
    "divergences",
    "energy_errors",
    "refused_proposals",
    "slow_energy",
    "undefined_statistics",
]

_SMALLEST_BFMI = 0.3  # Betancourt (2016)
_LEAST_ACCEPTANCE = 0.1  # for a sampler without a target; with one, half of it
_MOST_CUT_OFF = 0.01

# The depth that others call a full tree by default (Stan, PyMC, NumPyro); also used if
# the limit is unknown and trees of 31 steps or more are all alike. Smaller ones are
# often full because they are just long enough.
_USUAL_DOUBLINGS = 10
_SUSPICIOUS_DOUBLINGS = 5
_SUSPICIOUS_SHARE = 0.9

# Robnik et al. (2023) aim at 5e-4. Healthy chains were seen at up to 2.5 times the aim.
_USUAL_ENERGY_VARIANCE = 5e-4
_MOST_ENERGY_VARIANCE = 10.0

# Others, such as the eigenvalues that PyMC reports, are not defined at every draw.
_ALWAYS_FINITE = (
    "lp",
    "energy",
    "acceptance_rate",
    "acceptance_rate_rest",
    "energy_variance",
    "squared_gradient",
    "step_size",
)


def undefined_statistics(run: Run) -> list[Finding]:
    """Statistics that are NaN or infinite, except at divergent draws."""
    excused = run.stats.get("diverging", False)
    bad = {
        name: ~np.isfinite(run.stats[name]) & np.logical_not(excused)
        for name in _ALWAYS_FINITE
        if name in run.stats
    }
    bad = {name: where for name, where in bad.items() if where.any()}
    if not bad:
        return []
    where = np.any(list(bad.values()), axis=0)
    return [
        Finding(
            f"The sampler's {', '.join(bad)} should be finite, and is NaN or infinite "
            f"in {int(where.sum())} of {where.size} draws "
            f"({where.sum(axis=1).tolist()} by chain): the log density or its gradient "
            "fails there.",
            any_of(stable_arithmetic(run), smaller_steps(run)),
        )
    ]


def divergences(run: Run) -> list[Finding]:
    """Trajectories that lost their energy."""
    if "diverging" not in run.stats or not run.stats["diverging"].any():
        return []
    by_chain = run.stats["diverging"].sum(axis=1)
    return [
        Finding(
            f"{by_chain.sum()} of {run.stats['diverging'].size} draws diverged "
            f"({by_chain.tolist()} by chain): steps too long for a narrow part of the "
            "posterior, whose neighbourhood is then missed.",
            any_of(smaller_steps(run), stable_arithmetic(run)),
        )
    ]


def refused_proposals(run: Run) -> list[Finding]:
    """Metropolis steps that are mostly rejected."""
    target = run.settings.get("target_acceptance_rate")
    alternates = "acceptance_rate_rest" in run.stats
    findings = []
    for name, of, bounds, aim in (
        ("acceptance_rate", " for v" if alternates else "", "step_size_bounds", target),
        ("acceptance_rate_rest", " for the other sites", "scale_bounds", None),
    ):
        if name not in run.stats:
            continue
        means = _means(run.stats[name])
        least = _LEAST_ACCEPTANCE if aim is None else aim / 2
        if not np.any(means < least):
            continue
        expected = f"above {_LEAST_ACCEPTANCE}" if aim is None else f"about {aim:g}"
        steps = smaller_steps(run)
        if bounds in run.settings:
            low, high = run.settings[bounds]
            steps = f"{run.sampler}({bounds}=({low / 10:g}, {high:g}))"
        findings.append(
            Finding(
                f"Most proposals{of} are refused: mean acceptance "
                f"{np.round(means, 2).tolist()} by chain, expected {expected}.",
                any_of(longer_warmup(run), steps),
            )
        )
    return findings


def slow_energy(run: Run) -> list[Finding]:
    """BFMI below 0.3, or undefined because the energy never changes."""
    if "energy" not in run.stats:
        return []
    finite = np.isfinite(run.stats["energy"]).all(axis=1)  # the others are reported
    values = bfmi(run.posterior)
    still = np.flatnonzero(finite & np.isnan(values)).tolist()
    findings = []
    if still:
        findings.append(
            Finding(
                f"BFMI is undefined: the energy of chains {still} never changes.",
                any_of("another key", longer_warmup(run), smaller_steps(run)),
            )
        )
    if np.any(values < _SMALLEST_BFMI):
        findings.append(
            Finding(
                f"The energy mixes slowly: BFMI {np.round(values, 2).tolist()} by "
                f"chain, expected above {_SMALLEST_BFMI}.",
                "priors with lighter tails for the hyperparameters: some direction has "
                "scales from very small to very large, a funnel.",
            )
        )
    return findings


def cut_off_trajectories(run: Run) -> list[Finding]:
    """Trajectories that ended because they reached the largest length allowed."""
    cut_off = _cut_off(run)
    if cut_off.mean() < _MOST_CUT_OFF:
        return []
    limit = run.settings.get("max_num_doublings")
    steps = "the most that is allowed"
    if "n_steps" in run.stats:
        steps = f"{int(run.stats['n_steps'][cut_off].max())} steps"
    options = better_start(run)
    if run.is_single:
        options.append(
            "float64 (where counts are large, or noise is small, rounding errors keep "
            "steps short)"
        )
    if run.settings.get("metric") == "diagonal":
        options.append(f'{run.sampler}(metric="dense")')
    options.append("priors that bound the lengthscales from above")
    if limit is not None:
        options.append(f"{run.sampler}(max_num_doublings={limit + 2}) as a last resort")
    elif "max_num_steps" in run.settings:
        more = 4 * run.settings["max_num_steps"]
        options.append(f"{run.sampler}(max_num_steps={more}) as a last resort")
    else:
        options.append("deeper trees as a last resort")
    return [
        Finding(
            f"{100 * cut_off.mean():.0f} % of the trajectories were cut off at "
            f"{steps}, expected fewer than {100 * _MOST_CUT_OFF:.0f} %: each draw is "
            "expensive and does not get far.",
            any_of(options),
        )
    ]


def energy_errors(run: Run) -> list[Finding]:
    """Steps without a Metropolis correction that lose too much energy."""
    if "energy_variance" not in run.stats:
        return []
    aim = run.settings.get("desired_energy_variance", _USUAL_ENERGY_VARIANCE)
    means = _means(run.stats["energy_variance"])
    if not np.any(means > _MOST_ENERGY_VARIANCE * aim):
        return []
    values = ", ".join(f"{mean:.2g}" for mean in means)
    return [
        Finding(
            f"The steps are too long, which biases the draws: energy variance "
            f"[{values}] by chain, expected about {aim:g}.",
            any_of(longer_warmup(run), smaller_steps(run), "NUTS() to compare with"),
        )
    ]


def biased_draws(run: Run) -> list[Finding]:
    """Draws that stay biased, however many there are."""
    if "bias" not in run.attributes:
        return []
    steps, half = "", "half the step_size and twice the num_steps_a_draw"
    if "step_size" in run.stats:
        steps = f", with steps of {np.mean(run.stats['step_size']):.3g}"
    match run.settings:
        case {"step_size": size, "num_steps_a_draw": number}:
            half = (
                f"{run.sampler}(step_size={size / 2:g}, num_steps_a_draw={2 * number})"
            )
    return [
        Finding(
            f"The draws are biased by {run.attributes['bias']}{steps}: no number of "
            "draws takes that away.",
            f"{half}; where means and standard deviations stay, the bias is small.",
        )
    ]


def _cut_off(run: Run) -> np.ndarray:
    """Whether a trajectory was cut off, [chains, draws]."""
    stats, settings = run.stats, run.settings
    never = np.zeros(run.draws.shape[:2], bool)
    if "reached_max_treedepth" in stats:  # PyMC
        return stats["reached_max_treedepth"].astype(bool)
    if "max_num_steps" in settings and "max_steps" in stats:  # ChEES
        return stats["max_steps"] >= settings["max_num_steps"]
    if "tree_depth" not in stats:
        return never
    depth = stats["tree_depth"]
    # A tree that was cut off is full: 2^depth − 1 steps.
    full = stats.get("n_steps", np.inf) >= 2.0**depth - 1
    deepest = depth == depth.max()
    if "max_num_doublings" in settings:
        return full & (depth >= settings["max_num_doublings"])
    if depth.max() >= _USUAL_DOUBLINGS:
        return full & deepest
    is_suspicious = (
        depth.max() >= _SUSPICIOUS_DOUBLINGS
        and deepest.mean() > _SUSPICIOUS_SHARE
        and full[deepest].all()
    )
    return deepest if is_suspicious else never


def _means(values: np.ndarray) -> np.ndarray:
    """Mean of every chain, over finite values."""
    kept = np.isfinite(values)
    number = kept.sum(axis=1)
    sums = np.where(kept, values, 0.0).sum(axis=1)
    return np.where(number > 0, sums / np.maximum(number, 1), np.nan)
