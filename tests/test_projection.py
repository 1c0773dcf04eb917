"""The hand-written backward pass against plain autodiff of the same formula."""

import jax
import jax.numpy as jnp
import numpy as np

from svgp_ppl.linalg import solve_lower
from svgp_ppl.linalg.projection import whitened_moments


def _plain(scale_tril, k, loc, q_tril):
    a = solve_lower(scale_tril, k)
    r = jnp.einsum("pml,mn->pln", q_tril, a)
    excess = jnp.sum(r * r, axis=1) - jnp.sum(a * a, axis=0)
    return loc @ a, excess


def _problem():
    rng = np.random.default_rng(3)
    lower = np.tril(rng.normal(size=(5, 5))) + 3 * np.eye(5)
    qv = np.tril(rng.normal(size=(2, 5, 5)))
    arguments = (lower, rng.normal(size=(5, 8)), rng.normal(size=(2, 5)), qv)
    weights = (rng.normal(size=(2, 8)), rng.normal(size=(2, 8)))
    return tuple(map(jnp.asarray, arguments)), weights


def test_the_moments_are_those_of_the_plain_formula():
    arguments, _ = _problem()
    ours, plain = whitened_moments(*arguments), _plain(*arguments)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12), ours, plain)


def test_the_backward_pass_equals_autodiff():
    arguments, weights = _problem()

    def gradients(function):
        def total(*arguments):
            mean, excess = function(*arguments)
            return jnp.sum(weights[0] * mean + weights[1] * jnp.sin(excess))

        return jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))(*arguments)

    ours, plain = gradients(whitened_moments), gradients(_plain)
    # Only the lower triangles of the factors are free.
    for a, b in zip(ours, plain, strict=True):
        is_factor = a.shape[-1] == a.shape[-2] == 5
        b = jnp.tril(b) if is_factor else b
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
