"""The NumPyro sites: ``sparse_gp``, ``observe`` and ``propagate``.

A model written with them is an ordinary NumPyro model. ``sparse_gp`` is a sample site
of whitened values v ~ N(0, I), u = m(z) + L v; ``observe`` is an observed site whose
log probability is E_{p(f|v)} log p(y|f). What takes the place of v decides the reading:

    a point   -> log density of (v, θ), for HMC (Hensman et al. 2015)
    a q(v)  -> the bound Σ_n E_q log p(y_n|f_n) − KL(q(v) ‖ N(0, I)), for SVI.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array, Float

from svgp_ppl.checks import (
    InvalidRow,
    checked_inputs,
    in_words,
    is_concrete,
    require_count,
    require_finite,
    require_positive,
)
from svgp_ppl.expectations import (
    Method,
    is_random,
    log_predictive_density,
    predictive_mean_and_variance,
    shifted,
    variational_expectation,
)
from svgp_ppl.handlers import (
    marked_deterministic,
    random_key,
    require_fitting_plates,
    require_new_site,
    unwrapped,
)
from svgp_ppl.kernels import as_kernel, kernel_values
from svgp_ppl.latent import Latent, SparseGP
from svgp_ppl.linalg import cholesky, safe_sqrt
from svgp_ppl.marginals import Marginal

__all__ = [
    "Expected",
    "expected_of",
    "observe",
    "propagate",
    "sparse_gp",
]


def sparse_gp(
    name: str,
    kernel,
    z,
    *,
    mean: Callable | None = None,
    num_outputs: int | None = None,
    jitter: float | None = None,
) -> SparseGP:
    """f ~ GP(mean, kernel), seen through M inducing inputs z.

    Adds one sample site ``name``, v ~ N(0, I) of event shape (M,), or (num_outputs, M);
    u = mean(z) + L v are the process values at z (Titsias 2009; whitening as in Murray
    & Adams 2010).

    Args:
        name: Name of the site.
        kernel: A kernel of ``svgp_ppl.kernels``, a tinygp kernel, or a function
            k(x, x') of two points [D].
        z: Inducing inputs, [M, D]; may be a ``numpyro.param`` or a sample site.
        mean: Mean function x [N, D] -> [N] (or [N, num_outputs]); None for zero.
        num_outputs: Number of independent processes that share kernel and z; None
            for one, without an axis for it.
        jitter: Absolute amount on the diagonal of k(z, z), in place of the default
            (relative, by precision: ``linalg.default_jitter``).

    Returns:
        The process: call it with inputs [N, D] for a latent.

    Raises:
        ValueError: z is not a finite, non-empty [M, D]; ``num_outputs`` is not a
            positive integer; the model has a site of that name already.

    Example:
        >>> import svgp_ppl as gp
        >>> def model(x, y=None):
        ...     f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), x[::10])
        ...     with numpyro.plate("data", len(x)):
        ...         gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)
    """
    z = checked_inputs(z, f"the inducing inputs z of process '{name}'")
    if num_outputs is not None:
        num_outputs = require_count(num_outputs, f"num_outputs of process '{name}'")
    kernel = as_kernel(kernel)
    for field, value in kernel_values(kernel).items():
        is_variance = field.endswith("variance")
        require_positive(value, f"the {field} of process '{name}'", or_zero=is_variance)
    shape = (len(z),) if num_outputs is None else (num_outputs, len(z))
    prior = dist.Normal(jnp.zeros(shape, z.dtype), 1.0).to_event(len(shape))
    infer = {"inducing": {"kernel": kernel, "z": z, "jitter": jitter}}
    full_name = require_new_site(name, prior, infer)
    value = numpyro.sample(name, prior, infer=infer)
    qv: Any = value
    if not isinstance(value, dist.Distribution):
        if jnp.shape(value) != shape:
            raise ValueError(
                f"the whitened values of process '{name}' must have shape {shape} and "
                f"have {jnp.shape(value)}. A guide has to give them that event shape; "
                "and a process cannot stand inside a plate (ask for several with "
                "num_outputs)."
            )
        qv = dist.Delta(value, event_dim=len(shape))
    scale_tril = cholesky(kernel(z), jitter)
    return SparseGP(full_name, kernel, z, scale_tril, qv, mean, num_outputs)


def observe(
    name: str,
    likelihood: Callable,
    latent: Latent,
    obs=None,
    *,
    method: Method | None = None,
    chunk_size: int | None = None,
):
    """y_n ~ likelihood(f_n), as the site ``name`` with distribution :class:`Expected`.

    Args:
        name: Name of the site.
        likelihood: Callable f -> NumPyro distribution, with f [..., N] for one
            component and [..., N, Q] for several; or an object of
            ``svgp_ppl.likelihoods``.
        latent: What ``f(x)`` returns, or an affine combination of such.
        obs: Data y, [N] (and event axes); None to draw them.
        method: How the expectation is computed: None for the default, or
            ``ClosedForm``, ``Trapezoid``, ``GaussHermite``, ``QuasiMonteCarlo``,
            ``MonteCarlo`` of ``svgp_ppl.expectations``.
        chunk_size: Project so many data at a time, for O(chunk · M) memory.

    Returns:
        ``obs``, or a draw of y.

    Raises:
        ValueError: The shape of y is not that of the likelihood, its values are not
            finite or outside the support; the likelihood does not take this latent.
    """
    if not isinstance(latent, Latent):
        raise ValueError(
            f"site '{name}' observes a latent, what f(x) returns, and got a "
            f"{type(latent).__name__}. For ordinary arrays use numpyro.sample."
        )
    if isinstance(likelihood, type):
        raise ValueError(
            f"the likelihood of site '{name}' is the class {likelihood.__name__}. An "
            f"object of it is made first: {likelihood.__name__}()."
        )
    if isinstance(likelihood, dist.Distribution) or not callable(likelihood):
        raise ValueError(
            f"the likelihood of site '{name}' is a function of f, such as "
            "lambda f: dist.Poisson(jnp.exp(f)) or gp.likelihoods.Poisson(), and not a "
            f"{type(likelihood).__name__}."
        )
    if chunk_size is not None:
        chunk_size = require_count(chunk_size, f"chunk_size of site '{name}'")
    width = 1 if latent.is_single else latent.shape[1]
    key = random_key() if is_random(method, width) else None
    expected = Expected(
        likelihood, latent, method=method, chunk_size=chunk_size, key=key
    )
    expected.require_valid(name, obs)
    require_fitting_plates(name, latent.num_data)
    return numpyro.sample(name, expected, obs=obs)


class Expected(dist.Distribution):
    """Observations given a latent that is known up to its q(v).

    ``log_prob(y)`` is the expectation E_q log p(y|f) [N], the term of the bound;
    ``log_predictive(y)`` is log E_q p(y|f) [N]; ``sample`` draws f, then y.

    Attributes:
        likelihood: Callable f -> distribution.
        latent: The latent f.
        method: How the expectation is computed, None for the default.
        chunk_size: Data projected at a time, None for all.
        key: Random key of the drawn methods, None for fixed nodes.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("key",)
    pytree_aux_fields = ("likelihood", "latent", "method", "chunk_size", "_example")

    def __init__(self, likelihood, latent, *, method=None, chunk_size=None, key=None):
        self.likelihood, self.latent = likelihood, latent
        self.method, self.chunk_size, self.key = method, chunk_size, key
        self._example = likelihood(jnp.zeros(latent.shape))
        if not isinstance(self._example, dist.Distribution):
            raise ValueError(
                "a likelihood maps f to a NumPyro distribution; this one returned a "
                f"{type(self._example).__name__}. An object of gp.likelihoods is made "
                "first: Poisson(), not Poisson."
            )
        if self._example.batch_shape != (latent.num_data,):
            raise ValueError(
                f"the likelihood of a latent of shape {latent.shape} must have batch "
                f"shape ({latent.num_data},), and has {self._example.batch_shape}. "
                "With one component f is [..., N]; with several it is [..., N, Q], and "
                "components are taken as f[..., q]."
            )
        super().__init__(self._example.batch_shape, self._example.event_shape)

    @property
    def support(self):
        """Support of the likelihood."""
        return self._example.support

    def marginal(self) -> Marginal:
        """Distribution of the latent at each datum."""
        return self.latent.marginal(self.chunk_size)

    def log_prob(self, value, intermediates=None):
        """E_q log p(value_n | f_n), [N]."""
        return variational_expectation(
            self.likelihood,
            jnp.asarray(value),
            self.marginal(),
            method=self.method,
            key=self.key,
        )

    def log_predictive(self, value) -> Float[Array, " N"]:
        """log E_q p(value_n | f_n), [N]."""
        y = jnp.asarray(value)
        return log_predictive_density(self.likelihood, y, self.marginal())

    def sample(self, key: Any, sample_shape=()):
        """Draws of f_n from its marginal at each datum, then of y_n."""
        key_latent, key_data = random.split(key)
        return self.likelihood(self.sample_latent(key_latent, sample_shape)).sample(
            key_data
        )

    def sample_latent(self, key, sample_shape=()):
        """Draws of f_n from its marginal at each datum, independent between data."""
        key_component, key_latent = random.split(key)
        marginal = self.marginal()
        if marginal.log_weights is not None:
            k = random.categorical(
                key_component, marginal.log_weights, shape=sample_shape
            )
            marginal = marginal.component(k)
        noise = random.normal(
            key_latent, sample_shape + self.latent.shape, marginal.mean.dtype
        )
        return shifted(marginal, noise)

    @property
    def mean(self):
        """E y_n, [N]."""
        return predictive_mean_and_variance(self.likelihood, self.marginal())[0]

    @property
    def variance(self):
        """Var y_n, [N]."""
        return predictive_mean_and_variance(self.likelihood, self.marginal())[1]

    def require_valid(self, name: str, obs) -> None:
        """Raise unless ``obs`` is None or data that this distribution can have."""
        if obs is None:
            return
        expected, came = self.batch_shape + self.event_shape, np.shape(obs)
        if came != expected:
            advice = ""
            if came == (*expected, 1):
                advice = " It would broadcast to [N, N]: write y[:, 0]."
            elif len(came) == len(expected):
                advice = " Give one for each row of x."
            raise ValueError(
                f"the data of site '{name}' must have shape {expected} and have {came}."
                + advice
            )
        require_finite(obs, f"the data of site '{name}'")
        if is_concrete(obs):
            data = np.asarray(obs)
            inside = self.support(data)
            if is_concrete(inside) and not np.all(inside):
                first = tuple(np.argwhere(~np.broadcast_to(inside, came))[0])
                raise InvalidRow(
                    lambda row: (
                        f"the data of site '{name}' must lie in the support of the "
                        f"likelihood, {in_words(self.support)}; among them is "
                        f"{data[first]} (row {row})."
                    ),
                    int(first[0]),
                )


def expected_of(site: dict) -> Expected | None:
    """What ``observe`` made of a site of a trace, whatever masks it; None otherwise."""
    if site["type"] != "sample":
        return None
    distribution, _ = unwrapped(site["fn"])
    return distribution if isinstance(distribution, Expected) else None


def propagate(name: str, latent: Latent) -> Float[Array, "N Q"]:
    """A draw of the latent at each datum, as input of the next layer, [N, Q].

    f_n = E f_n + √Var f_n ε_n with one standard normal a datum and component (Salimbeni
    & Deisenroth 2017, eq. 15), recorded as the deterministic site ``name``. ε is not a
    latent site: the conditional p(f|u) cancels between model and guide. Under SVI it is
    drawn anew each step; under MCMC it stays as it is for the life of a run.

    Raises:
        ValueError: The q(v) is a mixture; or there is no ``numpyro.handlers.seed``.
    """
    marginal = latent.marginal()
    if marginal.log_weights is not None:
        raise ValueError(
            f"layer '{name}' cannot propagate a mixture q(v): its components would "
            "be forgotten between layers. Use a Gaussian q(v) in a deep model."
        )
    key = random_key()
    if key is None:
        raise ValueError(
            f"layer '{name}' draws random numbers; run the model under "
            "numpyro.handlers.seed(model, key)."
        )
    noise = random.normal(key, marginal.mean.shape, marginal.mean.dtype)
    value = marginal.mean + safe_sqrt(marginal.variance) * noise
    # Marked as a layer: nobody stores its draws.
    value = value.reshape(latent.num_data, -1)
    return marked_deterministic(name, value, {"layer": latent.process_names})
