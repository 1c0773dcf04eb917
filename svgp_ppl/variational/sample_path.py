"""One function of a process: f drawn from p(f | v), evaluated wherever it is asked for.

    p(f(x) | v) = N( m(x) + aᵀ v,  k(x, x) − aᵀ a ),      a = L⁻¹ k(z, x)

For the length of one run of the model a process *is* a function: its latents hold
values in place of terms. Two ways to draw it, without the mean m(x):

``ExactPath``    jointly at all inputs, those of earlier calls included: the values
                 drawn become further whitened values, their inputs further z.
``FeaturePath``  a prior draw from random features, corrected to pass through u
                      (Matheron's rule: Wilson et al. 2020, eq. 13).

z means inducing features, of which points are one kind, and x a functional ℒ of f, of
which the value at points is one.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array, Float

from svgp_ppl.features import Concatenated, LinearFunctional, Points, covariance
from svgp_ppl.kernels.features import random_features, white_variance
from svgp_ppl.linalg import (
    cholesky,
    default_jitter,
    matmul,
    safe_sqrt,
    solve_lower,
    solve_lower_transposed,
)
from svgp_ppl.rows.sharding import in_blocks

__all__ = ["EXACT_LIMIT", "ExactPath", "FeaturePath", "SamplePath"]

# Rows (inducing inputs and all inputs of a run) of one exact draw: its factor takes
# 200 MB in float64, and a few seconds.
EXACT_LIMIT = 5000

# Rows at which a pathwise draw is evaluated at a time: their features fill 40 MB.
_ROWS_AT_A_TIME = 5000

# Rounding errors of the mean variance that an exact draw adds to every row: in single
# precision factors fail without them where variances differ by 1e7.
_ROUNDING = 4.0


class SamplePath(dist.Distribution):
    """The point v together with the one function drawn given it.

    The q(v) of a process under ``handlers.as_sample_paths``. The same inputs (the same
    array) give the same values.

    Args:
        value: v, [M] or [P, M].
        function: An :class:`ExactPath` or :class:`FeaturePath`.
    """

    support: Any = dist.constraints.real_vector
    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("value",)
    pytree_aux_fields = ("function", "_known")

    def __init__(self, value, function):
        self.value, self.function = value, function
        self._known: list[tuple[Any, Array]] = []
        super().__init__((), jnp.shape(value))

    def at(self, process, x: LinearFunctional, source) -> Float[Array, "P N"]:
        """Values at x without the mean, one row for each output.

        Args:
            process: The ``SparseGP`` whose q(v) this is.
            x: Inputs, or another functional.
            source: The caller's own object: its identity shows that inputs are the
                same.
        """
        for known, values in self._known:
            if known is source:
                return values
        values = self.function(process, x)
        self._known.append((source, values))
        return values

    def log_prob(self, value, intermediates=None):
        """Zero: nothing is scored while functions are drawn."""
        return jnp.zeros(())


class ExactPath:
    """Values drawn jointly from p(f(x) | v and all values drawn before).

    With C = k(x, x) − aᵀa, R Rᵀ = C + D, where D is a diagonal jitter, and ε ~ N(0, I),
    f(x) = aᵀv + R ε; the mean share of the jitter in that, D R⁻ᵀ ε, is subtracted
    again, which leaves the covariance C − D (C + D)⁻¹ C and functions as smooth as C
    implies. The pair

        L' = [[L, 0], [aᵀ, R]],    v' = [v; ε]

    is the process with the inducing inputs [z; x], for which p(f(·) | v') is
    p(f(·) | v, f(x)); the next call starts from it. O((M + N)³), N in all.

    Args:
        key: Random key of the function.
        value: v, [M] or [P, M].
    """

    def __init__(self, key, value):
        self.key = key
        self.v: Any = _outputs_first(value)
        self.known: list[Any] = []  # the features, then the x of earlier calls
        self.scale_tril: Any = None

    def __call__(self, process, x: LinearFunctional) -> Float[Array, "P N"]:
        """Values at x without the mean, one row for each output."""
        if not self.known:
            self.known, self.scale_tril = [process.features], process.scale_tril
        known = len(self.scale_tril)
        rows = known + len(x)
        if rows > EXACT_LIMIT:
            raise ValueError(
                f"an exact draw of process '{process.name}' would factorise a matrix "
                f"of {rows} rows (its inducing inputs and all inputs it is seen at), "
                f'more than {EXACT_LIMIT}. Use method="pathwise", whose cost grows '
                "linearly, or fewer inputs."
            )
        self.key, key = random.split(self.key)
        kernel, dtype = process.kernel, self.scale_tril.dtype
        jitter = _jitter_of_rows(kernel, x)
        cross = jnp.concatenate([covariance(kernel, old, x) for old in self.known])
        a = solve_lower(self.scale_tril, cross)
        root = cholesky(x.k_uu(kernel) - matmul(a.T, a), jitter)
        noise = random.normal(key, (len(self.v), len(x)), dtype)
        share = jnp.reshape(jitter, (-1, 1)) * solve_lower_transposed(root, noise.T)
        values = matmul(self.v, a) + matmul(noise, root.T) - share.T
        above = jnp.zeros((known, len(x)), dtype)
        self.scale_tril = jnp.block([[self.scale_tril, above], [a.T, root]])
        self.known.append(x)
        self.v = jnp.concatenate([self.v, noise], axis=1)
        return values


class FeaturePath:
    """A function with features: a prior draw g, and its correction at z.

    g(x) = φ(x)ᵀw with w ~ N(0, I) and random features φ of the prior; then

        f(x) = g(x) + k(x, z) k(z, z)⁻¹ (u − g(z))
             = g(x) + k(x, z) L⁻ᵀ (v − L⁻¹ (g(z) + √jitter e)),    e ~ N(0, I).

    The features are drawn anew for each function. φᵀφ is then k on average, and f is
    linear in g: mean and covariance over functions are exactly those of p(f | v), and
    only their being Gaussian away from z is approximate. O(N (M + num_features)).

    Outputs of one process share the features, with weights of their own.

    Args:
        key: Random key of the function.
        value: v, [M] or [P, M].
        jitter: Absolute amount on the diagonal of k(z, z) with which L was formed, a
            number or [M]; None for the default of points.
        num_features: Number of features.
    """

    def __init__(self, key, value, jitter, num_features: int):
        self.key, self.key_features, self.key_weights = random.split(key, 3)
        self.v = _outputs_first(value)
        self.jitter, self.num_features = jitter, num_features
        self.features: Any = None  # φ
        self.weights: Any = None  # w, [F, P]
        self.correction: Any = None  # L⁻ᵀ (v − L⁻¹ (g(z) + √jitter e)), [M, P]

    def __call__(self, process, x: LinearFunctional) -> Float[Array, "P N"]:
        """Values at x without the mean, one row for each output."""
        if self.weights is None:
            self._begin(process)

        def smooth(rows):
            prior = matmul(self.features(rows), self.weights)
            k = process.features.k_uf(process.kernel, rows)
            return prior + matmul(k.T, self.correction)

        values = x.of(lambda x: in_blocks(smooth, x, _ROWS_AT_A_TIME, axis=0).T)
        white = _white_variance(process.kernel, x)
        if white is not None:
            values = values + safe_sqrt(white) * self._noise(values.shape)
        return values

    def _begin(self, process) -> None:
        z, kernel, dtype = process.features, process.kernel, process.scale_tril.dtype
        if not isinstance(z, LinearFunctional):
            raise ValueError(
                f"process '{process.name}' is represented by {type(z).__name__}, of "
                'which a random function has no values: use method="exact".'
            )
        width = z.of(lambda x: jnp.zeros((x.shape[1], len(x)), dtype)).shape[0]
        self.features = random_features(
            kernel, self.key_features, width, self.num_features, dtype
        )
        at_z = z.of(lambda x: self.features(x).T)  # [F, M]
        shape = (len(at_z), len(self.v))
        self.weights = random.normal(self.key_weights, shape, dtype)
        jitter = self.jitter
        if jitter is None:
            variances = z.variance(kernel)
            jitter = default_jitter(variances.dtype) * jnp.mean(variances)
        variance = jnp.broadcast_to(jnp.asarray(jitter, dtype), (len(z),))
        white = _white_variance(kernel, z)
        variance = variance if white is None else variance + white
        noise = self._noise((len(z), len(self.v)))
        prior = matmul(at_z.T, self.weights) + safe_sqrt(variance)[:, None] * noise
        rest = self.v.T - solve_lower(process.scale_tril, prior)
        self.correction = solve_lower_transposed(process.scale_tril, rest)

    def _noise(self, shape: tuple) -> Array:
        self.key, key = random.split(self.key)
        return random.normal(key, shape, self.v.dtype)


def _outputs_first(value) -> Float[Array, "P M"]:
    return jnp.atleast_2d(jnp.asarray(value, jnp.result_type(value, float)))


def _jitter_of_rows(kernel, x: LinearFunctional) -> Float[Array, " N"]:
    """A jitter for each row, [N]: a share of its own variance, of the mean if zero.

    A share of the mean would hide a row whose variance is far below it.
    """
    variances = x.variance(kernel)
    mean = jnp.mean(variances)
    scale = jnp.where(variances > 0.0, variances, mean)
    rounding = _ROUNDING * jnp.finfo(variances.dtype).eps * mean
    return default_jitter(variances.dtype) * scale + rounding


def _white_variance(kernel, x: LinearFunctional) -> Array | None:
    """Variance of white noise, which has no derivatives and no share in integrals."""
    if isinstance(x, Points):
        return white_variance(kernel, x.z)
    if not isinstance(x, Concatenated):
        return None
    parts = [_white_variance(kernel, part) for part in x.parts]
    known = [white for white in parts if white is not None]
    if not known:
        return None
    zeros = [jnp.zeros(len(part), known[0].dtype) for part in x.parts]
    return jnp.concatenate([z if w is None else w for z, w in zip(zeros, parts)])
