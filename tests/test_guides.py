"""Coupled and mixture guides: against closed forms, dense computations and draws."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax import random
from numpyro.infer import Trace_ELBO, TraceGraph_ELBO
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

import svgp_ppl as gp
from tests.conftest import mostly_double
from tests.models import Walk, rbf

# ---------------------------------- a sum of two processes, everything but v known

RNG = np.random.default_rng(7)
N, SIGMA = 60, 0.5
X = RNG.uniform(-3.0, 3.0, size=(N, 2))
Y = np.sin(X[:, 0]) ** 3 + np.cos(3 * X[:, 1]) + SIGMA * RNG.normal(size=N)
Z = np.linspace(-3.0, 3.0, 7)[:, None]
PROCESSES = {"f": (1.3, 1.1), "g": (0.8, 0.7)}  # variance, lengthscale
JITTER = 1e-8


def additive(x, y=None, size=None):
    f, g = (
        gp.sparse_gp(name, gp.kernels.RBF(*values), Z, jitter=JITTER)
        for name, values in PROCESSES.items()
    )
    with numpyro.plate("data", size or len(x), subsample_size=len(x)):
        total = f(x[:, :1]) + g(x[:, 1:])
        gp.observe("y", gp.likelihoods.Gaussian(SIGMA), total, obs=y)


def features():
    """Whitened features of both processes, stacked: [2M, N]."""
    stacked = []
    for column, (variance, lengthscale) in enumerate(PROCESSES.values()):
        gram = rbf(Z, Z, variance, lengthscale) + JITTER * np.eye(len(Z))
        cross = rbf(Z, X[:, [column]], variance, lengthscale)
        stacked.append(np.linalg.solve(np.linalg.cholesky(gram), cross))
    return np.concatenate(stacked)


def coupled_optimum():
    """Mean and covariance of the optimal q(v): precision I + A Aᵀ/σ²."""
    a = features()
    precision = np.eye(len(a)) + a @ a.T / SIGMA**2
    covariance = np.linalg.inv(precision)
    return covariance @ a @ Y / SIGMA**2, covariance, precision


def titsias_bound():
    """log N(y; 0, Q + σ² I) − tr(K − Q)/(2σ²)."""
    q = features().T @ features()
    variance = sum(v for v, _ in PROCESSES.values())
    evidence = multivariate_normal.logpdf(Y, np.zeros(N), q + SIGMA**2 * np.eye(N))
    return evidence - (N * variance - np.trace(q)) / (2 * SIGMA**2)


def loss_of(guide, params, loss=None, model=additive, **options):
    loss = gp.MarginalELBO() if loss is None else loss

    @jax.jit
    def run(params):
        return loss.loss(random.key(0), params, model, guide, X, Y, **options)

    return run(params)


def coupled_params(loc, covariance):
    tril = np.linalg.cholesky(covariance)
    return {"auto_f_g_loc": jnp.array(loc), "auto_f_g_scale_tril": jnp.array(tril)}


def test_coupled_optimum_gives_the_collapsed_bound():
    loc, covariance, _ = coupled_optimum()
    params = coupled_params(loc, covariance)
    guide = gp.AutoCoupled(additive)
    np.testing.assert_allclose(loss_of(guide, params), -titsias_bound(), rtol=1e-9)
    slopes = jax.grad(lambda p: loss_of(guide, p))(params)
    for slope in jax.tree.leaves(slopes):
        np.testing.assert_allclose(np.tril(np.atleast_2d(slope)), 0.0, atol=1e-7)


def test_mean_field_optimum_is_worse_by_what_the_coupling_is_worth():
    # Adam (2017): same means, covariances the inverses of the diagonal blocks. The gap
    # is ½ (Σ log|Λ_cc| − log|Λ|), with Λ the precision of the coupled optimum.
    loc, _, precision = coupled_optimum()
    blocks = [precision[:7, :7], precision[7:, 7:]]
    params = {}
    for name, part, block in zip(PROCESSES, np.split(loc, 2), blocks):
        tril = np.linalg.cholesky(np.linalg.inv(block))
        params |= {f"auto_{name}_loc": part, f"auto_{name}_scale_tril": tril}
    params = jax.tree.map(jnp.asarray, params)
    gap = sum(np.linalg.slogdet(b)[1] for b in blocks)
    gap = 0.5 * (gap - np.linalg.slogdet(precision)[1])
    guide = gp.AutoGaussian(additive)
    assert gap > 1.0
    np.testing.assert_allclose(loss_of(guide, params), gap - titsias_bound(), rtol=1e-9)
    slopes = jax.grad(lambda p: loss_of(guide, p))(params)
    for slope in jax.tree.leaves(slopes):
        np.testing.assert_allclose(np.tril(np.atleast_2d(slope)), 0.0, atol=1e-7)


def test_minibatches_of_a_coupled_model_average_to_the_full_bound():
    loc, covariance, _ = coupled_optimum()
    params, guide = coupled_params(loc, covariance), gp.AutoCoupled(additive)
    part = jax.jit(
        lambda x, y: gp.MarginalELBO().loss(
            random.key(0), params, additive, guide, x, y, size=N
        )
    )
    parts = [part(X[i::4], Y[i::4]) for i in range(4)]
    np.testing.assert_allclose(np.mean(parts), loss_of(guide, params), rtol=1e-12)


def test_coupled_predictions_know_sum_and_difference():
    loc, covariance, _ = coupled_optimum()

    def parts(x):
        f, g = (
            gp.sparse_gp(name, gp.kernels.RBF(*values), Z, jitter=JITTER)
            for name, values in PROCESSES.items()
        )
        both = gp.stack([f(x[:, :1]), g(x[:, 1:])])
        gp.observe("y", lambda f: dist.Normal(f[..., 0] + f[..., 1], SIGMA), both)

    guide = gp.AutoCoupled(parts)
    posterior = (guide, coupled_params(loc, covariance))
    predicted = gp.predict(parts, posterior, X[:5])["y"]
    a = features()[:, :5]
    rows = [
        np.where(np.arange(14) < 7, 1.0, 0.0),
        np.where(np.arange(14) < 7, 0.0, 1.0),
    ]
    for sign in (1.0, -1.0):
        weights = (rows[0] + sign * rows[1])[:, None] * a
        expected = np.einsum("mn,ml,ln->n", weights, covariance, weights)
        expected += sum(v for v, _ in PROCESSES.values()) - np.sum(a**2, axis=0)
        cov = np.asarray(predicted.latent_covariance)[np.arange(5), :, np.arange(5)]
        got = cov[:, 0, 0] + cov[:, 1, 1] + 2 * sign * cov[:, 0, 1]
        np.testing.assert_allclose(got, expected, rtol=1e-8)


def test_blocks_couple_only_what_they_name():
    guide = gp.AutoCoupled(additive, [["g"]])
    free, names = gp.AutoGaussian(additive), {"auto_f_loc", "auto_g_loc"}
    rng = np.random.default_rng(0)
    tril = jnp.asarray(np.tril(rng.normal(size=(7, 7))) + 3 * np.eye(7))
    params = {n: jnp.asarray(rng.normal(size=7)) for n in names}
    params |= {"auto_f_scale_tril": tril, "auto_g_scale_tril": 0.5 * tril}
    np.testing.assert_allclose(loss_of(guide, params), loss_of(free, params), 1e-12)
    # Outputs of one process are stacked in its block.
    assert guide._fitted(params)["auto_g"][1] == {"g": (7,)}


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([["f", "h"]], r"blocks name \['h'\]; the processes of the model are"),
        ([["f"], ["f", "g"]], "more than one block"),
        (["f", "g"], "list of lists"),
        ("f", "list of lists"),
    ],
)
def test_wrong_blocks_are_explained(as_users_call, blocks, message):
    with pytest.raises(ValueError, match=message):
        loss_of(gp.AutoCoupled(additive, blocks), {})


@pytest.mark.parametrize("make", [gp.AutoCoupled, gp.AutoSites])
@pytest.mark.parametrize(
    ("names", "blocks"),
    [
        ("f g f_g", [["f", "g"]]),
        ("f g auto_f_g", [["f", "g"]]),
        ("a b_c a_b c", [["a", "b_c"], ["a_b", "c"]]),
    ],
)
def test_blocks_whose_names_are_the_same_when_joined(names, blocks, make):
    """Two q(v) would be one, without a word."""

    def model(x, y=None):
        kernel = gp.kernels.RBF(1.0, 0.7)
        latent = sum(gp.sparse_gp(n, kernel, Z)(x) for n in names.split())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.4), latent, obs=y)

    guide, options = make(model, blocks=blocks), {"num_steps": 1, "progress": False}
    with pytest.raises(ValueError, match="they would share parameters"):
        gp.fit(random.key(0), model, guide, X[:, :1], Y, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "positive integer"), ((2, "banded"), "'full' or 'diagonal'")],
)
def test_wrong_mixtures_are_explained(as_users_call, arguments, message):
    with pytest.raises(ValueError, match=message):
        gp.AutoMixture(additive, *arguments)


# -------------------------------------------------------------------------- mixtures


def mixture_params(covariance, num_components, seed=0):
    rng = np.random.default_rng(seed)
    shape = (num_components, 7)
    params = {"auto_logits": rng.normal(size=num_components)}
    for name in PROCESSES:
        params[f"auto_{name}_locs"] = rng.normal(size=shape)
        if covariance == "diagonal":
            params[f"auto_{name}_scales"] = rng.uniform(0.3, 1.5, size=shape)
        else:
            tril = np.tril(0.3 * rng.normal(size=(*shape, 7)), -1) + 0.7 * np.eye(7)
            params[f"auto_{name}_scale_trils"] = tril
    return jax.tree.map(jnp.asarray, params)


def first_of(params):
    """The first component, as the parameters of AutoGaussian."""
    return {n.removesuffix("s"): v[0] for n, v in params.items() if n != "auto_logits"}


@mostly_double
@pytest.mark.parametrize(
    ("covariance", "entropy"), [("diagonal", "jensen"), ("full", "monte_carlo")]
)
def test_one_component_is_the_gaussian(precision, covariance, entropy):
    params = mixture_params(covariance, 1)
    single = first_of(params)
    mixture = gp.AutoMixture(additive, 1, covariance)
    gaussian = gp.AutoGaussian(additive, covariance)
    losses = (
        loss_of(mixture, params, gp.MarginalELBO(entropy=entropy)),
        loss_of(gaussian, single),
    )
    np.testing.assert_allclose(*losses, rtol=1e-12 if precision == 64 else 1e-4)


@pytest.mark.parametrize(
    ("covariance", "entropy"),
    [
        pytest.param("diagonal", "jensen", marks=pytest.mark.slow),
        ("diagonal", "pairwise"),
        ("full", "jensen"),
        pytest.param("full", "pairwise", marks=pytest.mark.slow),
        pytest.param("full", "monte_carlo", marks=pytest.mark.slow),
    ],
)
def test_mixture_equals_one_over_the_stacked_values(covariance, entropy):
    params = mixture_params(covariance, 3)
    locs = np.concatenate([params["auto_f_locs"], params["auto_g_locs"]], axis=1)
    key = "scales" if covariance == "diagonal" else "scale_trils"
    factors = zip(params[f"auto_f_{key}"], params[f"auto_g_{key}"])
    if covariance == "diagonal":
        trils = np.stack([np.diag(np.concatenate(pair)) for pair in factors])
    else:
        trils = np.stack([block_diag(*pair) for pair in factors])

    def by_hand(*args, **kwargs):
        joint = dist.MixtureSameFamily(
            dist.Categorical(logits=params["auto_logits"]),
            dist.MultivariateNormal(locs, scale_tril=jnp.asarray(trils)),
        )
        value = numpyro.sample("v", joint, infer={"is_auxiliary": True})
        shapes = dict.fromkeys(PROCESSES, (7,))
        for name, block in gp.variational.split("v", joint, value, shapes).items():
            numpyro.sample(name, block)

    loss = gp.MarginalELBO(entropy=entropy, num_entropy_draws=4000)
    ours = loss_of(gp.AutoMixture(additive, 3, covariance), params, loss)
    dense = loss_of(by_hand, {}, loss)
    # Drawn entropies come from other draws: 5 standard errors of 4000 x 3.
    exact = entropy != "monte_carlo"
    tolerance = {"rtol": 1e-11} if exact else {"atol": 0.15}
    np.testing.assert_allclose(ours, dense, **tolerance)


@pytest.mark.slow
def test_pairwise_bound_is_exact_for_equal_and_for_distant_components():
    params = mixture_params("full", 2) | {"auto_logits": jnp.zeros(2)}
    for name in PROCESSES:  # two components of one covariance
        tril = params[f"auto_{name}_scale_trils"]
        params[f"auto_{name}_scale_trils"] = jnp.stack([tril[0], tril[0]])
    qv = gp.AutoMixture(additive, 2, "full")
    loss_of(qv, params)

    def divergence(apart, entropy):
        moved = dict(params)
        for name in PROCESSES:
            loc = params[f"auto_{name}_locs"][0]
            moved[f"auto_{name}_locs"] = jnp.stack([loc, loc + apart])
        mixture, _ = qv._fitted(moved)["auto_mixture"]
        return gp.variational.prior_kl(mixture, entropy=entropy, key=random.key(0))

    # Equal: the divergence of the one Gaussian. Far apart: less by log 2.
    single = first_of(params)
    gaussian = gp.AutoGaussian(additive)
    loss_of(gaussian, single)

    def divergence_of_one(params):
        fitted = gaussian._fitted(params).values()
        return sum(gp.variational.prior_kl(gaussian_qv) for gaussian_qv, _ in fitted)

    expected = divergence_of_one(single)
    np.testing.assert_allclose(divergence(0.0, "pairwise"), expected, rtol=1e-10)
    far = divergence(50.0, "pairwise")
    moved = {n: v + 50.0 if n.endswith("_loc") else v for n, v in single.items()}
    other = divergence_of_one(moved)
    np.testing.assert_allclose(far, (expected + other) / 2 - np.log(2), rtol=1e-12)
    np.testing.assert_allclose(far, divergence(50.0, "monte_carlo"), atol=5.0)
    jensen = divergence(50.0, "jensen")
    np.testing.assert_allclose(jensen - far, 14 * (1 - np.log(2)) / 2, rtol=1e-9)


@pytest.mark.thorough
def test_mixture_has_the_value_of_its_own_draws():
    guide, params = gp.AutoMixture(additive, 3), mixture_params("diagonal", 3)
    marginal = gp.MarginalELBO(entropy="monte_carlo", num_entropy_draws=20_000)
    loss = Trace_ELBO()
    draws = jax.jit(
        jax.vmap(lambda key: loss.loss(key, params, additive, guide, X, Y))
    )(random.split(random.key(3), 4000))
    error = np.std(draws) / np.sqrt(len(draws))
    assert abs(np.mean(draws) - loss_of(guide, params, marginal)) < 5 * error
    # Both bounds of the entropy are below it.
    for entropy in ("jensen", "pairwise"):
        bound = loss_of(guide, params, gp.MarginalELBO(entropy=entropy))
        assert bound > np.mean(draws) - 5 * error


@pytest.mark.slow
def test_score_function_gradient_is_the_gradient_of_the_bound():
    guide, params = gp.AutoMixture(additive, 2), mixture_params("diagonal", 2)
    marginal = gp.MarginalELBO(entropy="monte_carlo", num_entropy_draws=20_000)
    exact = jax.grad(lambda p: loss_of(guide, p, marginal))(params)["auto_logits"]
    graph = TraceGraph_ELBO()

    def slope(key):
        run = lambda p: graph.loss(key, p, additive, guide, X, Y)  # noqa: E731
        return jax.grad(run)(params)["auto_logits"]

    draws = jax.jit(jax.vmap(slope))(random.split(random.key(1), 6000))
    error = np.std(draws, axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(np.mean(draws, axis=0) - exact) < 5 * error)
    assert np.all(np.abs(exact) > 5 * error)  # the test can fail


def test_fit_refuses_a_loss_with_wrong_gradients():
    guide = gp.AutoMixture(additive, 2)
    with pytest.raises(ValueError, match=r"'auto_mixture' \(MixtureSameFamily\).*not"):
        gp.fit(random.key(0), additive, guide, X, Y, loss=Trace_ELBO(), num_steps=10)


# ----------------------------------------------------------- draws, medians, samplers


@pytest.mark.parametrize(
    "kind",
    [
        "coupled",
        *(pytest.param(k, marks=pytest.mark.slow) for k in ("diagonal", "full")),
    ],
)
def test_draws_medians_and_quantiles_agree(kind):
    if kind == "coupled":
        guide = gp.AutoCoupled(additive)
        params = coupled_params(*coupled_optimum()[:2])
    else:
        guide, params = gp.AutoMixture(additive, 3, kind), mixture_params(kind, 3)
    loss_of(guide, params)  # the guide has seen the model

    @jax.jit
    def run(params):
        draws = guide.sample_posterior(random.key(0), params, sample_shape=(20_000,))
        return draws, guide.quantiles(params, [0.2, 0.5, 0.9]), guide.median(params)

    draws, quantiles, medians = jax.tree.map(np.asarray, run(params))
    for name in PROCESSES:
        assert draws[name].shape == (20_000, 7) and quantiles[name].shape == (3, 7)
        np.testing.assert_allclose(medians[name], quantiles[name][1])
        below = np.mean(draws[name] < quantiles[name][:, None], axis=1)
        np.testing.assert_allclose(below, [[0.2], [0.5], [0.9]] * np.ones(7), atol=0.02)


@pytest.mark.slow
def test_chains_start_from_draws_of_a_mixture():
    guide = gp.AutoMixture(additive, 2)
    fit = gp.fit(random.key(0), additive, guide, X, Y, num_steps=5, progress=False)
    draws = gp.sample(
        random.key(1),
        additive,
        X,
        Y,
        sampler=Walk(1e-6),
        init=fit,
        num_warmup=1,
        num_samples=4,
        num_chains=3,
        progress=False,
    )
    first = np.asarray(gp.diagnostics.group(draws, "posterior")["f"])[:, 0]
    assert first.shape == (3, 7) and len(np.unique(first[:, 0])) == 3


# ---------------------------------------------------------------- a bimodal posterior


def product(x, y=None):
    """y = f g: (f, g) and (−f, −g) are equally good."""
    z = jnp.linspace(-2.0, 2.0, 6)[:, None]
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), z)
    g = gp.sparse_gp("g", gp.kernels.RBF(1.0, 1.0), z)
    with numpyro.plate("data", len(x)):
        both = gp.stack([f(x), g(x)])
        gp.observe("y", lambda f: dist.Normal(f[..., 0] * f[..., 1], 0.1), both, obs=y)


@pytest.mark.slow
def test_two_components_find_both_modes():
    x = np.linspace(-2.0, 2.0, 24)[:, None]
    y = (1.0 + 0.3 * np.sin(x[:, 0])) * (0.9 + 0.2 * np.cos(x[:, 0]))
    # Weights learned slowly: no component may win before both have found a mode.
    optimizer = optax.multi_transform(
        {"q(v)": optax.adam(2e-2), "weights": optax.adam(2e-4)},
        lambda params: {n: "weights" if n == "auto_logits" else "q(v)" for n in params},
    )
    fits = {}
    for k in (1, 2):
        fits[k] = gp.fit(
            random.key(2),
            product,
            gp.AutoMixture(product, k, "full"),
            x,
            y,
            loss=gp.MarginalELBO(entropy="pairwise"),
            optimizer=optimizer,
            num_steps=2000,
            progress=False,
        )
    bounds = {k: -np.mean(fit.losses[-50:]) for k, fit in fits.items()}
    # A mode of two equal ones is worth log 2 at most.
    assert bounds[1] + 0.1 < bounds[2] < bounds[1] + np.log(2) + 0.1, bounds
    latent = gp.predict(product, fits[2], x)["y"]
    single = gp.predict(product, fits[1], x)["y"]
    # Two signs: f is about ±1, and its mean says so; one component knows one sign.
    assert np.all(np.abs(latent.latent_mean) < 0.5 * np.abs(single.latent_mean))
    spread = latent.latent_variance - np.square(single.latent_mean)
    assert np.mean(spread) > 0.0


# ------------------------------------------------------------ products, and their modes

PRODUCT_X = np.linspace(-2.0, 2.0, 24)[:, None]
PRODUCT_Y = (1 + 0.3 * np.sin(PRODUCT_X[:, 0])) * (0.9 + 0.2 * np.cos(PRODUCT_X[:, 0]))


def network(x, y=None):
    """The same as a regression network with one node, in closed form."""
    z = np.linspace(-2.0, 2.0, 6)[:, None]
    f = gp.sparse_gp("f", gp.kernels.RBF(1.0, 1.0), z, num_outputs=1)
    g = gp.sparse_gp("g", gp.kernels.RBF(1.0, 1.0), z, num_outputs=1)
    with numpyro.plate("data", len(x)):
        y = None if y is None else y[:, None]
        likelihood = gp.likelihoods.GPRN(1, 1, 0.1)
        gp.observe("y", likelihood, gp.stack([f(x), g(x)]), obs=y)


def default_fit(guide, model, key=0, **options):
    options = {"progress": False, **options}
    return gp.fit(random.key(key), model, guide, PRODUCT_X, PRODUCT_Y, **options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("guide", "bound"),
    [
        (gp.AutoGaussian, -0.6),
        pytest.param(gp.AutoCoupled, 6.0, marks=pytest.mark.slow),
        pytest.param(
            lambda model: gp.AutoMixture(model, 1), -9.0, marks=pytest.mark.slow
        ),
    ],
)
def test_a_network_leaves_its_saddle_point(guide, bound):
    """With means of zero it stays at −1206; one that is coupled at −801."""
    fit = default_fit(guide(network), network)
    assert -np.mean(fit.losses[-50:]) > bound


@pytest.mark.slow
@pytest.mark.parametrize("model", [product, network])
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_mixture_keeps_both_modes_by_default(model, covariance):
    """Eight keys of eight, and nothing but defaults."""
    loss = gp.MarginalELBO(entropy="pairwise" if covariance == "full" else "jensen")
    for key in range(8):
        guide = gp.AutoMixture(model, 2, covariance)
        fit = default_fit(guide, model, key, loss=loss)
        weights = jax.nn.softmax(fit.params["auto_logits"])
        assert np.min(weights) > 0.4
        middle = fit.params["auto_f_locs"][..., 0].ravel()
        assert middle[0] * middle[1] < 0
        assert -np.mean(fit.losses[-50:]) > (0.0 if covariance == "full" else -8.5)


@pytest.mark.slow
def test_weights_wait_for_half_of_the_steps():
    """Unless freeze= names them; a fit that is continued goes on in the same way."""
    options = {"num_steps": 10}
    fit = default_fit(gp.AutoMixture(network, 2), network, **options)
    assert fit.unfreeze_at == {"auto_logits": 5}
    more = default_fit(fit.guide, network, init=fit, **options)
    assert more.unfreeze_at == {"auto_logits": 5} and len(more.losses) == 20
    for freeze, known in (
        ({"auto_logits": 0}, {}),
        ({"*_log*": 3}, {"auto_logits": 3}),
        ({"auto_f_locs": 2}, {"auto_f_locs": 2, "auto_logits": 5}),
    ):
        fit = default_fit(gp.AutoMixture(network, 2), network, freeze=freeze, **options)
        assert fit.unfreeze_at == known
    start = (fit.guide, fit.params)
    again = default_fit(fit.guide, network, init=start, **options)
    assert again.unfreeze_at == {}
    assert gp.AutoMixture(network, 1).late_names() == set()


@pytest.mark.thorough
def test_unfreezing_is_kept_in_files(tmp_path):
    fit = default_fit(gp.AutoMixture(network, 2), network, num_steps=6)
    fit.save(tmp_path / "fit")
    loaded = gp.Fit.load(tmp_path / "fit", fit.guide, network)
    assert loaded.unfreeze_at == {"auto_logits": 3}
    more = default_fit(loaded.guide, network, init=loaded, num_steps=2)
    assert more.unfreeze_at == {"auto_logits": 3}
