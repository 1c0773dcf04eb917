"""Running a model: its trace, the marks of its sites, and what a guide puts in them.

The home of what is private to NumPyro: how messages travel, and the contents of the
stack of handlers (which ``runtime.compilation`` reads as well). A site is recognised
here, and each kind in one way:

    is_inducing    the whitened values of a process        (``sparse_gp``)
    is_layer       the draw of a layer                     (``propagate``)
    unwrapped      the distribution under masks, expansions and ``to_event``
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from numpyro.handlers import Messenger, block, replay, scope, seed, substitute, trace
from numpyro.infer.autoguide import AutoGuide, AutoGuideList
from numpyro.infer.util import _unconstrain_reparam
from numpyro.optim import _NumPyroOptim as NumPyroOptimizer
from numpyro.primitives import _PYRO_STACK, apply_stack

from svgp_ppl.latent import NOT_AN_ARRAY, Latent
from svgp_ppl.rows.sharding import automatic
from svgp_ppl.runtime.compilation import TRACING
from svgp_ppl.variational import can_marginalise, group_of, simplified
from svgp_ppl.variational.sample_path import ExactPath, FeaturePath, SamplePath

__all__ = [
    "NumPyroOptimizer",
    "PathMethod",
    "as_sample_paths",
    "at_position",
    "counts_once",
    "enclosing",
    "is_inducing",
    "is_layer",
    "is_point",
    "marginalised",
    "marked_deterministic",
    "mutable",
    "outside",
    "prototype",
    "replay_distributions",
    "require_new_site",
    "require_no_process",
    "set_up",
    "times_counted",
    "trace_of",
    "traces_of",
    "unpacked",
    "unwrapped",
]

PathMethod = Literal["exact", "pathwise"]
Handler = TypeVar("Handler", bound=Messenger)

_WRAPPERS = dist.MaskedDistribution | dist.ExpandedDistribution | dist.Independent


# ------------------------------------------------------------------- running a model


def trace_of(
    fn: Callable,
    args: tuple,
    kwargs: Mapping[str, Any],
    *,
    key=None,
    values: Mapping[str, Any] | None = None,
    guide_trace: Any = None,
    outer: Callable[[Callable], Callable] | None = None,
) -> dict[str, dict]:
    """The sites of one run of a model or guide, by name.

    Args:
        fn: Model or guide.
        args: Its arguments.
        kwargs: Its keyword arguments.
        key: Random key of ``numpyro.handlers.seed``; None for a run that draws nothing.
        values: Values at ``param`` and latent sites, by name. A deterministic site is
            computed anew, whatever its name has: it may depend on the arguments.
        guide_trace: Trace of a guide that the model replays, with its variational
            distributions in place of the draws of whitened values.
        outer: A handler around all of these, which sees the values they give.
    """
    run = fn if key is None else seed(fn, key)
    run = run if guide_trace is None else replay_distributions(run, guide_trace)
    run = run if values is None else _given(run, data=dict(values))
    run = run if outer is None else outer(run)
    try:
        with TRACING:
            sites = dict(_distinct(run).get_trace(*args, **kwargs))
    except (TypeError, AssertionError) as error:
        if "size of plate" in str(error):
            message = "a plate of the model has no rows: its size must be positive."
            raise ValueError(f"{message} Is x empty?") from error
        # JAX, given a latent, can only say that it knows no such type.
        if f"{Latent.__module__}.{Latent.__name__}" not in str(error):
            raise
        raise ValueError(NOT_AN_ARRAY) from error
    for name, site in sites.items():
        if site["type"] == "deterministic" and isinstance(site["value"], Latent):
            raise ValueError(
                f"the deterministic site '{name}' is a latent, which has no values: "
                f"record its moments, numpyro.deterministic('{name}', f(x).mean)."
            )
    return sites


class _distinct(trace):
    """NumPyro's trace, in which a site never takes the place of another kind of site.

    In NumPyro's a later plate or ``param`` does: the earlier site is forgotten.
    """

    def process_message(self, msg: Any) -> None:
        """Refuse to draw what has no distribution, in words; NumPyro has none."""
        is_drawn = msg["type"] == "sample" and msg["value"] is None
        if is_drawn and isinstance(unwrapped(msg["fn"])[0], dist.ImproperUniform):
            raise ValueError(
                f"latent site '{msg['name']}' has an improper prior, of which nothing "
                "can be drawn to start with: give it a proper one, however wide, such "
                "as dist.HalfCauchy(10.0), or make it a numpyro.param."
            )

    def postprocess_message(self, msg: Any) -> None:
        """Record the site."""
        earlier: Any = self.trace.get(msg.get("name"), msg)
        if earlier["type"] != msg["type"]:
            raise ValueError(
                f"two sites are named '{msg['name']}', first a {earlier['type']} site "
                f"and then a {msg['type']} site, and only one would count: rename one "
                "of them."
            )
        super().postprocess_message(msg)


class _given(substitute):
    """A NumPyro handler: values at all sites that are not computed from others."""

    def process_message(self, msg: Any) -> None:
        """Give the site its value."""
        if msg["type"] != "deterministic":
            super().process_message(msg)


def traces_of(
    guide: Callable,
    model: Callable,
    args: tuple,
    kwargs: Mapping[str, Any],
    *,
    keys: Any,
    values: Mapping[str, Any],
) -> tuple[dict[str, dict], dict[str, dict]]:
    """The sites of a guide, and those of the model with the guide's q(v) in force.

    Args:
        guide: The guide, which runs first.
        model: The model, which replays it.
        args: Arguments of both.
        kwargs: Their keyword arguments.
        keys: Random keys of the guide and of the model.
        values: Values at ``param`` sites, by name. The guide may change NumPyro's
            ``mutable`` ones before the model runs.
    """
    key_guide, key_model = keys
    of_guide = trace_of(guide, args, kwargs, key=key_guide, values=values)
    run = {"key": key_model, "values": {**values, **mutable(of_guide)}}
    return of_guide, trace_of(model, args, kwargs, guide_trace=of_guide, **run)


def mutable(sites: dict[str, dict]) -> dict[str, Any]:
    """Values of NumPyro's ``mutable`` sites, by name."""
    return {n: s["value"] for n, s in sites.items() if s["type"] == "mutable"}


def set_up(guide: Callable, key, args: tuple, kwargs: Mapping[str, Any]) -> None:
    """Let an automatic guide run the model once, outside compiled code.

    Inside a trace it would keep tracers, as a hand-written guide may.
    """
    if isinstance(guide, AutoGuide) and guide.prototype_trace is not None:
        return
    args, kwargs = jax.tree.map(automatic, (args, kwargs))
    with TRACING, block(), seed(rng_seed=key):
        if isinstance(guide, AutoGuide) and not isinstance(guide, AutoGuideList):
            guide._setup_prototype(*args, **kwargs)
        else:
            guide(*args, **kwargs)


def unpacked(guide: Any, latent: Any) -> dict[str, Any]:
    """Unconstrained values by site, from the flat ones of an ``AutoContinuous``."""
    return guide._unpack_latent(jnp.asarray(latent))


def enclosing(kind: type[Handler]) -> list[Handler]:
    """The handlers of a kind that a site would be in now, from the outside in."""
    return [handler for handler in _PYRO_STACK if isinstance(handler, kind)]


@contextmanager
def outside(handler: Messenger) -> Iterator[None]:
    """Sites made here are seen only by the handlers around this one.

    For a handler that makes other sites of one: what the inner handlers do (a name, a
    scale, a mask) they have done to that one already.
    """
    start = _PYRO_STACK.index(handler)
    inner = _PYRO_STACK[start:]
    del _PYRO_STACK[start:]
    try:
        yield
    finally:
        _PYRO_STACK.extend(inner)


class at_position(substitute):
    """A NumPyro handler: latent sites at unconstrained values, with log Jacobians.

    As in ``numpyro.infer.util.potential_energy``, except that a ``scale`` or ``mask``
    around a site leaves its log Jacobian as it is: the density is one of θ, whatever
    its unconstrained values are.
    """

    def __init__(self, fn: Callable, position: Mapping[str, Any]):
        super().__init__(fn, substitute_fn=partial(_unconstrain_reparam, position))

    def process_message(self, msg: Any) -> None:
        """Give the site its value; the factor that this makes is for others around."""
        with outside(self):
            super().process_message(msg)


def marked_deterministic(name: str, value: Any, mark: dict[str, Any]) -> Any:
    """``numpyro.deterministic``, with a mark in the site's ``infer``."""
    message: dict[str, Any] = {"type": "deterministic", "name": name, "value": value}
    return apply_stack({**message, "cond_indep_stack": [], "infer": mark})["value"]


def prototype(sites: dict[str, dict]) -> dict[str, dict]:
    """Facts of a run before anything is computed: no values, no distributions.

    Marks stay in ``infer``; a sample site keeps its ``event_shape``.
    """
    found = {}
    for name, site in sites.items():
        infer = {"inducing": True} if is_inducing(site) else {}
        infer = {"layer": site["infer"]["layer"]} if is_layer(site) else infer
        known = {"type": site["type"], "name": name, "infer": infer}
        known["is_observed"] = site.get("is_observed", False)
        if site["type"] == "sample":
            known["event_shape"] = site["fn"].event_shape
        found[name] = known
    return found


# ------------------------------------------------------------------- the marks of sites


def is_inducing(site: dict) -> bool:
    """Whether a site of a trace holds the whitened values of a process."""
    return site["type"] == "sample" and "inducing" in site["infer"]


def is_layer(site: dict) -> bool:
    """Whether a site of a trace holds the draw of a layer."""
    return site["type"] == "deterministic" and "layer" in site.get("infer", {})


def unwrapped(distribution: Any) -> tuple[Any, Any]:
    """A distribution without its wrappers, and its mask.

    Returns:
        The distribution inside every mask, ``expand`` and ``to_event``, and the mask:
        True, or a boolean or array that broadcasts to the batch shape.
    """
    mask: Any = True
    while isinstance(distribution, _WRAPPERS):
        if isinstance(distribution, dist.MaskedDistribution):
            own = distribution._mask
            mask = own if mask is True else (mask if own is True else mask & own)
        distribution = distribution.base_dist
    return distribution, mask


def times_counted(site: dict) -> Any:
    """How often the density of a site counts: ``numpyro.handlers.scale`` and ``mask``.

    The number 1.0 where there is no such handler.
    """
    scale = 1.0 if site["scale"] is None else site["scale"]
    mask = unwrapped(site["fn"])[1]
    return scale if mask is True else jnp.where(mask, scale, 0.0)


def counts_once(site: dict) -> bool:
    """Whether the density of a site counts once, as far as handlers know."""
    times = times_counted(site)
    return isinstance(times, float | int) and times == 1


def is_point(distribution: Any) -> bool:
    """Whether a distribution is a point, whatever it is wrapped in."""
    return isinstance(unwrapped(distribution)[0], dist.Delta)


def require_new_site(name: str, prior: dist.Distribution, infer: dict) -> str:
    """The name under which handlers will record the site; raise if it is taken.

    The handlers are asked from the inside out, as messages travel: ``scope`` renames,
    and nothing beyond a ``block`` that hides the site sees it.
    """
    message: dict[str, Any] = {"type": "sample", "name": name, "fn": prior}
    message |= {"infer": infer, "is_observed": False, "value": None}
    for handler in reversed(_PYRO_STACK):
        match handler:
            case scope():
                handler.process_message(message)
            case block() if handler.hide_fn(message):
                break
            case trace() if message["name"] in handler.trace:
                raise ValueError(
                    f"the model has two sites named '{message['name']}'. Every process "
                    "needs a name of its own; one process seen at several inputs is "
                    "called several times: f(x1) - f(x2)."
                )
    return message["name"]


# ------------------------------------------------------------ a guide's distributions


class replay_distributions(replay):
    """Replay a guide, with its q(v) in place of the draws of whitened values.

    A NumPyro handler: a model under it sees each process with its q(v) in force.
    """

    def process_message(self, msg):
        """Give the site its q(v), or the value from ``replay``."""
        name = msg.get("name")
        is_process = msg["type"] == "sample" and is_inducing(msg)
        if is_process and (name in self.trace or msg["value"] is None):
            _require_own_site(msg["name"], msg["fn"].event_shape, self.trace)
        if is_process and name in self.trace:
            qv = simplified(self.trace[name]["fn"], msg["fn"].event_shape)
            # A point is left to replay: a guide may give it a log density of its own.
            if can_marginalise(qv) and not is_point(qv):
                msg["value"] = qv
                return
            if not is_point(qv):
                warnings.warn(
                    f"q(v) of process '{name}' is a {type(qv).__name__}, which is "
                    "sampled and not marginalised. Gaussians that are: "
                    "dist.MultivariateNormal(m, scale_tril=L) and "
                    "dist.Normal(m, s).to_event(1), of event shape "
                    f"{msg['fn'].event_shape}; and classes that are registered with "
                    "gp.variational.project.register.",
                    stacklevel=2,
                )
        infer = msg.get("infer", {})
        super().process_message(msg)
        if "inducing" in infer:  # replay puts the guide's in its place
            msg["infer"] = {**msg["infer"], **infer}


def _require_own_site(name: str, shape: tuple, guide_trace: dict[str, dict]) -> None:
    """Raise unless a guide has a site for a process, which is not a process itself."""
    if name not in guide_trace:
        raise ValueError(
            f"the guide has no site for the process '{name}'. Use "
            f'gp.AutoGaussian(model), or add numpyro.sample("{name}", ...) with a '
            f"distribution over v, event shape {shape}; a fit or guide of another "
            "model cannot be used for this one."
        )
    require_no_process({name: guide_trace[name]})


def require_no_process(guide_trace: Mapping[str, dict]) -> None:
    """Raise if a guide makes a process, as a model does."""
    for name in [name for name, site in guide_trace.items() if is_inducing(site)]:
        raise ValueError(
            f"the guide makes the process '{name}' by sparse_gp, as a model does. Were "
            "the model and the guide exchanged? A guide is gp.AutoGaussian(model), or "
            f'a function with numpyro.sample("{name}", ...).'
        )


def marginalised(model_trace: dict[str, dict]) -> set[str]:
    """Names of the guide's sites that the model has as distributions, not as draws."""
    names = set()
    for name, site in model_trace.items():
        if isinstance(site.get("value"), dist.Distribution):
            names |= {name, group_of(name, site["value"])}
    return names


class as_sample_paths(Messenger):
    """Every process becomes one function, drawn given its whitened values.

    A NumPyro handler, outside those that give the values. Each run of the model draws
    the functions that belong to the key.

    Args:
        fn: The model.
        key: Random key.
        method: As in ``gp.draw_functions``.
        num_features: As in ``gp.draw_functions``.
    """

    def __init__(self, fn, key, method: PathMethod, num_features: int):
        self.key, self.method, self.num_features = key, method, num_features
        super().__init__(fn)

    def process_message(self, msg):
        """Give the site its function in place of v."""
        if msg["type"] != "sample" or not is_inducing(msg):
            return
        name, value, shape = msg["name"], msg["value"], msg["fn"].event_shape
        if value is None:
            raise ValueError(
                f"the posterior has no whitened values of the process '{name}'. Was it "
                "made with this model?"
            )
        if jnp.shape(value) != shape:
            raise ValueError(
                f"the whitened values of process '{name}' must have shape {shape} and "
                f"have {jnp.shape(value)}. Was the posterior made with these inducing "
                "inputs? (A process cannot be inside a plate: ask for several with "
                "num_outputs.)"
            )
        self.key, key = random.split(self.key)
        if self.method == "exact":
            function: Any = ExactPath(key, value)
        else:
            jitter = msg["infer"]["inducing"]["jitter"]
            function = FeaturePath(key, value, jitter, self.num_features)
        msg["value"] = SamplePath(value, function)
