"""log E p(y|f) by an even grid, where p(y|f) is broad within the marginal.

So it is under most draws of v, where the marginal is what the inducing values leave
open. With standard normals e, f = m + s e, the trapezoidal rule

    E p ≈ h Σ_j N(e_j; 0, 1) p(y | m + s e_j),    e_j = a + j h,

errs by 2 exp(−2π²/h²) for a constant p, and exponentially little for a smooth one
(Trefethen & Weideman 2014). A grid of step 1/4 is four of step 1; if these agree, all
are right. They disagree about a step of p wherever it is, and about a kink: the errors
at offsets a are Bernoulli polynomials in a, which differ between the four.

They disagree too if mass is beyond their ends, or a value is not finite. A peak that no
node sees is excluded if log p is concave. Otherwise the step is 1/8, and a climb from
the highest node must not lead much higher.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, Bool, Float

from svgp_ppl.expectations.climb import best_of_likelihood, log_likelihood_at
from svgp_ppl.expectations.nodes import shifted
from svgp_ppl.marginals import Marginal

__all__ = ["average_if_broad", "log_average_on_even_grid"]

# Half-width of the grid in standard deviations, and number of grids of step 1.
_IF_CONCAVE, _IF_UNKNOWN = (7, 4), (10, 8)
# They must agree to so many nats, or to rounding where that is small: a formula may be
# cut off far out.
_AGREEMENT, _MOST_ROUNDING = 1e-5, 1e-3
# How far a peak of p may be above the highest node, or above the average if it is
# beyond the grid, where a Gaussian holds exp(−52).
_ABOVE_NODES, _ABOVE_AVERAGE = 0.05, 30.0


def average_if_broad(
    rule: Callable[[Array, Array], Array],
    likelihood: Callable,
    y: Array,
    marginal: Marginal,
    is_concave: bool,
) -> Array:
    """log E p(y_n | f_n) by an even grid if that is enough for all data, or by a rule.

    Derivatives are those of the rule, in either mode.

    Args:
        rule: From means and variances of a single latent to log E p(y_n | f_n).
        likelihood: f -> NumPyro distribution.
        y: Data, [N].
        marginal: Distribution of a latent with one component.
        is_concave: Whether log p(y|f) is known to be concave in f.
    """

    def on_grid(mean, variance):
        near = Marginal(mean, variance)
        return log_average_on_even_grid(likelihood, y, near, is_concave)

    given = marginal.mean, marginal.variance
    on_grid, of_grid = _opened(on_grid, *given)
    rule, of_rule = _opened(rule, *given)

    @jax.custom_jvp
    def value(given, of_grid, of_rule):
        near, is_enough = on_grid(of_grid, *given)

        def unless_enough(at):
            # XLA would take what does not depend on the loop out of it, and do it.
            own, _ = jax.lax.optimization_barrier((given, at[0]))
            value = jnp.where(is_enough, near, rule(of_rule, *own)[0])
            return value.astype(near.dtype), jnp.array(True)

        # Under vmap over draws a cond would do both for each draw, and a loop does not.
        start = near, jnp.all(is_enough)
        return jax.lax.while_loop(lambda at: ~at[1], unless_enough, start)[0]

    @value.defjvp
    def _(primals, tangents):
        def by_rule(given, _, of_rule):
            return rule(of_rule, *given)[0]

        return jax.jvp(by_rule, primals, tangents)

    return value(given, of_grid, of_rule)


def _opened(function: Callable, *args) -> tuple[Callable, list]:
    """A function of what another holds and of its arguments; and what it holds.

    What has its own derivatives may hold no values of a program around it, which have
    derivatives too, or belong to a loop (``jax.closure_convert`` leaves integers).
    """
    traced = jax.make_jaxpr(function)(*args)
    program, held = traced.jaxpr, traced.consts

    def opened(held, *args):
        return jaxpr_as_fun(ClosedJaxpr(program, held))(*args)

    return opened, held


def log_average_on_even_grid(
    likelihood: Callable, y: Array, marginal: Marginal, is_concave: bool
) -> tuple[Float[Array, "*batch N"], Bool[Array, "*batch N"]]:
    """log E p(y_n | f_n) under each component, and whether the grid is enough for it.

    Args:
        likelihood: f -> NumPyro distribution.
        y: Data, [N].
        marginal: Distribution of a latent with one component.
        is_concave: Whether log p(y|f) is known to be concave in f.
    """
    reach, num_grids = _IF_CONCAVE if is_concave else _IF_UNKNOWN
    mean = marginal.mean
    e = jnp.arange(-reach, reach, 1.0 / num_grids, dtype=mean.dtype)
    e = e.reshape(-1, *(1,) * mean.ndim)
    log_p = likelihood(shifted(marginal, e)).log_prob(y)
    terms = log_p - 0.5 * jnp.square(e)
    top = jnp.max(terms, axis=0)
    weights = jnp.exp(terms - top)
    grids = jnp.sum(weights.reshape(2 * reach, num_grids, *mean.shape), axis=0)
    total = jnp.sum(grids, axis=0)
    value = top + jnp.log(total / (num_grids * jnp.sqrt(2.0 * jnp.pi)))
    rounding = 32 * jnp.finfo(mean.dtype).eps * (1.0 + jnp.abs(value))
    spread = num_grids * (jnp.max(grids, axis=0) - jnp.min(grids, axis=0)) / total
    is_enough = spread <= jnp.maximum(_AGREEMENT, rounding)
    is_enough &= rounding <= _MOST_ROUNDING
    if is_concave:
        return value, is_enough
    log_likelihood = log_likelihood_at(likelihood, y, marginal)
    node = jnp.max(log_p, axis=0)
    peak = best_of_likelihood(log_likelihood, jnp.take(e, jnp.argmax(log_p, axis=0)))
    is_beyond = jnp.abs(peak) > reach
    highest = jnp.where(is_beyond, value + _ABOVE_AVERAGE, node + _ABOVE_NODES)
    is_enough &= log_likelihood(peak) <= highest
    return value, is_enough
