"""What the ``observe`` sites of a model see of its processes, in parts.

The bound's first term is E = Σ_n E_{q(f_n)} log p(y_n | f_n), with latents ρ_n = b_n +
Σ_t w_tn f_t(x_tn). This module computes its parts, as arrays: the projections a and the
weights w, the residuals k(x, x) − ‖a‖² of every process, and the derivatives of E with
respect to the moments of ρ_n.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array
from numpyro.distributions.util import scale_and_mask

from svgp_ppl.diagnostics.fitted import Inputs, Moments, Site
from svgp_ppl.expectations import (
    GaussHermite,
    closed_form_expectation,
    default_method,
    nearest_singularity,
    num_components,
)
from svgp_ppl.features import Integral, Points, covariance
from svgp_ppl.handlers import counts_once, is_inducing, unwrapped
from svgp_ppl.kernels import Kernel, kernel_values
from svgp_ppl.linalg import matmul, squared_distance, whiten
from svgp_ppl.observations import Expected, latents_of, observe_sites
from svgp_ppl.rows import in_batches
from svgp_ppl.variational import (
    Block,
    group_of,
    is_coupled,
    project_outputs,
    simplified,
)

__all__ = ["inputs_of", "moments_of", "observations_of", "weights_of"]

# All pairs of up to so many rows are compared; with more rows, none.
_MOST_PAIRED_ROWS = 1000
_DRAWS_AT_A_TIME = 25
_NODES = {2: 5, 3: 3}  # per component
_FINER = {1: 3.0, 2: 1.5, 3: 1.5}  # times as many nodes, by the number of components


def observations_of(
    model_trace: dict[str, dict], num_seen: int, num_rows: int
) -> dict[str, Site]:
    """Derivatives of E at every ``observe`` site, for all data.

    Args:
        model_trace: A trace of the model.
        num_seen: Rows of a site of which only some are examined.
        num_rows: Number of all of its rows.
    """
    found = {}
    for name, expected in observe_sites(model_trace).items():
        site, marginal = model_trace[name], expected.marginal()
        is_part = expected.latent.num_data == num_seen
        stands_for = num_rows / num_seen if is_part and num_seen else 1.0
        plates = [model_trace.get(frame.name) for frame in site["cond_indep_stack"]]
        is_scaled = any(plate and plate["args"][0] == num_rows for plate in plates)
        scale = 1.0 if is_scaled else stands_for
        value = _expectation_of(expected, site)
        moments = marginal.mean, marginal.full_covariance
        slopes = jax.grad(value, (1, 2))(marginal, *moments)
        if marginal.log_weights is not None:  # the marginal of a mixture is one of K
            slopes = jax.tree.map(lambda slope: jnp.sum(slope, axis=0), slopes)
        score, slope = (scale * each for each in slopes)
        mask = unwrapped(site["fn"])[1]
        found[name] = Site(
            counts=jnp.broadcast_to(mask, (expected.latent.num_data,)),
            score=score[:, None] if marginal.is_single else score,
            curvature=-(slope + jnp.swapaxes(slope, -1, -2)),
            unexplained=expected.latent.at_inducing_mean().covariance,
            moments=_moments_of_data(expected, site["value"], mask),
            stands_for=stands_for,
            quadrature=_quadrature(expected, site, marginal, scale),
        )
    return found


def _moments_of_data(expected: Expected, y: Any, mask: Any) -> tuple[Any, Any]:
    """Mean and standard deviation of y less the offset of the latent."""
    if expected.support is not dist.constraints.real or not expected.latent.is_single:
        return jnp.nan, jnp.nan
    left = jnp.asarray(y) - expected.latent.offsets[0]
    where = jnp.broadcast_to(mask, left.shape)
    return jnp.mean(left, where=where), jnp.std(left, where=where)


def _expectation_of(expected: Expected, site: dict, method: Any = None) -> Callable:
    """E of one site as a function of the moments of its latent."""

    def value(marginal, mean, covariance) -> Array:
        variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
        if marginal.is_single:
            marginal = replace(marginal, mean=mean, variance=variance[..., 0])
        else:
            moments = {"mean": mean, "variance": variance, "covariance": covariance}
            marginal = replace(marginal, **moments)
        terms = expected.log_prob_of(site["value"], marginal, method)
        mask = unwrapped(site["fn"])[1]
        return jnp.sum(scale_and_mask(terms, site["scale"], mask))

    return value


def _rule_of(expected: Expected, site: dict, marginal: Any) -> GaussHermite | None:
    """The Gauss–Hermite rule of a site; None if its expectation is found otherwise."""
    method, likelihood = expected.method, expected.likelihood
    if method is None:
        y = jnp.asarray(site["value"])
        if closed_form_expectation(likelihood, y, marginal) is not None:
            return None
        if marginal.is_single and nearest_singularity(likelihood, y) is not None:
            return None
        method = default_method(num_components(marginal))
    return method if isinstance(method, GaussHermite) else None


def _quadrature(expected: Expected, site: dict, marginal: Any, scale: Any) -> tuple:
    """What a finer Gauss–Hermite rule adds to E, and the numbers of nodes of both."""
    rule, width = _rule_of(expected, site, marginal), num_components(marginal)
    if rule is None or width not in _FINER:
        return 0.0, 0, 0
    finer = GaussHermite(round(_FINER[width] * rule.num_nodes))
    moments = (marginal, marginal.mean, marginal.full_covariance)
    here, there = (
        _expectation_of(expected, site, each)(*moments) for each in (rule, finer)
    )
    return scale * (there - here), rule.num_nodes, finer.num_nodes


# --------------------------------------------------------------- processes at their x


def inputs_of(model_trace: dict[str, dict]) -> dict[tuple[str, str, int], Inputs]:
    """Every process at the inputs of every site and layer that sees it."""
    found = {}
    for name, latent in latents_of(model_trace).items():
        found |= _inputs_of_latent(name, latent)
    return found


def _inputs_of_latent(name: str, latent: Any) -> dict[tuple[str, str, int], Inputs]:
    weights: dict[Any, Array] = {}
    for q, terms in enumerate(latent.terms):
        for (view, p), weight in terms.items():
            shape = (view.process.num_outputs or 1, len(latent.terms), latent.num_data)
            dtype = view.process.scale_tril.dtype
            so_far = weights.get(view, jnp.zeros(shape, dtype))
            weights[view] = so_far.at[p, q].set(weight)
    found, seen = {}, []
    for view, of_view in weights.items():
        process = view.process
        found[name, process.name, seen.count(process.name)] = _inputs(view, of_view)
        seen.append(process.name)
    return found


def _inputs(view: Any, weights: Array) -> Inputs:
    process, x = view.process, view.x
    kernel, features = process.kernel, process.features
    a = whiten(process.factor, covariance(kernel, features, x))
    prior = x.variance(kernel)
    return Inputs(
        a=a,
        prior=prior,
        residual=jnp.maximum(prior - jnp.sum(jnp.square(a), axis=0), 0.0),
        weights=weights,
        **_coverage(kernel, x, features),
        **_neighbours(kernel, x, prior),
        between_nodes=_between_nodes(kernel, x),
        values=kernel_values(kernel),
    )


def _coverage(kernel: Kernel, x: Any, features: Any) -> dict[str, Array]:
    """Distance of the data from z; NaN where one of them is not made of points."""
    if not (isinstance(x, Points) and isinstance(features, Points)):
        return {"distance": jnp.full(len(x), jnp.nan), "spacing": jnp.full((), jnp.nan)}
    unit = _unit(kernel, x.z)
    x_scaled, z_scaled = (kernel.select(each.z) / unit for each in (x, features))
    far = jnp.diag(jnp.full(len(z_scaled), jnp.inf, z_scaled.dtype))
    to_others = jnp.min(squared_distance(z_scaled, z_scaled) + far, axis=1)
    return {
        "distance": jnp.sqrt(jnp.min(squared_distance(x_scaled, z_scaled), axis=1)),
        "spacing": jnp.sqrt(jnp.median(to_others)),
    }


def _unit(kernel: Kernel, x: Array) -> Array:
    """Standard deviations of the columns that the kernel sees."""
    return jnp.maximum(jnp.std(kernel.select(x), axis=0), jnp.finfo(x.dtype).tiny)


def _neighbours(kernel: Kernel, x: Any, prior: Array) -> dict[str, Array]:
    """The nearest row of each: by distance, or by correlation if not points."""
    rows, tiny = jnp.arange(len(x)), jnp.finfo(prior.dtype).tiny
    if len(x) > _MOST_PAIRED_ROWS:
        one = jnp.ones_like(prior)
        return {"nearest": rows, "similarity": one, "spread": one[0]}
    gram = x.k_uu(kernel)
    prior = jnp.diagonal(gram)
    if isinstance(x, Points):
        x_scaled = kernel.select(x.z) / _unit(kernel, x.z)
        remote = squared_distance(x_scaled, x_scaled)
    else:
        scale = jnp.sqrt(jnp.maximum(prior, tiny))
        remote = -gram / (scale[:, None] * scale)
    far = jnp.diag(jnp.full(len(x), jnp.inf, remote.dtype))
    nearest = jnp.argmin(remote + far, axis=1)
    both = jnp.maximum(prior[:, None] + prior, tiny)
    return {
        "nearest": nearest,
        "similarity": 2 * gram[rows, nearest] / both[rows, nearest],
        "spread": jnp.max(1 - 2 * gram / both),
    }


def _between_nodes(kernel: Kernel, x: Any) -> Array:
    """Prior correlation of f at neighbouring nodes of integrals; NaN of other rows.

    Neighbours along a column are as far apart as nodes are in the median there.
    """
    if not isinstance(x, Integral):
        return jnp.full(len(x), jnp.nan)
    nodes = jnp.where(x.weights[..., None] != 0, x.x, jnp.nan)
    apart = jnp.diff(jnp.sort(nodes, axis=1), axis=1)
    apart = jnp.nanmedian(jnp.where(apart > 0, apart, jnp.nan), axis=1)

    def along_columns(middle: Array, apart: Array) -> Array:
        ends = middle + jnp.diag(jnp.nan_to_num(apart))
        variances = kernel.diagonal(ends) * kernel.diagonal(middle[None])
        correlation = kernel(ends, middle[None])[:, 0] / jnp.sqrt(variances)
        return jnp.nanmin(jnp.where(apart > 0, correlation, jnp.nan))

    return jax.vmap(along_columns)(jnp.nanmean(nodes, axis=1), apart)


# ---------------------------------------------------------------------- q(v), and draws


def moments_of(
    model_trace: dict[str, dict],
) -> dict[tuple[str, str, str], Moments | None]:
    """Moments of every Gaussian q(v), by process, family and name of the q(v).

    None, with the family "other", where it is not Gaussian or its prior is scaled.
    """
    found = {}
    for name, site in model_trace.items():
        if not is_inducing(site):
            continue
        is_drawn = not isinstance(site["value"], dist.Distribution)  # or a point
        if is_drawn or not counts_once(site):
            found[name, "other", name] = None
            continue
        qv = simplified(site["value"], site["fn"].event_shape)
        family, moments = _family_of(qv), None
        if family != "other":
            eye = jnp.eye(site["fn"].event_shape[-1])
            moments = Moments(*project_outputs(qv, eye))
        found[name, family, group_of(name, qv)] = moments
    return found


def _family_of(qv: Any) -> str:
    match qv.joint if isinstance(qv, Block) else qv:
        case dist.Independent(base_dist=dist.Normal()):
            return "diagonal"
        case (
            dist.MultivariateNormal()
            | dist.Independent(base_dist=dist.MultivariateNormal())
        ):
            return "coupled" if is_coupled(qv) else "full"
    return "other"


def weights_of(key, model_trace: dict[str, dict], num_draws: int) -> Array:
    """log p(y, v | θ) − log q(v) of draws of v, [S].

    Given v the latents are Gaussian, with the mean b + B v and the residual covariance:
    log p(y | v, θ) is E there, the log density that HMC sees.
    """
    draws, log_weights = _draws(key, model_trace, num_draws)
    inputs = inputs_of(model_trace)

    def log_likelihood(v: dict[str, Array]) -> Array:
        total = jnp.zeros(())
        for name, expected in observe_sites(model_trace).items():
            site = model_trace[name]
            start = expected.latent.at_inducing_mean().marginal()
            shift = jnp.zeros((len(expected.latent.terms), expected.latent.num_data))
            for (at, process, _), seen in inputs.items():
                if at == name:
                    values = matmul(v[process], seen.a)
                    shift += jnp.sum(seen.weights * values[:, None], axis=0)
            shift = shift[0] if start.is_single else shift.T
            value = _expectation_of(expected, site, _coarser(expected, site, start))
            total += value(start, start.mean + shift, start.full_covariance)
        return total

    return log_weights + in_batches(log_likelihood, draws, _DRAWS_AT_A_TIME)


def _coarser(expected: Expected, site: dict, marginal: Any) -> Any:
    """Fewer nodes instead of a tensor grid: given v, hardly any variance remains."""
    width = num_components(marginal)
    if expected.method is not None or width not in _NODES:
        return None
    return _rule_of(expected, site, marginal) and GaussHermite(_NODES[width])


def _draws(
    key, model_trace: dict[str, dict], num_draws: int
) -> tuple[dict[str, Array], Array]:
    """Draws of v [S, P, M] by process, and log N(v; 0, I) − log q(v) of each, [S]."""
    draws, joint_draws = {}, {}
    log_weights = jnp.zeros(num_draws)
    for name, site in model_trace.items():
        if not is_inducing(site):
            continue
        shape = site["fn"].event_shape
        qv = simplified(site["value"], shape)
        group, base = (qv.group, qv.joint) if isinstance(qv, Block) else (name, qv)
        if group not in joint_draws:
            key, key_group = random.split(key)
            joint_draws[group] = v = jnp.asarray(base.sample(key_group, (num_draws,)))
            log_prior = dist.Normal().log_prob(v.reshape(num_draws, -1)).sum(axis=1)
            log_weights += log_prior - base.log_prob(v)
        v = joint_draws[group]
        if isinstance(qv, Block):
            v = v[:, qv.start : qv.start + qv.value.size]
        draws[name] = v.reshape(num_draws, -1, shape[-1])
    return draws, log_weights
