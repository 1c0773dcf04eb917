"""The projection and its moments against plain formulas: derivatives, float32."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.linalg import solve_triangular

from svgp_ppl import kernels, linalg, marginals, stack
from svgp_ppl.features import Points
from svgp_ppl.process import SparseGP
from svgp_ppl.variational import prior_kl, project_outputs, split
from tests.conftest import both_precisions
from tests.test_lapack import calls_in

M, N, JITTER = 5, 8, 1e-3
RNG = np.random.default_rng(3)
X = RNG.uniform(0.0, 4.0, (N, 2))
Z = RNG.uniform(0.0, 4.0, (M, 2))
TRIL = np.tril(RNG.normal(size=(2 * M, 2 * M))) + 2 * np.eye(2 * M)
LOC = RNG.normal(size=2 * M)
WEIGHTS = RNG.normal(size=(3, 2, N))


def q_of(kind, loc, tril):
    """The q(v) of two outputs; its covariance [2 M, 2 M] and the shape of v."""
    each = jnp.stack([tril[:M, :M], tril[M:, M:]])
    scale = jnp.abs(jnp.diagonal(tril)).reshape(2, M)
    loc = loc.reshape(2, M)
    match kind:
        case "point":
            return dist.Delta(loc, event_dim=2), jnp.zeros((2, 2, M, M))
        case "diagonal":
            qv = dist.Normal(loc, scale).to_event(2)
            each = jax.vmap(jnp.diag)(scale)
        case "full":
            qv = dist.MultivariateNormal(loc, scale_tril=each).to_event(1)
        case "coupled":
            joint = dist.MultivariateNormal(loc.reshape(-1), scale_tril=tril)
            value = jnp.zeros(2 * M)
            qv = split("v", joint, value, {"f": (2, M)})["f"]
            s = tril @ tril.T
            return qv, s.reshape(2, M, 2, M).transpose(0, 2, 1, 3)
    s = each @ jnp.swapaxes(each, 1, 2)
    return qv, jnp.zeros((2, 2, M, M)).at[jnp.arange(2), jnp.arange(2)].set(s)


def ours(kind, x, z, lengthscale, loc, tril):
    kernel = kernels.RBF(1.3, lengthscale)
    factor = linalg.factorised(kernel(z), JITTER)
    latent = SparseGP(
        "f", kernel, Points(z), factor, q_of(kind, loc, tril)[0], None, 2
    )(x)
    marginal = latent.marginal()
    cross = marginal.covariance
    cross = jnp.zeros(N) if cross is None else cross[:, 0, 1]
    return marginal.mean.T, marginal.variance.T, cross


def plain(kind, x, z, lengthscale, loc, tril):
    def k(a, b):
        difference = (a[:, None] - b) / lengthscale
        return 1.3 * jnp.exp(-0.5 * jnp.sum(difference**2, axis=-1))

    root = jnp.linalg.cholesky(k(z, z) + JITTER * jnp.eye(M))
    a = solve_triangular(root, k(z, x), lower=True)
    s = jnp.einsum("pqij,in,jn->pqn", q_of(kind, loc, tril)[1], a, a)
    variance = 1.3 - jnp.sum(a * a, axis=0) + s[jnp.arange(2), jnp.arange(2)]
    return loc.reshape(2, M) @ a, variance, s[0, 1]


def derivatives(moments, kind):
    """Values, gradient, tangents and a Hessian-vector product, in one program."""

    def total(*arguments):
        weights = jnp.asarray(WEIGHTS, arguments[0].dtype)
        mean, variance, cross = moments(kind, *arguments)
        smooth = weights[0] * jnp.sin(mean) + weights[1] * jnp.cos(variance)
        return jnp.sum(smooth) + jnp.sum(weights[2, 0] * jnp.sin(cross))

    every = tuple(range(5))

    def run(arguments, tangents):
        values, moved = jax.jvp(lambda *a: moments(kind, *a), arguments, tangents)
        gradient = jax.grad(total, every)
        # In the two orders of forward and reverse mode.
        slope, curved = jax.jvp(gradient, arguments, tangents)
        again = jax.grad(lambda *a: jax.jvp(total, a, tangents)[1], every)(*arguments)
        return values, moved, slope, curved, again

    return jax.jit(run)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("full", 32),
        *(
            pytest.param(kind, 64, marks=pytest.mark.thorough)
            for kind in ("point", "diagonal", "coupled")
        ),
        pytest.param("full", 64, marks=pytest.mark.slow),
        *(
            pytest.param(kind, 32, marks=pytest.mark.slow)
            for kind in ("point", "diagonal", "coupled")
        ),
    ],
    indirect=["precision"],
)
def test_all_derivatives_equal_those_of_a_triangular_solve(kind, precision):
    arguments = X, Z, np.array([1.5, 2.0]), LOC, TRIL
    rng = np.random.default_rng(0)
    *tangents, of_tril = (0.3 * rng.normal(size=a.shape) for a in arguments)
    tangents = *tangents, np.tril(of_tril)
    found = derivatives(ours, kind)(arguments, tangents)
    expected = derivatives(plain, kind)(arguments, tangents)
    tolerance = 1e-8 if precision == 64 else 2e-3

    def close(a, b):
        np.testing.assert_allclose(a, b, tolerance, tolerance * np.max(np.abs(b)))

    jax.tree.map(close, found, expected)


@pytest.mark.parametrize("leading", [(1,), (2, 3), (33,)])
def test_gradients_for_any_number_of_outputs(leading):
    rng = np.random.default_rng(1)
    kernel = kernels.RBF(1.3, 1.5)
    loc = jnp.asarray(rng.normal(size=(*leading, M)))
    trils = jnp.asarray(np.tril(rng.normal(size=(*leading, M, M))))

    def plain(factor, k, loc, trils):
        a = solve_triangular(factor.tril, k, lower=True)
        half = jnp.swapaxes(trils, -1, -2) @ a
        return loc @ a, jnp.sum(half**2, axis=-2) - jnp.sum(a**2, axis=-2)

    def slopes(function):
        def total(x, *of_q):
            factor = linalg.factorised(kernel(jnp.asarray(Z)), JITTER)
            mean, excess = function(factor, kernel(jnp.asarray(Z), x), *of_q)
            return jnp.sum(jnp.sin(mean)) + jnp.sum(jnp.cos(excess))

        return jax.jit(jax.value_and_grad(total, (0, 1, 2)))(jnp.asarray(X), loc, trils)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-9, 1e-9),
        slopes(linalg.gaussian_moments),
        slopes(plain),
    )


def test_a_mixture_is_the_moments_of_each_component():
    @jax.jit
    def moments(x, z, loc, trils):
        kernel = kernels.RBF(1.3, 1.5)
        factor = linalg.factorised(kernel(z), JITTER)
        components = dist.MultivariateNormal(loc, scale_tril=trils)
        log_weights = dist.Categorical(logits=jnp.array([0.2, -0.1]))
        qvs = [dist.MixtureSameFamily(log_weights, components)]
        qvs += [dist.MultivariateNormal(loc[k], scale_tril=trils[k]) for k in range(2)]
        latents = [SparseGP("f", kernel, Points(z), factor, qv)(x) for qv in qvs]
        marginals = [latent.marginal() for latent in latents]
        return [(marginal.mean, marginal.variance) for marginal in marginals]

    trils = np.stack([TRIL[:M, :M], TRIL[M:, M:]])
    (mean, variance), *each = moments(X, Z, LOC.reshape(2, M), trils)
    for k, alone in enumerate(each):
        np.testing.assert_allclose(mean[k], alone[0], 1e-12)
        np.testing.assert_allclose(variance[k], alone[1], 1e-12)


def test_parts_of_a_diagonal_joint_q_are_their_own_diagonals():
    rng = np.random.default_rng(6)
    loc, scale = rng.normal(size=3 * M), rng.uniform(0.2, 2.0, 3 * M)
    a = rng.normal(size=(M, N))

    @jax.jit
    def moments(loc, scale, a):
        joint = dist.Normal(loc, scale).to_event(1)
        parts = split("v", joint, jnp.zeros(3 * M), {"f": (M,), "g": (2, M)})
        projected = {name: project_outputs(part, a) for name, part in parts.items()}
        return {
            name: (mean, jnp.sum(factor**2, axis=-2))
            for name, (mean, factor) in projected.items()
        }

    found = moments(loc, scale, a)
    for name, here in (("f", slice(0, 1)), ("g", slice(1, 3))):
        mean, of_ours = found[name]
        np.testing.assert_allclose(mean, loc.reshape(3, M)[here] @ a, 1e-12)
        variance = scale.reshape(3, M)[here] ** 2 @ a**2
        np.testing.assert_allclose(of_ours, variance, 1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["point", "full"])
def test_vectorised_derivatives_are_those_of_each(kind):
    lengthscales = jnp.array([[1.5, 2.0], [0.7, 1.0], [3.0, 3.0]])

    def total(lengthscale):
        x, z, loc, tril = map(jnp.asarray, (X, Z, LOC, TRIL))
        moments = ours(kind, x, z, lengthscale, loc, tril)
        return sum(jnp.sum(jnp.sin(moment)) for moment in moments)

    both = jax.value_and_grad(total)
    together = jax.jit(jax.vmap(both))(lengthscales)
    each = [jax.jit(both)(lengthscale) for lengthscale in lengthscales]
    for a, *b in zip(*map(jax.tree.leaves, (together, *each))):
        np.testing.assert_allclose(a, b, 1e-9, 1e-9)
    assert not calls_in(jax.jit(jax.vmap(both)), lengthscales)


# ---------------------------------------------------------------------------- float32


def _grid(num_inducing, num_data, lengthscale):
    """A Gram matrix in one dimension, as ill-conditioned as its jitter allows."""
    z = np.linspace(0.0, 1.0, num_inducing)[:, None]
    x = np.random.default_rng(0).uniform(size=(num_data, 1))
    return _factor_and_cross(z, x, lengthscale)


@jax.jit
def _factor_and_cross(z, x, lengthscale):
    kernel = kernels.RBF(1.0, lengthscale)
    return linalg.factorised(kernel(z), 1e-5), kernel(z, x)


@pytest.mark.parametrize("precision", [32], indirect=True)
@pytest.mark.parametrize("num_inducing", [40, 200])  # one block of rows, and four
def test_single_precision_is_as_accurate_as_a_triangular_solve(num_inducing, precision):
    factor, k = _grid(num_inducing, 300, 0.2)

    @jax.jit
    def three_ways(factor, k):
        solved = solve_triangular(factor.tril, k, lower=True)
        return linalg.whiten(factor, k), solved, factor.inverse @ k

    a, solved, product = (np.asarray(b, np.float64) for b in three_ways(factor, k))
    exact = np.linalg.solve(np.asarray(factor.tril, np.float64), np.asarray(k))

    def error(found):  # the largest one varies with the machine, this hardly
        return np.sqrt(np.mean((found - exact) ** 2))

    assert error(a) < 2 * error(solved)
    # A product with the inverse alone would not do.
    assert error(product) > 20 * error(solved)


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_the_backward_pass_belongs_to_the_same_solution(precision):
    # ⟨L⁻ᵀ b, k⟩ = ⟨b, L⁻¹ k⟩: in gradients of hyperparameters such terms cancel.
    factor, k = _grid(200, 300, 0.2)

    @jax.jit
    def there_and_back(factor, k):
        a, pull = jax.vjp(lambda k: linalg.whiten(factor, k), k)
        # In the direction in which a product with the inverse is wrong.
        b = jnp.sign(factor.inverse @ k - a)
        return a, b, pull(b)[0], factor.inverse.T @ b

    found = k, *there_and_back(factor, k)
    k, a, b, pulled, product = (np.asarray(each, np.float64) for each in found)

    def error(back):
        return abs(np.vdot(back, k) - np.vdot(b, a))

    assert error(pulled) < 0.5
    assert error(product) > 5.0


def _bound(num_inducing, width, lengthscale):
    """Bound of a regression and its gradient, in the precision in force."""
    rng = np.random.default_rng(1)
    x, z = rng.uniform(size=(1000, width)), rng.uniform(size=(num_inducing, width))
    y = np.sin(6 * x.mean(axis=1)) + 0.1 * rng.normal(size=1000)
    if width == 1:
        z = np.linspace(0.0, 1.0, num_inducing)[:, None]
    # Near the best q(v), in double precision.
    scaled = (z[:, None] - np.concatenate([z, x])) / lengthscale
    k = np.exp(-0.5 * np.sum(scaled**2, axis=-1))
    root = np.linalg.cholesky(k[:, : len(z)] + 1e-5 * np.eye(len(z)))
    a = np.linalg.solve(root, k[:, len(z) :])
    covariance = np.linalg.inv(np.eye(len(z)) + 100 * a @ a.T)
    loc = jnp.asarray(95 * covariance @ a @ y)
    tril = jnp.asarray(1.2 * np.linalg.cholesky(covariance))
    x, y, z = map(jnp.asarray, (x, y, z))

    def bound(variance, lengthscale):
        kernel = kernels.RBF(variance, lengthscale)
        factor = linalg.factorised(kernel(z), 1e-5)
        qv = dist.MultivariateNormal(loc, scale_tril=tril)
        marginal = SparseGP("f", kernel, Points(z), factor, qv)(x).marginal()
        errors = jnp.square(y - marginal.mean) + marginal.variance
        density = -50 * errors - 0.5 * np.log(2 * np.pi * 0.01)
        return jnp.sum(density) - prior_kl(qv)

    arguments = jnp.asarray(1.0), jnp.full(width, lengthscale)
    return jax.jit(jax.value_and_grad(bound, (0, 1)))(*arguments)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("num_inducing", "width", "lengthscale", "tolerance"),
    [(60, 3, 0.7, 1e-4), (200, 1, 0.02, 5e-4)],
)
def test_single_precision_gives_bound_and_gradient(
    num_inducing, width, lengthscale, tolerance
):
    found = {}
    for bits in (32, 64):
        with jax.enable_x64(bits == 64):
            found[bits] = jax.device_get(_bound(num_inducing, width, lengthscale))
    (value, gradient), (exact, exact_gradient) = found[32], found[64]
    assert abs(value - exact) < tolerance * abs(exact)
    for a, b in zip(gradient, exact_gradient, strict=True):
        np.testing.assert_allclose(a, b, atol=0.01 * np.max(np.abs(b)))


# ------------------------------------------------------- one product for all the data


def _posterior(factor, k, noise):
    """q(v) of a regression on k = k(z, x), to its last digits, as (m, S)."""
    a = np.linalg.solve(np.asarray(factor.tril, float), np.asarray(k, float))
    eye = np.eye(len(a))
    tril = np.linalg.cholesky(np.linalg.inv(eye + a @ a.T / noise**2))
    loc = tril @ (tril.T @ (a @ np.sin(np.arange(a.shape[1])))) / noise**2
    return loc, tril


@jax.jit
def _both_ways(factor, k, loc, tril):
    """Means, and variances less k(x, x) = 1: by one product and by two; the cache."""
    cache = linalg.posterior_cache(factor, loc, tril)
    ones = jnp.ones(k.shape[1], k.dtype)
    one = linalg.cached_moments(cache, ones, factor, k, loc, tril)
    return one, linalg.gaussian_moments(factor, k, loc, tril), cache


@pytest.mark.parametrize("lengthscale", [0.02, 0.2, 2.0])
def test_one_product_gives_the_moments_of_two(lengthscale):
    factor, k = _grid(60, 100, lengthscale)
    loc, tril = _posterior(factor, k, 0.3)
    # Two outputs, and two components of a mixture of them.
    locs = np.stack([[loc, -loc], [2 * loc, np.zeros(60)]])
    trils = np.stack([[tril, 0.3 * tril], [0.9 * np.eye(60), np.eye(60)]])
    one, two, cache = _both_ways(factor, k, locs, trils)
    assert cache.exists
    np.testing.assert_array_equal(cache.root, np.tril(cache.root))
    np.testing.assert_allclose(one[0], two[0], 1e-9, 1e-9 * np.max(np.abs(loc)))
    np.testing.assert_allclose(one[1], two[1], 0, 1e-10)


def test_the_slack_of_the_root_changes_small_variances_in_proportion():
    factor, k = _grid(60, 100, 2.0)
    loc, tril = np.zeros((1, 60)), 1e-4 * np.eye(60)[None]
    one, two, cache = _both_ways(factor, k, loc, tril)
    assert cache.exists
    assert np.min(1 + two[1]) < 1e-6
    np.testing.assert_allclose(1 + one[1], 1 + two[1], 0, 1e-12)


@pytest.mark.parametrize("excess", [1e-9, 1e-3, 10.0])
def test_a_covariance_above_that_of_the_prior_takes_two_products(excess):
    factor, k = _grid(20, 30, 0.2)
    above = np.diag(np.sqrt(1 + excess * (np.arange(20) == 7)))
    trils = np.stack([0.5 * np.eye(20), above])
    one, two, cache = _both_ways(factor, k, np.ones((2, 20)), trils)
    assert not cache.exists
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, 1e-12, 1e-12)


def test_a_failed_factorisation_stays_visible():
    failed, k = jax.jit(linalg.factorised)(-np.eye(20)), np.ones((20, 30))
    one, _, cache = _both_ways(failed, k, np.ones((1, 20)), np.eye(20)[None] / 2)
    assert not cache.exists
    assert np.isnan(one[0]).all()
    assert np.isnan(one[1]).all()


@pytest.mark.parametrize("precision", [32], indirect=True)
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_one_product_is_accurate_in_single_precision(noise, precision):
    factor, k = _grid(200, 300, 0.2)
    loc, tril = _posterior(factor, k, noise)
    one, _, cache = _both_ways(factor, k, loc[None], tril[None])
    assert cache.exists
    a = np.linalg.solve(np.asarray(factor.tril, float), np.asarray(k, float))
    mean = loc @ a
    excess = np.sum((tril.T @ a) ** 2, axis=0) - np.sum(a**2, axis=0)
    np.testing.assert_allclose(one[0][0], mean, 0, 1e-4 * np.max(np.abs(loc)))
    np.testing.assert_allclose(one[1][0], excess, 0, 2e-6)


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_whether_there_is_a_cache_is_free_of_units(precision):
    factor, k = _grid(200, 300, 0.2)
    loc, tril = _posterior(factor, k, 0.1)
    loc, tril = loc[None], tril[None]

    @jax.jit
    def exists(factor, loc, tril, unit):
        scaled = factor._replace(tril=unit * factor.tril, inverse=factor.inverse / unit)
        return linalg.posterior_cache(scaled, loc, tril).exists

    for unit in (1e-3, 1.0, 1e3):
        assert exists(factor, loc, tril, unit)
        assert not exists(factor, loc, 0.3 * tril, unit)


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_two_products_where_one_would_lose_digits(precision):
    factor, k = _grid(200, 300, 0.2)
    loc, tril = np.linspace(-1.0, 1.0, 200)[None], 0.3 * np.eye(200)[None]
    one, two, cache = _both_ways(factor, k, loc, tril)
    assert not cache.exists
    assert np.isfinite(cache.root).all()
    np.testing.assert_allclose(one[0], two[0], 1e-5, 1e-5)
    np.testing.assert_allclose(one[1], two[1], 0, 1e-6)


def test_chunks_share_one_cache_and_derivatives_do_without(monkeypatch):
    shared = []

    def counted(*arguments):
        shared.append(arguments[0])
        return linalg.cached_moments(*arguments)

    monkeypatch.setattr(marginals, "cached_moments", counted)
    x = jnp.asarray(RNG.uniform(0.0, 4.0, (23, 2)))
    tril = jnp.asarray(TRIL / np.linalg.norm(TRIL, 2))

    def moments(lengthscale, chunk_size):
        kernel, z = kernels.RBF(1.3, lengthscale), jnp.asarray(Z)
        factor = linalg.factorised(kernel(z), JITTER)
        qv, _ = q_of("full", jnp.asarray(LOC), tril)
        latent = SparseGP("f", kernel, Points(z), factor, qv, None, 2)(x)
        marginal = latent.marginal(chunk_size)
        return marginal.mean, marginal.variance

    def total(lengthscale, chunk_size):
        found = moments(lengthscale, chunk_size)
        return sum(jnp.sum(jnp.sin(moment)) for moment in found)

    def curved(lengthscale, chunk_size):
        gradient = partial(jax.grad(total), chunk_size=chunk_size)
        return jax.jvp(gradient, (lengthscale,), (1.0,))

    run, slopes = (jax.jit(each, static_argnums=1) for each in (moments, curved))
    for function in (run, slopes):
        whole = function(1.5, None)
        assert not shared
        for a, b in zip(*map(jax.tree.leaves, (function(1.5, 6), whole)), strict=True):
            np.testing.assert_allclose(a, b, 1e-9, 1e-10)
        assert shared
        shared.clear()
    for function, conditionals in (run, 1), (slopes, 0):
        text = str(function.lower(1.5, 6).compile().as_text())
        assert text.count(" conditional(") == conditionals


# ------------------------------------------------------------------ what it is made of


@both_precisions
def test_the_factor_and_its_inverse(precision):
    gram = TRIL @ TRIL.T
    factor = jax.jit(linalg.factorised)(gram, 0.5)
    tril, inverse = np.asarray(factor.tril), np.asarray(factor.inverse)
    np.testing.assert_array_equal(tril, jax.jit(linalg.cholesky)(gram, 0.5))
    tolerance = 1e-12 if precision == 64 else 1e-4
    np.testing.assert_allclose(tril @ inverse, np.eye(2 * M), atol=tolerance)
    assert np.isnan(jax.jit(linalg.factorised)(-gram).inverse).any()
    # Derivatives of all parts, in second order too.
    weights = jnp.asarray(RNG.normal(size=(2, 2 * M, 2 * M)))

    def total(found):
        return jnp.sum(jnp.sin(jnp.stack(found)) * weights)

    def of_ours(gram):
        return total(linalg.factorised(gram, 0.5)[:2])

    def of_plain(gram):
        root = jnp.linalg.cholesky(gram + 0.5 * jnp.eye(2 * M))
        return total([root, solve_triangular(root, jnp.eye(2 * M), lower=True)])

    def both(function):
        slope = jax.grad(lambda g: function((g + g.T) / 2))
        return jax.jit(lambda g: jax.jvp(slope, (g,), (weights[0],)))(gram)

    tolerance = 1e-10 if precision == 64 else 2e-3
    for a, b in zip(both(of_ours), both(of_plain)):
        np.testing.assert_allclose(a, b, tolerance, tolerance * np.max(np.abs(b)))


@pytest.mark.parametrize("leading", [(), (3,), (2, 2), (5, 7)])
@pytest.mark.parametrize("rows", [1, 47])
def test_column_dots(leading, rows):
    a = RNG.normal(size=(rows, 3))
    b = RNG.normal(size=(*leading, rows, 3))

    def plain(a, b):
        return jnp.sum(a * b, axis=-2)

    def everything(function, a, b):
        def total(a, b):
            return jnp.sum(jnp.sin(function(a, b)))

        slopes = jax.grad(total, (0, 1))
        batched = jax.vmap(function, in_axes=(None, 0))(a, jnp.stack([b, 2 * b]))
        moved = jax.jvp(slopes, (a, b), (b.sum(range(len(leading))), b))
        return function(a, b), batched, moved

    found, expected = (
        jax.jit(everything, static_argnums=0)(function, a, b)
        for function in (linalg.column_dots, plain)
    )
    assert found[0].shape == (*leading, 3)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, 1e-11, 1e-11), found, expected
    )


@pytest.mark.thorough
@pytest.mark.parametrize("width", [2, 6, 70])
@pytest.mark.parametrize("argnums", [(0, 1, 2), (2,), (0, 2), (1,)])
def test_derivatives_of_scaled_distances(width, argnums):
    rng = np.random.default_rng(width)
    arguments = rng.normal(size=(4, width)), rng.normal(size=(3, width))
    arguments = *map(jnp.asarray, arguments), jnp.asarray(rng.uniform(1, 2, width))
    weights = jnp.asarray(rng.normal(size=(4, 3)))

    def direct(x, y, lengthscale):
        return jnp.sum(((x[:, None] - y) / lengthscale) ** 2, axis=-1)

    def both(function):
        def total(*arguments):
            return jnp.sum(weights * jnp.exp(-function(*arguments) / width))

        gradient = jax.grad(total, argnums)
        moved = jax.jacfwd(gradient, argnums)
        return jax.jit(lambda *a: (gradient(*a), moved(*a)))(*arguments)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12),
        both(linalg.squared_distance),
        both(direct),
    )


@pytest.mark.parametrize(
    "num_rows", [250, 251]
)  # blocks of equal size, and a padded one
def test_distances_by_blocks_of_rows(num_rows):
    x, y = RNG.normal(size=(num_rows, 3)), RNG.normal(size=(500, 3))
    found = jax.jit(linalg.squared_distance)(x, y, 0.5)
    expected = np.sum(((x[:, None] - y) / 0.5) ** 2, axis=-1)
    np.testing.assert_allclose(found, expected, 1e-12)


def test_predictions_have_tangents():
    @jax.jit
    def moments(x):
        kernel, z = kernels.RBF(1.3, 1.5), jnp.asarray(Z)
        factor = linalg.factorised(kernel(z), JITTER)
        qv = dist.MultivariateNormal(LOC[:M], scale_tril=TRIL[:M, :M])
        f = SparseGP("f", kernel, Points(z), factor, qv)
        return stack([f(x), f(x + 0.1)]).covariance

    _, moved = jax.jvp(moments, (X,), (np.ones_like(X),))
    step = 1e-6
    above, below = np.asarray(moments(X + step)), np.asarray(moments(X - step))
    expected = (above - below) / (2 * step)
    np.testing.assert_allclose(moved, expected, atol=1e-7)


def test_the_part_of_a_joint_q_has_no_density_of_its_own():
    @jax.jit
    def run(loc, tril):
        part = q_of("coupled", loc, tril)[0]
        draws = part.sample(jax.random.key(0), (3,))
        return draws, part.log_prob(draws), part.log_prob(draws[0])

    draws, densities, density = run(LOC, TRIL)
    assert draws.shape == (3, 2, M)
    np.testing.assert_array_equal(densities, np.zeros(3))
    assert density.shape == ()
