"""Stochastic gradients: unbiased, exact at the centre, near the posterior, refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

import svgp_ppl as gp
from svgp_ppl import diagnostics
from svgp_ppl.diagnostics import group
from svgp_ppl.mcmc import SGHMC, SGLD, StochasticGradient, run_chains
from svgp_ppl.mcmc.samplers.control_variates import StochasticTuned, gradient_fn_of
from svgp_ppl.mcmc.target import Target
from tests.conftest import mostly_double
from tests.models import (
    COUNTS_X,
    COUNTS_Y,
    GAUSSIAN_X,
    GAUSSIAN_Y,
    GAUSSIAN_Z,
    LENGTHSCALE,
    NOISE,
    VARIANCE,
    Walk,
    counts_model,
    counts_z,
    gaussian_posterior,
)
from tests.test_samplers import Y, assert_moments, exact_moments, logdensity

DATA = (COUNTS_X, COUNTS_Y)
COUNTS_VALUES = {"variance": 1.2, "lengthscale": 0.9, "f": np.linspace(-0.5, 1.0, 5)}


def batched_counts(x, y=None, batch_size=5):
    """The counts with unknown hyperparameters, from minibatches."""
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 3.0))
    z = numpyro.param("z", counts_z())
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", len(x), subsample_size=batch_size) as rows:
        here = None if y is None else y[rows]
        gp.observe("y", lambda f: dist.Poisson(jnp.exp(f)), f(x[rows]), obs=here)


def batched_gaussian(x, y=None, batch_size=5):
    """Regression with a Gaussian posterior, from minibatches."""
    f = gp.sparse_gp("f", gp.kernels.RBF(VARIANCE, LENGTHSCALE), GAUSSIAN_Z)
    with numpyro.plate("data", len(x), subsample_size=batch_size) as rows:
        here = None if y is None else y[rows]
        gp.observe("y", gp.likelihoods.Gaussian(NOISE), f(x[rows]), obs=here)


def target_of(model, data=DATA, **options):
    return Target(random.key(0), model, data, {}, {}, **options)


def counts_target():
    """Target of the minibatches, a position, and one a little beside it."""
    target = target_of(batched_counts, minibatches=True)
    values = {n: jnp.asarray(v, float) for n, v in COUNTS_VALUES.items()}
    position = target.unconstrain(values, target.data)
    return target, position, jax.tree.map(lambda v: v + 0.02, position)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


# ------------------------------------------------------------------------- gradients


@pytest.mark.thorough
@mostly_double
def test_gradient_of_a_minibatch_is_unbiased(precision):
    target, position, _ = counts_target()
    gradient = jax.jit(jax.grad(target.logdensity_fn))
    keys = random.split(random.key(1), 4000)
    estimates = jax.jit(jax.vmap(gradient, (None, None, 0)))(
        position, target.data, keys
    )
    estimates = np.concatenate(
        [np.reshape(leaf, (4000, -1)) for leaf in jax.tree.leaves(estimates)], axis=1
    )
    assert estimates.dtype == np.dtype(f"float{precision}")
    error = estimates.mean(0) - flat(gradient(position, target.data))
    standard_error = estimates.std(0) / np.sqrt(4000)
    # Seven comparisons at 5 standard errors.
    assert np.all(standard_error > 0) and np.all(np.abs(error) < 5 * standard_error)


def test_rows_are_drawn_independently_and_scaled():
    seen = []

    def model(y):
        v = numpyro.sample("v", dist.Normal())
        with numpyro.plate("data", 20, subsample_size=5) as rows:
            seen.append(rows)
            numpyro.sample("y", dist.Normal(v, 1.0), obs=y[rows])

    y = jnp.arange(20.0)
    target = Target(random.key(0), model, (y,), {}, {}, minibatches=True)
    seen.clear()
    values = [
        target.logdensity_fn({"v": jnp.ones(())}, target.data, key)
        for key in random.split(random.key(2), 30)
    ]
    prior = dist.Normal().log_prob(1.0)
    expected = [
        prior + 4 * jnp.sum(dist.Normal(1.0, 1.0).log_prob(y[rows])) for rows in seen
    ]
    np.testing.assert_allclose(values, expected, rtol=1e-10)
    assert all(rows.shape == (5,) for rows in seen)
    counts = np.bincount(np.concatenate(seen), minlength=20)
    assert len(counts) == 20 and np.count_nonzero(counts) == 20
    # A row comes twice in 42 % of the batches: in none of 30 with probability 1e-7.
    assert any(len(np.unique(rows)) < 5 for rows in seen)


@pytest.mark.thorough
@mostly_double
def test_control_variates_are_exact_at_the_centre_and_quiet_beside_it(precision):
    target, position, beside = counts_target()
    vector, unflatten = jax.flatten_util.ravel_pytree(position)

    def density(values, *key):
        return target.logdensity_fn(unflatten(values), target.data, *key)

    of_all = jax.jit(jax.grad(density))
    full = of_all(vector)
    zero = jnp.zeros(())
    tuned = StochasticTuned(vector, full, jnp.ones_like(vector), zero)
    keys = random.split(random.key(3), 200)
    with_centre, plain = (
        jax.jit(jax.vmap(gradient_fn_of(density, tuned, sampler), (0, None)))
        for sampler in (SGLD(), SGLD(control_variates=False))
    )

    at_centre = with_centre(keys, vector)
    rtol = 1e-4 if precision == 32 else 1e-11
    np.testing.assert_allclose(
        at_centre, np.tile(full, (200, 1)), rtol=rtol, atol=rtol * np.abs(full).max()
    )
    vector_beside = jax.flatten_util.ravel_pytree(beside)[0]
    quiet = np.asarray(with_centre(keys, vector_beside))
    loud = np.asarray(plain(keys, vector_beside))
    assert np.all(quiet.var(0) < 0.01 * loud.var(0))
    exact = np.asarray(of_all(vector_beside))
    error = np.abs(quiet.mean(0) - exact)
    assert np.all(error < 5 * quiet.std(0) / np.sqrt(200) + 1e-4 * np.abs(exact))


@mostly_double
def test_all_rows_are_the_model_without_minibatches(precision):
    target, position, _ = counts_target()
    whole = target_of(counts_model)
    run = jax.jit(jax.value_and_grad(target.logdensity_fn))
    ours, ours_gradient = run(position, target.data)
    run = jax.jit(jax.value_and_grad(whole.logdensity_fn))
    other, gradient = run(position, whole.data)
    rtol = 1e-5 if precision == 32 else 1e-12
    np.testing.assert_allclose(ours, other, rtol=rtol)
    np.testing.assert_allclose(flat(ours_gradient), flat(gradient), rtol=10 * rtol)
    np.testing.assert_array_equal(target.observed["y"].values, COUNTS_Y)


# ------------------------------------------------------------------ right posteriors


def noisy(position, y, *key):
    """The log density of tests.test_samplers, from two of its four data."""
    if not key:
        return logdensity(position, y)
    rows = random.randint(key[0], (2,), 0, 4)
    v, theta = position["v"], position["theta"]
    prior = logdensity(position, v) - 2 * theta  # without the four data
    likelihood = 0.5 * theta - 0.5 * jnp.exp(theta) * (y[rows] - v[rows]) ** 2
    return prior + 2 * jnp.sum(likelihood)


def run(sampler, num_warmup=300, num_samples=2000, logdensity_fn=noisy, **options):
    return run_chains(
        random.key(0),
        logdensity_fn,
        options.pop("positions", {"v": jnp.zeros((4, 4)), "theta": jnp.zeros(4)}),
        sampler,
        num_warmup=num_warmup,
        num_samples=num_samples,
        data=jnp.asarray(Y),
        progress=False,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sampler, precision",
    [
        (SGHMC(), 64),
        pytest.param(SGHMC(), 32, marks=pytest.mark.slow),
        pytest.param(SGLD(0.1), 64, marks=pytest.mark.thorough),
        pytest.param(SGHMC(control_variates=False), 64, marks=pytest.mark.slow),
    ],
    indirect=["precision"],
)
def test_asymmetric_posterior_is_nearly_found(sampler, precision):
    # Measured over 4 x 5000 draws: means within 0.10 and standard deviations within
    # 7 % of the exact ones.
    chains = run(sampler)
    assert_moments(chains.draws, exact_moments(), slack=0.15)
    assert chains.draws["v"].dtype == np.dtype(f"float{precision}")
    assert not chains.stats["diverging"].any()
    per_step = 2 if sampler.control_variates else 1
    assert chains.num_gradients == 4 * 2000 * 10 * per_step
    # E (d g)² is 1 by the choice of the scales.
    assert 0.7 < chains.stats["squared_gradient"].mean() < 1.4


def of_normal(position, data, key=None, *, noise=0.0):
    """N(0, diag) with precisions 0.25, 1 and 4 and gradients with noise."""
    density = -0.5 * jnp.sum(jnp.array([0.25, 1.0, 4.0]) * position**2)
    if key is None:
        return density
    return density + noise * random.normal(key, position.shape) @ position


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize(
    "sampler",
    [pytest.param(SGLD(0.3), marks=pytest.mark.slow), SGHMC(0.6, friction=0.8)],
)
def test_bias_of_the_variance_is_the_one_that_is_written_down(sampler, noise):
    # Without control variates, which would take such a noise away altogether.
    sampler = type(sampler)(**{**vars(sampler), "control_variates": False})
    chains = run(
        sampler,
        num_warmup=400,
        num_samples=8000,
        logdensity_fn=partial(of_normal, noise=noise),
        positions=jnp.zeros((4, 3)),
    )
    scale = np.asarray(chains.tuned.scale[0])
    precision, variance = np.array([0.25, 1.0, 4.0]) * scale**2, noise**2 * scale**2
    e, a = sampler.step_size, getattr(sampler, "friction", None)
    if a is None:
        share = (1 + e * variance / 2) / (1 - e * precision / 2)
    else:
        share = 1 + e * variance / (2 * a)
        share = share / (1 - e**2 * precision / (2 * (2 - a * e)))
    draws = chains.draws / scale
    assert_moments({"x": draws}, {"x": (np.zeros(3), share / precision)})
    # The formula is told from the exact posterior.
    assert np.all(share > 1.07)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SGLD, SGHMC])
def test_bias_shrinks_with_the_steps(kind):
    mean, covariance = gaussian_posterior()
    errors = []
    for step_size, thin in ((0.4, 10), (0.05, 20)):
        draws = gp.sample(
            random.key(0),
            batched_gaussian,
            GAUSSIAN_X,
            GAUSSIAN_Y,
            sampler=kind(step_size, num_steps_a_draw=thin),
            num_warmup=500,
            num_samples=5000,
            progress=False,
        )
        values = group(draws, "posterior")["f"]
        sd = np.sqrt(np.diag(covariance))
        error = np.abs(values.mean((0, 1)) - mean) / sd
        assert np.all(error < 0.1), error
        errors.append(np.mean(values.std((0, 1)) / sd) - 1)
    assert errors[0] > 0.02 and errors[0] > 2 * abs(errors[1]), errors
    assert abs(errors[1]) < 0.02


# ----------------------------------------------------------------------- the warm-up


def test_rounds_end_where_they_should():
    ends = np.flatnonzero(SGLD(num_rounds=4).schedule(100)) + 1
    assert ends.tolist() == [12, 25, 50, 100]
    assert np.flatnonzero(SGHMC().schedule(1)).tolist() == [0]


def test_chains_share_a_centre_near_the_mean():
    chains = run(SGHMC(), num_samples=50)
    tuned = chains.tuned
    for leaf in tuned:
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
    moments = exact_moments()
    mean = np.r_[moments["theta"][0], moments["v"][0]]
    sd = np.sqrt(np.r_[moments["theta"][1], moments["v"][1]])
    # The mean of 150 x 10 steps of 4 chains, with some 60 effective draws each.
    assert np.all(np.abs(tuned.centre[0] - mean) < 0.5 * sd)
    centre = {"theta": tuned.centre[0, 0], "v": tuned.centre[0, 1:]}
    gradient = jax.grad(logdensity)(centre, jnp.asarray(Y))
    np.testing.assert_allclose(tuned.gradient[0], flat(gradient), rtol=1e-9)


def test_without_control_variates_no_step_sees_all_data():
    def density(position, y, *key):
        if not key:
            calls.append(1)
        return noisy(position, y, *key)

    calls = []
    run(SGLD(control_variates=False), 20, 20, logdensity_fn=density)
    assert len(calls) == 1  # the check of the start


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sampler", [SGLD(0.1), pytest.param(SGHMC(), marks=pytest.mark.thorough)]
)
def test_nan_is_never_a_draw(sampler):
    def broken(position, y, *key):
        value = noisy(position, y, *key)
        return value * jnp.where(position["v"][0] > 0.5, jnp.nan, 1.0)

    chains = run(sampler, 40, 300, logdensity_fn=broken)
    assert np.all(chains.draws["v"][..., 0] <= 0.5)
    assert chains.stats["diverging"].any() and not chains.stats["diverging"].all()
    assert chains.draws["v"][..., 1].std() > 0.2


def test_a_chain_that_runs_away_is_said_to_diverge():
    # Forty coordinates that all but move as one: precision 40, a step of 0.2 is 8 / 40.
    def density(position, data, *key):
        return -0.5 * jnp.sum(position) ** 2 - 0.005 * jnp.sum(position**2)

    positions = jnp.zeros((4, 40))
    wild = run(SGLD(0.2), 0, 20, logdensity_fn=density, positions=positions)
    assert wild.stats["diverging"].all()
    # The scales of a warm-up shrink with the gradients that grow.
    tamed = run(SGLD(0.2), 200, 20, logdensity_fn=density, positions=positions)
    assert not tamed.stats["diverging"].any()


# ---------------------------------------------------------------------- in gp.sample


@pytest.fixture(scope="module")
def fitted():
    with jax.enable_x64(True):
        return gp.fit(
            random.key(0),
            batched_counts,
            gp.AutoGaussian(batched_counts),
            *map(jnp.asarray, DATA),
            num_steps=300,
            progress=False,
        )


@pytest.mark.slow
def test_draws_from_a_fit_of_minibatches(fitted):
    draws = gp.sample(
        random.key(1),
        batched_counts,
        *DATA,
        sampler=SGHMC(),
        init=fitted,
        num_chains=2,
        num_warmup=50,
        num_samples=60,
        log_likelihood=True,
        progress=False,
    )
    posterior = group(draws, "posterior")
    assert {n: v.shape for n, v in posterior.items()} == {
        "variance": (2, 60),
        "lengthscale": (2, 60),
        "f": (2, 60, 5),
    }
    assert np.all(posterior["variance"] > 0)
    assert len(np.unique(posterior["f"][..., 0])) == 120
    assert draws["posterior"].attrs["bias"] == "stochastic gradients"
    assert draws["posterior"].attrs["num_gradients"] == 2 * 60 * 10 * 2
    np.testing.assert_array_equal(group(draws, "observed_data")["y"], COUNTS_Y)
    z = group(draws, "constant_data")["z"]
    np.testing.assert_array_equal(z, fitted.params["z"])
    findings = [f.what for f in diagnostics.report(draws).findings]
    assert any("biased" in what and "stochastic gradients" in what for what in findings)
    values = group(draws, "log_likelihood")["y"]
    assert values.shape == (2, 60, 20)
    one = {n: jnp.asarray(v[1, 30]) for n, v in posterior.items()}
    held = numpyro.handlers.substitute(counts_model, data={**one, "z": z})
    sites = numpyro.handlers.trace(held).get_trace(*DATA)
    np.testing.assert_allclose(
        values[1, 30], sites["y"]["fn"].log_predictive(COUNTS_Y), rtol=1e-6
    )


@pytest.mark.slow
def test_other_samplers_leave_no_such_mark():
    draws = gp.sample(
        random.key(1),
        counts_model,
        *DATA,
        sampler=Walk(),
        num_chains=2,
        num_warmup=2,
        num_samples=4,
        progress=False,
    )
    assert "bias" not in draws["posterior"].attrs
    assert not isinstance(gp.mcmc.NUTS(), StochasticGradient)
    assert isinstance(SGLD(), StochasticGradient)


# ---------------------------------------------------------------------- what is refused


def refused(model, match, sampler=None):
    with pytest.raises(ValueError, match=match):
        gp.sample(
            random.key(0), model, *DATA, sampler=sampler or SGHMC(), progress=False
        )


def test_models_without_minibatches_are_refused():
    refused(counts_model, "no plate of the model is subsampled: write")
    refused(batched_counts, r"sees 5 of 20 data.*SGHMC\(\) takes", gp.mcmc.NUTS())


def test_local_latent_sites_are_refused():
    def model(x, y):
        with numpyro.plate("data", len(x), subsample_size=5) as rows:
            local = numpyro.sample("local", dist.Normal())
            numpyro.sample("y", dist.Poisson(jnp.exp(local)), obs=y[rows])

    refused(model, "'local' is in the subsampled plate 'data'")


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: SGLD(step_size=0.0), "step_size must lie strictly between 0 and 2"),
        (lambda: SGHMC(step_size=2.0), "step_size must lie strictly between 0 and 2"),
        (lambda: SGLD(num_steps_a_draw=0), "num_steps_a_draw must be a positive int"),
        (lambda: SGHMC(num_rounds=1.5), "num_rounds must be a positive integer"),
        (lambda: SGHMC(friction=0.0), "friction must be positive and at most"),
        (lambda: SGHMC(step_size=0.5, friction=3.0), "at most 1 / step_size"),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
