"""Steps until the bound is within a nat of the best: what is held while θ moves.

    python benchmarks/reliability/steps_to_bound.py coal banana image

Natural steps of q(v) alternate with steps of Adam on the log hyperparameters θ, z fixed
and one lengthscale. Meanwhile either q(v) is held, whitened, as by ``AutoGaussian``, or
its sites are (Adam, Chang, Khan & Solin 2021): with L Lᵀ = k(z, z),

    q(v | θ) = N(P⁻¹ Lᵀ η, P⁻¹),   P = I + Lᵀ Λ L,

and with the derivatives g and G of the bound by mean μ and covariance of u = L v, a
natural step is η ← η + γ (g − 2 G μ), Λ ← Λ − 2 γ G. Then ``gp.fit`` with fitted z, by
its optimisers. A pair of steps counts as two. float64.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
from jax import random
from numpyro.infer.autoguide import AutoDelta

import svgp_ppl as gp
from benchmarks.sampling.problems import PROBLEMS, Problem, gammas, one_process
from svgp_ppl.expectations import variational_expectation
from svgp_ppl.linalg import cholesky, solve_lower
from svgp_ppl.marginals import Marginal

PRIOR = dist.Gamma(1.1, 1.0)
NATURAL = 0.5  # γ
RATES = (0.03, 0.1, 0.3)  # of Adam
PAIRS = 200


class Case(NamedTuple):
    """Data, inducing inputs and likelihood."""

    x: Any
    y: Any
    z: Any
    likelihood: Any


def case_of(name: str) -> Case:
    """By name."""
    data = getattr(gp.datasets, name)()
    likelihood, z = {
        "coal": lambda: (gp.likelihoods.Poisson(), gp.inducing.grid(data.x, 30)),
        "banana": lambda: (gp.likelihoods.Bernoulli(), gp.inducing.kmeans(data.x, 50)),
        "image": lambda: (
            gp.likelihoods.Bernoulli("probit"),
            gp.inducing.kmeans(data.x, 100),
        ),
    }[name]()
    x, z = (jnp.asarray(a, float) for a in (data.x, z))
    return Case(x, jnp.asarray(data.y), z, likelihood)


# --------------------------------------------------------------- what is held, by hand


def factor(case: Case, theta):
    """L."""
    return cholesky(gp.kernels.RBF(*jnp.exp(theta))(case.z), 1e-6 * jnp.exp(theta[0]))


def bound(case: Case, theta, loc, cov):
    """The bound, with the prior of θ."""
    kernel = gp.kernels.RBF(*jnp.exp(theta))
    a = solve_lower(factor(case, theta), kernel(case.z, case.x))
    variance = kernel.diagonal(case.x) - jnp.sum(a * (a - cov @ a), axis=0)
    at_data = Marginal(a.T @ loc, jnp.maximum(variance, 0.0))
    seen = jnp.sum(variational_expectation(case.likelihood, case.y, at_data))
    log_det = jnp.linalg.slogdet(cov)[1]
    divergence = 0.5 * (jnp.trace(cov) + loc @ loc - len(loc) - log_det)
    return seen - divergence + jnp.sum(PRIOR.log_prob(jnp.exp(theta)))


def slopes(case: Case, theta, loc, cov):
    """Derivatives by mean and covariance of v."""
    g, slope = jax.grad(bound, (2, 3))(case, theta, loc, cov)
    return g, 0.5 * (slope + slope.T)


class Whitened:
    """Mean and covariance of v are held."""

    @staticmethod
    def start(m: int):
        """The prior."""
        return jnp.zeros(m), jnp.eye(m)

    @staticmethod
    def moments(case, theta, q):
        """Of v."""
        return q

    @staticmethod
    def natural_step(case, theta, q):
        """One step."""
        loc, cov = q
        g, slope = slopes(case, theta, loc, cov)
        cov = jnp.linalg.inv(jnp.linalg.inv(cov) - 2.0 * NATURAL * slope)
        return loc + NATURAL * cov @ g, cov


class Sites:
    """η and Λ of u are held."""

    @staticmethod
    def start(m: int):
        """The prior: no sites."""
        return jnp.zeros(m), jnp.zeros((m, m))

    @staticmethod
    def moments(case, theta, q):
        """Of v."""
        scale_tril = factor(case, theta)
        precision = jnp.eye(len(scale_tril)) + scale_tril.T @ q[1] @ scale_tril
        cov = jnp.linalg.inv(precision)
        return cov @ (scale_tril.T @ q[0]), cov

    @staticmethod
    def natural_step(case, theta, q):
        """One step."""
        loc, cov = Sites.moments(case, theta, q)
        scale_tril = factor(case, theta)
        inverse = jnp.linalg.inv(scale_tril)
        g, slope = slopes(case, theta, loc, cov)
        g, slope = inverse.T @ g, inverse.T @ slope @ inverse  # by those of u
        step = g - 2.0 * slope @ (scale_tril @ loc)
        return q[0] + NATURAL * step, q[1] - 2.0 * NATURAL * slope


def bounds_by_hand(case: Case, held: Any, rate: float) -> np.ndarray:
    """The bound after every pair of steps."""
    optimizer, theta = optax.adam(rate), jnp.zeros(2)

    def pair(carry, _):
        theta, state, q = carry
        q = held.natural_step(case, theta, q)

        def loss(theta):
            return -bound(case, theta, *held.moments(case, theta, q))

        value, slope = jax.value_and_grad(loss)(theta)
        move, state = optimizer.update(slope, state)
        return (theta + move, state, q), -value

    start = theta, optimizer.init(theta), held.start(len(case.z))
    return np.asarray(jax.jit(lambda s: jax.lax.scan(pair, s, length=PAIRS)[1])(start))


# ---------------------------------------------------------------------- by the library


def bounds_by_fit(name: str, case: Case) -> dict[str, np.ndarray]:
    """The bound at every step of ``gp.fit``."""
    problem = PROBLEMS.get(name, lambda: _problem(case))()
    full, sites = gp.AutoGaussian, lambda m: gp.AutoSites(m, rest=AutoDelta)
    ways: dict[str, tuple[Callable, Any]] = {
        f"natural gradients, Adam({rate})": (
            full,
            gp.natural_gradient(NATURAL, optax.adam(rate)),
        )
        for rate in RATES
    }
    ways["natural gradients, L-BFGS"] = full, gp.natural_gradient(1.0, optax.lbfgs())
    ways["L-BFGS"] = full, optax.lbfgs()
    ways["AutoSites, L-BFGS"] = sites, optax.lbfgs()
    ways["AutoSites, Adam(0.1)"] = sites, optax.adam(0.1)
    model, data = problem.model, (problem.x, problem.y)
    options = {"num_steps": 2 * PAIRS, "progress": False}
    found = {}
    for way, (guide, optimizer) in ways.items():
        fit = gp.fit(
            random.key(0), model, guide(model), *data, optimizer=optimizer, **options
        )
        found[way] = -np.asarray(fit.losses)
    return found


def _problem(case: Case) -> Problem:
    prior = gammas((1.1, 1.0), (1.1, 1.0))
    model = one_process(case.z, lambda: case.likelihood, prior)
    return Problem(model, case.x, case.y)


def steps_to(bounds: np.ndarray, best: float) -> str:
    """The first step within a nat of the best bound."""
    near = np.flatnonzero(bounds > best - 1.0)
    return str(near[0]) if len(near) else f"never ({bounds.max():.2f})"


def show(title: str, found: dict[str, np.ndarray], size: int) -> None:
    """A line for each way."""
    best = max(np.nanmax(bounds) for bounds in found.values())
    print(f"{title}: best bound {best:.2f}")
    for way, bounds in found.items():
        print(f"  {way:34s}{steps_to(np.repeat(bounds, size), best):>18s}", flush=True)


def main() -> None:
    """Print two blocks a data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=("coal", "banana", "image"))
    jax.config.update("jax_enable_x64", True)
    for name in parser.parse_args().names:
        case = case_of(name)
        found = {
            f"{held.__name__.lower()}, Adam({rate})": bounds_by_hand(case, held, rate)
            for rate in RATES
            for held in (Whitened, Sites)
        }
        show(f"{name}, z fixed", found, 2)
        show(f"{name}, gp.fit, z fitted", bounds_by_fit(name, case), 1)


if __name__ == "__main__":
    main()
