"""Fits as users make them, bad and good: every fault is named, no false alarm."""

import re

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoNormal

import svgp_ppl as gp
from tests.conftest import both_precisions

pytestmark = pytest.mark.slow


def grid(low, high, m):
    return np.linspace(low, high, m)[:, None]


def decaying(num_steps, step_size=3e-2):
    return optax.adam(optax.cosine_decay_schedule(step_size, num_steps))


NATURAL = gp.natural_gradient(1.0, optax.adam(3e-2))
CAREFUL = gp.natural_gradient(0.3, optax.adam(2e-2))
SEARCH = gp.natural_gradient(1.0, optax.lbfgs())


def fitted(model, *args, guide=None, num_steps=1500, optimizer=None, **options):
    """A fit and its data, by Adam with steps that shrink."""
    guide = gp.AutoGaussian(model) if guide is None else guide
    optimizer = decaying(num_steps) if optimizer is None else optimizer
    options |= {"optimizer": optimizer, "num_steps": num_steps, "progress": False}
    return gp.fit(random.key(0), model, guide, *args, **options), args


# ------------------------------------------------------------------------ one process


X = np.sort(np.random.default_rng(0).uniform(0.0, 10.0, 200))[:, None]
NOISE = 0.2 * np.random.default_rng(1).normal(size=200)
SMOOTH, PERIODS = np.sin(X[:, 0]) + NOISE, np.sin(2 * np.pi * X[:, 0]) + NOISE
UNIT = dist.LogNormal(0.0, 1.0)


def regression(z, *, variance=UNIT, lengthscale=UNIT, noise=None, of=None):
    """Gaussian noise; numbers are fixed, distributions are priors."""

    def value(name, prior):
        is_known = not isinstance(prior, dist.Distribution)
        return prior if is_known else numpyro.sample(name, prior)

    def model(x, y=None):
        kernel = gp.kernels.RBF(
            value("variance", variance), value("lengthscale", lengthscale)
        )
        f = gp.sparse_gp("f", kernel, z)
        scale = value("noise", dist.LogNormal(-1.0, 1.0) if noise is None else noise)
        size = len(x) if of is None else of
        with numpyro.plate("data", size, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(scale), f(x), obs=y)

    return model


def smooth(z=None, **options):
    settings = {n: options.pop(n) for n in ("num_steps", "optimizer") if n in options}
    z = grid(0.0, 10.0, 20) if z is None else z
    return fitted(regression(z, **options), X, SMOOTH, **settings)


def periods(m, **options):
    options = {"num_steps": 600, "optimizer": NATURAL} | options
    return fitted(regression(grid(0.0, 10.0, m)), X, PERIODS, **options)


def nothing_there():
    model = regression(
        grid(0.0, 10.0, 20),
        variance=dist.Gamma(1.0, 1.0),
        lengthscale=dist.Gamma(1.0, 1.0),
        noise=1.0,
    )
    y = 0.5 * np.random.default_rng(2).normal(size=200)
    return fitted(model, X, y, optimizer=decaying(1500, 0.1))


def drawn_hyperparameters():
    model = regression(grid(0.0, 10.0, 20))
    guide = gp.AutoGaussian(model, rest=AutoNormal)
    return fitted(model, X, SMOOTH, guide=guide, num_steps=3000)


def by_hand():
    model = regression(grid(0.0, 10.0, 20))

    def guide(x, y=None):
        loc = numpyro.param("loc", jnp.zeros(20))
        tril = numpyro.param(
            "tril", jnp.eye(20), constraint=constraints.softplus_lower_cholesky
        )
        numpyro.sample("f", dist.MultivariateNormal(loc, scale_tril=tril))
        for name in ("variance", "lengthscale", "noise"):
            value = numpyro.param(f"{name}_map", 0.7, constraint=constraints.positive)
            numpyro.sample(name, dist.Delta(value))

    return fitted(model, X, SMOOTH, guide=guide)


def batches(num_steps, optimizer):
    rng = np.random.default_rng(3)
    x = np.sort(rng.uniform(0.0, 10.0, 5000))[:, None]
    y = np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=5000)
    model = regression(grid(0.0, 10.0, 25), of=5000)
    options = {"num_steps": num_steps, "optimizer": optimizer, "batch_size": 200}
    return fitted(model, x, y, **options)


# -------------------------------------------------------------------- other likelihoods


def coal(**options):
    x, y, width = gp.datasets.coal()
    z = gp.inducing.grid(x, 15)

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(1.0, 0.3))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.1, 0.1))
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(width), f(x), obs=y)

    return fitted(model, x, y, **options)


def labels(num_rows, m):
    rng = np.random.default_rng(4)
    x = rng.uniform(-2.0, 2.0, (num_rows, 2))
    p = 1 / (1 + np.exp(-4 * np.sin(2 * x[:, 0]) * x[:, 1]))
    y = (rng.uniform(size=num_rows) < p).astype(int)
    z = gp.inducing.kmeans(x, m)

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(2.0, 0.5))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(2.0, 2.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Bernoulli(), f(x), obs=y)

    return fitted(model, x, y, num_steps=400, optimizer=CAREFUL)


def outliers():
    y = SMOOTH.copy()
    y[::20] += 3.0

    def model(x, y=None):
        kernel = gp.kernels.RBF(numpyro.sample("variance", UNIT), 1.5)
        f = gp.sparse_gp("f", kernel, grid(0.0, 10.0, 20))
        scale = numpyro.sample("scale", dist.LogNormal(-1.0, 1.0))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.StudentT(3.0, scale), f(x), obs=y)

    return fitted(model, X, y)


def changing_noise(**options):
    y = np.sin(2 * X[:, 0]) + np.exp(np.sin(X[:, 0])) * NOISE
    z = grid(0.0, 10.0, 20)

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.8), z)
        g = gp.sparse_gp("g", gp.kernels.RBF(1.0, 2.0), z)
        both = gp.stack([f(x), g(x) - 1.0])
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.HeteroscedasticGaussian(), both, obs=y)

    return fitted(model, X, y, **options)


# ------------------------------------------------------------------- several processes


def additive(guide, num_rows=200, **options):
    rng = np.random.default_rng(5)
    x = rng.uniform(-3.0, 3.0, size=(num_rows, 2))
    y = np.sin(x[:, 0]) ** 3 + np.cos(3 * x[:, 1]) + 0.5 * rng.normal(size=num_rows)
    z = grid(-3.0, 3.0, 15)

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(0.5, 1.0), z)
        g = gp.sparse_gp("g", gp.kernels.RBF(0.5, 0.6), z)
        with numpyro.plate("data", len(x)):
            total = f(x[:, :1]) + g(x[:, 1:])
            gp.observe("y", gp.likelihoods.Gaussian(0.5), total, obs=y)

    return fitted(model, x, y, guide=guide(model), **options)


def mixed_outputs():
    y = np.stack([SMOOTH, 0.5 * SMOOTH + np.cos(X[:, 0]) + NOISE[::-1]], axis=1)
    mixing = jnp.array([[1.0, 0.0], [0.5, 1.0]])

    def model(x, y=None):
        kernel = gp.kernels.RBF(1.0, 1.5)
        f = gp.sparse_gp("f", kernel, grid(0.0, 10.0, 20), num_outputs=2)
        latent = mixing @ f(x)
        for i in range(2):
            with numpyro.plate(f"data_{i}", len(x)):
                obs = None if y is None else y[:, i]
                gp.observe(f"y_{i}", gp.likelihoods.Gaussian(0.2), latent[..., i], obs)

    guide = gp.AutoCoupled(model)
    natural = {"num_steps": 40, "optimizer": gp.natural_gradient(1.0)}
    return fitted(model, X, y, guide=guide, **natural)


def product(guide):
    x = grid(-2.0, 2.0, 24)
    y = (1.0 + 0.3 * np.sin(x[:, 0])) * (0.9 + 0.2 * np.cos(x[:, 0]))

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), grid(-2.0, 2.0, 8))
        g = gp.sparse_gp("g", gp.kernels.RBF(1.0, 1.0), grid(-2.0, 2.0, 8))
        both = gp.stack([f(x), g(x)])
        with numpyro.plate("data", len(x)):
            gp.observe("y", lambda f: dist.Normal(f[..., 0] * f[..., 1], 0.1), both, y)

    return fitted(model, x, y, guide=guide(model))


def relevance():
    rng = np.random.default_rng(6)
    x = rng.uniform(-2.0, 2.0, (400, 4))
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.2 * rng.normal(size=400)
    model = regression(
        gp.inducing.kmeans(x, 60),
        lengthscale=dist.LogNormal(0.0, 2.0).expand([4]).to_event(1),
    )
    return fitted(model, x, y, num_steps=120, optimizer=SEARCH)


def two_layers():
    x = np.sort(np.random.default_rng(7).uniform(-2.0, 2.0, 150))[:, None]
    y = np.sign(x[:, 0]) + 0.5 * NOISE[:150]
    layers = gp.deep.layers(x, 2, 20)

    def model(x, y=None):
        top = gp.deep.compose("f", layers, [gp.kernels.RBF(1.0, 1.0)] * 2, x)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), top, obs=y)

    return fitted(model, x, y, guide=gp.AutoDeep(model), num_steps=3000)


# --------------------------------------------------------------------------- the tables

ADAM = {"optimizer": optax.adam(1e-2)}
BAD = {
    "3 steps of Adam": (lambda: smooth(num_steps=3, **ADAM), "3 steps are too few"),
    "3 steps, coal": (lambda: coal(num_steps=3, **ADAM), "3 steps are too few"),
    "100 steps of Adam": (lambda: smooth(num_steps=100, **ADAM), "bound still rises"),
    "batches that move": (
        lambda: batches(300, optax.adam(3e-3)),
        "bound still rises: by .* in the last 30 of 300 steps",
    ),
    "steps that are too long": (
        lambda: smooth(num_steps=300, optimizer=optax.adam(1.0)),
        "nats below (where it has been|the best one of its family)",
    ),
    "steps that shrank too soon": (
        lambda: changing_noise(num_steps=300),
        r"q\(v\) is .* below the best one of its family",
    ),
    "M = 5 for ten periods": (
        lambda: periods(5),
        "What the fit leaves over .* is not noise.*than M = 5",
    ),
    "M = 5 for ten periods, Adam": (
        lambda: periods(5, optimizer=decaying(1500), num_steps=1500),
        "leaves over .* is not noise.*than M = 5",
    ),
    "M = 5, lengthscale fixed": (
        lambda: fitted(
            regression(grid(0.0, 10.0, 5), variance=1.0, lengthscale=0.25), X, PERIODS
        ),
        "'f' explain .*M = 5 are too few for lengthscale = 0.25",
    ),
    "z far from the data": (
        lambda: smooth(grid(100.0, 110.0, 20)),
        "'f' explain 0%.* at 100% of the rows, which lie away from z",
    ),
    "z over one half": (
        lambda: smooth(grid(0.0, 5.0, 15)),
        "'f' explain 7.%.* of the rows, which lie away from z",
    ),
    "mean field, additive": (
        lambda: additive(gp.AutoGaussian),
        r"processes or outputs for independent .*sd of 'f' .* [2-9]\.\d+ times",
    ),
    "mean field, 4000 rows": (
        lambda: additive(
            gp.AutoGaussian, 4000, num_steps=60, optimizer=gp.natural_gradient(1.0)
        ),
        "processes or outputs for independent",
    ),
    "diagonal, additive": (
        lambda: additive(lambda model: gp.AutoGaussian(model, "diagonal")),
        "whitened values for independent",
    ),
    "two modes, one Gaussian": (
        lambda: product(gp.AutoCoupled),
        r"The posterior is not as q\(v\) has it",
    ),
    "θ drawn independently of v": (
        drawn_hyperparameters,
        "not as the guide, over v and the other sites, has it",
    ),
    "variance that collapsed": (nothing_there, "'variance' is at the lower edge"),
    "lengthscale at its bound": (
        lambda: smooth(variance=1.0, lengthscale=dist.Uniform(0.1, 0.5)),
        "'lengthscale' is at the upper edge",
    ),
    "tiny lengthscale": (
        lambda: smooth(variance=1.0, lengthscale=0.003),
        "'f' is next to white noise",
    ),
    "huge lengthscale": (
        lambda: smooth(grid(0.0, 10.0, 8), variance=1.0, lengthscale=500.0),
        "'f' is next to constant",
    ),
}
GOOD = {
    "Adam": smooth,
    "natural gradients": lambda: smooth(num_steps=400, optimizer=NATURAL),
    "one natural step": lambda: smooth(
        variance=1.0,
        lengthscale=1.5,
        noise=0.2,
        num_steps=2,
        optimizer=gp.natural_gradient(1.0),
    ),
    "M = 60 for ten periods": lambda: periods(60),
    "a guide by hand": by_hand,
    "batches": lambda: batches(3000, decaying(3000)),
    "coal, Adam": lambda: coal(num_steps=3000, **ADAM),
    "coal, L-BFGS": lambda: coal(num_steps=200, optimizer=optax.lbfgs()),
    "labels": lambda: labels(300, 25),
    "labels, M = 100": lambda: labels(1000, 100),
    "outliers": outliers,
    "noise that changes": lambda: changing_noise(num_steps=100, optimizer=CAREFUL),
    "coupled, additive": lambda: additive(gp.AutoCoupled),
    "coupled, 4000 rows": lambda: additive(
        gp.AutoCoupled, 4000, num_steps=60, optimizer=gp.natural_gradient(1.0)
    ),
    "outputs that are mixed": mixed_outputs,
    "columns that do not matter": relevance,
    "two layers": two_layers,
}


@pytest.mark.parametrize("name", BAD)
def test_a_fault_is_named(name):
    make, words = BAD[name]
    fit, args = make()
    text = str(gp.diagnostics.report(fit, *args))
    assert re.search(words, text, re.DOTALL), text
    assert "Nothing wrong" not in text


@both_precisions
@pytest.mark.parametrize("name", GOOD)
def test_there_is_no_false_alarm(name, precision):
    fit, args = GOOD[name]()
    found = gp.diagnostics.report(fit, *args)
    assert found.is_healthy, str(found)
