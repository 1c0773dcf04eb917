"""Samplers and target together: ranks of simulated truths, and the joint distribution.

With z = x nothing is left open by the inducing values, and the target is the exact log
density of the model.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import MCMC, SVI
from numpyro.infer import NUTS as NumPyroNUTS
from scipy.stats import chi2

import svgp_ppl as gp
from svgp_ppl import diagnostics
from svgp_ppl.mcmc import HMC, NUTS, Gibbs
from svgp_ppl.mcmc.target import Target

X = np.linspace(0.0, 2.0, 6)[:, None]
NAMES = ("lengthscale", "variance", "f")


def model(x, y=None):
    """A Poisson model whose hyperparameters have asymmetric priors."""
    variance = numpyro.sample("variance", dist.Gamma(3.0, 3.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 4.0))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), X, jitter=1e-8)
    with numpyro.plate("data", len(x)):
        gp.observe("y", gp.likelihoods.Poisson(3.0), f(x), obs=y)


def simulate(key):
    """Latent values and counts of the model, by hand."""
    keys = random.split(key, 4)
    variance = random.gamma(keys[0], 3.0) / 3.0
    lengthscale = random.gamma(keys[1], 4.0) / 4.0
    v = random.normal(keys[2], (len(X),))
    values = {"variance": variance, "lengthscale": lengthscale, "f": v}
    return values, counts(keys[3], values)


def counts(key, values):
    """y given the latent values: f = L v, since z = x."""
    squares = (X - X.T) ** 2
    gram = values["variance"] * jnp.exp(-0.5 * squares / values["lengthscale"] ** 2)
    tril = jnp.linalg.cholesky(gram + 1e-8 * jnp.eye(len(X)))
    return random.poisson(key, 3.0 * jnp.exp(tril @ values["f"]))


def unconstrained(values):
    logs = {name: jnp.log(values[name]) for name in ("variance", "lengthscale")}
    return {**logs, "f": values["f"]}


@pytest.fixture
def target():
    return Target(random.key(0), model, (X, np.zeros(len(X), int)), {}, {})


def from_prior(target):
    """Chains start at another draw of the prior."""
    return lambda key, y: unconstrained(simulate(key)[0])


def from_fit(target):
    """Chains start from the Gaussian approximation, fitted to each data set."""
    guide = gp.AutoGaussian(model)
    svi = SVI(model, guide, optax.adam(0.05), gp.MarginalELBO())
    svi.init(random.key(0), X, np.zeros(len(X), int))

    def start(key, y):
        key_init, key_draw = random.split(key)
        state = svi.init(key_init, X, y)
        state, _ = jax.lax.scan(
            lambda state, _: svi.update(state, X, y), state, length=300
        )
        params = svi.get_params(state)
        positions = target.positions_from(key_draw, guide, params, 1)
        return {name: values[0] for name, values in positions.items()}

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler, start_of",
    [
        (NUTS(), from_prior),
        (HMC((0.15, 0.15), (20, 20)), from_prior),
        (NUTS(), from_fit),
    ],
    ids=["nuts", "hmc", "fit and nuts"],
)
def test_ranks_of_the_truth_are_uniform(sampler, start_of, target):
    # Simulation-based calibration (Talts et al. 2018): 400 data sets, 24 thinned draws
    # of each; the rank of the truth is uniform on 0, ..., 24.
    num_sets, num_warmup, thin, kept = 400, 300, 20, 24
    start = start_of(target)

    def ranks_of(key):
        key_truth, key_start, key_init, key_run = random.split(key, 4)
        truth, y = simulate(key_truth)

        def logdensity_fn(position):
            return target.logdensity_fn(position, target.data._replace(arrays=[X, y]))

        warmup = sampler.init(key_init, start(key_start, y), logdensity_fn)
        keys = random.split(key_run, num_warmup + thin * kept)

        def warm(warmup, inputs):
            key, entry = inputs
            return sampler.warmup_step(key, warmup, logdensity_fn, entry)[0], None

        schedule = sampler.schedule(num_warmup)
        warmup, _ = jax.lax.scan(warm, warmup, (keys[:num_warmup], schedule))
        state, tuned = sampler.finish(warmup)

        def step(state, key):
            state = sampler.step(key, state, logdensity_fn, tuned)[0]
            return state, state.position

        _, draws = jax.lax.scan(step, state, keys[num_warmup:])
        thinned = jax.tree.map(lambda leaf: leaf[::thin], draws)
        below = jax.tree.map(jnp.less, thinned, unconstrained(truth))
        return jax.tree.map(partial(jnp.sum, axis=0), below)

    ranks = jax.jit(jax.vmap(ranks_of))(random.split(random.key(1), num_sets))
    for name in NAMES:
        for column in np.asarray(ranks[name]).reshape(num_sets, -1).T:
            observed = np.bincount(column // 5, minlength=5)
            statistic = np.sum((observed - num_sets / 5) ** 2 / (num_sets / 5))
            # 24 tests: each at level 1e-4.
            assert statistic < chi2(4).isf(1e-4), (name, observed)


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["hmc", "elliptical_slice"])
def test_gibbs_leaves_the_joint_distribution_invariant(inner, target):
    # Geweke (2004): latent values by the sampler given y, then y given them. Their
    # marginal is the prior, whose moments are known.
    sampler = Gibbs(
        inner,
        step_size_bounds=(0.2, 0.2),
        max_steps_bounds=(10, 10),
        scale_bounds=(0.5, 0.5),
        whitened=("f",),
    )
    num_chains, num_iterations = 16, 4000

    def chain(key):
        key_start, key_run = random.split(key)
        start, y = simulate(key_start)

        def logdensity_at(y):
            return lambda position: target.logdensity_fn(
                position, target.data._replace(arrays=[X, y])
            )

        warmup = sampler.init(key, unconstrained(start), logdensity_at(y))
        tuned = warmup.tuned

        def iterate(carry, key):
            state, y = carry
            key_step, key_y = random.split(key)
            logdensity_fn = logdensity_at(y)
            fresh = logdensity_fn(state.position)
            state = state._replace(logdensity=fresh)
            state, _ = sampler.step(key_step, state, logdensity_fn, tuned)
            position = state.position
            values = {
                "variance": jnp.exp(position["variance"]),
                "lengthscale": jnp.exp(position["lengthscale"]),
                "f": position["f"],
            }
            return (state, counts(key_y, values)), values

        keys = random.split(key_run, num_iterations)
        return jax.lax.scan(iterate, (warmup.state, y), keys)[1]

    draws = jax.jit(jax.vmap(chain))(random.split(random.key(2), num_chains))
    prior = {"variance": (1.0, 1 / 3), "lengthscale": (1.0, 1 / 4), "f": (0.0, 1.0)}
    for name, (mean, variance) in prior.items():
        x = np.asarray(draws[name])
        for values, expected in ((x, mean), ((x - mean) ** 2, variance)):
            ess = diagnostics.ess({"x": values})["x"]
            error = np.abs(values.mean((0, 1)) - expected)
            assert np.all(ess > 400), (name, ess)
            assert np.all(error < 5 * values.std((0, 1)) / np.sqrt(ess)), (name, error)


@pytest.mark.slow
def test_sparse_at_the_data_is_the_dense_model():
    # The same model written densely and sampled by NumPyro.
    y = np.array([2, 5, 4, 1, 0, 3])

    def dense(y):
        variance = numpyro.sample("variance", dist.Gamma(3.0, 3.0))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(4.0, 4.0))
        gram = variance * jnp.exp(-0.5 * ((X - X.T) / lengthscale) ** 2)
        f = numpyro.sample(
            "g", dist.MultivariateNormal(jnp.zeros(6), gram + 1e-8 * jnp.eye(6))
        )
        numpyro.sample("y", dist.Poisson(3.0 * jnp.exp(f)).to_event(1), obs=y)

    mcmc = MCMC(
        NumPyroNUTS(dense, target_accept_prob=0.95),
        num_warmup=1500,
        num_samples=6000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(random.key(3), y)
    reference = {n: np.asarray(v) for n, v in mcmc.get_samples(True).items()}
    draws = gp.sample(
        random.key(4),
        model,
        X,
        y,
        sampler=NUTS(target_acceptance_rate=0.9),
        num_samples=4000,
        progress=False,
    )
    values = diagnostics.group(draws, "posterior")
    ours = {"variance": values["variance"], "lengthscale": values["lengthscale"]}
    gram = ours["variance"][..., None, None] * np.exp(
        -0.5 * (X - X.T) ** 2 / ours["lengthscale"][..., None, None] ** 2
    )
    tril = np.linalg.cholesky(gram + 1e-8 * np.eye(6))
    ours["g"] = np.einsum("cdij,cdj->cdi", tril, values["f"])
    for name, x in ours.items():
        other = reference[name]
        for power in (1, 2):
            centre = other.mean((0, 1)) if power == 2 else 0.0
            a, b = (x - centre) ** power, (other - centre) ** power
            errors = [
                v.std((0, 1)) / np.sqrt(diagnostics.ess({"v": v})["v"]) for v in (a, b)
            ]
            gap = np.abs(a.mean((0, 1)) - b.mean((0, 1)))
            assert np.all(gap < 5 * np.hypot(*errors)), (name, power, gap, errors)
