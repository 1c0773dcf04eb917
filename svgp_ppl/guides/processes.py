"""What the guides have in common: q(v) for the processes, a guide for the rest."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.distributions import constraints
from numpyro.handlers import block, seed
from numpyro.infer.autoguide import AutoDelta, AutoGuide

from svgp_ppl.guides.latent_sites import set_up_by_sites
from svgp_ppl.guides.points import PointEstimates
from svgp_ppl.handlers import is_inducing, prototype, set_up, trace_of
from svgp_ppl.keys import random_key
from svgp_ppl.observations import expected_of, observe_sites
from svgp_ppl.plates import first_rows
from svgp_ppl.runtime.compilation import as_jax_arrays, inspected
from svgp_ppl.variational import log_weights, split, unstack

__all__ = [
    "Group",
    "ProcessGuide",
    "gaussian",
    "off_zero",
    "param",
    "require_covariance",
]

# Standard deviation at the start, where the prior has 1: 0.005 nats of the bound.
_SMALL = 0.1

Shapes = Mapping[str, tuple[int, ...]]


class Group(NamedTuple):
    """A q(v) that several processes share.

    Attributes:
        qv: Distribution over their stacked values, event shape [ΣM].
        members: Process name -> shape of its v, in the order of the stack.

    Example:
        >>> joint = dist.Normal(jnp.zeros(5), 1.0).to_event(1)
        >>> group = gp.guides.Group(joint, {"f": (2,), "g": (3,)})
    """

    qv: dist.Distribution
    members: Shapes


class ProcessGuide(AutoGuide):
    """A guide made of q(v) over the whitened values and another guide for the rest.

    The base of ``AutoGaussian`` and its siblings, and of a guide with your own family:
    a subclass defines the distributions, in :meth:`variational`.

    Args:
        model: The model.
        rest: A NumPyro autoguide class (or function of a model) for the other latent
            sites; ``AutoDelta`` finds their maximum a posteriori values.
        prefix: Prefix of the parameter names.
        **options: As for NumPyro's ``AutoGuide``.

    Example:
        >>> import svgp_ppl as gp
        >>> class AutoPoint(gp.guides.ProcessGuide):
        ...     def variational(self, shapes, param):
        ...         v = {n: param(f"{n}_v", jnp.zeros(s)) for n, s in shapes.items()}
        ...         return {n: dist.Delta(v, event_dim=v.ndim) for n, v in v.items()}
    """

    def __init__(
        self,
        model: Callable,
        *,
        rest: Callable[[Callable], AutoGuide] = AutoDelta,
        prefix: str = "auto",
        **options,
    ):
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._is_product = False  # whether a likelihood sees several components
        self._rest_of, self._rest = rest, None
        # Run only for its shapes: a subsampled plate need not list all the data.
        seen = first_rows(block(model, hide_fn=_is_absent))
        super().__init__(seen, prefix=prefix, **options)

    @property
    def rest(self) -> AutoGuide | None:
        """The guide of the other latent sites; None without them, and before set-up."""
        return self._rest

    @abstractmethod
    def variational(
        self, shapes: Shapes, param: Callable
    ) -> Mapping[str, dist.Distribution | Group]:
        """The q(v) of every process, by name of the site.

        Args:
            shapes: Process name -> shape of its v, (M,) or (P, M).
            param: ``param(name, initial, constraint)``, to be called for every
                parameter of a q(v), like ``numpyro.param``.

        Returns:
            Process name -> q(v) of the event shape of its v; and another name ->
            :class:`Group` for a q(v) that several processes share.
        """

    def _setup_prototype(self, *args, **kwargs):
        # Shapes are all that is needed; NumPyro's set-up also evaluates the density.
        args, kwargs = as_jax_arrays(args, kwargs)

        def first_run(key):
            with block():
                trace = trace_of(self.model, args, kwargs, key=key)
                return prototype(trace), _has_several_components(trace)

        key = random_key()
        if key is None:
            raise ValueError(
                "the guide runs the model when it is first called, and draws its "
                "sites: run it under numpyro.handlers.seed(guide, key)."
            )
        self.prototype_trace, self._is_product = inspected(first_run, key)
        latent = {
            name: site
            for name, site in self.prototype_trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        self._shapes = {
            name: site["event_shape"]
            for name, site in latent.items()
            if is_inducing(site)
        }
        if not self._shapes:
            raise ValueError(
                "the model has no sparse_gp site for this guide to hold a q(v) of; "
                "use a guide of numpyro.infer.autoguide."
            )
        if len(latent) > len(self._shapes):
            if self._rest is None:
                self._rest = self._make_rest(block(self.model, hide_fn=_is_hidden))
            # Set up now, and not at the first call, which is in compiled code.
            self._rest.prototype_trace = None
            is_compiled = isinstance(self._rest, PointEstimates)
            set_up_rest = set_up if is_compiled else set_up_by_sites
            set_up_rest(self._rest, random_key(), args, kwargs)

    def _make_rest(self, model: Callable) -> AutoGuide:
        of = PointEstimates if self._rest_of is AutoDelta else self._rest_of
        return of(model)

    def _of_run(
        self, values: dict, args: tuple, kwargs: dict
    ) -> dict[str, tuple[Any, Shapes | None]]:
        """As :meth:`_groups`, given the other latent sites and the arguments."""
        return self._groups(param)

    def __call__(self, *args, **kwargs):
        """Sample v of every process and the other latent sites."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        values = {} if self._rest is None else dict(self._rest(*args, **kwargs))
        for name, (qv, members) in self._of_run(values, args, kwargs).items():
            if members is None:
                values[name] = numpyro.sample(name, qv)
                continue
            joint = numpyro.sample(name, qv, infer={"is_auxiliary": True})
            for process, share in split(name, qv, jnp.asarray(joint), members).items():
                values[process] = numpyro.sample(process, share)
        return values

    def _groups(self, param: Callable) -> dict[str, tuple[Any, Shapes | None]]:
        """Name of the site -> its q(v), and the processes that share it, if any."""
        found = self.variational(dict(self._shapes), param)
        return {
            name: (qv.qv, qv.members) if isinstance(qv, Group) else (qv, None)
            for name, qv in found.items()
        }

    def _fitted(self, params: dict) -> dict[str, tuple[Any, Shapes | None]]:
        if self.prototype_trace is None:
            raise ValueError(
                "the guide has not seen the model's arguments yet: fit it, or run it "
                "once under numpyro.handlers.seed."
            )

        def lookup(name, initial, constraint=None):
            return params[name]

        return self._groups(lookup)

    def variational_names(self, params: dict) -> set[str]:
        """Names of the parameters of q(v), among those of a fit."""
        names = set()

        def lookup(name, initial, constraint=None):
            names.add(name)
            return initial(random.key(0)) if callable(initial) else initial

        self.variational(dict(self._shapes), lookup)
        return names

    def late_names(self) -> set[str]:
        """Names of parameters that ``gp.fit`` freezes for the first half of its steps.

        These would run away while the rest of q(v) is still far from its optimum.
        """
        return set()

    def sample_posterior(self, rng_key, params, *args, sample_shape=(), **kwargs):
        """Draws of v and of the other latent sites, by site name.

        Args:
            rng_key: Random key.
            params: Parameters of a fit.
            *args: Arguments of the model; needed if the guide has not seen any.
            sample_shape: Leading axes of the draws.
            **kwargs: Keyword arguments of the model.
        """
        if self.prototype_trace is None and (args or kwargs):
            with block():
                seed(self, rng_key)(*args, **kwargs)
        key_rest, key = random.split(rng_key)
        values = {}
        if self._rest is not None:
            values = self._rest.sample_posterior(
                key_rest, params, *args, sample_shape=sample_shape, **kwargs
            )
        groups = self._fitted(params)
        for one, (name, (qv, members)) in zip(
            random.split(key, len(groups)), groups.items()
        ):
            draws = jnp.asarray(qv.sample(one, sample_shape))
            values |= _by_process(name, draws, members)
        return values

    def median(self, params):
        """The median of each latent site."""
        return self._point(params, jnp.asarray(0.5))

    def quantiles(self, params, quantiles):
        """Quantiles of each latent site, along a new first axis."""
        return self._point(params, jnp.asarray(quantiles))

    def _point(self, params: dict, q: jax.Array) -> dict:
        if self._rest is None:
            values = {}
        elif isinstance(self._rest, AutoDelta):  # a point is all of its quantiles
            points = self._rest.median(params).items()
            values = {n: jnp.broadcast_to(v, (*q.shape, *v.shape)) for n, v in points}
        else:  # NumPyro's AutoNormal has a row for a single q
            shapes = {n: jnp.shape(v) for n, v in self._rest.median(params).items()}
            values = {
                name: jnp.reshape(v, (*q.shape, *shapes[name]))
                for name, v in self._rest.quantiles(params, q).items()
            }
        for name, (qv, members) in self._fitted(params).items():
            values |= _by_process(name, _quantiles(qv, q), members)
        return values


def param(name: str, initial, constraint=constraints.real):
    """A parameter of a q(v)."""
    return numpyro.param(name, initial, constraint=constraint)


def off_zero(shape: tuple[int, ...]) -> Callable:
    """A start of m away from zero, as a function of a key.

    Only the first whitened value of each output is not zero. Then u = L m is a multiple
    of k(z, z_1), which for most kernels has one sign everywhere. With all m random, a
    product of two processes may become right on both sides of a point at which both
    change sign, and stay there.
    """

    def start(key):
        dtype = jnp.result_type(float)
        first = _SMALL * random.normal(key, shape[:-1], dtype)
        return jnp.zeros(shape, dtype).at[..., 0].set(first)

    return start


def require_covariance(covariance: str) -> None:
    """Raise unless ``covariance`` names a form of covariance."""
    if covariance not in ("full", "diagonal"):
        raise ValueError(
            f"covariance must be 'full' or 'diagonal', and not {covariance!r}."
        )


def gaussian(
    name: str,
    shape: tuple[int, ...],
    param: Callable,
    covariance: str = "full",
    scale: float = 1.0,
    start: Callable | None = None,
    num_components: int | None = None,
) -> dist.Distribution:
    """N(m, S Sᵀ) for each output, starting at N(0, scale² I).

    Its parameters are ``name``_loc, and ``name``_scale_tril or ``name``_scale; those of
    K components are called ``name``_locs and so on, with a first axis of K. ``start``
    is a function key -> start of m, None for 0.
    """
    dtype, plural = jnp.result_type(float), "" if num_components is None else "s"
    several = shape if num_components is None else (num_components, *shape)
    loc = param(
        f"{name}_loc{plural}", jnp.zeros(several, dtype) if start is None else start
    )
    # Not the last axis: inducing inputs that are parameters have an M of their own.
    if jnp.shape(loc)[:-1] != several[:-1]:
        what = "outputs" if num_components is None else "components or outputs"
        raise ValueError(
            f"parameter '{name}_loc{plural}' has shape {jnp.shape(loc)}, and the guide "
            f"needs {several}: it was fitted with another number of {what}. Construct "
            "model and guide as they were."
        )
    if covariance == "diagonal":
        full = jnp.full(several, scale, dtype)
        positive = constraints.softplus_positive
        scales = param(f"{name}_scale{plural}", full, positive)
        return dist.Normal(loc, scales).to_event(len(shape))
    eye = scale * jnp.eye(shape[-1], dtype=dtype)
    scale_tril = param(
        f"{name}_scale_tril{plural}",
        jnp.broadcast_to(eye, (*several, shape[-1])),
        constraints.softplus_lower_cholesky,
    )
    # No validation: NumPyro would compile its checks one by one.
    qv = dist.MultivariateNormal(loc, scale_tril=scale_tril, validate_args=False)
    return qv.to_event(len(shape) - 1)


def _by_process(name: str, value: jax.Array, members: Shapes | None) -> dict:
    """The values of each process, from those of a q(v)."""
    return {name: value} if members is None else unstack(value, members)


def _quantiles(qv: Any, q: jax.Array) -> jax.Array:
    """Quantiles of every whitened value, shape of q + event shape."""
    q = q.reshape(q.shape + (1,) * len(qv.event_shape))
    log_pi = log_weights(qv)
    if log_pi is None:
        return dist.Normal(qv.mean, jnp.sqrt(qv.variance)).icdf(q)
    components = qv.component_distribution
    each = dist.Normal(components.mean, jnp.sqrt(components.variance))
    # The axis of the components comes before those of the event.
    axis = -1 - len(qv.event_shape)
    weights = jnp.exp(log_pi).reshape(-1, *(1,) * len(qv.event_shape))
    # The quantile of the mixture is between those of its components.
    ends = each.icdf(jnp.expand_dims(q, axis))
    low, high = jnp.min(ends, axis=axis), jnp.max(ends, axis=axis)

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        cdf = each.cdf(jnp.expand_dims(middle, axis))
        below = jnp.sum(weights * cdf, axis=axis) < q
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, 60, halve, (low, high))
    return (low + high) / 2


def _has_several_components(trace: dict[str, dict]) -> bool:
    """Whether a likelihood may be a function of a product of components.

    Where all means are zero, so is the derivative of E (Σ_q w_q f_q − y)² with respect
    to each of them: a saddle point, which a fit that starts there never leaves.
    """
    return any(not each.latent.is_single for each in observe_sites(trace).values())


def _is_absent(site: dict) -> bool:
    """Data that were not passed: a guide may run at new inputs, where y is unknown."""
    return expected_of(site) is not None and not site["is_observed"]


def _is_hidden(site: dict) -> bool:
    """What the other guide must not see: processes and deterministic sites.

    Observed sites are hidden too: NumPyro would evaluate the density and its gradient,
    operation by operation, to check the start; ``fit`` checks the bound instead.
    """
    is_data = expected_of(site) is not None
    return is_data or is_inducing(site) or site["type"] == "deterministic"
