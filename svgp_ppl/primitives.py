"""The NumPyro sites: ``sparse_gp``, ``observe`` and ``propagate``.

A model written with them is an ordinary NumPyro model. ``sparse_gp`` is a sample site
of whitened values v ~ N(0, I), u = m(z) + L v; ``observe`` is an observed site whose
log probability is E_{p(f|v)} log p(y|f). What replaces v decides the reading:

    a point   -> log density of (v, θ), for HMC (Hensman et al. 2015)
    a q(v)  -> the bound Σ_n E_q log p(y_n|f_n) − KL(q(v) ‖ N(0, I)), for SVI.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from svgp_ppl.checks import require_count, require_positive
from svgp_ppl.expectations import Method, is_random, shifted
from svgp_ppl.features import Points, as_features, jitter_of
from svgp_ppl.handlers import marked_deterministic, require_new_site
from svgp_ppl.kernels import as_kernel, kernel_values
from svgp_ppl.kernels.kernel import may_vanish
from svgp_ppl.keys import random_key
from svgp_ppl.latent import Latent
from svgp_ppl.layer_noise import layer_noise
from svgp_ppl.linalg import factorised
from svgp_ppl.observations import Expected
from svgp_ppl.observations.missing import over_rows
from svgp_ppl.plates import (
    require_fitting_plates,
    require_outside_plates,
    require_outside_scan,
)
from svgp_ppl.process import SparseGP
from svgp_ppl.variational import is_coupled

__all__ = [
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
    jitter: float | Array | None = None,
) -> SparseGP:
    """f ~ GP(mean, kernel), seen through M inducing inputs z.

    Adds one sample site ``name``, v ~ N(0, I) of event shape (M,), or (num_outputs, M);
    u = mean(z) + L v are the process values at z (Titsias 2009; whitening as in Murray
    & Adams 2010).

    Args:
        name: Name of the site.
        kernel: A kernel of ``svgp_ppl.kernels``, a tinygp kernel, or a function
            k(x, x') of two points [D].
        z: Inducing inputs, [M, D]; may be a ``numpyro.param`` or a sample site, and
            not computed from the x at which the model is run. Or other inducing
            features of ``svgp_ppl.features``: ``Fourier``, ``Derivative``,
            ``integral``, any object with ``k_uu``, ``k_uf`` and a length.
        mean: Mean function x [N, D] -> [N] (or [N, num_outputs]); None for zero.
        num_outputs: Number of independent processes that share kernel and z; None
            for one, without an axis for it.
        jitter: Absolute amount on the diagonal of k(z, z), a scalar, in place of the
            default (relative, by precision: ``linalg.default_jitter``; relative to
            each variance where the features are not points).

    Returns:
        The process: call it with inputs [N, D] for a latent.

    Raises:
        ValueError: z is neither a finite, non-empty [M, D] nor inducing features of
            this kernel; a value of the kernel is not positive; ``num_outputs`` is not a
            positive integer; ``jitter`` is not a number >= 0; the model already has a
            site of that name.

    Example:
        >>> import svgp_ppl as gp
        >>> z = gp.inducing.kmeans(x, 10)  # outside: x is another where we predict
        >>> def model(x, y=None):
        ...     f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), z)
        ...     with numpyro.plate("data", len(x)):
        ...         gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)
    """
    if not isinstance(name, str):
        raise ValueError(
            "the first argument of sparse_gp is the name of the site, a string, and is "
            f"a {type(name).__name__}: gp.sparse_gp('f', kernel, z)."
        )
    require_outside_scan(name)
    if mean is not None and not callable(mean):
        raise ValueError(
            f"the mean of process '{name}' must be a function x [N, D] -> [N], and is "
            f"a {type(mean).__name__}. For a constant add it to the latent: f(x) + 1.0."
        )
    if num_outputs is not None:
        num_outputs = require_count(num_outputs, f"num_outputs of process '{name}'")
    kernel = as_kernel(kernel)
    _require_values(name, kernel, jitter)
    features = as_features(z, kernel, name)
    size = len(features)
    shape = (size,) if num_outputs is None else (num_outputs, size)
    gram = features.k_uu(kernel)
    dtype = features.z.dtype if isinstance(features, Points) else gram.dtype
    prior = dist.Normal(jnp.zeros(shape, dtype), 1.0).to_event(len(shape))
    inducing: dict[str, Any] = {"kernel": kernel, "features": features, "z": z}
    inducing["jitter"] = jitter_of(features, gram, jitter)
    infer = {"inducing": inducing}
    full_name = require_new_site(name, prior, infer)
    factor = factorised(gram, inducing["jitter"])
    process = SparseGP(full_name, kernel, features, factor, prior, mean, num_outputs)
    inducing["process"] = process
    qv: Any = numpyro.sample(name, prior, infer=infer)
    if not isinstance(qv, dist.Distribution):
        qv = dist.Delta(qv, event_dim=jnp.ndim(qv))
    has = qv.batch_shape + qv.event_shape
    if has != shape:
        raise ValueError(
            f"the whitened values of process '{name}' must have shape {shape} and have "
            f"{has}. A guide has to give them that event shape; z must have as many "
            "rows in a prediction as in the fit (z = x has not, if x is an argument "
            "of the model); and a process cannot be inside a plate (ask for several "
            "with num_outputs)."
        )
    require_outside_plates(full_name)
    return replace(process, qv=qv)


def _require_values(name: str, kernel, jitter) -> None:
    """Refuse impossible kernel values and an impossible jitter."""
    vanishing = may_vanish(kernel)
    for field, value in kernel_values(kernel).items():
        what = f"the {field} of process '{name}'"
        if value is None:
            raise ValueError(f"{what} must be a positive number, and is None.")
        # An infinite lengthscale drops a column.
        allowed = {"or_zero": field in vanishing}
        allowed["or_infinite"] = field.endswith("lengthscale")
        try:
            require_positive(value, what, **allowed)
        except ValueError as error:
            raise ValueError(
                f"{error} (A prior of it must be one of positive numbers.)"
            ) from None
    if jitter is not None:
        what = f"the jitter of process '{name}'"
        if np.ndim(jitter):
            raise ValueError(f"{what} must be one number, and has {np.shape(jitter)}.")
        require_positive(jitter, what, or_zero=True)


def observe(
    name: str,
    likelihood: Callable,
    latent: Latent,
    obs=None,
    *,
    mask=None,
    method: Method | None = None,
    chunk_size: int | None = None,
):
    """y_n ~ likelihood(f_n), as the site ``name`` with distribution :class:`Expected`.

    Args:
        name: Name of the site.
        likelihood: Callable f -> NumPyro distribution, with f [..., N] for one
            component and [..., N, Q] for several; or an object of
            ``svgp_ppl.likelihoods``.
        latent: What ``f(x)`` returns, or an affine combination of such latents.
        obs: Data y, [N] (and event axes); None to draw them.
        mask: Where y is known, boolean, [N]; or of the shape of y, [N, P], for a table
            of P outputs with holes, where the likelihood is independent between them
            (``dist.Normal(f, scale).to_event(1)``). The rest of y may be NaN and is
            ignored in fits, log densities and log likelihoods. Draws and predictions
            are made everywhere.
        method: How the expectation is computed: None for the default, or
            ``ClosedForm``, ``Trapezoid``, ``GaussHermite``, ``QuasiMonteCarlo``,
            ``MonteCarlo`` of ``svgp_ppl.expectations``.
        chunk_size: Number of data computed with at a time, for memory that does not
            grow with N (see docs, "Performance").

    Returns:
        ``obs``, or a draw of y.

    Raises:
        ValueError: The shape of y is not that of the likelihood; its values are not
            finite or are outside the support; the likelihood does not take this latent;
            the mask is not boolean, or has another shape.

    Example:
        >>> import svgp_ppl as gp
        >>> y = np.array([1.0, np.nan, 0.3])
        >>> def model(x, y, known):
        ...     f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.5), x)
        ...     with numpyro.plate("data", len(x)):
        ...         likelihood = gp.likelihoods.Gaussian(0.1)
        ...         gp.observe("y", likelihood, f(x), obs=y, mask=known)
        >>> arguments = np.arange(3.0)[:, None], y, ~np.isnan(y)
    """
    _require_roles(name, likelihood, latent, method)
    require_outside_scan(name)
    if chunk_size is not None:
        chunk_size = require_count(chunk_size, f"chunk_size of site '{name}'")
    key = random_key() if is_random(method, len(latent.terms)) else None
    expected = Expected(
        likelihood, latent, method=method, chunk_size=chunk_size, key=key
    )
    require_fitting_plates(name, latent.num_data)
    if mask is None:
        return numpyro.sample(name, expected, obs=expected.checked_data(name, obs))
    known = expected.checked_mask(name, mask)
    masked = expected.of_entries(known).mask(over_rows(known, expected.event_shape))
    return numpyro.sample(name, masked, obs=expected.checked_data(name, obs, known))


def _require_roles(name, likelihood, latent, method) -> None:
    """Refuse arguments of ``observe`` that are of the wrong kind."""
    if not isinstance(name, str):
        raise ValueError(
            "the first argument of observe is the name of the site, a string, and is a "
            f"{type(name).__name__}: gp.observe('y', likelihood, f(x), obs=y)."
        )
    if not isinstance(latent, Latent):
        hint = " Call it with inputs: f(x)." * isinstance(latent, SparseGP)
        raise ValueError(
            f"site '{name}' observes a latent, what f(x) returns, and got a "
            f"{type(latent).__name__}.{hint} For ordinary arrays use numpyro.sample."
        )
    if isinstance(likelihood, type) and issubclass(likelihood, dist.Distribution):
        raise ValueError(
            f"the likelihood of site '{name}' is the class {likelihood.__name__} of "
            "distributions. Write a function of f that makes one, such as lambda f: "
            "dist.Poisson(jnp.exp(f)), or take an object of gp.likelihoods."
        )
    if isinstance(likelihood, type):
        raise ValueError(
            f"the likelihood of site '{name}' is the class {likelihood.__name__}. Make "
            f"an object of it first: {likelihood.__name__}(...)."
        )
    if isinstance(likelihood, dist.Distribution) or not callable(likelihood):
        raise ValueError(
            f"the likelihood of site '{name}' is a function of f, such as "
            "lambda f: dist.Poisson(jnp.exp(f)) or gp.likelihoods.Poisson(), and not a "
            f"{type(likelihood).__name__}."
        )
    if method is None:
        return
    if not isinstance(method, Method):
        raise ValueError(
            "method must be ClosedForm, GaussHermite, Trapezoid, QuasiMonteCarlo or "
            f"MonteCarlo of svgp_ppl.expectations, and not {method!r}."
        )
    for field, count in vars(method).items():
        require_count(count, f"{field} of the method of site '{name}'")


def propagate(name: str, latent: Latent) -> Float[Array, "N Q"]:
    """A draw of the latent at each datum, as input of the next layer, [N, Q].

    f_n = E f_n + C_n ε_n with one standard normal per datum and component, and C_n C_nᵀ
    = Cov f_n (Salimbeni & Deisenroth 2017, eq. 15; √Var f_n of independent components),
    recorded as the deterministic site ``name``.
    ε is not a latent site: the conditional p(f|u) cancels between model and guide.
    Under SVI it is drawn anew at each step; under MCMC it stays the same for a whole
    run. Draws of two calls are independent, and of the latent itself: above a layer
    write ``h[:, 0] + outer(h)``, not ``inner(x) + outer(h)``.

    Raises:
        ValueError: The q(v) is a mixture, or also that of a process outside the layer;
            or there is no ``numpyro.handlers.seed``.

    Example:
        >>> import svgp_ppl as gp
        >>> def model(x, y=None):
        ...     inner = gp.sparse_gp("inner", gp.kernels.RBF(1.0, 1.0), z)
        ...     h = gp.propagate("h", inner(x) + x[:, 0])
        ...     outer = gp.sparse_gp("outer", gp.kernels.RBF(1.0, 1.0), z)
        ...     with numpyro.plate("data", len(x)):
        ...         gp.observe("y", gp.likelihoods.Poisson(), outer(h), obs=y)
    """
    marginal = latent.marginal()
    if marginal.log_weights is not None:
        raise ValueError(
            f"layer '{name}' cannot propagate a mixture q(v): its components would "
            "be forgotten between layers. Use a Gaussian q(v) in a deep model."
        )
    _require_whole(name, latent)
    noise = layer_noise(marginal.mean.shape, marginal.mean.dtype)
    if noise is None:
        raise ValueError(
            f"layer '{name}' draws random numbers; run the model under "
            "numpyro.handlers.seed(model, key)."
        )
    value = shifted(marginal, noise)
    # Marked as a layer, so that its draws are not stored.
    value = value.reshape(latent.num_data, -1)
    mark = {"layer": latent.process_names, "latent": latent}
    return marked_deterministic(name, value, mark)


def _require_whole(name: str, latent: Latent) -> None:
    """Refuse a q(v) that couples a layer with outputs or processes outside it.

    The draw of a layer is marginalised over its v: given it, the v of the others would
    have another distribution than the one that they are marginalised over.
    """
    outputs = {
        (view.process.name, output): view.process.qv
        for terms in latent.terms
        for view, output in terms
    }
    coupled = [qv for qv in outputs.values() if is_coupled(qv)]
    for qv in coupled:
        # Of every output all M values.
        seen = [one.value.shape[-1] for one in coupled if one.group == qv.group]
        if sum(seen) < qv.joint.event_shape[0]:
            raise ValueError(
                f"layer '{name}' cannot propagate a part of the q(v) '{qv.group}': "
                "what it couples would be forgotten between layers. Use gp.AutoDeep, "
                "or gp.AutoCoupled with blocks of processes that go through the same "
                "propagate, gp.stack([f(x), g(x)])."
            )
