"""gp.sample: what is returned, where chains start, what is refused and compiled."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import monitoring, random
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy.special import logsumexp
from scipy.stats import norm, poisson

import svgp_ppl as gp
from svgp_ppl.diagnostics import group
from svgp_ppl.expectations import MonteCarlo, QuasiMonteCarlo
from svgp_ppl.mcmc.draws import _log_likelihoods, _over_noise
from svgp_ppl.mcmc.target import Target
from svgp_ppl.observations.observed import LogLikelihoods
from tests.models import (
    COUNTS_X,
    COUNTS_Y,
    COUNTS_Z,
    GAUSSIAN_X,
    GAUSSIAN_Y,
    Walk,
    counts_model,
    gaussian_model,
    gaussian_posterior,
    projection,
)

DATA = (COUNTS_X, COUNTS_Y)


def reported_model(x, y=None):
    """The counts with a deterministic site."""
    counts_model(x, y)
    numpyro.deterministic("twice", 2.0 * numpyro.sample("noise", dist.Normal(0.0, 1.0)))


@pytest.fixture(scope="module")
def fitted():
    with jax.enable_x64(True):
        guide = gp.AutoGaussian(reported_model)
        return gp.fit(
            random.key(0), reported_model, guide, *DATA, num_steps=50, progress=False
        )


@pytest.fixture(scope="module")
def timed_draws(fitted):
    """Two short chains of NUTS from the fit, and the seconds of the call."""
    with jax.enable_x64(True):
        begin = time.perf_counter()
        draws = gp.sample(
            random.key(1),
            reported_model,
            *DATA,
            init=fitted,
            num_chains=2,
            num_warmup=40,
            num_samples=20,
            log_likelihood=True,
            progress=False,
        )
        return draws, time.perf_counter() - begin


@pytest.fixture(scope="module")
def draws(timed_draws):
    return timed_draws[0]


def starts(model, *args, num_chains, init=None, coordinates=None):
    """The starting positions: draws of a walk that stands still."""
    draws = gp.sample(
        random.key(1),
        model,
        *args,
        init=init,
        coordinates=coordinates,
        sampler=Walk(scale=0.0),
        num_chains=num_chains,
        num_warmup=0,
        num_samples=num_chains,  # ArviZ warns of more chains than draws
        progress=False,
    )
    return {n: v[:, 0] for n, v in group(draws, "posterior").items()}, draws


# --------------------------------------------------------------- what is returned


def test_the_attributes_say_where_the_time_went(timed_draws):
    """Each phase of the call once, and little is in none of them."""
    draws, seconds = timed_draws
    phases = ("start", "compile", "warmup", "sampling", "log_likelihood")
    parts = [draws.posterior.attrs[f"{phase}_seconds"] for phase in phases]
    assert min(parts) > 0
    assert 0.5 * seconds < sum(parts) <= seconds


def test_groups_and_names(draws, fitted):
    posterior = group(draws, "posterior")
    shapes = {name: value.shape for name, value in posterior.items()}
    assert shapes == {
        "variance": (2, 20),
        "lengthscale": (2, 20),
        "f": (2, 20, 5),
        "noise": (2, 20),
        "twice": (2, 20),
    }
    np.testing.assert_allclose(posterior["twice"], 2 * posterior["noise"])
    assert np.all(posterior["variance"] > 0)
    assert np.all(posterior["lengthscale"] > 0)
    # NUTS moves every chain apart.
    assert len(np.unique(posterior["f"][..., 0])) > 30

    statistics = group(draws, "sample_stats")
    names = {"diverging", "step_size", "tree_depth", "energy", "n_steps", "lp"}
    assert names <= set(statistics)
    assert all(statistics[name].shape == (2, 20) for name in names)
    assert statistics["diverging"].dtype == bool

    np.testing.assert_array_equal(group(draws, "observed_data")["y"], COUNTS_Y)
    constants = group(draws, "constant_data")
    assert set(constants) == {"z"}
    np.testing.assert_array_equal(constants["z"], fitted.params["z"])
    attributes = draws["posterior"].attrs
    assert attributes["sampling_seconds"] > 0
    assert attributes["num_gradients"] == statistics["n_steps"].sum()


def test_lp_is_the_log_density_of_the_unconstrained_draw(fitted):
    draws = gp.sample(
        random.key(1),
        reported_model,
        *DATA,
        init=fitted,
        coordinates="whitened",
        sampler=Walk(),
        num_chains=2,
        num_warmup=5,
        num_samples=8,
        progress=False,
    )
    values = {n: v[1, 7] for n, v in group(draws, "posterior").items()}
    values["z"] = group(draws, "constant_data")["z"]
    value = jax.jit(lambda at: log_density(reported_model, DATA, {}, at)[0])(values)
    # Both positive sites are sampled in log coordinates.
    jacobian = np.log(values["variance"]) + np.log(values["lengthscale"])
    lp = group(draws, "sample_stats")["lp"][1, 7]
    np.testing.assert_allclose(lp, value + jacobian, rtol=1e-9)


def test_log_likelihood_is_log_of_the_expected_density(draws):
    values = group(draws, "log_likelihood")["y"]
    assert values.shape == (2, 20, 20)
    one = {n: v[0, 3] for n, v in group(draws, "posterior").items()}
    z = group(draws, "constant_data")["z"]
    a, residual = projection(COUNTS_X, z, one["variance"], one["lengthscale"])
    mean, sd = a @ one["f"], np.sqrt(np.maximum(residual, 0.0))
    # log ∫ N(e; 0, 1) Poisson(y | exp(m + s e)) de on a fine grid.
    grid = np.linspace(-9, 9, 4001)
    f = mean[:, None] + sd[:, None] * grid
    terms = poisson.logpmf(COUNTS_Y[:, None], np.exp(f)) - grid**2 / 2
    spacing = grid[1] - grid[0]
    exact = logsumexp(terms, axis=1) + np.log(spacing / np.sqrt(2 * np.pi))
    np.testing.assert_allclose(values[0, 3], exact, atol=1e-6)
    # It is above the expectation of the bound, by Jensen's inequality.
    held = {k: jnp.asarray(v) for k, v in {**one, "z": z}.items()}
    _, sites = log_density(reported_model, DATA, {}, held)
    bound = sites["y"]["fn"].log_prob(COUNTS_Y)
    assert np.all(values[0, 3] >= bound - 1e-9)
    assert np.any(values[0, 3] > bound + 1e-4)


def layer_model(x, y=None):
    inner = gp.sparse_gp("inner", gp.kernels.RBF(1.0, 1.0), COUNTS_Z)
    h = gp.propagate("h", inner(x))
    numpyro.deterministic("first", h[0, 0])
    outer = gp.sparse_gp("outer", gp.kernels.RBF(1.0, 1.0), 0.5 * COUNTS_Z)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), outer(h), obs=y)


@pytest.mark.thorough
def test_layers_are_not_stored():
    values, _ = starts(layer_model, *DATA, num_chains=2)
    assert set(values) == {"inner", "outer", "first"}


# ---------------------------------------------------------------- where it starts


@pytest.fixture(scope="module")
def from_fit(fitted):
    with jax.enable_x64(True):
        return starts(reported_model, *DATA, num_chains=50, init=fitted)


def test_chains_start_at_the_fit(fitted, from_fit):
    values, draws = from_fit
    for name in ("variance", "lengthscale", "noise"):
        np.testing.assert_allclose(
            values[name], fitted.params[f"{name}_auto_loc"], rtol=1e-8
        )
    # v is drawn from the q(v): ten comparisons at 5 standard errors.
    mean = np.asarray(fitted.params["auto_f_loc"])
    scale_tril = np.asarray(fitted.params["auto_f_scale_tril"])
    sd = np.sqrt(np.sum(scale_tril**2, axis=1))
    assert np.all(np.abs(values["f"].mean(0) - mean) < 5 * sd / np.sqrt(50))
    assert np.all(np.abs(values["f"].std(0) / sd - 1) < 5 / np.sqrt(2 * 50))
    np.testing.assert_array_equal(
        group(draws, "constant_data")["z"], fitted.params["z"]
    )


@pytest.mark.thorough
def test_guide_and_params_start_like_the_fit(fitted, from_fit):
    pair = (fitted.guide, fitted.params)
    values, _ = starts(reported_model, *DATA, num_chains=50, init=pair)
    for name, value in from_fit[0].items():
        np.testing.assert_array_equal(values[name], value)


def test_a_guide_may_hold_more_than_its_draws():
    """Plates and deterministic sites are no draws, and have no parameters."""

    def model(y):
        level = numpyro.sample("level", dist.Normal())
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)

    def guide(y):
        loc = numpyro.param("loc", 0.0)
        numpyro.deterministic("also", 2.0 * loc)
        with numpyro.plate("unused", 3):
            pass
        numpyro.sample("level", dist.Normal(loc, 1e-6))

    target = Target(random.key(0), model, (jnp.ones(()),), {}, {})
    assert len(target.data.noise_keys) == 1
    positions = target.positions_from(random.key(1), guide, {"loc": 3.0}, 4)
    assert positions.keys() == {"level"}
    np.testing.assert_allclose(positions["level"], np.full(4, 3.0), atol=1e-4)
    assert len(np.unique(positions["level"])) == 4
    with pytest.raises(ValueError, match=r"the guide's parameter\(s\) \['loc'\]"):
        target.positions_from(random.key(1), guide, {}, 4)


@pytest.mark.thorough
def test_without_a_fit_chains_start_where_their_paths_end():
    values, draws = starts(counts_model, *DATA, num_chains=20)
    attrs = draws["posterior"].attrs
    assert (attrs["init"], attrs["coordinates"]) == ("none", "fitted")
    assert len(np.unique(values["variance"])) == 20
    np.testing.assert_array_equal(group(draws, "constant_data")["z"], COUNTS_Z)
    whitened, random_places = starts(
        counts_model, *DATA, num_chains=20, coordinates="whitened"
    )
    assert random_places["posterior"].attrs["coordinates"] == "whitened"
    assert np.all(np.abs(whitened["f"]) < 2)
    assert np.all(np.abs(np.log(whitened["variance"])) < 2)
    # Draws of a posterior of seven values are some nats below its highest density.
    lp, of_random = (
        np.asarray(group(d, "sample_stats")["lp"])[:, 0] for d in (draws, random_places)
    )
    assert np.max(lp) - np.min(lp) < 20 < np.max(lp) - np.median(of_random)


@pytest.mark.thorough
def test_without_a_fit_chains_start_in_every_mode():
    """A product of two processes: both may change their signs."""

    def product(x, y):
        kernel = gp.kernels.RBF(1.0, 0.7)
        f, g = (gp.sparse_gp(name, kernel, GAUSSIAN_X[::4])(x) for name in "fg")
        gp.observe("y", gp.likelihoods.GPRN(1, 1, 0.2), gp.stack([f, g]), obs=y)

    data = (GAUSSIAN_X, 2.0 + GAUSSIAN_X)
    values, _ = starts(product, *data, num_chains=8)
    sides = [np.sign(values[name].sum(axis=1)) for name in "fg"]
    np.testing.assert_array_equal(*sides)
    assert set(sides[0]) == {-1.0, 1.0}


# ----------------------------------------------------------------- what is refused


def refused(model, match, *args, error=ValueError, **options):
    with pytest.raises(error, match=match):
        gp.sample(random.key(0), model, *args, progress=False, **options)


def test_subsampled_plate_is_refused():
    def model(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), COUNTS_Z)
        with numpyro.plate("batch", len(x), subsample_size=5) as rows:
            gp.observe("y", gp.likelihoods.Poisson(), f(x[rows]), obs=y[rows])

    refused(
        model, "plate 'batch' sees 5 of 20 data.*MCMC needs a fixed log density", *DATA
    )


def test_substituted_values_are_not_kept():
    def scaled(x, y=None):
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), COUNTS_Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    given = handlers.substitute(scaled, data={"lengthscale": 0.7})
    with pytest.warns(UserWarning, match=r"\['lengthscale'\] are not kept: chains"):
        Target(jax.random.key(0), given, (COUNTS_X, COUNTS_Y), {}, {})
    known = handlers.condition(scaled, data={"lengthscale": 0.7})
    Target(jax.random.key(0), known, (COUNTS_X, COUNTS_Y), {}, {})


def test_discrete_latent_site_is_refused():
    def model(x, y):
        counts_model(x, y)
        numpyro.sample("switch", dist.Bernoulli(0.5))

    refused(model, "latent site 'switch' is discrete; sum it out", *DATA)


def test_model_without_data_or_latent_sites_is_refused():
    refused(counts_model, "no observed site: was y passed", COUNTS_X)

    def model(y):
        numpyro.sample("y", dist.Normal(), obs=y)

    refused(model, "no latent site", jnp.zeros(()))


def test_an_observe_site_without_data_is_refused():
    """Integrated over y, E log p(y | f) would leave a function of the noise."""

    def model(x, new, y):
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), x[::4])
        gp.observe("y", gp.likelihoods.Gaussian(noise), f(x), obs=y)
        gp.observe("new", gp.likelihoods.Gaussian(noise), f(new))

    x = jnp.linspace(0.0, 1.0, 12)[:, None]
    refused(model, "site 'new' has no data: was y passed", x, x[:3], jnp.sin(x[:, 0]))


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("init", [3, {"f": 1.0}, ({}, {}), "fit"])
def test_other_inits_are_refused(init):
    refused(counts_model, "init must be what gp.fit returns", *DATA, init=init)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", ["num_chains", "num_samples"])
@pytest.mark.parametrize("count", [0, 1.5])
def test_impossible_counts_are_refused(name, count):
    match = f"{name} must be a positive integer, and is {count}"
    refused(counts_model, match, *DATA, **{name: count})


def test_guide_of_another_model_is_refused(fitted):
    def model(x, y):
        counts_model(x, y)
        numpyro.sample("other", dist.Normal())

    refused(
        model,
        r"init has no value of .*\['other'\].*fitted with this",
        *DATA,
        init=fitted,
    )


def test_start_that_is_not_finite_names_the_process():
    def model(x, y):
        z = np.array([[0.0], [1.0], [1.0]])
        f = gp.sparse_gp("rate", gp.kernels.Matern32(1.0, 3.5), z, jitter=0.0)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    with pytest.raises(FloatingPointError) as error:
        gp.sample(random.key(0), model, *DATA, num_chains=2, progress=False)
    message = str(error.value)
    assert "chain(s) [0, 1]" in message
    assert "Process 'rate'" in message
    assert "lengthscale = 3.5" in message
    assert "rows 1 and 2 of z, are 0 apart" in message


def test_start_that_is_not_finite_says_what_was_refused():
    def model(x, y):
        scale = numpyro.sample("scale", dist.HalfNormal())
        f = gp.sparse_gp("f", gp.kernels.RBF(scale - jnp.inf, 1.0), DATA[0][:3])
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(1.0), f(x), obs=y)

    with pytest.raises(FloatingPointError) as error:
        gp.sample(random.key(0), model, *DATA, num_chains=1, progress=False)
    first, second = str(error.value).splitlines()
    assert first.endswith("is not finite where they start.")
    assert second.startswith(
        "the variance of process 'f' must be positive, and is -inf"
    )


# ---------------------------------------------------------------- what is compiled


@pytest.mark.slow
def test_traces_and_compilations_do_not_grow_with_the_draws():
    traces, compilations = [], []

    def listen(event, seconds, **_):
        if event.endswith("backend_compile_duration"):
            compilations.append(seconds)

    def model(x, y=None):
        traces.append(len(x))
        counts_model(x, y)

    def count(**options):
        traces.clear()
        compilations.clear()
        options |= {"num_chains": 2, "coordinates": "whitened", "progress": False}
        gp.sample(random.key(0), model, *DATA, **options)
        return len(traces)

    monitoring.register_event_duration_secs_listener(listen)
    try:
        few = count(sampler=Walk(), num_warmup=20, num_samples=64)
        assert few < 15
        assert count(sampler=Walk(), num_warmup=200, num_samples=640) <= few
        # The phases, and a few slices of the new sizes; not one per block.
        assert 2 <= len(compilations) < 20
        assert count(sampler=Walk(scale=0.3), num_warmup=20, num_samples=64) <= few
    finally:
        monitoring.unregister_event_duration_listener(listen)


# -------------------------------------------------------- the target is a function


@pytest.mark.thorough
@pytest.mark.parametrize("method", [QuasiMonteCarlo(16), MonteCarlo(16)])
def test_drawn_nodes_are_fixed_for_a_run(method):
    def model(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), COUNTS_Z)
        with numpyro.plate("data", len(x)):
            likelihood = gp.likelihoods.Poisson()
            gp.observe("y", likelihood, f(x), obs=y, method=method)

    assert_is_a_function(model, {"f": jnp.full(5, 0.7)})


def test_drawn_nodes_are_averaged_over():
    """Σ_n E log p is that with each of S sets of nodes, over S; by data too."""

    def model(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), COUNTS_Z)
        with numpyro.plate("data", len(x)):
            likelihood = gp.likelihoods.Poisson()
            gp.observe("y", likelihood, f(x), obs=y, method=MonteCarlo(4))

    numbers = (1, 2)
    targets = [Target(random.key(0), model, DATA, {}, {}, s) for s in numbers]
    assert [len(target.data.noise_keys) for target in targets] == [*numbers]
    v, data = jnp.full(5, 0.7), targets[1].data

    @jax.jit
    def with_nodes_of(key):
        run = handlers.substitute(handlers.seed(model, key), data={"f": v})
        return handlers.trace(run).get_trace(*DATA)["y"]["fn"].log_prob(COUNTS_Y)

    each = np.stack([with_nodes_of(key) for key in data.noise_keys])
    assert not np.allclose(*each)
    found = _log_likelihoods(targets[1], {"f": v[None, None]})
    terms = found["expected_log_likelihood"]["y"][0, 0]
    np.testing.assert_allclose(terms, each.mean(axis=0), rtol=1e-9)
    density = jax.jit(targets[1].logdensity_fn)({"f": v}, data)
    prior = np.sum(norm.logpdf(v))
    np.testing.assert_allclose(density, each.mean(axis=0).sum() + prior, rtol=1e-9)


def test_densities_are_averaged_over_the_noise_in_probability():
    density, terms = np.log([[0.1, 0.2], [0.3, 0.4]]), np.array([[1.0, 2.0], [3.0, 6]])
    found = _over_noise(LogLikelihoods(density, terms))
    np.testing.assert_allclose(np.exp(found.log_likelihood), [0.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(found.expected_log_likelihood, [2.0, 4.0])


@pytest.mark.thorough
def test_layers_are_fixed_for_a_run():
    position = {"inner": jnp.full(5, 0.7), "outer": jnp.linspace(-1.0, 1.0, 5)}
    assert_is_a_function(layer_model, position)


def assert_is_a_function(model, position):
    values = []
    for seed in (0, 1):
        target = Target(random.key(seed), model, DATA, {}, {})
        value = jax.jit(target.logdensity_fn)(position, target.data)
        # Traced once more: nothing is drawn while it is.
        again = jax.jit(lambda *args, target=target: target.logdensity_fn(*args))
        np.testing.assert_allclose(again(position, target.data), value, rtol=1e-12)
        values.append(value)
    assert values[0] != values[1]  # drawn, and then kept


# ------------------------------------------------------- the coordinates of the fit


@pytest.mark.slow
def test_chains_in_fitted_coordinates_have_the_same_posterior():
    guide = gp.AutoGaussian(gaussian_model)
    data = (GAUSSIAN_X, GAUSSIAN_Y)
    fit = gp.fit(random.key(0), gaussian_model, guide, *data, num_steps=300)
    options = {"num_warmup": 0, "num_samples": 4000, "progress": False}
    draws = gp.sample(
        random.key(1),
        gaussian_model,
        *data,
        init=fit,
        coordinates="fitted",
        sampler=Walk(scale=0.8),
        **options,
    )
    mean, covariance = gaussian_posterior()
    values = group(draws, "posterior")["f"]
    ess = gp.diagnostics.ess({"f": values})["f"]
    sd = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(values.mean((0, 1)) - mean) < 5 * sd / np.sqrt(ess))
    np.testing.assert_allclose(values.std((0, 1)), sd, rtol=0.1)
