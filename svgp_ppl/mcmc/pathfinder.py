"""Where chains start when there is no fit: Gaussians along paths of an optimiser.

Pathfinder (Zhang, Carpenter, Gelman & Vehtari 2022): at each point x_l of a path of
L-BFGS, its estimate Σ_l of the inverse Hessian gives N(x_l + Σ_l ∇log p(x_l), Σ_l); the
one with the highest ELBO represents the path. Draws of several paths are weighted with
p/q, the largest weights smoothed, and the chains start at draws kept with these
weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
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
from svgp_ppl.runtime import progress_bar
from svgp_ppl.runtime.compilation import call

__all__ = ["Pathfinder"]

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
        starts = jax.device_get(starts)
        found = self._paths(key_paths, starts, target, progress)
        elbo, mean, covariance, draws, log_weights = found
        log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf).ravel()
        elbo = np.where(np.isfinite(elbo), elbo, -np.inf)
        num_finite = int(np.sum(log_weights > -np.inf))
        if num_finite < num_starts or not np.any(elbo > -np.inf):
            raise FloatingPointError(
                f"Pathfinder found {num_finite} draws of finite log density for "
                f"{num_starts} chains, on {self.num_paths} paths: raise num_paths or "
                "max_steps, look at the priors, or start from a fit (gp.fit)."
            )
        kept = _kept(key_kept, log_weights, num_starts)
        of_chains = {n: x.reshape(-1, *x.shape[2:])[kept] for n, x in draws.items()}
        best, position = np.argmax(elbo), {n: x[0] for n, x in starts.items()}
        unravel = ravel_pytree(position)[1]
        return Joint(jax.device_get(unravel(mean[best])), covariance[best]), of_chains

    def _paths(self, key, starts: dict, target: Target, progress: bool) -> Any:
        """The results of every path, one path at a time; leaves [K, ...]."""
        density_of = _one_at_a_time(target.logdensity_fn)

        def path(key, start, data):
            flat, unravel = ravel_pytree(start)

            def density_at(x):
                return density_of(unravel(x), data)

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
            looks = jax.lax.map(look, (places, random.split(key, number)))
            elbo = jnp.where(jnp.isfinite(looks[0]), looks[0], -jnp.inf)
            best = jnp.argmax(elbo)
            mean, covariance = points.at(places[best]).gaussian()
            draws, log_weights = looks[1][best], looks[2][best]
            return elbo[best], mean, covariance, jax.vmap(unravel)(draws), log_weights

        made_of = ("path of pathfinder", self, *target.made_of)
        found = []
        bar = progress_bar(self.num_paths, "paths", progress)
        bar.set_postfix_str("compiling")
        try:
            for number, key_path in enumerate(random.split(key, self.num_paths)):
                start = {name: x[number] for name, x in starts.items()}
                given = (key_path, start, target.data)
                once = not target.is_expensive
                result = call(path, made_of, *given, runs_once=once)
                found.append(jax.device_get(result))
                bar.set_postfix_str(f"ELBO {np.max(found[-1][0]):.1f}")
                bar.update(1)
        finally:
            bar.close()
        return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


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


def _one_at_a_time(logdensity_fn: Callable) -> Callable:
    """The log density, which ``vmap`` evaluates one position after another.

    BlackJAX evaluates all draws along a path at once: some thousand times the memory.
    """

    @jax.custom_vjp
    def density_of(position, data):
        return jax.custom_batching.sequential_vmap(logdensity_fn)(position, data)

    def forward(position, data):
        return jax.value_and_grad(logdensity_fn)(position, data)

    def backward(slope, cotangent):
        return jax.tree.map(lambda x: cotangent * x, slope), None

    density_of.defvjp(forward, backward)
    return density_of


def _kept(key, log_weights: np.ndarray, number: int) -> np.ndarray:
    """Different draws, with the smoothed weights (by the largest of Gumbel noise)."""
    log_weights = np.where(np.isneginf(log_weights), -np.inf, smoothed(log_weights))
    noise = np.asarray(random.gumbel(key, log_weights.shape))
    return np.argsort(-(log_weights + noise))[:number]
