"""Natural gradients for Gaussian beliefs, as an optax transformation.

A Gaussian q(v) = N(m, S) moves along the gradient in its expectation parameters, added
to its natural ones: θ ← θ − γ ∂ℓ/∂η (Salimbeni, Eleftheriadis & Hensman 2018),
with ℓ the loss. For S = L Lᵀ that is

    S⁻¹ ← S⁻¹ + 2γ ∂ℓ/∂S = L⁻ᵀ B L⁻¹,   B = I + γ (Φ + Φᵀ),   m ← m − γ S ∂ℓ/∂m,

where Φ is the lower triangle of Lᵀ ∂ℓ/∂L with half its diagonal (Murray 2016) and the
new S moves m. With B = U Uᵀ, U upper triangular, the new factor is L U⁻ᵀ. A step that
would leave the cone, B not positive definite, is halved until it does not.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints

from svgp_ppl import lapack
from svgp_ppl.linalg import matmul, solve_lower

__all__ = ["natural_gradient"]

_MOST_HALVINGS = 40
_LOC, _SCALE_TRIL = "_loc", "_scale_tril"


class NaturalGradientState(NamedTuple):
    """Steps so far, and the state of the optimiser of everything else."""

    count: Array
    rest: Any


def natural_gradient(
    rate: float | Callable[[Array], Array] = 0.1,
    rest: optax.GradientTransformation | None = None,
    *,
    beliefs: Mapping[str, str] | None = None,
    constraint=constraints.softplus_lower_cholesky,
    alternate: bool = True,
) -> optax.GradientTransformation:
    """Natural gradients for Gaussian beliefs, ``rest`` for all other parameters.

    For ``gp.fit(optimizer=...)`` and for NumPyro's ``SVI`` alike. On a conjugate model
    one step of rate 1 is the exact posterior; elsewhere take smaller ones.

    Args:
        rate: Length γ of the natural step, in (0, 1], or an optax schedule of it.
        rest: Optimiser of the other parameters; ``optax.adam(1e-2)`` if None.
        beliefs: Name of the mean -> name of the factor, for a guide written by hand;
            None finds ``..._loc`` with ``..._scale_tril``, as ``AutoGaussian`` and
            ``AutoCoupled`` name them.
        constraint: Constraint of the factors.
        alternate: Whether steps alternate, beliefs first; both at once otherwise.

    Raises:
        ValueError: ``rate`` is not in (0, 1], or (when it is first used) there is no
            such belief among the parameters.

    Example:
        >>> import svgp_ppl as gp
        >>> optimizer = gp.natural_gradient(0.1, optax.adam(1e-2))
        >>> fit = gp.fit(key, model, gp.AutoGaussian(model), x, y,
        ...              optimizer=optimizer)  # doctest: +SKIP
    """
    if not callable(rate) and not 0 < rate <= 1:
        raise ValueError(f"rate must be in (0, 1], and is {rate}.")
    others: Any = optax.adam(1e-2) if rest is None else rest
    transform = biject_to(constraint)

    def divide(params: dict) -> tuple[dict[str, str], dict]:
        pairs = _find(params) if beliefs is None else dict(beliefs)
        _require(pairs, params)
        held = {*pairs.keys(), *pairs.values()}
        return pairs, {n: p for n, p in params.items() if n not in held}

    def init(params: Any) -> NaturalGradientState:
        return NaturalGradientState(jnp.zeros((), int), others.init(divide(params)[1]))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("natural gradients need the parameters: update(g, s, p).")
        gradients = updates
        pairs, free = divide(params)
        turn = state.count // 2 if alternate else state.count
        length = jnp.asarray(rate(turn) if callable(rate) else rate)

        def move_beliefs():
            moves = {}
            for loc, factor in pairs.items():
                tril = transform(params[factor])
                (slope,) = jax.vjp(transform.inv, tril)[1](gradients[factor])
                moved = _step(
                    params[loc], tril, gradients[loc], slope, length.astype(tril.dtype)
                )
                moves[loc] = moved[0] - params[loc]
                moves[factor] = transform.inv(moved[1]) - params[factor]
            return moves

        def move_rest():
            return others.update({n: gradients[n] for n in free}, state.rest, free)

        if alternate:  # what is not its turn is not computed either
            held = {n: params[n] for n in (*pairs.keys(), *pairs.values())}
            moves, rest_updates, rest_state = jax.lax.cond(
                state.count % 2 == 0,
                lambda: (move_beliefs(), _zeros(free), state.rest),
                lambda: (_zeros(held), *move_rest()),
            )
        else:
            moves, (rest_updates, rest_state) = move_beliefs(), move_rest()
        state = NaturalGradientState(state.count + 1, rest_state)
        return moves | rest_updates, state

    return optax.GradientTransformation(init, update)


def _step(loc, scale_tril, d_loc, d_scale_tril, rate) -> tuple[Array, Array]:
    """One natural step of each Gaussian; leading axes are outputs."""
    if loc.ndim == 1:
        return _step_one(loc, scale_tril, d_loc, d_scale_tril, rate)
    return jax.vmap(_step, (0, 0, 0, 0, None))(
        loc, scale_tril, d_loc, d_scale_tril, rate
    )


def _step_one(
    loc: Float[Array, "M"],
    scale_tril: Float[Array, "M M"],
    d_loc: Float[Array, "M"],
    d_scale_tril: Float[Array, "M M"],
    rate: Float[Array, ""],
) -> tuple[Array, Array]:
    half = lapack.lower_half(matmul(scale_tril.T, d_scale_tril))
    direction, eye = half + half.T, jnp.eye(len(loc), dtype=loc.dtype)

    def reversed_factor(rate):
        # Rows and columns in reverse order: a lower factor there is an upper one here.
        return lapack.factor((eye + rate * direction)[::-1, ::-1])

    def leaves_the_cone(carry):
        halvings, _, factor = carry
        return ~jnp.all(jnp.isfinite(factor)) & (halvings < _MOST_HALVINGS)

    def halve(carry):
        halvings, rate, _ = carry
        return halvings + 1, rate / 2, reversed_factor(rate / 2)

    start = (0, rate, reversed_factor(rate))
    _, rate, factor = jax.lax.while_loop(leaves_the_cone, halve, start)
    # L U⁻ᵀ = (U⁻¹ Lᵀ)ᵀ.
    moved = jnp.tril(solve_lower(factor, scale_tril.T[::-1])[::-1].T)
    return loc - rate * matmul(moved, matmul(moved.T, d_loc)), moved


def _find(params: dict) -> dict[str, str]:
    stems = [n.removesuffix(_SCALE_TRIL) for n in params if n.endswith(_SCALE_TRIL)]
    return {s + _LOC: s + _SCALE_TRIL for s in stems if s + _LOC in params}


def _require(pairs: dict[str, str], params: dict) -> None:
    missing = sorted({*pairs.keys(), *pairs.values()} - set(params))
    if missing or not pairs:
        what = f"the parameters {missing}" if missing else "a full Gaussian belief"
        raise ValueError(
            f"natural_gradient does not find {what} among {sorted(params)}. It needs "
            "the mean and the factor of a Gaussian with full covariance, such as "
            "AutoGaussian's and AutoCoupled's; name those of a guide written by hand "
            "in beliefs={'loc': 'scale_tril'}."
        )


def _zeros(tree):
    return jax.tree.map(jnp.zeros_like, tree)
