"""Inducing features: every covariance twice, and latents seen through functionals."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import tinygp
from jax import random
from numpyro import handlers
from scipy.special import erf

import svgp_ppl as gp
from svgp_ppl import features as ft
from svgp_ppl.features import covariance, paired_covariance
from svgp_ppl.linalg import factorised
from tests.conftest import mostly_double

RNG = np.random.default_rng(3)
X = np.sort(RNG.uniform(-1.0, 2.0, (7, 2)), axis=0)
Z = RNG.uniform(-1.0, 2.0, (5, 2))
K = gp.kernels
SMOOTH = {
    "rbf": K.RBF(1.3, np.array([0.7, 1.1])),
    "rational": K.RationalQuadratic(1.3, 0.7, alpha=0.8),
    "matern32": K.Matern32(1.3, np.array([0.7, 1.1])),
    "matern52": K.Matern52(1.3, 0.7),
    "column": K.Matern32(1.3, 0.7, active_columns=(1,)) + K.Constant(0.3),
    "product": K.Linear(0.5) * K.RBF(1.0, 0.9) + K.Polynomial(2),
    "periodic": K.Periodic(K.Matern52(0.8, 1.2, active_columns=(1,)), 1.7),
    "function": K.as_kernel(lambda a, b: jnp.exp(-jnp.sum(jnp.square(a - b)))),
    "arc cosine": K.ArcCosine(2, 0.7, 0.8, 0.5),
}
MATERN = [K.Matern12(1.7, 0.6), K.Matern32(1.7, 0.6), K.Matern52(1.7, 0.6)]
smooth = pytest.mark.parametrize("kernel", SMOOTH.values(), ids=SMOOTH.keys())
matern = pytest.mark.parametrize("kernel", MATERN, ids=["12", "32", "52"])
# One of them by default, the others with the slow tests.
ONE_MATERN = [
    pytest.param(k, marks=[pytest.mark.slow] * (k is not MATERN[1])) for k in MATERN
]
one_matern = pytest.mark.parametrize("kernel", ONE_MATERN, ids=["12", "32", "52"])


def close(found, wanted, tolerance=1e-8):
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


# ----------------------------------------------------------------------- derivatives


@smooth
def test_derivative_features_are_the_gradient_of_the_kernel(kernel):
    """k_uf against jax.grad of k(z_m, x_n), one pair of points at a time."""

    def number(z, x):
        return kernel.paired(z[None], x[None])[0]

    slope = jax.jit(jax.grad(number))
    each = [[slope(jnp.asarray(z), jnp.asarray(x)) for x in X] for z in Z]
    for column in range(2):
        wanted = np.asarray(each)[..., column]
        features = ft.Derivative(jnp.asarray(Z), column)
        found = jax.jit(lambda f=features: f.k_uf(kernel, jnp.asarray(X)))()
        close(found, wanted)


def stencil(z, column, step):
    """Central differences of order 6: a derivative made of points only."""
    steps = step * np.array([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0])
    weights = np.array([-1.0, 9.0, -45.0, 45.0, -9.0, 1.0]) / (60 * step)
    points = np.repeat(z[:, None], 6, axis=1)
    points[:, :, column] += steps
    return ft.Integral(jnp.asarray(points), jnp.asarray(np.tile(weights, (len(z), 1))))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [n for n in SMOOTH if "matern" not in n])
def test_derivatives_are_differences_of_points(name):
    """k_uu, k_uf and variances, values at coincident points among them."""
    kernel = SMOOTH[name]
    # Kernels that are not analytic where points meet have larger differences.
    tolerance = {"column": 5e-2, "periodic": 1e-4, "arc cosine": 1e-3}.get(name, 1e-8)
    exact, near = ft.Derivative(jnp.asarray(Z), 1), stencil(Z, 1, 0.01)
    found, wanted = jax.jit(
        lambda: [
            (f.k_uf(kernel, X), f.k_uu(kernel), f.variance(kernel))
            for f in (exact, near)
        ]
    )()
    for one, other in zip(found, wanted):
        close(one, other, tolerance)
    close(jnp.diagonal(found[1]), found[2])


@pytest.mark.parametrize(
    ("kernel", "factor"), [(K.Matern32, 3.0), (K.Matern52, 5 / 3), (K.RBF, 1.0)]
)
@mostly_double
def test_variance_of_a_slope(kernel, factor, precision):
    """−k''(0): 3σ²/ℓ², 5σ²/(3ℓ²) and σ²/ℓ² (Rasmussen & Williams 2006, section 4.2)."""
    slopes = ft.Derivative(jnp.asarray(Z, float), 0)
    found = jax.jit(lambda: slopes.variance(kernel(1.3, 0.7)))()
    close(found, np.full(5, factor * 1.3 / 0.49), 1e-8 if precision == 64 else 1e-5)
    slope = jax.grad(lambda length: slopes.variance(kernel(1.3, length))[0])
    by_length = jax.jit(slope)(0.7)
    close(by_length, -2 * factor * 1.3 / 0.343, 1e-8 if precision == 64 else 1e-4)


@pytest.mark.parametrize(
    "kernel",
    [K.Matern12(), K.RBF() + K.White(0.1), K.RBF() * K.ArcCosine(0)],
)
def test_functions_without_a_derivative(kernel):
    process = handlers.seed(gp.sparse_gp, random.key(0))("f", kernel, Z)
    with pytest.raises(ValueError, match="derivatives, which functions of the kernel"):
        process(ft.Derivative(X))
    with pytest.raises(ValueError, match="inducing features of process 'g'"):
        gp.sparse_gp("g", kernel, ft.Derivative(Z))
    assert process(ft.integral(X, X + 1.0)).shape == (7,)


def test_tinygp_kernels_without_derivatives():
    """Its distance of points that coincide is Σ_d |x_d − x'_d|, with a slope."""
    tiny = tinygp.kernels
    euclidean, plane = tiny.L2Distance(), jnp.asarray(Z)
    process: Any = handlers.seed(gp.sparse_gp, random.key(0))
    matern = 1.3 * tiny.Matern52(0.4, euclidean)
    for name, kernel, z in [
        ("f", matern, plane),
        ("g", K.RBF() + K.as_kernel(tiny.ExpSquared(0.4, tiny.L1Distance())), plane),
        ("h", tiny.ExpSquared() + tiny.Exp(0.4), plane[:, :1]),
    ]:
        f = process(name, kernel, z)
        with pytest.raises(ValueError, match="of tinygp does not give"):
            f(ft.Derivative(z))
    both = [ft.Derivative(plane, column) for column in (0, 1)]
    for kernel in (
        tiny.ExpSquared(0.4, euclidean),
        tinygp.transforms.Subspace(0, matern),
        K.Matern52(1.3, 0.4),
    ):
        within = jax.jit(lambda k=kernel: covariance(K.as_kernel(k), *both))()
        close(np.diagonal(within), 0.0)
        assert process("k", kernel, plane)(both[0]).shape == (5,)


# ------------------------------------------------------------------------- integrals


def test_integrals_of_an_rbf_process():
    """Against the error function, and against many points."""
    kernel, low = K.RBF(1.3, 0.7), np.array([[-1.0], [0.2], [0.9]])
    high, x = low + np.array([[0.3], [1.5], [0.8]]), np.linspace(-2, 2, 9)[:, None]
    areas = ft.integral(low, high, 16)
    root = 0.7 * np.sqrt(2.0)
    wanted = erf((high - x.T) / root) - erf((low - x.T) / root)
    found = jax.jit(
        lambda x: (areas.k_uf(kernel, x), areas.k_uu(kernel), areas.variance(kernel))
    )(x)
    close(found[0], 1.3 * root * np.sqrt(np.pi) / 2 * wanted)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    half = (high - low) / 2
    points = (low + high) / 2 + half * nodes
    many = jax.jit(kernel)(points.reshape(-1, 1)).reshape(3, 60, 3, 60)
    wanted = np.einsum("aibj,ai,bj->ab", many, half * weights, half * weights)
    close(found[1], wanted)
    close(found[2], np.diagonal(wanted))


@pytest.mark.parametrize("width", [1, 2])
def test_boxes(width):
    """Volumes, means of polynomials, and averages as integrals over volumes."""
    low, high = X[:, :width], X[:, :width] + np.arange(1.0, width + 1.0)
    areas, means = ft.integral(low, high, 4), ft.average(low, high, 4)
    volume = np.prod(high - low, axis=1)
    close(areas.of(lambda x: jnp.ones(len(x))), volume)
    wanted = np.prod((high**4 - low**4) / (4 * (high - low)), axis=1)
    close(means.of(lambda x: jnp.prod(x**3, axis=1)), wanted)
    close(means.weights, areas.weights / volume[:, None])


def test_a_box_in_float32_stays_there():
    low = jnp.zeros((3, 2), jnp.float32)
    areas = ft.average(low, low + 1)
    assert areas.x.dtype == areas.weights.dtype == jnp.float32


# --------------------------------------------------------------- Fourier, on [−1, 2]

LOWER, UPPER = -1.0, 2.0
INSIDE = np.linspace(-0.8, 1.8, 14)[:, None]
OUTSIDE = np.array([[-2.1], [-1.05], [2.0], [2.2], [3.5]])
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(400)


def inner(kernel, g, h):
    """⟨g, h⟩ on [a, b] by quadrature, as in the paper: each order written out."""
    t = (LOWER + UPPER) / 2 + (UPPER - LOWER) / 2 * NODES
    weights = (UPPER - LOWER) / 2 * NODE_WEIGHTS
    s2 = kernel.variance

    def at(function, t):
        return [each(t) for each in function]

    (g0, g1, g2, g3), (h0, h1, h2, h3) = at(g, t), at(h, t)
    (a0, a1, a2, _), (b0, b1, b2, _) = at(g, LOWER), at(h, LOWER)
    if isinstance(kernel, K.Matern12):
        rate = 1 / kernel.lengthscale
        whole = weights @ ((rate * g0 + g1) * (rate * h0 + h1))
        return whole / (2 * rate * s2) + a0 * b0 / s2
    if isinstance(kernel, K.Matern32):
        rate = 3**0.5 / kernel.lengthscale
        left = rate**2 * g0 + 2 * rate * g1 + g2
        right = rate**2 * h0 + 2 * rate * h1 + h2
        whole = weights @ (left * right) / (4 * rate**3 * s2)
        return whole + a0 * b0 / s2 + a1 * b1 / (rate**2 * s2)
    rate = 5**0.5 / kernel.lengthscale
    left = rate**3 * g0 + 3 * rate**2 * g1 + 3 * rate * g2 + g3
    right = rate**3 * h0 + 3 * rate**2 * h1 + 3 * rate * h2 + h3
    whole = 3 * weights @ (left * right) / (16 * rate**5 * s2)
    ends = 9 * a0 * b0 / (8 * s2) + 9 * a2 * b2 / (8 * rate**4 * s2)
    mixed = a1 * b1 + a2 * b0 / 8 + a0 * b2 / 8
    return whole + ends + 3 * mixed / (rate**2 * s2)


def waves(number):
    """1, cos and sin with three derivatives each."""
    found = [[np.ones_like, *[np.zeros_like] * 3]]
    for shift in (0.0, -np.pi / 2):
        for m in range(1, number + 1):
            omega = 2 * np.pi * m / (UPPER - LOWER)
            found.append(
                [
                    lambda t, w=omega, j=j, s=shift: (
                        w**j * np.cos(w * (t - LOWER) + j * np.pi / 2 + s)
                    )
                    for j in range(4)
                ]
            )
    return found


def unscaled(kernel, features):
    """α^½, by which the features of the paper are larger."""
    omega = 2 * np.pi * np.arange(features.num_frequencies + 1) / (UPPER - LOWER)
    order = {K.Matern12: 1, K.Matern32: 2, K.Matern52: 3}[type(kernel)]
    rate = (2 * order - 1) ** 0.5 / kernel.lengthscale
    q = {1: 2.0, 2: 4.0, 3: 16 / 3}[order] * kernel.variance * rate ** (2 * order - 1)
    alpha = (UPPER - LOWER) / 2 * (rate**2 + omega**2) ** order / q
    alpha[0] *= 2
    return np.sqrt(np.concatenate([alpha, alpha[1:]]))


@matern
def test_fourier_k_uu_is_the_gram_matrix_of_the_inner_product(kernel):
    features, basis = ft.Fourier(LOWER, UPPER, 3), waves(3)
    wanted = [[inner(kernel, g, h) for h in basis] for g in basis]
    scale = unscaled(kernel, features)
    found = jax.jit(lambda: features.k_uu(kernel))()
    close(found * scale * scale[:, None], wanted)


@pytest.mark.thorough
@one_matern
def test_fourier_k_uf_reproduces(kernel):
    """φ inside; beyond the interval ⟨φ, k(x, ·)⟩ by quadrature."""
    features, basis = ft.Fourier(LOWER, UPPER, 3), waves(3)
    scale = unscaled(kernel, features)[:, None]
    wanted = [wave[0](INSIDE[:, 0]) for wave in basis]
    close(scale * features.k_uf(kernel, jnp.asarray(INSIDE)), wanted)
    for x in OUTSIDE[np.abs(OUTSIDE[:, 0] - 0.5) > 1.6]:
        point = x[None]

        def number(t, point=point):
            return kernel.paired(point, jnp.reshape(t, (1, 1)))[0]

        derivatives, section = [number], []
        for _ in range(3):
            derivatives.append(jax.grad(derivatives[-1]))
        for each in derivatives:
            along = jax.jit(jax.vmap(each))
            section.append(
                lambda t, f=along: np.reshape(f(jnp.atleast_1d(t)), np.shape(t))
            )
        wanted = [inner(kernel, wave, section) for wave in basis]
        found = scale[:, 0] * features.k_uf(kernel, jnp.asarray(x[None]))[:, 0]
        close(found, wanted, 1e-7)


@one_matern
def test_fourier_features_never_explain_more_than_there_is(kernel):
    """k_fu k_uu⁻¹ k_uf ≤ k, closer with every frequency; also beyond the interval."""
    kernel = type(kernel)(1.7, 0.25)
    x = jnp.asarray(np.concatenate([[[0.4], [0.45], [0.6]], INSIDE, OUTSIDE]))
    for number in (4, 16, 32):
        features = ft.Fourier(LOWER, UPPER, number)
        cross, within, prior = jax.jit(
            lambda f=features: (f.k_uf(kernel, x), f.k_uu(kernel), kernel(x))
        )()
        rest = prior - cross.T @ np.linalg.solve(within, cross)
        assert np.min(np.linalg.eigvalsh(rest)) > -1e-10
        # Far from both ends it is what the spectrum has beyond ω_m: Σ s(ω) / (b − a).
        further = ft.Fourier(LOWER, UPPER, 100_000)
        spectrum = 2 / (UPPER - LOWER) / np.square(unscaled(kernel, further)) * 1.5
        tail = np.sum(spectrum[number + 1 : 100_001])
        np.testing.assert_allclose(np.diagonal(rest)[:3], tail, rtol=0.02)


@pytest.mark.thorough
@one_matern
def test_fourier_bound_is_the_dense_one(kernel):
    """log N(y; 0, Q + σ²I) − tr(K − Q) / 2σ² at the best q(v), from the model."""
    y = np.sin(3 * INSIDE[:, 0]) + 0.1 * np.arange(14) % 3
    features = ft.Fourier(LOWER, UPPER, 6)
    noise = 0.3

    def model(x, y=None):
        f = gp.sparse_gp("f", kernel, features, jitter=0.0)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)

    guide = gp.AutoGaussian(model)
    fit = gp.fit(
        random.key(0), model, guide, jnp.asarray(INSIDE), jnp.asarray(y),
        optimizer=gp.natural_gradient(1.0), num_steps=2, progress=False,
    )  # fmt: skip
    cross = np.asarray(features.k_uf(kernel, jnp.asarray(INSIDE)))
    explained = cross.T @ np.linalg.solve(features.k_uu(kernel), cross)
    covariance = explained + noise**2 * np.eye(14)
    wanted = dist.MultivariateNormal(0.0, covariance).log_prob(y)
    wanted -= np.sum(np.diagonal(kernel(INSIDE) - explained)) / (2 * noise**2)
    np.testing.assert_allclose(-fit.losses[-1], wanted, rtol=1e-8)


@matern
@mostly_double
def test_many_frequencies_are_well_conditioned(kernel, precision):
    features = ft.Fourier(LOWER, UPPER, 200)

    @jax.jit
    def run(x):
        within = features.k_uu(kernel)
        a = factorised(within).inverse @ features.k_uf(kernel, x)
        return within, a, kernel.diagonal(x) - jnp.sum(a * a, axis=0)

    x = jnp.asarray(INSIDE, float)
    within, a, residual = run(x)
    assert np.linalg.cond(within) < 100
    middle = np.abs(np.asarray(residual)[6:8])
    assert np.max(middle) < 0.03 and a.dtype == x.dtype


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ft.Fourier(1.0, 1.0, 5), "must be finite and not empty"),
        (lambda: ft.Fourier(0.0, np.inf, 5), "must be finite and not empty"),
        (lambda: ft.Fourier(0.0, "b", 5), "two numbers known"),
        (lambda: ft.Fourier(0.0, 1.0, 0), "positive integer"),
        (lambda: ft.Fourier(0.0, 1.0, True), "positive integer"),
        (lambda: ft.Fourier(0.0, 1.0, 5).k_uu(K.RBF()), "the kernel is RBF"),
        (
            lambda: ft.Fourier(0.0, 1.0, 5).k_uf(K.Matern32(), jnp.asarray(X)),
            "of one column",
        ),
    ],
)
def test_fourier_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ----------------------------------------------------- processes, and what is observed


@dataclass(frozen=True)
class Shifted:
    """A user's own features: no base class, no pytree."""

    z: Any

    def __len__(self):
        return len(self.z)

    def k_uu(self, kernel):
        return 4.0 * kernel(self.z)

    def k_uf(self, kernel, x):
        return 2.0 * kernel(self.z, x)


def process_of(z, kernel=SMOOTH["rbf"], **options):
    """A process with a Gaussian q(v) drawn once and for all."""
    with handlers.seed(rng_seed=0):
        f = gp.sparse_gp("f", kernel, z, **options)
    shape = f.qv.event_shape
    rng = np.random.default_rng(shape[-1])
    size = int(np.prod(shape))
    tril = np.tril(0.3 * rng.normal(size=(size, size))) + 0.5 * np.eye(size)
    blocks = np.stack([tril[: shape[-1], : shape[-1]]] * (size // shape[-1]))
    loc = rng.normal(size=shape)
    qv = dist.MultivariateNormal(loc, scale_tril=blocks.reshape(*shape, shape[-1]))
    if len(shape) == 2:
        qv = qv.to_event(1)
    return type(f)(f.name, f.kernel, f.features, f.factor, qv, f.mean, f.num_outputs)


def test_points_and_own_features_are_arrays():
    wanted = jax.jit(lambda: process_of(Z)(X).joint())()
    for features in (ft.Points(Z), Shifted(jnp.asarray(Z))):
        found = jax.jit(lambda z=features: process_of(z, jitter=None)(X).joint())()
        for one, value in zip(found, wanted):
            close(one, value)
    with pytest.raises(ValueError, match=r"no inducing inputs z: .* by Shifted"):
        jax.jit(lambda: process_of(Shifted(jnp.asarray(Z))).z)()


# Made in the precision of the test.
REPRESENTED = {
    "points": lambda: Z,
    "slopes": lambda: ft.Concatenated((ft.Points(Z[:3]), ft.Derivative(Z[:4], 1))),
    "areas": lambda: ft.average(Z, Z + 0.5, 5),
}
represented = pytest.mark.parametrize("z", REPRESENTED.values(), ids=REPRESENTED)


@pytest.mark.slow
@represented
def test_a_latent_at_an_integral_is_the_sum_of_latents(z):
    """Σ_j w_nj f(x_nj) by the algebra of latents, in every kind of moment."""

    def mean(x):
        return jnp.stack([jnp.sin(x[:, 0]), x[:, 1] ** 2], axis=1)

    f = process_of(z(), num_outputs=2, mean=mean)
    areas = ft.integral(X, X + 0.7, 3)
    seen = f(areas)
    points = [f(areas.x[:, j]) for j in range(areas.x.shape[1])]
    total = sum(w[:, None] * point for w, point in zip(areas.weights.T, points))
    close(seen.mean, total.mean)
    close(seen.variance, total.variance)
    for found, wanted in zip(seen.joint(), total.joint()):
        close(found, wanted)
    both = gp.stack([seen, f(jnp.asarray(X))])
    wanted = gp.stack([total, f(jnp.asarray(X))])
    close(both.covariance, wanted.covariance)
    difference = seen - f(jnp.asarray(X))
    in_chunks = difference.marginal(chunk_size=3).variance
    close(in_chunks, difference.variance)


@pytest.mark.slow
@represented
def test_a_latent_at_a_derivative_is_a_difference_of_latents(z):
    f = process_of(z(), mean=lambda x: jnp.sin(x[:, 0]))
    slope, near = f(ft.Derivative(X, 0)), f(stencil(X, 0, 0.01))
    close(slope.mean, near.mean, 1e-7)
    close(slope.variance, near.variance, 1e-7)
    close(slope.joint()[1], near.joint()[1], 1e-7)
    close(slope.marginal(chunk_size=2).variance, slope.variance)
    # The derivative of the mean, and rows paired with other functionals.
    along = jnp.asarray([[1.0, 0.0]] * 7)
    wanted = jax.jvp(lambda x: f(x).mean, (jnp.asarray(X),), (along,))[1]
    close(slope.mean, wanted)
    kernel = f.kernel
    ours = ft.Derivative(jnp.asarray(X), 0), ft.integral(X, X + 0.7, 3)
    pairs = paired_covariance(kernel, *ours)
    close(pairs, jnp.diagonal(covariance(kernel, *ours)))


@pytest.mark.thorough
def test_concatenated_points_have_the_white_noise_of_points():
    kernel, z = K.RBF() + K.White(0.5), jnp.asarray([[0.0], [0.4], [1.3]])
    parts = ft.Concatenated((ft.Points(z[:1]), ft.Derivative(z[:2]), ft.Points(z[1:])))
    matrix = parts.k_uu(K.RBF() + K.White(1e-12)) + jnp.diag(
        jnp.r_[0.5, 0, 0, 0.5, 0.5]
    )
    np.testing.assert_allclose(parts.k_uu(kernel), matrix, atol=1e-10)
    np.testing.assert_allclose(parts.variance(kernel), jnp.diag(matrix), atol=1e-10)


def test_concatenated_latents():
    """Values of all parts, but no rows to cut into chunks."""
    both = ft.Concatenated((ft.Points(X), ft.Derivative(X, 1)))

    @jax.jit
    def found():
        f = process_of(Z)
        latent = f(both)
        other = f(ft.Concatenated((ft.Points(X), ft.Points(X + 0.1))))
        parts = jnp.concatenate([f(part).mean for part in both.parts])
        both_ways = [(u.variance, u.joint()[1]) for u in (latent, latent - other)]
        one_chunk = latent.marginal(chunk_size=14)  # cuts nothing
        assert latent.shape == one_chunk.mean.shape == (14,)
        return latent.mean, parts, both_ways

    mean, parts, both_ways = found()
    close(mean, parts)
    for variance, joint in both_ways:
        close(variance, np.diagonal(joint))
    with pytest.raises(ValueError, match="chunk_size cuts rows"):
        jax.jit(lambda: process_of(Z)(both).marginal(chunk_size=3))()


# ----------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (ft.Fourier(0.0, 1.0, 3), "Fourier, which represent a process"),
        (ft.Derivative(X, 2), "column 2, and x has the columns 0 to 1"),
        (ft.Derivative(X, True), "along column True"),
        (ft.Derivative(X[:, 0]), r"must have shape \[N, D\]"),
        (ft.Derivative(np.full((2, 2), np.nan)), "finite"),
        (ft.Integral(X, np.ones(7)), r"points must have shape \[N, J, D\]"),
        (ft.Integral(X[:, None], np.full((7, 1), np.nan)), "the weights of"),
        (ft.Concatenated(()), "parts must be a tuple"),
        (ft.Concatenated((X,)), "write an array z as Points"),
    ],
)
def test_functionals_are_checked(as_users_call, x, message):
    with pytest.raises(ValueError, match=message):
        process_of(Z)(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, X[:3]), "one shape"),
        ((X, X), "below its upper corner"),
        ((X, X + 1.0, 0), "num_nodes of the areas"),
        ((X[:, 0], X[:, 0] + 1.0), r"shape \[N, D\]"),
    ],
)
def test_areas_are_checked(as_users_call, arguments, message):
    with pytest.raises(ValueError, match=message):
        ft.average(*arguments)


def test_features_are_checked(as_users_call):
    class Wrong(Shifted):
        def k_uu(self, kernel):
            return kernel(self.z)[:2]

    with handlers.seed(rng_seed=0):
        with pytest.raises(ValueError, match="the class Fourier"):
            gp.sparse_gp("f", K.Matern32(), ft.Fourier)
        with pytest.raises(ValueError, match=r"shape \[M, M\] with M = 5"):
            gp.sparse_gp("f", K.Matern32(), Wrong(jnp.asarray(Z)))


@pytest.mark.parametrize("end", [0.0, 2.0])
def test_fourier_derivatives_at_the_ends_are_those_inside(end):
    features = ft.Fourier(0.0, 2.0, 4)
    kernel = gp.kernels.Matern52(1.3, 0.7)
    with jax.enable_x64(True):
        slope = jax.jacfwd(lambda x: features.k_uf(kernel, x[None, None])[:, 0])
        inside = end + (1e-6 if end == 0.0 else -1e-6)
        at_end, near = map(jax.jit(slope), (jnp.asarray(end), jnp.asarray(inside)))
    np.testing.assert_allclose(at_end, near, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [ft.Points, lambda z: ft.Derivative(z, 0)])
def test_the_jitter_is_that_of_the_precision_that_is_set(kind):
    # Inducing inputs chosen among data of float32 are float32.
    kernel, z = gp.kernels.RBF(1.0, 3.0), jnp.arange(11.0)[:, None]

    @jax.jit
    def factor_at(z):
        with handlers.seed(rng_seed=0):
            process = gp.sparse_gp("f", kernel, kind(z))
        return process.scale_tril, process.features.z if kind is ft.Points else 0

    for narrow in (jnp.float32, jnp.float16):
        for found, wanted in zip(factor_at(z.astype(narrow)), factor_at(z)):
            np.testing.assert_array_equal(found, wanted, strict=True)
