"""Expectations in chunks of rows: the same numbers, in the memory of one chunk."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density

import svgp_ppl as gp
from svgp_ppl.expectations import log_predictive_density, variational_expectation
from svgp_ppl.marginals import Marginal
from svgp_ppl.observations.chunks import in_chunks
from svgp_ppl.observations.missing import KnownEntries

likelihoods = gp.likelihoods
N = 11
RNG = np.random.default_rng(0)
PER_ROW = RNG.uniform(0.5, 2.0, N)
KNOWN = RNG.random((N, 3)) < 0.6


@gp.register_dataclass
@dataclass(frozen=True)
class Scaled:
    """Of one's own: a scale for each row, and a table as long as the data."""

    scale: Any
    table: Any = None
    transform: Any = field(default=jnp.tanh, metadata={"static": True})

    def __call__(self, f):
        scale = self.scale * (1.0 if self.table is None else jnp.sum(self.table))
        return dist.StudentT(4.0, self.transform(f), scale)


@gp.register_dataclass
@dataclass(frozen=True)
class Weighted:
    """Values for each row that the shape of the distribution does not show."""

    weight: Any

    def __call__(self, f):
        return WeightedNormal(f, self.weight)


class WeightedNormal(dist.Normal):
    """log p times a weight."""

    def __init__(self, f, weight):
        self.weight = weight
        super().__init__(f, 0.5)

    def log_prob(self, value):
        return self.weight * super().log_prob(value)


@gp.register_dataclass
@dataclass(frozen=True)
class Outputs:
    """Independent outputs."""

    scale: Any

    def __call__(self, f):
        return dist.Normal(f, self.scale).to_event(1)


# Likelihood, its labels (None for real numbers), and the width of the latent.
CASES = {
    "nodes": (likelihoods.Bernoulli("probit"), 2, None),
    "closed form": (likelihoods.Poisson(), 5, None),
    "a value for each row": (likelihoods.StudentT(3.0, PER_ROW), None, None),
    "exposures": (likelihoods.NegativeBinomial(2.0, exposure=PER_ROW), 5, None),
    # Of three classes the number of nodes depends on the widest of the rows.
    "classes": (likelihoods.Softmax(4), 4, 4),
    "a table as long as the data": (Scaled(0.2, PER_ROW), None, None),
    "weights": (Weighted(PER_ROW), None, None),
    "known entries": (KnownEntries(Outputs(0.4), KNOWN), None, 3),
    "a function": (lambda f: dist.Laplace(f, PER_ROW), None, None),
}


def marginal_of(width, num_components):
    """Any moments of N rows."""
    rng = np.random.default_rng(1)
    leading = () if num_components is None else (num_components,)
    weights = None if num_components is None else jnp.log(jnp.asarray([0.3, 0.7]))
    if width is None:
        mean, variance = rng.normal(size=(2, *leading, N))
        return Marginal(jnp.asarray(mean), jnp.asarray(variance**2), None, weights)
    mean = rng.normal(size=(*leading, N, width))
    factor = rng.normal(size=(*mean.shape, width)) / width
    covariance = jnp.asarray(factor @ np.swapaxes(factor, -1, -2))
    variance = jnp.einsum("...qq->...q", covariance)
    return Marginal(jnp.asarray(mean), variance, covariance, weights)


@pytest.mark.parametrize(
    "num_components", [None, pytest.param(2, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("name", CASES)
def test_chunks_change_no_number(name, num_components):
    likelihood, labels, width = CASES[name]
    rng = np.random.default_rng(2)
    shape = (N, 3) if name == "known entries" else (N,)
    y = rng.normal(size=shape) if labels is None else rng.integers(labels, size=shape)
    marginal, y, rows = marginal_of(width, num_components), jnp.asarray(y), []

    def total(marginal, size):
        def expectation(likelihood, y, marginal):
            rows.append(len(y))
            return variational_expectation(likelihood, y, marginal)

        each = in_chunks(expectation, likelihood, y, marginal, size)
        return jnp.sum(each * jnp.arange(1.0, N + 1))

    run = jax.jit(jax.value_and_grad(total), static_argnums=1)
    whole, in_fours = run(marginal, None), run(marginal, 4)
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)  # noqa: E731
    jax.tree.map(same, in_fours, whole)
    # What a function refers to cannot be cut; all others come four rows at a time.
    assert set(rows) == ({N} if name == "a function" else {N, 4})


@pytest.mark.thorough
def test_predictive_densities_of_single_rows():
    likelihood, y = likelihoods.StudentT(3.0, PER_ROW), jnp.linspace(-1.0, 1.0, N)
    of_rows = (log_predictive_density, likelihood, y, marginal_of(None, None))
    one, whole = (
        jax.jit(in_chunks, static_argnums=(0, 4))(*of_rows, n) for n in (1, N)
    )
    np.testing.assert_allclose(one, whole, rtol=1e-9)


def test_the_density_takes_the_memory_of_one_chunk():
    def bytes_of(num_rows):
        x, z = (np.linspace(-1.0, 1.0, n)[:, None] for n in (num_rows, 5))

        def model(x, y):
            f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), z)
            with numpyro.plate("data", len(x)):
                likelihood = gp.likelihoods.Bernoulli("probit")
                gp.observe("y", likelihood, f(x), obs=y, chunk_size=100)

        def density(v, x, y):
            return log_density(model, (x, y), {}, {"f": v})[0]

        run = jax.jit(jax.grad(density)).lower(np.ones(5), x, np.arange(num_rows) % 2)
        return run.compile().memory_analysis().temp_size_in_bytes

    # Moments of float64 and what folds them; 40 nodes alone would be 320 bytes a row.
    assert (bytes_of(20_000) - bytes_of(10_000)) / 10_000 < 100
