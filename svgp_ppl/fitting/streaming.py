"""New data without the old ones: the sites of a fit stand for what it has seen.

At the end of a fit q(u) is the prior times a Gaussian factor t(u), its sites
(``variational.sites``). With t in place of the likelihood of the earlier data, the
bound for new data is (Bui, Nguyen & Turner 2017, up to a constant)

    Σ_n E_q log p(y_n|f_n) + E_q log t(f(z_before)) − KL(q(v) ‖ N(0, I)),
    E_q log t = −½ Σ_b (‖y_b − H_b m_b‖² + tr(H_b C_b H_bᵀ)),

where m_b and C_b are the mean and covariance of output b at the earlier inducing inputs
under the new q, so that hyperparameters and inducing inputs may move on.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.handlers import Messenger

from svgp_ppl.checks import require_key
from svgp_ppl.diagnostics.findings_of_fits import moving_bound
from svgp_ppl.diagnostics.fitted import Fitted
from svgp_ppl.features import LinearFunctional, covariance
from svgp_ppl.fitting.fit import fit
from svgp_ppl.fitting.forgotten import forgotten
from svgp_ppl.fitting.repeated import repeated
from svgp_ppl.fitting.result import Fit
from svgp_ppl.fitting.schedules import NEVER, frozen_with, unfreeze_steps
from svgp_ppl.guides.deep import AutoDeep
from svgp_ppl.guides.fitted import centre_of, drawn_sites, guide_and_params
from svgp_ppl.guides.sites import prior_of
from svgp_ppl.handlers import (
    counts_once,
    is_inducing,
    marginalised,
    set_up,
    trace_of,
    traces_of,
)
from svgp_ppl.linalg import matmul, whiten
from svgp_ppl.process import SparseGP
from svgp_ppl.process_facts import (
    ProcessFacts,
    process_facts_of,
    require_same_processes,
)
from svgp_ppl.runtime.compilation import call, look, partition
from svgp_ppl.variational import is_coupled, log_weights, project_outputs
from svgp_ppl.variational.sites import Sites, moments, sites_of

__all__ = ["update"]

# Of a site; lower than for coordinates, since here it is information from data.
_LEAST_PRECISION = 1e-3


class _Seen(NamedTuple):
    """What a fit has seen of a process: its sites, at the inducing features z."""

    sites: Sites
    z: Any


def update(key, earlier: Fit, *args, **options) -> Fit:
    """Continue a fit with new data, without the earlier ones.

    Streaming sparse GPs (Bui, Nguyen & Turner 2017): what the fit has learnt of each
    process is kept as a Gaussian factor at its inducing inputs, and hyperparameters,
    inducing inputs and q(v) are fitted to that and the new data together. With a
    Gaussian likelihood, a q(v) of full covariance, fixed hyperparameters and inducing
    inputs it is the fit of all data at once, except of processes that share data, as in
    ``f(x) + g(x)``: what is kept of each takes the others to be as they were.

    Nothing is kept about values on which the data depend beside the processes, as the
    scale of the noise, an intercept ``b`` in ``f(x) + b`` or a network in
    ``f(net(x))``: they are fitted to the new data alone, with a warning. Freeze them;
    or write ``mean=lambda x: jnp.full(len(x), b)``, and put the network inside the
    kernel (z are then inputs of it).

    Data that no argument brings, as those of a boundary inside the model, would count
    again in every update, with a warning: let an argument leave them out.

    Inducing features that are not functionals of f, such as ``features.Fourier``, must
    stay the same: their values must not contain arrays, and with another kernel or mean
    they would stand for another f. Freeze what these depend on.

    A fit of ``AutoDeep`` must have settled: the narrow start of q(v) of its inner
    layers would be kept as if the data had said it. A bound that still rises is a
    warning.

    Of v, directions whose precision the fit raised by less than a thousandth of the
    prior's are not kept: an optimiser leaves as much by chance. Data so weak that each
    update adds less do not add up over many; pass more rows at once.

    Args:
        key: Random key.
        earlier: What ``gp.fit`` or ``update`` returned, of a guide with a Gaussian for
            every process (``AutoGaussian``). With few inducing inputs near the new
            data, let z move, or leave some for them from the start.
        *args: Arguments of the model: any number of new data.
        **options: Options of ``gp.fit``, and keyword arguments of the model. What the
            earlier fit had frozen at its end stays so unless ``freeze`` names it.

    Returns:
        A fit of the same model and guide. Its losses are those of the bound above,
        without its constant.

    Raises:
        ValueError: The fit has no model (``Fit.load(path, guide, model)``), or a
            process whose q(v) is shared with others, a mixture or a point; the kernel
            or mean of features that are not functionals moves; ``init`` is among the
            options; or ``gp.fit`` refuses the arguments.

    Example:
        >>> import svgp_ppl as gp
        >>> fitted = gp.fit(random.key(0), model, None, x, y, progress=False)
        >>> fitted = gp.update(random.key(1), fitted, x_new, y_new, progress=False)
    """
    require_key(key)
    if not isinstance(earlier, Fit):
        raise ValueError(
            "the second argument of update is what gp.fit returned, and is a "
            f"{type(earlier).__name__}."
        )
    model, guide = earlier.model, earlier.guide
    if model is None:
        raise ValueError(
            "the fit does not know its model: gp.Fit.load(path, guide, model)."
        )
    if "init" in options:
        raise ValueError("update starts from the fit that it is given: drop init=.")
    earlier = replace(earlier, params=guide_and_params(earlier, "earlier").params)
    _warn_of_narrow_start(earlier)
    key_seen, key_fit = random.split(key)
    own = inspect.signature(fit).parameters
    of_model = {name: x for name, x in options.items() if name not in own}
    options["freeze"] = frozen_with(options.get("freeze"), _left_frozen(earlier))
    steps = unfreeze_steps(earlier.params, options["freeze"], 0, guide)
    frozen = frozenset(n for n, unfrozen in steps.items() if unfrozen == NEVER)
    seen, lost = _seen_by(key_seen, earlier, frozen, args, of_model)
    if lost:
        warnings.warn(
            f"update forgets what the earlier data said about {lost}: the data depend "
            "on them beside the processes, through the likelihood or the latent, and "
            "they are fitted to the new data alone. Freeze what has been learnt, "
            "freeze={parameter: np.inf}; or write an intercept as mean= of a process, "
            "and a network before it inside its kernel. The parameters are "
            f"{sorted(earlier.params)}.",
            stacklevel=2,
        )
    if again := repeated(model, earlier.params, args, of_model):
        warnings.warn(
            f"update counts {again} again: no argument of the model changes what they "
            "say of its processes, and the fit has learnt it. Let an argument leave "
            "them out, def model(x, y=None, first=True), and update(..., first=False).",
            stacklevel=2,
        )
    start = (guide, earlier.params)
    new = fit(key_fit, _with_seen(model, seen), guide, *args, init=start, **options)
    return replace(new, model=model)


def _left_frozen(earlier: Fit) -> dict[str, int | float]:
    """Parameter -> number of further steps in which the fit would have frozen it."""
    done, steps = len(earlier.losses), earlier.unfreeze_at.items()
    left = {name: np.inf if at == NEVER else at - done for name, at in steps}
    return {name: number for name, number in left.items() if number > 0}


def _warn_of_narrow_start(earlier: Fit) -> None:
    """Warn that the start of inner layers may still be in their q(v)."""
    if not isinstance(earlier.guide, AutoDeep):
        return
    for finding in moving_bound(Fitted(np.asarray(earlier.losses, np.float64))):
        warnings.warn(
            "update takes how narrow q(v) is for what the data have said, and AutoDeep "
            f"starts it narrow in inner layers. {finding.what} Take more steps of the "
            "earlier fit first, gp.fit(..., init=fit).",
            stacklevel=3,
        )


def _seen_by(
    key, earlier: Fit, frozen: frozenset[str], args: tuple, kwargs: dict
) -> tuple[dict[str, _Seen], list[str]]:
    """The sites of every process, at the parameters of the fit; what is forgotten."""
    model: Any = earlier.model
    guide, params = earlier.guide, dict(earlier.params)
    set_up(guide, key, args, kwargs)
    arrays, combine, static = partition(args, kwargs)

    def processes(args, kwargs, key, params) -> ProcessFacts:
        return process_facts_of(trace_of(model, args, kwargs, key=key, values=params))

    require_same_processes(earlier, look(processes, args, kwargs, key, params))

    def of_fit(key, params, arrays):
        args, kwargs = combine(arrays)
        run: dict[str, Any] = {"keys": (key, key), "values": params}
        traces = of_guide, sites = traces_of(guide, model, args, kwargs, **run)
        exact = marginalised(sites)
        if drawn_sites(of_guide, exact):
            # At the centre of θ, not at a draw of it; the same for every key.
            centre = centre_of(random.key(0), guide, params, args, kwargs)
            of_others = {n: x for n, x in centre.items() if n in sites.keys() - exact}
            run["values"] = params | of_others
            _, sites = traces_of(guide, model, args, kwargs, **run)
        found = {}
        for name, site in sites.items():
            if is_inducing(site):
                process = site["infer"]["inducing"]["process"]
                _require_gaussian(name, site)
                _require_known_features(name, process.features)
                qv = moments([site["value"]], [len(process.features)])
                prior = prior_of(site)
                found[name] = (qv, prior, process.features)
        lost = forgotten(key, guide, model, traces, params, frozen, args, kwargs)
        return found, lost

    made_of = ("what a fit has seen", model, guide, static, frozen)
    of_all = call(of_fit, made_of, key, params, arrays, runs_once=True)
    found, lost = jax.device_get(of_all)
    _require_same_meaning(found, lost.within, params)
    seen = {
        name: _Seen(sites_of(loc, cov, {name: prior}, _LEAST_PRECISION)[name], z)
        for name, ((loc, cov), prior, z) in found.items()
    }
    return seen, sorted(name for name, is_lost in lost.beside.items() if is_lost)


def _require_gaussian(name: str, site: dict) -> None:
    if not counts_once(site):
        raise ValueError(
            f"update cannot go on with process '{name}': numpyro.handlers.scale or "
            "mask is around its prior, which would count again."
        )
    qv = site["value"]
    is_gaussian = isinstance(qv, dist.Distribution) and log_weights(qv) is None
    if not is_gaussian or is_coupled(qv):
        raise ValueError(
            f"update needs a Gaussian q(v) of its own for process '{name}', as "
            "AutoGaussian has; not a point, a mixture, or one shared between "
            "processes."
        )


def _require_known_features(name: str, features: Any) -> None:
    if isinstance(features, LinearFunctional) or not jax.tree.leaves(features):
        return
    raise ValueError(
        f"update cannot go on with process '{name}': of its features, "
        f"{type(features).__name__}, only k_uu and k_uf are known, and they may have "
        "moved, since they are no pytree without arrays. Use a LinearFunctional "
        "(Points, Derivative, Integral) or Fourier, or features of that kind."
    )


def _require_same_meaning(
    found: Mapping[str, tuple], within: Mapping[str, Any], params: Mapping[str, Any]
) -> None:
    """Refuse a moving kernel or mean of features that mean something only with it."""
    names = sorted(name for name, is_moving in within.items() if is_moving)
    if not names:
        return
    own = [n for n, (_, _, z) in found.items() if not isinstance(z, LinearFunctional)]
    raise ValueError(
        f"update cannot go on with {names} free: with another kernel or mean, the "
        f"features of the process(es) {own}, which are not functionals of f, stand for "
        "another f than the one that was learnt. Freeze what has been learnt, "
        f"freeze={{parameter: np.inf}}, with names of {sorted(params)}; or take "
        "inducing inputs."
    )


def _with_seen(model: Callable, seen: Mapping[str, _Seen]) -> Callable:
    """The model with E log t(f(z_before)) of each process as a factor."""

    def run(*args, **kwargs):
        found = _Processes()
        with found:
            result = model(*args, **kwargs)
        for name, process in found.by_name.items():
            factor = dist.Unit(_expectation(seen[name], process))
            infer = {"is_auxiliary": True, "memory": True}
            numpyro.sample(f"{name}_seen", factor, obs=jnp.zeros(0), infer=infer)
        return result

    return run


def _expectation(seen: _Seen, process: SparseGP) -> jax.Array:
    dtype = process.scale_tril.dtype
    mean, cov = _moments_at(seen.z, process)
    h, data = (jnp.asarray(a, dtype) for a in seen.sites[:2])
    rest = data - matmul(h, mean[..., None])[..., 0]
    return -0.5 * (jnp.sum(jnp.square(rest)) + jnp.sum(matmul(h, cov) * h))


def _moments_at(features: Any, process: SparseGP) -> tuple[jax.Array, jax.Array]:
    """Mean [P, M] and covariance [P, M, M] of u at the features under the new q.

    u is not f(z) alone: beyond it, it has the jitter and the white noise of the kernel,
    which stay with each u_m where z_m moves.
    """
    kernel, tril = process.kernel, process.scale_tril
    own: Any = process.features
    if isinstance(features, LinearFunctional):
        features = jax.tree.map(lambda a: jnp.asarray(a, tril.dtype), features)
        beyond = matmul(tril, tril.T) - covariance(kernel, own, own)
        across = covariance(kernel, own, features) + beyond
        a = whiten(process.factor, across)
        left = covariance(kernel, features, features) + beyond - matmul(a.T, a)
    else:  # they have not moved: u = L v
        a, left = tril.T, jnp.zeros_like(tril)
    mean = replace(process, features=features).inducing_mean
    projected = project_outputs(process.qv, a)
    if projected.factor is not None:
        factor = projected.factor
        left = left + matmul(jnp.swapaxes(factor, -1, -2), factor)
    return mean + projected.mean, left


class _Processes(Messenger):
    """A NumPyro handler that keeps every process with its q(v), or its values."""

    def __init__(self):
        self.by_name: dict[str, SparseGP] = {}
        super().__init__()

    def postprocess_message(self, msg: Any) -> None:
        """Keep the process."""
        if msg["type"] == "sample" and is_inducing(msg):
            qv, process = msg["value"], msg["infer"]["inducing"]["process"]
            if not isinstance(qv, dist.Distribution):
                qv = dist.Delta(qv, event_dim=jnp.ndim(qv))
            self.by_name[msg["name"]] = replace(process, qv=qv)
