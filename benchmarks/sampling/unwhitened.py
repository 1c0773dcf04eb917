"""Coal on u = L v in place of v: what whitening is worth (Hensman et al. 2015, 3.3)."""

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import block, substitute, trace

import svgp_ppl as gp
from svgp_ppl.linalg import cholesky, solve_lower

__all__ = ["unwhitened"]

# Shape and rate of the Gamma priors of the variance and of the lengthscale.
PRIORS = ((1.0, 0.3), (1.1, 0.1))


def unwhitened(fit) -> tuple[Callable, Callable]:
    """The model of u = L v with z of the fit, and where it starts: a guide.

    p(u | θ) = N(L⁻¹ u; 0, I) / |L|.
    """
    z = fit.params["z"]

    def process(x, take):
        sites = zip(("variance", "lengthscale"), PRIORS, strict=True)
        values = {n: numpyro.sample(n, dist.Gamma(*prior)) for n, prior in sites}
        kernel = gp.kernels.RBF(**values)
        scale_tril = cholesky(kernel(jnp.asarray(z, x.dtype)))
        return kernel, scale_tril, take(scale_tril)

    def model(x, y=None):
        flat = dist.Normal().expand((len(z),)).to_event(1).mask(False)
        kernel, scale_tril, u = process(x, lambda _: numpyro.sample("u", flat))
        v = solve_lower(scale_tril, u[:, None])[:, 0]
        log_volume = jnp.sum(jnp.log(jnp.diagonal(scale_tril)))
        numpyro.factor("prior", dist.Normal().log_prob(v).sum() - log_volume)
        with block(hide=["f"]), substitute(data={"f": v}):
            f = gp.sparse_gp("f", kernel, jnp.asarray(z, x.dtype))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    def guide(x, y=None):
        held = substitute(fit.guide, data=dict(fit.params))
        with block():
            values = {n: s["value"] for n, s in trace(held).get_trace(x, y).items()}
        v = values.pop("f")
        with substitute(data=values):
            process(x, lambda factor: numpyro.sample("u", dist.Delta(factor @ v)))

    return model, guide
