"""The arguments z and x of a model: arrays, inducing features, functionals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from svgp_ppl.checks import checked_inputs
from svgp_ppl.features.interface import (
    InducingFeatures,
    LinearFunctional,
    default_jitter_of,
)
from svgp_ppl.features.points import Points
from svgp_ppl.kernels import Kernel
from svgp_ppl.rounding import require_resolved, require_resolved_at

__all__ = ["as_features", "as_functional", "jitter_of"]


def as_features(z: Any, kernel: Kernel, name: str) -> InducingFeatures:
    """The inducing features of a process; an array [M, D] is :class:`Points`.

    Args:
        z: The argument of ``sparse_gp``.
        kernel: Covariance function of the process.
        name: Its name, for error messages.

    Raises:
        ValueError: It is neither a finite, non-empty [M, D] nor features, its
            differences are lost to rounding, or the features do not exist for this
            kernel.
    """
    if isinstance(z, LinearFunctional):
        what = f"the inducing features of process '{name}'"
        features = z.checked(what)
        features.require_kernel(kernel, what)
        return _in_full_precision(features)
    if isinstance(z, InducingFeatures):
        if isinstance(z, type):
            raise ValueError(
                f"the inducing features of process '{name}' are the class "
                f"{z.__name__}. Make an object of it first: {z.__name__}(...)."
            )
        return z
    what = f"the inducing inputs z of process '{name}'"
    inputs = checked_inputs(z, what, rows="M")
    require_resolved(z, what)
    return _in_full_precision(Points(inputs))


def _in_full_precision(features: LinearFunctional) -> LinearFunctional:
    """The same in the precision that is set: k(z, z) and its jitter follow that of z.

    Inducing inputs chosen among data of float32 are float32, whatever is set.
    """

    def full(leaf):
        if not isinstance(leaf, jax.Array | np.ndarray):
            return leaf
        is_floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, float) if is_floating else leaf

    return jax.tree.map(full, features)


def as_functional(x: Any, process: Any) -> LinearFunctional:
    """The functional at which a process is seen; an array [N, D] is :class:`Points`.

    Args:
        x: The argument with which the process was called.
        process: The ``SparseGP``.

    Raises:
        ValueError: It is neither a finite, non-empty [N, D] with the width of z nor a
            linear functional, or does not exist for the kernel of the process.
    """
    what = f"the inputs of process '{process.name}'"
    like = process.features
    if isinstance(x, LinearFunctional):
        functional = x.checked(what)
        functional.require_kernel(process.kernel, what)
        return functional
    if isinstance(x, InducingFeatures):
        raise ValueError(
            f"{what} are {type(x).__name__}, which represent a process and are not "
            "data: a process is seen at inputs [N, D], Derivative, Integral or another "
            "LinearFunctional."
        )
    z = like.z if isinstance(like, Points) else None
    inputs = checked_inputs(x, what, z)
    if z is not None:
        require_resolved_at(x, z, f"the inducing inputs z of process '{process.name}'")
    return Points(inputs)


def jitter_of(
    features: InducingFeatures, gram: Array, jitter: float | Array | None
) -> Any:
    """The jitter for ``linalg.factorised`` with k_uu; None for its default.

    The default is relative to the mean variance. Features of other kinds differ in
    scale: theirs is relative to each variance.
    """
    if jitter is not None or isinstance(features, Points):
        return jitter
    if np.shape(gram) != (len(features), len(features)):
        raise ValueError(
            f"k_uu of {type(features).__name__} must have shape [M, M] with M = "
            f"{len(features)}, its length, and has {np.shape(gram)}."
        )
    return default_jitter_of(gram)
