"""Missing data by ``observe(..., mask=)``: the model without them, to rounding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy.stats import multivariate_normal

import svgp_ppl as gp
from svgp_ppl.diagnostics import group, loo
from svgp_ppl.fitting.assessment import fitted_of
from tests.models import COUNTS_X, COUNTS_Y, Walk, counts_z

KNOWN = np.arange(20) % 3 != 0
HOLES = np.where(KNOWN, COUNTS_Y, np.nan)
NEW_X = np.linspace(0.5, 4.5, 7)[:, None]


def model(x, y=None, known=None):
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, 0.9), counts_z())
    with numpyro.plate("data", len(x)):
        gp.observe("y", lambda f: dist.Poisson(jnp.exp(f)), f(x), obs=y, mask=known)


ROWS = {
    "with holes": (COUNTS_X, HOLES, KNOWN),
    "left out": (COUNTS_X[KNOWN], COUNTS_Y[KNOWN]),
}

# ------------------------------------------------------------------ a table with holes

TABLE = np.stack([np.sin(COUNTS_X[:, 0]), np.cos(2 * COUNTS_X[:, 0])], axis=1)
ENTRIES = np.random.default_rng(3).random(TABLE.shape) < 0.6
ENTRIES[4] = False  # nothing is known of this row
WITH_HOLES = np.where(ENTRIES, TABLE, np.nan)
MIXING = np.array([[1.0, 0.4], [-0.3, 0.8]])


def outputs(x):
    kernel = gp.kernels.RBF(1.0, 0.9)
    f = gp.sparse_gp("f", kernel, counts_z(), num_outputs=2)
    return MIXING @ f(x)


def table(x, y=None, known=None):
    """All outputs of a row at once."""
    latent = outputs(x)
    with numpyro.plate("data", len(x)):
        likelihood = lambda f: dist.Normal(f, 0.3).to_event(1)  # noqa: E731
        gp.observe("y", likelihood, latent, obs=y, mask=known)


def by_output(x, y, known):
    """One site for each output, of the rows that have it."""
    latent = outputs(x)
    for p in range(2):
        with numpyro.plate(f"data {p}", len(x)):
            likelihood = gp.likelihoods.Gaussian(0.3)
            at_p = y[:, p], known[:, p]
            gp.observe(f"y{p}", likelihood, latent[..., p], obs=at_p[0], mask=at_p[1])


def of_rows(function, **options):
    """Of all rows with holes, and of the rows without."""
    with jax.enable_x64(True):
        return [function(*data, progress=False, **options) for data in ROWS.values()]


@pytest.fixture(scope="module")
def fits():
    return of_rows(partial(gp.fit, random.key(0), model, None), num_steps=30)


@pytest.fixture(scope="module")
def draws():
    options = {"num_chains": 2, "num_warmup": 5, "num_samples": 40}
    options |= {"sampler": Walk(), "log_likelihood": True}
    return of_rows(partial(gp.sample, random.key(1), model), **options)


@pytest.mark.thorough
def test_fits_and_draws_are_those_of_the_other_rows(fits, draws):
    np.testing.assert_allclose(*(fitted.losses for fitted in fits), rtol=1e-9)
    variances = [group(d, "posterior")["variance"] for d in draws]
    np.testing.assert_allclose(*variances, rtol=1e-9)
    likelihoods = [group(d, "log_likelihood")["y"] for d in draws]
    np.testing.assert_allclose(*likelihoods, rtol=1e-8)
    one, other = (loo(d).elpd for d in draws)
    assert one == pytest.approx(other, rel=1e-8)


@pytest.mark.parametrize(
    "which", ["fits", pytest.param("draws", marks=pytest.mark.thorough)]
)
def test_predictions_are_those_of_the_other_rows(which, request):
    posteriors = request.getfixturevalue(which)
    means = [gp.predict(model, p, NEW_X)["y"].mean for p in posteriors]
    np.testing.assert_allclose(*means, rtol=1e-8)
    paths = [
        gp.draw_functions(random.key(2), model, p, NEW_X, num_draws=3)["y"]
        for p in posteriors
    ]
    np.testing.assert_allclose(*paths, rtol=1e-6)


def test_densities_of_predictions_take_a_mask(fits):
    at_data = gp.predict(model, fits[0], COUNTS_X)["y"]
    with_holes = at_data.log_prob(HOLES, mask=KNOWN)
    plain = at_data.log_prob(COUNTS_Y)
    np.testing.assert_allclose(with_holes, np.where(KNOWN, plain, 0.0), rtol=1e-12)
    with pytest.raises(ValueError, match=r"mask=~np.isnan\(y\)"):
        at_data.log_prob(HOLES)


@pytest.mark.thorough
def test_minibatches_with_holes_add_up_to_all_rows():
    # The mean bound of the batches of an epoch is the bound of all rows.
    def batched(x, y, known):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), counts_z())
        with numpyro.plate("data", 20, subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y, mask=known)

    still = gp.AutoGaussian(batched)
    options = {"optimizer": optax_still(), "progress": False}
    data = COUNTS_X, HOLES, KNOWN
    parts = gp.fit(
        random.key(0), batched, still, *data, num_steps=4, batch_size=5, **options
    )
    whole = gp.fit(random.key(0), batched, still, *data, num_steps=1, **options)
    assert np.mean(parts.losses) == pytest.approx(whole.losses[0], rel=1e-9)


def optax_still():
    import optax

    return optax.sgd(0.0)


def bound_with_gradient(model, *data):
    """The bound at a q(v), and its derivatives, with y and mask traced."""

    def loss(params, *data):
        guide_of = lambda *_: numpyro.sample(  # noqa: E731
            "f", dist.Normal(params["loc"], jnp.exp(params["scale"])).to_event(2)
        )
        return gp.MarginalELBO().loss(random.key(0), {}, model, guide_of, *data)

    start = {
        "loc": jnp.linspace(-1.0, 1.0, 10).reshape(2, 5),
        "scale": -jnp.ones((2, 5)),
    }
    return jax.jit(jax.value_and_grad(loss))(start, *map(jnp.asarray, data))


@pytest.mark.thorough
def test_a_table_with_holes_is_one_site_for_each_output():
    data = COUNTS_X, WITH_HOLES, ENTRIES
    one, other = (bound_with_gradient(m, *data) for m in (table, by_output))
    assert np.isfinite(one[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8), one, other)
    # And to the sum over what is known, by the moments of the latent.
    handler = handlers.seed(lambda: outputs(COUNTS_X), random.key(0))
    marginal = handlers.substitute(handler, data={"f": np.ones((2, 5))})().marginal()
    terms = dist.Normal(marginal.mean, 0.3).log_prob(TABLE)
    terms = terms - 0.5 * marginal.variance / 0.3**2
    prior = dist.Normal(0.0, 1.0).log_prob(1.0) * 10
    found = jax.jit(lambda: log_density(table, data, {}, {"f": jnp.ones((2, 5))})[0])()
    expected = prior + np.sum(np.where(ENTRIES, terms, 0.0))
    assert float(found) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.thorough
def test_the_report_of_a_table_with_holes_is_that_of_its_sites():
    def guide(*_):
        loc = jnp.linspace(-1.0, 1.0, 10).reshape(2, 5)
        numpyro.sample("f", dist.Normal(loc, 0.5).to_event(2))

    def facts(model):
        data = COUNTS_X, WITH_HOLES, ENTRIES
        options = {"num_steps": 1, "optimizer": optax_still(), "progress": False}
        return fitted_of(gp.fit(random.key(0), model, guide, *data, **options), *data)

    one, other = (facts(model).facts for model in (table, by_output))
    np.testing.assert_allclose(one.log_weights, other.log_weights, rtol=1e-8)
    by_column = [other.sites[f"y{p}"].score[:, 0] for p in range(2)]
    np.testing.assert_allclose(one.sites["y"].score, np.stack(by_column, 1), atol=1e-8)


def test_the_likelihood_of_a_table_is_that_of_its_known_entries():
    def likelihood(f):
        return dist.Normal(f, 0.3).to_event(1)

    @jax.jit
    def run(v, y):
        handler = handlers.seed(lambda: outputs(COUNTS_X), random.key(0))
        latent = handlers.substitute(handler, data={"f": v})()
        marginal, whole = latent.marginal(), gp.Expected(likelihood, latent)
        found = whole.of_entries(ENTRIES).log_predictive(y)
        return marginal.mean, marginal.covariance, found

    mean, covariance, found = map(np.asarray, run(np.ones((2, 5)), TABLE))
    # Jointly Gaussian in each row: the covariance of what is known.
    covariance = covariance + 0.09 * np.eye(2)
    expected = np.zeros(20)
    for n in np.flatnonzero(ENTRIES.any(axis=1)):
        at = np.flatnonzero(ENTRIES[n])
        normal = multivariate_normal(mean[n, at], covariance[n][np.ix_(at, at)])
        expected[n] = normal.logpdf(TABLE[n, at])
    np.testing.assert_allclose(found, expected, atol=1e-6)

    def model(x):
        gp.observe("y", likelihood, outputs(x))

    at_data = gp.predict(model, {"f": np.ones((1, 2, 5))}, COUNTS_X)["y"]
    found = at_data.log_prob(WITH_HOLES, mask=ENTRIES)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.thorough
def test_predictions_of_a_table_are_made_everywhere():
    posterior = {"f": np.random.default_rng(0).normal(size=(3, 2, 5))}
    plain = gp.predict(table, posterior, COUNTS_X)["y"]
    under = gp.predict(table, posterior, COUNTS_X, known=ENTRIES)["y"]
    np.testing.assert_allclose(under.mean, plain.mean, rtol=1e-12)
    np.testing.assert_allclose(under.log_prob(TABLE), plain.log_prob(TABLE), rtol=1e-9)
    some = plain.log_prob(WITH_HOLES, mask=ENTRIES)
    all_known = ENTRIES.all(axis=1)
    np.testing.assert_allclose(
        some[all_known], plain.log_prob(TABLE)[all_known], rtol=1e-9
    )
    assert some[4] == 0.0 and np.isfinite(some).all()


def test_rows_that_a_handler_leaves_out_of_a_table_are_in_no_group():
    rows = np.arange(20) != 1

    def under_mask(x, y, known):
        with handlers.mask(mask=rows):
            table(x, y, known)

    posterior = {"f": np.random.default_rng(0).normal(size=(3, 2, 5))}
    arguments = posterior, COUNTS_X, WITH_HOLES, ENTRIES
    terms, whole = (
        gp.log_likelihood(random.key(0), m, *arguments) for m in (under_mask, table)
    )
    known = np.flatnonzero(ENTRIES.any(axis=1) & rows)
    assert terms["log_likelihood"]["y_data"].values.tolist() == known.tolist()
    seen = group(terms, "observed_data")["y"]
    np.testing.assert_allclose(seen, WITH_HOLES[known], rtol=1e-6)
    expected = whole["log_likelihood"]["y"].sel(y_data=known)
    np.testing.assert_allclose(group(terms, "log_likelihood")["y"], expected)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    "known, likelihood, message",
    [
        (ENTRIES.astype(int), None, r"must be boolean.*~np.isnan\(y\)"),
        (ENTRIES[:3], None, r"shape \(20,\) or \(20, 2\) and has \(3, 2\)"),
        (ENTRIES[:, :1], None, r"has \(20, 1\)\. Write mask\[:, 0\]"),
        (np.ones((20, 2), bool), None, r"index \(0, 1\).*mask calls this entry known"),
        (
            ENTRIES,
            lambda f: dist.MultivariateNormal(f, 0.09 * jnp.eye(2)),
            "independent entries.*one observe for each output",
        ),
    ],
)
def test_masks_that_cannot_be(known, likelihood, message):
    gaussian = lambda f: dist.Normal(f, 0.3).to_event(1)  # noqa: E731
    y = WITH_HOLES.copy()
    y[0] = 0.0, np.nan

    def run():
        latent = outputs(COUNTS_X)
        with numpyro.plate("data", 20):
            gp.observe("y", likelihood or gaussian, latent, obs=y, mask=known)

    with pytest.raises(ValueError, match=message):
        handlers.trace(handlers.seed(run, random.key(0))).get_trace()


def test_a_table_outside_the_support_is_refused():
    def run(y, known):
        latent = outputs(COUNTS_X)
        with numpyro.plate("data", 20):
            likelihood = lambda f: dist.Poisson(jnp.exp(f)).to_event(1)  # noqa: E731
            gp.observe("y", likelihood, latent, obs=y, mask=known)

    y, known = np.ones((20, 2)), np.ones((20, 2), bool)
    y[3, 1] = -1.0
    trace = handlers.trace(handlers.seed(run, random.key(0))).get_trace
    for mask in (None, known):
        with pytest.raises(ValueError, match=r"among them is \[ 1\. -1\.\] \(row 3\)"):
            trace(y, mask)
    known[3, 1] = False
    assert trace(y, known)["y"]["value"][3, 1] == 0.0


@pytest.mark.parametrize(
    "likelihood, num_outputs",
    [
        (gp.likelihoods.Bernoulli(), None),
        (gp.likelihoods.Softmax(3), 3),
        (lambda f: dist.Gamma(2.0, jnp.exp(-f)), None),
        (lambda f: dist.Beta(2.0, jnp.exp(-f)), None),
    ],
)
def test_what_stands_in_for_the_missing_is_allowed(likelihood, num_outputs):
    # Derivatives too: zero times NaN is NaN.
    def logdensity(v, y, known):
        def run():
            kernel = gp.kernels.RBF(1.0, 0.9)
            f = gp.sparse_gp("f", kernel, counts_z(), num_outputs=num_outputs)
            with numpyro.plate("data", 20):
                gp.observe("y", likelihood, f(COUNTS_X), obs=y, mask=known)

        return log_density(run, (), {}, {"f": v})[0]

    y = np.where(KNOWN, np.clip(COUNTS_Y, 0, 1) * 0.5, np.nan)
    y = np.where(KNOWN, 0.5 if "lambda" in repr(likelihood) else 1.0, y)
    v = jnp.ones((num_outputs, 5) if num_outputs else 5)
    data = jnp.asarray(y), jnp.asarray(KNOWN)
    value, slope = jax.jit(jax.value_and_grad(lambda v: logdensity(v, *data)))(v)
    assert np.isfinite(value) and np.isfinite(slope).all()
    nothing = jax.jit(lambda v: logdensity(v, y, np.zeros(20, bool)))(v)
    prior = np.sum(dist.Normal(0.0, 1.0).log_prob(v))
    assert float(nothing) == pytest.approx(float(prior))


@pytest.mark.thorough
def test_traced_labels_that_are_no_labels_are_not_numbers():
    @jax.jit
    def logdensity(y):
        def run():
            kernel = gp.kernels.RBF(1.0, 0.9)
            f = gp.sparse_gp("f", kernel, counts_z(), num_outputs=3)
            with numpyro.plate("data", 20):
                gp.observe("y", gp.likelihoods.Softmax(3), f(COUNTS_X), obs=y)

        return log_density(run, (), {}, {"f": jnp.ones((3, 5))})[0]

    labels = jnp.asarray(np.arange(20) % 3)
    whole = float(logdensity(labels))
    assert float(logdensity(labels.astype(float))) == pytest.approx(whole)
    assert np.isnan(jax.jit(logdensity)(labels.at[0].set(0) + 0.5 * (labels > 1)))
