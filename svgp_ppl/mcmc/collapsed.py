"""v integrated out where every likelihood is Gaussian: θ alone is sampled.

With y_n ~ N(ρ_n, σ_n²), ρ_n = b_n + φ_nᵀ v + N(0, r_n) given v, and v ~ N(0, I), the
log density of (v, θ) is quadratic in v (w_n = 1/σ_n²):

    Σ_n [log N(y_n; b_n + φ_nᵀ v, σ_n²) − ½ w_n r_n] + log N(v; 0, I).

Its integral over v is the bound of Titsias (2009, eq. 9),

    Σ_n log N(y_n; b_n, σ_n²) − ½ Σ_n w_n r_n − ½ log |P| + ½ ‖C⁻¹ Φᵀ W (y − b)‖²,
    P = I + Φᵀ W Φ = C Cᵀ,

and v given θ is N(P⁻¹ Φᵀ W (y − b), P⁻¹), from which it is drawn afterwards (Lalchand,
Bruinsma, Burt & Rasmussen 2022). Outputs of processes that no datum sees together are
independent given θ: P is block diagonal, and each group of outputs has its own
factorisation.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array, Float
from numpyro.handlers import Messenger

from svgp_ppl.expectations import ClosedForm
from svgp_ppl.expectations.dispatch import has_distribution_of
from svgp_ppl.handlers import counts_once, is_inducing, is_layer, unwrapped
from svgp_ppl.latent import Latent
from svgp_ppl.likelihoods import Gaussian
from svgp_ppl.linalg import cholesky, matmul, solve_lower, solve_lower_transposed
from svgp_ppl.marginals import Output
from svgp_ppl.observations import Expected, expected_of, observe_sites
from svgp_ppl.variational import project, unstack

__all__ = ["IsIntegrated", "collapsed", "is_collapsible", "recovered"]


class Conditional(NamedTuple):
    """The v of some outputs given θ and the data, v = C⁻ᵀ (shift + ε), ε ~ N(0, I).

    Attributes:
        outputs: Which outputs of which processes.
        shift: Cᵀ E v, [T].
        precision_tril: C with C Cᵀ = P, [T, T].
    """

    outputs: tuple[Output, ...]
    shift: Array
    precision_tril: Array

    def log_evidence(self) -> Float[Array, ""]:
        """The integral over v, by the density at v = 0 (without its constant)."""
        log_det = jnp.sum(jnp.log(jnp.diagonal(self.precision_tril)))
        return 0.5 * jnp.sum(jnp.square(self.shift)) - log_det

    def draw(self, noise: dict[Output, Array]) -> dict[Output, Array]:
        """v by output, from standard normal numbers by output, [M]."""
        epsilon = [noise[output] for output in self.outputs]
        right = self.shift + jnp.concatenate(epsilon)
        v = solve_lower_transposed(self.precision_tril, right[:, None])[:, 0]
        ends = np.cumsum([len(one) for one in epsilon])[:-1]
        return dict(zip(self.outputs, jnp.split(v, ends)))


def is_collapsible(model_trace: dict[str, dict]) -> bool:
    """Whether v can be integrated out, and something is left to sample.

    Every process is seen through sites of ``observe`` with a Gaussian likelihood, a
    latent of one component and all rows at a time, and its prior counts once: it has no
    scale and no mask.
    """
    seen = observe_sites(model_trace).values()
    latent = [
        site
        for site in model_trace.values()
        if site["type"] == "sample" and not site["is_observed"]
    ]
    return (
        bool(seen)
        and all(map(_is_quadratic, seen))
        and not any(map(is_layer, model_trace.values()))
        and all(map(counts_once, filter(is_inducing, latent)))
        and any(map(is_inducing, latent))
        and not all(map(is_inducing, latent))
    )


def _is_quadratic(expected: Expected) -> bool:
    return (
        has_distribution_of(expected.likelihood, Gaussian)
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
        numpyro.factor("log_evidence", found.log_evidence())
        return result

    return run


def recovered(model: Callable, key) -> Callable:
    """The model with a draw of v given θ and the data as ``deterministic`` sites."""

    def run(*args, **kwargs):
        found = _collect()
        with found:
            result = model(*args, **kwargs)
        for name, v in found.draw(key).items():
            numpyro.deterministic(name, v)
        return result

    return run


class IsIntegrated(ValueError):
    """The model asks for moments of a process whose v is integrated out."""


class _Integrated(dist.Distribution):
    """A v that is integrated out: it has no moments of its own."""

    arg_constraints: ClassVar[dict] = {}

    def __init__(self, event_shape: tuple):
        super().__init__((), event_shape)


@project.register
def _(qv: _Integrated, a):
    raise IsIntegrated("v is integrated out: the model has no moments of its process.")


class _Data(NamedTuple):
    """The data of a site, y_n ~ N(b_n + Σ_o φ_onᵀ v_o + N(0, r_n), 1/w_n).

    Attributes:
        y: [N].
        rows: φ by output, [N, M].
        offset: b, [N].
        w: Precision, zero for data that are left out, [N].
        constant: Σ_n log N(y_n; b_n, 1/w_n) − ½ w_n r_n.
    """

    y: Array
    rows: dict[Output, Array]
    offset: Array
    w: Array
    constant: Array


class _collect(Messenger):
    """A NumPyro handler: hides the processes and the data from handlers outside."""

    def __init__(self):
        self.shapes: dict[str, tuple] = {}
        self._data: list[_Data] = []
        super().__init__()

    def process_message(self, msg: Any) -> None:
        """Keep a process or its data, and hide it from the others."""
        if msg["type"] != "sample":
            return
        expected = expected_of(msg)
        if is_inducing(msg) and not msg["is_observed"]:
            self.shapes[msg["name"]] = msg["fn"].event_shape
            msg["value"] = _Integrated(msg["fn"].event_shape)
            msg["stop"] = True
        elif expected is not None and msg["is_observed"]:
            _, mask = unwrapped(msg["fn"])
            weight = jnp.asarray(mask, float)
            if msg["scale"] is not None:
                weight = weight * msg["scale"]
            self._data.append(_data_of(expected, jnp.asarray(msg["value"]), weight))
            msg["stop"] = True

    def log_evidence(self) -> Float[Array, ""]:
        """The integral over v."""
        terms = [data.constant for data in self._data]
        terms += [conditional.log_evidence() for conditional in self._conditionals()]
        return jnp.sum(jnp.stack(terms))

    def draw(self, key) -> dict[str, Array]:
        """v of every process given θ and the data."""
        size = sum(map(math.prod, self.shapes.values()))
        noise = unstack(random.normal(key, (size,)), self.shapes)
        # Outputs that no datum sees keep their draws from the prior.
        drawn = {(n, p): jnp.atleast_2d(noise[n])[p] for n, p in self._outputs()}
        for conditional in self._conditionals():
            drawn |= conditional.draw(drawn)
        return unstack(jnp.concatenate(list(drawn.values())), self.shapes)

    def _outputs(self) -> list[Output]:
        """All outputs, in the order in which their v are stacked."""
        return [
            (name, p)
            for name, shape in self.shapes.items()
            for p in range(math.prod(shape[:-1]))
        ]

    def _conditionals(self) -> list[Conditional]:
        """v given the data: outputs that no datum sees together are independent."""
        groups: list[set[Output]] = []
        for data in self._data:
            if not data.rows:
                continue
            met = [group for group in groups if group & data.rows.keys()]
            groups = [group for group in groups if group not in met]
            groups.append(set(data.rows).union(*met))
        return [
            _conditional(
                [output for output in self._outputs() if output in group],
                [data for data in self._data if group & data.rows.keys()],
            )
            for group in groups
        ]


def _data_of(expected: Expected, y: Array, weight: Array) -> _Data:
    """The data of a site, with the v that are known in its offset."""
    rows, offset, residual = expected.latent.given_whitened()
    known = _known(expected.latent)
    for name, p in [output for output in rows if output[0] in known]:
        v = known[name].reshape(-1, rows[name, p].shape[1])[p]
        offset = offset + matmul(rows.pop((name, p)), v[:, None])[:, 0]
    scale = expected.likelihood.scale
    w = jnp.broadcast_to(weight / jnp.square(scale), y.shape)
    density = weight * dist.Normal(offset, scale).log_prob(y)
    constant = jnp.sum(density) - 0.5 * jnp.sum(w * residual)
    return _Data(y, rows, offset, w, constant)


def _known(latent: Latent) -> dict[str, Array]:
    """v of the processes that have a value, as under ``handlers.condition`` and ``do``.

    What the data see counts, not the site: ``do`` leaves that as it was.
    """
    processes = [view.process for view in latent.views]
    given = {p.name: p.qv for p in processes if isinstance(p.qv, dist.Delta)}
    return {name: jnp.asarray(qv.v) for name, qv in given.items()}


def _conditional(outputs: list[Output], seen: list[_Data]) -> Conditional:
    """The v of some outputs given the data that see them."""
    shape = {output: rows.shape for data in seen for output, rows in data.rows.items()}
    size = sum(shape[output][1] for output in outputs)
    precision, pull = jnp.eye(size), jnp.zeros(size)
    for data in seen:
        absent = {o: jnp.zeros((len(data.y), shape[o][1])) for o in outputs}
        phi = jnp.concatenate([data.rows.get(o, absent[o]) for o in outputs], axis=1)
        precision = precision + matmul(phi.T, data.w[:, None] * phi)
        pull = pull + matmul(phi.T, data.w * (data.y - data.offset))
    tril = cholesky(precision, 0.0)
    return Conditional(tuple(outputs), solve_lower(tril, pull[:, None])[:, 0], tril)
