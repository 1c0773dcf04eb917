"""What is wrong with a run or a fit, in words, and what to try."""

from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from svgp_ppl.diagnostics.advice import Finding, in_nats
from svgp_ppl.diagnostics.findings_of_draws import (
    copied_chains,
    disagreeing_chains,
    doubtful_weights,
    effective_sizes,
    few_effective_draws,
    heavy_weights,
    non_finite_draws,
    stuck_chains,
    too_few_draws,
)
from svgp_ppl.diagnostics.findings_of_fits import (
    better_q,
    edges_of_priors,
    heavy_tail,
    is_far_from_standard,
    moving_bound,
    narrow_family,
    rough_quadrature,
    sites_without_slope,
)
from svgp_ppl.diagnostics.findings_of_processes import (
    coarse_integrals,
    extreme_lengthscales,
    open_residuals,
    structured_scores,
    uncovered_rows,
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
from svgp_ppl.diagnostics.fitted import Fitted
from svgp_ppl.diagnostics.gains import gains_of
from svgp_ppl.diagnostics.pareto import pareto_shape
from svgp_ppl.diagnostics.run import Run, run_of
from svgp_ppl.diagnostics.trend import FEWEST_STEPS, last_bound, relevant, trend_of

__all__ = ["Report", "report", "report_fit", "report_of"]


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
        """The summary and a paragraph per finding."""
        if self.is_healthy:
            return f"{self.summary}\nNothing wrong was found."
        lines = [self.summary]
        for number, finding in enumerate(self.findings, start=1):
            lines += [f"{number}. {finding.what}", f"   Try: {finding.try_this}"]
        return "\n".join(lines)


def report(posterior: Any, *args, **kwargs) -> Report:
    """Examine draws, or a fit, for anything that makes them untrustworthy.

    *Draws*: NaN or infinite values; too few to judge; chains that stand still, in
    everything or in some parameters; chains that are copies; R-hat above 1.01; fewer
    than 100 effective draws per chain; importance weights that depend on a few
    proposals; data whose LOO weights have heavy tails, if there is a log likelihood.

    *Sampler*: statistics that are NaN; divergences; Metropolis steps that are mostly
    rejected; energies that mix slowly (BFMI below 0.3); trajectories that end because
    they reach the largest length allowed; energy errors far above their target;
    stochastic gradients, whose draws are biased however well they mix.

    A statistic that is undefined where it should be a number is a fault as well.

    What ``gp.sample`` records about the sampler decides what is expected of it and what
    is worth trying. Draws from elsewhere are compared with common defaults.

    A parameter with one and the same value in all draws of all chains is taken for a
    constant (the summary counts them) as long as others move; a chain that stands still
    at a value of its own is stuck.

    *A fit*, from its losses: a bound that still rises, or was higher before. With the
    arguments of the model: a q(v) that is not the best of its family; inducing inputs
    away from the data, or too few of them; a lengthscale outside the scale of the
    inputs; residuals that correlate between neighbours; expectations that change with
    the number of their nodes; a family of q(v) without the correlations of the
    posterior; a posterior that the family cannot represent (k̂); scales at the edge of
    their priors; values that the likelihood has no slope in. The page on fitting says
    how each is measured. With more than 1000 rows it examines 1000, always the same.

    Args:
        posterior: An ArviZ object, from ``gp.sample`` or elsewhere; or what ``gp.fit``
            returns.
        *args: For a fit: the arguments of its model, data included.
        **kwargs: For a fit: keyword arguments of its model.

    Raises:
        ValueError: There are no draws; draws come with arguments of a model.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> print(gp.diagnostics.report({"x": rng.normal(size=(4, 1000))}))
        4 chains of 1000 draws, 1 parameter; ...
        Nothing wrong was found.
        >>> print(gp.diagnostics.report(fitted, x, y))
        A fit of 200 steps, bound -50...
    """
    return report_of(posterior, *args, **kwargs)


@singledispatch
def report_of(posterior, *args, **kwargs) -> Report:
    """``report`` by the type of its argument; for draws by default."""
    if args or kwargs:
        raise ValueError(
            "report takes the arguments of a model with a fit only: draws come with "
            f"what it needs. After an object of type {type(posterior).__name__} it "
            f"was given {len(args) + len(kwargs)} more."
        )
    return _report_run(run_of(posterior))


def _report_run(run: Run) -> Report:
    few = too_few_draws(run)
    findings = [
        *non_finite_draws(run),
        *doubtful_weights(run),
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
    if not run.is_stuck:  # otherwise the statistics of the others mean nothing
        findings += energy_errors(run)
        findings += slow_energy(run)
        findings += cut_off_trajectories(run)
        findings += heavy_weights(run) if run.finite.all() else []
        findings += biased_draws(run)
    return Report(_summary(run, sizes), findings)


def report_fit(fitted: Fitted) -> Report:
    """The findings of a fit, without those that may follow from others."""
    facts = fitted.facts
    if facts is None:
        return Report(_summary_of_fit(fitted), moving_bound(fitted))
    gains = gains_of(facts)
    unfinished = [*moving_bound(fitted, gains), *better_q(fitted, gains)]
    causes = [*unfinished, *uncovered_rows(facts), *extreme_lengthscales(facts)]
    findings = causes or [*open_residuals(facts), *structured_scores(facts)]
    findings += rough_quadrature(facts) + coarse_integrals(facts)
    family = narrow_family(facts, gains)
    findings += family if family or unfinished else heavy_tail(facts)
    edges = edges_of_priors(facts)
    findings = [*sites_without_slope(facts), *findings]
    # A fit that has to reach far for an offset of the data is unfinished for long.
    both = [*edges, *findings] if is_far_from_standard(facts) else [*findings, *edges]
    return Report(_summary_of_fit(fitted), both)


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


def _summary_of_fit(fitted: Fitted) -> str:
    losses, facts = fitted.losses, fitted.facts
    bound = last_bound(losses)
    text = f"A fit of {_count(len(losses), 'step')}, bound {bound:.3f} nats"
    trend = trend_of(losses) if len(losses) >= FEWEST_STEPS else None
    if trend is not None and trend.least > relevant(bound):
        text += (
            f" (a rise of less than {in_nats(trend.least)} in the last {trend.steps} "
            "steps would be lost in their noise)"
        )
    if facts is None:
        return (
            f"{text}. The arguments of the model, report(fit, x, y), add what the data "
            "say of z, M, q(v) and the priors."
        )
    seen, of = map(int, facts.num_rows)
    text += f"; {_count(of, 'row')}" + (f", {seen} of them seen" if seen < of else "")
    if len(facts.log_weights):
        shape = pareto_shape(facts.log_weights)
        exact = "q(v) is exact given θ" if facts.is_point else "the guide is exact"
        text += f"; {exact if shape == -np.inf else f'k-hat {shape:.2f}'}"
    return text + "."
