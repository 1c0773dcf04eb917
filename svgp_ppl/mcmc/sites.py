"""Coordinates that move with θ: v = m(θ) + C⁻ᵀ ξ, from the sites of a fit.

Given v the data determine the hyperparameters closely: (v, θ) is a narrow ridge. A fit
shows, through its sites, where v is at any θ (``variational.sites``): under
q(v | θ) = N(m, P⁻¹), P = C Cᵀ, the coordinates ξ = Cᵀ (v − m) are N(0, I) whatever θ
is. The map is one to one for every θ, so with log |∂v/∂ξ| = −Σ log C_ii the posterior
is that of the model; the sites decide how fast it mixes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from numpyro.handlers import Messenger

from svgp_ppl.handlers import outside
from svgp_ppl.linalg import matmul
from svgp_ppl.variational.sites import Sites, conditional

__all__ = ["base_of", "bases_of", "in_sites"]


def base_of(name: str) -> str:
    """Name of the site of ξ."""
    return f"{name}_base"


class in_sites(Messenger):
    """A NumPyro handler: processes with sites are sampled as ξ.

    The site ``f`` becomes deterministic; ``f_base`` is ξ ~ N(0, I), which alone would
    make v a draw from q(v | θ), and the factor ``f_weight`` is log p(v) − log q(v | θ).
    A scale or a mask inside of this handler is one of log p(v), which it multiplies;
    one around it would multiply log |∂v/∂ξ| too.

    Args:
        fn: The model.
        sites: Sites by process.
    """

    def __init__(self, fn: Callable, sites: Mapping[str, Sites]):
        self.sites = dict(sites)
        self._values: dict[str, jax.Array] = {}
        super().__init__(fn)

    def __enter__(self):
        self._values = {}
        return super().__enter__()

    def process_message(self, msg: Any) -> None:
        """Give the process its v."""
        name = msg.get("name")
        is_open = msg["type"] == "sample" and msg["value"] is None
        if not is_open or name not in self.sites:
            return
        process, qv = _conditional(msg, self.sites, self._values)
        prior = process.qv  # as the model makes it: N(0, I)
        scale = 1.0 if msg["scale"] is None else msg["scale"]
        with outside(self):
            xi = jnp.asarray(numpyro.sample(base_of(name), prior))
            v = qv.value(xi)
            of_v = scale * msg["fn"].log_prob(v)
            weight = of_v - prior.log_prob(xi) + qv.log_det()
            numpyro.factor(f"{name}_weight", weight)
        self._values[name] = _inducing_values(process, v)
        for field in set(msg) - {"type", "name", "value"}:
            del msg[field]
        msg["type"], msg["value"] = "deterministic", v


class bases_of(Messenger):
    """A NumPyro handler that keeps the ξ of processes whose v are given: the inverse.

    Args:
        fn: The model.
        sites: Sites by process.
        found: Where ξ is put, by the name of its site.
    """

    def __init__(self, fn: Callable, sites: Mapping[str, Sites], found: dict):
        self.sites, self.found = dict(sites), found
        self._values: dict[str, jax.Array] = {}
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        """Look at the v of a process."""
        name, v = msg.get("name"), msg["value"]
        if msg["type"] == "sample" and name in self.sites:
            process, qv = _conditional(msg, self.sites, self._values)
            self.found[base_of(name)] = qv.base(v)
            self._values[name] = _inducing_values(process, v)


def _conditional(msg: Any, sites: Mapping[str, Sites], values: Mapping) -> tuple:
    """The process of a site, and its q(v | θ) given the u of those before it."""
    process = msg["infer"]["inducing"]["process"]
    mean, scale_tril = process.inducing_mean, process.scale_tril
    return process, conditional(sites[msg["name"]], scale_tril, mean, values)


def _inducing_values(process: Any, v: Any) -> jax.Array:
    """u = m(z) + L v of every output, [P, M]."""
    mean = process.inducing_mean
    return mean + matmul(v.reshape(mean.shape), process.scale_tril.T)
