"""Names that others do not promise to keep: where they are used, and what for.

A failure here says what has moved, and what breaks with it, before a sampler or a guide
fails somewhere inside.
"""

import ast
import inspect
from pathlib import Path

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuide,
    AutoGuideList,
)

from svgp_ppl import handlers
from svgp_ppl.mcmc.samplers import blackjax_parts as parts

PACKAGE = Path(__file__).parent.parent / "svgp_ppl"
BLACKJAX_HOME = "mcmc/samplers/blackjax_parts.py"
OTHER_HOMES = {"handlers.py", "runtime/compilation.py"}


# --------------------------------------------------------------------- the one home


def private_imports(path):
    """Private names of NumPyro and JAX, and all that lies deeper than ``blackjax``."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module)):
                names = [alias.name for alias in node.names]
            case ast.Import():
                module, names = "", [alias.name for alias in node.names]
            case ast.Attribute(value=ast.Name(id=package), attr=attr):
                module, names = package, [attr]
            case _:
                continue
        for name in names:
            full = f"{module}.{name}" if module else name
            top, *rest = full.split(".")
            is_deep = len(rest) > 1 or (rest and inspect.ismodule(_of(top, rest[0])))
            if top == "blackjax" and is_deep:
                yield "blackjax", full
            elif top in ("jax", "numpyro") and any(p.startswith("_") for p in rest):
                yield top, full


def _of(package, name):
    return getattr({"blackjax": blackjax}.get(package), name, None)


def test_private_names_have_one_home():
    offenders = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        for package, name in private_imports(path):
            homes = {BLACKJAX_HOME} if package == "blackjax" else OTHER_HOMES
            if place not in homes:
                offenders.append((place, name))
    assert not offenders


def test_every_part_is_used():
    texts = [
        path.read_text()
        for path in (PACKAGE / "mcmc").rglob("*.py")
        if path.name != Path(BLACKJAX_HOME).name
    ]
    assert not [n for n in parts.__all__ if not any(n in text for text in texts)]


# ------------------------------------------------------------------------- BlackJAX

STATES = {
    "HMCState": "position logdensity logdensity_grad",  # NUTS
    # HMC, ChEES
    "DynamicHMCState": "position logdensity logdensity_grad random_generator_arg",
    "EllipSliceState": "position logdensity",  # EllipticalSlice, Gibbs
    "RWState": "position logdensity",  # Gibbs moves the hyperparameters by it
    "IntegratorState": "position momentum logdensity logdensity_grad",  # MCLMC
    "MCLMCAdaptationState": "L step_size inverse_mass_matrix",  # what MCLMC tunes
}


@pytest.mark.parametrize("name", STATES)
def test_states_have_their_fields(name):
    assert " ".join(getattr(parts, name)._fields) == STATES[name]


def test_the_schedule_of_the_warm_up_of_nuts():
    stage, ends = np.asarray(parts.build_schedule(1000)).T
    assert stage.tolist() == [0] * 75 + [1] * 875 + [0] * 50
    assert np.flatnonzero(ends).tolist() == [99, 149, 249, 449, 949]


def test_dual_averaging_of_the_step_size_of_nuts():
    start, update, average = parts.dual_averaging_adaptation(0.8)
    state = start(0.5)
    assert {"log_step_size", "log_step_size_avg", "step"} <= set(state._fields)
    assert isinstance(state, parts.DualAveragingAdaptationState)
    lower, higher = update(state, 0.2), update(state, 0.99)
    assert lower.log_step_size < higher.log_step_size
    np.testing.assert_allclose(average(lower), jnp.exp(lower.log_step_size_avg))


@pytest.mark.parametrize(("recipe", "shape"), [("diag", (2,)), ("dense", (2, 2))])
def test_the_metric_of_nuts(recipe, shape):
    core = parts.lookup_recipe(f"welford_{recipe}").build_core()
    assert isinstance(core, parts.MetricCore)
    x = {"x": jnp.array([1.0, 2.0])}
    state = core.update(core.init(2), x, x)
    assert core.final(state).inverse_mass_matrix.shape == shape


def test_a_metric_of_our_own():
    fields = "sample_momentum kinetic_energy check_turning scale"
    assert " ".join(parts.Metric._fields) == fields


def test_the_adaptation_of_chees():
    start, update = parts.chees_start_and_update(
        lambda draw: 0.5, lambda draw: draw + 1, optax.adam(0.01), 0.65, 0.5, 100
    )
    state = start(jnp.ones((), int), jnp.asarray(0.1))
    fields = "step_size trajectory_length step log_step_size_moving_average"
    assert {*fields.split(), "log_trajectory_length_moving_average"} <= set(
        state._fields
    )
    names = list(inspect.signature(update).parameters)
    assert names[0] == "adaptation_state" and len(names) == 7


def test_jittered_trajectories_of_chees():
    draws = [float(parts.halton_sequence(jnp.asarray(i), 10)) for i in range(4)]
    np.testing.assert_allclose(draws, [0.5, 0.25, 0.75, 0.125])


def test_the_proposal_of_gibbs():
    step = parts.normal_proposal(jnp.full(2, 0.1))(random.key(0), {"x": jnp.zeros(2)})
    assert step["x"].shape == (2,) and np.all(np.abs(step["x"]) < 1.0)


def test_the_steps_of_stochastic_gradients():
    position, slope = {"x": jnp.ones(2)}, {"x": -jnp.ones(2)}
    moved = parts.overdamped_langevin()(random.key(0), position, slope, 1e-8, 0.0)
    np.testing.assert_allclose(moved["x"], 1.0 - 1e-8, rtol=1e-12)
    moved, momentum = parts.sghmc_diffusion(0.5)(
        random.key(0), position, slope, slope, 0.1, 0.0
    )
    np.testing.assert_allclose(moved["x"], 0.9)
    assert momentum["x"].shape == (2,)


def test_the_paths_of_pathfinder():
    """The path with its gradients, the factors of Σ at a point, and draws there."""
    _, history = parts.minimize_lbfgs(
        lambda x: jnp.sum(x**2), jnp.ones(2), maxiter=3, maxcor=2, maxls=5, ftol=1e-6
    )
    assert " ".join(history._fields) == "x f g alpha update_mask"
    np.testing.assert_allclose(history.g, 2 * history.x)
    pairs = jnp.zeros((2, 2))
    beta, gamma = parts.lbfgs_inverse_hessian_factors(pairs, pairs, jnp.ones(2))
    assert beta.shape == (2, 4) and gamma.shape == (4, 4)
    slope = jnp.ones(2)
    point = (jnp.zeros(2), slope, jnp.ones(2), beta, gamma)
    draws, log_q = parts.bfgs_sample(random.key(0), 4000, *point)
    assert log_q.shape == (4000,)
    np.testing.assert_allclose(draws.mean(0), slope, atol=5 / np.sqrt(4000))


def test_resampling_of_proposals():
    kept = parts.systematic(random.key(0), jnp.array([0.0, 1.0, 0.0]), 4)
    assert np.asarray(kept).tolist() == [1, 1, 1, 1]


def test_sizes_of_positions():
    assert parts.pytree_size({"x": jnp.zeros((2, 3)), "y": jnp.zeros(())}) == 7


# -------------------------------------------------------------------- NumPyro and JAX


def test_the_stack_of_handlers():
    """``sparse_gp`` looks there for a site of the same name, ``observe`` for plates."""
    assert handlers._PYRO_STACK is numpyro.primitives._PYRO_STACK
    assert not handlers._PYRO_STACK
    with numpyro.plate("data", 5) as _, numpyro.handlers.trace():
        plate, trace = handlers._PYRO_STACK
    assert (plate.name, plate.size, plate.dim, plate.subsample_size) == (
        "data",
        5,
        -1,
        5,
    )
    assert isinstance(trace, numpyro.handlers.trace)
    assert numpyro.handlers.block(hide=["x"]).hide_fn({"type": "sample", "name": "x"})


def test_marks_of_deterministic_sites():
    """``propagate`` marks its layers by a message of its own."""
    with numpyro.handlers.trace() as trace:
        handlers.marked_deterministic("h", 1.0, {"layer": ("f",)})
    assert trace["h"]["infer"] == {"layer": ("f",)}


def test_the_set_up_of_automatic_guides():
    """It is called before anything is compiled (``set_up``), and ours replaces it."""
    assert "_setup_prototype" in vars(AutoGuide)
    assert not issubclass(AutoGuideList, AutoDelta)
    guide = AutoDelta(lambda: numpyro.sample("x", dist.Normal(jnp.zeros(3), 1.0)))
    handlers.set_up(guide, random.key(0), (), {})
    # ``PointEstimates`` fills these in by itself.
    assert set(guide._init_locs) == {"x"}
    assert guide._event_dims == {"x": 0}
    assert guide._prototype_frames == {}
    assert guide._prototype_frame_full_sizes == {}


def test_flat_values_of_an_automatic_guide_by_site():
    """A Gaussian over all sites gives the sampler's coordinates (``unpacked``)."""

    def model():
        numpyro.sample("b", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        numpyro.sample("a", dist.LogNormal(0.0, 1.0))

    guide = AutoDiagonalNormal(model)
    handlers.set_up(guide, random.key(0), (), {})
    found = handlers.unpacked(guide, jnp.arange(3.0))
    assert {name: value.shape for name, value in found.items()} == {"a": (), "b": (2,)}
    flat = np.concatenate([np.ravel(value) for value in found.values()])
    np.testing.assert_array_equal(np.sort(flat), np.arange(3.0))  # unconstrained


def test_masks_of_distributions():
    mask = jnp.array([True, False])
    found, seen = handlers.unwrapped(dist.Normal(jnp.zeros(2), 1.0).mask(mask))
    assert isinstance(found, dist.Normal)
    np.testing.assert_array_equal(seen, mask)


def test_optimisers():
    assert isinstance(numpyro.optim.Adam(1e-2), handlers.NumPyroOptimizer)


def test_programs_of_jax():
    """``compilation`` traces, and evaluates what was traced with other constants."""
    constant = jnp.array([1.0, 2.0])
    traced = jax.make_jaxpr(lambda x: x + constant)(jnp.zeros(2))
    (value,) = jax.core.eval_jaxpr(traced.jaxpr, [jnp.ones(2)], jnp.zeros(2))
    np.testing.assert_array_equal(value, 1.0)
    text = jax.jit(lambda x: x + 1, keep_unused=True).lower(constant).as_text()
    assert "stablehlo" in text
    assert isinstance(jax.config.read("jax_disable_most_optimizations"), bool)
