"""What is wrong with z, M or the kernels of a fit: one function per fault."""

import numpy as np
from jaxtyping import Float

from svgp_ppl.diagnostics.advice import Finding, any_of, in_nats
from svgp_ppl.diagnostics.fitted import Facts, Inputs, Site

__all__ = [
    "coarse_integrals",
    "extreme_lengthscales",
    "open_residuals",
    "structured_scores",
    "uncovered_rows",
]

# A row is uncovered if the inducing values explain less than half of its prior
# variance; a tenth of the rows is more than the ends of an interval account for.
_LEAST_SHARE = 0.5
_MOST_UNCOVERED = 0.1
_FAR = 2.0  # spacings of the inducing inputs, beyond which a row is away from them

# Mean residual over noise variance 0.1: half of it is lost in the bound, per datum.
_MOST_OPEN = 0.05
_NATS = 1.0

_LEAST_SIMILARITY = 0.1
_LEAST_SPREAD = 0.005  # an RBF whose lengthscale is ten times the largest distance

# Of an average over ten nodes the prior variance is 1 % too large at 0.2 with an RBF,
# and 11 % at 0.05; with a Matérn-3/2 9 and 30 %.
_LEAST_BETWEEN_NODES = 0.2

_STANDARD_ERRORS = 4.0
_LARGEST_CORRELATION = 0.2


def uncovered_rows(facts: Facts) -> list[Finding]:
    """Processes whose inducing inputs are elsewhere, or too far apart."""
    findings = []
    for process, (name, inputs) in _worst(facts).items():
        rows = _used(facts, name, inputs)
        share = _share(inputs)[rows]
        bad = share < _LEAST_SHARE
        if not len(rows) or np.mean(bad) <= _MOST_UNCOVERED:
            continue
        if _is_rough(facts, inputs, rows):
            continue  # no z would help: that is another finding
        distance = np.median(inputs.distance[rows][bad])
        what = (
            f"The inducing values of process '{process}' explain {np.mean(share):.0%} "
            f"of its prior variance at the data, and less than half of it at "
            f"{np.mean(bad):.0%} of the rows"
        )
        if distance > _FAR * inputs.spacing:
            what += ", which lie away from z."
            advice = any_of(
                "z where the data are, gp.inducing.kmeans(x, M) or "
                "gp.inducing.greedy_variance(x, M, kernel)"
            )
        else:
            what += f": M = {len(inputs.a)} are too few for {_in_words(inputs)}."
            advice = any_of(
                *_more(inputs),
                "a prior that keeps the lengthscale longer, where it is not credible",
            )
        findings.append(Finding(what, advice))
    return findings


def open_residuals(facts: Facts) -> list[Finding]:
    """Σ residual against the noise: the cost of too few inducing inputs.

    The trace term of the bound (Titsias 2009, eq. 9) is ½ Σ_n W_n residual_n with W_n =
    1/σ² for Gaussian noise, and the curvature of the expectation in general. It is what
    all data as inducing inputs would add, up to a factor of two: for data from the
    prior, t/(2σ²) ≤ E KL(q ‖ posterior) ≤ t/σ² with t = Σ_n residual_n (Burt,
    Rasmussen & van der Wilk 2020). A fit at a larger M could say more only by moving θ
    too, and would cost as much as this fit.
    """
    findings = []
    for name, site in facts.sites.items():
        rows = site.counts
        nats = 0.5 * np.sum(site.curvature[rows] * site.unexplained[rows])
        nats, number = float(nats), float(np.sum(rows) * site.stands_for)
        if nats <= max(_NATS, _MOST_OPEN * number):
            continue
        parts = {
            process: np.sum(_open(site, inputs))
            for (at, process, _), inputs in facts.inputs.items()
            if at == name
        }
        process = max(parts, key=lambda p: parts[p])
        findings.append(
            Finding(
                f"M is too small: at site '{name}' the variance that the inducing "
                f"values do not explain, most of it of process '{process}', costs "
                f"{in_nats(nats)} of the bound ({nats / number:.2g} per datum); with "
                "all data as inducing inputs it would be higher by about that, to "
                "twice as much.",
                any_of(*_more(_inputs_of(facts, process))),
            )
        )
    return findings


def structured_scores(facts: Facts) -> list[Finding]:
    """Scores s_n = ∂E/∂f_n of neighbours that correlate: M, θ or kernel fall short.

    Once the fit has adapted to too few inducing inputs, by a long lengthscale and large
    noise, the residual variance shows nothing. The scores do: Σ_n s_n s_nn(n), with nn
    the nearest row, has mean 0 and variance Σ_{i<j} c_ij² s_i² s_j² under random signs,
    where c_ij counts how often i and j are neighbours (Moran 1950; Cliff & Ord 1981). A
    fit that explains the data leaves it slightly negative.
    """
    worst, found = 0.0, None
    for (name, process, _), inputs in facts.inputs.items():
        if name not in facts.sites:
            continue
        score = np.einsum("pqn,nq->pn", inputs.weights, facts.sites[name].score)
        rows = _used(facts, name, inputs)
        for one in score:
            statistic, correlation = _of_neighbours(one, inputs.nearest, rows)
            if correlation > _LARGEST_CORRELATION and statistic > worst:
                worst, found = statistic, (name, process, inputs, correlation)
    if found is None or worst < _STANDARD_ERRORS:
        return []
    name, process, inputs, correlation = found
    more, number = _more(inputs)[0], len(inputs.a)
    return [
        Finding(
            f"What the fit leaves over at site '{name}' is not noise: at neighbouring "
            f"inputs of process '{process}' it correlates by {correlation:.2f} "
            f"({worst:.0f} standard errors).",
            any_of(
                f"{more} than M = {number}, with a shorter lengthscale to start from",
                "another kernel, or a further process",
            ),
        )
    ]


def extreme_lengthscales(facts: Facts) -> list[Finding]:
    """Processes that are white noise at the data, or constant over them."""
    findings = []
    for process, (name, inputs) in _worst(facts).items():
        rows = _used(facts, name, inputs)
        if not len(rows):
            continue
        if _is_rough(facts, inputs, rows):
            near = np.median(inputs.similarity[rows])
            what = (
                f"Process '{process}' is next to white noise: the prior correlation of "
                f"a datum with the nearest one is {near:.2g} ({_in_words(inputs)})."
            )
            advice = any_of(
                "a prior that keeps the lengthscale above the spacing of the inputs",
                "inputs scaled to a range of a few units",
                "a longer lengthscale to start from",
                "no such process, where the likelihood has noise of its own",
            )
            findings.append(Finding(what, advice))
        elif len(rows) == 1:
            continue  # with which there is no other to differ
        elif inputs.spread < _LEAST_SPREAD and _has_lengthscale(inputs):
            what = (
                f"Process '{process}' is next to constant over the data: the largest "
                f"difference has {inputs.spread:.2g} of the variance of independent "
                f"values ({_in_words(inputs)})."
            )
            advice = any_of(
                "a prior that keeps the lengthscale within ten times the range of the "
                "inputs",
                "inputs scaled to a range of a few units",
                "a shorter lengthscale to start from",
            )
            findings.append(Finding(what, advice))
    return findings


def coarse_integrals(facts: Facts) -> list[Finding]:
    """Processes that change between the nodes of the integrals that are observed."""
    findings = {}
    for (name, process, _), inputs in facts.inputs.items():
        near = inputs.between_nodes[_used(facts, name, inputs)]
        near = near[np.isfinite(near)]
        if not len(near) or np.median(near) >= _LEAST_BETWEEN_NODES:
            continue
        what = (
            f"Process '{process}' changes between the nodes of its integrals at "
            f"'{name}': the prior correlation of neighbouring nodes is "
            f"{np.median(near):.2g} ({_in_words(inputs)}), and the sum over nodes is "
            "not the integral."
        )
        advice = any_of(
            "more nodes, gp.features.average(lower, upper, num_nodes=...)",
            "smaller areas",
            "a prior that keeps the lengthscale longer, where it is not credible",
        )
        findings[process] = Finding(what, advice)
    return list(findings.values())


# ------------------------------------------------------------------------------- parts


def _used(facts: Facts, name: str, inputs: Inputs) -> np.ndarray:
    """Rows where a process counts: they are not masked and its weight is not 0."""
    used = np.any(inputs.weights != 0, axis=(0, 1)) & (inputs.prior > 0)
    if name in facts.sites:
        used &= facts.sites[name].counts
    return np.flatnonzero(used)


def _share(inputs: Inputs) -> Float[np.ndarray, " N"]:
    """Share of the prior variance that the inducing values explain."""
    prior = np.where(inputs.prior > 0, inputs.prior, 1.0)
    return 1 - inputs.residual / prior


def _more(inputs: Inputs) -> list[str]:
    """What to do if M is too small; features other than points have no spacing."""
    if np.isnan(inputs.spacing):
        return ["more inducing features"]
    return [
        "more inducing inputs",
        "z where this variance is, gp.inducing.greedy_variance(x, M, kernel)",
    ]


def _inputs_of(facts: Facts, process: str) -> Inputs:
    return next(inputs for key, inputs in facts.inputs.items() if key[1] == process)


def _worst(facts: Facts) -> dict[str, tuple[str, Inputs]]:
    """By process, the site and the inputs where the smallest share is explained."""
    found: dict[str, tuple[float, str, Inputs]] = {}
    for (name, process, _), inputs in facts.inputs.items():
        rows = _used(facts, name, inputs)
        share = float(np.mean(_share(inputs)[rows])) if len(rows) else np.inf
        if process not in found or share < found[process][0]:
            found[process] = share, name, inputs
    return {process: (name, inputs) for process, (_, name, inputs) in found.items()}


def _is_rough(facts: Facts, inputs: Inputs, rows: np.ndarray) -> bool:
    """Whether the process is white noise at the data; unknown from some of the rows."""
    if facts.is_part or not _has_lengthscale(inputs):
        return False
    return bool(np.median(inputs.similarity[rows]) < _LEAST_SIMILARITY)


def _has_lengthscale(inputs: Inputs) -> bool:
    return any(name.endswith("lengthscale") for name in inputs.values)


def _in_words(inputs: Inputs) -> str:
    """The values of the kernel: lengthscale = 0.0039, variance = 0.016."""
    return ", ".join(
        f"{name} = {' '.join(f'{v:.3g}' for v in np.ravel(value)[:6])}"
        for name, value in inputs.values.items()
    )


def _open(site: Site, inputs: Inputs) -> np.ndarray:
    """Σ_pq w² residual curvature at each row that counts."""
    curvature = np.diagonal(site.curvature, axis1=1, axis2=2)
    weighted = np.einsum("pqn,nq->n", np.square(inputs.weights), curvature)
    return (weighted * inputs.residual)[site.counts]


def _of_neighbours(
    score: Float[np.ndarray, " N"], nearest: np.ndarray, rows: np.ndarray
) -> tuple[float, float]:
    """Σ s_n s_nn(n) in standard errors, and over Σ s_n²."""
    counted = np.zeros(len(score), bool)
    counted[rows] = True
    rows = rows[counted[nearest[rows]]]
    near = nearest[rows]
    product = score[rows] * score[near]
    # A mutual pair is in the sum twice, and has four times the variance.
    is_mutual = nearest[near] == rows
    variance = np.sum(np.square(product) * np.where(is_mutual, 2.0, 1.0))
    squares = np.sum(np.square(score[rows]))
    if not variance > 0:
        return 0.0, 0.0
    return float(np.sum(product) / np.sqrt(variance)), float(np.sum(product) / squares)
