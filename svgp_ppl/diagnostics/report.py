"""What is wrong with a run, in words, and what to try."""

from typing import Any, NamedTuple

import numpy as np

from svgp_ppl.diagnostics.criteria import loo
from svgp_ppl.diagnostics.mixing import bfmi, ess, rhat
from svgp_ppl.diagnostics.posterior import arrays_of, group, label

__all__ = ["Finding", "Report", "report"]

# Vehtari et al. (2021); Betancourt (2016); Vehtari et al. (2024) for Pareto k.
_LARGEST_RHAT = 1.01
_SMALLEST_ESS_OF_A_CHAIN = 100
_MOST_DRAWS_OF_A_CHAIN = 10_000  # beyond, the sampler is to be changed
_SMALLEST_BFMI = 0.3
_LARGEST_PARETO_K = 0.7


class Finding(NamedTuple):
    """Something that is wrong.

    Attributes:
        what: What was measured, and what was expected.
        try_this: What usually helps.
    """

    what: str
    try_this: str


class Report(NamedTuple):
    """What :func:`report` returns; ``print`` it.

    Attributes:
        summary: One line on the run.
        findings: What is wrong, the worst first; empty for a healthy run.
    """

    summary: str
    findings: list[Finding]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        """The summary and a paragraph a finding."""
        if self.is_healthy:
            return f"{self.summary}\nNothing wrong was found."
        lines = [self.summary]
        for number, finding in enumerate(self.findings, start=1):
            lines += [f"{number}. {finding.what}", f"   Try: {finding.try_this}"]
        return "\n".join(lines)


def report(posterior: Any) -> Report:
    """Look at draws for what makes them untrustworthy.

    Chains that stand still; divergences; R̂ above 1.01; fewer than 100 effective draws a
    chain; energies that mix slowly (BFMI below 0.3); trajectories that end because they
    are as long as is allowed; Metropolis steps that are mostly refused; data whose LOO
    weights have heavy tails, where there is a log likelihood; stochastic gradients,
    whose draws are biased however well they mix.

    Args:
        posterior: An ArviZ object, from ``gp.sample`` or elsewhere.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> print(report({"x": rng.normal(size=(4, 1000))}))  # doctest: +ELLIPSIS
        4 chains of 1000 draws, 1 parameter; ...
        Nothing wrong was found.
    """
    arrays = arrays_of(posterior)
    stats = {} if isinstance(posterior, dict) else group(posterior, "sample_stats")
    stuck = _stuck(arrays)
    sizes = {} if stuck else _elements(ess(arrays))
    findings = [*stuck, *_divergences(stats), *_refusals(stats)]
    if not stuck:  # nothing else means anything then
        findings += _disagreement(arrays)
        findings += _few_draws(arrays, sizes)
        findings += _energies(posterior, stats)
        findings += _trajectories(stats)
        findings += _weights(posterior)
        findings += _bias(posterior, stats)
    return Report(_summary(arrays, posterior, sizes), findings)


def _summary(
    arrays: dict[str, np.ndarray], posterior: Any, sizes: dict[str, float]
) -> str:
    num_chains, num_draws = next(iter(arrays.values())).shape[:2]
    num_parameters = sum(int(np.prod(x.shape[2:])) for x in arrays.values())
    text = (
        f"{_count(num_chains, 'chain')} of {_count(num_draws, 'draw')}, "
        f"{_count(num_parameters, 'parameter')}"
    )
    if sizes:
        text += f"; smallest ESS {min(sizes.values()):.0f}"
    attributes = {} if isinstance(posterior, dict) else posterior["posterior"].attrs
    if "sampling_seconds" in attributes:
        text += f"; {attributes['sampling_seconds']:.1f} s"
    if "num_gradients" in attributes:
        text += f", {attributes['num_gradients']} gradients"
    return text + "."


def _stuck(arrays: dict[str, np.ndarray]) -> list[Finding]:
    ranges = [
        np.ptp(x, axis=1).reshape(len(x), -1).max(axis=1) for x in arrays.values()
    ]
    still = np.max(ranges, axis=0) == 0
    chains = np.flatnonzero(still).tolist()
    if not chains:
        return []
    return [
        Finding(
            f"Chains {chains} never moved.",
            "another start (init= a fit, or another key), a longer warm-up, or smaller "
            "steps.",
        )
    ]


def _divergences(stats: dict[str, np.ndarray]) -> list[Finding]:
    if "diverging" not in stats or not stats["diverging"].any():
        return []
    by_chain = stats["diverging"].sum(axis=1)
    return [
        Finding(
            f"{by_chain.sum()} of {stats['diverging'].size} draws diverged "
            f"({by_chain.tolist()} by chain): steps too long for a narrow part of the "
            "posterior, whose neighbourhood is then missed.",
            "smaller steps, such as NUTS(target_acceptance_rate=0.95); priors that "
            "keep lengthscales and variances away from 0 and from infinity; float64.",
        )
    ]


def _disagreement(arrays: dict[str, np.ndarray]) -> list[Finding]:
    num_chains = len(next(iter(arrays.values())))
    if num_chains < 2:
        return [
            Finding(
                "There is one chain, so nothing says whether it has found all of the "
                "posterior.",
                "num_chains=4.",
            )
        ]
    values = _elements(rhat(arrays))
    bad = {n: v for n, v in values.items() if v > _LARGEST_RHAT}
    if not bad:
        return []
    advice = "more draws and a longer warm-up; init= a Gaussian fit."
    if max(bad.values()) > 1.2:
        advice = (
            "a look at the chains (gp.plots.psrf, arviz.plot_trace): they may sit in "
            "different modes, as under sign or label symmetries, which more draws do "
            "not mend; then a prior that breaks the symmetry. Otherwise a longer "
            "warm-up from a Gaussian fit."
        )
    return [
        Finding(
            f"The chains disagree: R-hat above {_LARGEST_RHAT} in {len(bad)} of "
            f"{len(values)} parameters, worst {_worst(bad)}.",
            advice,
        )
    ]


def _few_draws(arrays: dict[str, np.ndarray], sizes: dict[str, float]) -> list[Finding]:
    num_chains, num_draws = next(iter(arrays.values())).shape[:2]
    wanted = _SMALLEST_ESS_OF_A_CHAIN * num_chains
    bad = {name: size for name, size in sizes.items() if size < wanted}
    if not bad:
        return []
    name = min(bad, key=bad.__getitem__)
    enough = int(np.ceil(wanted / max(bad[name], 1.0) * num_draws))
    better = "init= a Gaussian fit, or another sampler (see the page on samplers)."
    advice = f"num_samples={enough}; or moves that are worth more each: {better}"
    if enough > _MOST_DRAWS_OF_A_CHAIN:
        advice = f"moves that are worth more each, before more draws: {better}"
    return [
        Finding(
            f"Fewer than {wanted} effective draws in {len(bad)} of {len(sizes)} "
            f"parameters, fewest {bad[name]:.0f} ({name}).",
            advice,
        )
    ]


def _energies(posterior: Any, stats: dict[str, np.ndarray]) -> list[Finding]:
    if "energy" not in stats:
        return []
    values = bfmi(posterior)
    if not np.any(values < _SMALLEST_BFMI):
        return []
    return [
        Finding(
            f"The energy mixes slowly: BFMI {np.round(values, 2).tolist()} by chain, "
            f"below {_SMALLEST_BFMI}.",
            "priors with lighter tails for the hyperparameters: some direction has "
            "scales from very small to very large, a funnel.",
        )
    ]


def _trajectories(stats: dict[str, np.ndarray]) -> list[Finding]:
    if "tree_depth" not in stats:
        return []
    depth, n_steps = stats["tree_depth"], stats["n_steps"]
    # A tree that was cut off is full: 2^depth − 1 steps, at the deepest that occurs.
    full = (depth >= 10) & (n_steps >= 2**depth - 1)
    if full.mean() < 0.01:
        return []
    return [
        Finding(
            f"{100 * full.mean():.0f} % of the trajectories were cut off at "
            f"{int(n_steps.max())} steps: each draw is dear and does not get far.",
            "precondition=True from a Gaussian fit; priors that bound the lengthscale "
            "from above; NUTS(max_num_doublings=12) as a last resort.",
        )
    ]


def _refusals(stats: dict[str, np.ndarray]) -> list[Finding]:
    findings = []
    names = {"acceptance_rate": "v", "acceptance_rate_rest": "the other sites"}
    for name, what in names.items():
        if name in stats and (mean := stats[name].mean(axis=1)).min() < 0.1:
            findings.append(
                Finding(
                    f"Most proposals for {what} are refused: mean acceptance "
                    f"{np.round(mean, 2).tolist()} by chain.",
                    "a longer warm-up (more rounds of tuning), or bounds that allow "
                    "smaller steps.",
                )
            )
    return findings


def _weights(posterior: Any) -> list[Finding]:
    if isinstance(posterior, dict):
        return []
    findings = []
    for site in group(posterior, "log_likelihood"):
        bad = np.flatnonzero(loo(posterior, site).pareto_k > _LARGEST_PARETO_K)
        if len(bad):
            findings.append(
                Finding(
                    f"LOO of site '{site}' cannot be trusted at {len(bad)} data "
                    f"({bad[:5].tolist()}{' ...' if len(bad) > 5 else ''}), where the "
                    f"Pareto shape is above {_LARGEST_PARETO_K}.",
                    "a held-out set for these; they may also be outliers that the "
                    "likelihood does not expect.",
                )
            )
    return findings


def _bias(posterior: Any, stats: dict[str, np.ndarray]) -> list[Finding]:
    attributes = {} if isinstance(posterior, dict) else posterior["posterior"].attrs
    if "bias" not in attributes:
        return []
    steps = f", with steps of {stats['step_size'].mean():.3g}"
    return [
        Finding(
            f"The draws are biased by {attributes['bias']}{steps}: no number of draws "
            "takes that away.",
            "half the step_size and twice the num_steps_a_draw; where means and "
            "standard deviations stay, the bias is small.",
        )
    ]


def _elements(values: dict[str, np.ndarray]) -> dict[str, float]:
    """Every element by a name such as f[3]; what never moves is left out."""
    found = {}
    for name, array in values.items():
        for index, value in np.ndenumerate(array):
            if np.isfinite(value):
                found[label(name, index)] = float(value)
    return found


def _worst(values: dict[str, float]) -> str:
    name = max(values, key=values.__getitem__)
    return f"{values[name]:.2f} ({name})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
