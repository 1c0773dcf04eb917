"""Affine functions of Gaussian process values, not yet evaluated.

A latent with Q components is ρ_n = b_n + Σ_t w_tn f_{c(t)}(x_tn): a weighted sum of
terms, each a process, one of its outputs, its inputs and a weight per datum. Under a
Gaussian q(v) N(m, S) on the stacked whitened values,

    E ρ_n   = b_n + Σ_t w_t ( m_c(x_t) + a_tᵀ m[c] )
    Cov ρ_n = Σ_{t,t'} w_t w_t' ( [c = c'] (k_c(x_t, x_t') − a_tᵀ a_t')
                                  + a_tᵀ S[c, c'] a_t' ),       a = L⁻¹ k(z, x).

The algebra only rearranges weights; the moments are formed in ``marginals`` when they
are asked for. Terms that share process, output and inputs are merged, so that
f(x) − f(x) is exactly zero.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array

from svgp_ppl.checks import data_array
from svgp_ppl.features import has_rows
from svgp_ppl.marginals import (
    Marginal,
    Output,
    Terms,
    View,
    affine_rows,
    joint_moments,
    marginal_moments,
)
from svgp_ppl.rows import named_rows

__all__ = ["NOT_AN_ARRAY", "Latent", "stack"]

NOT_AN_ARRAY = (
    "a latent, what f(x) returns, is not an array: its values are not known. Put the "
    "function into the likelihood, as in gp.observe('y', lambda f: dist.Poisson("
    "jnp.exp(f)), f(x), obs=y); its moments are f(x).mean and f(x).variance."
)
_WEIGHTS = "the weights and offsets of a latent"
_TRUTH_VALUE = (
    "a latent is multiplied by, or added to, the truth value {}, which may be that of "
    "a list as a whole: [0, 1] == 1 is False. Write jnp.asarray(group) == 1, which "
    "takes lists, arrays and numbers; a switch is float(switch)."
)


@dataclass(frozen=True, eq=False)
class Latent:
    """An affine function of process values at N data, with Q components.

    Supports ``+ - *`` with numbers, arrays and latents of the same shape,
    ``W @ latent`` with a mixing matrix [R, Q] (or one per datum, [N, R, Q]) and
    ``latent[..., q]``.

    Example:
        >>> def model(x, y=None):
        ...     f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.7), z)
        ...     slope = 10.0 * (f(x + 0.1) - f(x))
        ...     gp.observe("y", gp.likelihoods.Gaussian(0.1), slope, obs=y)
    """

    terms: tuple[Terms, ...]
    offsets: tuple[Any, ...]
    num_data: int
    is_single: bool

    # Keeps NumPy and pandas from multiplying an array and a latent element by element.
    __pandas_priority__ = 10_000

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        """Apply an affine function; ``np.exp(f(x))`` has no values."""
        if ufunc not in _AFFINE or method != "__call__" or options:
            raise ValueError(NOT_AN_ARRAY)
        return _AFFINE[ufunc](*inputs)

    def _no_values(self, *_, **__):
        """A latent has no values.

        Raises:
            ValueError: Always; says what to write in place of ``f(x) ** 2``.
        """
        raise ValueError(NOT_AN_ARRAY)

    __array__ = __float__ = __int__ = __bool__ = _no_values
    __pow__ = __rpow__ = __abs__ = __rtruediv__ = __mod__ = _no_values
    __lt__ = __le__ = __gt__ = __ge__ = _no_values

    @property
    def shape(self) -> tuple[int, ...]:
        """(N,) for one component, (N, Q) for several."""
        return (self.num_data,) if self.is_single else (self.num_data, len(self.terms))

    @property
    def views(self) -> list[View]:
        """Processes at inputs, of all components in turn."""
        return [view for terms in self.terms for view, _ in terms]

    @property
    def process_names(self) -> frozenset[str]:
        """Names of the processes that the latent depends on."""
        return frozenset(view.process.name for view in self.views)

    @property
    def has_rows(self) -> bool:
        """Whether the inputs can be cut into blocks of rows."""
        return all(has_rows(view.x) for view in self.views)

    # ------------------------------------------------------------------- the algebra

    def __add__(self, other):
        if isinstance(other, Latent):
            if self.shape != other.shape:
                raise ValueError(
                    f"cannot add latents of shapes {self.shape} and {other.shape}; "
                    "use gp.stack to put components side by side."
                )
            terms = tuple(map(_add_terms, self.terms, other.terms))
            offsets = tuple(a + b for a, b in zip(self.offsets, other.offsets))
            return Latent(terms, offsets, self.num_data, self.is_single)
        columns = self._columns(other)
        offsets = tuple(b + c for b, c in zip(self.offsets, columns))
        return Latent(self.terms, offsets, self.num_data, self.is_single)

    __radd__ = __add__

    def __mul__(self, other):
        if isinstance(other, Latent):
            raise ValueError(
                "the product of two latents is not affine; stack them and multiply "
                "inside the likelihood: gp.observe(..., lambda f: ... f[..., 0] * "
                "f[..., 1], gp.stack([f, g]))."
            )
        columns = self._columns(other)
        terms = tuple(_scale_terms(t, c) for t, c in zip(self.terms, columns))
        offsets = tuple(b * c for b, c in zip(self.offsets, columns))
        return Latent(terms, offsets, self.num_data, self.is_single)

    __rmul__ = __mul__

    def __truediv__(self, other):
        return self * (1.0 / _as_array(other))

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        # Not self + (-other), which wraps in an array of unsigned integers.
        return -(-self + other)

    def __rsub__(self, other):
        return -self + other

    def __rmatmul__(self, mixing) -> "Latent":
        """W @ latent: component r is Σ_q W[r, q] latent[q]."""
        mixing = _as_array(mixing)
        width = len(self.terms)
        per_datum = (self.num_data,) if mixing.ndim == 3 else ()
        if self.is_single or mixing.ndim not in (2, 3) or mixing.shape != (
            *per_datum, mixing.shape[-2], width
        ):  # fmt: skip
            raise ValueError(
                "W @ latent needs W of shape [R, Q] or [N, R, Q] and a latent [N, Q]; "
                f"W has shape {mixing.shape} and the latent {self.shape}."
            )
        terms, offsets = [], []
        for r in range(mixing.shape[-2]):
            row = [mixing[..., r, q] for q in range(width)]
            total: Terms = {}
            for weight, component in zip(row, self.terms):
                total = _add_terms(total, _scale_terms(component, weight))
            terms.append(total)
            shifts = [w * b for w, b in zip(row, self.offsets) if not _is_zero(b)]
            offsets.append(sum(shifts, 0.0))
        return Latent(tuple(terms), tuple(offsets), self.num_data, False)

    def __matmul__(self, mixing):
        raise ValueError("a matrix goes on the left of a latent: W.T @ f(x).")

    def __getitem__(self, index) -> "Latent":
        """latent[..., q] picks components (for other rows call f with other x)."""
        match index:
            case (first, q) if not self.is_single and (
                first is Ellipsis or first == slice(None)
            ):
                picked = np.arange(len(self.terms))[q]
            case _:
                raise ValueError(
                    f"a latent of shape {self.shape} is indexed as latent[..., q] with "
                    f"a component or a slice of them, and not {index!r}; for other "
                    "rows call the process with those inputs."
                )
        chosen = np.atleast_1d(picked)
        return Latent(
            tuple(self.terms[q] for q in chosen),
            tuple(self.offsets[q] for q in chosen),
            self.num_data,
            np.ndim(picked) == 0,
        )

    def __iter__(self):
        raise TypeError("a latent is not iterable; use latent[..., q]")

    def _columns(self, value) -> list[Any]:
        """A number or array, as one weight per component (a number or [N])."""
        if isinstance(value, bool):
            raise ValueError(_TRUTH_VALUE.format(value))
        if not isinstance(value, int | float):
            self.require_same_rows(_WEIGHTS, value, "offset")
            value = _as_array(value)
        width = len(self.terms)
        shape = np.shape(value)
        if shape == ():
            return [value] * width
        if self.is_single and shape == (self.num_data,):
            return [value]
        allowed = {(width,), (1, width), (self.num_data, 1), (self.num_data, width)}
        if not self.is_single and shape in allowed:
            full = jnp.broadcast_to(value, (shape[0] if len(shape) == 2 else 1, width))
            return [full[:, q] if len(full) > 1 else full[0, q] for q in range(width)]
        raise ValueError(
            f"an array of shape {shape} does not go with a latent of shape "
            f"{self.shape}; expected a number, or an array that broadcasts to that "
            "shape without changing it."
        )

    # ---------------------------------------------------------------- its distribution

    def _offset(self) -> Array:
        rows = [jnp.broadcast_to(b, (self.num_data,)) for b in self.offsets]
        return jnp.stack(rows)

    def marginal(self, chunk_size: int | None = None) -> Marginal:
        """Distribution of the latent at each datum, under the q(v) in force.

        Args:
            chunk_size: Number of data evaluated at a time (recomputed in the backward
                pass): memory O(chunk · M) rather than O(N · M).
        """
        mean, covariance, log_pi = self._offset(), None, None
        variance = jnp.zeros_like(mean)
        if any(self.terms):
            centred, variance, covariance, log_pi = marginal_moments(
                self.terms, chunk_size
            )
            # Rounding may leave −1e-16 in a difference of terms.
            mean, variance = centred + mean, jnp.maximum(variance, 0.0)
        mean, variance = jnp.swapaxes(mean, -1, -2), jnp.swapaxes(variance, -1, -2)
        if self.is_single:
            return Marginal(mean[..., 0], variance[..., 0], None, log_pi)
        return Marginal(mean, variance, covariance, log_pi)

    def at_inducing_mean(self) -> "Latent":
        """The same latent given u = m(z): only what u leaves open varies."""

        def known(view: View) -> View:
            event_shape = view.process.qv.event_shape
            zeros = jnp.zeros(event_shape, view.process.scale_tril.dtype)
            qv = dist.Delta(zeros, event_dim=len(event_shape))
            return replace(view, process=replace(view.process, qv=qv))

        terms = tuple({(known(v), p): w for (v, p), w in t.items()} for t in self.terms)
        return replace(self, terms=terms)

    def require_same_rows(self, what: str, values: Any, name: str) -> None:
        """Refuse a table whose rows stand in another order than the inputs.

        Args:
            what: What the values are, in error messages.
            values: Array-like; nothing is known of one without labels.
            name: How a user may call them.

        Raises:
            ValueError: It has the labels of the inputs, in another order.
        """
        _, labels = named_rows(values) or (None, None)
        if labels is None:
            return
        views = set(self.views)
        for _, others in filter(None, (named_rows(view.source) for view in views)):
            if others is None or labels.equals(others):
                continue
            if (len(labels), labels.nlevels) != (len(others), others.nlevels):
                continue
            if labels.isin(others).all() and others.isin(labels).all():
                raise ValueError(
                    f"{what} have the index of the inputs in another order, "
                    f"{labels[:3].tolist()} and so on in place of "
                    f"{others[:3].tolist()}, and rows go together by their places. "
                    f"Bring them into one order, {name}.loc[x.index], or pass "
                    f"{name}.to_numpy() where the order is right."
                )

    def given_whitened(self) -> tuple[dict[Output, Array], Array, Array]:
        """ρ_n = b_n + Σ_o φ_onᵀ v_o + N(0, r_n), for a latent of one component.

        Returns:
            φ by output (name of its process, and number), [N, M];
            b, [N]; r, [N].
        """
        rows, residual = affine_rows(self.terms[0])
        return rows, self._offset()[0], residual

    @property
    def mean(self) -> Array:
        """E ρ_n, [N] or [N, Q]."""
        marginal = self.marginal()
        return marginal.average(marginal.mean)

    @property
    def variance(self) -> Array:
        """Var ρ_n, [N] or [N, Q] (that of the mixture, where the q(v) is one)."""
        return self.marginal().total_variance

    @property
    def covariance(self) -> Array:
        """Cov of the Q components at each datum, [N, Q, Q] (Q = 1 for [N])."""
        return self.marginal().total_covariance

    def joint(self) -> tuple[Array, Array]:
        """Mean and covariance over all data together; memory O((N Q)²).

        Returns:
            Mean [N] or [N, Q]; covariance [N, N] or [N, Q, N, Q].
        """
        mean = self._offset()
        covariance = jnp.zeros((*mean.shape, *mean.shape), mean.dtype)
        if any(self.terms):
            centred, covariance, log_pi = joint_moments(self.terms)
            each = Marginal(centred, None, None, log_pi)
            shift = centred - each.average(centred)
            spread = shift[..., :, :, None, None] * shift[..., None, None, :, :]
            covariance = each.average(covariance + spread)
            mean = mean + each.average(centred)
        mean, covariance = mean.T, jnp.transpose(covariance, (1, 0, 3, 2))
        if self.is_single:
            return mean[:, 0], covariance[:, 0, :, 0]
        return mean, covariance


def stack(latents: Sequence[Latent]) -> Latent:
    """Latents side by side: components of the first, then of the second, and so on.

    Args:
        latents: Latents at the same number of data, [N] or [N, Q_i].

    Returns:
        A latent [N, ΣQ_i].

    Raises:
        ValueError: The list is empty or the numbers of data differ.

    Example:
        >>> import svgp_ppl as gp
        >>> def model(x, y=None):
        ...     f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 0.7), z)
        ...     g = gp.sparse_gp("g", gp.kernels.RBF(0.5, 2.0), z)
        ...     both = gp.stack([f(x), g(x)])
        ...     gp.observe("y", gp.likelihoods.HeteroscedasticGaussian(), both, obs=y)
    """
    latents = list(latents)
    sizes = {latent.num_data for latent in latents}
    if len(sizes) != 1:
        raise ValueError(
            f"stack needs one or more latents at the same number of data, and got "
            f"{[latent.shape for latent in latents]}."
        )
    return Latent(
        tuple(t for latent in latents for t in latent.terms),
        tuple(b for latent in latents for b in latent.offsets),
        sizes.pop(),
        False,
    )


def _add(left: Any, right: Any) -> Latent:
    return left + right if isinstance(left, Latent) else right.__radd__(left)


def _subtract(left: Any, right: Any) -> Latent:
    return left - right if isinstance(left, Latent) else right.__rsub__(left)


def _multiply(left: Any, right: Any) -> Latent:
    return left * right if isinstance(left, Latent) else right.__rmul__(left)


def _divide(left: Any, right: Any) -> Latent:
    return left / right if isinstance(left, Latent) else right.__rtruediv__(left)


def _mix(left: Any, right: Any) -> Latent:
    return left @ right if isinstance(left, Latent) else right.__rmatmul__(left)


# NumPy functions that keep a latent affine when an array is on its left.
_AFFINE: dict[Any, Callable] = {
    np.add: _add,
    np.subtract: _subtract,
    np.multiply: _multiply,
    np.true_divide: _divide,
    np.matmul: _mix,
    np.negative: lambda latent: -latent,
    np.positive: lambda latent: latent,
}


def _as_array(value):
    if isinstance(value, Latent):
        raise ValueError(NOT_AN_ARRAY)
    return data_array(value, _WEIGHTS)


def _is_zero(weight: Any) -> bool:
    """Whether a weight is known to be zero before anything is computed."""
    known = isinstance(weight, int | float | np.ndarray | np.generic)
    return known and not np.any(weight)


def _add_terms(left: Terms, right: Terms) -> Terms:
    total = dict(left)
    for key, weight in right.items():
        total[key] = total[key] + weight if key in total else weight
    return {key: weight for key, weight in total.items() if not _is_zero(weight)}


def _scale_terms(terms: Terms, weight: Any) -> Terms:
    scaled = {key: value * weight for key, value in terms.items()}
    return {key: value for key, value in scaled.items() if not _is_zero(value)}
