"""Averages over draws as they come; predictions a batch of inputs at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax import random
from scipy.special import logsumexp
from threadpoolctl import threadpool_info, threadpool_limits

import svgp_ppl as gp
from svgp_ppl.prediction import averages
from svgp_ppl.prediction import batches as batches_module
from svgp_ppl.prediction.posterior_model import averaged
from tests.conftest import mostly_double
from tests.models import COUNTS_X, COUNTS_Z, counts_model

NUM_DRAWS = 7
RNG = np.random.default_rng(4)
MEANS = RNG.normal(size=(NUM_DRAWS, 5)) + 100.0  # far from zero: sums of squares cancel
VARIANCES = RNG.gamma(2.0, 1.0, size=(NUM_DRAWS, 5))
HALVES = RNG.normal(size=(NUM_DRAWS, 5, 5))
LOGS = 30.0 * RNG.normal(size=(NUM_DRAWS, 5)) - 2000.0  # beyond exp of a float


def over(function, average, size):
    """The average of ``function(draw number)``, the last batch perhaps not full."""
    return jax.jit(
        lambda: averaged(
            lambda draw: function(draw[0]), (jnp.arange(NUM_DRAWS),), average, size
        )
    )()


SIZES = pytest.mark.parametrize("size", [1, 2, 3, 7, 100])


@SIZES
@mostly_double
def test_moments_are_those_of_all_draws_at_once(size, precision):
    means, variances = (jnp.asarray(a, float) for a in (MEANS, VARIANCES))

    def one(draw):
        pair = means[draw], variances[draw]
        return {"latent": pair, "data": (-pair[0], 2 * pair[1]), "probs": pair[1]}

    found = over(one, averages.total_moments, size)
    rtol = 1e-12 if precision == 64 else 1e-5
    close = {"rtol": rtol}
    np.testing.assert_allclose(found["latent_mean"], MEANS.mean(0), **close)
    total = VARIANCES.mean(0) + MEANS.var(0)
    np.testing.assert_allclose(found["latent_variance"], total, rtol=30 * rtol)
    np.testing.assert_allclose(found["mean"], -MEANS.mean(0), **close)
    total = 2 * VARIANCES.mean(0) + MEANS.var(0)
    np.testing.assert_allclose(found["variance"], total, rtol=30 * rtol)
    np.testing.assert_allclose(found["probs"], VARIANCES.mean(0), **close)


@SIZES
def test_an_infinite_variance_stays_infinite(size):
    """Student's t with df <= 2 has one; what fills up a batch has the weight zero."""
    pair = jnp.asarray(MEANS), jnp.asarray(VARIANCES).at[:, 1].set(jnp.inf)
    value = lambda d: (pair[0][d], pair[1][d])  # noqa: E731
    found = over(
        lambda d: {"latent": value(d), "data": value(d), "probs": value(d)[1]},
        averages.total_moments,
        size,
    )
    for name in ("latent_variance", "variance", "probs"):
        np.testing.assert_array_equal(np.isinf(found[name]), np.arange(5) == 1)
        assert not np.isnan(found[name]).any()


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_thousands_of_values_near_each_other_keep_their_digits(precision):
    """Of probabilities near 1, and so of quantiles, a plain sum lost five."""
    rare = 1e-4 * np.linspace(0.5, 1.5, 4000)[:, None] * np.ones(3)
    values = (1.0 - rare).astype(np.float32)
    average = jax.jit(
        lambda values: averaged(lambda v: v[0], (values,), averages.mean, 999)
    )
    mean = np.mean(values, axis=0, dtype=float)
    np.testing.assert_allclose(average(values), mean, atol=1e-7)


@SIZES
def test_a_covariance_has_the_spread_of_the_means(size):
    covariances = HALVES @ HALVES.swapaxes(1, 2)
    values = jnp.asarray(MEANS), jnp.asarray(covariances)
    found = over(
        lambda d: (values[0][d], values[1][d]), averages.total_covariance, size
    )
    exact = covariances.mean(0) + np.cov(MEANS.T, bias=True)
    np.testing.assert_allclose(found, exact, rtol=1e-11)


@SIZES
def test_logarithms_of_averages(size):
    values = jnp.asarray(LOGS).at[2, 0].set(-jnp.inf).at[:, 1].set(-jnp.inf)
    found = over(lambda d: values[d], averages.log_mean_exp, size)
    exact = logsumexp(values, axis=0) - np.log(NUM_DRAWS)
    np.testing.assert_allclose(found, exact, rtol=1e-13)
    plain = over(lambda d: jnp.asarray(MEANS)[d], averages.mean, size)
    np.testing.assert_allclose(plain, MEANS.mean(0), rtol=1e-13)


def test_memory_does_not_grow_with_the_number_of_draws():
    def temporary_bytes(num_draws):
        def run(draws):
            values = lambda draw: (jnp.sin(draw * jnp.arange(10_000.0)),) * 2  # noqa: E731
            average = averages.total_moments
            value = lambda d: {"latent": values(d), "data": values(d), "probs": None}  # noqa: E731
            return averaged(lambda d: value(d[0]), (draws,), average, 1)

        compiled = jax.jit(run).lower(jnp.ones(num_draws)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(200) < temporary_bytes(20) + 20_000


def test_moments_of_draws_have_derivatives():
    """A prediction may be part of what is differentiated, say by its inputs."""
    rng = np.random.default_rng(0)
    draws = {
        "variance": rng.gamma(3.0, 1.0, size=6),
        "lengthscale": rng.gamma(3.0, 1.0, size=6),
        "f": rng.normal(size=(6, 5)),
    }

    def mean(shift):
        x = jnp.asarray(COUNTS_X) + shift
        at = gp.predict(counts_model, draws, x, params={"z": COUNTS_Z}, chunk_size=2)
        return jnp.sum(at["y"].latent_mean)

    slope = (mean(1e-4) - mean(-1e-4)) / 2e-4
    np.testing.assert_allclose(jax.jit(jax.grad(mean))(0.0), slope, rtol=1e-5)


def test_lapack_has_one_thread_until_a_prediction_is_done():
    """Seen from the compiled program, which runs after the call in another thread."""
    seen = []

    def threads(x):
        blas = [info for info in threadpool_info() if info["user_api"] == "blas"]
        seen.extend(info["num_threads"] for info in blas)
        return np.zeros((), np.int32)

    def model(x):
        number = jax.pure_callback(threads, jax.ShapeDtypeStruct((), np.int32), x[0, 0])
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0 + number, 1.0), COUNTS_Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x))

    with threadpool_limits(limits=2, user_api="blas"):
        at = gp.predict(model, {"f": np.zeros((3, 5))}, COUNTS_X)["y"]
        assert np.isfinite(at.mean).all()
    assert seen and set(seen) == {1}


# ----------------------------------------------------------------- batches of inputs


def shifted_model(x, shift, y=None):
    counts_model(x + shift[:, None], y)


PARAMS = {
    "auto_f_loc": np.linspace(0.0, 1.0, 5),
    "auto_f_scale_tril": 0.3 * np.eye(5),
    "variance_auto_loc": np.asarray(1.2),
    "lengthscale_auto_loc": np.asarray(0.9),
    "z": np.asarray(COUNTS_Z),
}
X_MANY = np.linspace(0.0, 5.0, 23)[:, None]
SHIFT = np.linspace(0.0, 0.4, 23)


@pytest.mark.parametrize(
    "size", [5, *(pytest.param(n, marks=pytest.mark.slow) for n in (23, 100))]
)
def test_batches_are_the_whole(size, tmp_path):
    np.save(tmp_path / "x.npy", X_MANY)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    posterior = gp.AutoGaussian(shifted_model), PARAMS
    whole = gp.predict(shifted_model, posterior, X_MANY, shift=SHIFT)["y"]
    mean = np.lib.format.open_memmap(tmp_path / "mean.npy", "w+", float, (23,))
    seen = []
    for rows, at in gp.predict_batches(
        shifted_model, posterior, mapped, shift=SHIFT, batch_size=size
    ):
        assert at["y"].mean.shape == (rows.stop - rows.start,)
        mean[rows] = at["y"].mean
        seen += range(23)[rows]
    assert seen == list(range(23))
    np.testing.assert_allclose(mean, whole.mean, rtol=1e-12)


def test_pages_are_given_back_after_each_batch(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X_MANY)
    given_back = []

    class Pages:
        def madvise(self, advice):
            given_back.append(advice)

    monkeypatch.setattr(
        batches_module,
        "pages_of",
        lambda array: Pages() if isinstance(array, np.memmap) else None,
    )
    posterior = gp.AutoGaussian(counts_model), PARAMS
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    batches = gp.predict_batches(counts_model, posterior, mapped, batch_size=10)
    assert [len(given_back) for _ in batches] == [0, 1, 2] and len(given_back) == 3


def test_each_batch_has_its_own_key():
    draws = {
        "variance": np.ones(1),
        "lengthscale": np.ones(1),
        "f": np.zeros((1, 5)),
    }
    run = {"params": {"z": COUNTS_Z}, "key": random.key(0), "batch_size": 2}
    x = np.ones((4, 1))
    batches = gp.predict_batches(counts_model, draws, x, **run)
    one, two = (at["y"]._sites.runs.key for _, at in batches)
    assert np.any(random.key_data(one) != random.key_data(two))


@pytest.mark.usefixtures("as_users_call")
def test_what_cannot_be_cut_is_refused():
    posterior = gp.AutoGaussian(counts_model), PARAMS
    # At the call, and not when the first batch is asked for.
    with pytest.raises(ValueError, match="batch_size must be"):
        gp.predict_batches(counts_model, posterior, COUNTS_X, batch_size=0)
    with pytest.raises(ValueError, match="needs an array among the arguments"):
        gp.predict_batches(counts_model, posterior, 3)
