"""What is wrong with draws, whichever sampler made them: one function per fault."""

import warnings
from collections import defaultdict

import numpy as np

from svgp_ppl.diagnostics.advice import (
    Finding,
    any_of,
    better_moves,
    better_start,
    longer_warmup,
    smaller_steps,
    stable_arithmetic,
)
from svgp_ppl.diagnostics.criteria import known_terms, loo
from svgp_ppl.diagnostics.mixing import ess, rhat
from svgp_ppl.diagnostics.posterior import SAMPLED_AXES, group, site_of
from svgp_ppl.diagnostics.run import Run

__all__ = [
    "copied_chains",
    "disagreeing_chains",
    "doubtful_weights",
    "effective_sizes",
    "few_effective_draws",
    "heavy_weights",
    "non_finite_draws",
    "stuck_chains",
    "too_few_draws",
]

# Vehtari et al. (2021).
_LARGEST_RHAT = 1.01
_SMALLEST_ESS_OF_A_CHAIN = 100
_RHAT_OF_SEPARATE_CHAINS = 1.2  # beyond, chains may be in different modes
_FEWEST_DRAWS = 4  # ArviZ: each half of a chain needs two
_MOST_DRAWS_OF_A_CHAIN = 10_000  # beyond, the sampler should be changed
_DISTINCT = 10  # short chains of an indicator may be equal by chance


def non_finite_draws(run: Run) -> list[Finding]:
    """NaN or infinity in any draw."""
    bad = ~np.isfinite(run.draws)
    if not bad.any():
        return []
    chain, draw, element = np.argwhere(bad)[0].tolist()
    kinds = [
        name
        for name, found in {"NaN": np.isnan, "infinite": np.isinf}.items()
        if found(run.draws).any()
    ]
    return [
        Finding(
            f"Not all draws are finite: {int(bad.any(axis=2).sum())} of "
            f"{bad[..., 0].size} have values that are {' or '.join(kinds)}, in "
            f"{int(bad.any(axis=(0, 1)).sum())} of {len(run.names)} parameters and "
            f"chains {np.flatnonzero(bad.any(axis=(1, 2))).tolist()}; the first is "
            f"{run.names[element]} at draw {draw} of chain {chain}.",
            any_of(
                stable_arithmetic(run),
                "for a deterministic site, its formula at these draws",
            ),
        )
    ]


def too_few_draws(run: Run) -> list[Finding]:
    """So few that nothing can be estimated."""
    if run.num_draws >= _FEWEST_DRAWS:
        return []
    return [
        Finding(
            f"{run.num_draws} draws per chain are too few to judge: R-hat and ESS are "
            f"undefined below {_FEWEST_DRAWS}, and mean something from a few hundred.",
            "num_samples=1000.",
        )
    ]


def doubtful_weights(run: Run) -> list[Finding]:
    """Draws by importance sampling that depend on a few proposals."""
    shape = run.attributes.get("pareto_k")
    if shape is None:
        return []
    limit = run.attributes["good_k"]
    size = run.attributes["effective_sample_size"]
    if shape <= limit and size >= _SMALLEST_ESS_OF_A_CHAIN:
        return []
    worth = f"{run.attributes['num_proposals']} proposals are worth {size:.0f} draws"
    what, more = f"The importance weights are few draws: {worth}.", "more proposals"
    if not shape <= limit:
        what = (
            f"The importance weights cannot be trusted: their Pareto shape is "
            f"{shape:.2f} (at most {limit:.2f} is wanted), and {worth}."
        )
        more += ", where the shape is near"
    return [Finding(what, any_of("gp.sample(init=...)", more))]


def stuck_chains(run: Run) -> list[Finding]:
    """Chains that do not move, in everything or in some parameters."""
    if not run.is_stuck:
        return []
    start, length = run.still
    for_good = run.stuck & (length == run.num_draws)
    free = run.finite & ~run.constant
    never_moved = for_good[:, free].all(axis=1)  # true of all chains if nothing is free
    findings = []
    warmup, steps = longer_warmup(run), smaller_steps(run)
    options = any_of("another key", better_start(run), warmup, steps)
    if never_moved.any():
        what = f"Chains {np.flatnonzero(never_moved).tolist()} never moved."
        findings.append(Finding(what, options))
    partly = run.stuck & ~never_moved[:, None]
    if partly.any():
        chain, element = np.unravel_index(np.argmax(partly * length), partly.shape)
        end = start[chain, element] + length[chain, element] - 1
        what = (
            f"Chains {np.flatnonzero(partly.any(axis=1)).tolist()} stood still in "
            f"{int(partly.any(axis=0).sum())} of {int(free.sum())} parameters, longest "
            f"{run.names[element]} of chain {chain}: draws {start[chain, element]} to "
            f"{end} of {run.num_draws} are the same value, which no other draw has."
        )
        findings.append(Finding(what, options))
    return findings


def copied_chains(run: Run) -> list[Finding]:
    """Chains that are the same draw for draw."""
    chains_of = defaultdict(list)
    for chain, values in enumerate(run.draws[..., run.moving]):
        if any(len(np.unique(x)) >= _DISTINCT for x in values.T):
            chains_of[values.tobytes()].append(chain)
    copies = [chains for chains in chains_of.values() if len(chains) > 1]
    if not copies:
        return []
    return [
        Finding(
            f"Chains {', '.join(map(str, copies))} are the same draw for draw: they "
            "count as one, whatever R-hat and ESS say.",
            "another key for each chain.",
        )
    ]


def disagreeing_chains(run: Run) -> list[Finding]:
    """R-hat above 1.01, or undefined; or a single chain."""
    if run.num_chains < 2:
        return [
            Finding(
                "There is one chain, so nothing says whether it has found all of the "
                "posterior.",
                "num_chains=4.",
            )
        ]
    values = _of_moving(rhat, run)
    bad = {n: v for n, v in values.items() if not v <= _LARGEST_RHAT}
    if not bad:
        return []
    name = max(bad, key=lambda n: np.nan_to_num(bad[n], nan=np.inf))
    options = any_of(
        f"more draws (num_samples={2 * run.num_draws})",
        longer_warmup(run),
        better_start(run),
    )
    if not bad[name] <= _RHAT_OF_SEPARATE_CHAINS:
        options = any_of(
            "a look at the chains (gp.plots.psrf, arviz.plot_trace), which may sit in "
            "different modes, as under sign or label symmetries: a prior that breaks "
            "the symmetry helps, more draws do not",
            longer_warmup(run),
            better_start(run),
        )
    worst = "undefined" if np.isnan(bad[name]) else f"{bad[name]:.3f}"
    return [
        Finding(
            f"The chains disagree: R-hat above {_LARGEST_RHAT} in {len(bad)} of "
            f"{len(values)} parameters, worst {worst} ({name}).",
            options,
        )
    ]


def effective_sizes(run: Run) -> dict[str, float]:
    """Bulk ESS of all moving elements."""
    return _of_moving(ess, run)


def few_effective_draws(run: Run, sizes: dict[str, float]) -> list[Finding]:
    """Fewer than 100 effective draws per chain, or an undefined number."""
    wanted = _SMALLEST_ESS_OF_A_CHAIN * run.num_chains
    bad = {name: size for name, size in sizes.items() if not size >= wanted}
    if not bad:
        return []
    name = min(bad, key=lambda n: np.nan_to_num(bad[n], nan=0.0))
    fewest = max(np.nan_to_num(bad[name], nan=0.0), 1.0)
    enough = int(np.ceil(wanted / fewest * run.num_draws))
    moves = any_of(better_moves(run))
    options = f"num_samples={enough}; or moves that are worth more each: {moves}"
    if enough > _MOST_DRAWS_OF_A_CHAIN:
        options = f"moves that are worth more each, before more draws: {moves}"
    size = "undefined" if np.isnan(bad[name]) else f"{bad[name]:.0f}"
    return [
        Finding(
            f"Fewer than {wanted} effective draws in {len(bad)} of {len(sizes)} "
            f"parameters, fewest {size} ({name}).",
            options,
        )
    ]


def heavy_weights(run: Run) -> list[Finding]:
    """Data whose LOO weights have heavy tails, or no weights at all."""
    if isinstance(run.posterior, dict):
        return []
    sites = group(run.posterior, "log_likelihood")
    return [finding for site in sites for finding in _weights(run, site)]


def _weights(run: Run, site: str) -> list[Finding]:
    """Findings for one observed site."""
    found = loo(run.posterior, site)
    labels = _labels(run, site)
    undefined = np.flatnonzero(np.isnan(found.pointwise))
    if len(undefined):
        return [
            Finding(
                f"The log likelihood of site '{site}' is NaN or infinite at "
                f"{_some(labels[undefined])} in some draws, so LOO is undefined.",
                any_of(
                    "a likelihood that gives every datum a positive density",
                    stable_arithmetic(run),
                ),
            )
        ]
    bad = np.flatnonzero(~(found.pareto_k <= found.good_k))
    if not len(bad):
        return []
    return [
        Finding(
            f"LOO of site '{site}' cannot be trusted at {_some(labels[bad])}, "
            f"where the Pareto shape is above {found.good_k:.2g}, the limit for "
            f"{run.num_chains * run.num_draws} draws.",
            "a held-out set for these; they may also be outliers that the likelihood "
            "does not expect.",
        )
    ]


def _of_moving(statistic, run: Run) -> dict[str, float]:
    """R-hat or ESS of every element that moves."""
    if not run.moving.any():
        return {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # more chains than draws
        values = statistic({"x": run.draws[..., run.moving]})["x"]
    names = np.asarray(run.names)[run.moving]
    return dict(zip(names.tolist(), values.tolist(), strict=True))


def _labels(run: Run, site: str) -> np.ndarray:
    """What the data are called: numbers of rows, of which a mask leaves some out."""
    variables = run.posterior["log_likelihood"].data_vars.values()
    (terms,) = (terms for terms in variables if site_of(terms) == site)
    axes = [axis for axis in terms.dims if axis not in SAMPLED_AXES]
    if len(axes) == 1 and axes[0] in terms.coords:
        return terms.coords[axes[0]].values
    shape = tuple(terms.sizes[axis] for axis in axes)
    return known_terms(run.posterior, site, shape)


def _some(data: np.ndarray) -> str:
    more = " ..." if len(data) > 5 else ""
    return f"{len(data)} data ([{', '.join(map(str, data[:5]))}]{more})"
