"""Coupled against mean-field q(v) for a sum of two processes (Adam 2017, table 1).

500 data, y = sin³(x₁) + cos(3 x₂) + noise of sd 0.5; two RBF processes; hyperparameters
at the maximum of the exact log evidence; M inducing inputs each, evenly spaced. For
both the best bound on the same inducing inputs has a closed form, which stands
beside the fitted one: the published bounds (398.4 and 409.0 for the mean field) are
what an optimiser had reached, not what the variational distributions allow.
"""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax.scipy.linalg import cho_solve
from scipy.optimize import minimize

import svgp_ppl as gp
from benchmarks.papers.experiment import Budget, Experiment, Measure

NAMES = ("f", "g")
GUIDES = {"coupled": gp.AutoCoupled, "mean field": gp.AutoGaussian}


def data(seed, n=500):
    """x [N, 2] and y [N], by the law of the paper's section 4."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3.0, 3.0, size=(n, 2))
    signal = np.sin(x[:, 0]) ** 3 + np.cos(3 * x[:, 1])
    return x, signal + 0.5 * rng.normal(size=n)


def kernels(theta):
    """One RBF a process, from log variances, log lengthscales and log noise sd."""
    v, s = jnp.exp(theta[:2]), jnp.exp(theta[2:4])
    return [gp.kernels.RBF(v[i], s[i]) for i in range(2)]


def exact(x, y):
    """Hyperparameters of largest evidence, −log evidence, moments of (f, g)."""

    def grams(theta):
        return [k(x[:, [i]]) for i, k in enumerate(kernels(theta))]

    def factor(theta):
        return jnp.linalg.cholesky(
            sum(grams(theta)) + jnp.exp(2 * theta[4]) * jnp.eye(len(y))
        )

    @jax.jit
    @jax.value_and_grad
    def negative_evidence(theta):
        tril = factor(theta)
        white = jax.scipy.linalg.solve_triangular(tril, y, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diagonal(tril)))
        return 0.5 * white @ white + log_det + 0.5 * len(y) * jnp.log(2 * jnp.pi)

    start = np.log([1.0, 1.0, 1.0, 1.0, 0.5])
    found = minimize(negative_evidence, start, jac=True, method="L-BFGS-B")
    theta = jnp.asarray(found.x)
    each, tril = grams(theta), factor(theta)
    mean = sum(each) @ cho_solve((tril, True), y)

    def covariance(i, j):
        prior = each[i] if i == j else 0.0
        return jnp.diagonal(prior - each[i] @ cho_solve((tril, True), each[j]))

    per_datum = np.stack([[covariance(i, j) for j in (0, 1)] for i in (0, 1)])
    moments = row(y, np.asarray(mean), per_datum.transpose(2, 0, 1))
    return theta, float(found.fun), moments


def row(y, mean, covariance):
    """Moments over the data, and the correlation and sd at every datum (figure 1)."""
    a, b, c = covariance[:, 0, 0], covariance[:, 1, 1], covariance[:, 0, 1]
    correlation = c / np.sqrt(a * b)
    return {
        "RMSE": np.sqrt(np.mean((y - mean) ** 2)),
        "sd of sum": np.sqrt(np.mean(a + b + 2 * c)),
        "correlation": np.mean(correlation),
        "sd of difference": np.sqrt(np.mean(a + b - 2 * c)),
        "curves": {"correlation": correlation, "sd f": np.sqrt(a)},
    }


def model(theta, m, x, y=None, apart=False):
    """The sum of both processes observed; ``apart`` gives them side by side."""
    z = jnp.linspace(-3.0, 3.0, m)[:, None]
    latents = [
        gp.sparse_gp(name, kernel, z)(x[:, [i]])
        for i, (name, kernel) in enumerate(zip(NAMES, kernels(theta)))
    ]
    scale = jnp.exp(theta[4])
    with numpyro.plate("data", len(x)):
        if apart:
            both = gp.stack(latents)
            gp.observe("y", lambda f: dist.Normal(f[..., 0] + f[..., 1], scale), both)
        else:
            total = latents[0] + latents[1]
            gp.observe("y", gp.likelihoods.Gaussian(scale), total, obs=y)


def best_bounds(theta, m, x, y):
    """Closed-form optima: coupled (Titsias 2009), and mean field on the same z.

    The coupled optimum has the precision Λ = I + A Aᵀ/σ²; the mean-field one the same
    mean and the inverses of Λ's diagonal blocks, and is worse by
    ½ (Σ_c log|Λ_cc| − log|Λ|).
    """
    z = jnp.linspace(-3.0, 3.0, m)[:, None]
    sigma2, features, total = jnp.exp(2 * theta[4]), [], 0.0
    for i, kernel in enumerate(kernels(theta)):
        tril = gp.linalg.cholesky(kernel(z))
        features.append(gp.linalg.solve_lower(tril, kernel(z, x[:, [i]])))
        total += jnp.sum(kernel.diagonal(x[:, [i]]))
    a = jnp.concatenate(features)
    q = a.T @ a
    evidence = dist.MultivariateNormal(
        jnp.zeros(len(y)), q + sigma2 * jnp.eye(len(y))
    ).log_prob(y)
    coupled = evidence - (total - jnp.trace(q)) / (2 * sigma2)
    precision = jnp.eye(2 * m) + a @ a.T / sigma2
    blocks = precision[:m, :m], precision[m:, m:]
    gap = sum(jnp.linalg.slogdet(b)[1] for b in blocks)
    gap = 0.5 * (gap - jnp.linalg.slogdet(precision)[1])
    return {"coupled": float(coupled), "mean field": float(coupled - gap)}


def fitted(guide_of, theta, m, x, y, steps):
    """Fitted bound and the row of the table."""
    this = partial(model, theta, m)
    guide = guide_of(this)
    rate = optax.cosine_decay_schedule(3e-2, steps)
    fit = gp.fit(
        jax.random.key(0),
        this,
        guide,
        x,
        y,
        optimizer=optax.adam(rate),
        num_steps=steps,
        progress=False,
    )
    loss = gp.MarginalELBO().loss(jax.random.key(0), fit.params, this, guide, x, y)
    both = gp.predict(partial(this, apart=True), fit, x)["y"]
    covariance = np.asarray(both.latent_covariance)
    index = np.arange(len(y))
    moments = row(y, np.sum(both.latent_mean, 1), covariance[index, :, index])
    return -float(loss), moments


@lru_cache
def problem(split: int):
    """Data of a seed, and the exact process on them."""
    x, y = data(split)
    return x, y, exact(x, y)


def compared(settings, split):
    """A row of table 1 and the bound's distance from the exact evidence."""
    x, y, (theta, negative_evidence, moments) = problem(split)
    kind, m = settings["q(v)"], settings.get("M")
    bound = -negative_evidence
    if kind != "exact":
        bound, moments = fitted(GUIDES[kind], theta, m, x, y, settings["steps"])
    if split > 0:  # the figure shows the first draw of the data
        moments = moments | {"curves": {}}
    if kind == "exact":
        return moments | {"negative bound": negative_evidence}
    return moments | {
        "negative bound": -bound,
        "gap": negative_evidence + bound,
        "smallest gap": negative_evidence + best_bounds(theta, m, x, y)[kind],
    }


TABLE_1 = Experiment(
    "coupled-2017",
    "table-1",
    compared,
    cases=(
        {"q(v)": "exact"},
        {"q(v)": "coupled", "M": 10},
        {"q(v)": "coupled", "M": 30},
        {"q(v)": "mean field", "M": 10},
        {"q(v)": "mean field", "M": 30},
    ),
    measures=(
        Measure("RMSE", 4),
        Measure("sd of sum", 4),
        Measure("correlation", 4),
        Measure("sd of difference", 4),
        Measure("negative bound", 2),
        Measure("gap", 3, "higher"),
        Measure("smallest gap", 3),
    ),
    quick=Budget(tuple(range(3)), {"steps": 3000}),
    full=Budget(tuple(range(20)), {"steps": 20_000}),
    x64=True,
    differs="The paper has one draw of the data, which is not published; a split here "
    "is another draw. Inducing inputs are evenly spaced and stay. The gap is that of "
    "the bound to the exact log evidence; the smallest gap is that of the best q(v) of "
    "its family, in closed form.",
)
