"""New data without the old ones."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from numpyro import handlers
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import svgp_ppl as gp
from svgp_ppl.fitting.repeated import repeated
from svgp_ppl.fitting.streaming import _seen_by
from tests.models import (
    GAUSSIAN_X,
    GAUSSIAN_Y,
    GAUSSIAN_Z,
    gaussian_model,
    gaussian_posterior,
    rbf,
)

FIRST, SECOND = slice(0, 8), slice(8, 15)
EXACT = gp.natural_gradient(1.0)


def rows(part):
    return jnp.asarray(GAUSSIAN_X[part]), jnp.asarray(GAUSSIAN_Y[part])


def first_fit(model=gaussian_model, **options):
    guide = gp.AutoGaussian(model)
    sizes = {"num_steps": 2, "optimizer": EXACT, "progress": False, **options}
    return gp.fit(jax.random.key(0), model, guide, *rows(FIRST), **sizes)


def continued(fitted, part=SECOND, **options):
    sizes = {"num_steps": 2, "optimizer": EXACT, "progress": False, **options}
    return gp.update(jax.random.key(1), fitted, *rows(part), **sizes)


def moments_of(fitted):
    factor = np.asarray(fitted.params["auto_f_scale_tril"])
    return np.asarray(fitted.params["auto_f_loc"]), factor @ factor.T


def test_a_conjugate_fit_in_parts_is_that_of_all_data():
    """Natural steps of rate 1 are exact: the posterior, without the first data."""
    fitted = continued(continued(first_fit(), slice(8, 11)), slice(11, 15))
    assert fitted.model is gaussian_model
    for found, exact in zip(moments_of(fitted), gaussian_posterior()):
        np.testing.assert_allclose(found, exact, atol=5e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("is_white", [True, False])
def test_what_u_has_beyond_f_is_kept(is_white):
    """u = f(z) + jitter + white noise: the factor is on u, and not on f(z)."""

    def model(x, y=None):
        kernel, z = gp.kernels.RBF(1.3, 0.7), jnp.asarray(GAUSSIAN_Z, float)
        kernel = kernel + gp.kernels.White(0.5) if is_white else kernel
        f = gp.sparse_gp("f", kernel, z, jitter=0.0 if is_white else 0.5)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.4), f(x), obs=y)

    fitted = continued(first_fit(model))
    tril = np.linalg.cholesky(rbf(GAUSSIAN_Z, GAUSSIAN_Z, 1.3, 0.7) + 0.5 * np.eye(4))
    a = np.linalg.solve(tril, rbf(GAUSSIAN_Z, GAUSSIAN_X, 1.3, 0.7)).T
    covariance = np.linalg.inv(np.eye(4) + a.T @ a / 0.4**2)
    exact = covariance @ a.T @ GAUSSIAN_Y / 0.4**2, covariance
    for found, wanted in zip(moments_of(fitted), exact):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def outputs(x, y=None):
    f = gp.sparse_gp(
        "f", gp.kernels.RBF(1.3, 0.7), jnp.asarray(GAUSSIAN_Z), num_outputs=2
    )
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.4), f(x)[..., 0], obs=y)
        gp.observe("w", gp.likelihoods.Gaussian(0.2), f(x)[..., 1], obs=-y)


@pytest.mark.slow
def test_outputs_and_moving_hyperparameters():
    fitted = continued(first_fit(outputs))
    whole = gp.fit(
        jax.random.key(0), outputs, gp.AutoGaussian(outputs),
        jnp.asarray(GAUSSIAN_X), jnp.asarray(GAUSSIAN_Y),
        num_steps=2, optimizer=EXACT, progress=False,
    )  # fmt: skip
    for name, value in whole.params.items():
        np.testing.assert_allclose(fitted.params[name], value, atol=2e-3)


def moving(x, y=None):
    """Hyperparameters and z are fitted."""
    positive = numpyro.distributions.constraints.softplus_positive
    lengthscale = numpyro.param("lengthscale", 0.7, constraint=positive)
    z = numpyro.param("z", jnp.asarray(GAUSSIAN_Z))
    f = gp.sparse_gp("f", gp.kernels.RBF(1.3, lengthscale), z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.4), f(x), obs=y)


@pytest.mark.slow
def test_what_was_learnt_stays_where_z_moves_away():
    """The new data are far off, and z goes there; the old region is remembered."""
    options = {"num_steps": 400, "optimizer": optax.adam(0.03)}
    fitted = first_fit(moving, **options)
    seen, far = jnp.asarray(GAUSSIAN_X[FIRST]), jnp.asarray(GAUSSIAN_X[SECOND])

    def error(fit, x, part):
        mean = gp.predict(moving, fit, x)["y"].mean
        return float(np.sqrt(np.mean((mean - GAUSSIAN_Y[part]) ** 2)))

    new = continued(fitted, **options)
    forgetful = gp.fit(
        jax.random.key(1), moving, fitted.guide, *rows(SECOND),
        init=(fitted.guide, fitted.params), progress=False, **options,
    )  # fmt: skip
    assert error(new, far, SECOND) < 0.6 * error(fitted, far, SECOND)
    assert error(new, seen, FIRST) < error(fitted, seen, FIRST) + 0.1
    assert error(new, seen, FIRST) < 0.7 * error(forgetful, seen, FIRST)


@pytest.mark.thorough
def test_what_was_frozen_stays_so_unless_it_is_named():
    """As where a fit is continued."""
    options = {"optimizer": optax.adam(0.1), "num_steps": 1}
    fitted = first_fit(moving, freeze={"l*": np.inf, "z": 1}, **options)
    kept, free = continued(fitted, **options), continued(fitted, freeze={"l*": 0})
    assert kept.params["lengthscale"] == fitted.params["lengthscale"]
    assert np.all(kept.params["z"] != fitted.params["z"])
    assert free.params["lengthscale"] != fitted.params["lengthscale"]


def with_a_condition(x, y=None, first=True, as_factor=False):
    """The value at zero is near 1, whatever the arguments are."""
    f = process(gp.kernels.RBF(1.3, 0.7))
    at_zero = f(jnp.zeros((1, 1)))
    if as_factor:
        numpyro.factor("zero", -jnp.sum((at_zero.mean - 1.0) ** 2))
    elif first:
        gp.observe("zero", gp.likelihoods.Gaussian(0.5), at_zero, obs=jnp.ones(1))
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.4), f(x), obs=y)


def test_what_no_argument_brings_does_not_count_again_without_a_word():
    """It is in what the fit has learnt: data of a boundary, a factor."""
    fitted = first_fit(with_a_condition)
    whole = gp.fit(
        jax.random.key(0),
        with_a_condition,
        fitted.guide,
        *rows(slice(0, 15)),
        num_steps=2,
        optimizer=EXACT,
        progress=False,
    )
    left_out = continued(fitted, first=False)
    for found, exact in zip(moments_of(left_out), moments_of(whole)):
        np.testing.assert_allclose(found, exact, atol=5e-4)
    with pytest.warns(UserWarning, match=r"update counts \['zero'\] again"):
        continued(fitted)
    again = dict(fitted.params), rows(SECOND)
    assert repeated(with_a_condition, *again, {"as_factor": True}) == ["zero"]
    assert repeated(with_a_condition, *again, {"first": False}) == []
    lists = jnp.zeros((2, 1)), [1.0, 2.0]  # data that cannot be followed
    assert repeated(with_a_condition, again[0], lists, {}) == []


def with_intercept(latent):
    """A model with an intercept b, a weight w and a lengthscale to be fitted."""

    def model(x, y=None):
        b = numpyro.sample("b", numpyro.distributions.Normal(0.0, 10.0))
        w = numpyro.param("w", 1.5)
        lengthscale = numpyro.sample("lengthscale", numpyro.distributions.LogNormal())
        kernel = gp.kernels.RBF(1.3, lengthscale)
        seen, scale = latent(x, b, w, kernel), 0.4
        seen, scale = seen if isinstance(seen, tuple) else (seen, scale)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(scale), seen, obs=y)

    return model


def process(kernel, mean=None, name="f"):
    return gp.sparse_gp(name, kernel, jnp.asarray(GAUSSIAN_Z), mean=mean)


def added(x, b, w, kernel):
    return process(kernel)(x) + b


def as_mean(x, b, w, kernel):
    f = process(kernel, lambda x: jnp.sin(b) + b * x[:, 0])
    return 2.0 * f(x) - f(x + 0.1) + x[:, 0]


def noisy(x, b, w, kernel):
    """A latent, and the scale of the noise."""
    return process(kernel, lambda x: jnp.full(len(x), b))(x), jnp.exp(w)


def weighted(x, b, w, kernel):
    f = process(kernel, lambda x: jnp.full(len(x), b))
    return w * f(x)


def moved(x, b, w, kernel):
    """A network before the kernel, whose columns add up to one."""
    shares = jax.nn.softmax(x * jnp.array([w, b]))
    return gp.sparse_gp("f", kernel, jnp.array([[0.2, 0.8], [0.5, 0.5]]))(shares)


def deep(x, b, w, kernel):
    inner = process(kernel, lambda x: jnp.full(len(x), b), "inner")
    h = gp.propagate("h", inner(x) + x[:, 0])
    return process(gp.kernels.RBF(w, 0.7))(h) + h[:, 0]


def deep_and_added(x, b, w, kernel):
    h = gp.propagate("h", process(kernel, name="inner")(x) + b)
    return process(gp.kernels.RBF(w, 0.7))(h)


NEVER = {"b_auto_loc": np.inf}


@pytest.mark.parametrize(
    ("latent", "freeze", "names"),
    [
        pytest.param(added, None, ["b"], marks=pytest.mark.thorough),
        (added, {"b_auto_loc": 1}, ["b"]),
        pytest.param(added, NEVER, [], marks=pytest.mark.thorough),
        pytest.param(as_mean, None, [], marks=pytest.mark.thorough),
        pytest.param(weighted, NEVER, ["w"], marks=pytest.mark.thorough),
        pytest.param(moved, None, ["b", "w"], marks=pytest.mark.thorough),
        (noisy, None, ["w"]),
        pytest.param(deep, None, [], marks=pytest.mark.slow),
        pytest.param(deep_and_added, None, ["b"], marks=pytest.mark.slow),
    ],
)
def test_what_is_forgotten_is_named(latent, freeze, names):
    """What the latent depends on beside the kernels and means of its processes."""
    options = {"optimizer": optax.adam(0.01), "num_steps": 1}
    fitted = first_fit(with_intercept(latent), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        continued(fitted, freeze=freeze, **options)
    found = [str(w.message) for w in caught if "update forgets" in str(w.message)]
    assert len(found) == bool(names)
    assert not names or f"said about {names}: the data" in found[0]


@pytest.mark.parametrize(
    "is_settled", [pytest.param(True, marks=pytest.mark.thorough), False]
)
def test_the_narrow_start_of_inner_layers_is_not_information(is_settled):
    def model(x, y=None):
        latent = deep(x, 0.0, 1.0, gp.kernels.RBF(1.0, 1.0))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.3), latent, obs=y)

    guide, options = gp.AutoDeep(model), {"num_steps": 20, "progress": False}
    fitted = gp.fit(jax.random.key(0), model, guide, *rows(FIRST), **options)
    if is_settled:
        fitted = replace(fitted, losses=np.full(200, 3.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp.update(jax.random.key(1), fitted, *rows(SECOND), **options)
    found = [str(w.message) for w in caught if "starts it narrow" in str(w.message)]
    assert len(found) == (not is_settled)


def test_what_stands_for_earlier_data_says_so(tmp_path):
    """A fit would forget them, and a report on the new data would not know them."""
    fitted = continued(first_fit())
    fitted.save(tmp_path / "fit.npz")
    fitted = gp.Fit.load(tmp_path / "fit.npz", fitted.guide, gaussian_model)
    assert fitted.has_earlier_data and not first_fit().has_earlier_data
    with pytest.raises(ValueError, match="would forget the earlier data"):
        gp.fit(
            jax.random.key(1), gaussian_model, fitted.guide, *rows(SECOND), init=fitted
        )
    found = gp.diagnostics.report(fitted, *rows(SECOND))
    assert "below the best" not in str(found) and "k-hat" not in str(found)


def test_an_interrupted_update_says_how_to_go_on(monkeypatch, tmp_path):
    """Not by fit(init=), which refuses it."""
    earlier = first_fit()

    def interrupt(bar, count):
        raise KeyboardInterrupt

    monkeypatch.setattr("svgp_ppl.runtime.progress.tqdm.update", interrupt)
    with pytest.warns(UserWarning, match=r"update again with the earlier fit\."):
        continued(earlier)
    with pytest.warns(UserWarning, match="the same call goes on from its checkpoint"):
        continued(earlier, checkpoint=tmp_path / "fit.npz")


@pytest.mark.parametrize(
    "rest",
    [pytest.param(AutoNormal, marks=pytest.mark.thorough), AutoMultivariateNormal],
)
def test_what_was_learnt_is_at_the_centre_of_the_hyperparameters(rest):
    """With a draw of them in its place, it would be another for every key."""

    def model(x, y=None):
        lengthscale = numpyro.sample("lengthscale", numpyro.distributions.LogNormal())
        f = process(gp.kernels.RBF(1.3, lengthscale))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.4), f(x), obs=y)

    guide = gp.AutoGaussian(model, rest=rest)
    fitted = gp.fit(
        jax.random.key(0), model, guide, *rows(FIRST), num_steps=2, progress=False
    )
    seen = [
        _seen_by(jax.random.key(n), fitted, frozenset(), rows(SECOND), {})[0]
        for n in (1, 2)
    ]
    jax.tree.map(np.testing.assert_array_equal, *seen)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fitted: None, "what gp.fit returned"),
        (lambda fitted: gp.Fit(**{**vars(fitted), "model": None}), "know its model"),
        (lambda fitted: fitted, "drop init="),
    ],
)
def test_refusals(as_users_call, change, message):
    fitted = first_fit()
    options = {"init": fitted} if message == "drop init=" else {}
    with pytest.raises(ValueError, match=message):
        continued(change(fitted), **options)


def test_a_shared_gaussian_is_refused():
    guide = gp.AutoMixture(gaussian_model, 2)
    fitted = gp.fit(
        jax.random.key(0), gaussian_model, guide, *rows(FIRST), num_steps=2,
        progress=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="needs a Gaussian q"):
        continued(fitted, optimizer=optax.adam(0.01))


def test_a_scaled_prior_is_refused():
    model = handlers.scale(gaussian_model, scale=0.5)
    fitted = gp.fit(
        jax.random.key(0), model, gp.AutoGaussian(model), *rows(FIRST), num_steps=2,
        progress=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"process 'f'.*scale or mask is around"):
        continued(fitted, optimizer=optax.adam(0.01))
