"""Steps of sparse GPs written by hand in JAX: what `fit_step.py` measures against.

``textbook`` is a triangular solve and plain autodiff. ``limit`` is the fastest form
that keeps the accuracy (docs/decisions/0008): the inverse of the factor, refined by
blocks in float32; distances by a matrix product; every derivative by M × N arrays
written out, two products of M × M with M × N backwards.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from svgp_ppl.linalg.triangular import solve_by_inverse

JITTER = {"float32": 1e-5, "float64": 1e-6}


def _dot(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _squares(a, b):
    squares = jnp.sum(a * a, 1)[:, None] + jnp.sum(b * b, 1) - 2 * _dot(a, b.T)
    return jnp.maximum(squares, 0.0)


def textbook(expectation):
    """Negative bound (or log density) and gradient of free values, by autodiff.

    Args:
        expectation: (mean, variance, y, values) -> expected log likelihood, summed.
    """

    def negative(p, x, y, fixed):
        p = {**fixed, **p}
        variance, lengthscale = map(jax.nn.softplus, (p["variance"], p["lengthscale"]))
        z, m, size = p["z"], p["m"], len(p["z"])

        def k(a, b):
            return variance * jnp.exp(-0.5 * _squares(a / lengthscale, b / lengthscale))

        jitter = JITTER[str(x.dtype)] * variance * jnp.eye(size)
        root = jnp.linalg.cholesky(k(z, z) + jitter)
        a = solve_triangular(root, k(z, x), lower=True)
        spread = variance - jnp.sum(a * a, 0)
        penalty = 0.5 * m @ m
        if "s" in p:
            s = jnp.tril(p["s"])
            spread = spread + jnp.sum((s.T @ a) ** 2, 0)
            penalty += 0.5 * jnp.sum(s * s) - jnp.sum(jnp.log(jnp.abs(jnp.diag(s))))
        return penalty - expectation(m @ a, spread, y, p)

    return jax.value_and_grad(negative)


def limit(expectation):
    """The same by hand: value and gradient of the free values."""

    def gradient(p, x, y, fixed):
        every = {**fixed, **p}
        variance = jax.nn.softplus(every["variance"])
        lengthscale = jax.nn.softplus(every["lengthscale"])
        z, m, size = every["z"], every["m"], len(every["z"])
        eye, jitter = jnp.eye(size, dtype=x.dtype), JITTER[str(x.dtype)]
        centre = jnp.mean(z / lengthscale, 0)
        xs, zs = x / lengthscale - centre, z / lengthscale - centre
        kzx = variance * jnp.exp(-0.5 * _squares(zs, xs))
        kzz = variance * jnp.exp(-0.5 * _squares(zs, zs))
        root = jnp.linalg.cholesky(kzz + jitter * variance * eye)
        inverse = solve_triangular(root, eye, lower=True)
        a = solve_by_inverse(root, inverse, kzx)
        penalty = 0.5 * m @ m
        if "s" in every:
            s = jnp.tril(every["s"])
            inner = _dot(s, s.T) - eye
            c = _dot(inner, a)
            penalty += 0.5 * jnp.sum(s * s) - jnp.sum(jnp.log(jnp.abs(jnp.diag(s))))
        else:
            inner, c = -eye, -a
        spread = variance + jnp.sum(a * c, 0)
        expected, pull = jax.vjp(
            lambda mean, spread, p: expectation(mean, spread, y, p), m @ a, spread, p
        )
        by_mean, by_spread, of_values = pull(-jnp.ones((), x.dtype))

        back = m[:, None] * by_mean + 2 * c * by_spread
        by_kzx = _transposed(root, inverse, back)
        weighted = _dot(a * by_spread, a.T)
        change = -(jnp.outer(m, a @ by_mean) + 2 * _dot(inner, weighted))
        change = jnp.tril(change) - jnp.diag(jnp.diagonal(change)) / 2
        half = _transposed(root, inverse, change)
        by_kzz = _transposed(root, inverse, half.T)
        by_kzz = (by_kzz + by_kzz.T) / 2

        # The kernel: one elementwise product, then thin matrix products.
        e, ez = by_kzx * kzx, by_kzz * kzz
        rows, rows_z = jnp.sum(e, 1), jnp.sum(ez, 1)
        features = jnp.concatenate([xs, xs * xs], axis=1)
        ex, ezz = _dot(e, features), _dot(ez, zs)
        width = x.shape[1]
        by_zs = ex[:, :width] - rows[:, None] * zs
        by_zs += 2 * (ezz - rows_z[:, None] * zs)
        squares = rows[:, None] * zs**2 + ex[:, width:] - 2 * zs * ex[:, :width]
        squares += 2 * (rows_z[:, None] * zs**2 - zs * ezz)
        diagonal = jitter * variance * jnp.trace(by_kzz)
        by_variance = (jnp.sum(rows) + jnp.sum(rows_z) + diagonal) / variance
        found = {
            "variance": (by_variance + jnp.sum(by_spread))
            * jax.nn.sigmoid(every["variance"]),
            "lengthscale": jnp.sum(squares, 0)
            / lengthscale
            * jax.nn.sigmoid(every["lengthscale"]),
            "z": by_zs / lengthscale,
            "m": a @ by_mean + m,
        }
        if "s" in every:
            found["s"] = jnp.tril(2 * _dot(weighted, s) + s)
            found["s"] -= jnp.diag(1 / jnp.diagonal(s))
        slopes = {name: found.get(name, 0.0) + of_values[name] for name in p}
        return penalty - expected, slopes

    return gradient


def _transposed(root, inverse, b):
    """L⁻ᵀ b."""
    return jax.linear_transpose(lambda b: solve_by_inverse(root, inverse, b), b)(b)[0]
