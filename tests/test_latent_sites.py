"""Guides of NumPyro for the other latent sites, set up without the processes."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import block, seed, trace
from numpyro.infer.autoguide import AutoDAIS, AutoMultivariateNormal, AutoNormal

import svgp_ppl as gp
from svgp_ppl.guides.latent_sites import set_up_by_sites
from svgp_ppl.guides.processes import _is_hidden
from svgp_ppl.handlers import set_up

X, Y, Z = np.linspace(0.0, 1.0, 6)[:, None], np.zeros(6), np.array([[0.2], [0.7]])
GROUPS = np.arange(6) % 3


def observed(mean, noise, y):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), Z)
    with numpyro.plate("data", len(X)):
        gp.observe("y", gp.likelihoods.Gaussian(noise), f(X) + mean, obs=y)


def hierarchical(y):
    scale = numpyro.sample("scale", dist.HalfNormal(jnp.max(y) + 2.0))
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(0.0, scale))
    with numpyro.plate("some", 6, subsample_size=2):
        numpyro.sample("shape", dist.Dirichlet(jnp.ones(3)))
    noise = numpyro.sample("noise", dist.Uniform(0.1, 1.0))
    observed(level[GROUPS], noise, y)


def moving_support(y):
    low = numpyro.sample("low", dist.Normal(0.0, 1.0))
    high = numpyro.sample("high", dist.Uniform(low, low + 2.0))
    observed(low, jnp.exp(high), y)


def plain(y):
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.1))
    observed(numpyro.sample("level", dist.Normal(0.0, scale)), 1.0, y)


def of_a_user(y):
    observed(numpyro.sample("level", Shifted(y[0])), 1.0, y)


class Shifted(dist.Normal):
    """A distribution of a user, whose parts JAX is not told of."""

    def __init__(self, shift):
        self.shift = shift
        super().__init__(0.0, 1.0)

    def log_prob(self, value, intermediates=None):
        return super().log_prob(value - self.shift)


@pytest.mark.parametrize(
    "model, of",
    [
        (hierarchical, AutoNormal),
        (moving_support, AutoMultivariateNormal),
        (of_a_user, AutoNormal),
        (plain, partial(AutoDAIS, K=2)),
    ],
)
def test_starts_and_draws_are_those_of_numpyro(model, of):
    found = []
    for how in (set_up_by_sites, set_up):
        guide = of(block(model, hide_fn=_is_hidden))
        how(guide, random.key(3), (Y,), {})
        run = trace(seed(guide, random.key(4))).get_trace(Y)
        params = {n: s["value"] for n, s in run.items() if s["type"] == "param"}
        draws = guide.sample_posterior(random.key(5), params, sample_shape=(2,))
        values = {f"{name} once": site["value"] for name, site in run.items()}
        found.append({**params, **values, **draws})
    ours, theirs = found
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_an_impossible_prior_is_refused_as_by_numpyro():
    def model(y):
        observed(numpyro.sample("level", dist.Delta(0.0)), 1.0, y)

    guide = gp.AutoGaussian(model, rest=AutoNormal)
    with pytest.raises(ValueError, match="Sample site 'level' has a delta"):
        gp.fit(random.key(0), model, guide, Y, progress=False)
