"""Chains as files: cut off and resumed, their draws are those of a run without a pause."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import monitoring, random

import svgp_ppl as gp
from svgp_ppl import checkpoints
from svgp_ppl.diagnostics import group
from svgp_ppl.mcmc import (
    HMC,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    ChEES,
    EllipticalSlice,
    Gibbs,
    run_chains,
)
from svgp_ppl.mcmc import chains as chains_module
from tests.models import COUNTS_X, COUNTS_Y, Walk, counts_model

Y = np.array([0.3, -1.2, 0.8, 2.0, 0.1])


def logdensity_fn(position, y, *key):
    """v given counts, and a scale; with a key a noisy estimate."""
    v, theta = position["v"], position.get("theta", jnp.zeros(()))
    noise = random.normal(key[0], v.shape) if key else jnp.zeros_like(v)
    value = jnp.sum((y + 0.1 * noise) * v * jnp.exp(theta) - jnp.exp(v))
    return value - 0.5 * jnp.sum(v**2) - 0.5 * theta**2


def run(sampler, key=0, y=Y, num_warmup=12, num_samples=13, num_chains=3, **options):
    positions = {"v": jnp.zeros((num_chains, 5)), "theta": jnp.zeros(num_chains)}
    if isinstance(sampler, EllipticalSlice):
        del positions["theta"]
    return run_chains(
        random.key(key),
        options.pop("logdensity_fn", logdensity_fn),
        positions,
        sampler,
        num_warmup=num_warmup,
        num_samples=num_samples,
        data=jnp.asarray(y),
        progress=False,
        **{"block_size": 5, **options},
    )


def assert_same(chains, reference):
    """Bit by bit."""
    for name in ("draws", "stats", "warmup_stats", "tuned", "position"):
        pairs = zip(
            jax.tree.leaves(getattr(chains, name)),
            jax.tree.leaves(getattr(reference, name)),
            strict=True,
        )
        for came, wanted in pairs:
            np.testing.assert_array_equal(came, wanted)
    assert chains.num_gradients == reference.num_gradients


class Killed(BaseException):
    """What no handler expects: the process is gone."""


class Bar:
    """Raises when a phase has done so many steps."""

    moment = ("warmup", 0)
    raises: type[BaseException] = Killed

    def __init__(self, total, what, show):
        self.phase, _, first = what.partition(" from ")
        self.done = int(first or 0)

    def update(self, n):
        self.done += n
        if (self.phase, self.done) == self.moment:
            raise self.raises

    def reset(self):
        pass

    def close(self):
        pass

    def set_postfix_str(self, s):
        pass


@pytest.fixture
def cut(monkeypatch):
    """Cuts runs off: ``with cut("sample", 7): ...``; every step is saved."""
    monkeypatch.setattr(checkpoints, "_SECONDS_BETWEEN", 0.0)

    def cutting(phase, done, raises=Killed):
        kind = type("Bar", (Bar,), {"moment": (phase, done), "raises": raises})
        monkeypatch.setattr(chains_module, "progress_bar", kind)

    yield cutting


SAMPLERS = {
    "nuts": NUTS(),
    "dense nuts": NUTS("dense"),
    "hmc": HMC(num_rounds=3),
    "gibbs": Gibbs(num_rounds=3, whitened=("v",)),
    "gibbs of slices": Gibbs("elliptical_slice", num_rounds=3, whitened=("v",)),
    "slices": EllipticalSlice(("v",)),
    "mclmc": MCLMC(num_rounds=3),
    "chees": ChEES(),
    "sghmc": SGHMC(num_steps_a_draw=2),
    "sgld": SGLD(num_steps_a_draw=2),
}
QUICK = ("nuts", "hmc", "sghmc", "slices")


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SAMPLERS],
)
def test_cut_off_and_resumed(name, tmp_path, cut):
    sampler, path = SAMPLERS[name], tmp_path / "chains"
    whole = run(sampler)
    # In the warm-up (in a round of those that have some), at its end, while sampling.
    warmup = {"mclmc": 2}.get(name, 7)
    for phase, done in [("warmup", warmup), ("sample", 1), ("sample", 8)]:
        cut(phase, done)
        with pytest.raises(Killed):
            run(sampler, checkpoint=path)
    cut("none", 0)
    resumed = run(sampler, checkpoint=path)
    assert_same(resumed, whole)
    # The file is now that of a finished run.
    assert_same(run(sampler, checkpoint=path), whole)
    assert list(tmp_path.iterdir()) == [path]
