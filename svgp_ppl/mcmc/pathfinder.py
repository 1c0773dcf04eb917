"""Where chains start when there is no fit: Gaussians along paths of an optimiser.

Pathfinder (Zhang, Carpenter, Gelman & Vehtari 2022): at each point x_l of a path of
L-BFGS, its estimate Σ_l of the inverse Hessian gives N(x_l + Σ_l ∇log p(x_l), Σ_l); the
one with the highest ELBO represents the path. Draws of several paths are weighted with
p/q, the largest weights smoothed, and the chains start at draws kept with these
weights.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.flatten_util import ravel_pytree

from svgp_ppl.checks import require_count
from svgp_ppl.diagnostics.pareto import smoothed
from svgp_ppl.linalg import matmul
from svgp_ppl.mcmc.joint import Joint
from svgp_ppl.mcmc.target import Target
from svgp_ppl.runtime import progress_bar
from svgp_ppl.runtime.compilation import call

__all__ = ["Pathfinder"]


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
    max_steps: int = 60
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
            key_path, key_draws = random.split(key)
            state, _ = blackjax.pathfinder.approximate(
                key_path,
                lambda position: density_of(position, data),
                start,
                self.num_draws,
                maxiter=self.max_steps,
                maxcor=self.history,
                maxls=30,
            )
            mean, covariance = _gaussian(state)
            draws, log_q = _drawn(key_draws, mean, covariance, self.num_draws)
            draws = jax.vmap(ravel_pytree(start)[1])(draws)
            log_p = jax.lax.map(lambda x: density_of(x, data), draws)
            return state.elbo, mean, covariance, draws, log_p - log_q

        made_of = ("path of pathfinder", self, *target.made_of)
        found = []
        bar = progress_bar(self.num_paths, "paths", progress)
        bar.set_postfix_str("compiling")
        try:
            for number, key_path in enumerate(random.split(key, self.num_paths)):
                start = {name: x[number] for name, x in starts.items()}
                given = (key_path, start, target.data)
                result = call(path, made_of, *given, runs_once=True)
                found.append(jax.device_get(result))
                bar.set_postfix_str(f"ELBO {np.max(found[-1][0]):.1f}")
                bar.update(1)
        finally:
            bar.close()
        return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


def _gaussian(state: Any) -> tuple[Any, Any]:
    """x + Σ ∇log p(x) and Σ = diag(α) + β γ βᵀ, of a point of a path.

    BlackJAX keeps the gradient of −log p; its own draws (1.7) are around x − Σ ∇log p.
    """
    x, _ = ravel_pytree(state.position)
    slope, _ = ravel_pytree(state.grad_position)
    spread = matmul(matmul(state.beta, state.gamma), state.beta.T)
    covariance = jnp.diag(state.alpha) + spread
    return x - matmul(covariance, slope), (covariance + covariance.T) / 2


def _drawn(key, mean, covariance, number: int) -> tuple[Any, Any]:
    """Draws of N(mean, covariance), [S, D], and log q up to a constant, [S]."""
    tril = jnp.linalg.cholesky(covariance)
    noise = random.normal(key, (number, mean.size), mean.dtype)
    log_q = -0.5 * jnp.sum(noise**2, axis=1) - jnp.sum(jnp.log(jnp.diag(tril)))
    return mean + matmul(noise, tril.T), log_q


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
