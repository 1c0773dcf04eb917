"""Held parameters: they do not move, and start as if their optimiser were new."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import random
from numpyro.distributions import biject_to, constraints
from numpyro.infer import SVI

import svgp_ppl as gp
from svgp_ppl.fitting.optimizers import Informed
from svgp_ppl.fitting.schedules import staged
from tests.models import COUNTS_X, COUNTS_Y, counts_model, counts_z

DATA = COUNTS_X, COUNTS_Y
START = {"a": np.array([3.0, -1.0]), "b": np.array(2.0), "c": np.array(-4.0)}


def loss(params):
    """A coupled quadratic with its minimum at one."""
    total = jnp.sum(params["a"]) + params["b"] + params["c"]
    near = sum(jnp.sum((p - 1.0) ** 2) for p in params.values())
    return near + 0.3 * (total - 4.0) ** 2, None


def run(transformation, num_steps, params=START):
    """Parameters before every step and after the last."""
    optimizer = Informed(transformation)

    def step(state, _):
        before = optimizer.get_params(state)
        return optimizer.eval_and_update(loss, state)[1], before

    @jax.jit
    def run_all(params):
        state, history = jax.lax.scan(step, optimizer.init(params), length=num_steps)
        return history, optimizer.get_params(state)

    history, last = run_all(params)
    return jax.tree.map(lambda h, p: np.concatenate([h, [p]]), history, last)


def test_adam_is_as_new_for_what_is_released():
    # The same by hand: an Adam for each parameter, made when it begins to move.
    unfreeze_at, num_steps = {"b": 3, "c": 7}, 12
    got = run(staged(optax.adam(0.1), unfreeze_at), num_steps)
    params, adam, states = dict(START), optax.adam(0.1), {}
    slopes, update = jax.jit(jax.grad(lambda p: loss(p)[0])), jax.jit(adam.update)
    for step in range(num_steps):
        for name in params:
            np.testing.assert_allclose(got[name][step], params[name], rtol=1e-12)
        gradients = slopes(params)
        for name in START:
            if step >= unfreeze_at.get(name, 0):
                state = states.setdefault(name, adam.init(params[name]))
                moved_by, states[name] = update(gradients[name], state)
                params[name] = params[name] + np.asarray(moved_by)
    # The first steps of Adam have its full length, whatever the gradient was before.
    assert abs(got["c"][8] - got["c"][7]) == pytest.approx(0.1, rel=1e-3)
    np.testing.assert_array_equal(got["c"][:8], START["c"])


@pytest.mark.thorough
def test_lbfgs_moves_the_free_parameters_only_and_starts_afresh():
    got = run(staged(optax.lbfgs(), {"b": 6}), 14)
    np.testing.assert_array_equal(got["b"][:7], np.full(7, START["b"]))
    # Until the release it finds the minimum over the others, at which, by hand,
    # p − 1 + 0.3 (Σp − 4) = 0 for each of the three, with b = 2: p = 1 − 0.3 / 1.9.
    np.testing.assert_allclose(got["a"][6], 1 - 0.3 / 1.9, atol=1e-6)
    # After it, it is L-BFGS from there.
    start = jax.tree.map(lambda h: h[6], got)
    after = run(optax.lbfgs(), 8, start)
    for name in START:
        np.testing.assert_allclose(got[name][6:], after[name], rtol=1e-9)
        np.testing.assert_allclose(got[name][-1], 1.0, atol=1e-6)


def gaussian_loss(params):
    """KL of a Gaussian to one that a and b move, with curvature of their own."""
    tril = biject_to(constraints.softplus_lower_cholesky)(params["f_scale_tril"])
    mean = params["f_loc"] - params["a"]
    return jnp.sum(mean**2) + jnp.sum(tril**2) - jnp.sum(
        jnp.log(jnp.diag(tril))
    ) + params["b"] ** 2, None


@pytest.mark.parametrize("alternate", [True, False])
@pytest.mark.parametrize(
    ("unfreeze_at", "moves_at"),
    [
        # step at which each begins to move: alternating, and both at once
        ({"a": 4, "b": 4}, {"f_loc": (0, 0), "a": (5, 4), "b": (5, 4)}),
        ({"b": 5}, {"f_loc": (0, 0), "a": (1, 0), "b": (5, 5)}),
        ({"b": 4}, {"f_loc": (0, 0), "a": (1, 0), "b": (5, 4)}),
        (
            {"f_loc": 3},
            {"f_loc": (4, 3), "f_scale_tril": (4, 3), "a": (1, 0), "b": (1, 0)},
        ),
    ],
)
def test_natural_gradients_freeze_q_and_the_rest(unfreeze_at, moves_at, alternate):
    natural = gp.natural_gradient(0.1, optax.adam(0.01), alternate=alternate)
    optimizer = Informed(staged(natural, unfreeze_at))
    qv = {"f_loc": jnp.zeros(2), "f_scale_tril": jnp.zeros(3)}
    state = optimizer.init({**qv, "a": jnp.ones(2), "b": jnp.ones(())})
    history = []
    update = jax.jit(lambda s: optimizer.eval_and_update(gaussian_loss, s)[1])
    for _ in range(9):
        history.append(optimizer.get_params(state))
        state = update(state)
    for name, steps in moves_at.items():
        moved = [
            i
            for i in range(8)
            if not np.array_equal(history[i][name], history[i + 1][name])
        ]
        assert moved[0] == steps[0 if alternate else 1], (name, moved)
    # While the rest is held altogether, every step is one of q(v).
    if alternate and len(unfreeze_at) == 2:
        each = [np.array(h["f_loc"]) for h in history[:5]]
        assert all(not np.array_equal(p, q) for p, q in pairwise(each))


def test_a_schedule_of_lengths_counts_the_turns_of_q():
    """Every step while the rest is frozen, then every other one."""
    turns = []

    def rate(turn):
        jax.debug.callback(lambda turn: turns.append(int(turn)), turn, ordered=True)
        return 0.1

    natural = gp.natural_gradient(rate, optax.adam(0.01))
    optimizer = Informed(staged(natural, {"a": 4, "b": 4}))
    qv = {"f_loc": jnp.zeros(2), "f_scale_tril": jnp.zeros(3)}
    state = optimizer.init({**qv, "a": jnp.ones(2), "b": jnp.ones(())})
    update = jax.jit(lambda s: optimizer.eval_and_update(gaussian_loss, s)[1])
    for _ in range(9):
        state = update(state)
    jax.effects_barrier()
    assert turns == [0, 1, 2, 3, 4, 4, 5, 5, 6]


# -------------------------------------------------------------------------- in fit


def fit(guide=None, **options):
    guide = gp.AutoGaussian(counts_model) if guide is None else guide
    options = {"progress": False, **options}
    return gp.fit(random.key(3), counts_model, guide, *DATA, **options)


@pytest.mark.thorough
def test_variational_first_and_freeze_count_steps_over_init():
    held = {"variational_first": 12, "freeze": {"*lengthscale*": 20}}
    first = fit(num_steps=15, **held)
    # Were the steps counted from one again, ten more would not be enough.
    both = fit(first.guide, num_steps=10, init=first, **held)
    key = random.split(random.key(3))[0]
    svi = SVI(counts_model, first.guide, optax.sgd(0.0), gp.MarginalELBO())
    start = svi.get_params(svi.init(key, *DATA))
    names = ["variance_auto_loc", "lengthscale_auto_loc", "z"]
    moved = {n: not np.array_equal(first.params[n], start[n]) for n in names}
    assert moved == {
        "variance_auto_loc": True,
        "lengthscale_auto_loc": False,
        "z": True,
    }
    after = {n: not np.array_equal(both.params[n], start[n]) for n in names}
    assert all(after.values())


@pytest.mark.thorough
def test_what_was_frozen_stays_so_when_others_are_named():
    """L-BFGS has the same state whatever is frozen, and would not notice."""
    options = {"num_steps": 2, "optimizer": optax.lbfgs()}
    first = fit(freeze={"z": np.inf, "*lengthscale*": 1}, **options)
    more = fit(first.guide, init=first, freeze={"*lengthscale*": 1}, **options)
    assert more.unfreeze_at == first.unfreeze_at
    np.testing.assert_array_equal(more.params["z"], first.params["z"])
    free = fit(first.guide, init=first, freeze={"z": 0}, **options)
    assert free.unfreeze_at == {"lengthscale_auto_loc": 1}
    assert not np.array_equal(free.params["z"], first.params["z"])


@pytest.mark.thorough
def test_what_is_frozen_for_ever_does_not_keep_a_fit_from_stopping():
    frozen = {"z": np.inf, "*lengthscale*": np.inf}
    stopped = fit(num_steps=200, freeze=frozen, patience=5, tolerance=1e3)
    assert stopped.stopped_early and set(stopped.unfreeze_at) == {
        "z",
        "lengthscale_auto_loc",
    }
    np.testing.assert_array_equal(stopped.params["z"], counts_z())
    again = fit(stopped.guide, num_steps=3, init=stopped)
    np.testing.assert_array_equal(again.params["z"], counts_z())


@pytest.mark.usefixtures("as_users_call")
def test_mistakes_are_explained():
    with pytest.raises(ValueError, match=r"freeze\['zz\*'\] matches none of .*'z'\]"):
        fit(freeze={"zz*": 3})
    for count in (-1, 2.5):
        with pytest.raises(
            ValueError, match=r"freeze\['z'\] must be an integer of at least 0"
        ):
            fit(freeze={"z": count})
    with pytest.raises(
        ValueError, match="variational_first must be an integer of at least"
    ):
        fit(variational_first=-1)
    with pytest.raises(ValueError, match="every parameter would be frozen"):
        fit(freeze={"*": 3})

    def by_hand(x, y=None):
        gp.AutoGaussian(counts_model)(x, y)

    with pytest.raises(
        ValueError, match=r"freeze=\{name: 5\}, with names of \['auto_f"
    ):
        fit(by_hand, variational_first=5)
