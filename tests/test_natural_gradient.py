"""Natural gradients: exact on conjugate models, inside the cone elsewhere."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.distributions import biject_to, constraints
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoMultivariateNormal

import svgp_ppl as gp
from tests.conftest import mostly_double
from tests.models import (
    COUNTS_X,
    COUNTS_Y,
    GAUSSIAN_X,
    GAUSSIAN_Y,
    GAUSSIAN_Z,
    counts_model,
    gaussian_model,
    gaussian_posterior,
    unseen,
)

DATA = GAUSSIAN_X, GAUSSIAN_Y
TRANSFORM = biject_to(constraints.softplus_lower_cholesky)


def one_step(model, guide, optimizer, *data):
    svi = SVI(model, guide, optimizer, gp.MarginalELBO())
    state = jax.jit(svi.init)(random.key(0), *data)
    step = jax.jit(lambda *given: svi.get_params(svi.update(*given)[0]))
    return jax.tree.map(np.asarray, step(state, *data))


@mostly_double
@pytest.mark.parametrize("alternate", [True, False])
def test_one_step_of_length_one_is_the_exact_posterior(precision, alternate):
    optimizer = gp.natural_gradient(1.0, alternate=alternate)
    guide = gp.AutoGaussian(gaussian_model)
    params = one_step(gaussian_model, guide, optimizer, *unseen(*DATA))
    loc, covariance = gaussian_posterior()
    tril = params["auto_f_scale_tril"]
    tolerance = 1e-9 if precision == 64 else 1e-3
    np.testing.assert_allclose(params["auto_f_loc"], loc, tolerance, tolerance)
    np.testing.assert_allclose(tril @ tril.T, covariance, tolerance, tolerance)


def two_outputs(x, y=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.3, 0.7), GAUSSIAN_Z, num_outputs=2)
    g = gp.sparse_gp("g", gp.kernels.RBF(0.5, 0.3), GAUSSIAN_Z)
    total = f(x)[..., 0] + 2.0 * f(x)[..., 1] - g(x)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.4), total, obs=y)


@pytest.mark.slow
def test_one_step_solves_a_coupled_model_where_no_gradient_is_left():
    guide = gp.AutoCoupled(two_outputs)
    params = one_step(two_outputs, guide, gp.natural_gradient(1.0), *DATA)
    slopes = jax.grad(
        lambda p: gp.MarginalELBO().loss(random.key(0), p, two_outputs, guide, *DATA)
    )(params)
    np.testing.assert_allclose(slopes["auto_f_g_loc"], 0.0, atol=1e-8)
    np.testing.assert_allclose(jnp.tril(slopes["auto_f_g_scale_tril"]), 0.0, atol=1e-8)


def test_several_outputs_move_as_they_would_alone():
    rng = np.random.default_rng(0)
    loc = jnp.asarray(rng.normal(size=(2, 3)))
    free = jnp.asarray(rng.normal(size=(2, 6)))
    slopes = jnp.asarray(rng.normal(size=(2, 3))), jnp.asarray(rng.normal(size=(2, 6)))
    optimizer = gp.natural_gradient(0.3)

    @jax.jit
    def move(loc, free, d_loc, d_free):
        params = {"f_loc": loc, "f_scale_tril": free}
        gradients = {"f_loc": d_loc, "f_scale_tril": d_free}
        return optimizer.update(gradients, optimizer.init(params), params)[0]

    together = move(loc, free, *slopes)
    for p in range(2):
        alone = move(loc[p], free[p], slopes[0][p], slopes[1][p])
        for name, value in alone.items():
            np.testing.assert_allclose(together[name][p], value, rtol=1e-12)


def test_a_step_is_the_definition_in_natural_parameters():
    # θ₁ = S⁻¹ m, θ₂ = −S⁻¹/2 move by the gradient in η₁ = m, η₂ = S + m mᵀ
    # (Salimbeni, Eleftheriadis & Hensman 2018), by autodiff through dense matrices.
    rng = np.random.default_rng(1)
    size, rate = 4, 0.05
    loc = rng.normal(size=size)
    tril = np.tril(rng.normal(size=(size, size)), -1) + 1.5 * np.eye(size)
    half = rng.normal(size=(size, size))

    def loss(loc, covariance):
        quadratic = jnp.sum(half @ half.T * covariance) + jnp.sum(jnp.sin(loc))
        return quadratic + loc @ covariance @ loc - jnp.linalg.slogdet(covariance)[1]

    def of_expectations(eta1, eta2):
        return loss(eta1, eta2 - jnp.outer(eta1, eta1))

    covariance = tril @ tril.T
    eta = loc, covariance + np.outer(loc, loc)
    slopes = jax.jit(jax.grad(of_expectations, (0, 1)))(*eta)
    d1, d2 = map(np.asarray, slopes)
    precision = np.linalg.inv(covariance)
    theta1 = precision @ loc - rate * d1
    theta2 = -0.5 * precision - rate * (d2 + d2.T) / 2
    expected_covariance = np.linalg.inv(-2 * theta2)

    def of_params(p):
        tril = TRANSFORM(p["q_scale_tril"])
        return loss(p["q_loc"], tril @ tril.T)

    @jax.jit
    def step(loc, tril):
        params = {"q_loc": loc, "q_scale_tril": TRANSFORM.inv(tril)}
        slopes, optimizer = jax.grad(of_params)(params), gp.natural_gradient(rate)
        updates, _ = optimizer.update(slopes, optimizer.init(params), params)
        moved = optax.apply_updates(params, updates)
        return moved["q_loc"], TRANSFORM(moved["q_scale_tril"])

    moved_loc, got = map(np.asarray, step(loc, tril))
    np.testing.assert_allclose(got @ got.T, expected_covariance, rtol=1e-9)
    expected_loc = expected_covariance @ theta1
    np.testing.assert_allclose(moved_loc, expected_loc, rtol=1e-9)


@pytest.mark.parametrize("halvings", [1, 5])
def test_a_step_out_of_the_cone_is_shortened(halvings):
    @jax.jit
    def step(slope):
        params = {"q_loc": jnp.zeros(3), "q_scale_tril": TRANSFORM.inv(jnp.eye(3))}
        free = jax.vjp(TRANSFORM, params["q_scale_tril"])[1](slope)[0]
        gradients = {"q_loc": jnp.ones(3), "q_scale_tril": free}
        optimizer = gp.natural_gradient(1.0)
        updates, _ = optimizer.update(gradients, optimizer.init(params), params)
        moved = optax.apply_updates(params, updates)
        return updates["q_loc"], TRANSFORM(moved["q_scale_tril"])

    # B = 1 − 0.9·2ʰ r < 0 in the first direction up to the length r = 2·2⁻ʰ.
    change, moved = step(np.diag([-0.9 * 2.0**halvings, 0.0, 0.0]))
    np.testing.assert_allclose(moved, np.diag([1 / np.sqrt(0.1), 1.0, 1.0]), rtol=1e-9)
    length = 0.5**halvings
    expected = [-length / 0.1, -length, -length]
    np.testing.assert_allclose(change, expected, rtol=1e-9)


def test_the_rest_moves_by_adam_where_nothing_else_is_said():
    @jax.jit
    def step(scale):
        params = {"q_loc": jnp.zeros(3), "q_scale_tril": TRANSFORM.inv(jnp.eye(3))}
        params["scale"] = scale
        gradients = jax.tree.map(jnp.ones_like, params)
        optimizer = gp.natural_gradient(alternate=False)
        return optimizer.update(gradients, optimizer.init(params), params)[0]

    updates = step(np.array([1.0, -2.0]))
    np.testing.assert_allclose(updates["scale"], -0.01, rtol=1e-6)


@pytest.mark.thorough
def test_steps_alternate_q_first():
    svi = SVI(
        counts_model,
        gp.AutoGaussian(counts_model),
        gp.natural_gradient(0.1, optax.sgd(1e-4)),
        gp.MarginalELBO(),
    )
    state = jax.jit(svi.init)(random.key(0), COUNTS_X, COUNTS_Y)
    history, update = [svi.get_params(state)], jax.jit(svi.update)
    for _ in range(3):
        state, _ = update(state, COUNTS_X, COUNTS_Y)
        history.append(svi.get_params(state))
    variational = {"auto_f_loc", "auto_f_scale_tril"}
    for i, (before, after) in enumerate(pairwise(history)):
        moved = {n for n in before if not np.array_equal(before[n], after[n])}
        assert moved == (variational if i % 2 == 0 else set(before) - variational)


@pytest.mark.slow
@pytest.mark.parametrize("alternate", [True, False])  # there is nothing else to move
def test_a_schedule_gives_the_length_of_each_step(alternate):
    def after_two_steps(rate):
        guide = gp.AutoGaussian(gaussian_model)
        optimizer = gp.natural_gradient(rate, alternate=alternate)
        svi = SVI(gaussian_model, guide, optimizer, gp.MarginalELBO())
        state = svi.init(random.key(0), *DATA)
        for _ in range(2):
            state = jax.jit(svi.update)(state, *DATA)[0]
        return svi.get_params(state)["auto_f_loc"]

    # Steps of 0.5 and 1 end where one of 1 does: at the posterior.
    scheduled = after_two_steps(lambda count: jnp.where(count == 0, 0.5, 1.0))
    loc, _ = gaussian_posterior()
    np.testing.assert_allclose(scheduled, loc, rtol=1e-8)
    # Two of a half have a quarter of the start left.
    halves = after_two_steps(lambda count: jnp.where(count < 2, 0.5, 1.0))
    assert np.max(np.abs(halves - loc)) > 1e-2


@pytest.mark.slow
def test_fit_gets_further_than_adam():
    def bound(optimizer, num_steps):
        guide = gp.AutoGaussian(counts_model)
        fit = gp.fit(
            random.key(0),
            counts_model,
            guide,
            COUNTS_X,
            COUNTS_Y,
            optimizer=optimizer,
            num_steps=num_steps,
            progress=False,
        )
        return -fit.losses[-1]

    # The q(v) is followed from far away: 20 natural steps, 200 of Adam.
    assert bound(gp.natural_gradient(0.5), 40) > bound(optax.adam(1e-2), 200)


def test_a_guide_written_by_hand():
    def guide(x, y=None):
        loc = numpyro.param("m", jnp.zeros(4))
        tril = numpyro.param("s", jnp.eye(4), constraint=constraints.lower_cholesky)
        numpyro.sample("f", dist.MultivariateNormal(loc, scale_tril=tril))

    optimizer = gp.natural_gradient(
        1.0, variational={"m": "s"}, constraint=constraints.lower_cholesky
    )
    params = one_step(gaussian_model, guide, optimizer, *DATA)
    np.testing.assert_allclose(params["m"], gaussian_posterior()[0], rtol=1e-9)


@pytest.mark.thorough
def test_a_gaussian_of_the_other_sites_is_left_to_the_rest():
    def model(x, y=None):
        variance = numpyro.sample("variance", dist.LogNormal())
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, 0.5), GAUSSIAN_Z)
        scale = numpyro.sample("scale", dist.LogNormal())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(scale), f(x), obs=y)

    def fitted(**options):
        optimizer = gp.natural_gradient(0.5, **options)
        guide = gp.AutoGaussian(model, rest=AutoMultivariateNormal)
        options = {"optimizer": optimizer, "num_steps": 20, "progress": False}
        return gp.fit(random.key(0), model, guide, *DATA, **options)

    named = fitted(variational={"auto_f_loc": "auto_f_scale_tril"})
    assert {"auto_loc", "auto_scale_tril"} < named.params.keys()
    np.testing.assert_array_equal(fitted().losses, named.losses)


def test_mistakes_are_explained():
    for rate in (0.0, -0.1, 1.001):
        with pytest.raises(
            ValueError, match=rf"rate must be in \(0, 1\], and is {rate}"
        ):
            gp.natural_gradient(rate)
    for guide in (
        gp.AutoGaussian(gaussian_model, "diagonal"),
        gp.AutoMixture(gaussian_model, 2, "full"),
    ):
        with pytest.raises(ValueError, match=r"does not find a full Gaussian q\(v\)"):
            one_step(gaussian_model, guide, gp.natural_gradient(), *DATA)
    optimizer = gp.natural_gradient(variational={"m": "s"})
    with pytest.raises(ValueError, match=r"the parameters \['m', 's'\]"):
        one_step(gaussian_model, gp.AutoGaussian(gaussian_model), optimizer, *DATA)
