"""An even grid for log E p(y|f) where p(y|f) is broad, and how that is known."""

import gc
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st
from jax.scipy.special import logsumexp

from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations import log_predictive_density
from svgp_ppl.expectations.broad import _opened, log_average_on_even_grid
from svgp_ppl.expectations.log_average import is_log_concave
from svgp_ppl.marginals import Marginal

N = 400


def _outliers(scale):
    def likelihood(f):
        choice = dist.Categorical(probs=jnp.array([0.1, 0.9]))
        each = dist.Normal(jnp.stack([f, f], axis=-1), jnp.array([3.0, scale]))
        return dist.MixtureSameFamily(choice, each)

    return likelihood


def _step(f):
    return dist.Normal(jnp.where(f > 0.3, 1.0, 0.0), 1.0)


CASES = {
    "Poisson": (lk.Poisson(), True),
    "negative binomial": (lk.NegativeBinomial(2.0), True),
    "logit": (lk.Bernoulli(), True),
    "Student": (lk.StudentT(4.0, 0.1), False),
    "two kinks": (lambda f: dist.Uniform(f - 1.0, f + 1.0), False),
    "a kink": (lambda f: dist.Laplace(f, 0.3), False),
    "a kink of the mean": (lambda f: dist.Normal(jax.nn.relu(f), 0.3), False),
    "a step": (_step, False),
    "waves": (lambda f: dist.Normal(jnp.sin(3.0 * f), 0.2), False),
    "a peak with a foot": (_outliers(0.05), False),
    "a peak without": (_outliers(0.01), False),
}


def _marginals(rng):
    """Means, variances and data, of any width and some of them far out."""
    mean, sd = 1.5 * rng.normal(size=N), np.exp(rng.uniform(np.log(0.01), 1.0, N))
    f = mean + sd * rng.normal(size=N) * np.exp(rng.uniform(-1.0, 1.0, N))
    return mean, sd**2, f + rng.normal(size=N) * np.exp(rng.uniform(-4.0, 1.0, N))


@pytest.mark.parametrize("name", CASES)
def test_where_the_even_grid_is_enough_it_is_right(name):
    """Against 20,001 nodes."""
    likelihood, is_concave = CASES[name]
    mean, variance, y = _marginals(np.random.default_rng(1))
    if name == "logit":
        y = y > 0.0
    elif is_concave:
        y = np.random.default_rng(2).poisson(np.exp(np.clip(y, -5.0, 5.0)))

    @jax.jit
    def both(y, marginal):
        e = jnp.linspace(-10.0, 10.0, 20_001)[:, None]
        f = marginal.mean + jnp.sqrt(marginal.variance) * e
        terms = likelihood(f).log_prob(y) - 0.5 * jnp.square(e)
        dense = logsumexp(terms, axis=0) + jnp.log(1e-3 / jnp.sqrt(2.0 * jnp.pi))
        return dense, *log_average_on_even_grid(likelihood, y, marginal, is_concave)

    assert is_log_concave(likelihood) == is_concave
    marginal = Marginal(jnp.asarray(mean), jnp.asarray(variance))
    dense, found, is_enough = map(np.asarray, both(jnp.asarray(y), marginal))
    assert 0.1 < np.mean(is_enough) < 0.9
    np.testing.assert_allclose(found[is_enough], dense[is_enough], atol=3e-6)


@partial(jax.jit, static_argnums=0)
def _on_grid(likelihood, y, marginal):
    return log_average_on_even_grid(likelihood, y, marginal, is_concave=False)


def test_a_narrow_peak_beyond_the_grid():
    """At 9 standard deviations it holds a twentieth of the average."""
    scale, y = 0.001, jnp.array([9.0])
    marginal = Marginal(jnp.zeros(1), jnp.ones(1))
    assert not _on_grid(lk.StudentT(4.0, scale), y, marginal)[1][0]


def test_only_the_grid_is_evaluated_where_it_is_enough():
    """Under vmap over draws too. A value does not depend on which are with it."""
    y, calls = jnp.array([0.0, 0.5, 1.0, 1.5]), []

    def counted(f):
        jax.debug.callback(lambda: calls.append(f.shape))
        return dist.StudentT(4.0, f, 0.5)

    @jax.jit
    @jax.vmap
    def find(widths):
        marginal = Marginal(jnp.full(4, 0.5), jnp.square(widths))
        return log_predictive_density(counted, y, marginal)

    def found(widths):
        calls.clear()
        values = np.asarray(find(jnp.array(widths)))
        jax.effects_barrier()
        return values, len(calls)

    broad, few = found([[0.05] * 4, [0.1] * 4])
    among_others, many = found([[0.05] * 4, [0.1] * 3 + [30.0]])
    assert 0 < few < many
    np.testing.assert_array_equal(broad[:, :3], among_others[:, :3])


def test_derivatives_by_what_the_likelihood_holds():
    """Of log N(y; m, v + s²), in s and m, both modes, under vmap over draws of y."""
    rng = np.random.default_rng(3)
    mean, y = rng.normal(size=(2, 5, 6))
    variance, scale = rng.uniform(0.01, 4.0, (5, 6)), rng.uniform(0.2, 2.0, 5)

    def ours(mean, scale, variance, y):
        likelihood = lambda f: dist.Normal(f, scale)  # noqa: E731
        return log_predictive_density(likelihood, y, Marginal(mean, variance))

    def exact(mean, scale, variance, y):
        return dist.Normal(mean, jnp.sqrt(variance + scale**2)).log_prob(y)

    def slopes(function, mode):
        return jax.jit(jax.vmap(mode(function, (0, 1))))(mean, scale, variance, y)

    for mode in (jax.jacrev, jax.jacfwd):
        for found, right in zip(slopes(ours, mode), slopes(exact, mode)):
            np.testing.assert_allclose(found, right, atol=1e-6)


def test_what_is_not_finite_is_left_to_the_rule():
    """A formula that is NaN at a node, and data outside the support."""

    def fails(f):
        return dist.Normal(jnp.where(f > 1.0, jnp.nan, f), 1.0)

    marginal = Marginal(jnp.zeros(3), jnp.array([1e-4, 0.3, 1.0]))
    y = jnp.zeros(3)
    found, is_enough = _on_grid(fails, y, marginal)
    assert is_enough[0] and not is_enough[1:].any()
    np.testing.assert_allclose(found[0], st.norm.logpdf(0.0, 0.0, 1.0001**0.5), 1e-9)
    outside = lambda f: dist.Exponential(jnp.exp(f))  # noqa: E731
    assert not _on_grid(outside, y - 1.0, marginal)[1].any()


holds_it_itself = pytest.mark.skipif(
    jax.__version_info__ >= (0, 11), reason="JAX holds it itself"
)


@holds_it_itself
def test_what_a_likelihood_holds_is_let_go():
    """JAX takes an array of NumPy that a program holds for one of that precision."""
    y = jnp.zeros(3)

    def run():
        scales = np.full(3, 0.5)

        def of_draw(mean):
            likelihood = lambda f: dist.Normal(f, scales)  # noqa: E731
            marginal = Marginal(mean, jnp.full(3, 0.1))
            return log_predictive_density(likelihood, y, marginal)

        jax.lax.map(of_draw, jnp.zeros((2, 3)))
        return weakref.ref(scales)

    held = run()
    gc.collect()
    assert held() is None


@holds_it_itself
def test_what_a_function_held_is_let_go():
    """Of a function that is opened, arguments: the function itself lets them go."""
    scales = np.full(3, 0.5)
    _opened_one, held = _opened(lambda mean: scales * mean, jnp.ones(3))
    scales = weakref.ref(scales)
    del held
    gc.collect()
    assert scales() is None
