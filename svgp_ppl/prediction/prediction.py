"""The prediction at one site: moments, quantiles, densities, draws, tables."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array

from svgp_ppl.checks import data_array, is_concrete, require_count, require_key
from svgp_ppl.observations import Expected, observe_sites
from svgp_ppl.observations.missing import filled, over_rows
from svgp_ppl.observations.observed import plate_axes
from svgp_ppl.prediction import averages
from svgp_ppl.prediction.inversion import of_labels
from svgp_ppl.prediction.labelled import as_dataset, as_frame, row_labels
from svgp_ppl.prediction.observe_sites import ObserveSites
from svgp_ppl.prediction.posterior import choose_draws
from svgp_ppl.prediction.posterior_model import Draws, keys_of
from svgp_ppl.prediction.quantiles import quantiles_of_data, quantiles_of_latent

__all__ = ["Of", "Prediction"]


# Whether a quantile, an interval or a band is of the data y or of the latent f.
Of = Literal["data", "latent"]


class Prediction:
    """The prediction at one ``observe`` site, for N new inputs.

    Attributes:
        latent_mean: E f_n, [N] or [N, Q].
        latent_variance: Var f_n, same shape.
        mean: E y_n, [N] (and event axes).
        variance: Var y_n, same shape.
        std: Its square root.
        probs: P(y_n = 1), [N], for y in {0, 1}; class probabilities, [N, C], for y in
            {0, …, C − 1}; None otherwise.

    Example:
        >>> at_new = gp.predict(model, fitted, x_new)["y"]
        >>> at_new.mean.shape, at_new.sample(key, 100).shape
        ((2,), (100, 2))
    """

    def __init__(self, sites: "ObserveSites", name: str):
        self._sites, self._name = sites, name

    def __repr__(self) -> str:
        num_data = self._sites.runs.num_data[self._name]
        lines = [f"Prediction of '{self._name}' at {num_data} inputs"]
        of_data = () if self._moments["mean"] is None else ("mean", "std")
        for name in (*of_data, "latent_mean", "latent_std", "probs"):
            values = getattr(self, name)
            if values is not None:
                shape = ", ".join(map(str, jnp.shape(values)))
                line = f"{name} [{shape}]"
                if is_concrete(values):
                    values = np.asarray(values)
                    line += f": {values.min():.4g} to {values.max():.4g}"
                lines.append(line)
        return "\n  ".join(lines)

    @cached_property
    def _moments(self) -> dict[str, Any]:
        return self._sites.moments(self._name)

    @property
    def latent_mean(self) -> Array:
        """E f_n, [N] or [N, Q]."""
        return self._moments["latent_mean"]

    @property
    def latent_variance(self) -> Array:
        """Var f_n, [N] or [N, Q]."""
        return self._moments["latent_variance"]

    @property
    def mean(self) -> Array:
        """E y_n, [N]."""
        return self._known("mean")

    @property
    def variance(self) -> Array:
        """Var y_n, [N]."""
        return self._known("variance")

    def _known(self, moment: str) -> Array:
        value = self._moments[moment]
        if value is None:
            called = self._look(lambda expected: expected.called)
            raise ValueError(
                f"the {moment} of site '{self._name}' is not known: its likelihood, "
                f"{called}, has no mean or no variance in NumPyro, or those of "
                "an angle, which are other numbers. Take it of draws, .sample(key) or "
                "gp.posterior_predictive(...); .quantile and .interval need no moments."
            )
        return value

    def _look(self, function: Callable[[Expected], Any]) -> Any:
        """A fact of the site at the first draw, without its values."""
        return self._sites.runs.look(
            lambda sites: function(observe_sites(sites)[self._name])
        )

    @property
    def std(self) -> Array:
        """√Var y_n, [N]."""
        return jnp.sqrt(self.variance)

    @property
    def latent_std(self) -> Array:
        """√Var f_n, [N] or [N, Q]."""
        return jnp.sqrt(self.latent_variance)

    @property
    def probs(self) -> Array | None:
        """Class probabilities, [N] for y in {0, 1} and [N, C] for C classes."""
        return self._moments["probs"]

    @cached_property
    def latent_covariance(self) -> Array:
        """Cov of f over all inputs together, [N, N] or [N, Q, N, Q].

        Raises:
            ValueError: The model has layers, which are drawn input by input.
        """
        if self._sites.runs.facts.has_layers:
            raise ValueError(
                "latent_covariance is not known for a deep model, whose layers are "
                "drawn at each input by itself. Take it of gp.draw_functions(...): "
                "jnp.cov(draws, rowvar=False)."
            )
        return self._sites.over_draws(
            self._name,
            "covariance",
            lambda e, key: e.latent.joint(),
            averages.total_covariance,
        )

    def log_prob(self, y, mask=None) -> Array:
        """Log predictive density of every datum in nats, log E p(y_n | f_n), [N].

        Args:
            y: Data, [N] (and event axes).
            mask: Where y is known, as for ``gp.observe``: [N], or of the shape of y.
                Unknown entries add nothing; a row with no known entry is 0.

        Raises:
            ValueError: The data are impossible under the prediction.
        """
        name = self._name

        def check(expected: Expected) -> None:
            known = None if mask is None else expected.checked_mask(name, mask)
            expected.checked_data(name, y, known)

        def density(expected: Expected, key, y, *masks) -> Array:
            if not masks:
                return expected.log_predictive(y)
            (known,) = masks
            y = filled(y, known, expected.support)
            value = expected.of_entries(known).log_predictive(y)
            return jnp.where(over_rows(known, expected.event_shape), value, 0.0)

        self._look(check)
        masks = () if mask is None else (jnp.asarray(mask),)
        return self._sites.over_draws(
            name,
            ("density", len(masks)),
            density,
            averages.log_mean_exp,
            jnp.asarray(data_array(y, f"the data of site '{name}'")),
            *masks,
        )

    def quantile(self, p, *, of: Of = "data", key=None, n: int = 4000) -> np.ndarray:
        """The smallest a with P(y_n <= a) >= p, at each input.

        The cumulative distribution function, averaged over the posterior, is inverted.
        A likelihood whose distribution has no such function, and no probabilities of
        whole numbers to sum, needs a key: the quantiles are then those of draws.

        Args:
            p: Probability in (0, 1), or several of them, [P].
            of: ``"data"`` for y, ``"latent"`` for f.
            key: Random key, to take quantiles of draws.
            n: Number of such draws.

        Returns:
            [N] (and event axes) for one p, [P, N] for several.

        Raises:
            ValueError: p is outside (0, 1), a key is needed, or JAX traces the call.
        """
        _require_untraced(p)
        levels = _checked_levels(p)
        if of not in get_args(Of):
            raise ValueError(f"of must be one of {get_args(Of)}, and is {of!r}.")
        if key is not None:
            draws = (self.sample if of == "data" else self.sample_latent)(key, n)
            _require_untraced(draws)
            is_whole = of == "data" and self._support.is_discrete
            rule = "inverted_cdf" if is_whole else "linear"
            found = np.quantile(draws, np.ravel(levels), axis=0, method=rule)
        elif of == "data" and self.probs is not None:
            _require_untraced(self.probs)
            probs = np.asarray(self.probs)
            probs = probs if probs.ndim > 1 else np.stack([1 - probs, probs], axis=-1)
            found = of_labels(np.cumsum(probs, axis=-1), np.ravel(levels))
        else:
            found = self._inverted(np.ravel(levels), of)
        return found.reshape(np.shape(levels) + found.shape[1:])

    def interval(
        self, mass: float = 0.9, *, of: Of = "data", key=None, n: int = 4000
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the central interval that holds ``mass`` of the probability.

        Args:
            mass: Probability in (0, 1).
            of: ``"data"`` for y, ``"latent"`` for f.
            key: Random key, as for :meth:`quantile`.
            n: Number of draws, as for :meth:`quantile`.

        Returns:
            Lower and upper ends, each [N] (and event axes).

        Raises:
            ValueError: ``mass`` is outside (0, 1), or a key is needed.
        """
        if np.ndim(mass):
            raise ValueError(f"mass must be one probability, and is {mass!r}.")
        mass = float(_checked_levels(mass))
        tails = np.array([0.5 - 0.5 * mass, 0.5 + 0.5 * mass])
        low, high = self.quantile(tails, of=of, key=key, n=n)
        return low, high

    def _inverted(self, levels: np.ndarray, of: Of) -> np.ndarray:
        _require_untraced(self.latent_mean)
        at = self._sites, self._name, levels
        if of == "latent":
            return quantiles_of_latent(*at, self.latent_mean, self.latent_variance)
        return quantiles_of_data(*at, *self._start(), self._support)

    @property
    def _support(self) -> Any:
        return self._look(lambda expected: expected.support)

    def _start(self) -> tuple[Any, Any]:
        """Mean and variance of the data; 0 and 1 where they are not known."""
        if self._moments["mean"] is not None:
            return self.mean, self.variance
        shape = self._look(lambda expected: expected.shape())
        zeros = np.zeros(shape, self.latent_mean.dtype)
        return zeros, zeros + 1

    def to_xarray(self, mass: float | None = None, *, key=None) -> Any:
        """An ``xarray.Dataset`` with the moments, its rows labelled like the inputs.

        The labels of the first axis are those of the first argument of the model that
        is a pandas table or an xarray array with N rows; otherwise it has the name of
        the plate.

        Args:
            mass: Probability of an interval, ``low`` to ``high``, to add; or None.
            key: Random key, as for :meth:`interval`.
        """
        return as_dataset(self._columns(mass, key), *self._rows)

    def to_pandas(self, mass: float | None = None, *, key=None) -> Any:
        """The same as a ``pandas.DataFrame``, with columns such as ``mean``."""
        return as_frame(self.to_xarray(mass, key=key))

    @cached_property
    def _rows(self) -> tuple[Any, Any]:
        """Name and labels of the rows."""
        runs, name = self._sites.runs, self._name
        axis, labels = row_labels(runs.arguments, runs.num_data[name])
        if axis is None:
            axis = runs.look(plate_axes).get(name, ("row",))[0]
        return axis, labels

    def _columns(self, mass: float | None, key) -> dict[str, tuple[str, Any]]:
        """Name of the second axis and values, for each column of a table."""
        columns: dict[str, tuple[str, Any]] = {
            "mean": ("output", self.mean),
            "std": ("output", self.std),
        }
        if mass is not None:
            low, high = self.interval(mass, key=key)
            columns |= {"low": ("output", low), "high": ("output", high)}
        columns["latent_mean"] = ("component", self.latent_mean)
        columns["latent_std"] = ("component", self.latent_std)
        if self.probs is not None:
            columns["probs"] = ("class", self.probs)
        return columns

    def sample(self, key, n: int = 1000) -> Array:
        """n draws of y at each input (independent between inputs), [n, N]."""
        return self._draw("data", lambda expected, key: expected.sample(key), key, n)

    def sample_latent(self, key, n: int = 1000) -> Array:
        """n draws of f at each input (independent between inputs), [n, N] or [n, N, Q].

        Quantiles of any function of f follow: ``jnp.quantile(jnp.exp(draws), ...)``.
        """
        return self._draw(
            "latent", lambda expected, key: expected.sample_latent(key), key, n
        )

    def _draw(self, what: str, function: Callable, key, n: int) -> Array:
        require_key(key)
        n, num_draws = require_count(n, "the number of draws"), self._sites.num_draws

        def choose(key_model, key) -> Draws:
            key_choice, key_draw = random.split(key)
            chosen = choose_draws(key_choice, num_draws, n)
            run_keys = keys_of(key_model, chosen)
            return Draws(chosen, run_keys, random.split(key_draw, n))

        return self._sites.over_draws(
            self._name,
            (what, n),
            lambda expected, key, _: function(expected, key),
            None,
            key,
            choose=choose,
        )


def _require_untraced(value: Any) -> None:
    if not all(map(is_concrete, jax.tree.leaves(value))):
        raise ValueError(
            "quantiles cannot be found inside of jax.jit, vmap or grad, because their "
            "search ends when it is close enough. There take "
            "jnp.quantile(at.sample(key, n), p, axis=0), with the same key at every "
            "call, or sample_latent in place of sample."
        )


def _checked_levels(p) -> np.ndarray:
    levels = np.asarray(p, np.float64)
    if levels.ndim > 1 or not levels.size or not np.all((levels > 0) & (levels < 1)):
        raise ValueError(f"a probability must lie strictly between 0 and 1; got {p!r}.")
    return levels
