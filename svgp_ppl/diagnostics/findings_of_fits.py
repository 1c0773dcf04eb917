"""What is wrong with the bound, q(v) or θ of a fit: one function per fault."""

import numpy as np

from svgp_ppl.diagnostics.advice import Finding, any_of, in_nats
from svgp_ppl.diagnostics.fitted import Facts, Fitted
from svgp_ppl.diagnostics.gains import Gains
from svgp_ppl.diagnostics.pareto import good_shape, pareto_shape
from svgp_ppl.diagnostics.trend import FEWEST_STEPS, last_bound, relevant, trend_of

__all__ = [
    "better_q",
    "edges_of_priors",
    "heavy_tail",
    "is_far_from_standard",
    "moving_bound",
    "narrow_family",
    "rough_quadrature",
    "sites_without_slope",
]

_NATS = 1.0  # accepted cost of the family of q(v), and error of E
_ROUGH = 0.01  # accepted error of E per datum, if that is more
_LARGEST_UNDERSTATEMENT = 1.25
_SAME = 0.01  # nats from q(v) to the posterior: k-hat of equal weights means nothing

_FARTHEST_MEAN = 3.0  # standard deviations
_LEAST_SD, _MOST_SD = 0.1, 10.0

_EDGE = {"positive": 1e-3, "interval": 2e-2}


def moving_bound(fitted: Fitted, gains: Gains | None = None) -> list[Finding]:
    """Too few steps to tell, a bound that rises, or one that used to be higher."""
    steps = len(fitted.losses)
    if steps < FEWEST_STEPS:
        known = gains is not None and fitted.facts is not None and fitted.facts.only_q
        if known:  # a natural step may be all that is needed
            return []
        count = "1 step is" if steps == 1 else f"{steps} steps are"
        what = f"{count} too few to tell whether the bound has stopped rising."
        return [
            Finding(what, "num_steps=2000, with patience=200 to stop at a plateau.")
        ]
    trend = trend_of(fitted.losses)
    enough = relevant(last_bound(fitted.losses))
    if trend.lost > enough:
        what = (
            f"The bound is {in_nats(trend.lost)} below where it has been: the last "
            f"{trend.steps} steps against the best {trend.steps}."
        )
        options = any_of(
            "smaller steps, or such that shrink, optax.adam(optax.cosine_decay_schedule"
            "(1e-2, num_steps))",
            "a larger batch_size, where there is one",
        )
        return [Finding(what, options)]
    if trend.further > enough:
        what = (
            f"The bound still rises: by {in_nats(trend.rise)} (standard error "
            f"{trend.error:.2g}) in the last {trend.steps} of {steps} steps."
        )
        options = any_of(
            f"more steps, gp.fit(..., init=this fit, num_steps={steps})",
            "optimizer=gp.natural_gradient(0.1) for a Gaussian q(v)",
            "optax.lbfgs() for a bound that is not random",
        )
        return [Finding(what, options)]
    return []


def better_q(fitted: Fitted, gains: Gains | None) -> list[Finding]:
    """A q(v) that is not the best of its family, though the steps hardly move it."""
    facts = fitted.facts
    if gains is None or facts is None or facts.is_random or not facts.is_point:
        return []
    if facts.is_part or gains.own <= relevant(last_bound(fitted.losses)):
        return []
    what = (
        f"q(v) is {in_nats(gains.own)} below the best one of its family, at the same "
        "hyperparameters and inducing inputs."
    )
    options = ["more steps, or longer ones where they shrank"]
    if "diagonal" not in _families(facts):
        natural = "gp.natural_gradient(0.5), from init=(fit.guide, fit.params)"
        options.insert(0, f"optimizer={natural}")
    return [Finding(what, any_of(*options))]


def rough_quadrature(facts: Facts) -> list[Finding]:
    """Expectations that change with the number of Gauss–Hermite nodes.

    At a kink the error falls like one over the number of nodes only, and is largest
    where the likelihood is narrow against the marginal of f.
    """
    findings = []
    for name, site in facts.sites.items():
        change, nodes, more = site.quadrature
        number = float(np.sum(site.counts) * site.stands_for)
        if abs(change) <= max(_NATS, _ROUGH * number):
            continue
        side = "higher" if change > 0 else "lower"
        what = (
            f"The expectation of log p(y | f) at site '{name}' is off: with {more} "
            f"quadrature nodes in place of {nodes} it is {in_nats(abs(change))} "
            f"{side}."
        )
        options = any_of(
            f"more nodes, gp.observe(..., method=gp.expectations.GaussHermite({more}))",
            "a closed form, or the place of a kink or singularity (see the page on "
            "extending)",
        )
        findings.append(Finding(what, options))
    return findings


def narrow_family(facts: Facts, gains: Gains | None) -> list[Finding]:
    """A q(v) that cannot have the correlations that the posterior has."""
    if gains is None or not gains.understated:
        return []
    process = max(gains.understated, key=lambda name: gains.understated[name])
    factor = gains.understated[process]
    # From some of the rows the correlations are known only up to noise, which adds up.
    is_dear = gains.family > _NATS and not facts.is_part
    if not is_dear and factor < _LARGEST_UNDERSTATEMENT:
        return []
    if "diagonal" in _families(facts):
        what, options = "whitened values", ["gp.AutoGaussian(model) (full covariances)"]
        if len(facts.moments) > 1:
            options.append("gp.AutoCoupled(model)")
    else:
        what, options = "processes or outputs", ["gp.AutoCoupled(model)"]
    price = f", {in_nats(gains.family)} of the bound" if is_dear else ""
    return [
        Finding(
            f"q(v) takes {what} for independent that the data couple{price}: the "
            f"posterior sd of '{process}' ought to be {factor:.2f} times as large.",
            any_of(*options, "draws, gp.sample(..., init=fit)"),
        )
    ]


def heavy_tail(facts: Facts) -> list[Finding]:
    """k̂ of the fit as an importance sampler (Yao, Vehtari, Simpson & Gelman 2018)."""
    if not len(facts.log_weights):
        return []
    if not np.all(np.isfinite(facts.log_weights)):
        number = int(np.sum(~np.isfinite(facts.log_weights)))
        what = f"The log density is NaN or infinite at {number} draws of the guide."
        return [Finding(what, "priors and likelihoods that are finite everywhere.")]
    shape, limit = pareto_shape(facts.log_weights), good_shape(len(facts.log_weights))
    # log E w − E log w is KL(q ‖ posterior), of the same draws.
    average = np.logaddexp.reduce(facts.log_weights) - np.log(len(facts.log_weights))
    if shape <= limit or average - np.mean(facts.log_weights) < _SAME:
        return []
    of_what = "q(v)" if facts.is_point else "the guide, over v and the other sites,"
    options = ["draws, gp.sample(..., init=fit)"]
    if facts.is_point:
        options.append("gp.AutoMixture(model, 2), where there are several modes")
    return [
        Finding(
            f"The posterior is not as {of_what} has it: draws weighed by the log "
            f"density have the Pareto shape k-hat = {shape:.2f}, above {limit:.2f}.",
            any_of(*options),
        )
    ]


def edges_of_priors(facts: Facts) -> list[Finding]:
    """Scales in a part of their prior with almost no mass."""
    findings = []
    for (name, kind), cdf in facts.cdf.items():
        limit = _EDGE[kind] / np.size(cdf)
        low, high = float(np.min(cdf)), float(np.max(cdf))
        side, mass = ("lower", low) if low < 1 - high else ("upper", 1 - high)
        if not mass < limit:
            continue
        findings.append(
            Finding(
                f"'{name}' is at the {side} edge of its prior, which has {mass:.1g} of "
                "its mass beyond.",
                any_of(
                    _standardised(facts),
                    "another prior, if this value is credible",
                    "another start, if it is not: a fit that explains nothing, or "
                    "everything, by one of its parts ends here",
                ),
            )
        )
    return findings


def sites_without_slope(facts: Facts) -> list[Finding]:
    """Values that no fit finds: the likelihood changes with them in jumps only."""
    return [
        Finding(
            f"The data do not move '{name}': the likelihood depends on it only by a "
            "comparison, rounding or stop_gradient, whose derivatives are 0.",
            any_of(
                "a smooth step, such as jax.nn.sigmoid((tau - x) / width) in place of "
                "jnp.where(x < tau, 1.0, 0.0)",
                "draws, gp.sample(...) without init=",
            ),
        )
        for name in facts.without_slope
    ]


def is_far_from_standard(facts: Facts) -> bool:
    """Whether the data of a site are far from mean 0 and sd 1."""
    return bool(_standardised(facts))


def _standardised(facts: Facts) -> list[str]:
    """Sites with data far from mean 0 and sd 1, which priors often expect."""
    moments = {name: map(float, site.moments) for name, site in facts.sites.items()}
    return [
        f"data of mean 0 and sd 1 (those of '{name}' have {mean:.3g} and {sd:.3g} "
        "about the offset of the latent)"
        for name, (mean, sd) in moments.items()
        if abs(mean) > _FARTHEST_MEAN * sd or sd < _LEAST_SD or sd > _MOST_SD
    ]


def _families(facts: Facts) -> set[str]:
    return {family for _, family, _ in facts.moments}
