"""The spectrum of every kernel: exact features, or a law of its frequencies.

Registered with ``kernels.features.spectral_terms``, kernel by kernel.
"""

import itertools
import math
from collections import Counter
from functools import singledispatch

import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float

from svgp_ppl.kernels.dot_product import ArcCosine, Linear, Polynomial
from svgp_ppl.kernels.features import (
    Features,
    Term,
    no_spectrum,
    require_known,
    spectral_terms,
)
from svgp_ppl.kernels.kernel import Constant, per_column, single
from svgp_ppl.kernels.stationary import (
    RBF,
    Cosine,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)
from svgp_ppl.linalg import inner_product, safe_sqrt

__all__ = ["precision"]

# Above this the law of a Skellam number is that of a rounded normal: the next term of
# the expansion is of relative size 1/rate.
_LARGE_RATE = 1e4


# ------------------------------------------------------------------- finite expansions


def _level(variance) -> Features:
    """ψ(x) = σ."""
    root = safe_sqrt(single("variance", variance))
    return lambda x: root * jnp.ones((len(x), 1), x.dtype)


@spectral_terms.register
def _(kernel: Constant, width: int) -> list[Term]:
    return [Term(1, _level(kernel.variance))]


@spectral_terms.register
def _(kernel: Linear, width: int) -> list[Term]:
    root = safe_sqrt(per_column("variance", kernel.variance, width))
    return [Term(width, lambda x: root * x)]


@spectral_terms.register
def _(kernel: Polynomial, width: int) -> list[Term]:
    """(b ᵀb')^d = Σ_α d!/Πα! Π b_i^α_i b'_i^α_i over exponents with Σ α = d."""
    degree = kernel.degree
    root = safe_sqrt(per_column("variance", kernel.variance, width))
    level = _level(kernel.offset)
    size = math.comb(width + degree, degree)

    def exact(x):
        b = jnp.concatenate([root * x, level(x)], axis=1)
        chosen = list(itertools.combinations_with_replacement(range(width + 1), degree))
        weights = [
            math.factorial(degree)
            / math.prod(math.factorial(c) for c in Counter(columns).values())
            for columns in chosen
        ]
        roots = jnp.sqrt(jnp.asarray(weights, x.dtype))
        return roots * jnp.prod(b[:, np.array(chosen)], axis=-1)

    return [Term(size, exact)]


@spectral_terms.register
def _(kernel: Cosine, width: int) -> list[Term]:
    """σ² cos(t − t') = σ² (cos t cos t' + sin t sin t'): one spectral line."""
    lengthscale = per_column("lengthscale", kernel.lengthscale, width)
    level = _level(kernel.variance)

    def exact(x):
        phase = 2 * jnp.pi * jnp.sum(x / lengthscale, axis=-1, keepdims=True)
        return level(x) * jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], axis=1)

    return [Term(2, exact)]


# ------------------------------------------------------------------ drawn frequencies


@singledispatch
def precision(kernel, key, shape: tuple, dtype) -> Array:
    """s with ρ(r²) = E exp(−s r²/2): a scale mixture of RBF kernels."""
    raise no_spectrum(kernel)


@precision.register
def _(kernel: RBF, key, shape, dtype) -> Array:
    return jnp.ones(shape, dtype)


@precision.register
def _(kernel: RationalQuadratic, key, shape, dtype) -> Array:
    """E exp(−s t) = (1 + t/α)^(−α) for s ~ Gamma(α, rate α)."""
    alpha = single("alpha", kernel.alpha).astype(dtype)
    return random.gamma(key, alpha, shape, dtype) / alpha


@precision.register(Matern12)
@precision.register(Matern32)
@precision.register(Matern52)
def _(kernel: Matern, key, shape, dtype) -> Array:
    """s = 2ν / χ²(2ν): Student-t frequencies (Rasmussen & Williams, equation 4.15)."""
    degrees = {Matern12: 1, Matern32: 3, Matern52: 5}[type(kernel)]  # 2ν
    squares = jnp.sum(jnp.square(random.normal(key, (degrees, *shape), dtype)), axis=0)
    # The clamp keeps the scale finite where a square underflows.
    return degrees / jnp.maximum(squares, jnp.finfo(dtype).tiny)


def _waves(frequencies: Float[Array, "n D"]) -> Features:
    return lambda x: jnp.exp(1j * inner_product(x, frequencies))


@spectral_terms.register(RBF)
@spectral_terms.register(RationalQuadratic)
@spectral_terms.register(Matern12)
@spectral_terms.register(Matern32)
@spectral_terms.register(Matern52)
def _(kernel, width: int) -> list[Term]:
    """ω = √s ε / ℓ with ε ~ N(0, I): the characteristic function is ρ(r²)."""
    lengthscale = per_column("lengthscale", kernel.lengthscale, width)

    def draw(key, n, dtype):
        key_scale, key_normal = random.split(key)
        scale = jnp.sqrt(precision(kernel, key_scale, (n, 1), dtype))
        normal = random.normal(key_normal, (n, width), dtype)
        return _waves(scale * normal / lengthscale)

    return [Term(1, _level(kernel.variance), 2, draw)]


@spectral_terms.register
def _(kernel: Periodic, width: int) -> list[Term]:
    """Frequencies are whole multiples j of 2π/period, j a Skellam number.

    With t = 2π (x − x')/period, exp(−s sin²(t/2) / (2ℓ²)) = exp(c (cos t − 1)) for
    c = s / (4ℓ²): the characteristic function of j = j₊ − j₋, both Poisson(c/2).
    """
    base = kernel._stationary()
    require_known(base, precision)
    width = width if base.active_columns is None else len(base.active_columns)
    lengthscale = per_column("lengthscale", base.lengthscale, width)
    period = per_column("period", kernel.period, width)
    # A Matérn base sums |s_d|: of those only exp(−Σ|s_d|) is a product over columns,
    # with a scale for each; the others are not covariances of several columns.
    separate = isinstance(base, Matern)
    if separate and width > 1 and not isinstance(base, Matern12):
        raise ValueError(
            f"Periodic of {type(base).__name__} with {width} columns is not positive "
            "definite and has no functions to draw: multiply one periodic kernel per "
            "column."
        )

    def draw(key, n, dtype):
        key_scale, key_number = random.split(key)
        scales = precision(base, key_scale, (n, width if separate else 1), dtype)
        rate = jnp.broadcast_to(scales / (4 * lengthscale**2), (n, width))
        waves = _waves(2 * jnp.pi * _skellam(key_number, rate) / period)
        return lambda x: waves(base.select(x))

    return [Term(1, _level(base.variance), 2, draw)]


def _skellam(key, rate: Array) -> Array:
    """j₊ − j₋, both Poisson(rate/2): mean 0, variance ``rate``."""
    key_up, key_down, key_large = random.split(key, 3)
    half = jnp.minimum(rate, _LARGE_RATE) / 2
    up, down = (random.poisson(k, half, dtype=jnp.int32) for k in (key_up, key_down))
    normal = random.normal(key_large, rate.shape, rate.dtype)
    large = jnp.round(jnp.sqrt(rate) * normal)
    return jnp.where(rate < _LARGE_RATE, (up - down).astype(rate.dtype), large)


@spectral_terms.register
def _(kernel: ArcCosine, width: int) -> list[Term]:
    """2 E max(0, wᵀa)^n max(0, wᵀa')^n with w ~ N(0, I) (Cho & Saul 2009, eq. 1)."""

    def draw(key, n, dtype):
        # One more weight for the bias.
        weights = random.normal(key, (n, width + 1), dtype)

        def activations(x):
            value = inner_product(kernel._augment(x), weights)
            # max(0, ·)⁰ is a step.
            active = (value > 0).astype(dtype)
            return math.sqrt(2.0) * active * value**kernel.order

        return activations

    return [Term(1, _level(kernel.variance), 1, draw)]
