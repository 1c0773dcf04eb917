"""Rows beyond the end of an array: JAX takes the last one, and a warning says so."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random

import svgp_ppl as gp
from svgp_ppl.runtime.compilation import look

X = np.linspace(0.0, 1.0, 8)[:, None]
Y = np.sin(5 * X[:, 0])
LEVELS = np.arange(8) % 3


def looked_at(function, *args):
    """``function(args, b)`` of three values that are not known, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        look(lambda args, kwargs, b: function(*args, b) and None, args, {}, np.zeros(3))
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda g, b: [b[g + 1]], "row 3 of an axis of 3, of an array of shape (3,)"),
        (lambda g, b: [b[g - 4]], "row -1 of an axis of 3"),  # −4 + 3
        (
            lambda g, b: [jnp.outer(b, jnp.ones(2))[g, g]],
            "row 2 of an axis of 2, of an array of shape (3, 2)",
        ),
        (lambda g, b: [b[jnp.where(g > 1, 7, g)]], "JAX takes row 2 in its place"),
        (lambda g, b: [jnp.ones((2, 3))[g]], "row 2 of an axis of 2"),
    ],
)
def test_rows_beyond_the_end_are_named(array, function, words):
    (message,) = looked_at(function, array(LEVELS))
    assert words in message


@pytest.mark.parametrize(
    "function",
    [
        lambda g, b: [b[g]],
        lambda g, b: [b[g - 3]],  # from the end, as in NumPy
        lambda g, b: [b[:, None][g, 0], b[None, 1:3]],
        lambda g, b: [b[jnp.zeros(0, int)]],
        lambda g, b: [b[b.astype(int) + 5]],  # not known
        lambda g, b: [b.at[g + 1].get(mode="clip")],
        lambda g, b: [jnp.take(b, g + 1, mode="clip")],
    ],
)
def test_others_and_those_on_purpose_are_not(function):
    assert looked_at(function, LEVELS) == []


def model(x, levels, y=None):
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal())
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.4), X[::4])
    with numpyro.plate("data", 8, subsample_size=len(x)):
        latent = f(x) + level[levels]
        gp.observe("y", gp.likelihoods.Gaussian(0.3), latent, obs=y)


@pytest.mark.thorough
def test_levels_of_a_fit_and_new_ones_in_predictions():
    run = {"num_steps": 2, "progress": False, "batch_size": 4}
    with pytest.warns(UserWarning, match="row 3 of an axis of 3"):
        gp.fit(random.key(0), model, X, LEVELS + (Y[5] == Y), Y, **run)
    fit = gp.fit(random.key(0), model, X, LEVELS, Y, **run)
    fit.predict(X[:4], LEVELS[:4])
    with pytest.warns(UserWarning, match="takes row 3 .* JAX takes row 2"):
        fit.predict(X[:4], LEVELS[:4] + 1)


@pytest.mark.thorough
def test_levels_of_draws():
    def of_all(x, levels, y):
        level = numpyro.sample("level", dist.Normal().expand([3]).to_event(1))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.4), X[::4])
        gp.observe("y", gp.likelihoods.Gaussian(0.3), f(x) + level[levels], obs=y)

    run = {"num_warmup": 10, "num_samples": 10, "num_chains": 1, "progress": False}
    with pytest.warns(UserWarning, match="row 3 of an axis of 3"):
        gp.sample(random.key(0), of_all, X, LEVELS + 1, Y, **run)
