"""Coordinates of samplers: the same posterior in other variables, exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.linalg
import scipy.stats
from jax import random
from jax.flatten_util import ravel_pytree
from numpyro.handlers import condition, do, mask, scale, scope, seed, substitute, trace
from numpyro.infer import MCMC
from numpyro.infer import NUTS as NumPyroNUTS

import svgp_ppl as gp
from svgp_ppl.mcmc import collapsed, coupling, laplace
from svgp_ppl.mcmc.affine import OTHERS, Coordinates, plain_coordinates
from svgp_ppl.mcmc.coordinates import Start, _is_finite, fitted_start
from svgp_ppl.mcmc.curvature import curved
from svgp_ppl.mcmc.draws import _constrained
from svgp_ppl.mcmc.sites import base_of
from svgp_ppl.mcmc.starts import coordinates_to_try as choice
from svgp_ppl.mcmc.target import Data, Target
from svgp_ppl.variational.sites import Sites
from tests.conftest import mostly_single
from tests.models import COUNTS_X, COUNTS_Y, Walk, counts_model, counts_z, unseen

X = np.linspace(0.0, 3.0, 14)[:, None]
Y = np.sin(2 * X[:, 0]) + 0.1 * np.cos(19 * np.arange(14))


def kernel(name):
    variance = numpyro.sample(f"{name}_variance", dist.Gamma(3.0, 2.0))
    lengthscale = numpyro.sample(f"{name}_lengthscale", dist.Gamma(4.0, 4.0))
    return gp.kernels.RBF(variance, lengthscale)


def with_mean(x, y=None):
    """A mean function that moves with θ."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    f = gp.sparse_gp("f", kernel("f"), X[::4], mean=lambda x: slope * x[:, 0])
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.StudentT(4.0, 0.3), f(x), obs=y)


def with_level(x, y=None):
    """An intercept and the levels of two groups beside two processes."""
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    with numpyro.plate("groups", 2):
        shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
    f = gp.sparse_gp("f", kernel("f"), X[::4])
    g = gp.sparse_gp("g", gp.kernels.RBF(1.0, 2.0), X[::5])
    with numpyro.plate("data", len(x)):
        latent = level + shift[np.arange(14) % 2] + f(x) + g(x)
        gp.observe("y", gp.likelihoods.Gaussian(0.1), latent, obs=y)


def renamed(x, y=None):
    """The same with another name, and with the prior of v counted 0.3 times."""
    with scope(prefix="a"), scale(scale=0.3):
        with_mean(x, y)


def without_prior(x, y=None):
    """No prior of v."""
    with mask(mask=False):
        f = gp.sparse_gp("f", kernel("f"), X[::4])
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.StudentT(4.0, 0.3), f(x), obs=y)


class Robust(gp.likelihoods.Gaussian):
    """Gaussian in name only."""

    def __call__(self, f):
        return dist.StudentT(4.0, f, self.scale)


def robust(x, y=None):
    f = gp.sparse_gp("f", kernel("f"), X[::4])
    with numpyro.plate("data", len(x)):
        gp.observe("y", Robust(0.3), f(x), obs=y)


def several_outputs(x, y=None):
    f = gp.sparse_gp("f", kernel("f"), X[::4], num_outputs=2)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.HeteroscedasticGaussian(), f(x), obs=y)


def outputs_in_a_sum(x, y=None):
    f = gp.sparse_gp("f", kernel("f"), X[::4], num_outputs=2)
    with numpyro.plate("data", len(x)):
        latent = f(x)[..., 0] + f(x)[..., 1] * x[:, 0]
        gp.observe("y", gp.likelihoods.Gaussian(0.3), latent, obs=y)


def three_terms(x, y=None):
    """In an order that is not that of the blocks of a guide."""
    terms = [gp.sparse_gp(name, gp.kernels.RBF(1.0, 0.7), X[::5])(x) for name in "fgh"]
    with numpyro.plate("data", len(x)):
        latent = terms[0] + 2.0 * terms[1] + x[:, 0] * terms[2]
        gp.observe("y", gp.likelihoods.Gaussian(0.3), latent, obs=y)


def additive(x, y=None):
    f = gp.sparse_gp("f", kernel("f"), X[::4])
    g = gp.sparse_gp("g", kernel("g"), X[::5], mean=lambda x: 0.3 * x[:, 0])
    h = gp.sparse_gp("h", kernel("h"), X[::6])
    with numpyro.plate("data", len(x)):
        latent = f(x) + g(x) * x[:, 0] + h(x)
        gp.observe("y", gp.likelihoods.StudentT(4.0, 0.3), latent, obs=y)


def layers(x, y=None):
    f = gp.sparse_gp("f", kernel("f"), X[::5], mean=lambda x: x[:, 0])
    hidden = gp.propagate("hidden", f(x))
    g = gp.sparse_gp("g", kernel("g"), X[::5])
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.StudentT(4.0, 0.3), g(hidden), obs=y)


def gaussian(x, y=None):
    """Two sites that see the same processes, one with a mask; a weight a datum."""
    noise = numpyro.sample("noise", dist.Gamma(2.0, 4.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    f = gp.sparse_gp("f", kernel("f"), X[::4], mean=lambda x: slope * x[:, 0])
    g = gp.sparse_gp("g", kernel("g"), X[::5], num_outputs=2)
    with numpyro.plate("data", len(x)):
        latent = f(x) + g(x)[..., 1] * x[:, 0] - f(0.5 * x)
        gp.observe("y", gp.likelihoods.Gaussian(noise), latent, obs=y)
    with numpyro.plate("half", len(x)), numpyro.handlers.mask(mask=np.arange(14) < 7):
        other = None if y is None else jnp.where(np.arange(14) < 7, y + 1, 1e3)
        gp.observe("other", gp.likelihoods.Gaussian(2 * noise), g(x)[..., 0], obs=other)


def mixture(model):
    return gp.AutoMixture(model, 2, covariance="full")


def diagonal(model):
    return gp.AutoGaussian(model, covariance="diagonal")


def fitted(model, make_guide, key=0):
    """A guide and parameters that no optimiser found: the identities hold anywhere.

    What is added to a process is followed near an optimum only.
    """
    guide = make_guide(model)
    steps, optimizer = 4, optax.adam(0.1)
    if model is with_level:
        steps, optimizer = 200, gp.natural_gradient(1.0, optimizer)
    options = {"num_steps": steps, "optimizer": optimizer, "progress": False}
    fit = gp.fit(random.key(key), model, guide, X, Y, **options)
    return guide, dict(fit.params)


def started(model, make_guide):
    guide, params = fitted(model, make_guide)
    target = Target(random.key(1), model, (X, Y), {}, params)
    return target, fitted_start(random.key(2), guide, params, target, 3)


def at_the_fit(target, guide, params):
    """θ̂, unconstrained."""
    values = target.positions_from(random.key(3), guide, params, 1)
    return {n: x[0] for n, x in values.items() if n not in target.whitened_names}


def test_chains_start_in_the_modes_of_a_mixture():
    """A Gaussian with its moments would start them in between."""
    guide, params = fitted(renamed, mixture)
    (name,) = [n for n in params if n.endswith("_locs")]
    at = np.array([-4.0, 4.0])[:, None]
    params |= {name: np.broadcast_to(at, params[name].shape)}
    params["auto_logits"] = np.log([0.25, 0.75])
    target = Target(random.key(1), renamed, (X, Y), {}, params)
    start = fitted_start(random.key(2), guide, params, target, 80)

    def whitened(position):
        values, data = start.coordinates.at(position, start.data)
        found = target.constrain(values, data)
        return {n: found[n] for n in target.whitened_names}

    (v,) = jax.vmap(whitened)(start.positions).values()
    means = np.mean(v, axis=-1)
    assert np.all(abs(abs(means) - 4.0) < 2.0)
    assert 0.1 < np.mean(means < 0) < 0.4


@pytest.mark.parametrize(
    ("model", "make_guide"),
    [
        (renamed, gp.AutoGaussian),
        pytest.param(with_level, gp.AutoCoupled, marks=pytest.mark.thorough),
        pytest.param(without_prior, gp.AutoGaussian, marks=pytest.mark.slow),
        pytest.param(with_mean, gp.AutoGaussian, marks=pytest.mark.slow),
        pytest.param(with_mean, mixture, marks=pytest.mark.slow),
        pytest.param(several_outputs, gp.AutoGaussian, marks=pytest.mark.slow),
        pytest.param(several_outputs, diagonal, marks=pytest.mark.slow),
        pytest.param(additive, gp.AutoCoupled, marks=pytest.mark.slow),
        pytest.param(additive, gp.AutoGaussian, marks=pytest.mark.slow),
        pytest.param(layers, gp.AutoDeep, marks=pytest.mark.slow),
    ],
)
@pytest.mark.thorough
def test_the_density_is_that_of_v_times_the_volume(model, make_guide):
    target, start = started(model, make_guide)
    coordinates = start.coordinates
    processes = [n for n in target.whitened_names if n in start.data.sites]
    assert processes == target.whitened_names and coordinates.loc
    assert coordinates.slopes or model is not with_level

    def compare(position):
        values, data = coordinates.at(position, start.data)
        bases = {base_of(name): values[base_of(name)] for name in processes}
        flat, unravel = ravel_pytree(bases)

        def whitened(flat):
            found = target.constrain({**values, **unravel(flat)}, data)
            return ravel_pytree({name: found[name] for name in processes})[0]

        volume = jnp.linalg.slogdet(jax.jacfwd(whitened)(flat))[1]
        found = target.constrain(values, data)
        plain = {n: values[n] for n in target.latent_names if n not in processes}
        plain |= {name: found[name] for name in processes}
        density = target.logdensity_fn(plain, target.data)
        return target.logdensity_fn(values, data) - density - volume

    positions = jax.tree.map(lambda x: 1.5 * x, start.positions)
    np.testing.assert_allclose(jax.jit(jax.vmap(compare))(positions), 0.0, atol=1e-9)


@pytest.mark.thorough
def test_any_sites_leave_the_density_and_its_estimates():
    """v = P⁻¹ Gᵀ (y − H m(z)) + C⁻ᵀ ξ, densely; of the rows that a key draws too."""

    def model(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.3, 0.7), X[::5], mean=jnp.ravel)
        with numpyro.plate("data", len(x), subsample_size=4) as rows:
            gp.observe("y", gp.likelihoods.Poisson(), f(x[rows]), obs=y[rows])

    target = Target(
        random.key(0), model, (X, np.arange(14) % 3), {}, {}, minibatches=True
    )
    rng = np.random.default_rng(6)
    h, y, xi = rng.normal(size=(2, 3)), rng.normal(size=2), rng.normal(size=3)
    z = X[::5]
    gram = 1.3 * np.exp(-0.5 * (z - z.T) ** 2 / 0.7**2)
    g = h @ np.linalg.cholesky(gram + 1e-6 * 1.3 * np.eye(3))
    tril = np.linalg.cholesky(np.eye(3) + g.T @ g)
    shift = np.linalg.solve(tril, g.T @ (y - h @ z[:, 0]))
    v = np.linalg.solve(tril.T, shift + xi)
    log_volume = -np.sum(np.log(np.diag(tril)))
    sites = Sites(jnp.asarray(h[None]), jnp.asarray(y[None]), {})

    @jax.jit
    def both(data, key):
        moved = data._replace(sites={"f": sites})
        other = {"f_base": xi}
        densities = [
            target.logdensity_fn(at, of, *keys)
            for at, of in ((other, moved), ({"f": v}, data))
            for keys in ((), (key,))
        ]
        return jnp.stack(densities), target.constrain(other, moved)["f"]

    densities, found = both(target.data, random.key(1))
    np.testing.assert_allclose(found, v, rtol=1e-9)
    whole, part, *of_v = map(float, densities)
    np.testing.assert_allclose([whole, part], np.add(of_v, log_volume), rtol=1e-9)
    assert abs(whole - part) > 0.1


@pytest.mark.parametrize(
    ("around", "times"), [(scale(scale=0.3), 0.3), (mask(mask=False), 0.0)]
)
def test_a_scaled_prior_of_a_positive_value_keeps_its_jacobian(around, times):
    """The tempered density is one of θ: log p counts s times, log |dθ/du| once."""

    def tempered(x, y):
        with around:
            variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, 0.5), X[::4])
        gp.observe("y", gp.likelihoods.Gaussian(1e3), f(x), obs=y)

    target = Target(random.key(1), tempered, (X, Y), {}, {}, collapse=False)

    def density(log_variance):
        position = {"variance": jnp.asarray(log_variance), "f": jnp.zeros(4)}
        return target.logdensity_fn(position, target.data)

    theta = np.exp([-1.0, 0.5])
    expected = times * scipy.stats.gamma.logpdf(theta, 3.0, scale=0.5) + np.log(theta)
    found = jax.jit(jax.vmap(density))(np.log(theta))
    # The likelihood of a noise of 1000 hardly depends on anything.
    np.testing.assert_allclose(np.diff(found), np.diff(expected), atol=1e-4)


def value_and_slopes(function, at):
    """f(x) and its Jacobian, in one program."""
    slopes = jax.jacfwd(lambda x: (function(x),) * 2, has_aux=True)
    return jax.jit(lambda x: slopes(x)[::-1])(at)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "make_guide"),
    [
        (several_outputs, gp.AutoGaussian),
        pytest.param(with_mean, gp.AutoGaussian, marks=pytest.mark.slow),
    ],
)
def test_at_the_fit_v_has_the_q_of_the_guide(model, make_guide, monkeypatch):
    monkeypatch.setattr(laplace, "_MOST_VALUES", 0)
    guide, params = fitted(model, make_guide)
    tril = params["auto_f_scale_tril"] = 0.4 * params["auto_f_scale_tril"]
    target = Target(random.key(1), model, (X, Y), {}, params)
    start = fitted_start(random.key(2), guide, params, target, 1)
    others = at_the_fit(target, guide, params)

    def whitened(xi):
        return target.constrain({**others, "f_base": xi}, start.data)["f"]

    xi = jnp.zeros(tril.shape[:-1])
    value, slopes = value_and_slopes(whitened, xi)
    slopes = slopes.reshape(xi.size, xi.size)
    blocks = (tril @ jnp.swapaxes(tril, -1, -2)).reshape(-1, *tril.shape[-2:])
    np.testing.assert_allclose(value, params["auto_f_loc"], atol=1e-9)
    expected = scipy.linalg.block_diag(*blocks)
    np.testing.assert_allclose(slopes @ slopes.T, expected, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "make_guide"),
    [
        pytest.param(with_level, gp.AutoGaussian, marks=pytest.mark.thorough),
        pytest.param(outputs_in_a_sum, diagonal, marks=pytest.mark.thorough),
        pytest.param(outputs_in_a_sum, gp.AutoGaussian, marks=pytest.mark.slow),
        (three_terms, lambda model: gp.AutoCoupled(model, [["f", "h"], ["g"]])),
    ],
)
def test_values_that_the_fit_holds_apart_have_the_covariance_of_the_density(
    model, make_guide, monkeypatch
):
    """Gaussian noise: at θ̂ it is the inverse Hessian, by automatic differentiation.

    Precisions within 0.01 of those of the prior have no site.
    """
    monkeypatch.setattr(laplace, "_AT_A_TIME", 4)  # fewer than v has
    guide, params = fitted(model, make_guide)
    target = Target(random.key(1), model, (X, Y), {}, params)
    start = fitted_start(random.key(2), guide, params, target, 1)
    others, names = at_the_fit(target, guide, params), target.whitened_names
    bases = {n: jnp.zeros(start.positions[base_of(n)].shape[1:]) for n in names}
    flat, unravel = ravel_pytree(bases)

    def whitened(flat):
        xi = {base_of(n): value for n, value in unravel(flat).items()}
        found = target.constrain({**others, **xi}, start.data)
        return ravel_pytree({n: found[n] for n in names})[0]

    def density(flat):
        return target.logdensity_fn({**others, **unravel(flat)}, target.data)

    slopes = jax.jit(jax.jacfwd(whitened))(flat)
    precision = -jax.jit(jax.hessian(density))(flat)
    assert np.linalg.cond(precision) > 30
    found = np.linalg.inv(slopes @ slopes.T)
    np.testing.assert_allclose(found, precision, atol=0.01)


@pytest.mark.parametrize(
    "make_guide",
    [pytest.param(gp.AutoGaussian, marks=pytest.mark.thorough), gp.AutoCoupled],
)
def test_outputs_that_do_not_depend_on_each_other_keep_the_q_of_the_fit(make_guide):
    """One group of sites for each output, or the one that the guide has."""

    def separate(x, y=None):
        f = gp.sparse_gp("f", kernel("f"), X[::4], num_outputs=2)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x)[..., 0], obs=y)
            gp.observe("w", gp.likelihoods.Gaussian(0.2), f(x)[..., 1], obs=2 * y)

    guide = make_guide(separate)
    options = {"optimizer": gp.natural_gradient(1.0, optax.adam(0.0))}
    fit = gp.fit(
        random.key(0), separate, guide, X, Y, num_steps=2, progress=False, **options
    )
    target = Target(random.key(1), separate, (X, Y), {}, fit.params)
    start = fitted_start(random.key(2), guide, fit.params, target, 1)
    groups = 2 if make_guide is gp.AutoGaussian else 1
    assert len(start.data.sites["f"].projection) == groups
    assert start.num_blocks == 1


@pytest.mark.parametrize(
    ("model", "make_guide", "num_blocks"),
    [
        (several_outputs, gp.AutoGaussian, 2),
        pytest.param(several_outputs, gp.AutoCoupled, 1, marks=pytest.mark.slow),
        pytest.param(
            additive,
            lambda model: gp.AutoCoupled(model, [["f", "g"]]),
            2,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_blocks_are_the_gaussians_of_the_fit(
    model, make_guide, num_blocks, monkeypatch
):
    monkeypatch.setattr(laplace, "_MOST_VALUES", 5)  # fewer than v has
    guide, params = fitted(model, make_guide)
    target = Target(random.key(1), model, (X, Y), {}, params)
    start = fitted_start(random.key(2), guide, params, target, 1)
    assert start.num_blocks == num_blocks


@pytest.mark.thorough
def test_a_sampler_of_minibatches_takes_no_gradient_of_all_data_for_each_value():
    def subsampled(x, y=None):
        f = gp.sparse_gp("f", kernel("f"), X[::4], num_outputs=2)
        with numpyro.plate("data", len(x), subsample_size=7) as rows:
            latent = f(x[rows])[..., 0] + f(x[rows])[..., 1]
            gp.observe("y", gp.likelihoods.StudentT(4.0, 0.3), latent, obs=y[rows])

    guide, params = fitted(subsampled, gp.AutoGaussian)
    target = Target(random.key(1), subsampled, (X, Y), {}, params, minibatches=True)
    start = fitted_start(random.key(2), guide, params, target, 1)
    assert start.num_blocks == len(start.data.sites["f"].projection) == 2


@pytest.mark.slow
def test_at_the_fit_coupled_processes_have_their_joint_q():
    """One after the other, the later ones integrated out, with a mean of theirs."""
    guide, params = fitted(additive, gp.AutoCoupled)
    loc, tril = params["auto_f_g_h_loc"], 0.4 * params["auto_f_g_h_scale_tril"]
    params["auto_f_g_h_scale_tril"] = tril
    target = Target(random.key(1), additive, (X, Y), {}, params)
    start = fitted_start(random.key(2), guide, params, target, 1)
    others, names = at_the_fit(target, guide, params), target.whitened_names
    shapes = {n: start.positions[f"{n}_base"].shape[1:] for n in names}
    flat, unravel = ravel_pytree({n: jnp.zeros(shapes[n]) for n in names})

    def whitened(flat):
        bases = {f"{n}_base": xi for n, xi in unravel(flat).items()}
        found = target.constrain({**others, **bases}, start.data)
        return jnp.concatenate([found[n].ravel() for n in names])

    value, slopes = value_and_slopes(whitened, flat)
    np.testing.assert_allclose(value, loc, atol=1e-8)
    np.testing.assert_allclose(slopes @ slopes.T, tril @ tril.T, atol=1e-8)


def test_values_of_any_shape_are_one_row_of_coordinates():
    """θ = loc + scale_tril η, with the sites by name; there and back."""
    rng = np.random.default_rng(4)
    shapes = {"scale": (), "lengthscale": (3,), "bias": (2, 1)}
    values = {n: rng.normal(size=(5, *shape)) for n, shape in shapes.items()}
    loc = {n: rng.normal(size=shape) for n, shape in shapes.items()}
    tril = np.tril(rng.normal(size=(6, 6))) + 3.0 * np.eye(6)
    xi = rng.normal(size=(5, 4))
    coordinates = Coordinates(loc, tril)
    position = coordinates.from_values({**values, "f_base": xi})
    assert position.keys() == {"f_base", OTHERS}
    np.testing.assert_array_equal(position["f_base"], xi)
    names = ("bias", "lengthscale", "scale")
    theta = np.concatenate([values[n].reshape(5, -1) for n in names], axis=1)
    centre = np.concatenate([loc[n].ravel() for n in names])
    np.testing.assert_allclose(position[OTHERS] @ tril.T, theta - centre)
    back, _ = coordinates.at({n: x[3] for n, x in position.items()}, NOTHING)
    assert back.keys() == {"f_base", *shapes}
    for name, value in values.items():
        np.testing.assert_allclose(back[name], value[3])


def test_no_coordinates_come_from_a_gaussian_that_is_none():
    """One that is a point, or not finite: what else is known of it is not looked at."""
    unused = {"f": None}
    for covariance in (np.zeros((1, 3, 3)), np.full((1, 3, 3), np.nan)):
        assert not _is_finite(coupling.Gaussian(np.zeros((1, 3)), covariance, unused))


def test_coordinates_are_scaled_by_the_inverse_curvature():
    """Of −½ θᵀ A θ + θᵀ B ξ, whatever ξ; a flat direction has the sd 3 at most."""
    rng = np.random.default_rng(5)
    vectors = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    curvature = (vectors * [2.0, 60.0, 1e-4]) @ vectors.T
    pull = rng.normal(size=(3, 4))

    def logdensity_fn(position):
        theta = jnp.concatenate([position["a"][None], position["b"]])
        return -0.5 * theta @ curvature @ theta + theta @ pull @ position["f_base"]

    loc = {"a": np.array(0.7), "b": np.array([0.2, -0.4])}
    xi = {"f_base": np.ones(4)}
    found = curved(Density(logdensity_fn), NOTHING, loc, xi, {})
    covariance = found.scale_tril @ found.scale_tril.T
    expected = (vectors * [1 / 2.0, 1 / 60.0, 9.0]) @ vectors.T
    np.testing.assert_allclose(covariance, expected, rtol=1e-9, atol=1e-10)
    assert np.all(np.triu(found.scale_tril, 1) == 0.0)


@pytest.mark.thorough
@mostly_single
def test_processes_follow_what_is_added_to_them(precision):
    """Gaussian noise, q(v) exact: the negative Hessian at the centre is the identity.

    All coordinates together, by automatic differentiation; to half an sd of ξ for an sd
    of θ, where corrections end.
    """
    guide = gp.AutoCoupled(with_level)
    optimizer = gp.natural_gradient(1.0, optax.adam(0.05))
    options = {"num_steps": 400, "optimizer": optimizer, "progress": False}
    data = unseen(X, Y)
    fit = gp.fit(random.key(0), with_level, guide, *data, **options)
    target = Target(random.key(1), with_level, data, {}, fit.params)
    start = fitted_start(random.key(2), guide, fit.params, target, 2)
    middle = jax.tree.map(lambda x: jnp.zeros(x.shape[1:]), start.positions)

    @jax.jit
    def curvature_in(coordinates):
        flat, unravel = ravel_pytree(middle)

        def density(flat):
            return target.logdensity_fn(*coordinates.at(unravel(flat), start.data))

        return -jax.hessian(density)(flat)

    found = np.linalg.eigvalsh(curvature_in(start.coordinates))
    np.testing.assert_allclose(found, 1.0, atol=0.5)
    alone = start.coordinates._replace(pseudo_data={}, slopes={})
    assert np.linalg.eigvalsh(curvature_in(alone))[-1] > 1000


@pytest.mark.thorough
def test_coordinates_of_coordinates():
    """η = mean + scale_tril η': values and pseudo-data are those at η."""
    _, start = started(with_level, gp.AutoCoupled)
    coordinates = jax.device_get(start.coordinates)
    size = len(coordinates.scale_tril)
    rng = np.random.default_rng(6)
    mean, tril = rng.normal(size=size), np.tril(rng.normal(size=(size, size)))
    eta = rng.normal(size=size)
    xi = {n: x[0] for n, x in start.positions.items() if n != OTHERS}
    found = coordinates.moved(mean, tril).at({**xi, OTHERS: eta}, start.data)
    expected = coordinates.at({**xi, OTHERS: mean + tril @ eta}, start.data)
    assert coordinates.slopes
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, atol=1e-9)


@pytest.mark.thorough
@mostly_single
def test_far_from_the_fit_density_and_slope_are_finite(precision):
    z, data = counts_z(), unseen(COUNTS_X, COUNTS_Y)
    guide = gp.AutoGaussian(counts_model)
    options = {"num_steps": 300, "progress": False}
    fit = gp.fit(random.key(0), counts_model, guide, *data, **options)
    target = Target(random.key(1), counts_model, data, {}, fit.params)
    start = fitted_start(random.key(2), guide, fit.params, target, 2)
    first = {n: x[0] for n, x in start.positions.items()}
    values, there = start.coordinates.at(first, start.data)
    density = jax.jit(jax.value_and_grad(lambda v: target.logdensity_fn(v, there)))
    for factor in (0.01, 0.1, 1.0, 10.0, 100.0):
        moved = {**values, "lengthscale": values["lengthscale"] + np.log(factor)}
        assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(density(moved)))
    assert z.dtype == values["f_base"].dtype


def exact_log_evidence(values, x, y):
    """log N(y; m, Q + noise) − ½ Σ residual / σ², densely, of ``gaussian``."""

    def rbf(a, b, name):
        squares = (a[:, None, 0] - b[None, :, 0]) ** 2
        scale = values[f"{name}_lengthscale"]
        return values[f"{name}_variance"] * np.exp(-0.5 * squares / scale**2)

    def features(inputs, z, name):
        gram = rbf(z, z, name)
        gram = gram + 1e-6 * np.mean(np.diag(gram)) * np.eye(len(z))
        factor = np.linalg.cholesky(gram)
        return scipy.linalg.solve_triangular(factor, rbf(z, inputs, name), lower=True).T

    z, w = X[::4], X[::5]
    near, half = features(x, z, "f"), features(0.5 * x, z, "f")
    of_g = features(x, w, "g")
    f, g = values["f_variance"], values["g_variance"]
    cross = np.diag(rbf(x, 0.5 * x, "f")) - np.sum(near * half, axis=1)
    residual = 2 * f - np.sum(near**2, 1) - np.sum(half**2, 1) - 2 * cross
    residual = residual + x[:, 0] ** 2 * (g - np.sum(of_g**2, 1))
    zero = np.zeros((7, near.shape[1]))
    phi = np.block([[near - half, 0 * of_g, x * of_g], [zero, of_g[:7], 0 * of_g[:7]]])
    mean = values["slope"] * np.r_[0.5 * x[:, 0], np.zeros(7)]
    noise = np.r_[np.full(14, values["noise"]), np.full(7, 2 * values["noise"])] ** 2
    residual = np.r_[residual, g - np.sum(of_g[:7] ** 2, 1)]
    data = np.r_[y, y[:7] + 1]
    covariance = phi @ phi.T + np.diag(noise)
    density = scipy.stats.multivariate_normal(mean, covariance).logpdf(data)
    return density - 0.5 * np.sum(residual / noise), phi, covariance, data - mean


def test_without_v_the_density_is_the_bound_of_titsias():
    target = Target(random.key(0), gaussian, (X, Y), {}, {}, collapse=True)
    assert target.is_collapsed and target.whitened_names == []
    position = target.initial_positions(random.key(1), 2)
    constrain, logdensity_fn = jax.jit(target.constrain), jax.jit(target.logdensity_fn)
    gammas = {
        "noise": (2.0, 4.0),
        "f_variance": (3.0, 2.0),
        "f_lengthscale": (4.0, 4.0),
    }
    gammas |= {name.replace("f", "g", 1): gammas[name] for name in list(gammas)[1:]}
    differences = []
    for i in range(2):
        one = {name: np.asarray(x)[i] for name, x in position.items()}
        values = constrain(one, target.data, random.key(0))
        theta = {n: float(x) for n, x in values.items() if np.ndim(x) == 0}
        evidence, *_ = exact_log_evidence(theta, X, Y)
        rest = scipy.stats.norm.logpdf(theta["slope"]) + sum(
            scipy.stats.gamma.logpdf(theta[name], shape, scale=1 / rate)
            for name, (shape, rate) in gammas.items()
        )
        log_volume = sum(np.log(theta[n]) for n in theta if n != "slope")
        found = float(logdensity_fn(one, target.data))
        differences.append(found - evidence - rest - log_volume)
    np.testing.assert_allclose(differences, 0.0, atol=1e-8)


def test_without_v_missing_data_are_left_out():
    def model(x, y, known=None):
        noise = numpyro.sample("noise", dist.Gamma(2.0, 4.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.7), X[:4])
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y, mask=known)

    known = np.arange(len(X)) % 3 > 0
    holes = X, np.where(known, Y, np.nan), known
    found = []
    for arguments in (holes, (X[known], Y[known])):
        target = Target(random.key(0), model, arguments, {}, {}, collapse=True)
        assert target.is_collapsed
        position = {"noise": jnp.asarray(0.3)}
        found.append(float(jax.jit(target.logdensity_fn)(position, target.data)))
    assert found[0] == pytest.approx(found[1], rel=1e-10)


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(condition, marks=pytest.mark.thorough),
        do,
        pytest.param(substitute, marks=pytest.mark.thorough),
    ],
)
def test_a_process_that_is_given_is_part_of_the_mean(handler):
    v = np.linspace(-1.0, 1.5, 6).reshape(2, 3)
    free = Target(random.key(0), gaussian, (X, Y), {}, {}, collapse=True)
    known = handler(gaussian, data={"g": v})
    given = Target(random.key(0), known, (X, Y), {}, {}, collapse=True)
    # Where the data see other values than its own, the site is drawn from its prior.
    names = ["f"] if handler is condition else ["f", "g"]
    assert given.is_collapsed and given.process_names == names
    start = free.initial_positions(random.key(1), 1)
    one = {name: np.asarray(x)[0] for name, x in start.items()}
    values = jax.jit(free.constrain)(one, free.data, random.key(0))
    theta = {n: float(x) for n, x in values.items() if np.ndim(x) == 0}
    _, phi, covariance, shift = exact_log_evidence(theta, X, Y)
    of_f, of_g = phi[:, :4], phi[:, 4:]
    noise = covariance - phi @ phi.T
    normal = scipy.stats.multivariate_normal
    expected = normal(cov=of_f @ of_f.T + noise).logpdf(shift - of_g @ v.ravel())
    expected -= normal(cov=covariance).logpdf(shift)
    if handler is condition:
        expected += np.sum(scipy.stats.norm.logpdf(v))
    elif handler is substitute:  # samplers override it, NumPyro's too
        expected = 0.0
    found = [float(jax.jit(t.logdensity_fn)(one, t.data)) for t in (given, free)]
    np.testing.assert_allclose(found[0] - found[1], expected, atol=1e-8)


def test_v_is_drawn_given_theta_and_the_data():
    target = Target(random.key(0), gaussian, (X, Y), {}, {}, collapse=True)
    start = target.initial_positions(random.key(1), 1)
    # The same place at every draw of every chain.
    same = {n: np.tile(x[:1], (4, 1000, *[1] * (x.ndim - 1))) for n, x in start.items()}
    here = Start(plain_coordinates(), target.data, {})
    draws = _constrained(random.key(2), target, here, same)
    theta = {n: float(x[0, 0]) for n, x in draws.items() if x.ndim == 2}
    _, phi, covariance, shift = exact_log_evidence(theta, X, Y)
    v = np.concatenate([draws[n].reshape(4000, -1) for n in "fg"], axis=1)
    assert len(np.unique(v[:, 0])) == 4000
    gain = phi.T @ np.linalg.inv(covariance)
    expected = np.eye(phi.shape[1]) - gain @ phi
    error = (v.mean(0) - gain @ shift) / np.sqrt(np.diag(expected) / 4000)
    assert np.max(np.abs(error)) < 4.5
    spread = np.cov(v.T) - expected
    assert np.max(np.abs(spread)) < 5.0 * np.sqrt(2 / 4000)


@pytest.mark.slow
def test_outputs_that_no_datum_sees_together_are_factorised_apart(monkeypatch):
    def model(x, y=None):
        scale = numpyro.sample("scale", dist.Gamma(2.0, 4.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), X[::4], num_outputs=3)(x)
        g = gp.sparse_gp("g", gp.kernels.RBF(1.0, 1.0), X[::5])(x)
        gp.sparse_gp("unseen", gp.kernels.RBF(1.0, 1.0), X[::7])
        likelihood = gp.likelihoods.Gaussian(scale)
        with numpyro.plate("data", len(x)):
            gp.observe("f_0", likelihood, f[..., 0], obs=y)
            gp.observe("f_1", likelihood, f[..., 1] + g, obs=y)
            gp.observe("f_1_again", likelihood, f[..., 1], obs=y)
            gp.observe("level", likelihood, 0.0 * f[..., 2] + scale, obs=y)

    sizes, factorised = [], collapsed.cholesky

    def counted(matrix, jitter):
        sizes.append(len(matrix))
        return factorised(matrix, jitter)

    monkeypatch.setattr(collapsed, "cholesky", counted)
    target = Target(random.key(0), model, (X, Y), {}, {}, collapse=True)
    sizes.clear()
    one = {"scale": jnp.zeros(())}
    target.logdensity_fn(one, target.data)
    assert sorted(sizes) == [4, 4 + 3]
    keys = random.split(random.key(2), 2000)
    draws = jax.jit(jax.vmap(lambda key: target.constrain(one, target.data, key)))(keys)
    assert draws["f"].shape == (2000, 3, 4)
    for prior in (draws["f"][:, 2], draws["unseen"]):
        spread = np.cov(np.asarray(prior).T) - np.eye(prior.shape[1])
        assert np.max(np.abs(spread)) < 5.0 * np.sqrt(2 / 2000)
    assert np.max(np.var(draws["f"][:, 1], axis=0)) < 0.9


@pytest.mark.thorough
def test_the_coordinates_are_chosen_by_the_model_and_the_sampler():
    nuts, gibbs, stochastic = gp.mcmc.NUTS(), gp.mcmc.Gibbs(), gp.mcmc.SGHMC()
    assert choice(None, nuts) == ("collapsed", "fitted", "whitened")
    assert choice("whitened", nuts) == ("whitened",)
    assert choice(None, stochastic) == ("fitted", "whitened")
    assert choice(None, gibbs) == ("whitened",)
    assert choice("fitted", nuts) == ("fitted",)
    is_collapsed = [
        Target(random.key(0), model, (X, Y), {}, {}, collapse=True).is_collapsed
        for model in (gaussian, with_mean, layers, scale(gaussian, scale=0.5), robust)
    ]
    assert is_collapsed == [True, False, False, False, False]
    assert Target(random.key(0), layers, (X, Y), {}, {}).is_deep
    assert not Target(random.key(0), gaussian, (X, Y), {}, {}).is_collapsed


def test_a_model_that_records_moments_keeps_its_v():
    def records(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), X[:4])
        scale = numpyro.sample("scale", dist.LogNormal())
        numpyro.deterministic("mean at x", f(x).mean)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(scale), f(x), obs=y)

    assert not Target(
        random.key(0), records, (X, Y), {}, {}, collapse=True
    ).is_collapsed
    options = {"num_chains": 1, "num_warmup": 2, "num_samples": 2, "progress": False}
    found = gp.sample(random.key(0), records, X, Y, sampler=Walk(), **options)
    assert found["posterior"]["mean at x"].shape == (1, 2, len(X))
    with pytest.raises(ValueError, match=r"ask for moments such as f\(x\).mean"):
        gp.sample(random.key(0), records, X, Y, coordinates="collapsed", **options)


@pytest.mark.thorough
def test_draws_of_a_collapsed_model_have_its_v():
    options = {"num_chains": 1, "num_warmup": 2, "num_samples": 2, "progress": False}
    options["sampler"] = Walk()
    found = gp.sample(random.key(0), gaussian, X, Y, **options)["posterior"]
    assert found.attrs["coordinates"] == "collapsed"
    assert found.attrs["num_blocks"] == 0
    assert found["f"].shape == (1, 2, 4) and found["g"].shape == (1, 2, 2, 3)


@pytest.mark.slow
def test_numpyro_samples_in_the_coordinates_of_a_fit():
    guide, params = fitted(with_mean, gp.AutoGaussian)
    moved = gp.mcmc.reparam_sites(with_mean, (guide, params), X, Y)
    mcmc = MCMC(NumPyroNUTS(moved), num_warmup=20, num_samples=5, progress_bar=False)
    mcmc.run(random.key(0), X, Y)
    draws = mcmc.get_samples()
    assert draws["f"].shape == draws["f_base"].shape == (5, 4)
    prediction = gp.predict(with_mean, draws, X, params=params)["y"]
    assert prediction.mean.shape == (14,)
    point = numpyro.infer.autoguide.AutoDelta(with_mean)
    sites = trace(seed(with_mean, random.key(0))).get_trace(X, Y)
    values = {f"{name}_auto_loc": site["value"] for name, site in sites.items()}
    with pytest.raises(
        ValueError, match=r"init has no q\(v\) to take coordinates from"
    ):
        gp.mcmc.reparam_sites(with_mean, (point, values), X, Y)


def test_a_model_in_the_coordinates_of_a_fit():
    guide, params = fitted(with_mean, gp.AutoGaussian)
    moved = gp.mcmc.reparam_sites(with_mean, (guide, params), X, Y)
    sites = trace(seed(moved, random.key(0))).get_trace(X, Y)
    assert sites["f_base"]["value"].shape == sites["f"]["value"].shape == (4,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coordinates": "unit"}, r"must be one of .*whitened.*got 'unit'"),
        ({"coordinates": "collapsed"}, r"at every observe site likelihoods.Gaussian"),
        (
            {"coordinates": "fitted", "sampler": gp.mcmc.Gibbs()},
            r'Gibbs uses the prior N\(0, I\).*drop coordinates="fitted"',
        ),
    ],
)
def test_coordinates_that_cannot_be_had_are_refused(as_users_call, options, message):
    with pytest.raises(ValueError, match=message):
        gp.sample(random.key(0), with_mean, X, Y, progress=False, **options)


def moments_of(draws):
    """Means of every value and of its square, with their standard errors."""
    found = {}
    for name, x in gp.diagnostics.group(draws, "posterior").items():
        for power in (1, 2):
            values = np.asarray(x, float) ** power
            size = gp.diagnostics.ess({name: values})[name]
            mean = values.mean(axis=(0, 1))
            found[name, power] = mean, values.std(axis=(0, 1)) / np.sqrt(size)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "make_guide"),
    [
        (with_mean, gp.AutoGaussian),
        (several_outputs, gp.AutoGaussian),
        (additive, gp.AutoCoupled),
        (additive, gp.AutoGaussian),
        (gaussian, gp.AutoGaussian),
    ],
)
def test_the_posterior_is_that_of_whitened_chains(model, make_guide):
    guide = make_guide(model)
    fit = gp.fit(random.key(0), model, guide, X, Y, num_steps=1000, progress=False)
    options = {"num_warmup": 500, "num_samples": 1500, "progress": False}
    options |= {"init": fit, "sampler": gp.mcmc.NUTS(target_acceptance_rate=0.9)}
    ours = moments_of(gp.sample(random.key(1), model, X, Y, **options))
    options["coordinates"] = "whitened"
    theirs = moments_of(gp.sample(random.key(2), model, X, Y, **options))
    for name, (mean, error) in ours.items():
        other, other_error = theirs[name]
        assert np.all(np.abs(mean - other) < 5 * np.hypot(error, other_error)), name


NOTHING = Data([], {}, None, None, {})


class Density(Target):
    """A log density of unconstrained values, without a model."""

    is_expensive = False

    def __init__(self, logdensity_fn):
        self.made_of = (logdensity_fn,)
        self.logdensity_fn = lambda position, data: logdensity_fn(position)


def student(position):
    """Curved the wrong way where |t| > 1 or 3; its maximum is at 0."""
    t = position["t"]
    return -jnp.sum(jnp.log(1 + jnp.square(t / jnp.array([1.0, 3.0]))))


def test_a_fit_on_a_slope_gives_coordinates_of_the_maximum():
    found = curved(Density(student), NOTHING, {"t": np.array([4.0, 2.0])}, {}, {})
    curvature = jax.hessian(lambda t: -student({"t": t}))(found.loc["t"])
    scaled = found.scale_tril.T @ curvature @ found.scale_tril
    np.testing.assert_allclose(scaled, np.eye(2), atol=0.3)
    assert np.max(np.abs(found.loc["t"] / [1.0, 3.0])) < 0.5


@pytest.mark.parametrize(("number", "is_moved"), [(30, True), (31, False)])
def test_the_maximum_of_many_values_is_not_sought(number, is_moved):
    def density(position):
        return -jnp.sum(jnp.log(1 + jnp.square(position["t"])))

    start = np.full(number, 0.9)
    found = curved(Density(density), NOTHING, {"t": start}, {}, {})
    assert np.all((found.loc["t"] != start) == is_moved)


@pytest.mark.parametrize(
    ("density", "start"),
    [
        (student, [0.2, -0.4]),  # close enough
        (lambda at: jnp.sum(at["t"]), [0.2, -0.4]),  # no maximum
        (lambda at: jnp.where(at["t"][0] > 0.3, jnp.nan, at["t"][0]), [0.2, -0.4]),
    ],
)
def test_the_fit_stays_the_centre_where_there_is_no_better_one(density, start):
    found = curved(Density(density), NOTHING, {"t": np.array(start)}, {}, {})
    np.testing.assert_array_equal(found.loc["t"], start)
