"""fit: the numbers of NumPyro's SVI, continued, interrupted, and failing in words."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.handlers import block
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal

import svgp_ppl as gp
from svgp_ppl.fitting.failures import holes_in_arguments
from svgp_ppl.fitting.plateau import Plateau
from tests.conftest import mostly_double
from tests.models import COUNTS_X, COUNTS_Y, COUNTS_Z, counts_model, unseen

DATA = (COUNTS_X, COUNTS_Y)
KEY = 3
MODULE = sys.modules["svgp_ppl.fitting.fit"]  # svgp_ppl.fitting.fit is the function


@pytest.fixture(scope="module")
def fitted():
    """Sixty steps on the counts, the default optimiser."""
    with jax.enable_x64(True):
        guide = gp.AutoGaussian(counts_model)
        return gp.fit(
            random.key(KEY), counts_model, guide, *DATA, num_steps=60, progress=False
        )


def by_svi_run(num_steps, optimizer):
    # fit gives SVI the first half of its key; the other half looks at the model.
    guide = gp.AutoGaussian(counts_model)
    svi = SVI(counts_model, guide, optimizer, loss=gp.MarginalELBO())
    key = random.split(random.key(KEY))[0]
    return svi.run(key, num_steps, *DATA, progress_bar=False)


def assert_same_params(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], **tolerance)


def test_fit_is_svi_run(fitted):
    plain = by_svi_run(60, optax.adam(1e-2))
    np.testing.assert_allclose(fitted.losses, plain.losses, rtol=1e-9)
    assert_same_params(fitted.params, plain.params, rtol=1e-8, atol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("num_rows", [None, 5])
def test_another_key_starts_elsewhere_whoever_has_used_the_guide(num_rows):
    def batched(x, y=None, num_data=None):
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(3.0, 3.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, lengthscale), COUNTS_Z)
        with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    def losses(seed, guide):
        options = {"num_data": len(COUNTS_X), "num_steps": 2, "batch_size": num_rows}
        key = random.key(seed)
        return gp.fit(key, batched, guide, *DATA, **options, progress=False).losses

    guide = gp.AutoGaussian(batched)
    first = losses(0, guide)
    others = losses(1, guide)
    np.testing.assert_array_equal(others, losses(1, gp.AutoGaussian(batched)))
    assert others[0] != first[0]
    np.testing.assert_array_equal(losses(0, guide), first)


@pytest.mark.thorough
def test_other_data_start_elsewhere_whoever_has_used_the_guide():
    """A prior with the mean of the data, which no step of the first fit comes near."""

    def centred(x, y=None):
        level = numpyro.sample("level", dist.Normal(jnp.mean(y), 1.0))
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.7), COUNTS_Z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(1.0), f(x) + level, obs=y)

    def start(y, guide):
        options = {"optimizer": optax.sgd(0.0), "num_steps": 1, "progress": False}
        found = gp.fit(random.key(KEY), centred, guide, COUNTS_X, y, **options)
        return float(found.params["level_auto_loc"])

    guide = gp.AutoGaussian(centred)
    first = start(COUNTS_Y, guide)
    assert start(COUNTS_Y + 100.0, guide) == pytest.approx(first + 100.0)
    assert start(COUNTS_Y, guide) == first


@pytest.mark.thorough
def test_parts_of_a_guide_start_with_the_key():
    def guides():
        guide = AutoGuideList(counts_model)
        v = block(counts_model, hide=["variance", "lengthscale"])
        guide.append(gp.AutoGaussian(v))
        guide.append(AutoDelta(block(counts_model, expose=["variance", "lengthscale"])))
        return guide

    def losses(seed, guide):
        options = {"num_steps": 1, "progress": False}
        return gp.fit(random.key(seed), counts_model, guide, *DATA, **options).losses

    used = guides()
    losses(0, used)
    np.testing.assert_array_equal(losses(1, used), losses(1, guides()))


def test_fit_is_a_record(fitted):
    assert fitted.losses.shape == (60,)
    assert isinstance(fitted.losses, np.ndarray)
    assert fitted.losses[-1] < fitted.losses[0]
    assert set(fitted.params) == {
        "auto_f_loc",
        "auto_f_scale_tril",
        "lengthscale_auto_loc",
        "variance_auto_loc",
        "z",
    }
    assert repr(fitted).startswith("Fit(60 steps, bound -")
    assert "auto_f_loc" in repr(fitted)


def test_init_continues_where_a_fit_stopped(fitted):
    guide = fitted.guide
    options = {"progress": False, "optimizer": optax.adam(1e-2)}
    first = gp.fit(random.key(KEY), counts_model, guide, *DATA, num_steps=23, **options)
    # Any key: the state carries its own.
    both = gp.fit(
        random.key(99), counts_model, guide, *DATA, num_steps=37, init=first, **options
    )
    np.testing.assert_allclose(both.losses, fitted.losses, rtol=1e-10)
    assert_same_params(both.params, fitted.params, rtol=1e-8, atol=1e-10)


def test_progress_is_shown_unless_told_otherwise(capfd):
    run = (random.key(0), counts_model, gp.AutoGaussian(counts_model), *DATA)
    gp.fit(*run, num_steps=2, progress=False)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    gp.fit(*run, num_steps=2)
    assert "nats" in capfd.readouterr().err


@mostly_double
def test_both_precisions(precision):
    guide = gp.AutoGaussian(batch_model)
    fitted = gp.fit(
        random.key(0), batch_model, guide, *unseen(*DATA), num_steps=30, progress=False
    )
    assert fitted.params["auto_f_loc"].dtype == jnp.dtype(f"float{precision}")
    assert fitted.losses[-1] < fitted.losses[0]


# --------------------------------------------------------------- early stopping


@pytest.mark.thorough
def test_a_plateau_is_one_of_this_fit(fitted):
    """Whatever it continues: the bound of twice the rows is far below the earlier."""
    twice = [np.concatenate([a, a]) for a in DATA]
    options = {"patience": 10, "tolerance": 1e-9, "progress": False}
    more = gp.fit(
        random.key(0), counts_model, fitted.guide, *twice,
        init=fitted, num_steps=40, **options,
    )  # fmt: skip
    assert len(more.losses) == 100 and not more.stopped_early


def test_a_plateau_of_a_noisy_bound():
    # Down by 2 nats a step for 100 steps, then level, with noise of 5 nats.
    noise = np.random.default_rng(0).normal(scale=5.0, size=300)
    losses = 1000.0 - 2.0 * np.minimum(np.arange(300), 100) + noise
    rule = Plateau(50, 2.0)
    seen = [n for n in range(1, 301) if rule.is_reached([losses[:n]])]
    assert 180 < seen[0] < 215
    any_gain = rule._replace(tolerance=1e6)
    assert not any_gain.is_reached([losses[:99]])  # too early to say
    assert any_gain.is_reached([losses[:60], losses[60:100]])
    assert not any_gain._replace(first=1).is_reached([losses[:100]])
    assert rule.is_reached([-losses])  # worse is no reason to go on


@pytest.mark.thorough
def test_tolerance_is_per_datum_and_held_parameters_are_waited_for(fitted):
    gain = np.mean(fitted.losses[:10]) - np.mean(fitted.losses[10:20])

    def steps(**options):
        run = gp.fit(
            random.key(KEY),
            counts_model,
            fitted.guide,
            *DATA,
            num_steps=60,
            patience=10,
            progress=False,
            **options,
        )
        assert run.stopped_early == (len(run.losses) < 60)
        return len(run.losses)

    assert steps(tolerance=1.01 * gain / len(COUNTS_X)) == 20
    assert steps(tolerance=0.2 * gain / len(COUNTS_X)) > 20
    assert steps(tolerance=1e6, freeze={"z": 25}) == 50


# ----------------------------------------------------------------- interruption


class StoppedBar:
    """Interrupts at its third update."""

    def __init__(self, total, what, show):
        self.updates = 0

    def reset(self):
        pass

    def close(self):
        pass

    def update(self, count):
        self.updates += 1
        if self.updates == 3:
            raise KeyboardInterrupt

    def set_postfix_str(self, text):
        pass


def test_interrupt_returns_the_fit_so_far(monkeypatch, fitted):
    monkeypatch.setattr(MODULE, "progress_bar", StoppedBar)
    with pytest.warns(UserWarning, match=r"after 30 steps; continue with fit\(.*init="):
        stopped = gp.fit(
            random.key(KEY), counts_model, fitted.guide, *DATA, num_steps=60
        )
    np.testing.assert_allclose(stopped.losses, fitted.losses[:30], rtol=1e-10)
    monkeypatch.undo()
    rest = gp.fit(
        random.key(0),
        counts_model,
        fitted.guide,
        *DATA,
        num_steps=30,
        init=stopped,
        progress=False,
    )
    np.testing.assert_allclose(rest.losses, fitted.losses, rtol=1e-10)


def test_interrupt_before_anything_is_done_is_raised(monkeypatch):
    class AtOnce(StoppedBar):
        def set_postfix_str(self, text):
            raise KeyboardInterrupt

    monkeypatch.setattr(MODULE, "progress_bar", AtOnce)
    with pytest.raises(KeyboardInterrupt):
        gp.fit(random.key(0), counts_model, None, *DATA, num_steps=1)


# --------------------------------------------------------------------- failures


def coincident_model(x, y=None):
    kernel = gp.kernels.Matern32(variance=0.7, lengthscale=2.5)
    z = np.array([[0.0], [1.0], [3.0], [1.0]])
    f = gp.sparse_gp("rate", kernel, z, jitter=0.0)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)


def by_hand(model):
    def guide(x, y):
        numpyro.sample("rate", dist.Normal(numpyro.param("m", jnp.ones(4))).to_event(1))

    return guide


@mostly_double
@pytest.mark.parametrize("make_guide", [gp.AutoGaussian, by_hand])
def test_failure_names_process_lengthscale_dtype_jitter_and_pair(precision, make_guide):
    guide = make_guide(coincident_model)
    with pytest.raises(gp.NonFiniteBoundError) as error:
        options = {"num_steps": 5, "progress": False}
        gp.fit(random.key(0), coincident_model, guide, *unseen(*DATA), **options)
    message = str(error.value)
    assert "at step 0" in message
    assert len(error.value.fit.losses) == 0
    assert all(np.all(np.isfinite(v)) for v in error.value.fit.params.values())
    assert "Process 'rate'" in message
    assert "lengthscale = 2.5" in message
    assert "variance = 0.7" in message
    assert f"dtype float{precision}" in message
    assert "jitter 0;" in message
    assert "rows 1 and 3 of z, are 0 apart" in message
    assert "larger jitter" in message
    assert "kmeans" in message


def test_failure_keeps_the_last_finite_state():
    guide = gp.AutoGaussian(counts_model)
    with pytest.raises(gp.NonFiniteBoundError, match="the bound became") as error:
        gp.fit(
            random.key(0),
            counts_model,
            guide,
            *DATA,
            optimizer=optax.sgd(0.3),
            num_steps=200,
            progress=False,
        )
    kept = error.value.fit
    assert 0 < len(kept.losses) < 200
    assert np.all(np.isfinite(kept.losses))
    assert all(np.all(np.isfinite(value)) for value in kept.params.values())
    assert f"at step {len(kept.losses)}." in str(error.value)
    assert "finite before: if the last step was too long" in str(error.value)
    # It is the state before the failing step, so the error comes again from there.
    with pytest.raises(gp.NonFiniteBoundError):
        gp.fit(
            random.key(0),
            counts_model,
            guide,
            *DATA,
            optimizer=optax.sgd(0.3),
            num_steps=2,
            init=kept,
            progress=False,
        )


@pytest.mark.thorough
def test_failure_of_a_likelihood_names_site_and_datum():
    def model(x, y):
        f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), *unseen(COUNTS_Z))
        factor = jnp.where(jnp.arange(len(x)) == 4, jnp.inf, 1.0)
        with numpyro.plate("data", len(x)):
            gp.observe("count", lambda f: dist.Poisson(factor * jnp.exp(f)), f(x), y)

    with pytest.raises(gp.NonFiniteBoundError, match=r"Site 'count'.*datum \(4,\)"):
        gp.fit(random.key(0), model, gp.AutoGaussian(model), *DATA, num_steps=2)


def with_covariate(x, y=None, *, dose, group=None):
    slope = numpyro.sample("slope", dist.Normal())
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), COUNTS_Z)
    with numpyro.plate("data", 20, subsample_size=len(x)):
        gp.observe("y", gp.likelihoods.Gaussian(0.5), f(x) + slope * dose, obs=y)


def test_arguments_with_holes_are_named():
    dose = np.linspace(0.0, 1.0, 20)
    others = {"group": np.arange(20)}
    assert holes_in_arguments(with_covariate, DATA, {"dose": dose, **others}) == ""
    dose[7] = np.inf
    x = COUNTS_X.copy()
    x[3, 0] = np.nan
    told = holes_in_arguments(
        with_covariate, (jnp.asarray(x),), {"dose": dose, **others}
    )
    assert "infinity: x (first at index (3, 0)), dose (first at index (7,))." in told


@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [None, 1])
def test_failure_of_a_covariate_names_the_argument_and_the_site(batch_size):
    dose = np.linspace(0.0, 1.0, 20)
    dose[7] = np.nan
    options = {"num_steps": 40, "progress": False, "batch_size": batch_size}
    with pytest.raises(gp.NonFiniteBoundError) as error:
        gp.fit(random.key(0), with_covariate, *DATA, dose=dose, **options)
    row = "(0,)" if batch_size else "(7,)"
    assert f"Site 'y': its log probability is nan first at datum {row}" in str(
        error.value
    )
    assert "infinity: dose (first at index (7,))." in str(error.value)


@pytest.mark.thorough
def test_chains_that_cannot_start_name_the_argument():
    dose = np.linspace(0.0, 1.0, 20)
    dose[7] = np.nan
    with pytest.raises(FloatingPointError, match=r"infinity: dose \(first at index"):
        gp.sample(random.key(0), with_covariate, *DATA, dose=dose, progress=False)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", ["num_steps", "patience"])
@pytest.mark.parametrize("value", [0, -3, 2.5])
def test_numbers_of_steps_are_checked(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a positive integer"):
        gp.fit(
            random.key(0),
            counts_model,
            AutoDelta(counts_model),
            *DATA,
            **{name: value},
        )


# ----------------------------------------------------------------------- guides


@pytest.mark.thorough
def test_covariance_is_full_or_diagonal():
    guide = gp.AutoGaussian(counts_model, "diagonal", prefix="q")
    fitted = gp.fit(
        random.key(0), counts_model, guide, *DATA, num_steps=20, progress=False
    )
    assert fitted.params["q_f_scale"].shape == (5,)
    assert "q_f_scale_tril" not in fitted.params


@pytest.mark.usefixtures("as_users_call")
def test_other_covariances_are_refused():
    with pytest.raises(ValueError, match="covariance must be 'full' or 'diagonal'"):
        gp.AutoGaussian(counts_model, "banded")


@pytest.mark.thorough
def test_rest_can_be_any_guide():
    guide = gp.AutoGaussian(counts_model, rest=AutoNormal)
    fitted = gp.fit(
        random.key(0), counts_model, guide, *DATA, num_steps=40, progress=False
    )
    assert fitted.params["lengthscale_auto_scale"].shape == ()
    draws = guide.sample_posterior(
        random.key(1), fitted.params, *DATA, sample_shape=(6,)
    )
    assert draws["f"].shape == (6, 5)
    assert draws["lengthscale"].shape == (6,)
    assert len(np.unique(draws["lengthscale"])) == 6


def test_sample_posterior_median_and_quantiles(fitted):
    guide, params = fitted.guide, fitted.params
    draws = guide.sample_posterior(random.key(0), params, *DATA, sample_shape=(4000,))
    assert draws["f"].shape == (4000, 5)
    assert draws["variance"].shape == (4000,)
    scale_tril = np.asarray(params["auto_f_scale_tril"])
    sd = np.sqrt(np.sum(scale_tril**2, axis=1))
    error = np.abs(draws["f"].mean(0) - params["auto_f_loc"])
    assert np.all(error < 5 * sd / np.sqrt(4000))

    median = guide.median(params)
    np.testing.assert_array_equal(median["f"], params["auto_f_loc"])
    assert median["variance"] == params["variance_auto_loc"]
    low, middle, high = guide.quantiles(params, [0.1587, 0.5, 0.8413])["f"]
    np.testing.assert_allclose(middle, median["f"], atol=1e-12)
    np.testing.assert_allclose((high - low) / 2, sd, rtol=1e-3)


def test_unseen_guide_says_so(fitted):
    guide = gp.AutoGaussian(counts_model)
    with pytest.raises(ValueError, match="not seen the model's arguments"):
        guide.sample_posterior(random.key(0), fitted.params)


def test_guide_of_a_model_without_processes():
    def model():
        scale = numpyro.sample("scale", dist.HalfNormal())
        numpyro.sample("y", dist.Normal(0.0, scale), obs=1.0)

    guide = gp.AutoGaussian(model)
    with pytest.raises(ValueError, match="no sparse_gp site"):
        gp.fit(random.key(0), model, guide, num_steps=1, progress=False)


@pytest.mark.thorough
def test_trace_elbo_can_be_the_loss(fitted):
    # The same bound with noise: started from the fit, its mean is the fit's bound.
    noisy = gp.fit(
        random.key(0),
        counts_model,
        fitted.guide,
        *DATA,
        optimizer=optax.adam(0.0),
        loss=Trace_ELBO(num_particles=20),
        num_steps=100,
        init=fitted,
        progress=False,
    )
    losses = noisy.losses[len(fitted.losses) :]
    standard_error = losses.std() / np.sqrt(len(losses))
    exact = SVI(counts_model, fitted.guide, optax.sgd(0.0), loss=gp.MarginalELBO())
    start = exact.init(random.key(0), *DATA, init_params=fitted.params)
    assert abs(losses.mean() - exact.evaluate(start, *DATA)) < 5 * standard_error


# ------------------------------------------------------------------- minibatches


def batch_model(x, y, size=None):
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), *unseen(COUNTS_Z))
    with numpyro.plate("data", len(x), subsample_size=size) as rows:
        gp.observe("y", gp.likelihoods.Poisson(), f(x[rows]), obs=y[rows])


def test_minibatches_are_unbiased_and_scaled(capfd):
    x, y = jnp.asarray(COUNTS_X), jnp.asarray(COUNTS_Y)
    guide = gp.AutoGaussian(batch_model)
    still = {"optimizer": optax.sgd(0.0), "progress": False}
    full = gp.fit(random.key(0), batch_model, guide, x, y, num_steps=1, **still)
    batches = gp.fit(
        random.key(1), batch_model, guide, x, y, size=5, num_steps=600, **still
    )
    # One comparison at 5 standard errors.
    error = abs(batches.losses.mean() - full.losses[0])
    assert error < 5 * batches.losses.std() / np.sqrt(600)
    assert batches.losses.std() > 1.0  # the batches do differ
    # The bar counts the data that the batch stands for.
    gp.fit(random.key(1), batch_model, guide, x, y, size=5, num_steps=1)
    words = capfd.readouterr().err.split("bound ")[-1].split()
    assert float(words[2]) == pytest.approx(float(words[0]) / 20, rel=1e-3)
