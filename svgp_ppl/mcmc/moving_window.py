"""Hyperparameters by Monte Carlo EM, alongside a chain of the other latent sites.

The evidence of the hyperparameters θ (``param`` sites) has the gradient

    ∇_θ log p(y | θ) = E_{p(v | y, θ)} ∇_θ log p(y, v | θ)

(Fisher's identity). Monte Carlo EM (Wei & Tanner 1990) replaces the expectation by
draws v^(1), …, v^(m) of a sampler, and makes many steps on θ between two sets of draws.
The moving window of Havasi, Hernández-Lobato & Murillo-Fuentes (2018, "Moving Window
MCEM") makes one: the window holds the last m draws, and each round adds a draw of the
chain and then takes one step along ∇_θ log p(y, v' | θ) at a random draw v' of it. Old
draws belong to older θ; θ moves little while one of them is in the window.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random
from numpyro.distributions import biject_to, constraints

from svgp_ppl.checks import require_arguments, require_count, require_key
from svgp_ppl.guides.fitted import guide_and_params
from svgp_ppl.handlers import trace_of
from svgp_ppl.linalg import single_threaded_lapack
from svgp_ppl.mcmc.samplers.sampler import CHAINS
from svgp_ppl.mcmc.samplers.stochastic import SGHMC
from svgp_ppl.mcmc.target import Target
from svgp_ppl.plates import subsampled
from svgp_ppl.runtime.compilation import call, look

__all__ = ["moving_window_em"]

# One object, so that a second call finds the program of the first.
_ADAM = optax.adam(0.01)


def moving_window_em(
    key,
    model: Callable,
    *args,
    init: Any,
    sampler: SGHMC | None = None,
    optimizer: optax.GradientTransformation | None = None,
    num_chains: int = 4,
    num_steps: int = 2000,
    window_size: int = 100,
    **kwargs,
) -> dict[str, jax.Array]:
    """Maximises ∫ p(y, v | θ) dv over the ``param`` sites θ of a model.

    Where ``gp.fit`` maximises a bound, this climbs the evidence itself, estimated by
    stochastic-gradient Hamiltonian Monte Carlo (Havasi, Hernández-Lobato &
    Murillo-Fuentes 2018). The latent sites v of the model, whitened values and all
    others, are sampled; a plate with ``subsample_size`` gives both steps their own
    minibatch, one without gives them all data. The result is the mean of the second
    half of the iterates, biased as the chains are by their step size: compare with half
    the step size. It says nothing about the posterior of v: sample that with
    ``gp.sample``, at these values.

    Args:
        key: Random key.
        model: The model.
        *args: Its arguments.
        init: A fit of it, or ``(guide, params)``: chains start at draws of its guide, θ
            at its parameters.
        sampler: ``SGHMC()`` if None, whose ``num_steps_a_draw`` are the steps between
            two steps of θ. It is used without control variates: their centre has a
            gradient for one θ only.
        optimizer: An optax transformation for θ, in unconstrained values;
            ``optax.adam(0.01)`` if None.
        num_chains: Number of chains over which the gradient of θ is averaged.
        num_steps: Steps of θ.
        window_size: Draws of each chain among which one is chosen for a step.
        **kwargs: Keyword arguments of the model.

    Returns:
        The parameters of ``init``, with those of the model at the values found:
        ``gp.sample(..., init=(guide, params))`` and ``gp.predict`` take them.

    Raises:
        ValueError: The model has no ``param`` site, or nothing to sample; or an
            argument is invalid.
        FloatingPointError: The chains ran away, or started where the log density is not
            finite.

    Example:
        >>> def smooth(x, y=None):
        ...     f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.9), numpyro.param("z", z))
        ...     with numpyro.plate("data", len(x)):
        ...         gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)
        >>> fit = gp.fit(key, smooth, None, x, y, num_steps=100, progress=False)
        >>> options = {"init": fit, "num_chains": 2, "num_steps": 20}
        >>> params = gp.mcmc.moving_window_em(key, smooth, x, y, **options)
        >>> params["z"].shape
        (5, 1)
    """
    require_key(key)
    require_arguments(model, args, kwargs, moving_window_em)
    counts = {
        "num_chains": require_count(num_chains, "num_chains"),
        "num_steps": require_count(num_steps, "num_steps"),
        "window_size": require_count(window_size, "window_size"),
    }
    sampler = replace(_checked(sampler), control_variates=False)
    optimizer = _ADAM if optimizer is None else optimizer
    guide, params = guide_and_params(init, "init")
    key_target, key_start, key_run = random.split(key, 3)

    given = jax.tree.map(jnp.asarray, dict(params))
    supports, is_batched = look(
        lambda args, kwargs, key, given: _facts(
            trace_of(model, args, kwargs, key=key, values=given)
        ),
        args,
        kwargs,
        key_target,
        given,
    )
    if not supports:
        raise ValueError(
            "the model has no param site, and nothing to maximise: hyperparameters "
            "with a prior (sample sites) are sampled by gp.sample."
        )
    target = Target(key_target, model, args, kwargs, params, minibatches=is_batched)
    positions = target.positions_from(key_start, guide, dict(params), num_chains)
    transforms = {name: biject_to(support) for name, support in supports.items()}
    hyper = {n: t.inv(target.data.params[n]) for n, t in transforms.items()}

    def run(key, hyper, data, positions):
        def density_at(hyper):
            values = {n: transforms[n](value) for n, value in hyper.items()}
            here = data._replace(params={**data.params, **values})
            return lambda position, *key: target.logdensity_fn(position, here, *key)

        return _rounds(key, hyper, positions, density_at, sampler, optimizer, **counts)

    made_of = ("moving window", sampler, optimizer, *counts.values(), *target.made_of)
    with single_threaded_lapack():
        found, diverging = call(run, made_of, key_run, hyper, target.data, positions)
    _require_finite(found, float(diverging))
    values = {name: transforms[name](value) for name, value in found.items()}
    return {**params, **values}


def _rounds(
    key,
    hyper: dict,
    positions: Any,
    density_at: Callable,
    sampler: SGHMC,
    optimizer: optax.GradientTransformation,
    num_chains: int,
    num_steps: int,
    window_size: int,
):
    """The mean of the later iterates, and the share of draws that ran away."""

    def one(carry, of_round):
        key, number, entry = of_round
        warmup, window, hyper, state, total = carry
        key_chain, key_pick, key_rows = random.split(key, 3)
        density = density_at(hyper)
        # A draw of every chain at this θ ...
        warmup, info = _of_chains(
            lambda key, warmup: sampler.warmup_step(key, warmup, density, entry),
            random.split(key_chain, num_chains),
            warmup,
        )
        place = number % window_size
        window = jax.tree.map(
            lambda held, new: held.at[place].set(new), window, warmup.state.position
        )
        # ... and a step on θ at a random one of the window.
        pick = random.randint(key_pick, (), 0, jnp.minimum(number + 1, window_size))
        drawn = jax.tree.map(lambda leaf: leaf[pick], window)

        def loss(hyper):
            density, keys = density_at(hyper), random.split(key_rows, num_chains)
            return -jnp.mean(_of_chains(lambda k, at: density(at, k), keys, drawn))

        updates, state = optimizer.update(jax.grad(loss)(hyper), state, hyper)
        hyper: Any = optax.apply_updates(hyper, updates)
        is_late = number >= num_steps // 2
        total = jax.tree.map(lambda t, h: t + jnp.where(is_late, h, 0.0), total, hyper)
        return (warmup, window, hyper, state, total), jnp.mean(info.diverging)

    key_start, key_rounds = random.split(key)
    warmup = _of_chains(
        lambda key, position: sampler.init(key, position, density_at(hyper)),
        random.split(key_start, num_chains),
        positions,
    )
    window = jax.tree.map(
        lambda leaf: jnp.zeros((window_size, *leaf.shape), leaf.dtype), positions
    )
    total = jax.tree.map(jnp.zeros_like, hyper)
    start = (warmup, window, hyper, optimizer.init(hyper), total)
    each = (
        random.split(key_rounds, num_steps),
        jnp.arange(num_steps),
        sampler.schedule(num_steps),
    )
    (*_, total), diverging = jax.lax.scan(one, start, each)
    num_late = num_steps - num_steps // 2
    return jax.tree.map(lambda t: t / num_late, total), jnp.mean(diverging)


def _of_chains(function: Callable, keys, *states):
    return jax.vmap(function, axis_name=CHAINS)(keys, *states)


def _facts(model_trace: dict[str, dict]) -> tuple[dict[str, Any], bool]:
    """Supports of the ``param`` sites, and whether a plate is subsampled."""
    supports = {
        name: site["kwargs"].get("constraint", constraints.real)
        for name, site in model_trace.items()
        if site["type"] == "param"
    }
    return supports, bool(subsampled(model_trace))


def _checked(sampler: Any) -> SGHMC:
    if sampler is None:
        return SGHMC()
    if not isinstance(sampler, SGHMC):
        raise ValueError(
            "moving_window_em moves the latent sites with SGHMC: sampler must be an "
            f"object such as gp.mcmc.SGHMC(step_size=0.05), and is {sampler!r}."
        )
    return sampler


def _require_finite(found: dict, diverging: float) -> None:
    bad = [name for name, value in found.items() if not np.all(np.isfinite(value))]
    # A step that is not finite is undone, so a chain may run away unnoticed.
    if bad or diverging > 0.5:
        raise FloatingPointError(
            f"{100 * diverging:.0f} % of the draws ran away"
            + (f", and {bad} are not finite" if bad else "")
            + ". Take a smaller step_size of SGHMC or a smaller learning rate, and "
            "start from a fit."
        )
