"""Random features: on average they are the kernel, for every kernel that has them."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from svgp_ppl import kernels, register_dataclass
from svgp_ppl.kernels.features import random_features, white_variance
from svgp_ppl.kernels.spectral import precision
from tests.conftest import mostly_double
from tests.test_kernels import ALL

ONE = {"active_columns": (1,)}
# Beyond the list of all kernels: what sums, products and columns make of them.
COMPOSED = {
    "one column of two": kernels.RBF(0.7, 0.4, **ONE),
    "stationary times stationary": kernels.RBF(0.7, 0.9) * kernels.Matern32(1.2, 1.4),
    "stationary times linear": kernels.RBF(0.7, 0.9) * kernels.Linear(0.5, **ONE),
    "cosine times stationary": kernels.Cosine(0.7, 1.3) * kernels.Matern52(0.9, 1.5),
    "damped period": kernels.Periodic(kernels.RBF(1.0, 0.5, **ONE), 1.1)
    * kernels.RBF(0.8, 2.0),
    "sum of products": 0.4 * (kernels.RBF(0.7) + kernels.Constant(0.3))
    + kernels.Polynomial(3, [0.3, 0.8], 0.4),
    "noise inside": (kernels.RBF(0.7, 0.5) + kernels.White(0.2)) * kernels.Linear(0.6),
    "high frequencies": kernels.Periodic(kernels.RBF(1.0, 0.003), 1000.0),
    "period of RationalQuadratic": kernels.Periodic(
        kernels.RationalQuadratic(0.8, [0.5, 0.8], alpha=1.2), [1.1, 1.6]
    ),
}
WITHOUT_SPECTRUM = {"FunctionKernel", "TinygpKernel"}
DRAWN = {n: k for n, k in (ALL | COMPOSED).items() if n not in WITHOUT_SPECTRUM}
MATERN = ["Matern12", "Matern32", "Matern52"]
EXACT = {"Linear", "Linear per column", "Polynomial", "Constant", "Cosine", "White"}
# A minute of compilation, and nothing that the others do not have.
SLOW = {"Periodic Matern52", "Sum", "Product", "ArcCosine 0", "Periodic Matern12"}
SLOW |= {"period of RationalQuadratic"}
ALIKE = {"Matern12", "Matern32", "Linear per column", "ArcCosine 2", "Constant"}

X = np.random.default_rng(3).normal(size=(4, 2))


def at(kernel, key, x, num_features):
    return random_features(kernel, key, x.shape[1], num_features, x.dtype)(x)


def grams(kernel, x, num_keys, num_features):
    """φ(x)ᵀφ(x') under several keys, [keys, N, N]."""

    @jax.jit
    @jax.vmap
    def gram(key):
        features = at(kernel, key, x, num_features)
        assert features.shape[1] <= num_features
        assert features.dtype == x.dtype
        return jnp.sum(features[:, None] * features[None], axis=-1)

    return np.asarray(gram(random.split(random.key(4), num_keys)))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            n,
            marks=[pytest.mark.slow] * (n in SLOW)
            + [pytest.mark.thorough] * (n in ALIKE),
        )
        for n in DRAWN
    ],
)
def test_features_are_the_kernel_on_average(name):
    # 10 comparisons for each of 31 kernels at 5 standard errors: fails by chance once
    # in 5000 keys.
    kernel, x = DRAWN[name], jnp.asarray(X)
    smooth = jax.jit(
        lambda: kernel(x) - jnp.diag(kernel.diagonal(x) - kernel.paired(x, x))
    )()
    if name in EXACT:
        (gram,) = grams(kernel, x, 1, 12)
        np.testing.assert_allclose(gram, smooth, atol=1e-12)
        return
    drawn = grams(kernel, x, 500, 100)
    bound = 5 * drawn.std(0) / np.sqrt(500)
    # Seen on a scale on which an error of a few percent would show.
    assert np.max(bound) < 0.15 * np.max(np.abs(smooth))
    assert np.all(np.abs(drawn.mean(0) - smooth) < bound + 1e-9)


@pytest.mark.thorough
@mostly_double
def test_features_in_both_precisions(precision):
    # 2 × 10 comparisons at 5 standard errors: fails by chance once in 8e4 keys.
    kernel, x = COMPOSED["damped period"] + kernels.Matern12(0.7, 0.6), jnp.asarray(X)
    drawn = grams(kernel, x, 500, 100)
    assert drawn.dtype == f"float{precision}"
    bound = 5 * drawn.std(0) / np.sqrt(500) + 1e-5
    assert np.all(np.abs(drawn.mean(0) - kernel(x)) < bound)


@pytest.mark.parametrize("name", ["RationalQuadratic", *MATERN])
def test_scale_mixtures_are_the_correlation(name):
    # 3 comparisons at 5 standard errors: fails by chance once in 6e5 keys. The error of
    # one degree of freedom is 0.016 at r = 1.
    kernel, squares = ALL[name], np.array([0.3, 1.0, 4.0])

    @jax.jit
    def scales_and_correlation(squares):
        scales = precision(kernel, random.key(5), (100_000, 1), squares.dtype)
        return scales, kernel._correlation(squares)

    scales, correlation = map(np.asarray, scales_and_correlation(squares))
    values = np.exp(-0.5 * scales * squares)
    bound = 5 * np.std(values, axis=0) / np.sqrt(100_000)
    error = np.mean(values, axis=0) - correlation
    assert np.all(np.abs(error) < bound)


def test_error_falls_with_the_root_of_the_number():
    kernel, x = kernels.RBF(1.0, 0.7), jnp.asarray(X)
    exact = np.asarray(jax.jit(kernel)(x))
    errors = [
        np.sqrt(np.mean((grams(kernel, x, 200, n) - exact) ** 2)) for n in (32, 512)
    ]
    assert 3 < errors[0] / errors[1] < 5.3


def test_same_key_gives_the_same_functions():
    kernel = COMPOSED["sum of products"]
    features = jax.jit(lambda x: at(kernel, random.key(0), x, 60))
    whole, rows = np.asarray(features(X)), features(X[1:3])
    np.testing.assert_allclose(whole[1:3], rows, rtol=1e-12)


@pytest.mark.parametrize("name", ALL | COMPOSED)
def test_white_part_is_what_other_rows_do_not_share(name):
    kernel = (ALL | COMPOSED)[name]

    @jax.jit
    def both(x):
        return white_variance(kernel, x), kernel.diagonal(x) - kernel.paired(x, x)

    white, exact = both(X)
    if white is None:
        np.testing.assert_allclose(exact, 0.0, atol=1e-7)
    else:
        np.testing.assert_allclose(white, exact, rtol=1e-10)


@pytest.mark.parametrize("name", sorted(WITHOUT_SPECTRUM))
def test_kernel_without_spectrum_says_so(name):
    x = jnp.asarray(X)
    kernel = kernels.RBF(1.0, 1.0) * ALL[name]
    with pytest.raises(ValueError, match=rf'{name}.*use method="exact"'):
        at(kernel, random.key(0), x, 100)


@register_dataclass
@dataclass(frozen=True)
class Rounder(kernels.RBF):
    """A formula of its own."""

    def _correlation(self, squared_distance):
        return jnp.exp(-0.5 * squared_distance**0.75)


@register_dataclass
@dataclass(frozen=True)
class Named(kernels.RBF):
    """The formula of its parent."""

    name: str = field(default="", metadata={"static": True})


@pytest.mark.parametrize("of", [lambda k: k, lambda k: kernels.Periodic(k, 1.3)])
def test_spectrum_belongs_to_the_formula(of):
    with pytest.raises(ValueError, match="no spectrum is known of the kernel Rounder"):
        random_features(of(Rounder(0.7, 0.4)), random.key(0), 2, 64, float)

    @jax.jit
    def both(x):
        found = [of(cls(0.7, 0.4)) for cls in (Named, kernels.RBF)]
        return [random_features(k, random.key(0), 2, 64, float)(x) for k in found]

    named, parent = both(X)
    np.testing.assert_array_equal(named, parent)


def test_too_few_features_are_refused():
    kernel = kernels.Polynomial(3) + kernels.RBF() * kernels.Linear()
    with pytest.raises(
        ValueError, match=r"num_features = 13 is too few.*10 exact.*expected 14"
    ):
        at(kernel, random.key(0), jnp.asarray(X), 13)
    features = jax.jit(lambda x: at(kernel, random.key(0), x, 14))(X)
    assert features.shape == (4, 14)


@pytest.mark.parametrize(("number", "used"), [(26, 2 + 12 + 12), (103, 2 + 50 + 48)])
def test_drawn_terms_share_what_exact_ones_leave(number, used):
    """Pairs of cosines and sines, times the six monomials of a quadratic."""
    quadratic = kernels.RBF() * kernels.Polynomial(2)
    kernel = kernels.Linear() + kernels.RBF() + quadratic
    features = jax.eval_shape(lambda: at(kernel, random.key(0), jnp.asarray(X), number))
    assert features.shape == (4, used)


def test_what_is_no_covariance_is_refused():
    kernel = kernels.Periodic(kernels.Matern32(0.7, 0.6), 1.3)
    with pytest.raises(ValueError, match="one periodic kernel per column"):
        at(kernel, random.key(0), jnp.asarray(X), 100)
