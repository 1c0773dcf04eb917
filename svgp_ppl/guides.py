"""Ready-made beliefs: guides that a model is fitted with.

Each is a NumPyro ``AutoGuide``: the whitened values of every process get a belief, all
other latent sites another guide, ``rest`` (point estimates unless told otherwise).
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.distributions import constraints
from numpyro.handlers import block, seed, trace
from numpyro.infer.autoguide import AutoDelta, AutoGuide

from svgp_ppl.primitives import Expected, is_inducing

__all__ = ["AutoGaussian"]


class AutoGaussian(AutoGuide):
    """q(v) = N(m, S) for every process, independent of each other; ``rest`` for θ.

    The belief of process ``f`` has the parameters ``auto_f_loc``, [M] (or [P, M]), and
    ``auto_f_scale_tril``, [M, M] per output, or ``auto_f_scale`` when diagonal. It
    starts at the prior, N(0, I).

    Args:
        model: The model.
        covariance: ``"full"`` or ``"diagonal"``.
        rest: A NumPyro autoguide class (or function of a model) for the other latent
            sites; ``AutoDelta`` finds their maximum a posteriori values.
        prefix: Prefix of the parameter names.

    Example:
        >>> import svgp_ppl as gp
        >>> guide = gp.AutoGaussian(model)  # doctest: +SKIP
        >>> fit = gp.fit(random.key(0), model, guide, x, y)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Callable,
        covariance: Literal["full", "diagonal"] = "full",
        *,
        rest: Callable[[Callable], AutoGuide] = AutoDelta,
        prefix: str = "auto",
        **options,
    ):
        if covariance not in ("full", "diagonal"):
            raise ValueError(
                f"covariance must be 'full' or 'diagonal', and not {covariance!r}."
            )
        self.covariance = covariance
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._rest_of, self._rest = rest, None
        super().__init__(block(model, hide_fn=_is_absent), prefix=prefix, **options)

    def _setup_prototype(self, *args, **kwargs):
        # Shapes are all that is needed; NumPyro's set-up also evaluates the density.
        with block():
            run = seed(self.model, numpyro.prng_key())
            self.prototype_trace = trace(run).get_trace(*args, **kwargs)
        latent = {
            name: site
            for name, site in dict(self.prototype_trace or {}).items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        self._shapes = {
            name: site["fn"].event_shape
            for name, site in latent.items()
            if is_inducing(site)
        }
        if not self._shapes:
            raise ValueError(
                "the model has no sparse_gp site for this guide to hold a belief of; "
                "use a guide of numpyro.infer.autoguide."
            )
        if len(latent) > len(self._shapes):
            self._rest = self._rest_of(block(self.model, hide_fn=_is_hidden))

    def __call__(self, *args, **kwargs):
        """Sample v of every process and the other latent sites."""
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        values = {} if self._rest is None else dict(self._rest(*args, **kwargs))
        for name, shape in self._shapes.items():
            values[name] = numpyro.sample(name, self._belief(name, shape, _param))
        return values

    def _belief(self, name: str, shape: tuple, param: Callable) -> dist.Distribution:
        """The belief of one process; ``param(name, initial, constraint)`` is called."""
        dtype = jnp.result_type(float)
        loc = param(f"{self.prefix}_{name}_loc", jnp.zeros(shape, dtype))
        if self.covariance == "diagonal":
            scale = param(
                f"{self.prefix}_{name}_scale",
                jnp.ones(shape, dtype),
                constraints.softplus_positive,
            )
            return dist.Normal(loc, scale).to_event(len(shape))
        eye = jnp.broadcast_to(jnp.eye(shape[-1], dtype=dtype), (*shape, shape[-1]))
        scale_tril = param(
            f"{self.prefix}_{name}_scale_tril", eye, constraints.softplus_lower_cholesky
        )
        belief = dist.MultivariateNormal(loc, scale_tril=scale_tril)
        return belief.to_event(len(shape) - 1)

    def _fitted(self, params: dict) -> dict[str, Any]:
        if self.prototype_trace is None:
            raise ValueError(
                "the guide has not seen the model's arguments yet: fit it, or run it "
                "once under numpyro.handlers.seed."
            )

        def lookup(name, initial, constraint=None):
            return params[name]

        return {n: self._belief(n, s, lookup) for n, s in self._shapes.items()}

    def sample_posterior(self, rng_key, params, *args, sample_shape=(), **kwargs):
        """Draws of v and of the other latent sites, by site name."""
        key_rest, *keys = random.split(rng_key, 1 + len(self._shapes))
        values = {}
        if self._rest is not None:
            values = self._rest.sample_posterior(
                key_rest, params, *args, sample_shape=sample_shape, **kwargs
            )
        for key, (name, belief) in zip(keys, self._fitted(params).items()):
            values[name] = belief.sample(key, sample_shape)
        return values

    def median(self, params):
        """The median of each latent site."""
        values = {} if self._rest is None else self._rest.median(params)
        return {**values, **{n: b.mean for n, b in self._fitted(params).items()}}

    def quantiles(self, params, quantiles):
        """Quantiles of each latent site, along a new first axis."""
        q = jnp.asarray(quantiles)
        if isinstance(self._rest, AutoDelta):  # all quantiles of a point are the point
            points = self._rest.median(params).items()
            values = {n: jnp.broadcast_to(v, (*q.shape, *v.shape)) for n, v in points}
        elif self._rest is not None:
            values = dict(self._rest.quantiles(params, quantiles))
        else:
            values = {}
        for name, belief in self._fitted(params).items():
            marginal = dist.Normal(belief.mean, jnp.sqrt(belief.variance))
            values[name] = jax.vmap(marginal.icdf)(q)
        return values


def _param(name: str, initial, constraint=constraints.real):
    return numpyro.param(name, initial, constraint=constraint)


def _is_data(site: dict) -> bool:
    return site["type"] == "sample" and isinstance(site["fn"], Expected)


def _is_absent(site: dict) -> bool:
    """Data that were not passed: a guide may run at new inputs, where y is unknown."""
    return _is_data(site) and not site["is_observed"]


def _is_hidden(site: dict) -> bool:
    """What the other guide must not see: the processes, and what is deterministic.

    Nor their data: NumPyro would evaluate the density and its gradient once, operation
    by operation, to see that the start is finite; ``fit`` sees it in the bound.
    """
    return _is_data(site) or is_inducing(site) or site["type"] == "deterministic"
