"""Factorisations that do not wait for each other, and their derivatives."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from blackjax.mcmc.metrics import gaussian_euclidean
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.scipy.linalg import solve_triangular

import svgp_ppl as gp
from svgp_ppl.linalg import lapack, platforms, squared_distance
from svgp_ppl.mcmc.samplers.metrics import dense_metric
from svgp_ppl.runtime import compilation
from svgp_ppl.variational import prior_kl
from tests.conftest import mostly_double
from tests.models import COUNTS_X, COUNTS_Y, counts_model

LAPACK = {"cholesky", "triangular_solve", "eigh", "lu", "qr", "householder_product"}


def _problem(dtype=None):
    rng = np.random.default_rng(0)
    half = rng.normal(size=(3, 6, 8))
    a = half @ np.swapaxes(half, 1, 2) + np.eye(6)
    return jnp.asarray(a, dtype), jnp.asarray(rng.normal(size=(6, 4)), dtype)


def _ours(a, b):
    return jnp.sum(jnp.sin(lapack.solve(lapack.factor(a), b)))


def _theirs(a, b):
    return jnp.sum(jnp.sin(solve_triangular(jnp.linalg.cholesky(a), b, lower=True)))


@mostly_double
@pytest.mark.parametrize("derivative", [jax.grad, jax.hessian])
def test_derivatives_equal_those_of_jax(precision, derivative):
    (a, *_), b = _problem()
    ours, theirs = (
        jax.jit(derivative(f, argnums=(0, 1)))(a, b) for f in (_ours, _theirs)
    )
    tolerance = 1e-11 if precision == 64 else 1e-4
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, tolerance, tolerance),
        ours,
        theirs,
    )


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_a_vectorised_derivative_is_that_of_each_matrix(axes):
    a, b = map(np.asarray, _problem())
    bs = np.stack([b, 2 * b, -b])
    arguments = (a if axes[0] == 0 else a[0], bs if axes[1] == 0 else b)
    got = jax.jit(jax.vmap(jax.grad(_ours, (0, 1)), axes))(*arguments)
    for i in range(3):
        one = jax.jit(jax.grad(_theirs, (0, 1)))(
            *(x if axis is None else x[i] for axis, x in zip(axes, arguments))
        )
        for x, y in zip(map(np.asarray, got), one):
            np.testing.assert_allclose(x[i], y, 1e-11, 1e-11)


def test_a_failed_factorisation_leaves_the_others_of_its_batch_alone():
    a = np.asarray(_problem()[0])
    signs = np.array([1.0, -1.0, 1.0])[:, None, None]
    factors = np.asarray(jax.jit(jax.vmap(lapack.factor))(a * signs))
    assert np.isnan(factors[1]).any()
    np.testing.assert_allclose(factors[0], np.linalg.cholesky(a[0]), 1e-12)
    np.testing.assert_allclose(factors[2], np.linalg.cholesky(a[2]), 1e-12)


# ----------------------------------------------- no batched call in what we compile


def _batched_calls(jaxpr: Jaxpr):
    """LAPACK calls of more than one matrix on a CPU, at any depth."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in LAPACK and any(v.aval.ndim > 2 for v in equation.invars):
            yield name, [v.aval.shape for v in equation.invars]
        params = dict(equation.params)
        if platforms := params.get("branches_platforms"):
            here = [p is None or "cpu" in p for p in platforms]
            params["branches"] = params["branches"][here.index(True)]
        for part in jax.tree.leaves(
            list(params.values()),
            is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr),
        ):
            if isinstance(part, ClosedJaxpr):
                yield from _batched_calls(part.jaxpr)
            elif isinstance(part, Jaxpr):
                yield from _batched_calls(part)


def calls_in(function, *arguments):
    return list(_batched_calls(jax.make_jaxpr(function)(*arguments).jaxpr))


def test_the_search_finds_a_batched_call():
    a, b = _problem()
    assert calls_in(jax.jit(jax.vmap(jax.grad(_theirs), (0, None))), a, b)


def two_processes(x, y=None):
    scale = numpyro.sample("scale", dist.Gamma(3.0, 2.0))
    z = jnp.linspace(0.0, 5.0, 4)[:, None]
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, scale), z)
    g = gp.sparse_gp("g", gp.kernels.Matern32(scale, 1.0), z)
    latents = gp.stack([f(x), g(x)])
    with numpyro.plate("data", len(x)):
        gp.observe(
            "y", lambda f: dist.Normal(f[..., 0], jnp.exp(f[..., 1])), latents, obs=y
        )


def test_vectorised_chains_call_lapack_one_matrix_at_a_time():
    def logdensity(values):
        return numpyro.infer.util.log_density(
            two_processes, (COUNTS_X, COUNTS_Y * 1.0), {}, values
        )[0]

    values = {"scale": jnp.ones(4), "f": jnp.ones((4, 4)), "g": jnp.ones((4, 4))}
    assert calls_in(jax.vmap(jax.value_and_grad(logdensity)), values) == []


def test_particles_of_the_bound_call_lapack_one_matrix_at_a_time():
    guide = gp.AutoGaussian(counts_model, rest=numpyro.infer.autoguide.AutoNormal)
    bound = gp.MarginalELBO(num_particles=3, vectorize_particles=True)
    svi = numpyro.infer.SVI(counts_model, guide, numpyro.optim.Adam(0.01), bound)

    def step(key):
        return svi.update(svi.init(key, COUNTS_X, COUNTS_Y), COUNTS_X, COUNTS_Y)

    assert calls_in(step, jax.random.key(0)) == []


@pytest.mark.parametrize("entropy", ["jensen", "monte_carlo"])
def test_mixtures_call_lapack_one_matrix_at_a_time(entropy):
    def divergence(loc, factor):
        mixture = dist.MixtureSameFamily(
            dist.Categorical(logits=jnp.zeros(3)),
            dist.MultivariateNormal(loc, scale_tril=factor),
        )
        return prior_kl(mixture, entropy=entropy, key=jax.random.key(0))

    factors = jnp.broadcast_to(jnp.eye(4), (3, 4, 4))
    assert calls_in(jax.grad(divergence, (0, 1)), jnp.ones((3, 4)), factors) == []


@pytest.mark.thorough
def test_chains_with_a_dense_metric_call_lapack_one_matrix_at_a_time():
    sampler = gp.mcmc.NUTS(metric="dense", max_num_doublings=2)

    def logdensity(values):
        return numpyro.infer.util.log_density(
            two_processes, (COUNTS_X, COUNTS_Y * 1.0), {}, values
        )[0]

    def chain(key, values):
        warmup = sampler.init(key, values, logdensity)
        entry = jnp.ones(2, int)  # a slow window that ends
        warmup, _ = sampler.warmup_step(key, warmup, logdensity, entry)
        state, tuned = sampler.finish(warmup)
        return sampler.step(key, state, logdensity, tuned)

    values = {"scale": jnp.ones(4), "f": jnp.ones((4, 4)), "g": jnp.ones((4, 4))}
    keys = jax.random.split(jax.random.key(0), 4)
    assert calls_in(jax.vmap(chain), keys, values) == []


def test_the_dense_metric_is_that_of_blackjax():
    rng = np.random.default_rng(0)
    half = rng.normal(size=(4, 6))
    inverse = jnp.asarray(half @ half.T)
    ours, theirs = dense_metric(inverse), gaussian_euclidean(inverse)
    start = {"a": jnp.zeros(1), "b": jnp.zeros(3)}
    key = jax.random.key(0)
    momentum = ours.sample_momentum(key, start)
    close = partial(jax.tree.map, partial(np.testing.assert_allclose, rtol=1e-9))
    close(momentum, theirs.sample_momentum(key, start))
    np.testing.assert_allclose(
        ours.kinetic_energy(momentum), theirs.kinetic_energy(momentum), rtol=1e-9
    )
    for inv in (False, True):
        for trans in (False, True):
            options = {"inv": inv, "trans": trans}
            close(
                ours.scale(start, momentum, **options),
                theirs.scale(start, momentum, **options),
            )
    for draw in rng.normal(size=(20, 3, 4)):
        ends = [{"a": jnp.asarray(p[:1]), "b": jnp.asarray(p[1:])} for p in draw]
        assert bool(ours.check_turning(*ends)) == bool(theirs.check_turning(*ends))


def several_outputs(x, y=None):
    scale = numpyro.sample("scale", dist.Gamma(3.0, 2.0))
    z = jnp.linspace(0.0, 5.0, 4)[:, None]
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, scale), z, num_outputs=2)
    g = gp.sparse_gp("g", gp.kernels.Matern32(scale, 1.0), z)
    latents = gp.stack([f(x), g(x)])
    with numpyro.plate("data", len(x)):
        gp.observe(
            "y",
            lambda f: dist.Normal(f[..., 0] + f[..., 2], jnp.exp(f[..., 1])),
            latents,
            obs=y,
        )


@pytest.mark.parametrize("natural", [False, True])
def test_steps_of_several_outputs_call_lapack_one_matrix_at_a_time(natural):
    rest = numpyro.infer.autoguide.AutoNormal
    made = gp.AutoCoupled(several_outputs, rest=rest)
    optimizer = gp.natural_gradient(0.1) if natural else optax.adam(0.01)
    bound = gp.MarginalELBO(num_particles=3, vectorize_particles=True)
    svi = numpyro.infer.SVI(several_outputs, made, optimizer, bound)
    data = COUNTS_X, COUNTS_Y * 1.0
    state = jax.jit(svi.init)(jax.random.key(0), *data)
    assert calls_in(lambda state: svi.update(state, *data), state) == []


def compiled_by(monkeypatch, function):
    """Batched calls in what ``function`` has compiled."""
    calls, make_jaxpr = [], jax.make_jaxpr

    def watched(of_leaves):
        def trace(*arguments):
            traced = make_jaxpr(of_leaves)(*arguments)
            calls.append(list(_batched_calls(traced.jaxpr)))
            return traced

        return trace

    monkeypatch.setattr(compilation.jax, "make_jaxpr", watched)
    compilation.forget_programs()
    function()
    assert calls
    return [call for calls_of_one in calls for call in calls_of_one]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method", ["exact", pytest.param("pathwise", marks=pytest.mark.slow)]
)
def test_draws_are_predicted_one_matrix_at_a_time(monkeypatch, method):
    rng = np.random.default_rng(0)
    posterior = {
        "scale": rng.gamma(3.0, 1.0, size=5),
        "f": rng.normal(size=(5, 2, 4)),
        "g": rng.normal(size=(5, 4)),
    }

    def predictions():
        at_x = gp.predict(several_outputs, posterior, COUNTS_X)["y"]
        assert np.isfinite(at_x.mean).all()
        assert np.isfinite(at_x.latent_covariance).all()

    def paths():
        options = {"num_draws": 4, "method": method}
        key = jax.random.key(0)
        gp.draw_functions(key, several_outputs, posterior, COUNTS_X, **options)

    if method == "exact":
        assert compiled_by(monkeypatch, predictions) == []
    assert compiled_by(monkeypatch, paths) == []


@pytest.mark.thorough
def test_predictions_from_draws_end_with_a_remainder():
    # 90 draws in batches of 44: the shape that waited for ever (docs/decisions/0009).
    rng = np.random.default_rng(0)
    posterior = {
        "variance": rng.gamma(3.0, 1.0, size=90),
        "lengthscale": rng.gamma(3.0, 1.0, size=90),
        "f": rng.normal(size=(90, 5)),
    }
    z = {"z": np.linspace(0.2, 4.8, 5)[:, None]}
    x = np.linspace(0.0, 5.0, 112)[:, None]
    at_x = gp.predict(counts_model, posterior, x, params=z)["y"]
    assert jnp.isfinite(at_x.mean).all()


# ------------------------------------------------------------- lowered for a GPU


def test_with_a_cpu_alone_nothing_is_left_to_the_lowering():
    assert platforms.platforms() >= {"cpu"}
    if platforms.platforms() == {"cpu"}:
        traced = jax.make_jaxpr(lambda x: platforms.by_platform(jnp.sin, jnp.cos, x))
        assert "cos" not in str(traced(1.0))


@pytest.fixture
def two_platforms(monkeypatch):
    """As on a machine with a GPU: programs know where they run when they are lowered.

    What was traced for a CPU alone is not used again.
    """
    jax.clear_caches()
    compilation.forget_programs()
    monkeypatch.setattr(platforms, "platforms", lambda: {"cpu", "cuda"})
    yield
    jax.clear_caches()
    compilation.forget_programs()


FACTORISATION = r"(stablehlo\.cholesky|potrf)[^\n]*<([\dx]+)xf64>"


def lowered(platform, function, *arguments):
    """The text of the program, which needs no such device."""
    traced = jax.jit(function).trace(*arguments)
    return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.usefixtures("two_platforms")
def test_chains_on_a_gpu_are_factorised_in_batches_and_in_no_loop():
    def logdensity(values):
        return numpyro.infer.util.log_density(
            two_processes, (COUNTS_X, COUNTS_Y * 1.0), {}, values
        )[0]

    values = {"scale": jnp.ones(7), "f": jnp.ones((7, 4)), "g": jnp.ones((7, 4))}
    gradient = jax.vmap(jax.value_and_grad(logdensity))
    on_gpu = lowered("cuda", gradient, values)
    assert "stablehlo.while" not in on_gpu
    assert {shape for _, shape in re.findall(FACTORISATION, on_gpu)} == {"7x4x4"}
    on_cpu = lowered("cpu", gradient, values)  # of the same trace: one at a time
    assert "stablehlo.while" in on_cpu and "7x4x4xf64>) -> " not in "".join(
        line for line in on_cpu.splitlines() if "potrf" in line
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("two_platforms")
@pytest.mark.parametrize("guide", [gp.AutoGaussian, gp.AutoCoupled])
def test_a_step_of_several_outputs_on_a_gpu_has_no_loop(guide):
    made = guide(several_outputs)
    svi = numpyro.infer.SVI(several_outputs, made, optax.adam(0.01), gp.MarginalELBO())
    data = COUNTS_X, COUNTS_Y * 1.0
    state = jax.jit(svi.init)(jax.random.key(0), *data)
    text = lowered("cuda", lambda state: svi.update(state, *data), state)
    assert "stablehlo.while" not in text


@pytest.mark.usefixtures("two_platforms")
@pytest.mark.parametrize("width", [1, 8, 64, 100])
def test_distances_on_a_gpu_are_elementwise_and_products(width):
    """No loop, nothing sequential: XLA makes one kernel of what is elementwise."""
    x, y = jnp.ones((3000, width)), jnp.ones((50, width))

    def total(x, y, lengthscale):
        return jnp.sum(squared_distance(x, y, lengthscale))

    gradient = jax.value_and_grad(total, argnums=(0, 1, 2))
    on_gpu = lowered("cuda", gradient, x, y, jnp.ones(width))
    assert "stablehlo.while" not in on_gpu
    assert on_gpu.count("stablehlo.dot_general") <= 8
    on_cpu = lowered("cpu", gradient, x, y, jnp.ones(width))
    assert ("stablehlo.while" in on_cpu) == (width <= 64)
