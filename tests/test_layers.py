"""``gp.deep`` and ``AutoDeep``: widths, linear means, starts; one layer is one GP."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer.autoguide import AutoNormal

import svgp_ppl as gp

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 3)) * np.array([1.0, 3.0, 0.2])
Y = np.sin(X[:, 1]) + 0.1 * RNG.normal(size=40)
KEY = random.key(0)


def model_of(layers, name="f"):
    def model(x, y=None):
        kernels = [gp.kernels.RBF(1.0, 1.5) for _ in layers]
        f = gp.deep.compose(name, layers, kernels, x)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.2), f, obs=y)

    return model


# -------------------------------------------------------------------- means and layers


def test_linear_mean_of_equal_width_is_the_identity():
    np.testing.assert_array_equal(gp.deep.linear_mean(X, 3)(X), jnp.asarray(X))


def test_linear_mean_of_equal_width_needs_no_more_rows_than_there_are():
    assert gp.deep.linear_mean(X[:2], 3).weights.shape == (3, 3)


def test_linear_mean_of_a_narrower_layer_spans_the_leading_directions():
    weights = np.asarray(gp.deep.linear_mean(X, 2).weights)
    # The second route: eigenvectors of the second moments, whose sign is free.
    vectors = np.linalg.eigh(X.T @ X)[1][:, :0:-1]
    np.testing.assert_allclose(weights.T @ weights, np.eye(2), atol=1e-5)
    np.testing.assert_allclose(np.abs(weights.T @ vectors), np.eye(2), atol=1e-4)


def test_linear_mean_of_a_wider_layer_is_padded_with_zeros():
    h = gp.deep.linear_mean(X, 5)(jnp.asarray(X))
    np.testing.assert_array_equal(h[:, :3], jnp.asarray(X))
    np.testing.assert_array_equal(h[:, 3:], np.zeros((40, 2)))


def test_inducing_inputs_are_carried_through_the_means():
    first, second, last = gp.deep.layers(X, 3, 7, widths=[2, 4])
    np.testing.assert_array_equal(first.z, gp.inducing.kmeans(X, 7))
    np.testing.assert_array_equal(second.z, first.mean(first.z))
    np.testing.assert_array_equal(last.z, second.mean(second.z))
    assert [layer.z.shape for layer in (first, second, last)] == [
        (7, 3),
        (7, 2),
        (7, 4),
    ]
    assert [layer.width for layer in (first, second, last)] == [2, 4, None]
    # The second map sees what the first makes of x: here it pads, there it turned.
    assert second.mean.weights.shape == (2, 4) and last.mean is None


def test_inner_layers_are_as_wide_as_x_and_at_most_thirty():
    assert [layer.width for layer in gp.deep.layers(X, 3, 5)] == [3, 3, None]
    wide = np.random.default_rng(0).normal(size=(60, 40))
    assert gp.deep.layers(wide, 2, 5, num_outputs=2)[0].width == 30
    assert gp.deep.layers(wide, 2, 5, num_outputs=2)[1].width == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gp.deep.layers(X, 3, 5, widths=[2]), r"3 layers have 2 inner widths"),
        (lambda: gp.deep.layers(X, 2, 5, widths=[0]), r"width .* positive integer"),
        (lambda: gp.deep.layers(X, 0, 5), r"num_layers must be a positive integer"),
        (lambda: gp.deep.layers(X[:, 0], 2, 5), r"must have shape \[N, D\]"),
        (lambda: gp.deep.linear_mean(np.ones((1, 3)), 2), r"rows span fewer than 2"),
        (lambda: gp.deep.compose("f", [], [], X), r"0 layers and 0 kernels"),
        (lambda: gp.AutoDeep(print, inner_scale=0.0), r"inner_scale must be"),
        (lambda: gp.AutoDeep(print, "low"), r"'full' or 'diagonal'"),
    ],
)
def test_wrong_layers_are_explained(call, message, as_users_call):
    with pytest.raises(ValueError, match=message):
        call()


# ------------------------------------------------------------------- models and guides


def test_one_layer_is_a_single_process():
    (layer,) = gp.deep.layers(X, 1, 8)

    def single(x, y=None):
        z = numpyro.param("f_0_z", layer.z)
        f = gp.sparse_gp("f_0", gp.kernels.RBF(1.0, 1.5), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.2), f(x), obs=y)

    params = {
        "auto_f_0_loc": 0.3 * np.arange(8.0),
        "auto_f_0_scale_tril": 0.5 * np.eye(8),
    }
    deep, bound = model_of([layer]), gp.MarginalELBO()

    def loss_of(model, guide):
        return jax.jit(lambda *data: bound.loss(KEY, params, model, guide, *data))(X, Y)

    one = loss_of(deep, gp.AutoDeep(deep))
    other = loss_of(single, gp.AutoGaussian(single))
    assert one == other


def started(guide):
    run = handlers.trace(handlers.seed(guide, KEY)).get_trace(X, Y)
    return {n: s["value"] for n, s in run.items() if s["type"] == "param"}


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_inner_layers_start_almost_certain_and_the_last_at_the_prior(covariance):
    model = model_of(gp.deep.layers(X, 3, 6, widths=[2, 3]))
    values = started(gp.AutoDeep(model, covariance))
    name = "scale_tril" if covariance == "full" else "scale"
    unit = np.eye(6) if covariance == "full" else np.ones(6)
    for process, scale in {"f_0": 1e-5, "f_1": 1e-5, "f_2": 1.0}.items():
        start = values[f"auto_{process}_{name}"]
        shape = {"f_0": (2,), "f_1": (3,), "f_2": ()}[process]
        expected = np.broadcast_to(scale * unit, (*shape, *unit.shape))
        np.testing.assert_allclose(start, expected, rtol=1e-4)


def test_deep_guide_without_layers_is_the_gaussian_one():
    model = model_of(gp.deep.layers(X, 1, 6))
    deep, gaussian = started(gp.AutoDeep(model)), started(gp.AutoGaussian(model))
    assert deep.keys() == gaussian.keys()
    for name, value in deep.items():
        np.testing.assert_array_equal(value, gaussian[name])


def test_layers_are_known_through_sums_and_scopes():
    z = gp.inducing.kmeans(X, 5)

    def model(x, y=None):
        a = gp.sparse_gp("a", gp.kernels.RBF(1.0, 1.0), z, num_outputs=2)
        b = gp.sparse_gp("b", gp.kernels.RBF(1.0, 1.0), z)
        h = gp.propagate("h", 0.5 * a(x)[..., 1] - b(x))
        with handlers.scope(prefix="top"):
            f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), z[:, :1])
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.2), f(h) + b(x), obs=y)

    values = started(gp.AutoDeep(model, inner_scale=0.01))
    starts = {n: float(v.max()) for n, v in values.items() if n.endswith("_tril")}
    assert starts == pytest.approx(
        {
            "auto_a_scale_tril": 0.01,
            "auto_b_scale_tril": 0.01,
            "auto_top/f_scale_tril": 1.0,
        }
    )


@pytest.mark.slow
def test_deep_fit_beats_the_single_layer_on_a_step():
    x = np.linspace(-1, 1, 60)[:, None]
    y = np.sign(x[:, 0]) + 0.05 * np.cos(31.0 * np.arange(60))
    bounds = []
    for num_layers in (1, 2):
        start = gp.deep.layers(x, num_layers, 8)

        def model(x, y=None, start=start):
            scale = numpyro.sample("noise", numpyro.distributions.LogNormal(-2.0, 1.0))
            length = numpyro.param("length", 0.5 * jnp.ones(2))
            kernels = [gp.kernels.RBF(1.0, length[i]) for i in range(len(start))]
            f = gp.deep.compose("f", start, kernels, x)
            with numpyro.plate("data", len(x)):
                gp.observe("y", gp.likelihoods.Gaussian(scale), f, obs=y)

        guide = gp.AutoDeep(model, rest=AutoNormal)
        fit = gp.fit(KEY, model, guide, x, y, num_steps=800, progress=False)
        bounds.append(-np.mean(fit.losses[-100:]))
    assert bounds[1] > bounds[0] + 5
