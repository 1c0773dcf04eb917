"""Parameters that are trees, such as the weights of a network before the kernel."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.contrib.module import ParamShape
from numpyro.handlers import substitute
from numpyro.infer.autoguide import AutoIAFNormal

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from svgp_ppl.runtime.nested import flattened, rebuilt
from tests.models import COUNTS_X, COUNTS_Y, Walk

RNG = np.random.default_rng(0)
DATA = COUNTS_X, COUNTS_Y
Z = RNG.normal(size=(4, 2))
LAYERS = [
    {"weight": RNG.normal(size=(1, 3)), "bias": np.zeros(3)},
    {"weight": RNG.normal(size=(3, 2)), "bias": np.zeros(2)},
]


def warped(x, layers):
    for layer in layers:
        x = jnp.tanh(x @ layer["weight"] + layer["bias"])
    return x


def counts(x, y, layers):
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 3.0))
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(warped(x, layers)), obs=y)


def model(x, y=None):
    """One parameter, a tree."""
    counts(x, y, numpyro.param("net$params", LAYERS))


def by_arrays(x, y=None):
    """A parameter for each of its arrays."""
    layers = [
        {part: numpyro.param(f"{part} {i}", LAYERS[i][part]) for part in layer}
        for i, layer in enumerate(LAYERS)
    ]
    counts(x, y, layers)


def fit(model, num_steps=12, **options):
    return gp.fit(
        random.key(0), model, *DATA, num_steps=num_steps, progress=False, **options
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": optax.adam(0.05), "freeze": {"*lengthscale*": 4}},
        pytest.param(
            {"optimizer": gp.natural_gradient(0.5, optax.lbfgs())},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_tree_is_fitted_as_its_arrays_are(options):
    losses = [fit(each, **options).losses for each in (model, by_arrays)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert losses[0][-1] < losses[0][0] - 1.0


@pytest.mark.thorough
def test_a_frozen_tree_stays_where_it_starts():
    held = fit(model, optimizer=optax.lbfgs(), freeze={"net*": np.inf})
    jax.tree.map(np.testing.assert_array_equal, held.params["net$params"], LAYERS)


@pytest.mark.thorough
def test_files_and_draws_give_the_tree_back(tmp_path):
    fitted = fit(model)
    fitted.save(tmp_path / "fit.npz")
    loaded = gp.Fit.load(tmp_path / "fit.npz", gp.AutoGaussian(model), model)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, fitted.params)
    again = gp.fit(
        random.key(0),
        model,
        loaded.guide,
        *DATA,
        init=loaded,
        num_steps=3,
        progress=False,
    )
    np.testing.assert_allclose(again.losses, fit(model, num_steps=15).losses, rtol=1e-6)

    options = {"num_chains": 2, "num_warmup": 2, "num_samples": 6, "progress": False}
    draws = gp.sample(
        random.key(1), model, *DATA, init=loaded, sampler=Walk(), **options
    )
    stored = group(draws, "constant_data")
    assert stored["net$params.1.bias"].shape == (2,)
    held = substitute(model, data={"net$params": fitted.params["net$params"]})
    values = {
        n: v.reshape(-1, *v.shape[2:]) for n, v in group(draws, "posterior").items()
    }
    mean = gp.predict(held, values, COUNTS_X)["y"].mean
    np.testing.assert_allclose(gp.predict(model, draws, COUNTS_X)["y"].mean, mean)
    given = gp.predict(model, draws, COUNTS_X, params=fitted.params)["y"].mean
    np.testing.assert_allclose(given, mean)
    checked = gp.posterior_predictive(random.key(2), model, fitted, *DATA)
    np.testing.assert_allclose(
        gp.predict(model, checked, COUNTS_X)["y"].mean,
        gp.predict(model, fitted, COUNTS_X)["y"].mean,
        rtol=0.1,
    )


def with_a_prior(x, y=None):
    """Where a weight has one, NumPyro's ``random_flax_module`` leaves its shape."""
    kept = numpyro.param("net$params", {"weight": ParamShape((1, 2))})
    prior = dist.Normal().expand(kept["weight"].shape).to_event()
    weight = numpyro.sample("net/weight", prior)
    counts(x, y, [{"weight": weight, "bias": np.zeros(2)}])


@pytest.mark.thorough
def test_a_network_with_a_prior_has_a_parameter_without_arrays(tmp_path):
    fitted = fit(with_a_prior)
    assert fitted.losses[-1] < fitted.losses[0]
    fitted.save(tmp_path / "fit.npz")
    guide = gp.AutoGaussian(with_a_prior)
    loaded = gp.Fit.load(tmp_path / "fit.npz", guide, with_a_prior)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, fitted.params)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(fitted.params)
    options = {"num_chains": 1, "num_warmup": 2, "num_samples": 6, "progress": False}
    draws = gp.sample(
        random.key(1), with_a_prior, *DATA, init=loaded, sampler=Walk(), **options
    )
    assert np.isfinite(gp.predict(with_a_prior, draws, COUNTS_X)["y"].mean).all()


class Pair(NamedTuple):
    """A tree that JSON does not know."""

    slope: np.ndarray
    level: np.ndarray


@pytest.mark.slow
def test_other_trees_are_not_given_back_wrong(tmp_path):
    pair = Pair(np.ones(2), np.zeros(2))

    def other(x, y=None):
        slope, level = numpyro.param("pair", pair)
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x * slope + level), obs=y)

    fitted = fit(other)
    with pytest.raises(ValueError, match=r"is a Pair with.*'pair.0'.*keep fit.params"):
        fitted.save(tmp_path / "fit.npz")
    options = {"num_chains": 1, "num_warmup": 2, "num_samples": 6, "progress": False}
    draws = gp.sample(
        random.key(1), other, *DATA, init=fitted, sampler=Walk(), **options
    )
    with pytest.raises(ValueError, match=r"pass params=fit.params"):
        gp.predict(other, draws, COUNTS_X)
    mean = gp.predict(other, draws, COUNTS_X, params=fitted.params)["y"].mean
    assert np.isfinite(mean).all()


def test_layouts_survive_json():
    tree = {"a": ({"w": 1.0, 3: [2.0, None]}, []), "b": np.ones(2), "c": [4.0]}
    tree["d"] = {"w": ParamShape((2, 3)), "s": ParamShape(())}
    arrays, layouts = flattened(tree)
    assert sorted(arrays) == ["a.0.3.0", "a.0.w", "b", "c.0"] and "b" not in layouts
    again = rebuilt(arrays, json.loads(json.dumps(layouts)))
    assert {name: str(again[name]) for name in tree} == {
        n: str(v) for n, v in tree.items()
    }
    with pytest.raises(ValueError, match=r"are named 'c\.0'"):
        flattened({**tree, "c.0": 1.0})


@pytest.mark.slow
def test_a_flow_is_a_guide_of_the_rest():
    guide = gp.AutoSites(
        model, fit(model), rest=lambda m: AutoIAFNormal(m, num_flows=1)
    )
    joint = gp.fit(random.key(0), model, guide, *DATA, num_steps=5, progress=False)
    draws = guide.sample_posterior(
        random.key(1), joint.params, *DATA, sample_shape=(7,)
    )
    assert draws["lengthscale"].shape == (7,)
