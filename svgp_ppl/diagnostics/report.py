"""What is wrong with a run, in words, and what to try."""

from typing import Any, NamedTuple

import numpy as np

from svgp_ppl.diagnostics.advice import Finding
from svgp_ppl.diagnostics.findings_of_draws import (
    copied_chains,
    disagreeing_chains,
    effective_sizes,
    few_effective_draws,
    heavy_weights,
    non_finite_draws,
    stuck_chains,
    too_few_draws,
)
from svgp_ppl.diagnostics.findings_of_sampler import (
    biased_draws,
    cut_off_trajectories,
    divergences,
    energy_errors,
    refused_proposals,
    slow_energy,
    undefined_statistics,
)
from svgp_ppl.diagnostics.run import Run, run_of

__all__ = ["Report", "report"]


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

    *Draws*: NaN or infinite values; too few to judge; chains that stand still, in
    everything or in some parameters; chains that are copies; R-hat above 1.01; fewer
    than 100 effective draws a chain; data whose LOO weights have heavy tails, where
    there is a log likelihood.

    *Sampler*: statistics that are NaN; divergences; Metropolis steps that are mostly
    refused; energies that mix slowly (BFMI below 0.3); trajectories that end because
    they are as long as is allowed; energy errors far above those aimed at; stochastic
    gradients, whose draws are biased however well they mix.

    A statistic that is undefined where it should be a number is a fault as well.

    What ``gp.sample`` writes down of the sampler decides what is expected of it and
    what is worth a try. Draws from elsewhere are held against common defaults.

    A parameter with one and the same value in all draws of all chains is taken for a
    constant (the summary counts them) as long as others move; a chain that stands still
    at a value of its own is stuck.

    Args:
        posterior: An ArviZ object, from ``gp.sample`` or elsewhere.

    Raises:
        ValueError: There are no draws.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> print(report({"x": rng.normal(size=(4, 1000))}))  # doctest: +ELLIPSIS
        4 chains of 1000 draws, 1 parameter; ...
        Nothing wrong was found.
    """
    run = run_of(posterior)
    few = too_few_draws(run)
    findings = [
        *non_finite_draws(run),
        *(few or stuck_chains(run)),
        *copied_chains(run),
        *undefined_statistics(run),
        *divergences(run),
        *refused_proposals(run),
    ]
    if few:
        return Report(_summary(run, {}), findings)
    sizes = effective_sizes(run)
    findings += disagreeing_chains(run)
    findings += few_effective_draws(run, sizes)
    if not run.is_stuck:  # the statistics of the others mean nothing then
        findings += energy_errors(run)
        findings += slow_energy(run)
        findings += cut_off_trajectories(run)
        findings += heavy_weights(run) if run.finite.all() else []
        findings += biased_draws(run)
    return Report(_summary(run, sizes), findings)


def _summary(run: Run, sizes: dict[str, float]) -> str:
    text = (
        f"{_count(run.num_chains, 'chain')} of {_count(run.num_draws, 'draw')}, "
        f"{_count(len(run.names), 'parameter')}"
    )
    if num_constant := int(run.constant.sum()):
        text += f" ({num_constant} constant)"
    if sizes:
        text += f"; smallest ESS {np.min(list(sizes.values())):.0f}"
    if "sampling_seconds" in run.attributes:
        text += f"; {run.attributes['sampling_seconds']:.1f} s"
    if "num_gradients" in run.attributes:
        text += f", {run.attributes['num_gradients']} gradients"
    return text + "."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
