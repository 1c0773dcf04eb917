"""The bound as a NumPyro loss: its noise, its handlers, the guides it takes."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoNormal
from numpyro.primitives import mutable

from svgp_ppl import (
    AutoCoupled,
    AutoGaussian,
    AutoMixture,
    MarginalELBO,
    kernels,
    observe,
    propagate,
    sparse_gp,
)
from svgp_ppl import likelihoods as lk
from svgp_ppl.handlers import replay_distributions

NUM, M = 300, 6
RNG = np.random.default_rng(4)
X = RNG.uniform(-2, 2, size=(NUM, 1))
Y = RNG.poisson(np.exp(np.sin(2 * X[:, 0])))
Z = np.linspace(-2, 2, M)[:, None]
LOC, SCALE_TRIL = RNG.normal(size=M), np.tril(RNG.normal(size=(M, M))) * 0.3 + np.eye(M)


def model(x, y=None, size=None):
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 0.5))
    f = sparse_gp("f", kernels.RBF(variance, 0.6), Z)
    with numpyro.plate("data", size or len(x), subsample_size=len(x)):
        observe("y", lk.Poisson(), f(x), obs=y)


def fixed(x, y=None):
    """The same model without other latent sites."""
    f = sparse_gp("f", kernels.RBF(1.0, 0.6), Z)
    with numpyro.plate("data", len(x)):
        observe("y", lk.Poisson(), f(x), obs=y)


def by_hand(x, y=None, size=None):
    scale_tril = numpyro.param(
        "scale_tril",
        jnp.asarray(SCALE_TRIL),
        constraint=dist.constraints.lower_cholesky,
    )
    loc = numpyro.param("loc", LOC)
    numpyro.sample("f", dist.MultivariateNormal(loc, scale_tril=scale_tril))


def with_variance(x, y=None, size=None):
    by_hand(x)
    numpyro.sample("variance", dist.LogNormal(0.2, 0.3))


def _start(guide):
    """The parameters that a guide starts from."""

    @jax.jit
    def run():
        sites = handlers.trace(handlers.seed(guide, 0)).get_trace(X, Y)
        return {n: s["value"] for n, s in sites.items() if s["type"] == "param"}

    return run()


def _losses(elbo, model, guide, draws, params=None, **options):
    """The loss under many keys, [draws]."""
    params = {} if params is None else params

    @jax.jit
    def run(keys):
        return jax.vmap(
            lambda key: elbo.loss(key, params, model, guide, X, Y, **options)
        )(keys)

    return np.asarray(run(random.split(random.key(5), draws)))


def _agree(one, other):
    """Means within five standard errors."""
    error = np.hypot(np.std(one) / len(one) ** 0.5, np.std(other) / len(other) ** 0.5)
    assert error > 0
    assert abs(np.mean(one) - np.mean(other)) < 5 * error


def test_the_loss_and_its_gradient_have_no_noise():
    params = {"loc": jnp.asarray(LOC), "scale_tril": jnp.asarray(SCALE_TRIL)}

    def run(elbo):
        @jax.jit
        def value_and_grad(keys):
            return jax.vmap(
                lambda key: jax.value_and_grad(
                    lambda p: elbo.loss(key, p, fixed, by_hand, X, Y)
                )(params)
            )(keys)

        return jax.device_get(value_and_grad(random.split(random.key(0), 4)))

    for leaf in jax.tree.leaves(run(MarginalELBO())):
        assert np.max(np.std(leaf, axis=0)) <= 1e-12 * np.max(np.abs(leaf))
    loss, gradient = run(Trace_ELBO())
    assert np.std(loss) > 1e-2 * np.abs(np.mean(loss))
    assert np.std(gradient["loc"], axis=0).max() > 1.0


def test_gradient_is_the_mean_of_the_sampled_one():
    params = {"loc": jnp.asarray(LOC), "scale_tril": jnp.asarray(SCALE_TRIL)}

    def gradient(elbo, key):
        return jax.grad(lambda p: elbo.loss(key, p, fixed, by_hand, X, Y))(params)

    exact = jax.jit(lambda: gradient(MarginalELBO(), random.key(0)))()
    keys = random.split(random.key(1), 2000)
    draws = jax.jit(jax.vmap(lambda key: gradient(Trace_ELBO(), key)))(keys)
    lower = np.tril_indices(M)
    for name, pick in (("loc", (slice(None),)), ("scale_tril", lower)):
        sampled = np.asarray(draws[name])[(slice(None), *pick)]
        error = sampled.std(0) / len(keys) ** 0.5
        assert np.all(
            np.abs(sampled.mean(0) - np.asarray(exact[name])[pick]) < 5 * error
        )


def test_other_sites_are_sampled():
    """θ has a guide of its own, drawn as in Trace_ELBO; here in a minibatch."""
    ours = _losses(MarginalELBO(), model, with_variance, 1000, size=3000)
    _agree(ours, _losses(Trace_ELBO(), model, with_variance, 4000, size=3000))


def test_several_particles_average():
    one = _losses(MarginalELBO(), model, with_variance, 2000)
    many = _losses(MarginalELBO(num_particles=8), model, with_variance, 500)
    _agree(one, many)
    assert 0.2 < np.std(many) / np.std(one) < 0.55  # 1/√8 = 0.35


@pytest.mark.filterwarnings("ignore:q.v. of process 'f' is a Transformed")
def test_a_q_that_cannot_be_marginalised_is_sampled():
    def flow(*args):
        base = dist.Normal(jnp.zeros(M), 1.0).to_event(1)
        transform = dist.transforms.LowerCholeskyAffine(LOC, 0.3 * SCALE_TRIL)
        numpyro.sample("f", dist.TransformedDistribution(base, transform))

    ours = _losses(MarginalELBO(), fixed, flow, 2000)
    assert np.std(ours) > 0.1
    _agree(ours, _losses(Trace_ELBO(), fixed, flow, 4000))

    def gaussian(*args):  # which is what that flow is
        numpyro.sample("f", dist.MultivariateNormal(LOC, scale_tril=0.3 * SCALE_TRIL))

    exact = _losses(MarginalELBO(), fixed, gaussian, 1)[0]
    assert abs(np.mean(ours) - exact) < 5 * np.std(ours) / len(ours) ** 0.5


@pytest.mark.parametrize(
    "make", [pytest.param(AutoDelta, marks=pytest.mark.slow), AutoNormal]
)
def test_guides_of_numpyro(make):
    """AutoDelta is the second reading; AutoNormal's Gaussians are marginalised."""
    guide = make(model)
    params = _start(guide)
    draws = 3 if make is AutoDelta else 2000
    ours = _losses(MarginalELBO(), model, guide, draws, params)
    theirs = _losses(Trace_ELBO(), model, guide, draws, params)
    if make is AutoDelta:
        np.testing.assert_allclose(ours, theirs[0], rtol=1e-12)
    else:
        _agree(ours, theirs)
        assert np.std(ours) < np.std(theirs)


def test_our_guide_in_both_losses():
    guide = AutoGaussian(model, "full", rest=AutoNormal)
    params = _start(guide)
    ours = _losses(MarginalELBO(), model, guide, 1000, params)
    _agree(ours, _losses(Trace_ELBO(), model, guide, 4000, params))


@pytest.mark.parametrize(
    "make",
    [pytest.param(AutoCoupled, marks=pytest.mark.thorough), AutoGaussian, AutoMixture],
)
@pytest.mark.parametrize(
    ("of_f", "of_model", "of_guide"),
    [
        pytest.param(handlers.scale(scale=0.25), 1.0, 1.0, marks=pytest.mark.thorough),
        (handlers.mask(mask=False), 1.0, 1.0),
        (handlers.scale(scale=2.0), 0.5, 0.3),
    ],
)
def test_scaled_priors_count_as_in_the_sampled_bound(make, of_f, of_model, of_guide):
    """A tempered posterior, the same one from fits as from chains."""

    def two(x, y):
        with of_f:
            f = sparse_gp("f", kernels.RBF(1.0, 0.6), Z)
        g = sparse_gp("g", kernels.RBF(0.5, 0.9), Z[::2])
        observe("y", lk.Gaussian(3.0), f(x[:1]) + g(x[:1]), obs=1.0 * y[:1])

    is_mixture = make is AutoMixture
    guide = make(two, 2) if is_mixture else make(two)
    shaken = np.random.default_rng(0)
    params = {
        name: np.asarray(value) * (1 + 0.3 * shaken.random(value.shape))
        for name, value in _start(guide).items()
    }
    run = [handlers.scale(two, scale=of_model), handlers.scale(guide, scale=of_guide)]
    ours = MarginalELBO(entropy="monte_carlo", num_entropy_draws=32)
    ours = _losses(ours, *run, 200 if is_mixture else 1, params)
    theirs = _losses(Trace_ELBO(), *run, 20_000, params)
    error = np.hypot(np.std(ours) / len(ours) ** 0.5, np.std(theirs) / 20_000**0.5)
    assert error < 0.05
    assert abs(np.mean(ours) - np.mean(theirs)) < 5 * error


def test_scale_and_mask():
    mask = np.arange(NUM) % 3 > 0
    weight = np.linspace(0.1, 2.0, NUM)

    def variant(scale_all=1.0, scale_y=1.0, mask_y=True, rows=slice(None)):
        def scaled(x, y):
            f = sparse_gp("f", kernels.RBF(1.0, 0.6), Z)
            data = numpyro.plate("data", len(x[rows]))
            weighted = handlers.scale(scale=scale_y)
            with data, weighted, handlers.mask(mask=mask_y):
                observe("y", lk.Poisson(), f(x[rows]), obs=y[rows])

        def guide(*args):
            qv = dist.MultivariateNormal(LOC, scale_tril=SCALE_TRIL)
            numpyro.sample("f", qv)

        both = [handlers.scale(fn, scale=scale_all) for fn in (scaled, guide)]
        return jax.jit(lambda: MarginalELBO().loss(random.key(0), {}, *both, X, Y))()

    def expectations(x, y):
        """The terms of the data one by one, for sums by hand."""
        guide = handlers.trace(handlers.seed(by_hand, 0)).get_trace(X)
        held = replay_distributions(handlers.seed(fixed, 0), guide)
        return handlers.trace(held).get_trace(x, y)["y"]["fn"].log_prob(y)

    terms = np.asarray(jax.jit(expectations)(X, Y))
    whole = variant()
    kl = whole + terms.sum()
    np.testing.assert_allclose(variant(mask_y=mask), kl - terms[mask].sum(), rtol=1e-10)
    np.testing.assert_allclose(variant(mask_y=mask), variant(rows=mask), rtol=1e-10)
    np.testing.assert_allclose(variant(scale_y=0.3), kl - 0.3 * terms.sum(), rtol=1e-10)
    np.testing.assert_allclose(variant(scale_y=weight), kl - weight @ terms, rtol=1e-10)
    np.testing.assert_allclose(variant(scale_all=2.5), 2.5 * whole, rtol=1e-10)


def test_entropy_of_a_mixture():
    components = dist.Normal(np.stack([LOC, -LOC]), 0.4).to_event(1)

    def guide(*args):
        mixing = dist.Categorical(probs=jnp.array([0.3, 0.7]))
        numpyro.sample("f", dist.MixtureSameFamily(mixing, components))

    sampled = _losses(Trace_ELBO(), fixed, guide, 4000)
    unbiased = MarginalELBO(entropy="monte_carlo", num_entropy_draws=4)
    unbiased = _losses(unbiased, fixed, guide, 1000)
    _agree(unbiased, sampled)
    assert 0 < np.std(unbiased) < 0.1 * np.std(sampled)
    jensen = _losses(MarginalELBO(), fixed, guide, 2)
    assert jensen[0] == jensen[1] and jensen[0] > np.mean(unbiased)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_mixture_of_each_output_by_itself_is_sampled(kind):
    """It has weights of each output; a latent has one set of weights."""
    loc, mixing = np.stack([LOC, -LOC])[None], dist.Categorical(np.ones((1, 2)) / 2)

    def outputs(x, y=None):
        f = sparse_gp("f", kernels.RBF(1.0, 0.6), Z, num_outputs=1)
        with numpyro.plate("data", len(x)):
            observe("y", lk.Poisson(), f(x)[..., 0], obs=y)

    def guide(*args):
        components = dist.Normal(loc, 0.4).to_event(1)
        if kind == "full":
            tril = 0.4 * np.eye(M)
            components = dist.MultivariateNormal(loc, scale_tril=tril)
        numpyro.sample("f", dist.MixtureSameFamily(mixing, components).to_event(1))

    with pytest.warns(UserWarning, match="sampled and not marginalised"):
        marginalised = _losses(MarginalELBO(), outputs, guide, 1000)
    _agree(marginalised, _losses(Trace_ELBO(), outputs, guide, 1000))


def test_a_bound_has_one_particle_and_sixteen_draws_of_an_entropy():
    loss = MarginalELBO()
    assert (loss.num_particles, loss.num_entropy_draws) == (1, 16)


def data_around_the_mean(f, level):
    numpyro.sample("w", dist.Normal(f(X).mean, 0.1), obs=np.zeros(NUM))


def factor_of_the_variance(f, level):
    numpyro.factor("w", -jnp.sum(f(X).variance))


def latent_around_the_mean(f, level):
    numpyro.sample("w", dist.Normal(f(X[0:1]).mean[0], 0.1))


def recorded_mean(f, level):
    numpyro.deterministic("w", f(X).mean)


def data_around_a_layer(f, level):
    numpyro.sample("w", dist.Normal(propagate("h", f(X)), 0.1), obs=np.zeros(NUM))


def data_around_a_latent(f, level):
    numpyro.sample("w", dist.Normal(level, 0.1), obs=0.3)


@pytest.mark.parametrize(
    "guide",
    [
        AutoGaussian,
        *(
            pytest.param(guide, marks=pytest.mark.thorough)
            for guide in (AutoCoupled, lambda m: AutoMixture(m, 2))
        ),
    ],
)
@pytest.mark.parametrize(
    "part, is_averaged",
    [
        (data_around_the_mean, False),
        (factor_of_the_variance, False),
        (latent_around_the_mean, False),
        (recorded_mean, True),
        (data_around_a_latent, True),
    ],
)
def test_log_probabilities_of_moments_are_refused(guide, part, is_averaged):
    """log p(w | E f) is no E log p(w | f)."""
    require_averaged_at(part, guide, is_averaged)


def test_data_around_a_layer_are_averaged():
    """log p(w | h) at a draw of h is unbiased."""
    require_averaged_at(data_around_a_layer, AutoGaussian, True)


def require_averaged_at(part, guide, is_averaged):
    def model(x, y=None):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        f, g = (sparse_gp(n, kernels.RBF(1.0, 0.6), Z) for n in ("f", "g"))
        part(f, level)
        with numpyro.plate("data", len(x)):
            observe("y", lk.Poisson(), g(x) + level, obs=y)

    svi = SVI(model, guide(model), optax.adam(0.1), MarginalELBO())
    state = jax.eval_shape(lambda: svi.init(random.key(0), X, Y))
    if is_averaged:
        jax.eval_shape(lambda state: svi.update(state, X, Y), state)
        return
    with pytest.raises(ValueError, match="of site 'w' depends on moments of a latent"):
        jax.eval_shape(lambda state: svi.update(state, X, Y), state)


def test_mistakes_are_explained():
    def other(*args):
        numpyro.sample("g", dist.Normal(jnp.zeros(M), 1.0).to_event(1))

    with pytest.raises(ValueError, match=r"no site for the process 'f'.*shape \(6,\)"):
        MarginalELBO().loss(random.key(0), {}, fixed, other, X, Y)
    with pytest.raises(Exception, match="jensen"):
        MarginalELBO(entropy="exact")


def test_mutable_sites_are_handed_on():
    """As NumPyro's own losses do it: the state counts the steps."""

    def counting(x, y=None):
        state = mutable("steps", {"taken": jnp.zeros((), int)})
        state["taken"] = state["taken"] + 1
        numpyro.deterministic("also", jnp.zeros(()))
        fixed(x, y)

    svi = SVI(counting, by_hand, optax.adam(0.01), MarginalELBO())
    state = jax.jit(svi.init)(random.key(0), X, Y)
    assert set(state.mutable_state) == {"steps"}
    before = int(state.mutable_state["steps"]["taken"])
    update = jax.jit(svi.update)
    for _ in range(3):
        state, _ = update(state, X, Y)
    assert int(state.mutable_state["steps"]["taken"]) == before + 3
