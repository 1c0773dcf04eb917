"""Natural gradients for a Gaussian q(v), as an optax transformation.

A Gaussian q(v) = N(m, S) moves its natural parameters along the gradient with respect
to its expectation parameters: θ ← θ − γ ∂ℓ/∂η (Salimbeni, Eleftheriadis & Hensman
2018), with ℓ the loss. For S = L Lᵀ that is

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

from svgp_ppl.fitting.schedules import Freezing, staged
from svgp_ppl.guides.processes import ProcessGuide
from svgp_ppl.linalg import lapack, matmul, solve_lower

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
    variational: Mapping[str, str] | None = None,
    constraint=constraints.softplus_lower_cholesky,
    alternate: bool = True,
) -> optax.GradientTransformation:
    """Natural gradients for a Gaussian q(v), ``rest`` for all other parameters.

    For ``gp.fit(optimizer=...)`` and NumPyro's ``SVI`` alike. On a conjugate model one
    step of rate 1 gives the exact posterior; elsewhere use smaller rates.

    Args:
        rate: Length γ of the natural step, in (0, 1], or an optax schedule of it.
        rest: Optimiser of the other parameters; ``optax.adam(1e-2)`` if None.
        variational: Name of the mean -> name of the factor, for a hand-written guide;
            None finds ``..._loc`` with ``..._scale_tril``, as ``AutoGaussian`` and
            ``AutoCoupled`` name them. ``SVI`` does not tell which those are: name them
            if ``rest=`` of the guide is an ``AutoMultivariateNormal``.
        constraint: Constraint of the factors.
        alternate: Whether steps alternate, q(v) first; otherwise both move at once.

    Raises:
        ValueError: ``rate`` is not in (0, 1], or (on first use) there is no such q(v)
            among the parameters.

    Example:
        >>> import svgp_ppl as gp
        >>> optimizer = gp.natural_gradient(0.1, optax.adam(1e-2))
        >>> fit = gp.fit(key, model, gp.AutoGaussian(model), x, y,
        ...              optimizer=optimizer)
    """
    if not callable(rate) and not 0 < rate <= 1:
        raise ValueError(f"rate must be in (0, 1], and is {rate}.")
    others = optax.adam(1e-2) if rest is None else rest
    transform = biject_to(constraint)
    parts = ({}, None, rate, others, variational, transform, alternate)
    return _Alternation(*parts).as_transformation()


class _Alternation(NamedTuple):
    """Natural steps of q(v) and steps of the rest, with parameters frozen at first.

    Attributes:
        unfreeze_at: Parameter -> step at which it is unfrozen.
        guide: The guide, if known: it tells the q(v) of processes from that of others.
        rate: Length of a natural step, or a schedule of it.
        rest: Optimiser of the other parameters.
        variational: Mean -> factor, None to find them.
        transform: Unconstrained values -> factor.
        alternate: Whether steps alternate.
    """

    unfreeze_at: Mapping[str, int]
    guide: Any
    rate: Any
    rest: optax.GradientTransformation
    variational: Mapping[str, str] | None
    transform: Any
    alternate: bool

    def as_transformation(self) -> Freezing:
        """As an optax transformation, with freezing for ``fit(freeze=...)``."""

        def freeze(unfreeze_at: Mapping[str, int], guide: Any) -> Freezing:
            own = self._replace(unfreeze_at=unfreeze_at, guide=guide)
            return own.as_transformation()

        return Freezing(self.init, self.update, freeze)

    def divide(self, params: dict) -> tuple[Mapping[str, str], dict]:
        """Mean -> factor of every Gaussian, and the other parameters."""
        pairs = self.variational
        if pairs is None:
            is_ours = isinstance(self.guide, ProcessGuide)
            pairs = _find(
                self.guide.variational_names(params) if is_ours else set(params)
            )
        _require(pairs, params)
        of_q = {*pairs.keys(), *pairs.values()}
        return pairs, {n: p for n, p in params.items() if n not in of_q}

    def first_turn_of(self, free: dict) -> int:
        """First step at which the rest has a turn; before it all of it is frozen."""
        if not self.alternate:
            return 0
        return min((self.unfreeze_at.get(n, 0) for n in free), default=0)

    def optimizer_of(self, free: dict) -> Any:
        """Optimiser of the rest. It counts turns, every other step from its first."""
        first, every = self.first_turn_of(free), 2 if self.alternate else 1
        turns = {n: (self.unfreeze_at.get(n, 0) - first) // every for n in free}
        if any(turns.values()):
            return staged(self.rest, turns)
        return optax.with_extra_args_support(self.rest)

    def init(self, params: Any) -> NaturalGradientState:
        """No steps, and the rest where it starts."""
        free = self.divide(params)[1]
        rest_state = self.optimizer_of(free).init(free) if free else ()
        return NaturalGradientState(jnp.zeros((), int), rest_state)

    def move_variational(
        self, pairs: Mapping, params, gradients, count, length
    ) -> dict:
        """What a natural step adds to the unconstrained parameters of q(v)."""
        moves = {}
        for loc, factor in pairs.items():
            tril = self.transform(params[factor])
            (slope,) = jax.vjp(self.transform.inv, tril)[1](gradients[factor])
            step = jnp.asarray(length, tril.dtype)
            moved = _step(params[loc], tril, gradients[loc], slope, step)
            names = (loc, factor)
            unfrozen = count >= max(self.unfreeze_at.get(n, 0) for n in names)
            moves[loc] = jnp.where(unfrozen, moved[0] - params[loc], 0.0)
            free_tril = self.transform.inv(moved[1])
            moves[factor] = jnp.where(unfrozen, free_tril - params[factor], 0.0)
        return moves

    def update(
        self, updates: Any, state: Any, params: Any = None, **extra_args
    ) -> tuple[dict, NaturalGradientState]:
        """One step: of q(v), of the rest, or of both."""
        if params is None:
            raise ValueError("natural gradients need the parameters: update(g, s, p).")
        gradients = updates
        pairs, free = self.divide(params)
        of_q = {n: params[n] for n in (*pairs.keys(), *pairs.values())}
        first, count = self.first_turn_of(free), state.count
        alternates = self.alternate and bool(free)
        turn = jnp.where(count < first, count, first + (count - first) // 2)
        length: Any = self.rate
        if callable(length):
            length = length(turn if alternates else count)

        def move_variational(gradients):
            return self.move_variational(pairs, params, gradients, count, length)

        def move_rest():
            value_fn = extra_args.get("value_fn", _not_given)
            followed = _followed(value_fn, of_q, move_variational)
            slopes = {n: gradients[n] for n in free}
            more = {"value": extra_args.get("value", jnp.nan), "grad": slopes}
            rest = self.optimizer_of(free)
            return rest.update(slopes, state.rest, free, value_fn=followed, **more)

        if not free:
            moves = move_variational(gradients)
            rest_updates, rest_state = {}, state.rest
        elif alternates:  # the part whose turn it is not is not computed either
            moves, rest_updates, rest_state = jax.lax.cond(
                (count < first) | ((count - first) % 2 == 0),
                lambda: (move_variational(gradients), _zeros(free), state.rest),
                lambda: (_zeros(of_q), *move_rest()),
            )
        else:
            moves, (rest_updates, rest_state) = move_variational(gradients), move_rest()
        return moves | rest_updates, NaturalGradientState(count + 1, rest_state)


def _followed(value_fn: Callable, of_q: dict, move_variational: Callable) -> Callable:
    """The loss at other values of the rest, after a natural step from there."""

    def followed(free: dict):
        slopes = jax.grad(lambda of_q: value_fn(of_q | free))(of_q)
        moves = jax.lax.stop_gradient(move_variational(slopes))
        return value_fn({n: p + moves[n] for n, p in of_q.items()} | free)

    return followed


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


def _find(names: set[str]) -> dict[str, str]:
    stems = [n.removesuffix(_SCALE_TRIL) for n in names if n.endswith(_SCALE_TRIL)]
    return {s + _LOC: s + _SCALE_TRIL for s in sorted(stems) if s + _LOC in names}


def _require(pairs: Mapping[str, str], params: dict) -> None:
    missing = sorted({*pairs.keys(), *pairs.values()} - set(params))
    if missing or not pairs:
        what = f"the parameters {missing}" if missing else "a full Gaussian q(v)"
        raise ValueError(
            f"natural_gradient does not find {what} among {sorted(params)}. It needs "
            "the mean and the factor of a Gaussian with full covariance, such as "
            "AutoGaussian's and AutoCoupled's; name those of a guide written by hand "
            "in variational={'loc': 'scale_tril'}."
        )


def _not_given(params):
    raise ValueError(
        "the optimiser of the rest evaluates the bound itself (a line search, as in "
        "optax.lbfgs), and NumPyro's SVI does not hand it over: use gp.fit, or another "
        "optimiser such as optax.adam."
    )


def _zeros(tree):
    return jax.tree.map(jnp.zeros_like, tree)
