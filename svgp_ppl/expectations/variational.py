"""E_q log p(y|f), the variational expectation: the term of the bound.

A lower bound (Jensen) of log E_q p(y|f), which is in ``predictive``: never confuse the
two. Both know a likelihood only as a callable f -> distribution, with f [..., N] for
one component and [..., N, Q] for several, and first ask it for a closed form through an
open function.
"""

from collections.abc import Callable

from jaxtyping import Array, Float

from svgp_ppl.expectations.dispatch import by_likelihood
from svgp_ppl.expectations.nodes import (
    ClosedForm,
    Method,
    Trapezoid,
    average,
    num_components,
)
from svgp_ppl.expectations.trapezoid import average_about, nearest_singularity
from svgp_ppl.marginals import Marginal

__all__ = ["closed_form_expectation", "variational_expectation"]


@by_likelihood
def closed_form_expectation(likelihood, y: Array, marginal: Marginal) -> Array | None:
    """E log p(y_n | f_n) under each Gaussian component, [N] or [K, N]; None if unknown.

    Register a function for a likelihood of your own to give it a closed form.

    Example:
        >>> class MyGaussian(gp.likelihoods.Gaussian):
        ...     pass
        >>> @gp.expectations.closed_form_expectation.register
        ... def _(likelihood: MyGaussian, y, marginal):
        ...     error = (y - marginal.mean) ** 2 + marginal.variance
        ...     log_scale = jnp.log(2 * jnp.pi * likelihood.scale**2)
        ...     return -0.5 * (error / likelihood.scale**2 + log_scale)
    """
    return None


def variational_expectation(
    likelihood: Callable,
    y: Array,
    marginal: Marginal,
    *,
    method: Method | None = None,
    key: Array | None = None,
) -> Float[Array, " N"]:
    """E_q log p(y_n | f_n) in nats for every datum, [N].

    Args:
        likelihood: f -> NumPyro distribution.
        y: Data, [N] (and event axes).
        marginal: Distribution of the latent.
        method: Overrides the choice described in ``nodes``.
        key: Random key for the drawn methods; None uses the same nodes every time.

    Raises:
        ValueError: ``ClosedForm()`` is requested of a likelihood without one.

    Example:
        >>> from svgp_ppl.marginals import Marginal
        >>> q = Marginal(jnp.zeros(2), jnp.ones(2))
        >>> likelihood = gp.likelihoods.Poisson()
        >>> y = jnp.zeros(2)
        >>> gp.expectations.variational_expectation(likelihood, y, q).round(3)
        Array([-1.649, -1.649], dtype=float32)
    """
    if method is None or isinstance(method, ClosedForm):
        value = closed_form_expectation(likelihood, y, marginal)
        if value is not None:
            return marginal.average(value)
        if method is not None:
            raise ValueError(
                f"{type(likelihood).__name__} has no closed-form expectation; leave "
                "method=None, or choose Trapezoid, GaussHermite, QuasiMonteCarlo or "
                "MonteCarlo."
            )

    def log_p(f):
        return likelihood(f).log_prob(y)

    if num_components(marginal) == 1 and isinstance(method, Trapezoid | None):
        singularity = nearest_singularity(likelihood, y)
        if singularity is not None:
            num_nodes = (method or Trapezoid()).num_nodes
            value = average_about(log_p, marginal, singularity, num_nodes)
            return marginal.average(value)
    return marginal.average(average(log_p, marginal, method, key))
