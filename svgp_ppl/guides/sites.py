"""q(v) that follows the other latent sites, by means of fixed pseudo-data.

A Gaussian q(v) holds for one θ: with another lengthscale, another v explains the data.
Pseudo-data y = H u + noise (``variational.sites``) say what the data say about u,
whatever θ is, and with them (u = m_θ + L_θ v)

    q(θ, v) = q(θ) q(v | θ),   q(v | θ) ∝ N(v; 0, I) exp(−½ ‖y − H (m_θ + L_θ v)‖²).

The parameters are those of q(θ), and y and H: the sites of expectation propagation, or
dual parameters of Opper & Archambeau 2009 and Adam, Chang, Khan & Solin 2021.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy.linalg
from jax import random
from jaxtyping import Array
from numpyro.handlers import Messenger, block, seed, substitute
from numpyro.infer.autoguide import AutoGuide, AutoMultivariateNormal
from numpyro.infer.initialization import init_to_value

from svgp_ppl.guides.blocks import as_blocks, groups_of, require_processes
from svgp_ppl.guides.fitted import centre_of, guide_and_params
from svgp_ppl.guides.processes import ProcessGuide, Shapes, off_zero, param
from svgp_ppl.handlers import is_inducing, is_point, set_up, trace_of
from svgp_ppl.observations import is_latent
from svgp_ppl.runtime.compilation import call, partition
from svgp_ppl.variational import (
    can_marginalise,
    group_of,
    is_coupled,
    log_weights,
    simplified,
)
from svgp_ppl.variational.sites import (
    Prior,
    gaussian_at,
    moments,
    pseudo_data_of,
    rows_of,
)

__all__ = ["AutoSites", "gaussians_of", "prior_of"]

# H of every site at the start, if there is no fit: weak, and not a stationary point.
_START = 0.1


class AutoSites(ProcessGuide):
    """q(θ, v) = q(θ) q(v | θ), a joint approximate posterior that keeps their relation.

    q(v) of every process is Gaussian given all other latent sites θ, and moves with
    them: it is the prior times Gaussian sites, pseudo-data y = H u + N(0, I) of the
    values u at the inducing inputs, which do not depend on θ. ``rest`` is the
    approximate posterior of θ, whose spread now has a use.

    The sites of process ``f`` are the parameters ``auto_f_projection``, H, [P, M, M],
    and ``auto_f_data``, y, [P, M]; of a block of processes ``auto_f_g_projection``,
    [1, ΣM, ΣM]. Start from a fit: q(v | θ) then starts as its q(v), and θ at its point
    estimates. The guide runs the model for the prior of u at θ.

    Args:
        model: The model.
        start: What ``gp.fit`` returned for the same model and arguments, or ``(guide,
            params)``, with a Gaussian (or a mixture) for every process; ``param``
            sites of the model start there too. Without it the sites start weak, and
            the guide needs more steps.
        blocks: Names of the processes that share a Gaussian given θ, block by block, as
            in :class:`AutoCoupled`, None for all of them; none share one by default.
        rest: A NumPyro autoguide class (or function of a model) for θ.
        prefix: Prefix of the parameter names.

    Raises:
        ValueError: As in :class:`AutoCoupled`; or the start is not a fit of this model.

    Example:
        >>> guide = gp.AutoSites(model, fitted)
        >>> joint = gp.fit(random.key(1), model, guide, x, y, num_steps=5)
        >>> draws = guide.sample_posterior(
        ...     random.key(2), joint.params, x, y, sample_shape=(10,)
        ... )
        >>> draws["lengthscale"].shape
        (10,)
    """

    def __init__(
        self,
        model: Callable,
        start: Any = None,
        *,
        blocks: Sequence[Sequence[str]] | None = (),
        rest: Callable[..., AutoGuide] = AutoMultivariateNormal,
        **options,
    ):
        self._origin = None if start is None else guide_and_params(start, "start")
        self._start: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._centre: dict[str, Any] | None = None
        self._members: dict[str, Shapes | None] = {}  # as groups_of gives them
        self.blocks = as_blocks(blocks)
        super().__init__(model, rest=rest, **options)

    def _setup_prototype(self, *args, **kwargs):
        found = None
        if self._origin is not None and self._centre is None:
            self._centre, found = _fitted(self.model, *self._origin, args, kwargs)
        super()._setup_prototype(*args, **kwargs)
        require_processes(self.blocks, self._shapes, self.prefix)
        self._members = groups_of(self.blocks, self._shapes, self.prefix)
        if found is not None:
            self._start = {
                name: _sites_at(list(members or [name]), found, members is not None)
                for name, members in self._members.items()
            }

    def _make_rest(self, model: Callable) -> AutoGuide:
        if self._centre is None or not isinstance(self._rest_of, type):
            return super()._make_rest(model)
        at_centre = init_to_value(values=self._centre)
        return self._rest_of(model, init_loc_fn=at_centre)

    def _of_run(
        self, values: dict, args: tuple, kwargs: dict
    ) -> dict[str, tuple[Any, Shapes | None]]:
        priors = self._priors(values, args, kwargs)
        groups = {}
        for name, members in self._members.items():
            shape = self._shape_of(name)
            projection, data = self._sites(name)
            chosen = [priors[process] for process in members or [name]]
            loc, scale_tril = gaussian_at(projection, data, chosen)
            if len(shape) == 1:
                loc, scale_tril = loc[0], scale_tril[0]
            qv = dist.MultivariateNormal(
                loc, scale_tril=scale_tril, validate_args=False
            )
            groups[name] = qv.to_event(len(shape) - 1), members
        return groups

    def _shape_of(self, name: str) -> tuple[int, ...]:
        """Shape of the values of a group: stacked, or those of its one process."""
        members = self._members[name]
        if members is None:
            return self._shapes[name]
        return (sum(map(math.prod, members.values())),)

    def _sites(self, name: str) -> tuple[Array, Array]:
        """The parameters H and y of a group."""
        shape = self._shape_of(name)
        shape = shape if len(shape) == 2 else (1, *shape)
        if name in self._start:
            projection, data = self._start[name]
        else:
            eye = _START * np.eye(shape[1])
            projection = np.broadcast_to(eye, (*shape, shape[1]))
            data = np.zeros(shape)
        stem, dtype = self._stem(name), jnp.result_type(float)
        start: Any = jnp.asarray(data, dtype)
        if self._is_product and name not in self._start:
            start = off_zero(shape)
        h: Any = param(f"{stem}_projection", jnp.asarray(projection, dtype))
        y: Any = param(f"{stem}_data", start)
        return h, y

    def _stem(self, name: str) -> str:
        return f"{self.prefix}_{name}" if self._members[name] is None else name

    def _priors(self, values: dict, args: tuple, kwargs: dict) -> dict[str, Prior]:
        """The prior of u of every process, given values of the other latent sites."""
        of_v = {n: jnp.zeros(shape) for n, shape in self._shapes.items()}
        model = self.model
        if self._origin is not None:
            model = _StartParams(model, self._origin[1])
        # Only the parameters are visible outside: they have values there.
        with block(hide_fn=lambda site: site["type"] != "param"):
            sites = trace_of(
                model, args, kwargs, key=random.key(0), values=values | of_v
            )
        return {name: prior_of(sites[name]) for name in self._shapes}

    def variational(self, shapes: Shapes, param: Callable):
        """Raises: there is no q(v) without the other latent sites."""
        raise ValueError(
            "q(v) of AutoSites depends on the other latent sites, and has no quantiles "
            "without them: take those of draws, guide.sample_posterior(key, params, "
            "*args, sample_shape=(1000,)), or gp.predict."
        )

    def variational_names(self, params: dict) -> set[str]:
        """Names of the parameters of q(v | θ), among those of a fit."""
        stems = map(self._stem, self._members)
        return {f"{stem}_{kind}" for stem in stems for kind in ("projection", "data")}

    def sample_posterior(self, rng_key, params, *args, sample_shape=(), **kwargs):
        """Draws of v and of the other latent sites, by site name.

        Args:
            rng_key: Random key.
            params: Parameters of a fit.
            *args: Arguments of the model, which the guide runs.
            sample_shape: Leading axes of the draws.
            **kwargs: Keyword arguments of the model.
        """
        set_up(self, rng_key, args, kwargs)
        auxiliary = set(self._members) - set(self._shapes)

        def one(key):
            run: Any = seed(substitute(self, data=dict(params)), key)
            values = run(*args, **kwargs)
            return {n: v for n, v in values.items() if n not in auxiliary}

        with block():
            if not sample_shape:
                return one(rng_key)
            keys = random.split(rng_key, math.prod(sample_shape))
            draws = jax.lax.map(one, keys)
        return jax.tree.map(lambda a: a.reshape(*sample_shape, *a.shape[1:]), draws)


class _StartParams(Messenger):
    """A NumPyro handler: ``param`` sites start at these values instead of their own.

    Args:
        fn: The model.
        values: By name; a site that is not among them is left alone.
    """

    def __init__(self, fn: Callable, values: Mapping[str, Any]):
        self.values = dict(values)
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        """Give a site its start; a value from an outer handler still replaces it."""
        if msg["type"] == "param" and msg["name"] in self.values:
            msg["fn"] = lambda value, *_, **__: value
            msg["args"] = (self.values[msg["name"]],)


def gaussians_of(
    model_trace: Mapping[str, dict], guide_trace: Mapping[str, dict]
) -> tuple[list[tuple[Array, Array, dict[str, Prior]]], Array]:
    """Every q(v) that is marginalised and not a point, with its priors.

    Returns:
        For each: mean [B, T], covariance [B, T, T] (``variational.sites.moments``) and
        the priors of its processes, in the order of the stack. And whether one of them
        is a mixture, which its moments do not determine.
    """
    groups: dict[str, dict[str, Any]] = {}
    for name, site in model_trace.items():
        if not is_inducing(site) or name not in guide_trace:
            continue
        qv = simplified(guide_trace[name]["fn"], site["fn"].event_shape)
        if can_marginalise(qv) and not is_point(qv):
            group = group_of(name, qv) if is_coupled(qv) else name
            groups.setdefault(group, {})[name] = qv
    found = []
    for qvs in groups.values():
        # In the order of the stack; a program would sort the keys of a plain dict.
        priors = OrderedDict((name, prior_of(model_trace[name])) for name in qvs)
        sizes = [len(prior.scale_tril) for prior in priors.values()]
        found.append((*moments(list(qvs.values()), sizes), priors))
    every = [qv for qvs in groups.values() for qv in qvs.values()]
    return found, jnp.asarray(any(log_weights(qv) is not None for qv in every))


def prior_of(site: dict) -> Prior:
    """The prior of u, from the site of a process."""
    process = site["infer"]["inducing"]["process"]
    return Prior(process.inducing_mean, process.scale_tril)


def _fitted(model: Callable, guide: Callable, params: Mapping, args, kwargs):
    """θ at a fit, and the moments of its q(v) with the priors there."""
    params = dict(params)
    set_up(guide, random.key(0), args, kwargs)
    arrays, combine, static = partition(args, kwargs)

    def at_fit(key, params, arrays):
        args, kwargs = combine(arrays)
        centre = centre_of(key, guide, params, args, kwargs)
        of_guide = trace_of(guide, args, kwargs, key=key, values=params | centre)
        of_model = trace_of(model, args, kwargs, key=key, values=params | centre)
        for name, site in of_model.items():
            if is_inducing(site) and name not in of_guide:
                raise ValueError(
                    f"start has no q(v) of the process '{name}': is it a fit of "
                    "another model?"
                )
        found, _ = gaussians_of(of_model, of_guide)
        latent = {name for name, site in of_model.items() if is_latent(site)}
        return {n: centre[n] for n in latent & set(centre)}, found

    made_of = ("start of sites", model, guide, static)
    found = call(at_fit, made_of, random.key(0), params, arrays, runs_once=True)
    return jax.device_get(found)


def _sites_at(
    names: Sequence[str], found: list, is_stacked: bool
) -> tuple[np.ndarray, np.ndarray]:
    """H and y of a group, from every q(v) of a fit and the priors there."""
    held = [one for one in found if not one[2].keys().isdisjoint(names)]
    stacked = {name: prior for *_, priors in held for name, prior in priors.items()}
    missing = sorted(set(names) - set(stacked))
    if missing:
        raise ValueError(
            f"start has no Gaussian q(v) of the process(es) {missing}: AutoGaussian, "
            "AutoCoupled, AutoDeep and AutoMixture have one."
        )
    loc = np.concatenate([np.ravel(loc) for loc, _, _ in held])
    every = [block for _, blocks, _ in held for block in blocks]
    covariance = np.asarray(scipy.linalg.block_diag(*every))
    places = rows_of(stacked)
    rows = np.concatenate([np.ravel(places[name]) for name in names])
    loc, covariance = loc[rows], covariance[np.ix_(rows, rows)]
    priors = {name: stacked[name] for name in names}
    num_groups = 1 if is_stacked else len(priors[names[0]].mean)
    loc = loc.reshape(num_groups, -1)
    blocks = covariance.reshape(num_groups, loc.shape[1], num_groups, loc.shape[1])
    diagonal = np.arange(num_groups)
    return pseudo_data_of(loc, blocks[diagonal, :, diagonal], priors)
