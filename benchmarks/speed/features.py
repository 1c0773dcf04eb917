"""Fourier features against inducing points: the bound, and what a gradient of it costs.

    python benchmarks/speed/features.py [--n 100000] [--m 101 201 401 801]

N data on [0, 10] from a Matérn-3/2 process of lengthscale 0.1, variance 1 and noise of
standard deviation 0.3. The exact log evidence comes from a Kalman filter on the state
(f, f'); the bound of Titsias (2009) at the true hyperparameters from k_uu and k_uf,
for M points on a grid and for M Fourier features on [-0.3, 10.3]. Seconds are those of
one value and gradient with respect to variance, lengthscale and noise, after
compilation, the least of three. "once" is what Φ Φᵀ and Φ y take, which are all that
Fourier features need of the data as long as these are inside of the interval: every
further gradient is then free of N (Hensman, Durrande & Solin 2018).
float64.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

import svgp_ppl as gp

LOWER, UPPER, CHUNK = 0.0, 10.0, 2000
MARGIN = 0.3  # three lengthscales
TRUE = {"variance": 1.0, "lengthscale": 0.1, "noise": 0.3}


def state_space(times, variance, lengthscale):
    """Transitions [N, 2, 2] and noise covariances of the state (f, f')."""
    rate = 3**0.5 / lengthscale
    step = jnp.diff(times, prepend=times[0])[:, None, None]
    drift = jnp.array([[0.0, 1.0], [-(rate**2), -2 * rate]])
    # F + λI is nilpotent: exp(F t) = exp(−λ t) (I + (F + λI) t).
    moved = jnp.exp(-rate * step) * (jnp.eye(2) + (drift + rate * jnp.eye(2)) * step)
    stationary = variance * jnp.diag(jnp.array([1.0, rate**2]))
    noise = stationary - moved @ stationary @ jnp.swapaxes(moved, 1, 2)
    return moved, noise, stationary


def simulated(key, n):
    """Inputs in order, and data."""
    key_x, key_f, key_y = random.split(key, 3)
    x = jnp.sort(random.uniform(key_x, (n,), minval=LOWER, maxval=UPPER))
    moved, noise, start = state_space(x, TRUE["variance"], TRUE["lengthscale"])
    vectors, values = jnp.linalg.eigh(noise)[::-1]
    root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[:, None, :]
    first = jnp.linalg.cholesky(start) @ random.normal(key_f, (2,))
    draws = jnp.einsum("nij,nj->ni", root, random.normal(key_f, (n, 2)))

    def step(state, inputs):
        state = inputs[0] @ state + inputs[1]
        return state, state[0]

    _, f = jax.lax.scan(step, first, (moved, draws))
    return x, f + TRUE["noise"] * random.normal(key_y, (n,))


def log_evidence(x, y):
    """log p(y) by a Kalman filter."""
    moved, noise, start = state_space(x, TRUE["variance"], TRUE["lengthscale"])

    def step(carry, inputs):
        mean, covariance = carry
        moved, noise, y = inputs
        mean = moved @ mean
        covariance = moved @ covariance @ moved.T + noise
        spread = covariance[0, 0] + TRUE["noise"] ** 2
        log_p = -0.5 * (jnp.log(2 * jnp.pi * spread) + (y - mean[0]) ** 2 / spread)
        gain = covariance[:, 0] / spread
        mean = mean + gain * (y - mean[0])
        return (mean, covariance - jnp.outer(gain, covariance[0])), log_p

    return jnp.sum(jax.lax.scan(step, (jnp.zeros(2), start), (moved, noise, y))[1])


def collapsed(gram, products, cross_y, y, theta):
    """Titsias' bound from k_uu, Σ k_u k_uᵀ and Σ k_u y."""
    n, noise2 = len(y), theta["noise"] ** 2
    inverse = gp.linalg.factorised(gram).inverse
    whitened = inverse @ products @ inverse.T
    inner = jnp.eye(len(gram)) + whitened / noise2
    root = jnp.linalg.cholesky(inner)
    b = jax.scipy.linalg.solve_triangular(root, inverse @ cross_y, lower=True)
    log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root))) + n * jnp.log(noise2)
    quadratic = (jnp.sum(y * y) - jnp.sum(b * b) / noise2) / noise2
    open_variance = n * theta["variance"] - jnp.trace(whitened)
    return -0.5 * (n * jnp.log(2 * jnp.pi) + log_det + quadratic) - (
        0.5 * open_variance / noise2
    )


def sums(rows, x, y):
    """Σ k_u k_uᵀ and Σ k_u y over chunks, with rows(x) = k_u [M, n]."""

    def of(chunk):
        k = rows(chunk[0][:, None])
        return k @ k.T, k @ chunk[1]

    folded = x.reshape(-1, CHUNK), y.reshape(-1, CHUNK)
    products, cross = jax.lax.map(jax.checkpoint(of), folded)
    return jnp.sum(products, axis=0), jnp.sum(cross, axis=0)


def kernel_of(theta):
    return gp.kernels.Matern32(theta["variance"], theta["lengthscale"])


def bound(features, theta, x, y):
    """By k_uu and k_uf, whatever the features are."""
    kernel = kernel_of(theta)
    products, cross_y = sums(lambda x: features.k_uf(kernel, x), x, y)
    return collapsed(features.k_uu(kernel), products, cross_y, y, theta)


def bound_of_sums(features, theta, known, y):
    """Of Fourier features from Σ φ φᵀ and Σ φ y: k_uf = scale φ."""
    kernel = kernel_of(theta)
    half = features.num_frequencies + 1
    cosines = features.k_uf(kernel, jnp.full((1, 1), features.lower))[:half, 0]
    scale = jnp.concatenate([cosines, cosines[1:]])
    products = scale[:, None] * known[0] * scale
    return collapsed(features.k_uu(kernel), products, scale * known[1], y, theta)


def waves(features, x):
    """φ(x), [M, n]."""
    step = 2 * jnp.pi / (features.upper - features.lower)
    frequencies = step * jnp.arange(1, features.num_frequencies + 1)
    phase = frequencies[:, None] * (x[:, 0] - features.lower)
    return jnp.concatenate([jnp.ones((1, len(x))), jnp.cos(phase), jnp.sin(phase)])


def least_seconds(function, *args):
    """Value, and the least of three times, compilation left out."""
    value = jax.block_until_ready(function(*args))
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(function(*args))
        taken.append(time.perf_counter() - began)
    return value, min(taken)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--m", type=int, nargs="+", default=[101, 201, 401, 801])
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    x, y = simulated(random.key(0), options.n)
    exact = float(jax.jit(log_evidence)(x, y))
    theta = jax.tree.map(jnp.asarray, TRUE)
    print(f"N = {options.n}, exact log evidence {exact:.1f}")
    print("   M   gap: points  Fourier | seconds: points  Fourier | from sums   once")
    with gp.linalg.single_threaded_lapack():
        for m in options.m:
            z = jnp.asarray(np.linspace(LOWER, UPPER, m)[:, None])
            points = gp.features.Points(z)
            fourier = gp.features.Fourier(LOWER - MARGIN, UPPER + MARGIN, m // 2)
            found = []
            for features in (points, fourier):
                run = jax.jit(jax.value_and_grad(bound, argnums=1))
                found.append(least_seconds(run, features, theta, x, y))
            of_data = jax.jit(lambda x, y, f=fourier: sums(lambda x: waves(f, x), x, y))
            known, once = least_seconds(of_data, x, y)
            from_sums = jax.jit(
                jax.value_and_grad(
                    lambda theta, known, y, f=fourier: bound_of_sums(f, theta, known, y)
                )
            )
            (again, _), fast = least_seconds(from_sums, theta, known, y)
            gaps = [exact - float(value) for (value, _), _ in found]
            assert abs(exact - float(again) - gaps[1]) < 1e-3 * max(1.0, abs(gaps[1]))
            times = [seconds for _, seconds in found]
            print(
                f"{m:4d} {gaps[0]:13.2f} {gaps[1]:8.2f} | {times[0]:15.3f} "
                f"{times[1]:8.3f} | {fast:9.4f} {once:6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
