"""Random features: φ(x)ᵀφ(x') with mean k(x, x'), from the spectrum of a kernel.

A stationary kernel is the characteristic function of its frequencies (Bochner),

    ρ(x − x') = E exp(i ωᵀ(x − x')),

so that waves with drawn frequencies are features of it (Rahimi & Recht 2007). Every
kernel here is a sum of terms, ψ(x)ᵀψ(x') E[χ(x) χ*(x')]: m exact features ψ and one
random complex feature χ. Sums put terms side by side; products multiply every two, and
their frequencies add. White noise has no features: it is independent between rows.
"""

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import random
from jaxtyping import Array, Float

from svgp_ppl.kernels.kernel import Kernel, Product, Sum, White

__all__ = [
    "Features",
    "Term",
    "no_spectrum",
    "random_features",
    "require_known",
    "spectral_terms",
    "white_variance",
]


Features = Callable[[Float[Array, "N D"]], Array]  # x -> [N, F]


def _one(key, n: int, dtype) -> Features:
    """χ = 1."""
    return lambda x: jnp.ones((len(x), n), dtype)


class Term(NamedTuple):
    """One term of a kernel, ψ(x)ᵀψ(x') E[χ(x) χ*(x')].

    Attributes:
        size: m, the number of exact features.
        exact: ψ, x [N, D] -> [N, m].
        parts: 0 where χ = 1, 1 where χ is real, 2 where it is complex.
        draw: (key, n, dtype) -> n independent draws of χ, x [N, D] -> [N, n].
    """

    size: int
    exact: Features
    parts: int = 0
    draw: Callable[..., Features] = _one


def random_features(
    kernel: Kernel, key, width: int, num_features: int, dtype
) -> Features:
    """A drawn φ with E φ(x)ᵀφ(x') = k(x, x'), without white noise.

    Exact terms (constants, polynomials, cosines) take the features they need, random
    ones share the rest equally; F is at most ``num_features``.

    Args:
        kernel: The kernel.
        key: Random key.
        width: Number of columns of x.
        num_features: Number of features in all.
        dtype: Of the features.

    Returns:
        The function x [N, D] -> φ(x) [N, F].

    Raises:
        ValueError: The kernel has no known spectrum, or needs more features.

    Example:
        >>> from svgp_ppl.kernels.features import random_features
        >>> kernel = gp.kernels.RBF(2.0, 0.3)
        >>> features = random_features(kernel, random.key(0), 1, 64, float)
        >>> features(jnp.linspace(0.0, 1.0, 5)[:, None]).shape
        (5, 64)
    """
    terms = _terms_of(kernel, width)
    drawn = [term for term in terms if term.parts]
    fixed = sum(term.size for term in terms if not term.parts)
    share = (num_features - fixed) // max(len(drawn), 1)
    needed = max((term.parts * term.size for term in drawn), default=0)
    if share < needed or num_features < fixed:
        raise ValueError(
            f"num_features = {num_features} is too few for this kernel, which has "
            f"{fixed} exact features and {len(drawn)} random terms of {needed} or "
            f"fewer: expected {fixed + needed * len(drawn)} at the very least, and a "
            'few hundred for each random term; or use method="exact".'
        )
    blocks = []
    for term, one_key in zip(terms, random.split(key, max(len(terms), 1))):
        n = share // (term.parts * term.size) if term.parts else 1
        blocks.append(_block(term, term.draw(one_key, n * term.size, dtype), n))

    def features(x: Float[Array, "N D"]) -> Float[Array, "N F"]:
        none = jnp.zeros((len(x), 0), dtype)
        return jnp.concatenate([none, *(block(x) for block in blocks)], axis=1)

    return features


def _block(term: Term, waves: Features, n: int) -> Features:
    """The features of one term, with n draws of χ for each exact feature."""

    def block(x):
        chi = waves(x).reshape(len(x), term.size, n)
        values = term.exact(x)[:, :, None] * chi / math.sqrt(n)
        values = values.reshape(len(x), -1)
        if term.parts < 2:
            return values
        return jnp.concatenate([values.real, values.imag], axis=1)

    return block


def white_variance(kernel: Kernel, x: Float[Array, "N D"]) -> Array | None:
    """Variance at each row of the part independent between rows; None for none.

    With d = s + w on the diagonal, smooth and white: (s₁ + w₁)(s₂ + w₂) − s₁ s₂ is the
    white part of a product.
    """
    x = kernel.select(x)
    match kernel:
        case White():
            return kernel.diagonal(x)
        case Sum() | Product():
            parts = (kernel.first, kernel.second)
            white = [white_variance(part, x) for part in parts]
            if white == [None, None]:
                return None
            w1, w2 = (jnp.zeros(len(x), x.dtype) if w is None else w for w in white)
            if isinstance(kernel, Sum):
                return w1 + w2
            d1, d2 = (part.diagonal(x) for part in parts)
            return d1 * d2 - (d1 - w1) * (d2 - w2)
    return None


@singledispatch
def spectral_terms(kernel, width: int) -> list[Term]:
    """The terms of a kernel, as functions of its active columns, ``width`` of them.

    Register a function for a kernel of your own:
    ``@spectral_terms.register(MyKernel)``.
    """
    raise no_spectrum(kernel)


def no_spectrum(kernel) -> ValueError:
    """What to raise for a kernel whose spectrum is not known."""
    return ValueError(
        f"no spectrum is known of the kernel {type(kernel).__name__}, so its functions "
        'cannot be drawn from random features: use method="exact", or a kernel of '
        "gp.kernels."
    )


def require_known(kernel: Kernel, open_function: Any) -> None:
    """Raise unless what is registered for a class of the kernel holds for the kernel.

    A subclass that writes its formula anew has another spectrum, until something is
    registered for it.
    """
    own = type(kernel)
    known = next(cls for cls in own.__mro__ if cls in open_function.registry)
    formula = ("_evaluate", "_evaluate_diagonal", "_correlation")
    if any(getattr(own, f, None) is not getattr(known, f, None) for f in formula):
        raise no_spectrum(kernel)


def _terms_of(kernel: Kernel, width: int) -> list[Term]:
    """The terms as functions of full rows: the active columns are taken here."""
    require_known(kernel, spectral_terms)
    columns = kernel.active_columns
    terms = spectral_terms(kernel, width if columns is None else len(columns))
    return [_selected(kernel, term) for term in terms]


def _selected(kernel: Kernel, term: Term) -> Term:
    def draw(key, n, dtype):
        waves = term.draw(key, n, dtype)
        return lambda x: waves(kernel.select(x))

    return term._replace(exact=lambda x: term.exact(kernel.select(x)), draw=draw)


# ------------------------------------------------------------------------ the algebra


@spectral_terms.register
def _(kernel: Sum, width: int) -> list[Term]:
    return _terms_of(kernel.first, width) + _terms_of(kernel.second, width)


@spectral_terms.register
def _(kernel: Product, width: int) -> list[Term]:
    first, second = _terms_of(kernel.first, width), _terms_of(kernel.second, width)
    return [_times(one, other) for one in first for other in second]


def _times(one: Term, other: Term) -> Term:
    def exact(x):
        product = one.exact(x)[:, :, None] * other.exact(x)[:, None, :]
        return product.reshape(len(x), -1)

    def draw(key, n, dtype):
        key_one, key_other = random.split(key)
        waves = one.draw(key_one, n, dtype), other.draw(key_other, n, dtype)
        return lambda x: waves[0](x) * waves[1](x)

    return Term(one.size * other.size, exact, max(one.parts, other.parts), draw)


@spectral_terms.register
def _(kernel: White, width: int) -> list[Term]:
    return []
