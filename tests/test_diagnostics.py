"""Diagnostics: ArviZ there and back, and a second route to each number."""

import warnings

import arviz
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.special import logsumexp

from svgp_ppl import diagnostics


def iid(seed=0, num_chains=4, num_draws=1000):
    rng = np.random.default_rng(seed)
    return {
        "variance": rng.gamma(2.0, size=(num_chains, num_draws)),
        "f": rng.normal(size=(num_chains, num_draws, 3)),
    }


def autoregressive(rho, seed=0, num_chains=4, num_draws=4000):
    """Stationary AR(1) of unit variance: ESS / draws = (1 − ρ) / (1 + ρ)."""
    noise = np.random.default_rng(seed).normal(size=(num_chains, num_draws))
    x = np.empty_like(noise)
    x[:, 0] = noise[:, 0]
    for t in range(1, num_draws):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * noise[:, t]
    return x


def test_there_and_back():
    draws = iid(num_draws=50)
    diverging = np.zeros((4, 50), bool)
    posterior = diagnostics.to_arviz(
        draws | {"jax": jnp.asarray(draws["f"])},
        sample_stats={"diverging": diverging},
        observed_data={"y": np.arange(5.0)},
        constant_data={"x": np.ones((5, 2))},
        log_likelihood={"y": np.zeros((4, 50, 5))},
        coords={"knot": ["a", "b", "c"]},
        dims={"f": ["knot"]},
        attrs={"sampling_seconds": 2.5, "sampler": "NUTS"},
    )
    back = diagnostics.group(posterior, "posterior")
    assert set(back) == {"variance", "f", "jax"}
    np.testing.assert_array_equal(back["f"], draws["f"])
    np.testing.assert_array_equal(back["jax"], draws["f"])
    assert diagnostics.group(posterior, "sample_stats")["diverging"].dtype == bool
    assert diagnostics.group(posterior, "observed_data")["y"].tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert diagnostics.group(posterior, "constant_data")["x"].shape == (5, 2)
    assert diagnostics.group(posterior, "log_likelihood")["y"].shape == (4, 50, 5)
    assert diagnostics.group(posterior, "prior") == {}
    attributes = posterior["posterior"].attrs
    assert attributes["sampling_seconds"] == 2.5 and attributes["sampler"] == "NUTS"
    assert posterior["posterior"]["f"].dims == ("chain", "draw", "knot")


def test_numbers_among_data_and_parameters_keep_their_shape():
    constants = {"level": np.float64(0.3), "slope": np.ones(1), "other": np.ones(())}
    posterior = diagnostics.to_arviz(
        iid(), observed_data={"y": np.float64(2.0)}, constant_data=constants
    )
    back = diagnostics.group(posterior, "constant_data")
    assert {n: v.shape for n, v in back.items()} == {
        "level": (),
        "slope": (1,),
        "other": (),
    }
    assert back["level"] == 0.3
    assert diagnostics.group(posterior, "observed_data")["y"].shape == ()


def test_a_group_with_numbers_is_there_once():
    posterior = diagnostics.to_arviz(
        {"scale": np.ones((2, 10))}, constant_data={"noise": 0.1, "z": np.zeros(3)}
    )
    del posterior["constant_data"]
    assert "constant_data" not in repr(posterior)


@pytest.mark.parametrize("rho", [-0.3, 0.0, 0.7])
def test_ess_of_an_autoregression(rho):
    x = autoregressive(rho)
    ess = diagnostics.ess({"x": x, "y": np.stack([x, -x], axis=-1)})
    np.testing.assert_allclose(ess["x"], x.size * (1 - rho) / (1 + rho), rtol=0.15)
    assert ess["y"].shape == (2,)


def test_diagnostics_accept_every_form_of_draws():
    draws = iid()
    whole = diagnostics.to_arviz(draws)
    for posterior in (whole, whole.posterior):
        for function in (diagnostics.ess, diagnostics.rhat, diagnostics.psrf):
            for name, value in function(posterior).items():
                np.testing.assert_array_equal(value, function(draws)[name])
        assert diagnostics.esjd(posterior) == diagnostics.esjd(draws)
    with pytest.raises(ValueError, match=r"whole object, draws and not draws\.post"):
        diagnostics.report(whole.posterior)


def test_rhat_sees_a_chain_elsewhere():
    draws = iid()
    assert all(np.all(r < 1.01) for r in diagnostics.rhat(draws).values())
    draws["f"][0, :, 1] += 2.0
    rhat = diagnostics.rhat(draws)["f"]
    assert rhat[1] > 1.1 and rhat[0] < 1.01 and rhat[2] < 1.01
    # A chain of another spread: only the rank-normalised, folded form sees it.
    draws["f"][0, :, 2] *= 5.0
    assert diagnostics.rhat(draws)["f"][2] > 1.05


def gelman_diag(x):
    """coda's gelman.diag for one parameter, line by line; x is [chains, draws]."""
    num_chains, n = x.shape
    s2 = np.array([np.var(chain, ddof=1) for chain in x])
    xbar = np.array([np.mean(chain) for chain in x])
    w, b = s2.mean(), n * np.var(xbar, ddof=1)
    muhat = xbar.mean()
    var_w = np.var(s2, ddof=1) / num_chains
    var_b = 2 * b**2 / (num_chains - 1)
    cov_wb = (n / num_chains) * (
        np.cov(s2, xbar**2)[0, 1] - 2 * muhat * np.cov(s2, xbar)[0, 1]
    )
    v = (n - 1) * w / n + (1 + 1 / num_chains) * b / n
    var_v = (
        (n - 1) ** 2 * var_w
        + (1 + 1 / num_chains) ** 2 * var_b
        + 2 * (n - 1) * (1 + 1 / num_chains) * cov_wb
    ) / n**2
    df_v = 2 * v**2 / var_v
    r2 = (n - 1) / n + (1 + 1 / num_chains) * (1 / n) * (b / w)
    return np.sqrt((df_v + 3) / (df_v + 1) * r2)


def test_psrf_is_that_of_coda():
    rng = np.random.default_rng(3)
    # Chains with their own place and spread, so that every term of var V counts.
    draws = {"f": rng.gamma(2.0, size=(5, 60, 2)) * rng.gamma(3.0, size=(5, 1, 1))}
    windows = [2, 10, 60]
    psrf = diagnostics.psrf(draws, windows)["f"]
    assert psrf.shape == (3, 2)
    for row, end in enumerate(windows):
        for q in range(2):
            expected = gelman_diag(draws["f"][:, :end, q])
            np.testing.assert_allclose(psrf[row, q], expected, rtol=1e-10)
    np.testing.assert_array_equal(diagnostics.psrf(draws)["f"], psrf[-1:])


def test_psrf_of_chains_that_agree_and_that_do_not():
    draws = iid()
    assert all(np.all(np.abs(r - 1) < 0.01) for r in diagnostics.psrf(draws).values())
    draws["variance"][0] += 3.0
    assert diagnostics.psrf(draws)["variance"] > 1.3
    assert np.isnan(diagnostics.psrf({"x": np.ones((3, 10))})["x"])


def test_ess_per_second_takes_the_worst_parameter_of_each_chain():
    fast, slow = autoregressive(0.0, seed=1), autoregressive(0.9, seed=2)
    draws = {"fast": fast, "slow": slow}
    rates = {
        seconds: diagnostics.ess_per_second(
            diagnostics.to_arviz(draws, attrs={"sampling_seconds": seconds})
        )
        for seconds in (4.0, 8.0)
    }
    assert rates[4.0] == pytest.approx(2 * rates[8.0])
    # One chain of 4,000 draws is worth 4000 (1 - 0.9) / (1 + 0.9) independent ones.
    assert rates[4.0] == pytest.approx(4000 * 0.1 / 1.9 / 4.0, rel=0.2)


def test_esjd_adds_parameters_and_averages_jumps():
    draws = {
        "a": np.array([[0.0, 1.0, 3.0], [5.0, 5.0, 5.0]]),
        "b": np.array([[[0, 0], [0, 1], [2, 1]], [[0, 0], [3, 0], [3, 0]]]),
    }
    by_hand = ((1 + 1) + (4 + 4) + (0 + 9) + 0) / 4
    assert diagnostics.esjd(draws) == by_hand
    # Independent normals jump by 2 in each of 3 dimensions, the gamma by 2 · 2.
    expected = 3 * 2 + 2 * 2
    assert diagnostics.esjd(iid(num_draws=20_000)) == pytest.approx(expected, rel=0.02)


def test_summary_is_a_table():
    draws = iid()
    table = diagnostics.summary(diagnostics.to_arviz(draws), var_names=["f"])
    assert list(table.index) == ["f[0]", "f[1]", "f[2]"]
    assert {"mean", "sd", "ess_bulk", "r_hat"} <= set(table.columns)
    means = draws["f"].mean(axis=(0, 1))
    np.testing.assert_allclose(np.asarray(table["mean"], float), means, atol=0.01)
    assert len(diagnostics.summary(draws)) == 4


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match=r"leading axes.*'f'.*For a single chain"):
        diagnostics.to_arviz({"f": np.zeros(10)})
    with pytest.raises(ValueError, match=r"sample_stats\['lp'\]"):
        diagnostics.to_arviz(iid(), sample_stats={"lp": np.zeros((4, 7))})
    with pytest.raises(ValueError, match="at least two"):
        diagnostics.psrf(iid(num_chains=1))
    with pytest.raises(ValueError, match="between 2 and 1000"):
        diagnostics.psrf(iid(), windows=[1, 100])
    with pytest.raises(ValueError, match=r"between 2 and 1000; got \[1001\]"):
        diagnostics.psrf(iid(), windows=[1001])
    with pytest.raises(ValueError, match=r"between 2 and 1000; got \[\]"):
        diagnostics.psrf(iid(), windows=[])
    with pytest.raises(ValueError, match="sampling_seconds"):
        diagnostics.ess_per_second(diagnostics.to_arviz(iid()))
    with pytest.raises(ValueError, match="no draws"):
        diagnostics.ess({})


@pytest.mark.parametrize("selected", [{"chain": 0}, {"draw": 3}])
def test_axes_of_chains_and_draws_have_to_stay(selected):
    # All arrays [4, 5]: without the check it would be 4 draws of 5 chains, or such.
    shape = (4, 4, 5)
    arrays = {name: np.random.default_rng(0).normal(size=shape) for name in "fg"}
    draws = diagnostics.to_arviz(arrays, log_likelihood={"y": arrays["f"]})
    alone, lost = draws.sel(**selected), "|".join(selected)
    for use in (diagnostics.ess, diagnostics.report, diagnostics.loo):
        with pytest.raises(ValueError, match=rf"no axis '{lost}'.*sel\({lost}=\[0\]\)"):
            use(alone)
    with pytest.raises(ValueError, match=f"no axis '{lost}'"):
        diagnostics.rhat(alone["posterior"])


def test_chains_come_first_in_any_order_of_axes():
    draws = iid(num_draws=50)
    held = dict(diagnostics.to_arviz(draws)["posterior"].data_vars)
    turned = diagnostics.arrays_of(xr.Dataset(held).transpose())
    for name, values in draws.items():
        np.testing.assert_array_equal(turned[name], values)


# ------------------------------------------------------------ gradients, energy, LOO


def test_ess_per_gradient_counts_the_worst_parameter():
    draws = {"x": autoregressive(0.8), "y": iid(num_draws=4000)["variance"]}
    posterior = diagnostics.to_arviz(draws, attrs={"num_gradients": 160_000})
    smallest = float(diagnostics.ess(draws)["x"])
    value = diagnostics.ess_per_gradient(posterior)
    np.testing.assert_allclose(value, smallest / 160_000)
    none = diagnostics.to_arviz(draws, attrs={"num_gradients": 0})
    assert np.isnan(diagnostics.ess_per_gradient(none))
    with pytest.raises(ValueError, match=r"attribute 'num_gradients', which gp.sample"):
        diagnostics.ess_per_gradient(diagnostics.to_arviz(draws))


@pytest.mark.parametrize("dim", ["chain", "draw"])
def test_joined_runs_took_what_all_of_them_took(dim):
    """The attributes are those of the first; ArviZ 0.x lists others that differ."""
    rng, n_steps = np.random.default_rng(5), np.full((2, 50), 3)
    runs = [
        diagnostics.to_arviz(
            {"x": rng.normal(size=(2, 50))},
            sample_stats={"n_steps": n_steps},
            attrs={"num_gradients": 300, "sampling_seconds": seconds},
        )
        for seconds in (2.0, 3.0)
    ]
    has_lists = hasattr(arviz, "concat")
    joined = arviz.concat(*runs, dim=dim) if has_lists else xr.concat(runs, dim=dim)
    smallest = diagnostics.ess(joined)["x"]
    np.testing.assert_allclose(diagnostics.ess_per_gradient(joined), smallest / 600)
    seconds = "5.0 s" if has_lists else "4.0 s"  # in proportion to gradients
    assert f"{seconds}, 600 gradients" in str(diagnostics.report(joined))


def test_bfmi_of_known_energies():
    # Independent energies differ by twice their variance; AR(1) by 2 (1 − ρ).
    energy = np.concatenate([autoregressive(0.0)[:2], autoregressive(0.9)[:2]])
    posterior = diagnostics.to_arviz({"x": energy}, sample_stats={"energy": energy})
    np.testing.assert_allclose(
        diagnostics.bfmi(posterior), [2.0, 2.0, 0.2, 0.2], rtol=0.2
    )
    theirs = arviz.bfmi(posterior)
    if not isinstance(theirs, np.ndarray):
        theirs = theirs["energy"]
    np.testing.assert_allclose(diagnostics.bfmi(posterior), theirs)
    with pytest.raises(ValueError, match="needs the energy"):
        diagnostics.bfmi(diagnostics.to_arviz({"x": energy}))


def test_slowest_are_ordered_by_the_last_window():
    values = {
        "a": np.array([[9.0, 9.0], [1.1, 1.4]]),
        "b": np.array([9.0, 1.2]),
        "c": np.array([9.0, np.nan]),
    }
    assert diagnostics.slowest(values, 2) == [("a", (1,)), ("b", ())]
    assert len(diagnostics.slowest(values)) == 3
    assert len(diagnostics.slowest({"a": np.ones((2, 30))})) == 20


def conjugate_draws(num_draws=2000):
    """y_n ~ N(θ, 1) with a flat prior: θ | y ~ N(ȳ, 1/N)."""
    rng = np.random.default_rng(3)
    y = rng.normal(size=12)
    theta = y.mean() + rng.normal(size=(4, num_draws)) / np.sqrt(len(y))
    terms = -0.5 * (y - theta[..., None]) ** 2 - 0.5 * np.log(2 * np.pi)
    posterior = diagnostics.to_arviz({"theta": theta}, log_likelihood={"y": terms})
    return y, posterior


def test_loo_is_the_leave_one_out_density():
    y, posterior = conjugate_draws()
    found = diagnostics.loo(posterior)
    # y_n given the others is N(their mean, 1 + 1/(N − 1)).
    others = (y.sum() - y) / (len(y) - 1)
    variance = 1 + 1 / (len(y) - 1)
    exact = -0.5 * (y - others) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)
    np.testing.assert_allclose(found.pointwise, exact, atol=0.02)
    np.testing.assert_allclose(found.elpd, exact.sum(), atol=0.05)
    assert found.pareto_k.shape == (12,) and np.all(found.pareto_k < found.good_k)
    assert 0.5 < found.num_parameters < 3 and found.standard_error > 0
    with pytest.raises(ValueError, match=r"site must be one of \['y'\], and is 'z'"):
        diagnostics.loo(posterior, "z")
    with pytest.raises(ValueError, match="log_likelihood=True"):
        diagnostics.loo(diagnostics.to_arviz(iid()))


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto:UserWarning")
@pytest.mark.parametrize("num_draws, limit", [(50, 0.5654), (2000, 0.7)])
def test_loo_is_that_of_arviz(num_draws, limit):
    _, posterior = conjugate_draws(num_draws)
    found, theirs = diagnostics.loo(posterior), arviz.loo(posterior, pointwise=True)
    assert found.good_k == pytest.approx(theirs.good_k)
    assert found.good_k == pytest.approx(limit, abs=1e-4)
    # Vehtari et al. (2017, eq. 23); ArviZ before 1.0 divides by N in the variance.
    se = np.sqrt(12 * np.var(found.pointwise, ddof=1))
    assert found.standard_error == pytest.approx(se)
    assert se / float(theirs.se) in (
        pytest.approx(1.0),
        pytest.approx(np.sqrt(12 / 11)),
    )
    # The versions of ArviZ differ by 4e-3 in the shape; ours are those of the older.
    is_old = hasattr(theirs, "elpd_loo")
    atol = 0.0 if is_old else 1e-2
    np.testing.assert_allclose(found.pareto_k, theirs.pareto_k, atol=atol)
    elpd = theirs.elpd_loo if is_old else theirs.elpd
    assert found.elpd == pytest.approx(elpd, rel=1e-7 if is_old else 1e-4)


def test_loo_of_data_whose_weights_are_equal():
    _, posterior = conjugate_draws(500)
    found = diagnostics.loo(posterior)
    terms = diagnostics.group(posterior, "log_likelihood")["y"]
    masked = np.concatenate([np.zeros((4, 500, 2)), terms], axis=-1)
    draws = diagnostics.group(posterior, "posterior")

    def loo(terms):
        return diagnostics.loo(diagnostics.to_arviz(draws, log_likelihood={"y": terms}))

    more = loo(masked)
    np.testing.assert_array_equal(more.pointwise[2:], found.pointwise)
    np.testing.assert_array_equal(more.pareto_k, [-np.inf, -np.inf, *found.pareto_k])
    assert more.elpd == pytest.approx(found.elpd)
    assert more.num_parameters == pytest.approx(found.num_parameters)
    none = loo(masked[..., :2])
    assert none.elpd == none.num_parameters == none.standard_error == 0.0


def test_waic_is_that_of_arviz_where_it_has_one():
    y, posterior = conjugate_draws()
    found = diagnostics.waic(posterior)
    if hasattr(arviz, "waic"):
        with warnings.catch_warnings(action="ignore"):  # about large variances
            theirs = arviz.waic(posterior)
        np.testing.assert_allclose(found.elpd, theirs.elpd_waic)
        np.testing.assert_allclose(found.num_parameters, theirs.p_waic)
    terms = diagnostics.group(posterior, "log_likelihood")["y"].reshape(-1, len(y))
    density = logsumexp(terms, axis=0) - np.log(len(terms))
    expected = density - terms.var(axis=0)
    np.testing.assert_allclose(found.pointwise, expected, rtol=1e-6)
    np.testing.assert_allclose(found.elpd, expected.sum(), rtol=1e-6)
    np.testing.assert_allclose(found.num_parameters, terms.var(axis=0).sum(), rtol=1e-6)
    # As for leaving one out; ArviZ divides by N in the variance.
    assert found.standard_error == pytest.approx(np.sqrt(12 * expected.var(ddof=1)))
    # Asymptotically the same as leaving one out.
    np.testing.assert_allclose(found.elpd, diagnostics.loo(posterior).elpd, atol=0.1)
    with pytest.raises(ValueError, match="log_likelihood=True"):
        diagnostics.waic(diagnostics.to_arviz(iid()))
