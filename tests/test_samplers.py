"""Samplers beside NUTS: the same asymmetric posterior, tuning, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import gamma, norm

import svgp_ppl as gp
from svgp_ppl import diagnostics
from svgp_ppl.diagnostics import group
from svgp_ppl.mcmc import HMC, MCLMC, ChEES, EllipticalSlice, Gibbs, run_chains
from svgp_ppl.mcmc.samplers.hmc import _num_steps
from svgp_ppl.mcmc.samplers.tuning import BayesianOptimisation, log_grid, step_grid
from tests.conftest import mostly_double
from tests.models import (
    COUNTS_X,
    COUNTS_Y,
    GAUSSIAN_X,
    GAUSSIAN_Y,
    counts_model,
    gaussian_model,
    gaussian_posterior,
)

# y_j ~ N(v_j, 1/w), v_j ~ N(0, 1), w ~ Gamma(2, rate 1); sampled in θ = log w.
Y = np.array([2.0, -1.0, 0.5, 0.2])
SHAPE, RATE = 2.0, 1.0


def logdensity(position, y):
    v, theta = position["v"], position["theta"]
    prior = SHAPE * theta - RATE * jnp.exp(theta) - 0.5 * jnp.sum(v**2)
    squares = jnp.sum((y - v) ** 2)
    return prior + 0.5 * len(Y) * theta - 0.5 * jnp.exp(theta) * squares


def logdensity_of_v(position, y):
    return logdensity({"v": position["v"], "theta": jnp.log(3.0)}, y)


def exact_moments():
    """Means and variances of θ and v, with v integrated out by hand.

    y_j ~ N(0, 1 + 1/w), and v_j given w has mean w y_j/(1 + w), variance 1/(1 + w).
    """

    def weight(t):
        w = np.exp(t)
        density = norm.pdf(Y, 0.0, np.sqrt(1.0 + 1.0 / w))
        return np.prod(density) * gamma.pdf(w, SHAPE, scale=1.0 / RATE) * w

    def mean_of(function):
        return quad(lambda t: function(t) * weight(t), -9.0, 5.0, epsabs=1e-12)[0]

    total = mean_of(lambda t: 1.0)
    theta = mean_of(lambda t: t) / total
    share = mean_of(lambda t: np.exp(t) / (1 + np.exp(t))) / total
    square = mean_of(lambda t: (np.exp(t) / (1 + np.exp(t))) ** 2) / total
    within = mean_of(lambda t: 1 / (1 + np.exp(t))) / total
    return {
        "theta": (theta, mean_of(lambda t: (t - theta) ** 2) / total),
        "v": (share * Y, within + (square - share**2) * Y**2),
    }


def run(sampler, num_chains=4, num_warmup=300, num_samples=1500, **options):
    positions = {"v": jnp.zeros((num_chains, 4)), "theta": jnp.zeros(num_chains)}
    if isinstance(sampler, EllipticalSlice):
        del positions["theta"]
    return run_chains(
        jax.random.key(0),
        options.pop("logdensity_fn", logdensity),
        positions,
        sampler,
        num_warmup=num_warmup,
        num_samples=num_samples,
        data=jnp.asarray(Y),
        progress=False,
    )


def assert_moments(draws, moments, slack=0.0):
    """Within 5 standard errors and ``slack`` standard deviations."""
    for name, (mean, variance) in moments.items():
        x = np.asarray(draws[name], np.float64)
        for values, expected in ((x, mean), ((x - mean) ** 2, variance)):
            ess = diagnostics.ess({"x": values})["x"]
            assert np.all(ess > 200), (name, ess)
            sd = values.std((0, 1))
            error = np.abs(values.mean((0, 1)) - expected)
            assert np.all(error < 5 * sd / np.sqrt(ess) + slack * sd), (name, error)


def assert_statistics(chains, jumps):
    """``lp`` is of the draw; jumps (name -> sites) lead to it from the one before."""
    draws = {name: np.asarray(x) for name, x in chains.draws.items()}
    lp = jax.jit(jax.vmap(jax.vmap(lambda p: logdensity(p, jnp.asarray(Y)))))(draws)
    np.testing.assert_allclose(chains.stats["lp"], lp, rtol=1e-9)
    for name, sites in jumps.items():
        steps = [np.diff(draws[site], axis=1) ** 2 for site in sites]
        moved = sum(np.sum(s.reshape(*s.shape[:2], -1), axis=-1) for s in steps)
        np.testing.assert_allclose(
            chains.stats[name][:, 1:], moved, rtol=1e-9, atol=1e-14
        )


# ------------------------------------------------------------------ right posteriors

SAMPLERS = {
    "hmc": HMC(num_rounds=10),
    "gibbs": Gibbs("hmc", (0.05, 0.5), (4, 16), (0.5, 3.0), 10, whitened=("v",)),
    "gibbs of slices": Gibbs(
        "elliptical_slice", scale_bounds=(0.5, 3.0), num_rounds=10, whitened=("v",)
    ),
    "chees": ChEES(),
}


@pytest.mark.parametrize(
    "name, precision",
    [
        *((name, 64) for name in SAMPLERS if name != "gibbs of slices"),
        pytest.param("gibbs of slices", 64, marks=pytest.mark.slow),
        pytest.param("hmc", 32, marks=pytest.mark.slow),
        pytest.param("gibbs of slices", 32, marks=pytest.mark.slow),
    ],
    indirect=["precision"],
)
def test_asymmetric_posterior_is_found(name, precision):
    options = {"num_samples": 3000} if "gibbs" in name else {}
    if name == "chees":
        options = {"num_chains": 16, "num_samples": 500}
    chains = run(SAMPLERS[name], **options)
    assert_moments(chains.draws, exact_moments())
    assert chains.draws["v"].dtype == np.dtype(f"float{precision}")
    assert chains.stats["diverging"].mean() < 0.01
    if name == "gibbs":
        # 1 to 16 steps of a trajectory, and a gradient at its start: θ has moved.
        n_steps = chains.stats["n_steps"]
        assert n_steps.min() == 2 and 4 < n_steps.max() <= 17
        assert len(np.unique(n_steps)) > 4  # another number at each draw
        assert np.all(chains.stats["num_evaluations"] == 1)
        jumps = {"squared_jump": ["v"], "squared_jump_rest": ["theta"]}
        assert_statistics(chains, jumps)


@mostly_double
def test_elliptical_slices_find_a_gaussian_posterior(precision):
    chains = run(EllipticalSlice(("v",)), logdensity_fn=logdensity_of_v)
    assert_moments(chains.draws, {"v": (0.75 * Y, np.full(4, 0.25))})
    assert chains.num_gradients == 0
    evaluations = chains.stats["num_evaluations"]
    assert evaluations.min() == 1 and 1.2 < evaluations.mean() < 5
    last = {"v": chains.draws["v"][:, -1]}
    lp = jax.jit(jax.vmap(lambda p: logdensity_of_v(p, jnp.asarray(Y))))(last)
    np.testing.assert_allclose(
        chains.stats["lp"][:, -1], lp, rtol=1e-4 if precision == 32 else 1e-10
    )


@pytest.mark.slow
@pytest.mark.parametrize("precision", [32], indirect=True)
def test_mclmc_is_near_the_posterior(precision):
    # Not corrected: near it by what the tolerance of its energy allows.
    chains = run(MCLMC(desired_energy_variance=1e-4), num_warmup=500)
    assert_moments(chains.draws, exact_moments(), slack=0.05)
    assert chains.num_gradients == 4 * 1500 * 20
    assert np.all(chains.stats["energy_variance"].mean(1) < 2e-3)


def test_mclmc_wants_two_values():
    with pytest.raises(ValueError, match="directions of at least two values"):
        MCLMC().init(jax.random.key(0), {"theta": jnp.zeros(())}, jnp.sum)


# --------------------------------------------------------------------------- tuning


@pytest.mark.thorough
def test_bayesian_optimisation_finds_the_top_of_a_noisy_hill():
    rng = np.random.default_rng(0)
    grid = [log_grid((1e-3, 1.0)), step_grid((2, 40))]
    found = []
    for _ in range(5):
        search = BayesianOptimisation(grid)
        assert search.point[0] == grid[0][10] and search.point[1] == grid[1][6]
        for _ in range(25):
            size, steps = search.point
            hill = -((np.log10(size) + 1.0) ** 2) - ((steps - 30) / 20) ** 2
            search.tell(hill + 0.05 * rng.normal())
        found.append(search.best())
    sizes, steps = np.array(found).T
    assert np.all((sizes > 0.05) & (sizes < 0.2))
    assert np.all((steps >= 18) & (steps <= 40))
    assert len({tuple(f) for f in found}) > 1  # told apart by the noise only


@pytest.mark.thorough
def test_hmc_is_tuned_in_rounds_that_are_compiled_once():
    traces = []

    def counted(position, y):
        traces.append(1)
        return logdensity(position, y)

    sampler = HMC((0.01, 1.0), (2, 20), num_rounds=6)
    chains = run(sampler, num_warmup=60, num_samples=40, logdensity_fn=counted)
    many = len(traces)
    traces.clear()
    sampler = HMC((0.01, 1.0), (2, 20), num_rounds=12)
    run(sampler, num_warmup=120, num_samples=40, logdensity_fn=counted)
    assert len(traces) <= many
    tuned = chains.tuned
    assert np.all(np.isin(tuned.max_steps, step_grid((2, 20))))
    sizes = log_grid((0.01, 1.0)).astype(tuned.step_size.dtype)
    assert np.all(np.min(np.abs(tuned.step_size[:, None] - sizes), 1) < 1e-7)
    np.testing.assert_array_equal(
        chains.stats["step_size"], np.tile(tuned.step_size[:, None], (1, 40))
    )


def test_every_chain_is_tuned_by_itself():
    chains = run(HMC(num_rounds=10), num_samples=20)
    pairs = {*zip(chains.tuned.step_size.tolist(), chains.tuned.max_steps.tolist())}
    assert len(pairs) > 1
    # Good enough for a posterior with unit scales.
    assert np.all(chains.tuned.step_size > 0.05)


def test_lengths_are_uniform_and_equal_bounds_fix_the_tuning():
    chains = run(HMC((0.1, 0.1), (7, 7), num_rounds=2), num_warmup=7, num_samples=2000)
    assert np.all(chains.tuned.step_size == 0.1) and np.all(chains.tuned.max_steps == 7)
    counts = np.bincount(chains.stats["n_steps"][0], minlength=8)
    assert counts[0] == 0 and len(counts) == 8
    # χ² with 6 degrees of freedom exceeds 27.9 with probability 1e-4.
    expected = 2000 / 7
    assert np.sum((counts[1:] - expected) ** 2 / expected) < 27.9
    assert_statistics(chains, {"squared_jump": ["v", "theta"]})
    # In step: no chain waits for another.
    assert np.all(chains.stats["n_steps"] == chains.stats["n_steps"][:1])


@pytest.mark.parametrize("make", [HMC, Gibbs])
@pytest.mark.parametrize("num_warmup, num_rounds", [(60, 6), (64, 6), (5, 30), (0, 6)])
def test_a_warmup_is_whole_rounds_of_at_most_its_length(make, num_warmup, num_rounds):
    sampler = make(num_rounds=num_rounds)
    steps = len(sampler.schedule(num_warmup))
    length = sampler.host_adaptation(2, num_warmup).round_length
    assert num_warmup - length < steps <= num_warmup and steps % length == 0
    assert length == max(1, num_warmup // num_rounds)


@pytest.mark.parametrize("share, steps", [(0.0, 1), (0.5, 21), (1 - 2.0**-24, 40)])
def test_a_trajectory_has_one_step_at_least_and_no_more_than_the_most(
    monkeypatch, share, steps
):
    # The largest number below 1 in single precision.
    monkeypatch.setattr(jax.random, "uniform", lambda key: jnp.float32(share))
    assert _num_steps(0, jnp.asarray(40)) == steps


def test_gibbs_tunes_the_walk_of_each_chain_on_its_jumps():
    # Steps of three; the first chain jumps further when it is wide, the other narrow.
    sampler = Gibbs("elliptical_slice", scale_bounds=(0.5, 3.0), num_rounds=8)
    adaptation = sampler.host_adaptation(2, 24)
    assert adaptation.round_length == 3
    scale, ones = np.ones(2), np.ones((3, 2))
    for _ in range(8):
        jumps = np.array([scale[0], 1 / scale[1]]) * [[0.5], [1.0], [1.5]]
        stats = {"squared_jump_rest": jumps, "squared_jump": ones}
        stats |= {"max_steps": ones, "step_size": ones}
        scale = np.asarray(adaptation.update(stats).scale)
    np.testing.assert_allclose(scale, [3.0, 0.5])


@pytest.mark.thorough
def test_chees_shares_its_tuning():
    chains = run(ChEES(), num_chains=8, num_samples=50)
    step_size, length = chains.tuned
    assert np.all(step_size == step_size[0]) and np.all(length == length[0])
    assert np.all(chains.stats["n_steps"] == chains.stats["n_steps"][:1])
    assert 0.5 < length[0] < 10.0


# --------------------------------------------------------------------- in gp.sample


def sampled(model, sampler, *data, **options):
    sizes = {"num_chains": 2, "num_warmup": 20, "num_samples": 20} | options
    return gp.sample(
        jax.random.key(0), model, *data, sampler=sampler, progress=False, **sizes
    )


@pytest.mark.thorough
def test_gibbs_and_slices_are_told_of_whitened_sites():
    short = Gibbs("elliptical_slice", num_rounds=2)
    draws = sampled(counts_model, short, COUNTS_X, COUNTS_Y)
    assert np.all(group(draws, "sample_stats")["acceptance_rate"] == 1.0)
    assert len(np.unique(group(draws, "posterior")["f"][..., 0])) > 30
    slices = sampled(
        gaussian_model,
        EllipticalSlice(),
        GAUSSIAN_X,
        GAUSSIAN_Y,
        num_warmup=50,
        num_samples=2000,
    )
    mean, covariance = gaussian_posterior()
    draws = {"f": group(slices, "posterior")["f"]}
    assert_moments(draws, {"f": (mean, np.diag(covariance))})


@pytest.mark.parametrize(
    "model, sampler, message",
    [
        (counts_model, EllipticalSlice(), r"\['lengthscale', 'variance'\] beside them"),
        (gaussian_model, Gibbs(), r"has \['f'\] and \[\]: use HMC or NUTS"),
    ],
)
def test_models_that_a_sampler_does_not_suit_are_refused(model, sampler, message):
    with pytest.raises(ValueError, match=message):
        sampled(model, sampler, COUNTS_X, COUNTS_Y)


def test_chees_refuses_a_single_chain():
    with pytest.raises(ValueError, match="tunes on many chains together"):
        run(ChEES(), num_chains=1)


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: HMC((1.0, 0.1)), "step_size_bounds must be two positive numbers"),
        (lambda: HMC(max_steps_bounds=(0, 3)), "max_steps_bounds must be two positive"),
        (lambda: HMC(num_rounds=0), "num_rounds must be at least 1; got 0"),
        (lambda: Gibbs("nuts"), "inner must be 'hmc' or 'elliptical_slice'"),
        (lambda: Gibbs(scale_bounds=(0.0, 1.0)), "scale_bounds must be two positive"),
        (lambda: Gibbs(num_rounds=0), "num_rounds must be at least 1; got 0"),
        (lambda: MCLMC(num_steps_a_draw=0), "num_steps_a_draw must be positive"),
        (lambda: ChEES(1.5), "target_acceptance_rate must lie strictly between"),
        (lambda: ChEES(max_num_steps=0), "max_num_steps must be positive"),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_smallest_settings_are_not_refused():
    assert HMC((0.1, 0.1), (1, 1), num_rounds=1).num_rounds == 1
    assert Gibbs(scale_bounds=(1.0, 1.0), num_rounds=1).num_rounds == 1
    assert MCLMC(num_steps_a_draw=1).num_steps_a_draw == 1
    assert ChEES(max_num_steps=1).max_num_steps == 1


def test_settings_that_nobody_chose_stay_what_they_are():
    assert HMC() == HMC((1e-3, 1.0), (2, 40), 30, 1000.0)
    assert Gibbs() == Gibbs("hmc", (1e-3, 1.0), (2, 40), (1e-2, 3.0), 30, 1000.0, ())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["gibbs of slices", pytest.param("mclmc", marks=pytest.mark.slow)]
)
def test_nan_is_never_a_draw(name):
    def broken(position, y):
        value = logdensity({"theta": jnp.zeros(()), **position}, y)
        return jnp.where(position["v"][0] > 0.5, jnp.nan, value)

    sampler = {**SAMPLERS, "mclmc": MCLMC()}[name]
    chains = run(sampler, num_warmup=40, num_samples=200, logdensity_fn=broken)
    assert np.all(np.isfinite(chains.stats["lp"]))
    assert np.all(chains.draws["v"][..., 0] <= 0.5)
    assert chains.draws["v"][..., 1].std() > 0.2


def test_gibbs_never_walks_to_nan():
    # One step of many chains: from a θ without a density none would come back.
    def broken(position):
        value = logdensity(position, jnp.asarray(Y))
        return jnp.where(position["theta"] > 0.3, jnp.nan, value)

    sampler = SAMPLERS["gibbs of slices"]

    @jax.jit
    def run(position):
        warmup = sampler.init(jax.random.key(0), position, broken)

        def step(key):
            return sampler.step(key, warmup.state, broken, warmup.tuned)

        return jax.vmap(step)(jax.random.split(jax.random.key(1), 200))

    new, info = run({"v": np.zeros(4), "theta": np.zeros(())})
    theta = np.asarray(new.position["theta"])
    assert np.all(theta <= 0.3) and 0.2 < np.mean(theta != 0.0) < 0.8
    assert np.all(np.isfinite(info.lp))
    assert np.all(np.asarray(info.acceptance_rate_rest)[theta == 0.0] < 1.0)
