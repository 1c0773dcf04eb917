"""Scots pines: posteriors for several numbers of inducing inputs, without chains.

    python -m benchmarks.papers.mcmc.pines_grid [--sides 32 20 15]

The model of ``pines`` at all cells mixes slowly (about 500 gradients an effective
draw). Here its hyperparameters θ are integrated on a grid of logarithms. At each point
natural gradients give the best Gaussian q(v), and draws of it are weighted to the
posterior of v at θ that ``pines`` samples; with f_n | v ~ N(μ_n, s_n²),
μ = Aᵀ v, A = L⁻¹ k(z, x), and λ_n = exp(μ_n + s_n²/2) its mean intensity,

    w_s = p(v_s) / q(v_s) Π_n exp(y_n μ_n − a λ_n),    v_s ~ q
    p(y | θ) ∝ mean w_s,    E[λ | y, θ] ≈ Σ w_s λ_s / Σ w_s

(Hensman et al. 2015; a is the area of a cell). An inducing input in every
cell is the process without approximation, s_n² ≈ 0.

For each number of inducing inputs a side: the means of the hyperparameters; then the
correlation of its map of the mean intensity with that of the first, and their largest
relative difference, with θ integrated and at the first one's heaviest θ.
"""

import argparse
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax import random
from scipy.special import logsumexp, softmax
from tqdm import tqdm

import svgp_ppl as gp
from benchmarks.papers.mcmc.pines import PRIORS, inducing_inputs, sparse_model
from svgp_ppl.linalg import cholesky, single_threaded_lapack, solve_lower


@dataclass
class Grid:
    """A posterior: weights [V, L], maps [V, L, N], effective draws [V, L]."""

    weights: np.ndarray
    maps: np.ndarray
    sizes: np.ndarray

    @property
    def map(self) -> np.ndarray:
        """Mean intensity [N]."""
        return np.tensordot(self.weights, self.maps, 2)

    def means(self, values: dict[str, np.ndarray]) -> list[float]:
        """Means of the variance and the lengthscale."""
        margins = (self.weights.sum(1), self.weights.sum(0))
        return [float(p @ v) for p, v in zip(margins, values.values(), strict=True)]


def fitted_inputs(data, side: int, num_steps: int):
    """Inducing inputs [M, 2] that a Gaussian fit has moved, together with θ."""
    start = inducing_inputs(side)
    if num_steps == 0:
        return start
    model = sparse_model(start, data.area)
    fit = gp.fit(
        random.key(0),
        model,
        gp.AutoGaussian(model),
        jnp.asarray(data.x, jnp.float32),
        jnp.asarray(data.y),
        optimizer=optax.adam(0.02),
        num_steps=num_steps,
        progress=False,
    )
    return fit.params["z"]


def weighted(data, z, theta: dict[str, float], num_draws: int):
    """Log evidence less a constant, mean intensity [N], effective number of draws."""
    x, y = jnp.asarray(data.x, float), np.asarray(data.y, float)
    kernel = gp.kernels.RBF(**theta)

    def model(x, y=None):
        f = gp.sparse_gp("f", kernel, z)
        with numpyro.plate("cells", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(data.area), f(x), obs=y)

    fitted = gp.fit(
        random.key(0),
        model,
        gp.AutoGaussian(model),
        x,
        jnp.asarray(data.y),
        optimizer=gp.natural_gradient(1.0),
        num_steps=10,
        progress=False,
    )
    mean = np.asarray(fitted.params["auto_f_loc"])
    root = np.asarray(fitted.params["auto_f_scale_tril"])
    e = np.random.default_rng(0).standard_normal((len(mean), num_draws))
    v = mean[:, None] + root @ e
    a = np.asarray(solve_lower(cholesky(kernel(z)), kernel(z, x)))
    mu = a.T @ v
    residual = theta["variance"] - np.sum(a**2, axis=0)
    intensity = np.exp(mu + residual[:, None] / 2)
    log_weights = y @ mu - data.area * intensity.sum(0)
    log_weights += 0.5 * np.sum(e**2 - v**2, axis=0) + np.log(np.diag(root)).sum()
    weights = softmax(log_weights)
    evidence = logsumexp(log_weights) - np.log(num_draws)
    return evidence, intensity @ weights, 1.0 / np.sum(weights**2)


def on_grid(data, z, values: dict[str, np.ndarray], num_draws: int) -> Grid:
    """The posterior from inducing inputs z [M, 2]."""
    shape = tuple(len(v) for v in values.values())
    log_weights, sizes = np.empty(shape), np.empty(shape)
    maps = np.empty((*shape, len(data.x)))
    for at in tqdm(list(np.ndindex(shape)), desc=f"M = {len(z)}"):
        theta = {n: float(v[i]) for i, (n, v) in zip(at, values.items(), strict=True)}
        log_weights[at], maps[at], sizes[at] = weighted(data, z, theta, num_draws)
        for name, value in theta.items():
            # The points are even in the logarithms.
            log_weights[at] += PRIORS[name].log_prob(value) + np.log(value)
    return Grid(softmax(log_weights), maps, sizes)


def agreement(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Correlation of two maps and the largest difference, relative to b."""
    return float(np.corrcoef(a, b)[0, 1]), float(np.max(np.abs(a - b) / b))


def parse(arguments=None):
    """The options; None reads the command line."""
    parser = argparse.ArgumentParser(description="Scots pines, by a grid.")
    parser.add_argument("--cells", type=int, default=32, help="along a side")
    parser.add_argument("--sides", type=int, nargs="+", default=[32, 20, 15])
    parser.add_argument("--steps", type=int, default=5000, help="of the fit of z")
    parser.add_argument("--draws", type=int, default=8000, help="at a point")
    parser.add_argument("--keep", help="file for the weights and the maps")
    return parser.parse_args(arguments)


def main():
    options = parse()
    data = gp.datasets.pines(options.cells)
    values = {
        "variance": np.geomspace(0.35, 2.2, 5),
        "lengthscale": np.geomspace(0.22, 1.1, 8),
    }
    grids = []
    print(
        "      effective                             integrated         at one θ\n"
        "          draws  variance  lengthscale  correlation  gap  correlation  gap"
    )
    for side in options.sides:
        num_steps = options.steps if side < options.cells else 0
        z = np.asarray(fitted_inputs(data, side, num_steps), float)
        with jax.enable_x64(True), single_threaded_lapack():
            grids.append(on_grid(data, z, values, options.draws))
        grid, first = grids[-1], grids[0]
        heaviest = np.unravel_index(np.argmax(first.weights), first.weights.shape)
        integrated = agreement(grid.map, first.map)
        at_one = agreement(grid.maps[heaviest], first.maps[heaviest])
        variance, lengthscale = grid.means(values)
        print(
            f"{side:3d}²{grid.sizes[grid.weights > 0.01].min():10.0f}"
            f"{variance:10.3f}{lengthscale:13.3f}"
            f"{integrated[0]:13.4f}{integrated[1]:5.2f}{at_one[0]:13.4f}{at_one[1]:5.2f}",
            flush=True,
        )
        if options.keep:
            weights = {f"weights_{s}": g.weights for s, g in zip(options.sides, grids)}
            maps = {f"map_{s}": g.map for s, g in zip(options.sides, grids)}
            np.savez(options.keep, **weights, **maps)


if __name__ == "__main__":
    main()
