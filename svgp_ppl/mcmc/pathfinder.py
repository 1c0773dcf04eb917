"""Where chains start when there is no fit: Gaussians along paths of an optimiser.

Pathfinder (Zhang, Carpenter, Gelman & Vehtari 2022): at each point x_l of a path of
L-BFGS, its estimate Σ_l of the inverse Hessian gives N(x_l + Σ_l ∇log p(x_l), Σ_l); the
one with the highest ELBO, of fifty along the way, represents the path. Draws of several
paths are weighted with p/q, the largest weights smoothed, and the chains start at draws
kept with these weights; or each chain at a draw of a path of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from svgp_ppl.checks import require_count
from svgp_ppl.diagnostics.pareto import smoothed
from svgp_ppl.linalg import matmul
from svgp_ppl.mcmc.joint import Joint
from svgp_ppl.mcmc.samplers.blackjax_parts import (
    bfgs_sample,
    lbfgs_inverse_hessian_factors,
    minimize_lbfgs,
)
from svgp_ppl.mcmc.target import Target
from svgp_ppl.rows.sharding import local
from svgp_ppl.runtime import progress_bar
from svgp_ppl.runtime.compilation import find
from svgp_ppl.runtime.side_by_side import on_one_cpu, side_by_side

__all__ = ["Pathfinder", "Paths"]

# At most so many points of a path are looked at: neighbours have nearly the same ELBO.
_MOST_POINTS = 50
# A path has arrived when a step gains less than this part of the log density.
_LEAST_GAIN = 1e-6


@dataclass(frozen=True)
class Pathfinder:
    """Starts of chains by Pathfinder (Zhang et al. 2022), where there is no fit.

    For ``init=`` of ``gp.sample``. Each path climbs the log density of all latent
    values, from a random start; ``param`` sites keep their initial values. Chains start
    at different draws of the Gaussians that were found, and move in the coordinates of
    the best of them.

    Args:
        num_paths: Number of paths, each from its own start.
        num_draws: Draws of each Gaussian along a path, for its ELBO, and of each path
            for the starts.
        max_steps: Maximum number of steps of L-BFGS.
        history: Pairs of steps and gradients from which L-BFGS estimates the Hessian.

    Raises:
        ValueError: A setting is not a positive integer.

    Example:
        >>> start = gp.mcmc.Pathfinder(num_paths=2, num_draws=20)
        >>> draws = gp.sample(
        ...     key, model, x, y, init=start, num_warmup=20, num_samples=20,
        ...     progress=False,
        ... )
        >>> draws.posterior.attrs["init"]
        'pathfinder'
    """

    num_paths: int = 4
    num_draws: int = 25
    max_steps: int = 1000
    history: int = 10

    def __post_init__(self):
        for name, value in vars(self).items():
            require_count(value, name)

    def approximate(
        self, key, target: Target, num_starts: int, progress: bool = False
    ) -> tuple[Joint, dict[str, np.ndarray]]:
        """The Gaussian of the best path, and draws to start from.

        Args:
            key: Random key.
            target: The log density.
            num_starts: Number of draws, which are all different.
            progress: Whether to show a bar.

        Returns:
            The Gaussian over the unconstrained latent values, and the draws by site,
            [num_starts, ...].

        Raises:
            FloatingPointError: Too few draws have a finite log density.
        """
        key_start, key_paths, key_kept = random.split(key, 3)
        starts = target.initial_positions(key_start, self.num_paths)
        paths = self.paths(key_paths, starts, target, progress)
        joint, num_finite = paths.best(), int(np.sum(paths.log_weights > -np.inf))
        if joint is None or num_finite < num_starts:
            raise FloatingPointError(
                f"Pathfinder found {num_finite} draws of finite log density for "
                f"{num_starts} chains, on {self.num_paths} paths: raise num_paths or "
                "max_steps, look at the priors, or start from a fit (gp.fit)."
            )
        kept = _kept(key_kept, paths.log_weights.ravel(), num_starts)
        draws = {n: x.reshape(-1, *x.shape[2:]) for n, x in paths.draws.items()}
        return joint, {name: x[kept] for name, x in draws.items()}

    def paths(
        self, key, starts: Mapping[str, Any], target: Target, progress: bool
    ) -> "Paths":
        """Paths from given places, on a CPU as many at once as there are cores.

        Args:
            key: Random key.
            starts: Where they begin, unconstrained values by site, [K, ...].
            target: The log density.
            progress: Whether to show a bar.
        """

        def path(key, place, data):
            return self._path(key, place, lambda x: target.logdensity_fn(x, data))

        made_of = ("path of pathfinder", self, *target.made_of)
        starts = jax.device_get(dict(starts))
        number = len(next(iter(starts.values())))
        places = [{n: x[k] for n, x in starts.items()} for k in range(number)]
        given = [(k, x, target.data) for k, x in zip(random.split(key, number), places)]
        bar = progress_bar(number, "paths", progress)
        bar.set_postfix_str("compiling")

        def follow(bound: Callable[[], Paths]) -> Paths:
            found = jax.device_get(local(bound()))
            bar.set_postfix_str(f"ELBO {found.elbo:.1f}")
            bar.update(1)
            return found

        quickly, at_once = not target.is_expensive, on_one_cpu(target.data)
        try:
            program = find(path, made_of, *given[0], runs_once=quickly)
            with side_by_side(number if at_once else 1) as run:
                found = run([partial(follow, program.bound(*one)) for one in given])
        finally:
            bar.close()
        return jax.tree.map(lambda *leaves: np.stack(leaves), *found)

    def _path(self, key, start: dict, logdensity_fn: Callable) -> "Paths":
        """One of them, without K."""
        flat, unravel = ravel_pytree(start)

        def density_at(x):
            return logdensity_fn(unravel(x))

        (_, status), history = minimize_lbfgs(
            lambda x: -density_at(x),
            flat,
            maxiter=self.max_steps,
            maxcor=self.history,
            maxls=30,
            ftol=_LEAST_GAIN,
        )
        points = _Points.of(history, self.history)

        def look(numbered):
            point = points.at(numbered[0])
            draws, log_q = point.drawn(numbered[1], self.num_draws)
            log_weights = jax.lax.map(density_at, draws) - log_q
            return jnp.mean(log_weights), draws, log_weights

        number = min(_MOST_POINTS, self.max_steps)
        places = jnp.linspace(1, status.iter_num, number).round().astype(int)
        elbo, *of_points = jax.lax.map(look, (places, random.split(key, number)))
        elbo = jnp.where(jnp.isfinite(elbo), elbo, -jnp.inf)
        best = jnp.argmax(elbo)
        mean, covariance = points.at(places[best]).gaussian()
        draws, log_weights = (x[best] for x in of_points)
        log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -jnp.inf)
        draws = jax.vmap(unravel)(draws)
        return Paths(elbo[best], mean, covariance, draws, log_weights)


class Paths(NamedTuple):
    """What was found on each of K paths: the Gaussian of the highest ELBO.

    Attributes:
        elbo: Its ELBO, −inf if there is none, [K].
        mean: Its mean, all values in a row, [K, D].
        covariance: Its covariance, [K, D, D].
        draws: Draws of it, by site, [K, S, ...].
        log_weights: log p/q of these, −inf if it is not finite, [K, S].
    """

    elbo: Any
    mean: Any
    covariance: Any
    draws: dict[str, Any]
    log_weights: Any

    def best(self) -> Joint | None:
        """The Gaussian of the best path; None if there is none."""
        if not np.any(self.elbo > -np.inf):
            return None
        best = np.argmax(self.elbo)
        unravel = ravel_pytree({n: x[best, 0] for n, x in self.draws.items()})[1]
        mean = jax.device_get(unravel(self.mean[best]))
        return Joint(mean, self.covariance[best])

    def ends(self, places: Mapping[str, Any], number: int) -> dict[str, np.ndarray]:
        """Draws by site, [number, ...]: of each path in turn, the largest weight first.

        Args:
            places: What stands for draws of no finite log density, [number, ...].
            number: Up to K S.
        """
        turns, of_path = np.divmod(np.arange(number), len(self.elbo))
        order = np.argsort(-self.log_weights, axis=1)
        rows = (of_path, order[of_path, turns])
        is_finite = self.log_weights[rows] > -np.inf
        found = {name: np.array(x) for name, x in places.items()}
        for name, x in found.items():
            x[is_finite] = self.draws[name][rows][is_finite]
        return found


class _Point(NamedTuple):
    """N(x + Σ ∇log p(x), Σ), Σ = diag(α) + β γ βᵀ, of a point x of a path."""

    x: Array
    slope: Array
    alpha: Array
    beta: Array
    gamma: Array

    def drawn(self, key, number: int) -> tuple[Array, Array]:
        """Draws, [S, D], and log q of each, [S]."""
        return bfgs_sample(key, number, *self)

    def gaussian(self) -> tuple[Array, Array]:
        """Mean [D] and covariance [D, D]."""
        spread = matmul(matmul(self.beta, self.gamma), self.beta.T)
        covariance = jnp.diag(self.alpha) + spread
        mean = self.x + matmul(covariance, self.slope)
        return mean, (covariance + covariance.T) / 2


class _Points(NamedTuple):
    """The points of a path, and the pairs from which L-BFGS knows Σ at each.

    Attributes:
        history: The path of BlackJAX, L + 1 points.
        steps: Differences of neighbours, after those of zero before the start, [.., D].
        changes: Those of the gradients.
    """

    history: Any
    steps: Array
    changes: Array

    @classmethod
    def of(cls, history: Any, length: int) -> "_Points":
        """Those of a path, each with ``length`` pairs."""

        def changes_of(x):
            counted = jnp.where(history.update_mask[1:], jnp.diff(x, axis=0), 0.0)
            return jnp.pad(counted, ((length, 0), (0, 0)))

        return cls(history, changes_of(history.x), changes_of(history.g))

    def at(self, number) -> _Point:
        """The point after so many steps."""
        length = len(self.steps) - len(self.history.x) + 1
        rows = number + jnp.arange(length)
        alpha = self.history.alpha[number]
        pairs = (self.steps[rows].T, self.changes[rows].T)
        factors = lbfgs_inverse_hessian_factors(*pairs, alpha)
        # The optimiser descends: its gradients are those of −log p.
        return _Point(self.history.x[number], -self.history.g[number], alpha, *factors)


def _kept(key, log_weights: np.ndarray, number: int) -> np.ndarray:
    """Different draws, with the smoothed weights (by the largest of Gumbel noise)."""
    log_weights = np.where(np.isneginf(log_weights), -np.inf, smoothed(log_weights))
    noise = np.asarray(random.gumbel(key, log_weights.shape))
    return np.argsort(-(log_weights + noise))[:number]
