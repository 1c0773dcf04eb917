"""Bad runs and good ones: each fault is named, and there is no false alarm."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random

from svgp_ppl import diagnostics
from svgp_ppl.mcmc import HMC, MCLMC, NUTS
from svgp_ppl.mcmc.chains.run import run_chains
from tests.test_diagnostics import autoregressive, conjugate_draws, iid

SHAPE = (4, 1000)


def normals(seed=0, shape=SHAPE):
    return np.random.default_rng(seed).normal(size=shape)


def run(draws, *, attrs=None, stats=None, log_likelihood=None):
    """A run as an ArviZ object."""
    return diagnostics.to_arviz(
        draws, sample_stats=stats, log_likelihood=log_likelihood, attrs=attrs
    )


def made_by(sampler, *, init="none", num_warmup=1000, **settings):
    """The attributes that gp.sample writes."""
    return {
        "sampler": sampler,
        "sampler_settings": json.dumps(settings),
        "init": init,
        "num_warmup": num_warmup,
    }


NUTS_ATTRS = {"metric": "diagonal", "target_acceptance_rate": 0.8}
OF_NUTS = made_by("NUTS", **NUTS_ATTRS, max_num_doublings=10)
OF_MCLMC = made_by("MCLMC", num_steps_a_draw=10, desired_energy_variance=1e-4)


# ----------------------------------------------------------------- draws that are bad


def all_nan():
    return run({n: np.full_like(x, np.nan) for n, x in iid().items()})


def one_chain_nan():
    draws = iid()
    terms = -1.5 * draws["f"] ** 2
    for values in draws.values():
        values[2] = np.nan
    return run(draws, log_likelihood={"y": terms})


def one_infinity():
    draws = iid()
    draws["f"][1, 700, 2] = np.inf
    return run(draws, attrs=OF_NUTS)


def single_precision_overflow():
    draws = {n: x.astype(np.float32) for n, x in iid().items()}
    draws["variance"][3, 10:13] = np.nan
    draws["f"][3, 10:13, 0] = -np.inf
    return run(draws)


def three_draws():
    return {n: x[:, :3] for n, x in iid().items()}


def one_chain_never_moved():
    draws = iid()
    for values in draws.values():
        values[2] = values[2, :1]
    return run(draws, attrs=made_by("NUTS", init="fit", **NUTS_ATTRS))


def all_stuck_apart():
    return run({n: x[:, :1] + np.zeros_like(x) for n, x in iid().items()})


def all_stuck_together():
    return run({"x": np.ones(SHAPE), "f": np.zeros((*SHAPE, 3))})


def one_chain_alone_never_moved():
    return run({"x": np.ones((1, 1000))})


def some_parameters_stuck():
    draws = iid()
    draws["variance"][:] = draws["variance"][:, :1]
    draws["f"][..., 1] = draws["f"][:, :1, 1]
    return run(draws)


def stuck_halfway():
    draws = iid()
    for values in draws.values():
        values[1, 500:] = values[1, 500:501]
    return run(draws)


def stuck_for_a_while():
    draws = iid()
    draws["f"][3, 200:320] = draws["f"][3, 200]
    return run(draws)


def stuck_beside_a_constant():
    draws = iid() | {"column": np.ones((*SHAPE, 2))}
    for name in ("variance", "f"):
        draws[name][0] = draws[name][0, :1]
    return run(draws)


def stuck_on_other_labels():
    return run({"x": normals(), "k": np.arange(4)[:, None] + np.zeros(SHAPE)})


def copies():
    draws = {"indicator": normals() > 0} | iid()
    return run({n: x[[0, 1, 0, 2]] for n, x in draws.items()})


def chain_elsewhere():
    draws = iid()
    draws["f"][0, :, 2] += 3.0
    return run(draws, attrs=made_by("NUTS", init="fit", num_warmup=500, **NUTS_ATTRS))


def chain_of_another_spread():
    draws = iid()
    draws["f"][0, :, 2] *= 3.0
    return run(draws)


def trend():
    return run({"x": normals() + np.linspace(0.0, 3.0, 1000)})


def two_modes():
    signs = np.array([1.0, 1.0, -1.0, -1.0])[:, None]
    return run({"x": 5.0 * signs + normals(), "y": normals(1)}, attrs=OF_NUTS)


def slow_chains():
    return run({"x": autoregressive(0.98)}, attrs=OF_NUTS)


def a_single_chain():
    return run(iid(num_chains=1), attrs=OF_NUTS)


def undefined_rhat():
    # The halves of a chain leave out the draw in the middle, and nothing moves there.
    x = np.zeros((4, 1001))
    x[0, 500] = 1.0
    return run({"x": x, "y": normals(shape=(4, 1001))})


# ------------------------------------------------- what statistics say of bad samplers


def of_iid(attrs=None, **stats):
    return run(iid(), attrs=attrs, stats=stats)


def spoilt(value, chain=1, start=100, end=150):
    values = 10.0 + normals(5)
    values[chain, start:end] = value
    return values


def full_trees(depth):
    """Every trajectory is cut off at this depth."""
    depths = np.full(SHAPE, depth)
    return {"tree_depth": depths, "n_steps": 2**depths - 1}


def energy_variance(size):
    noise = np.random.default_rng(2).gamma(0.5, size=SHAPE) / 0.5
    return {"energy_variance": size * noise}


def heavy_tail(share, num_draws):
    """Weights exp(share · x² / 2) have a tail of Pareto shape ``share``."""
    draws = iid(num_draws=num_draws)
    terms = 0.01 * normals(1, (4, num_draws, 5))
    terms[..., 3] = -0.5 * share * draws["f"][..., 0] ** 2
    return run(draws, log_likelihood={"y": terms})


def equal_weights():
    """The largest weights are all the same."""
    draws = iid()
    terms = 0.01 * normals(1, (*SHAPE, 3))
    terms[..., 1] = -3.0 * (draws["variance"] > 1.0)
    return run(draws, log_likelihood={"y": terms})


def impossible_datum(value):
    _, posterior = conjugate_draws(500)
    terms = diagnostics.group(posterior, "log_likelihood")["y"].copy()
    terms[0, 7, 4] = value
    draws = diagnostics.group(posterior, "posterior")
    return run(draws, log_likelihood={"y": terms})


DIVERGING = np.arange(4000).reshape(SHAPE) < 7
OF_HMC = made_by("HMC", init="fit", step_size_bounds=[0.01, 0.2])
OF_GIBBS = made_by("Gibbs", step_size_bounds=[0.01, 1], scale_bounds=[0.01, 3.0])
OF_SGHMC = made_by("SGHMC", init="fit", step_size=0.1, num_steps_a_draw=10)
PROPOSALS = {"acceptance_rate": np.full(SHAPE, 0.7)}

# A run, what is said of it, and what is said only when something else is meant.
BAD = {
    "all NaN": (
        all_nan,
        r"Not all draws are finite: 4000 of 4000 have values that are NaN, in 4 of 4",
        r"R-hat|infinite",
    ),
    "one chain NaN": (
        one_chain_nan,
        r"1000 of 4000 have values that are NaN, in 4 of 4 parameters and chains \[2\]",
        r"R-hat|float64|LOO",
    ),
    "one infinity": (
        one_infinity,
        (
            r"1 of 4000 have values that are infinite, in 1 of 4 parameters and chains "
            r"\[1\]; the first is f\[2\] at draw 700 of chain 1"
        ),
        r"R-hat|float64",
    ),
    "float32 overflow": (
        single_precision_overflow,
        r"3 of 4000 have values that are NaN or infinite, in 2 of 4(.|\n)*; float64;",
        r"R-hat",
    ),
    "3 draws": (
        three_draws,
        r"3 draws per chain are too few to judge(.|\n)*Try: num_samples=1000",
        r"never moved",
    ),
    "3 draws that are the same": (
        lambda: {"x": np.ones((4, 3))},
        r"3 draws per chain are too few to judge",
        r"never moved",
    ),
    "one chain never moved": (
        one_chain_never_moved,
        (
            r"Chains \[2\] never moved\.\n   Try: another key; a longer warm-up "
            r"\(num_warmup=2000\); smaller steps, NUTS\(target_acceptance_rate=0.95\)"
        ),
        r"R-hat|init=",
    ),
    "all stuck, each elsewhere": (
        all_stuck_apart,
        r"Chains \[0, 1, 2, 3\] never moved",
        r"constant|init=",
    ),
    "all stuck, at one place": (
        all_stuck_together,
        r"Chains \[0, 1, 2, 3\] never moved",
        r"R-hat",
    ),
    "a single chain, stuck": (
        one_chain_alone_never_moved,
        r"Chains \[0\] never moved(.|\n)*There is one chain",
        r"R-hat",
    ),
    "some parameters stuck": (
        some_parameters_stuck,
        (
            r"Chains \[0, 1, 2, 3\] stood still in 2 of 4 parameters, "
            r"longest variance of "
            r"chain 0: draws 0 to 999 of 1000"
        ),
        r"R-hat|constant",
    ),
    "stuck for the second half": (
        stuck_halfway,
        (
            r"Chains \[1\] stood still in 4 of 4 parameters, longest "
            r"variance of chain 1: "
            r"draws 500 to 999 of 1000"
        ),
        r"R-hat",
    ),
    "stuck for a while": (
        stuck_for_a_while,
        (
            r"Chains \[3\] stood still in 3 of 4 parameters, longest "
            r"f\[0\] of chain 3: "
            r"draws 200 to 319"
        ),
        r"R-hat",
    ),
    "stuck beside a constant": (
        stuck_beside_a_constant,
        r"6 parameters \(2 constant\)(.|\n)*Chains \[0\] never moved",
        r"stood still",
    ),
    "stuck on other labels": (
        stuck_on_other_labels,
        r"Chains \[0, 1, 2, 3\] stood still in 1 of 2 parameters, longest k",
        r"R-hat",
    ),
    "copies": (copies, r"Chains \[0, 2\] are the same draw for draw", r"R-hat above"),
    "one chain elsewhere": (
        chain_elsewhere,
        (
            r"R-hat above 1.01 in 1 of 4 parameters, worst 1\.\d+ \(f\[2\]\)(.|\n)*"
            r"different modes(.|\n)*\(num_warmup=1000\)"
        ),
        r"init=|num_chains|precondition",
    ),
    "one chain of another spread": (
        chain_of_another_spread,
        r"R-hat above 1.01 in 1 of 4 parameters, worst 1\.\d+ \(f\[2\]\)",
        r"init=",
    ),
    "trend": (trend, r"R-hat above 1.01 in 1 of 1 parameters", r"stood still"),
    "two modes": (
        two_modes,
        r"R-hat above 1.01 in 1 of 2 parameters, worst \d\.\d+ \(x\)(.|\n)*init= a Gau",
        r"num_chains",
    ),
    "slow chains": (
        slow_chains,
        r"Fewer than 400 effective draws in 1 of 1 parameters, fewest \d+ \(x\)",
        r"num_chains|precondition",
    ),
    "a single chain": (
        a_single_chain,
        r"There is one chain, (.|\n)*Try: num_chains=4\.",
        r"R-hat",
    ),
    "undefined R-hat": (
        undefined_rhat,
        r"in 1 of 2 parameters, worst undefined \(x\)",
        r"stood still",
    ),
    "NaN energies": (
        lambda: of_iid(energy=spoilt(np.nan)),
        (
            r"sampler's energy should be finite, and is NaN or infinite in 50 of 4000 "
            r"draws \(\[0, 50, 0, 0\] by chain\)"
        ),
        r"BFMI",
    ),
    "NaN acceptance and density": (
        lambda: of_iid(
            acceptance_rate=spoilt(np.nan) / 20, lp=spoilt(-np.inf, 1, 140, 160)
        ),
        r"sampler's lp, acceptance_rate should be finite, and is NaN or infinite in 60",
        r"refused",
    ),
    "divergences": (
        lambda: of_iid(diverging=DIVERGING, attrs=OF_NUTS),
        (
            r"7 of 4000 draws diverged \(\[7, 0, 0, 0\] by chain\)(.|\n)*Try: smaller "
            r"steps, NUTS\(target_acceptance_rate=0.95\)"
        ),
        r"float64",
    ),
    "divergences with NaN energies": (
        lambda: of_iid(
            diverging=DIVERGING, energy=np.where(DIVERGING, np.nan, normals(5))
        ),
        r"7 of 4000 draws diverged",
        r"energy should be finite",
    ),
    "divergences of small steps": (
        lambda: of_iid(
            diverging=DIVERGING,
            attrs=made_by("NUTS", target_acceptance_rate=0.99),
        ),
        r"7 of 4000 draws diverged(.|\n)*Try: another parameterisation",
        r"Try: smaller",
    ),
    "divergences of HMC": (
        lambda: of_iid(diverging=DIVERGING, attrs=OF_HMC),
        r"diverged(.|\n)*HMC\(step_size_bounds=\(0\.001, 0\.2\)\)",
        r"NUTS|init=",
    ),
    "slow energy": (
        lambda: of_iid(energy=autoregressive(0.95, num_draws=1000)),
        r"The energy mixes slowly: BFMI \[0\.\d+, .*\] by chain, expected above 0\.3",
        r"undefined",
    ),
    "energy that never changes": (
        lambda: of_iid(energy=np.where(np.arange(4)[:, None] == 2, 1.0, normals(5))),
        r"BFMI is undefined: the energy of chains \[2\] never changes",
        r"slowly",
    ),
    "full trees, depth 5 is the limit": (
        lambda: of_iid(
            attrs=made_by("NUTS", init="fit", metric="dense", max_num_doublings=5),
            **full_trees(5),
        ),
        (
            r"100 % of the trajectories were cut off at 31 steps, "
            r"expected fewer than 1 %: "
            r"each draw is expensive(.|\n)*max_num_doublings=7"
        ),
        r"init=|dense|precondition|float64",
    ),
    "full trees in single precision": (
        lambda: run(
            {n: x.astype(np.float32) for n, x in iid().items()},
            stats=full_trees(10),
        ),
        r"cut off at 1023 steps(.|\n)*float64 \(where counts are large",
        r"R-hat",
    ),
    "full trees, limit unknown, depth 5": (
        lambda: of_iid(**full_trees(5)),
        r"100 % of the trajectories were cut off at 31 steps",
        r"init=",
    ),
    "full trees, limit unknown, depth 10": (
        lambda: of_iid(
            tree_depth=np.where(DIVERGING, 10, 10 - DIVERGING[::-1]),
            n_steps=np.where(np.arange(1000) < 500, 1023, 600) * np.ones((4, 1), int),
        ),
        r"50 % of the trajectories were cut off at 1023 steps",
        r"init=",
    ),
    "full trees of PyMC": (
        lambda: of_iid(reached_max_treedepth=normals() > 1.0),
        r"1\d % of the trajectories were cut off at the most that is allowed",
        r"init=",
    ),
    "long trajectories of ChEES": (
        lambda: of_iid(
            max_steps=np.full(SHAPE, 50),
            attrs=made_by("ChEES", max_num_steps=50),
        ),
        r"100 % of the trajectories were cut off(.|\n)*ChEES\(max_num_steps=200\)",
        r"NUTS",
    ),
    "energy variance of MCLMC": (
        lambda: of_iid(**energy_variance(1e-2), attrs=OF_MCLMC),
        (
            r"energy variance \[0\.0.*\] by chain, expected about 0\.0001(.|\n)*"
            r"MCLMC\(desired_energy_variance=1e-05\)"
        ),
        r"R-hat",
    ),
    "energy variance, aim unknown": (
        lambda: of_iid(**energy_variance(5e-2)),
        r"energy variance \[0\.0.*\] by chain, expected about 0\.0005",
        r"MCLMC",
    ),
    "refusals for v": (
        lambda: of_iid(
            acceptance_rate=np.full(SHAPE, 0.05),
            acceptance_rate_rest=np.full(SHAPE, 0.3),
            attrs=OF_GIBBS,
        ),
        (
            r"Most proposals for v are refused: mean acceptance \[0\.05, "
            r".*\] by chain, "
            r"expected above 0\.1(.|\n)*Gibbs\(step_size_bounds=\(0\.001, 1\)\)"
        ),
        r"other sites",
    ),
    "refusals for the other sites": (
        lambda: of_iid(
            acceptance_rate_rest=np.full(SHAPE, 0.01), **PROPOSALS, attrs=OF_GIBBS
        ),
        (
            r"Most proposals for the other sites are refused(.|\n)*"
            r"Gibbs\(scale_bounds=\(0\.001, 3\)\)"
        ),
        r"for v",
    ),
    "acceptance below its target": (
        lambda: of_iid(acceptance_rate=np.full(SHAPE, 0.25), attrs=OF_NUTS),
        (
            r"Most proposals are refused: mean acceptance \[0\.25, .*\] "
            r"by chain, expected "
            r"about 0\.8"
        ),
        r"for v",
    ),
    "heavy tail of 200 draws": (
        lambda: heavy_tail(0.6, 50),
        (
            r"LOO of site 'y' cannot be trusted at 1 data \(\[3\]\), "
            r"where the Pareto shape "
            r"is above 0\.57, the limit for 200 draws"
        ),
        r"NaN",
    ),
    "heavy tail of 4000 draws": (
        lambda: heavy_tail(3.0, 1000),
        r"cannot be trusted at 1 data \(\[3\]\), where the Pareto shape is above 0\.7,",
        r"R-hat",
    ),
    "weights that cannot be judged": (
        equal_weights,
        r"LOO of site 'y' (cannot be trusted at 1 data|is undefined: All tail values)",
        r"R-hat",
    ),
    "impossible datum": (
        lambda: impossible_datum(-np.inf),
        r"log likelihood of site 'y' is NaN or infinite at 1 data \(\[4\]\)",
        r"cannot be trusted",
    ),
    "NaN datum": (
        lambda: impossible_datum(np.nan),
        r"log likelihood of site 'y' is NaN or infinite at 1 data \(\[4\]\)",
        r"cannot be trusted",
    ),
    "stochastic gradients": (
        lambda: of_iid(
            step_size=np.full(SHAPE, 0.1),
            attrs=OF_SGHMC | {"bias": "stochastic gradients"},
        ),
        (
            r"biased by stochastic gradients, with steps of 0\.1: no number(.|\n)*"
            r"SGHMC\(step_size=0\.05, num_steps_a_draw=20\)"
        ),
        r"init=",
    ),
    "bias, nothing else known": (
        lambda: of_iid(attrs={"bias": "minibatches"}),
        r"biased by minibatches: no number",
        r"init=",
    ),
}

# Chains that disagree are worth few draws as well; 50 draws per chain are too few.
SEVERAL = {
    "one chain elsewhere": 2,
    "trend": 2,
    "two modes": 2,
    "slow chains": 2,
    "a single chain, stuck": 2,
    "heavy tail of 200 draws": 3,
}


@pytest.mark.parametrize("name", BAD)
def test_a_fault_is_named(name):
    make, words, others = BAD[name]
    found = diagnostics.report(make())
    text = str(found)
    assert re.search(words, text), text
    assert not re.search(others, text), text
    assert "Nothing wrong" not in text and text.count("Try: ") == len(found.findings)
    # One fault, one finding.
    assert len(found.findings) == SEVERAL.get(name, 1), text


# ------------------------------------------------------------------ runs that are good


def reversing(rho):
    """Neighbours on opposite sides: more effective draws than draws."""
    return {"x": autoregressive(-rho, num_draws=1000)}


def simplex():
    """Sums and diagonals are one but for rounding, triangles are zero."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(3), size=SHAPE)
    factors = np.linalg.cholesky(
        np.eye(2) + 0.1 * np.square(normals())[..., None, None]
    )
    rows = factors / np.linalg.norm(factors, axis=-1, keepdims=True)
    correlation = rows @ np.swapaxes(rows, -1, -2)
    return {"shares": shares, "sum": shares.sum(-1), "C": correlation, "L": rows}


def random_walk():
    """Metropolis steps that stay where they are three times out of four."""
    rng, x = np.random.default_rng(0), np.zeros((4, 8000))
    for t in range(1, 8000):
        proposal = x[:, t - 1] + 5.0 * rng.normal(size=4)
        odds = 0.5 * (x[:, t - 1] ** 2 - proposal**2)
        accepted = np.log(rng.random(4)) < odds
        x[:, t] = np.where(accepted, proposal, x[:, t - 1])
    moved = np.diff(x, axis=1, prepend=0.0) != 0
    assert moved.mean() < 0.4
    return run({"x": x}, stats={"acceptance_rate": moved.astype(float)})


def clipped():
    """Zero 99 times of 100, and in one chain always; and indicators."""
    x = np.maximum(normals() - 2.3, 0.0)
    x[2] = 0.0
    rare = (normals(3) > 2.9).astype(float)
    rare[1:3] = 0.0
    return {"x": x, "rare": rare, "y": normals(4)}


def correlated():
    x = normals()
    return {"x": np.stack([x, x + 1e-4 * normals(1), 1e8 + 1e-3 * x], axis=-1)}


def healthy_nuts():
    """Trees that are full because they are long enough, with a few that are longer."""
    rng = np.random.default_rng(0)
    depth = rng.choice([2, 3, 4], p=[0.02, 0.97, 0.01], size=SHAPE)
    return run(
        {"x": normals(1)},
        attrs=OF_NUTS | {"sampling_seconds": 1.0, "num_gradients": 28_000},
        stats={
            "tree_depth": depth,
            "n_steps": 2**depth - 1,
            "diverging": np.zeros(SHAPE, bool),
            "energy": rng.gamma(20.0, size=SHAPE),
            "acceptance_rate": rng.beta(8.0, 2.0, size=SHAPE),
            "lp": -rng.gamma(10.0, size=SHAPE),
            "step_size": np.full(SHAPE, 0.8),
        },
    )


def deep_but_free():
    """Deepest trees that end where they turn, within their last doubling."""
    rng = np.random.default_rng(0)
    depth = rng.choice([6, 7, 8], p=[0.2, 0.6, 0.2], size=SHAPE)
    steps = rng.integers(2 ** (depth - 1), 2**depth)
    return of_iid(tree_depth=depth, n_steps=steps)


def a_few_deep_trees():
    """Full ones, twice as long as the others."""
    depth = np.where(normals() > 2.0, 6, 5)
    return of_iid(tree_depth=depth, n_steps=2**depth - 1)


def from_elsewhere():
    """Statistics that PyMC has beside ours."""
    rng = np.random.default_rng(0)
    posterior = of_iid(
        largest_eigval=np.full(SHAPE, np.nan),
        energy=rng.gamma(20.0, size=SHAPE),
        acceptance_rate=0.1 * rng.random((*SHAPE, 2)),  # of two step methods
        reached_max_treedepth=np.zeros(SHAPE, bool),
    )
    posterior["posterior"].attrs |= {"sampler": "compound", "sampler_settings": "none"}
    return posterior


def gibbs_that_is_slow_to_accept():
    posterior = random_walk()
    rate = diagnostics.group(posterior, "sample_stats")["acceptance_rate"]
    stats = {"acceptance_rate": np.ones_like(rate), "acceptance_rate_rest": rate}
    draws = diagnostics.group(posterior, "posterior")
    return run(draws, stats=stats, attrs=OF_GIBBS)


def masked_data():
    """A datum that is masked has equal weights."""
    _, posterior = conjugate_draws()
    terms = diagnostics.group(posterior, "log_likelihood")["y"].copy()
    terms[..., 5] = 0.0
    draws = diagnostics.group(posterior, "posterior")
    return run(draws, log_likelihood={"y": terms})


def heavy(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "cauchy": rng.standard_cauchy(SHAPE),
        "t": rng.standard_t(2, SHAPE),
        "lognormal": np.exp(3.0 * rng.normal(size=SHAPE)),
    }


GOOD = {
    "normals": iid,
    "normals, ArviZ": lambda: run(iid(1)),
    "conjugate, with LOO": lambda: conjugate_draws()[1],
    "AR(1), 0.5": lambda: {"x": autoregressive(0.5)},
    "AR(1), 0.9": lambda: {"x": autoregressive(0.9, num_draws=10_000)},
    "AR(1), -0.5": lambda: reversing(0.5),
    "counts": lambda: {"k": np.random.default_rng(0).poisson(3.0, SHAPE)},
    "indicators": lambda: {"k": normals() > 0.5},
    "rare and clipped": clipped,
    "a rare indicator": lambda: {"rare": clipped()["rare"]},
    "a fixed column": lambda: (
        iid() | {"column": np.ones((*SHAPE, 2)), "zero": np.zeros(SHAPE)}
    ),
    "sums of one, triangles": simplex,
    "heavy tails": heavy,
    "bounded": lambda: {"x": np.random.default_rng(0).beta(0.05, 0.05, SHAPE)},
    "correlated, and far from 0": correlated,
    "tiny": lambda: {"x": 1e-30 * normals()},
    "float32, far from 0": lambda: {"x": (1e3 + normals()).astype(np.float32)},
    "modes that mix": lambda: {"x": normals() + 10.0 * (normals(1) > 0)},
    "200 parameters": lambda: {"x": normals(shape=(*SHAPE, 200))},
    "many short chains": lambda: {"x": normals(shape=(64, 250))},
    "more chains than draws": lambda: {"x": normals(shape=(300, 200, 1))},
    "a random walk": random_walk,
    "slow acceptance of Gibbs": gibbs_that_is_slow_to_accept,
    "healthy NUTS": healthy_nuts,
    "deep trees": deep_but_free,
    "shallow trees, limit unknown": lambda: of_iid(**full_trees(3)),
    "a few deep trees, limit unknown": a_few_deep_trees,
    "MCLMC": lambda: of_iid(**energy_variance(2.5e-4), attrs=OF_MCLMC),
    "elsewhere": from_elsewhere,
    "masked data": masked_data,
    "nothing inside": lambda: iid() | {"empty": np.zeros((*SHAPE, 0))},
}


@pytest.mark.parametrize("name", GOOD)
def test_there_is_no_false_alarm(name):
    found = diagnostics.report(GOOD[name]())
    assert found.is_healthy and found.findings == [], str(found)
    assert str(found).endswith("Nothing wrong was found.")


def test_data_are_called_by_their_rows_beside_masked_ones():
    terms = normals(shape=(*SHAPE, 4))
    terms[..., 2] *= 10.0
    posterior = diagnostics.to_arviz(
        iid(),
        log_likelihood={"y": terms},
        dims={"y": ["rows"]},
        coords={"rows": [0, 2, 5, 6]},
    )
    assert "cannot be trusted at 1 data ([5])" in str(diagnostics.report(posterior))


def test_summary_of_a_run():
    assert str(diagnostics.report(healthy_nuts())).startswith(
        "4 chains of 1000 draws, 1 parameter; smallest ESS "
    )
    assert "; 1.0 s, 28000 gradients." in str(diagnostics.report(healthy_nuts()))
    text = str(diagnostics.report(GOOD["a fixed column"]()))
    assert text.startswith("4 chains of 1000 draws, 7 parameters (3 constant); small")
    text = str(diagnostics.report(simplex()))
    assert text.startswith("4 chains of 1000 draws, 12 parameters (5 constant);"), text
    text = str(diagnostics.report({"empty": np.zeros((*SHAPE, 0))}))
    assert text == "4 chains of 1000 draws, 0 parameters.\nNothing wrong was found."
    with pytest.raises(ValueError, match="no draws: 4 chains of 0"):
        diagnostics.report({"x": np.zeros((4, 0))})


@pytest.mark.parametrize("init", ["fit", "none", None])
def test_advice_knows_the_start(init):
    attrs = OF_NUTS | {"init": init}
    if init is None:
        attrs = {}
    posterior = run({"x": autoregressive(0.98)}, attrs=attrs)
    text = str(diagnostics.report(posterior))
    assert ("init= a Gaussian fit" in text) == (init == "none")
    assert ("a start from an approximate posterior" in text) == (init is None)
    assert ('NUTS(metric="dense")' in text) == (init is not None)


@pytest.mark.parametrize("size", [134, 201])
def test_a_dense_metric_is_advised_where_a_window_has_more_draws(size):
    slow = autoregressive(0.98, num_draws=1000)
    posterior = run({"x": slow, "v": normals(shape=(*SHAPE, size - 1))}, attrs=OF_NUTS)
    text = str(diagnostics.report(posterior))
    assert "The chains disagree" in text
    assert ('NUTS(metric="dense")' in text) == (size < 200)


@pytest.mark.parametrize("num_blocks", [1, 3])
def test_advice_knows_whether_the_start_is_coupled(num_blocks):
    attrs = OF_NUTS | {"init": "fit", "num_blocks": num_blocks}
    text = str(diagnostics.report(run({"x": autoregressive(0.98)}, attrs=attrs)))
    assert ("init= a fit with gp.AutoCoupled(model)" in text) == (num_blocks > 1)


@pytest.mark.parametrize(
    "attrs, words",
    [
        (
            made_by("HMC", step_size_bounds=[0.1, 1.0]),
            r": init= a Gaussian fit; NUTS\(\)\.",
        ),
        (made_by("NUTS", metric="dense"), r'page "Choosing a sampler"\)\.'),
        (made_by("MCLMC", num_steps_a_draw=10), r"MCLMC\(num_steps_a_draw=20\)\."),
        ({}, r"; another sampler or parameterisation\."),
        ({"sampler_settings": '{"num_steps_a_draw": 3}'}, r"; another sampler or p"),
    ],
)
def test_advice_knows_the_sampler(attrs, words):
    posterior = run({"x": autoregressive(0.95)}, attrs=attrs)
    (found,) = diagnostics.report(posterior).findings[-1:]
    assert re.search(
        r"^num_samples=\d+; or moves that are worth more each: .*", found.try_this
    )
    assert re.search(words, found.try_this), found.try_this


@pytest.mark.parametrize("num_warmup, words", [(0, "=1000)"), (250, "=500)")])
def test_advice_knows_the_warmup(num_warmup, words):
    posterior = run({"x": autoregressive(0.999)}, attrs={"num_warmup": num_warmup})
    disagree, few = diagnostics.report(posterior).findings
    assert f"a longer warm-up (num_warmup{words}" in disagree.try_this
    # More than 10,000 draws per chain are not worth waiting for.
    assert few.try_this.startswith("moves that are worth more each, before more draws:")


# ---------------------------------------------------------------------- real samplers


def normal(position, scale):
    return -0.5 * jnp.sum((position / scale) ** 2)


def sampled(sampler, num_warmup=0, num_samples=1000):
    scale = jnp.asarray([1.0, 0.3])
    chains = run_chains(
        random.key(0),
        normal,
        scale * random.normal(random.key(1), (4, 2)),
        sampler,
        num_warmup=num_warmup,
        num_samples=num_samples,
        data=scale,
        progress=False,
    )
    settings = {name: getattr(sampler, name) for name in sampler.__dataclass_fields__}
    attrs = made_by(type(sampler).__name__, num_warmup=num_warmup, **settings)
    return run({"x": chains.draws}, stats=chains.stats, attrs=attrs)


def test_a_real_run_that_is_good():
    sampler = HMC(step_size_bounds=(0.2, 0.2), max_steps_bounds=(16, 16), num_rounds=1)
    found = diagnostics.report(sampled(sampler))
    assert found.is_healthy, str(found)


def test_a_real_run_whose_steps_are_too_long():
    sampler = HMC(step_size_bounds=(0.8, 0.8), max_steps_bounds=(5, 5), num_rounds=1)
    text = str(diagnostics.report(sampled(sampler)))
    assert re.search(r"Chains \[.*\] stood still in 2 of 2 parameters", text), text
    assert re.search(r"\d+ of 4000 draws diverged", text), text
    assert "Most proposals are refused" in text and "R-hat" not in text, text
    assert "HMC(step_size_bounds=(0.08, 0.8))" in text, text


@pytest.mark.slow
@pytest.mark.parametrize(
    "good, bad, words",
    [
        (
            NUTS(),
            NUTS(initial_step_size=0.02, max_num_doublings=2),
            r"100 % of the trajectories were cut off at 3 steps",
        ),
        (
            MCLMC(desired_energy_variance=5e-4),
            MCLMC(desired_energy_variance=1e-6),
            r"energy variance \[.*\] by chain, expected about 1e-06",
        ),
    ],
    ids=["NUTS", "MCLMC"],
)
def test_tuned_and_untuned_runs(good, bad, words):
    found = diagnostics.report(sampled(good, num_warmup=400))
    assert found.is_healthy, str(found)
    text = str(diagnostics.report(sampled(bad)))
    assert re.search(words, text), text
