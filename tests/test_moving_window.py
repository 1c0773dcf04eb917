"""Moving-window Monte Carlo EM: the maximum of the evidence, its steps, refusals."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.distributions import constraints
from scipy.optimize import minimize

import svgp_ppl as gp
from svgp_ppl.mcmc import moving_window as MODULE
from svgp_ppl.mcmc import moving_window_em
from tests.conftest import mostly_double
from tests.models import gaussian_model, rbf

# ------------------------------------------------ a conjugate model, u at all inputs

X = np.linspace(0.0, 4.0, 25)[:, None]
Y = np.sin(2.0 * X[:, 0]) + 0.3 * np.cos(17.0 * np.arange(25) ** 2)


def positive(name, start):
    return numpyro.param(name, start, constraint=constraints.positive)


def regression(x, y=None, batch_size=None):
    kernel = gp.kernels.RBF(positive("variance", 1.0), positive("lengthscale", 1.0))
    f = gp.sparse_gp("f", kernel, jnp.asarray(X.copy(), float))
    with numpyro.plate("data", len(x), subsample_size=batch_size) as rows:
        here = None if y is None else y[rows]
        noise = positive("noise", 0.6)
        gp.observe("y", gp.likelihoods.Gaussian(noise), f(x[rows]), obs=here)


def best_of_evidence():
    """argmax log N(y; 0, K + σ² I), by NumPy and SciPy."""

    def negative(log_values):
        variance, lengthscale, noise = np.exp(log_values)
        gram = rbf(X, X, variance, lengthscale) + noise**2 * np.eye(len(X))
        half = 0.5 * np.linalg.slogdet(gram)[1]
        return half + 0.5 * Y @ np.linalg.solve(gram, Y)

    found = minimize(negative, np.log([1.0, 1.0, 0.6]), method="Nelder-Mead")
    return dict(zip(("variance", "lengthscale", "noise"), found.x)), -found.fun


@pytest.mark.slow
@mostly_double
@pytest.mark.parametrize("batch_size", [None, 20])
def test_it_finds_the_maximum_of_the_evidence(precision, batch_size):
    expected, _ = best_of_evidence()
    guide = gp.AutoGaussian(regression)
    data = (X, Y, batch_size)
    options = {"num_steps": 500, "progress": False}
    fitted = gp.fit(random.key(0), regression, guide, *data, **options)
    # Far from the maximum, where the fit is: it has to come back.
    start = {**fitted.params, "lengthscale": 1.4, "noise": 0.8}
    found = moving_window_em(
        random.key(1),
        regression,
        *data,
        init=(guide, start),
        # With minibatches the bias of the chains, and of what they lead to, is of the
        # order of their step: −0.15 in log σ_f² at 0.1, −0.07 here (three keys each).
        sampler=gp.mcmc.SGHMC(step_size=0.1 if batch_size is None else 0.03),
        num_steps=20_000,  # the variance comes from far, slowly
        progress=False,
    )
    for name, value in expected.items():
        # log σ_f² is known to a unit by 25 data, the others better.
        atol = 0.15 if name == "variance" else 0.05
        np.testing.assert_allclose(np.log(found[name]), value, atol=atol)


# ------------------------------------------------------------- one value, by hand


def known_variance(y):
    """y_n ~ N(v, 1), v ~ N(0, s²): the evidence is largest at s² = mean(y)² − 1/N."""
    scale = positive("scale", 0.5)
    v = numpyro.sample("v", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(scale * v, 1.0), obs=y)


def test_the_scale_of_one_value():
    y = np.full(4, 2.0)
    guide = numpyro.infer.autoguide.AutoNormal(known_variance)
    options = {"num_steps": 30, "progress": False}
    fitted = gp.fit(random.key(0), known_variance, guide, y, **options)
    found = moving_window_em(
        random.key(1),
        known_variance,
        y,
        init=fitted,
        optimizer=optax.adam(0.02),
        num_chains=16,
        num_steps=2000,
        window_size=40,
        progress=False,
    )
    assert set(found) == set(fitted.params)
    np.testing.assert_allclose(found["scale"], np.sqrt(4.0 - 0.25), rtol=0.03)


# --------------------------------------------------------------- progress, interrupts


class Bar:
    """Of 45 steps, in blocks of 3; interrupts in the last of so many blocks."""

    blocks = 100

    def __init__(self, total, what, show):
        self.done, self.words = [], []
        Bar.made = self

    def reset(self):
        pass

    def close(self):
        self.done.append("closed")

    def set_postfix_str(self, words):
        self.words.append(words)
        if len(self.done) == self.blocks:
            raise KeyboardInterrupt

    def update(self, number):
        self.done.append(number)


def run_with(monkeypatch, blocks, num_steps=45):
    monkeypatch.setattr(Bar, "blocks", blocks)
    monkeypatch.setattr(MODULE, "progress_bar", Bar)
    guide = numpyro.infer.autoguide.AutoNormal(known_variance)
    y = np.full(4, 2.0)
    options = {"num_steps": 3, "progress": False}
    fitted = gp.fit(random.key(0), known_variance, guide, y, **options)
    options = {"init": fitted, "num_chains": 2, "num_steps": num_steps}
    return moving_window_em(random.key(1), known_variance, y, **options)["scale"]


def test_progress_has_the_values_and_an_interrupt_keeps_them(monkeypatch):
    whole = run_with(monkeypatch, 100, 44)
    assert Bar.made.done == [3] * 14 + [2, "closed"]
    assert Bar.made.words[0] == "compiling" and Bar.made.words[-1][:7] == "scale 0"
    with pytest.warns(UserWarning, match=r"after 24 of 44 steps; .*init=\(guide, p"):
        stopped = run_with(monkeypatch, 7, 44)
    # 22 steps do not count; the mean of the two others is next to the last one.
    last = float(Bar.made.words[-1].removeprefix("scale "))
    np.testing.assert_allclose(stopped, last, atol=0.01)
    assert abs(stopped - whole) > 0.02
    with pytest.raises(KeyboardInterrupt):
        run_with(monkeypatch, 0, 44)


def test_weights_of_a_network_are_parameters_too(monkeypatch):
    def model(y):
        net = numpyro.param("net", {"w": jnp.ones(2), "b": jnp.zeros(())})
        v = numpyro.sample("v", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            scale = positive("scale", 0.5)
            numpyro.sample("y", dist.Normal(net["w"].sum() * v, scale), obs=y)

    monkeypatch.setattr(MODULE, "progress_bar", Bar)
    guide, y = numpyro.infer.autoguide.AutoNormal(model), np.array([1.0, 2.0, 1.5])
    fitted = gp.fit(random.key(0), model, guide, y, num_steps=3, progress=False)
    options = {"init": fitted, "num_chains": 2, "num_steps": 10}
    found = moving_window_em(random.key(1), model, y, **options)
    assert set(found["net"]) == {"w", "b"} and not np.all(found["net"]["w"] == 1.0)
    assert Bar.made.words[-1].startswith("scale ") and "net" not in Bar.made.words[-1]


@pytest.mark.thorough
def test_what_a_fit_has_frozen_stays():
    data, options = (X, Y), {"num_chains": 2, "num_steps": 4, "progress": False}

    def moved(freeze):
        fitted = gp.fit(
            random.key(0), regression, None, *data,
            num_steps=2, freeze=freeze, progress=False,
        )  # fmt: skip
        found = moving_window_em(
            random.key(1), regression, *data, init=fitted, **options
        )
        names = "variance", "lengthscale", "noise"
        return {n for n in names if found[n] != fitted.params[n]}

    assert moved({"variance": np.inf, "noise": 3, "lengthscale": 2}) == {"lengthscale"}
    with pytest.raises(ValueError, match=r"frozen, \['length.*nothing to maximise"):
        moved(dict.fromkeys(("variance", "lengthscale", "noise"), np.inf))


def test_parameters_that_are_lost_end_the_run(monkeypatch):
    adam = optax.adam(0.02)

    def lost_at_ten(updates, state, params=None):
        updates, state = adam.update(updates, state, params)
        is_late = state[0].count > 10
        return {n: jnp.where(is_late, jnp.nan, u) for n, u in updates.items()}, state

    monkeypatch.setattr(
        MODULE, "_ADAM", optax.GradientTransformation(adam.init, lost_at_ten)
    )
    with pytest.raises(FloatingPointError, match=r"\['scale'\] are not finite"):
        run_with(monkeypatch, 100)
    assert Bar.made.done == [3] * 4 + ["closed"]


# --------------------------------------------------------------------------- refusals


@pytest.mark.usefixtures("as_users_call")
def test_what_it_refuses():
    guide = gp.AutoGaussian(gaussian_model)
    init = (guide, {"f_auto_loc": np.zeros(4), "f_auto_scale_tril": np.eye(4)})
    with pytest.raises(ValueError, match="no param site, and nothing to maximise"):
        moving_window_em(random.key(0), gaussian_model, X, Y, init=init)
    nuts = gp.mcmc.NUTS()
    with pytest.raises(ValueError, match="sampler must be an object such as"):
        moving_window_em(random.key(0), regression, X, Y, init=init, sampler=nuts)
    with pytest.raises(ValueError, match="window_size"):
        moving_window_em(random.key(0), regression, X, Y, init=init, window_size=0)
