"""GPflow's numbers on one random problem, in float64: every number by two libraries."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import random
from numpyro.handlers import seed, trace
from numpyro.infer.util import log_density
from scipy.special import log_ndtr, ndtr

from svgp_ppl import MarginalELBO, expectations, kernels, observe, sparse_gp
from svgp_ppl import likelihoods as lk
from svgp_ppl.expectations.predictive import predictive_probabilities
from svgp_ppl.handlers import replay_distributions

R = dict(np.load(pathlib.Path(__file__).parent / "fixtures" / "gpflow.npz"))
SCALE_DIAGONAL = np.abs(np.diag(R["q_scale_tril"]))


def _clipped_probit(f):
    """GPflow's link, 1e-3 + (1 − 2e-3) Φ(f).

    It is not the probit: on these data, where some labels are improbable, the exact
    bound is 9 % away from theirs. So theirs is reproduced with their link, and ours
    is held against a dense integration of log Φ.
    """
    return dist.Bernoulli(probs=1e-3 + (1.0 - 2e-3) * jax.scipy.special.ndtr(f))


# Our likelihood, the data, and the method (None where the closed form is theirs too).
CASES = {
    "gaussian": (lk.Gaussian(0.3), R["y_gaussian"], None),
    "bernoulli_probit": (
        _clipped_probit,
        R["y_bernoulli"],
        expectations.GaussHermite(20),
    ),
    # Theirs are 20 nodes, 6e-8 (logit) and 0.095 nats (Student-t) from the expectation.
    "bernoulli_logit": (
        lk.Bernoulli("logit"),
        R["y_bernoulli"],
        expectations.GaussHermite(20),
    ),
    "poisson": (lk.Poisson(), R["y_poisson"], None),
    "studentt": (
        lk.StudentT(4.0, 0.3),
        R["y_gaussian"],
        expectations.GaussHermite(20),
    ),
}
GUIDES = {
    "full": lambda: dist.MultivariateNormal(R["q_mean"], scale_tril=R["q_scale_tril"]),
    "diagonal": lambda: dist.Normal(R["q_mean"], SCALE_DIAGONAL).to_event(1),
}


def _kernel():
    return kernels.RBF(R["variance"], R["lengthscale"])


def _model(likelihood, jitter, method=None):
    def model(x, y=None, size=None):
        f = sparse_gp("f", _kernel(), R["z"], jitter=jitter)
        # Seen as a minibatch of ``size`` rows, as GPflow's ``num_data`` does.
        with numpyro.plate("data", size or len(x), subsample_size=len(x)):
            observe("y", likelihood, f(x), obs=y, method=method)

    return model


def _guide(qv):
    def guide(*args, **kwargs):
        numpyro.sample("f", GUIDES[qv]())

    return guide


def _numbers(likelihood, y, jitter, method):
    """The three bounds, the sparse MCMC target's first term, log E p, [40]."""
    model, x = _model(likelihood, jitter, method), R["x"]

    def bound(qv, **options):
        guide = _guide(qv)
        return -MarginalELBO().loss(random.key(0), {}, model, guide, x, y, **options)

    @jax.jit
    def run(v):
        density, _ = log_density(model, (x, y), {}, {"f": v})
        expected = _held(model, x, y)
        return {
            "elbo": bound("full"),
            "elbo_diagonal": bound("diagonal"),
            "elbo_minibatch_scaled": bound("full", size=400),
            "sgpmc_expectation": density - dist.Normal(0.0, 1.0).log_prob(v).sum(),
            "predictive": expected.log_predictive(y),
        }

    return run(jnp.asarray(R["q_mean"]))


def _held(model, *args):
    """The distribution of site y when the full q(v) is in force."""
    guide_trace = trace(seed(_guide("full"), 0)).get_trace()
    held = trace(replay_distributions(seed(model, 1), guide_trace)).get_trace(*args)
    return held["y"]["fn"]


SCALARS = ("elbo", "elbo_diagonal", "elbo_minibatch_scaled", "sgpmc_expectation")


@pytest.mark.parametrize("name", CASES)
def test_bounds_and_densities(name):
    likelihood, y, method = CASES[name]
    ours = _numbers(likelihood, y, 1e-6, method)
    for what in SCALARS:
        theirs = R[f"{what}_{name}"]
        np.testing.assert_allclose(ours[what], theirs, rtol=1e-9, err_msg=what)
    if name == "gaussian":
        theirs, tolerance = R["predictive_log_density_gaussian"], 1e-9
    elif name == "bernoulli_probit":  # theirs is the exact Φ(m / √(1 + v)), clipped
        return
    else:
        # 1e-4 nats are wanted; the rule is far better on these data.
        theirs, tolerance = R[f"predictive_log_density_accurate_{name}"], 1e-9
    np.testing.assert_allclose(ours["predictive"], theirs, rtol=0, atol=tolerance)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gaussian", "studentt"])
def test_default_jitter_changes_little(name):
    likelihood, y, method = CASES[name]
    ours = _numbers(likelihood, y, None, method)
    for what in SCALARS:
        theirs = R[f"{what}_{name}"]
        np.testing.assert_allclose(ours[what], theirs, rtol=1e-5, err_msg=what)


def test_probit_is_exact():
    y = R["y_bernoulli"]

    @jax.jit
    def run():
        expected = _held(_model(lk.Bernoulli("probit"), 1e-6), R["x"], y)
        marginal = expected.marginal()
        bound, predictive = expected.log_prob(y), expected.log_predictive(y)
        return bound, predictive, marginal.mean, marginal.variance

    expectation, predictive, mean, variance = map(np.asarray, run())
    # Dense trapezoidal integration of log Φ over ±12 standard deviations.
    e = np.linspace(-12.0, 12.0, 20001)[:, None]
    density = np.exp(-0.5 * e**2) / np.sqrt(2 * np.pi) * (e[1, 0] - e[0, 0])
    log_p = log_ndtr(np.where(y == 1, 1.0, -1.0) * (mean + np.sqrt(variance) * e))
    np.testing.assert_allclose(expectation, (density * log_p).sum(0), rtol=1e-6)
    by_hand = np.log((density * np.exp(log_p)).sum(0))
    np.testing.assert_allclose(predictive, by_hand, rtol=1e-9)


def _robust_max(x, noise, flip):
    """Marginals of three processes at x under the stored variational distributions."""

    def model(x):
        f = sparse_gp("f", _kernel(), R["z"], num_outputs=3, jitter=1e-6)
        observe("y", lk.AdditiveNoiseCategorical(3, noise, flip), f(x))

    def guide(*args):
        variational = dist.MultivariateNormal(
            R["q_mean_3"], scale_tril=R["q_scale_tril_3"]
        )
        numpyro.sample("f", variational.to_event(1))

    guide_trace = trace(seed(guide, 0)).get_trace()
    held = trace(replay_distributions(seed(model, 1), guide_trace)).get_trace(x)
    return held["y"]["fn"]


def _divergence_of_three():
    return 0.5 * (
        np.sum(R["q_scale_tril_3"] ** 2)
        + np.sum(R["q_mean_3"] ** 2)
        - R["q_mean_3"].size
        - 2 * np.sum(np.log(np.diagonal(R["q_scale_tril_3"], axis1=1, axis2=2)))
    )


def _largest(marginal, y, e, weights, low):
    """P(f_y is the largest) as a weighted sum over e, Φ squeezed to [low, 1 − low]."""
    mean, sd = np.asarray(marginal.mean), np.sqrt(marginal.variance)
    rows = np.arange(len(y))
    f = mean[rows, y] + sd[rows, y] * e[:, None]
    factors = ndtr((f[..., None] - mean) / sd) * (1 - 2 * low) + low
    factors = np.where(np.arange(3) == y[:, None], 1.0, factors)
    return weights @ np.prod(factors, axis=-1)


def test_robust_max():
    """Like for like: their numbers by their rule, ours by dense integration.

    Their Φ is squeezed to [1e-6, 1 − 1e-6], which moves a probability by 1e-6; their 20
    Gauss–Hermite nodes move it by up to 1.3e-4 here, and the bound by 2e-4 nats.
    """
    flip, y = 1e-3, R["y_multiclass"].astype(int)

    @jax.jit
    def run():
        seen = _robust_max(R["x"], "step", flip)
        new = _robust_max(R["x_new"], "step", flip)
        at_new = new.marginal()
        probs = predictive_probabilities(new.likelihood, new.support, at_new)
        return seen.log_prob(y), probs, seen.marginal(), at_new

    value, probs, marginal, marginal_new = jax.tree.map(np.asarray, run())
    kl = _divergence_of_three()
    nodes, weights = expectations.hermite_grid(20, 1)
    e = np.linspace(-8.0, 8.0, 8001)
    density = np.exp(-0.5 * e**2) / np.sqrt(2 * np.pi) * (e[1] - e[0])

    def by(rule):
        s = _largest(marginal, y, *rule)
        bound = np.sum(s * np.log(1 - flip) + (1 - s) * np.log(flip / 2)) - kl
        s = [_largest(marginal_new, np.full(11, c), *rule) for c in range(3)]
        return bound, flip / 2 + (1 - 1.5 * flip) * np.stack(s, axis=1)

    theirs, exact = by((nodes[:, 0], weights, 1e-6)), by((e, density, 0.0))
    np.testing.assert_allclose(theirs[0], R["elbo_robustmax"], rtol=1e-10)
    np.testing.assert_allclose(theirs[1], R["robustmax_probabilities"], rtol=1e-6)
    np.testing.assert_allclose(value.sum() - kl, exact[0], rtol=1e-8)
    np.testing.assert_allclose(probs, exact[1], atol=1e-7)
    np.testing.assert_allclose(value.sum() - kl, R["elbo_robustmax"], rtol=1e-5)
    np.testing.assert_allclose(probs, R["robustmax_probabilities"], atol=2e-4)


def test_predictions():
    @jax.jit
    def run():
        latent = _held(_model(lk.Gaussian(0.3), 1e-6), R["x_new"]).latent
        return latent.mean, latent.variance, *latent.joint()

    mean, variance, joint_mean, covariance = run()
    np.testing.assert_allclose(mean, R["predict_mean"], rtol=1e-9)
    np.testing.assert_allclose(joint_mean, R["predict_mean"], rtol=1e-9)
    np.testing.assert_allclose(variance, R["predict_variance"], rtol=1e-9)
    np.testing.assert_allclose(covariance, R["predict_covariance"], rtol=1e-8)


def _gaussian_at_the_optimum(z, jitter, noise_variance=0.09):
    """Bound and predictions of our model at the optimal q(v) for Gaussian noise."""
    x, y = R["x"], R["y_gaussian"]
    likelihood = lk.Gaussian(np.sqrt(noise_variance))

    def model(x, y=None):
        f = sparse_gp("f", _kernel(), z, jitter=jitter)
        with numpyro.plate("data", len(x)):
            observe("y", likelihood, f(x), obs=y)

    kernel = _kernel()
    scale_tril = jnp.linalg.cholesky(kernel(z) + jitter * jnp.eye(len(z)))
    a = jnp.linalg.solve(scale_tril, kernel(z, x))
    # S = (I + a aᵀ / σ²)⁻¹, m = S a y / σ²
    covariance = jnp.linalg.inv(jnp.eye(len(z)) + a @ a.T / noise_variance)
    loc = covariance @ a @ y / noise_variance

    def guide(*args):
        numpyro.sample("f", dist.MultivariateNormal(loc, covariance))

    bound = -MarginalELBO().loss(random.key(0), {}, model, guide, x, y)
    guide_trace = trace(seed(guide, 0)).get_trace()
    held = trace(replay_distributions(seed(model, 1), guide_trace)).get_trace(
        R["x_new"]
    )
    latent = held["y"]["fn"].latent
    return bound, latent.mean, latent.variance


def test_titsias():
    bound, mean, variance = jax.jit(lambda: _gaussian_at_the_optimum(R["z"], 1e-6))()
    np.testing.assert_allclose(bound, R["titsias_bound"], rtol=1e-9)
    np.testing.assert_allclose(mean, R["titsias_mean"], rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(variance, R["titsias_variance"], rtol=1e-9)


def test_exact():
    # With z = x nothing is approximated but the jitter.
    bound, mean, variance = jax.jit(lambda: _gaussian_at_the_optimum(R["x"], 1e-10))()
    np.testing.assert_allclose(bound, R["exact_log_evidence"], rtol=1e-6)
    np.testing.assert_allclose(mean, R["exact_mean"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(variance, R["exact_variance"], rtol=1e-6)
