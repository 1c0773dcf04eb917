"""Observations given a latent: the distribution of an ``observe`` site.

Its log probability is E_q log p(y_n|f_n) under the q(v) in force: the term of the bound
or, with a point in place of q(v), that of the log density for HMC.
"""

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array, Float

from svgp_ppl.checks import (
    InvalidRow,
    data_array,
    in_full,
    in_words,
    is_concrete,
    require_finite,
)
from svgp_ppl.expectations import (
    Method,
    log_predictive_density,
    predictive_mean_and_variance,
    shifted,
    variational_expectation,
)
from svgp_ppl.handlers import is_inducing, is_layer, unwrapped
from svgp_ppl.latent import Latent
from svgp_ppl.marginals import Marginal
from svgp_ppl.observations.chunks import in_chunks
from svgp_ppl.observations.missing import checked_mask, filled, of_entries, wide
from svgp_ppl.rows import named_rows
from svgp_ppl.rows.sharding import first_true, is_sharded
from svgp_ppl.runtime.dependence import inputs_read

__all__ = ["Expected", "expected_of", "is_latent", "latents_of", "observe_sites"]


class Expected(dist.Distribution):
    """Observations given a latent that is known up to its q(v).

    ``log_prob(y)`` is the expectation E_q log p(y|f) [N], the term of the bound;
    ``log_predictive(y)`` is log E_q p(y|f) [N]; ``sample`` draws f, then y.

    Attributes:
        likelihood: Callable f -> distribution.
        latent: The latent f.
        method: How the expectation is computed, None for the default.
        chunk_size: Data computed with at a time, None for all.
        key: Random key for Monte Carlo methods, None for fixed nodes.
        entries: Which entries of y count, of the shape of y, None for all.

    Example:
        >>> def model(x, y=None):
        ...     f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.7), z)
        ...     likelihood = gp.likelihoods.Poisson()
        ...     with numpyro.plate("data", len(x)):
        ...         numpyro.sample("y", gp.Expected(likelihood, f(x)), obs=y)  # observe
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("key", "entries")
    pytree_aux_fields = ("likelihood", "latent", "method", "chunk_size", "_example")

    def __init__(self, likelihood, latent, *, method=None, chunk_size=None, key=None):
        likelihood = _with_arrays(likelihood, latent)
        self.likelihood, self.latent = likelihood, latent
        self.method, self.chunk_size, self.key = method, chunk_size, key
        self.entries: Any = None
        self._example = _at_zero(likelihood, latent.shape)
        if not isinstance(self._example, dist.Distribution):
            raise ValueError(
                "a likelihood maps f to a NumPyro distribution; this one returned a "
                f"{type(self._example).__name__}. Make an object of gp.likelihoods "
                "first: Poisson(), not Poisson."
            )
        if self._example.batch_shape != (latent.num_data,):
            raise ValueError(
                f"the likelihood of a latent of shape {latent.shape} must have batch "
                f"shape ({latent.num_data},), and has {self._example.batch_shape}. "
                "With one component f is [..., N]; with several it is [..., N, Q], and "
                "components are taken as f[..., q]: several processes side by side are "
                "gp.stack([f(x), g(x)]), and a table y [N, Q] has one observe for each "
                "of its columns, or a likelihood with .to_event(1). A value that goes "
                "with the data (a scale, an exposure) is [N] and not [N, 1]."
            )
        super().__init__(self._example.batch_shape, self._example.event_shape)

    @property
    def support(self):
        """Support of the likelihood, at f = 0 if it depends on f."""
        return self._example.support

    @property
    def has_fixed_support(self) -> bool:
        """Whether the support is the same for all f, unlike that of Uniform(0, f)."""
        if dist.constraints.is_dependent(self.support):
            return False

        def inside(f, y):
            return self.likelihood(f).support(y)

        given = jnp.zeros(self.latent.shape), jnp.zeros(self.shape())
        return not inputs_read(jax.make_jaxpr(inside)(*given).jaxpr)[0]

    @property
    def called(self) -> str:
        """What an error calls the likelihood, a function by what it returns."""
        own = self.likelihood
        if not isinstance(type(own).__call__, FunctionType):
            own, _ = unwrapped(self._example)
        name = type(own).__name__
        return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"

    def marginal(self) -> Marginal:
        """Distribution of the latent at each datum."""
        return self.latent.marginal(self.chunk_size)

    def of_entries(self, known) -> "Expected":
        """The same for a table of which only some entries are known.

        Args:
            known: Mask of the shape of y; a mask of rows [N] changes nothing.
        """
        if np.shape(known) == self.batch_shape:
            return self
        other = copy.copy(self)
        other.entries = known
        of_entries(self.likelihood, known)(jnp.zeros(self.latent.shape))
        return other

    def log_prob(self, value, intermediates=None):
        """E_q log p(value_n | f_n), [N]."""
        return self.log_prob_of(value, self.marginal())

    def log_prob_of(
        self, value, marginal: Marginal, method: Method | None = None
    ) -> Float[Array, " N"]:
        """The same under another distribution of the latent at each datum.

        Args:
            value: Data, [N] (and event axes).
            marginal: The distribution.
            method: Another method than that of the site.
        """
        options: Any = {"method": method or self.method, "key": self.key}
        expectation = partial(variational_expectation, **options)
        return self._of_rows(expectation, value, marginal)

    def log_predictive(self, value) -> Float[Array, " N"]:
        """log E_q p(value_n | f_n), [N]."""
        return self._of_rows(log_predictive_density, value, self.marginal())

    def _of_rows(self, function: Callable, value, marginal: Marginal) -> Array:
        """``function(likelihood, y, marginal)`` with labels as integers, in chunks.

        Labels that are not integers, such as 0.5, reach this only if traced: NaN.
        """
        p, y = self.likelihood, in_full(value, marginal.mean.dtype)
        if self.entries is not None:
            p = of_entries(p, self.entries)
        if not _has_classes(self.support) or jnp.issubdtype(y.dtype, jnp.integer):
            return in_chunks(function, p, y, marginal, self.chunk_size)
        labels = y.astype(int)
        is_label = jnp.all(labels == y, axis=tuple(range(1, y.ndim)))
        values = in_chunks(function, p, labels, marginal, self.chunk_size)
        return jnp.where(is_label, values, jnp.nan)

    def sample(self, key: Any, sample_shape=()):
        """Draws of f_n from its marginal at each datum, then of y_n."""
        key_latent, key_data = random.split(key)
        return self.likelihood(self.sample_latent(key_latent, sample_shape)).sample(
            key_data
        )

    def sample_latent(self, key, sample_shape=()):
        """Draws of f_n from its marginal at each datum, independent between data."""
        key_component, key_latent = random.split(key)
        marginal = self.marginal()
        if marginal.log_weights is not None:
            k = random.categorical(
                key_component, marginal.log_weights, shape=sample_shape
            )
            marginal = marginal.component(k)
        noise = random.normal(
            key_latent, sample_shape + self.latent.shape, marginal.mean.dtype
        )
        return shifted(marginal, noise)

    @property
    def mean(self):
        """E y_n, [N]."""
        return predictive_mean_and_variance(self.likelihood, self.marginal())[0]

    @property
    def variance(self):
        """Var y_n, [N]."""
        return predictive_mean_and_variance(self.likelihood, self.marginal())[1]

    def checked_mask(self, name: str, mask) -> Any:
        """A mask of the rows or of all entries of y, as a boolean array.

        Args:
            name: Name of the site.
            mask: Array-like.

        Raises:
            ValueError: It is not boolean, has another shape, or its rows have the index
                of the inputs in another order.
        """
        what = f"the rows of the mask of site '{name}'"
        self.latent.require_same_rows(what, mask, "mask")
        return checked_mask(mask, name, self.batch_shape, self.event_shape)

    def checked_data(self, name: str, obs, known=None) -> Any:
        """The data as an array, with a value of the support where they are not known.

        Args:
            name: Name of the site.
            obs: The data, or None.
            known: Mask of the rows or of all entries, or None.

        Raises:
            ValueError: The data are impossible under this distribution.
        """
        if obs is None:
            return None
        self.latent.require_same_rows(f"the data of site '{name}'", obs, "y")
        obs = data_array(obs, f"the data of site '{name}'")
        self._require_shape(name, obs)
        advice = "Missing data are left out by observe(..., mask=~np.isnan(y))."
        where: Any = True
        if known is not None:
            advice = "The mask calls this entry known: mask=~np.isnan(y)."
            where = wide(known, np.ndim(obs))
        require_finite(obs, f"the data of site '{name}'", advice, where)
        if known is not None:
            obs = filled(obs, known, self.support)
        self._require_support(name, obs)
        return obs

    def _require_shape(self, name: str, obs) -> None:
        expected, came = self.batch_shape + self.event_shape, np.shape(obs)
        if came != expected:
            advice = ""
            if came == (*expected, 1):
                advice = " It would broadcast to [N, N]: write y[:, 0]."
            elif len(came) == 2 and len(expected) == 1 and _has_classes(self.support):
                advice = " Labels are numbers: np.argmax(y, axis=1) of one-hot rows."
            elif len(came) == len(expected):
                advice = " Give one for each row of x."
            raise ValueError(
                f"the data of site '{name}' must have shape {expected} and have {came}."
                + advice
            )

    def _require_support(self, name: str, obs) -> None:
        if not is_concrete(obs) or dist.constraints.is_dependent(self.support):
            return
        with jax.ensure_compile_time_eval():
            data = obs if is_sharded(obs) else np.asarray(obs)
            try:
                inside = self.support(data)
            except jax.errors.TracerArrayConversionError:
                return  # its ends are known only where the model runs
            if not is_concrete(inside):
                return
            shape = np.shape(inside) or data.shape  # [N] where a row is an event
            xp = jnp if is_sharded(data) else np
            first = first_true(~xp.broadcast_to(inside, shape))
            if first is None:
                return
            value = np.asarray(data[first])
        if not self.has_fixed_support:  # f decides
            return
        raise InvalidRow(
            lambda row: (
                f"the data of site '{name}' must lie in the support of the "
                f"likelihood, {in_words(self.support)}; among them is "
                f"{value} (row {row})."
            ),
            first[0],
        )


def _with_arrays(likelihood: Any, latent: Latent) -> Any:
    """An object of a likelihood whose lists and columns of tables are arrays."""
    if not dataclasses.is_dataclass(likelihood) or isinstance(likelihood, type):
        return likelihood
    found = {}
    for field in dataclasses.fields(likelihood):
        value = getattr(likelihood, field.name, None)
        is_list = isinstance(value, list) and _are_numbers(value)
        if field.init and (is_list or named_rows(value) is not None):
            own = type(likelihood).__name__
            what = f"the values of the {field.name} of a {own} likelihood"
            latent.require_same_rows(what, value, field.name)
            found[field.name] = data_array(value, what)
    return dataclasses.replace(likelihood, **found) if found else likelihood


def _are_numbers(values: list) -> bool:
    return bool(values) and all(isinstance(v, int | float | np.number) for v in values)


def _has_classes(support: Any) -> bool:
    """Whether a support is that of labels, the integers from one number to another."""
    support = getattr(support, "base_constraint", support)
    return isinstance(support, type(dist.constraints.integer_interval(0, 1)))


def _at_zero(likelihood: Callable, shape: tuple) -> Any:
    """The likelihood at f = 0, for its shapes.

    Raises:
        ValueError: It fails there.
    """
    f = jnp.zeros(shape)
    try:
        distribution = likelihood(f)
    except (TypeError, ValueError) as error:
        if _is_of_this_package(error):
            raise
        raise ValueError(
            f"the likelihood of a latent of shape {shape} fails: "
            f"{str(error).rstrip('.')}. Its values (scale, exposure, …) must be "
            "allowed by its distribution, and be a number or one for each datum, "
            f"({shape[0]},)."
        ) from error
    if getattr(distribution, "probs", None) is f:  # NumPyro would clip them
        raise ValueError(
            f"the likelihood of a latent of shape {shape} takes f, any number, for a "
            "probability: write dist.Bernoulli(logits=f), likewise for others, or map "
            "f to 0..1 first."
        )
    return distribution


def _is_of_this_package(error: BaseException) -> bool:
    """Whether an error was raised here, and says what to do."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    home = __name__.split(".")[0]
    where = "" if trace is None else trace.tb_frame.f_globals.get("__name__", "")
    return isinstance(error, ValueError) and where.split(".")[0] == home


def expected_of(site: dict) -> Expected | None:
    """The ``Expected`` of an ``observe`` site under any masks; None for other sites."""
    if site["type"] != "sample":
        return None
    distribution, _ = unwrapped(site["fn"])
    return distribution if isinstance(distribution, Expected) else None


def observe_sites(trace: dict[str, dict]) -> dict[str, Expected]:
    """The ``Expected`` of every ``observe`` site of a trace, by name."""
    found = {name: expected_of(site) for name, site in trace.items()}
    return {name: expected for name, expected in found.items() if expected is not None}


def latents_of(trace: dict[str, dict]) -> dict[str, Latent]:
    """The latent of every ``observe`` site and of every layer of a trace, by name."""
    found = {name: expected.latent for name, expected in observe_sites(trace).items()}
    layers = {name: site for name, site in trace.items() if is_layer(site)}
    return found | {name: site["infer"]["latent"] for name, site in layers.items()}


def require_observed(trace: dict[str, dict]) -> None:
    """Raise unless every ``observe`` site has data.

    E log p(y | f) is no density of y: integrated over y it depends on θ.
    """
    for name in observe_sites(trace):
        if not trace[name]["is_observed"]:
            raise ValueError(
                f"the observe site '{name}' has no data: was y passed to the model, "
                "and on to obs=? New rows belong to gp.predict, and missing data to "
                "observe(mask=)."
            )


def is_latent(site: dict) -> bool:
    """Whether a site of a model is neither data nor the values of a process."""
    is_drawn = site["type"] == "sample" and not site["is_observed"]
    return is_drawn and expected_of(site) is None and not is_inducing(site)
