"""v integrated out where every likelihood is Gaussian: θ alone is sampled.

With y_n ~ N(ρ_n, σ_n²), ρ_n = b_n + φ_nᵀ v + N(0, r_n) given v, and v ~ N(0, I), the
log density of (v, θ) is quadratic in v (w_n = 1/σ_n²):

    Σ_n [log N(y_n; b_n + φ_nᵀ v, σ_n²) − ½ w_n r_n] + log N(v; 0, I).

Its integral over v is the bound of Titsias (2009, eq. 9),

    Σ_n log N(y_n; b_n, σ_n²) − ½ Σ_n w_n r_n − ½ log |P| + ½ ‖C⁻¹ Φᵀ W (y − b)‖²,
    P = I + Φᵀ W Φ = C Cᵀ,

and v given θ is N(P⁻¹ Φᵀ W (y − b), P⁻¹), from which it is drawn afterwards (Lalchand,
Bruinsma, Burt & Rasmussen 2022).
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array, Float
from numpyro.handlers import Messenger

from svgp_ppl.expectations import ClosedForm
from svgp_ppl.expected import Expected, expected_of
from svgp_ppl.handlers import is_inducing, is_layer, unwrapped
from svgp_ppl.likelihoods import Gaussian
from svgp_ppl.linalg import cholesky, matmul, solve_lower, solve_lower_transposed
from svgp_ppl.variational import unstack

__all__ = ["collapsed", "conditional_of", "is_collapsible"]


class Conditional(NamedTuple):
    """v given θ and the data, v = C⁻ᵀ (shift + ε) with ε ~ N(0, I).

    Attributes:
        shift: Cᵀ E v, [T], of all processes.
        precision_tril: C with C Cᵀ = P, [T, T].
        constant: log density at v = 0, its normal constant left out.
    """

    shift: Array
    precision_tril: Array
    constant: Array

    def log_evidence(self) -> Float[Array, ""]:
        """The integral over v."""
        log_det = jnp.sum(jnp.log(jnp.diagonal(self.precision_tril)))
        return self.constant - log_det + 0.5 * jnp.sum(jnp.square(self.shift))

    def draw(self, key) -> Float[Array, " T"]:
        """A draw of v."""
        noise = random.normal(key, self.shift.shape, self.shift.dtype)
        rows = (self.shift + noise)[:, None]
        return solve_lower_transposed(self.precision_tril, rows)[:, 0]


def is_collapsible(model_trace: dict[str, dict]) -> bool:
    """Whether v can be integrated out, and something is left to sample.

    Every process is seen through sites of ``observe`` with a Gaussian likelihood, a
    latent of one component and all rows at a time.
    """
    observed = [expected_of(site) for site in model_trace.values()]
    seen = [expected for expected in observed if expected is not None]
    latent = [
        site
        for site in model_trace.values()
        if site["type"] == "sample" and not site["is_observed"]
    ]
    return (
        bool(seen)
        and all(map(_is_quadratic, seen))
        and not any(map(is_layer, model_trace.values()))
        and not all(map(is_inducing, latent))
    )


def _is_quadratic(expected: Expected) -> bool:
    return (
        isinstance(expected.likelihood, Gaussian)
        and expected.latent.is_single
        and expected.chunk_size is None
        and (expected.method is None or isinstance(expected.method, ClosedForm))
    )


def collapsed(model: Callable) -> Callable:
    """The model with its v integrated out; ``log_evidence`` is a factor of it."""

    def run(*args, **kwargs):
        found = _collect()
        with found:
            result = model(*args, **kwargs)
        numpyro.factor("log_evidence", found.conditional().log_evidence())
        return result

    return run


def conditional_of(model: Callable, args: tuple, kwargs: dict, key) -> dict[str, Array]:
    """A draw of v of every process given the values that handlers give to θ."""
    found = _collect()
    with found:
        model(*args, **kwargs)
    return unstack(found.conditional().draw(key), found.shapes)


class _Integrated(dist.Distribution):
    """Stands for a v that is integrated out: it has no moments of its own."""

    arg_constraints: ClassVar[dict] = {}

    def __init__(self, event_shape: tuple):
        super().__init__((), event_shape)


class _collect(Messenger):
    """A NumPyro handler: takes the processes and the data away from those outside."""

    def __init__(self):
        self.shapes: dict[str, tuple] = {}
        self._observed: list[tuple] = []
        super().__init__()

    def process_message(self, msg: Any) -> None:
        """Keep a process or the data of one, and let nobody else see it."""
        if msg["type"] != "sample":
            return
        expected = expected_of(msg)
        if is_inducing(msg) and msg["value"] is None:
            self.shapes[msg["name"]] = msg["fn"].event_shape
            msg["value"] = _Integrated(msg["fn"].event_shape)
            msg["stop"] = True
        elif expected is not None and msg["is_observed"]:
            _, mask = unwrapped(msg["fn"])
            weight = jnp.asarray(mask, float)
            if msg["scale"] is not None:
                weight = weight * msg["scale"]
            self._observed.append((expected, jnp.asarray(msg["value"]), weight))
            msg["stop"] = True

    def conditional(self) -> Conditional:
        """v given what was collected."""
        size = sum(map(math.prod, self.shapes.values()))
        precision, pull, constant = jnp.eye(size), jnp.zeros(size), jnp.zeros(())
        for expected, y, weight in self._observed:
            rows, offset, residual = expected.latent.given_whitened()
            phi = self._stacked(rows, len(y))
            scale = expected.likelihood.scale
            # Data that a mask leaves out may be missing, and NaN.
            y = jnp.where(weight > 0, y, offset)
            w = jnp.broadcast_to(weight / jnp.square(scale), y.shape)
            precision = precision + matmul(phi.T, w[:, None] * phi)
            pull = pull + matmul(phi.T, w * (y - offset))
            density = weight * dist.Normal(offset, scale).log_prob(y)
            constant = constant + jnp.sum(density) - 0.5 * jnp.sum(w * residual)
        tril = cholesky(precision, 0.0)
        return Conditional(solve_lower(tril, pull[:, None])[:, 0], tril, constant)

    def _stacked(self, rows: dict[str, Array], num_data: int) -> Float[Array, "N T"]:
        """Φ, zero where a latent does not see a process."""
        columns = []
        for name, shape in self.shapes.items():
            absent = jnp.zeros((num_data, math.prod(shape)))
            columns.append(rows[name].reshape(absent.shape) if name in rows else absent)
        return jnp.concatenate(columns, axis=1)
