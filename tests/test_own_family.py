"""A variational family that the package does not know, written as a user writes one.

q(v) = N(m, D + W Wᵀ), low rank plus diagonal, as one class, one registered function and
a guide: whatever a Gaussian is good for has to give what ``MultivariateNormal`` with
the same covariance gives.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.distributions import constraints
from numpyro.infer import Trace_ELBO

import svgp_ppl as gp
from svgp_ppl.guides.processes import _quantiles
from svgp_ppl.variational import Projected, can_marginalise, prior_kl, project
from tests.models import Walk

# --------------------------------------------------------------- what a user writes


class LowRank(dist.Distribution):
    """N(m, D² + W Wᵀ), with m and the diagonal of D [.., M] and W [.., M, R]."""

    support = constraints.real_vector
    pytree_data_fields = ("loc", "scale", "factor")

    def __init__(self, loc, scale, factor):
        self.loc, self.scale, self.factor = loc, scale, factor
        super().__init__(loc.shape[:-1], loc.shape[-1:])

    @property
    def mean(self):
        return self.loc

    @property
    def variance(self):
        return self.scale**2 + jnp.sum(self.factor**2, axis=-1)

    def _small(self):
        """W / D, and the factor of I + (W / D)ᵀ (W / D), [.., R, R]."""
        ratio = self.factor / self.scale[..., None]
        inner = jnp.swapaxes(ratio, -1, -2) @ ratio
        return ratio, jnp.linalg.cholesky(inner + jnp.eye(inner.shape[-1]))

    def entropy(self):
        diagonal = jnp.diagonal(self._small()[1], axis1=-2, axis2=-1)
        each = 0.5 * (1 + jnp.log(2 * jnp.pi)) + jnp.log(self.scale)
        return jnp.sum(each, axis=-1) + jnp.sum(jnp.log(diagonal), axis=-1)

    def sample(self, key, sample_shape=()):
        shape = (*sample_shape, *self.loc.shape)
        one, two = random.split(key)
        noise = random.normal(two, (*shape[:-1], self.factor.shape[-1]))
        common = jnp.einsum("...mr,...r->...m", self.factor, noise)
        return self.loc + self.scale * random.normal(one, shape) + common

    def log_prob(self, value, intermediates=None):
        white = (value - self.loc) / self.scale
        ratio, tril = self._small()
        inner = jnp.einsum("...mr,...m->...r", ratio, white)
        tril = jnp.broadcast_to(tril, (*inner.shape, inner.shape[-1]))
        solved = jax.scipy.linalg.solve_triangular(tril, inner[..., None], lower=True)
        square = jnp.sum(white**2, -1) - jnp.sum(solved[..., 0] ** 2, -1)
        return 0.5 * (self.loc.shape[-1] - square) - self.entropy()


@project.register
def _(qv: LowRank, a):
    down = jnp.swapaxes(qv.factor, -1, -2) @ a
    factor = jnp.concatenate([qv.scale[..., None] * a, down], axis=-2)
    return Projected(qv.loc @ a, factor)


class AutoLowRank(gp.guides.ProcessGuide):
    """A low rank for every process, for all of them together, or a mixture."""

    def __init__(self, model, kind="separate", family=LowRank, rank=2, **options):
        self.kind, self.family, self.rank = kind, family, rank
        super().__init__(model, **options)

    def one(self, name, shape, param):
        return self.family(
            param(f"{name}_loc", jnp.zeros(shape)),
            param(f"{name}_scale", jnp.ones(shape), constraints.softplus_positive),
            param(f"{name}_factor", 0.1 * jnp.ones((*shape, self.rank))),
        )

    def variational(self, shapes, param):
        if self.kind == "coupled":
            size = sum(int(np.prod(shape)) for shape in shapes.values())
            joint = self.one("auto_all", (size,), param)
            return {"all": gp.guides.Group(joint, shapes)}
        several = (3,) * (self.kind == "mixture")
        found = {}
        for name, shape in shapes.items():
            qv = self.one(f"auto_{name}", (*several, *shape), param)
            found[name] = qv.to_event(len(shape) - 1)
        if self.kind == "separate":
            return found
        weights = dist.Categorical(logits=param("auto_logits", jnp.zeros(3)))
        stacked = gp.variational.Stacked(found)
        mixture = dist.MixtureSameFamily(weights, stacked)
        return {"all": gp.guides.Group(mixture, shapes)}


# ------------------------------------------------------ the same with what is known


def dense(loc, scale, factor):
    """The same Gaussian as a MultivariateNormal."""
    covariance = factor @ jnp.swapaxes(factor, -1, -2)
    covariance += jnp.eye(loc.shape[-1]) * scale[..., None] ** 2
    return dist.MultivariateNormal(loc, scale_tril=jnp.linalg.cholesky(covariance))


RNG = np.random.default_rng(5)
X = np.sort(RNG.uniform(0.0, 4.0, 25))[:, None]
Y = np.sin(2 * X[:, 0]) + 0.3 * RNG.normal(size=25)
COUNTS = RNG.poisson(np.exp(np.cos(X[:, 0])))
Z, Z_OTHER = np.linspace(0.0, 4.0, 5)[:, None], np.linspace(0.3, 3.7, 4)[:, None]
DATA, X_NEW = (X, Y, COUNTS), np.linspace(-0.5, 4.5, 7)[:, None]


def model(x, y=None, counts=None):
    """A process of two outputs and another one, with a sum of them."""
    lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 0.3))
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), Z, num_outputs=2)
    g = gp.sparse_gp("g", gp.kernels.Matern32(0.7, 1.1), Z_OTHER)
    rate = f(x)[..., 1]
    with numpyro.plate("data", len(x)):
        total = f(x)[..., 0] + 0.5 * g(x) - 0.3 * rate
        gp.observe("y", gp.likelihoods.Gaussian(0.3), total, obs=y)
        gp.observe("counts", gp.likelihoods.Poisson(), rate, obs=counts)


KINDS = ("separate", "coupled", "mixture")


def mostly(kind):
    """One of them by default, the others with the slow tests."""
    kinds = [pytest.param(k, marks=[pytest.mark.slow] * (k != kind)) for k in KINDS]
    return pytest.mark.parametrize("kind", kinds)


def guides(kind):
    """The user's guide and the one with dense covariances, of the same parameters."""
    both = [AutoLowRank(model, kind, family) for family in (LowRank, dense)]
    for guide in both:
        numpyro.handlers.seed(guide, random.key(0))(*DATA)
    return both


def parameters(kind):
    """Some, at which nothing is at an optimum."""
    trace = numpyro.handlers.trace(numpyro.handlers.seed(guides(kind)[0], 0))
    sites = trace.get_trace(*DATA).values()
    params = {s["name"]: np.asarray(s["value"]) for s in sites if s["type"] == "param"}
    rng = np.random.default_rng(1)
    for name, value in params.items():
        noise = 0.3 * rng.normal(size=value.shape)
        positive = "scale" in name
        params[name] = jnp.asarray(value * np.exp(noise) if positive else value + noise)
    return params


# -------------------------------------------------------------------------- the tests


def test_it_is_known_by_what_was_registered():
    qv = LowRank(jnp.zeros((2, 3)), jnp.ones((2, 3)), jnp.ones((2, 3, 1)))
    assert can_marginalise(qv.to_event(1))

    class Unknown(dist.Distribution):
        def __init__(self):
            super().__init__((), (3,))

    assert not can_marginalise(Unknown())
    with pytest.raises(ValueError, match=r"variational\.project\.register"):
        project(Unknown(), jnp.eye(3))
    with pytest.raises(ValueError, match=r"mean, variance and entropy\(\)"):
        prior_kl(Unknown())


@pytest.mark.parametrize(
    ("kind", "entropy"),
    [
        ("coupled", "jensen"),
        pytest.param("mixture", "pairwise", marks=pytest.mark.slow),
        *(
            pytest.param(k, "jensen", marks=pytest.mark.slow)
            for k in KINDS
            if k != "coupled"
        ),
    ],
)
def test_bound_and_gradient(kind, entropy):
    loss = gp.MarginalELBO(entropy=entropy).loss
    params = parameters(kind)

    def value(params, guide):
        return loss(random.key(0), params, model, guide, *DATA)

    mine, theirs = (
        jax.jit(jax.value_and_grad(lambda p, guide=guide: value(p, guide)))(params)
        for guide in guides(kind)
    )
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-8)
    for name in params:
        np.testing.assert_allclose(mine[1][name], theirs[1][name], rtol=1e-7, atol=1e-8)
        assert np.any(np.abs(mine[1][name]) > 1e-3), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_predictions(kind):
    params = parameters(kind)
    mine, theirs = (gp.predict(model, (g, params), X_NEW) for g in guides(kind))
    for name in ("y", "counts"):
        for what in ("latent_mean", "latent_variance", "latent_covariance", "mean"):
            expected = getattr(theirs[name], what)
            np.testing.assert_allclose(getattr(mine[name], what), expected, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_draws_of_functions_have_the_moments_of_predictions(kind):
    posterior = (guides(kind)[0], parameters(kind))
    functions = gp.draw_functions(
        random.key(3), model, posterior, X_NEW, num_draws=2000
    )
    predicted = gp.predict(model, posterior, X_NEW)
    for name, draws in functions.items():
        variance = np.asarray(predicted[name].latent_variance)
        error = np.mean(draws, axis=0) - predicted[name].latent_mean
        assert np.all(np.abs(error) < 5 * np.sqrt(variance / 2000) + 1e-5)
        spread = (draws - predicted[name].latent_mean) ** 2
        error = np.mean(spread, axis=0) - variance
        assert np.all(np.abs(error) < 5 * np.std(spread, axis=0) / 2000**0.5 + 1e-4)


@pytest.mark.slow
@mostly("coupled")
def test_coordinates_of_samplers(kind):
    """The proposals of importance sampling follow from the sites of the fit alone."""
    params = parameters(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this is no fit
        mine, theirs = (
            gp.importance_sample(
                random.key(0), model, *DATA, init=(g, params), num_samples=50
            ).posterior
            for g in guides(kind)
        )
    assert mine.attrs["coordinates"] == "fitted"
    for name in ("f", "g", "lengthscale"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_draws_score_as_the_density():
    """The bound of NumPyro, which draws v and scores it, has the same mean."""
    params, guide = parameters("separate"), guides("separate")[0]
    exact = gp.MarginalELBO().loss(random.key(0), params, model, guide, *DATA)

    @jax.jit
    def sampled(key):
        return Trace_ELBO().loss(key, params, model, guide, *DATA)

    losses = jax.lax.map(sampled, random.split(random.key(1), 2000), batch_size=100)
    error = np.std(losses) / 2000**0.5
    assert abs(np.mean(losses) - exact) < 5 * error


@pytest.fixture(scope="module")
def fitted():
    with jax.enable_x64(True):
        options = {"num_steps": 300, "progress": False}
        return gp.fit(random.key(0), model, AutoLowRank(model), *DATA, **options)


@pytest.mark.slow
def test_fit_is_between_diagonal_and_full(fitted):
    diagonal, full = (
        gp.fit(
            random.key(0),
            model,
            gp.AutoGaussian(model, covariance),
            *DATA,
            num_steps=300,
            progress=False,
        )
        for covariance in ("diagonal", "full")
    )
    assert full.losses[-1] < fitted.losses[-1] < diagonal.losses[-1] - 0.1


@pytest.mark.slow
def test_a_fit_is_reported_sampled_from_and_updated(fitted):
    report = str(gp.diagnostics.report(fitted, *DATA))
    assert "k-hat" in report or "k̂" in report, report
    draws = gp.sample(
        random.key(1),
        model,
        *DATA,
        init=fitted,
        sampler=Walk(0.3),
        num_chains=2,
        num_warmup=5,
        num_samples=20,
        progress=False,
    )
    assert draws.posterior.attrs["coordinates"] == "fitted"
    assert gp.predict(model, draws, X_NEW)["y"].mean.shape == (7,)
    quantiles = fitted.guide.quantiles(fitted.params, [0.1, 0.9])
    assert quantiles["f"].shape == (2, 2, 5)
    assert np.all(quantiles["g"][0] < quantiles["g"][1])
    more = gp.update(random.key(2), fitted, *DATA, num_steps=3, progress=False)
    assert np.all(np.isfinite(more.losses))


def test_quantiles_of_a_mixture_over_outputs():
    # The axis of the components comes before that of the outputs, however many.
    @jax.jit
    def quantiles(locs, weights, probabilities):
        components = dist.Normal(locs, 0.1).to_event(2)
        qv = dist.MixtureSameFamily(dist.Categorical(weights), components)
        return _quantiles(qv, probabilities)

    locs = np.broadcast_to(np.array([-1.0, 5.0])[:, None, None], (2, 3, 4))
    low, high = quantiles(locs, np.array([0.9, 0.1]), np.array([0.45, 0.95]))
    np.testing.assert_allclose(low, np.full((3, 4), -1.0), atol=1e-3)
    np.testing.assert_allclose(high, np.full((3, 4), 5.0), atol=1e-3)


@pytest.mark.parametrize("entropy", ["jensen", "pairwise"])
def test_components_that_share_a_mean(entropy):
    tril = np.stack([np.eye(3), 2.0 * np.eye(3)])

    @jax.jit
    def divergence(loc):
        weights = dist.Categorical(logits=jnp.zeros(2))
        components = dist.MultivariateNormal(loc, scale_tril=tril)
        qv = dist.MixtureSameFamily(weights, components)
        return gp.variational.prior_kl(qv, entropy=entropy, key=random.key(0))

    np.testing.assert_allclose(
        divergence(np.zeros(3)), divergence(np.zeros((2, 3))), rtol=1e-6
    )
