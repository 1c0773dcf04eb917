"""Which values act on the data beside the processes: an update forgets about them.

With latents ρ = b + Σ_t w_t f_t(x_t), what the earlier data say is kept of the f_t, for
any kernel and mean. Weights w, offsets b and inputs x may depend on other values θ, the
last by a network before the kernel. Of b the means are a part: a value acts beside them
if for random c, d, e

    ∂θ (cᵀb + dᵀw + eᵀx) ≠ ∂θ cᵀ Σ_t w_t m_t(x_t).

Or if the likelihood depends on it, as on the scale of its noise: where the marginals
are held, ∂θ cᵀ E log p(y | f) ≠ 0.

Features that are no functionals of f, such as Fourier features, describe f − m by k_uu
and k_uf: with another kernel or mean, the same u is another f.
"""

from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import random
from jaxtyping import Array
from numpyro.handlers import Messenger

from svgp_ppl.features import LinearFunctional, covariance
from svgp_ppl.handlers import is_layer, is_point, trace_of
from svgp_ppl.observations import is_latent, latents_of, observe_sites
from svgp_ppl.process import SparseGP

__all__ = ["Forgotten", "forgotten"]

# Derivatives that should be equal are so to rounding.
_TOLERANCE = 1e-3


class Forgotten(NamedTuple):
    """What an update would lose, by latent or ``param`` site that moves.

    Attributes:
        beside: Whether it acts beside the processes.
        within: Whether features that are no functionals have another meaning with it.
    """

    beside: dict[str, Array]
    within: dict[str, Array]


def forgotten(
    key,
    guide: Callable,
    model: Callable,
    traces: tuple[dict[str, dict], dict[str, dict]],
    params: Mapping[str, Any],
    frozen: Set[str],
    args: tuple,
    kwargs: dict,
) -> Forgotten:
    """Which values move, and act beside the processes or on the meaning of their u.

    Args:
        key: Random key, with which both were run.
        guide: The guide.
        model: The model.
        traces: Sites of both at the fit.
        params: Parameters of the fit.
        frozen: Names of those that stay as they are.
        args: Arguments of the model.
        kwargs: Its keyword arguments.
    """
    of_guide, sites = traces
    at = {n: s["value"] for n, s in sites.items() if is_latent(s)}
    at |= {n: params[n] for n, s in sites.items() if s["type"] == "param"}
    at = {n: value for n, value in at.items() if _is_real(value)}

    def values_of(free):
        given = {**params, **free}
        found = trace_of(guide, args, kwargs, key=key, values=given)
        drawn = {n: found[n]["value"] for n in at if n in found}
        return {n: given.get(n, value) for n, value in at.items()} | drawn

    def sums(at):
        run: Any = {"guide_trace": of_guide, "outer": _held_layers}
        values = {**params, **at}
        return _sums(trace_of(model, args, kwargs, key=key, values=values, **run), key)

    moves: dict[str, Any] = dict.fromkeys(at, jnp.ones(()))
    if frozen:
        free = {n: p for n, p in params.items() if n not in frozen and _is_real(p)}
        back = jax.vjp(values_of, free)[1]
        none = jax.tree.map(jnp.zeros_like, at)
        one = jax.tree.map(jnp.ones_like, at)
        moves = {name: back({**none, name: one[name]})[0] for name in at}
    pull = jax.vjp(sums, at)[1]
    slopes, of_means, of_features = (pull(one)[0] for one in jnp.eye(3))
    drawn = {n for n, site in of_guide.items() if n in at and not is_point(site["fn"])}
    moving = {n: _any(jnp.abs, moves[n]) for n in at}
    return Forgotten(
        {n: moving[n] & _any(_differ, slopes[n], of_means[n]) for n in at},
        {n: (moving[n] | (n in drawn)) & _any(jnp.abs, of_features[n]) for n in at},
    )


def _sums(sites: dict[str, dict], key) -> Array:
    """What acts beside the processes, cᵀ Σ_t w_t m_t(x_t), and what u means; [3]."""
    seen = observe_sites(sites)
    total = of_means = of_features = jnp.zeros(())
    for name, expected in seen.items():
        key, own = random.split(key)
        c = random.uniform(own, expected.batch_shape, minval=0.5, maxval=1.5)
        held = jax.lax.stop_gradient(expected.marginal())
        terms = expected.log_prob_of(sites[name]["value"], held)
        total += jnp.sum(c * terms)
    for latent in latents_of(sites).values():
        for terms, offset in zip(latent.terms, latent.offsets):
            key, own = random.split(key)
            c, d = random.uniform(own, (2, latent.num_data), minval=0.5, maxval=1.5)
            total += jnp.sum(c * offset)
            for (view, p), weight in terms.items():
                total += jnp.sum(d * weight) + _of_inputs(view.x, own)
                mean = view.process(view.x).offsets[p]
                of_means += jnp.sum(c * weight * mean)
                if not isinstance(view.process.features, LinearFunctional):
                    of_features += jnp.sum(c * mean) + _meaning(view.process, view.x, d)
    return jnp.stack([total, of_means, of_features])


def _of_inputs(x: LinearFunctional, key) -> Array:
    """eᵀx; columns may add up to a constant, so each entry has a weight of its own."""
    arrays = [a for a in jax.tree.leaves(x) if _is_real(a)]
    weights = [random.uniform(key, jnp.shape(a), minval=0.5) for a in arrays]
    return sum((jnp.vdot(e, a) for e, a in zip(weights, arrays)), jnp.zeros(()))


def _meaning(process: SparseGP, x: LinearFunctional, d: Array) -> Array:
    """k_uu and k_uf of the features of a process, in one number."""
    rows = jnp.linspace(0.5, 1.5, len(process.features))
    of_f = covariance(process.kernel, process.features, x)
    return rows @ (process.scale_tril @ rows + of_f @ d)


class _held_layers(Messenger):
    """A NumPyro handler: derivatives end at layers, which are values of processes."""

    def process_message(self, msg: Any) -> None:
        """Hold the draws of a layer."""
        if is_layer(msg):
            msg["value"] = jax.lax.stop_gradient(msg["value"])


def _differ(a: Array, b: Array) -> Array:
    return jnp.abs(a - b) > _TOLERANCE * (jnp.abs(a) + jnp.abs(b))


def _any(of: Callable, *trees) -> Array:
    """Whether ``of`` is not zero anywhere."""
    found = [jnp.any(leaf != 0) for leaf in jax.tree.leaves(jax.tree.map(of, *trees))]
    return jnp.any(jnp.asarray(found))


def _is_real(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    return all(jnp.issubdtype(jnp.result_type(a), jnp.floating) for a in leaves)
