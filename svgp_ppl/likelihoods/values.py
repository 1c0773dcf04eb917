"""Values of likelihoods: what they may be, and the checks before anything is traced."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from svgp_ppl.checks import is_concrete, is_real, require_positive

__all__ = [
    "NOISE_VARIANCE",
    "Value",
    "noise_variance",
    "require_components",
    "require_flip",
    "require_share",
    "settle",
    "settle_scale",
]

Value = Any  # a number, an array that broadcasts to [N], or a traced value

# Variance of the Gaussian added to the latent. 2.897 is that of the normal distribution
# whose distribution function is nearest to the logistic one, at most 0.009 away (Liu et
# al. 2019, section II-A).
NOISE_VARIANCE = {"step": 0.0, "probit": 1.0, "logit": 2.897}


def settle_scale(likelihood: Any, name: str) -> None:
    """Refuse a concrete scale that is not positive; make it one that can be squared."""
    require_positive(likelihood.scale, f"the scale of a {name} likelihood")
    settle(likelihood, "scale")


def settle(likelihood: Any, *fields: str) -> None:
    """Make values ones to count with: whole numbers floats, half precision single.

    In ``int32`` 100,000² is 1,410,065,408, and JAX takes logarithms of it in single
    precision where all else is double, those of ``float16`` in three digits.
    """
    for field in fields:
        value = _as_float(getattr(likelihood, field))
        object.__setattr__(likelihood, field, value)


def _as_float(value: Value) -> Value:
    if isinstance(value, int):
        return float(value)
    if not isinstance(value, np.ndarray | np.generic | jax.Array) or not is_real(value):
        return value
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value.astype(jnp.result_type(float))
    return value if value.dtype.itemsize >= 4 else value.astype(jnp.float32)


def noise_variance(noise) -> float:
    """The variance a >= 0 of the additive noise, by name or as a number.

    Raises:
        ValueError: It is neither a known name nor a finite number >= 0.
    """
    if isinstance(noise, str) and noise in NOISE_VARIANCE:
        return NOISE_VARIANCE[noise]
    is_number = isinstance(noise, int | float | np.number)
    if not is_number or isinstance(noise, bool) or not 0.0 <= float(noise) < np.inf:
        raise ValueError(
            "noise must be 'step', 'probit', 'logit' or the variance of the additive "
            f"noise, a finite number >= 0 fixed in advance, and is {noise!r}. (It is "
            "not learned: the bound always prefers zero. Learn flip.)"
        )
    return float(noise)


def require_flip(flip) -> None:
    """Raise unless a concrete flip probability lies strictly between 0 and 1."""
    require_share(
        flip,
        "flip",
        "With 0 a single label on the wrong side has probability zero. Give a small "
        "number such as 1e-3, or learn it: numpyro.param('flip', 1e-3, "
        "constraint=numpyro.distributions.constraints.unit_interval).",
    )


def require_share(
    value, what: str, advice: str = "To learn it: numpyro.sample(..., dist.Beta(1, 1))."
) -> None:
    """Raise unless a concrete value lies strictly between 0 and 1."""
    if not is_concrete(value):
        return
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or not np.all((array > 0.0) & (array < 1.0)):
        raise ValueError(
            f"{what} must lie strictly between 0 and 1, and is {value!r}. {advice}"
        )


def require_components(f, expected: int, name: str, what: str) -> None:
    """Raise unless the last axis of f holds the components of this likelihood."""
    shape = np.shape(f)
    if len(shape) < 2 or shape[-1] != expected:
        raise ValueError(
            f"{name} takes a latent of shape [N, {expected}], {what}, and got "
            f"{shape}. Use sparse_gp(num_outputs={expected}), or gp.stack."
        )
