"""What latents of one model share: the same numbers, computed once for each program.

The second route to the numbers is one latent of all outputs, seen by itself, and with
it the dense algebra of ``test_identities``.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import random

from svgp_ppl import Latent, stack
from svgp_ppl.kernels import RBF, Kernel
from svgp_ppl.pytrees import register_dataclass
from svgp_ppl.runtime import Once
from tests import test_identities as dense

NUM_OUTPUTS = 4
MIXING = np.random.default_rng(3).normal(size=(NUM_OUTPUTS, 5))


def mixed(kind) -> Latent:
    """Outputs mixed from five elements of three processes."""
    processes = dense._processes(dense.VARIATIONAL[kind]()[0])
    latents = [processes["h"], processes["f"], processes["g"]]
    together = stack([process(jnp.asarray(dense.X)) for process in latents])
    return together.__rmatmul__(MIXING)


def dense_moments(kind) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the covariance of these outputs."""
    elements = [*dense.H, dense.F, dense.G]
    _, components = dense.VARIATIONAL[kind]()
    mean, second = np.zeros(()), np.zeros(())
    for weight, loc, covariance in components:
        rows, no_offset = dense._rows(*MIXING), np.zeros((NUM_OUTPUTS, dense.N))
        m, c = dense._dense_latent(loc, covariance, elements, rows, no_offset)
        c = np.einsum("nqnr->nqr", c)
        mean = mean + weight * m
        second = second + weight * (c + m[:, :, None] * m[:, None, :])
    return mean, second - mean[:, :, None] * mean[:, None, :]


@pytest.mark.parametrize("precision", [64], indirect=True)
@pytest.mark.parametrize(
    "chunk_size", [None, pytest.param(4, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("kind", ["full", "coupled", "Delta", "coupled mixture"])
def test_outputs_one_by_one_are_those_of_the_dense_gaussian(
    kind, chunk_size, precision
):
    mean, covariance = dense_moments(kind)

    @jax.jit
    def one_by_one():
        outputs = mixed(kind)
        each = [outputs[..., p].marginal(chunk_size) for p in range(NUM_OUTPUTS)]
        both = outputs.marginal(chunk_size)
        moments = [(q.average(q.mean), q.total_variance) for q in (*each, both)]
        return moments, both.total_covariance

    (*each, both), found = one_by_one()
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    for p, (m, v) in enumerate(each):
        np.testing.assert_allclose(m, mean[:, p], atol=1e-10)
        np.testing.assert_allclose(v, variance[:, p], atol=1e-10)
    np.testing.assert_allclose(both[0], mean, atol=1e-10)
    np.testing.assert_allclose(both[1], variance, atol=1e-10)
    np.testing.assert_allclose(found, covariance, atol=1e-10)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Counted(RBF):
    """RBF that counts its matrices, and the columns of the widest."""

    calls, width = 0, 0

    def __call__(self, *args):
        type(self).calls += 1
        matrix = Kernel.__call__(self, *args)
        type(self).width = max(self.width, matrix.shape[1])
        return matrix


@pytest.mark.parametrize("kind", ["full", "coupled", "Delta"])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_a_process_is_projected_once_for_all_outputs(kind, chunk_size):
    qvs, _ = dense.VARIATIONAL[kind]()

    def matrices(num_outputs):
        """Of k(z, x), in the value and in its derivative."""

        def total(x):
            process = dense._processes(qvs)["h"]
            called = dataclasses.replace(process, kernel=Counted(1.0, 0.5))
            # Called for each output anew, as in a sum written in a loop.
            each = [MIXING[:1, :3] @ called(x) for _ in range(num_outputs)]
            marginals = [latent[..., 0].marginal(chunk_size) for latent in each]
            return sum(jnp.sum(q.mean + q.variance) for q in marginals)

        Counted.calls = Counted.width = 0
        jax.make_jaxpr(jax.grad(total))(jnp.asarray(dense.X))
        return Counted.calls

    assert matrices(4) == matrices(1) > 0
    # The inputs come in chunks: in two of three rows where four are allowed.
    assert Counted.width == (dense.N if chunk_size is None else 3)


@pytest.mark.thorough
def test_what_was_found_in_a_loop_is_not_used_outside():
    outputs, (mean, _) = mixed("full"), dense_moments("full")

    def read(_=None):
        return outputs[..., 0].mean

    @jax.jit
    def moments():
        _, inside = jax.lax.scan(lambda carry, _: (carry, read()), 0.0, None, length=2)
        again = jax.checkpoint(read)(0.0)
        batched = jax.vmap(lambda w: w * read())(jnp.ones(3))
        return [inside[1], again, batched[2], read(), read()]

    for value in [read(), *moments(), read()]:
        np.testing.assert_allclose(value, mean[:, 0], atol=1e-4)


def test_inputs_that_change_in_place_are_read_anew():
    process = dense._processes(dense.VARIATIONAL["full"]()[0])["f"]
    x = np.array(dense.X)
    before = process(x).mean
    x += 1.0
    np.testing.assert_allclose(process(x).mean, process(jnp.asarray(x)).mean)
    assert not np.allclose(process(x).mean, before)


def test_another_q_has_moments_of_its_own():
    process = dense._processes(dense.VARIATIONAL["full"]()[0])["f"]
    x = jnp.asarray(dense.X)
    at_zero = dataclasses.replace(process, qv=dist.Delta(jnp.zeros(5), event_dim=1))
    assert np.any(process(x).mean != 0.0)
    np.testing.assert_array_equal(at_zero(x).mean, 0.0)


def test_results_are_forgotten_with_their_trace():
    once, calls = Once(), []

    def read(_=None):
        return once("key", lambda: calls.append(None) or jnp.zeros(()))

    def twice():
        return read(), read()

    for expected in (1, 2):  # one for each program
        jax.make_jaxpr(lambda: twice())()  # a new function: not found in the cache
        assert len(calls) == expected
    twice()  # and each time where there is none
    assert len(calls) == 4


def test_gradients_of_shared_moments_are_those_of_separate_ones():
    qvs, _ = dense.VARIATIONAL["full"]()
    process = dense._processes(qvs)["h"]
    x, weights = jnp.asarray(dense.X), random.normal(random.key(0), (2, 3))

    def total(x, weights, share):
        value, called = 0.0, process
        for p in range(2):
            called = called if share else dataclasses.replace(process)
            q = (weights[p : p + 1] @ called(x))[..., 0].marginal()
            value += jnp.sum(jnp.sin(q.mean) * q.variance)
        return value

    slope = jax.jit(jax.grad(total, (0, 1)), static_argnums=2)
    for shared, apart in zip(slope(x, weights, True), slope(x, weights, False)):
        np.testing.assert_allclose(shared, apart, rtol=1e-4, atol=1e-5)
