"""Two routes to one number: moments against dense algebra, bounds against each other.

``_dense_latent`` is the reference: the joint Gaussian of all whitened values and all
process values, conditioned and mapped with NumPy, in which nothing of ``latent``,
``marginals`` or ``variational distributions`` appears.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.linalg
import scipy.special
import scipy.stats
from jax import random
from numpyro.handlers import seed, trace
from numpyro.infer import Trace_ELBO

from svgp_ppl import MarginalELBO, SparseGP, kernels, observe, sparse_gp, stack
from svgp_ppl import likelihoods as lk
from svgp_ppl.features import Derivative, Points
from svgp_ppl.handlers import replay_distributions
from svgp_ppl.linalg import factorised
from svgp_ppl.variational import Stacked, expected_log_prior, prior_kl, split
from tests.conftest import both_precisions

RNG = np.random.default_rng(20)
N, JITTER = 6, 1e-3
X, X2 = RNG.normal(size=(2, N, 2))
W, W_PER_DATUM = RNG.normal(size=(2, 3)), RNG.normal(size=(N, 2, 3))
WEIGHT, OFFSET, OFFSET3 = (
    RNG.normal(size=N),
    RNG.normal(size=N),
    RNG.normal(size=(N, 3)),
)


def _mean_of_k(x):
    """One mean per output."""
    return jnp.stack([x[:, 0], 2.0 * x[:, 1] - 1.0], axis=1)


# Name -> variance, lengthscale, columns seen, z, outputs, mean function.
PROCESSES = {
    "f": (1.3, 0.7, (0,), RNG.normal(size=(5, 2)), None, None),
    "g": (0.6, 1.1, (0, 1), RNG.normal(size=(4, 2)), None, lambda x: jnp.sin(x[:, 0])),
    "h": (0.9, 0.8, (1,), RNG.normal(size=(3, 2)), 3, None),
    "k": (0.4, 0.9, (0, 1), RNG.normal(size=(2, 2)), 2, _mean_of_k),
}
SHAPES = {
    name: (len(z),) if outputs is None else (outputs, len(z))
    for name, (_, _, _, z, outputs, _) in PROCESSES.items()
}
SIZE = sum(int(np.prod(shape)) for shape in SHAPES.values())


# ------------------------------------------------------------------ the dense reference


def _rbf(name, x, y):
    variance, lengthscale, columns = PROCESSES[name][:3]
    difference = x[:, None, list(columns)] - y[None, :, list(columns)]
    return variance * np.exp(-0.5 * np.sum(difference**2, -1) / lengthscale**2)


def _dense_latent(loc, covariance, elements, weights, offset):
    """Mean [N, Q] and covariance [N, Q, N, Q] of Σ_e w_e f_e + b, by dense algebra.

    ``loc`` and ``covariance`` are those of the stacked v of all PROCESSES; an element
    is (process name, output, inputs); weights [Q, E, N], offset [Q, N].
    """
    start, rows = 0, {}
    for name, shape in SHAPES.items():
        for p in range(1 if len(shape) == 1 else shape[0]):
            rows[name, p] = slice(start, start + shape[-1])
            start += shape[-1]
    num = len(elements) * N
    cross, prior, mean = np.zeros((num, SIZE)), np.zeros((num, num)), np.zeros(num)
    for i, (name, p, x) in enumerate(elements):
        at, z, mean_function = slice(i * N, (i + 1) * N), *PROCESSES[name][3::2]
        scale_tril = np.linalg.cholesky(_rbf(name, z, z) + JITTER * np.eye(len(z)))
        cross[at, rows[name, p]] = _rbf(name, x, z) @ np.linalg.inv(scale_tril).T
        if mean_function is not None:
            mean[at] = np.asarray(mean_function(x)).reshape(N, -1)[:, p]
        for j, (other, q, y) in enumerate(elements):
            if (name, p) == (other, q):
                prior[at, slice(j * N, (j + 1) * N)] = _rbf(name, x, y)
    mean = mean + cross @ loc
    gram = prior - cross @ cross.T + cross @ covariance @ cross.T
    mixing = np.concatenate(  # [Q, N, E N]
        [w[:, :, None] * np.eye(N) for w in np.moveaxis(weights, 1, 0)], axis=-1
    )
    return (mixing @ mean + offset).T, np.einsum(
        "qne,ed,rmd->nqmr", mixing, gram, mixing
    )


ONE = np.ones(N)


def _rows(*rows):
    """Weights [Q, E, N] from one row per component, of numbers or [N]."""
    return np.stack([np.stack([w * ONE for w in row]) for row in rows])


NO_OFFSET = np.zeros((1, N))
F, F2 = ("f", 0, X), ("f", 0, X2)
G, G2 = ("g", 0, X), ("g", 0, X2)
H = [("h", p, X) for p in range(3)]
K = [("k", p, X) for p in range(2)]
# Name -> expression, elements, weights, offset.
EXPRESSIONS = {
    "f": (lambda p: p["f"](X), [F], _rows([1.0]), NO_OFFSET),
    "f + g": (lambda p: p["f"](X) + p["g"](X), [F, G], _rows([1, 1]), NO_OFFSET),
    "f(x) - f(x')": (
        lambda p: p["f"](X) - p["f"](X2),
        [F, F2],
        _rows([1, -1]),
        NO_OFFSET,
    ),
    "2 f - w g + c": (
        lambda p: 2.0 * p["f"](X) - WEIGHT * p["g"](X2) + OFFSET,
        [F, G2],
        _rows([2.0, -WEIGHT]),
        OFFSET[None],
    ),
    "1 - f / w": (
        lambda p: 1.0 - p["f"](X) / WEIGHT,
        [F],
        _rows([-1 / WEIGHT]),
        1.0 + NO_OFFSET,
    ),
    "c - (w + f) / 2, by functions of NumPy": (
        lambda p: OFFSET - np.divide(WEIGHT + p["f"](X), 2.0),
        [F],
        _rows([-0.5]),
        (OFFSET - WEIGHT / 2)[None],
    ),
    "f twice": (
        lambda p: stack([p["f"](X), p["f"](X)]),
        [F],
        _rows([1], [1]),
        np.zeros((2, N)),
    ),
    "h": (lambda p: p["h"](X), H, _rows(*np.eye(3)), np.zeros((3, N))),
    "k, with means": (lambda p: p["k"](X), K, _rows(*np.eye(2)), np.zeros((2, N))),
    "W @ h": (lambda p: W @ p["h"](X), H, _rows(*W), np.zeros((2, N))),
    "W_n @ (h + b)": (
        lambda p: W_PER_DATUM @ (p["h"](X) + OFFSET3),
        H,
        np.moveaxis(W_PER_DATUM, 0, -1),
        np.einsum("nrq,nq->rn", W_PER_DATUM, OFFSET3),
    ),
    "h * row + k": (
        lambda p: (p["h"](X) * W[0])[..., 1:] + p["k"](X) * WEIGHT[:, None],
        H[1:] + K,
        _rows([W[0, 1], 0, WEIGHT, 0], [0, W[0, 2], 0, WEIGHT]),
        np.zeros((2, N)),
    ),
    "stack": (
        lambda p: stack(
            [p["f"](X) + p["g"](X2), p["h"](X)[..., 1], p["f"](X2) * WEIGHT]
        ),
        [F, G2, H[1], F2],
        _rows([1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, WEIGHT]),
        np.zeros((3, N)),
    ),
    "h[..., ::-1]": (
        lambda p: p["h"](X)[..., ::-1],
        H[::-1],
        _rows(*np.eye(3)),
        np.zeros((3, N)),
    ),
    "h[..., 2] - 3": (
        lambda p: p["h"](X)[..., 2] - 3.0,
        H[2:],
        _rows([1]),
        NO_OFFSET - 3,
    ),
    "shared by both": (
        lambda p: stack([p["f"](X), p["f"](X) + p["g"](X)]),
        [F, G],
        _rows([1, 0], [1, 1]),
        np.zeros((2, N)),
    ),
}


def _random_q(rng, size):
    scale_tril = np.tril(rng.normal(size=(size, size)) * 0.3) + 0.4 * np.eye(size)
    scale_tril[np.diag_indices(size)] = np.abs(np.diag(scale_tril)) + 0.1
    return rng.normal(size=size), scale_tril


LOC, TRIL = _random_q(RNG, SIZE)
LOCS, TRILS = map(np.stack, zip(*[_random_q(RNG, SIZE) for _ in range(3)]))
PI = np.array([0.5, 0.2, 0.3])


def _parts(vector):
    """Stacked v -> process name -> its values."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES.values()])[:-1]
    return {
        name: part.reshape(SHAPES[name])
        for name, part in zip(SHAPES, np.split(vector, ends))
    }


def _joint(joint, name="v", shapes=SHAPES):
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    return split(name, joint, jnp.zeros(size), shapes)


def _two_pairs():
    """One Gaussian over f and h, another over g and k, and the whole covariance."""
    variational, covariance = {}, np.zeros((SIZE, SIZE))
    for pair in (("f", "h"), ("g", "k")):
        each = [_parts(np.arange(SIZE))[name].ravel() for name in pair]
        rows = np.concatenate(each)
        square = np.ix_(rows, rows)
        covariance[square] = (TRIL @ TRIL.T)[square]
        scale_tril = np.linalg.cholesky(covariance[square])
        qv = dist.MultivariateNormal(LOC[rows], scale_tril=scale_tril)
        shapes = {name: SHAPES[name] for name in pair}
        variational |= _joint(qv, "".join(pair), shapes)
    return variational, covariance


def _mixture(components, weights=PI):
    return dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.asarray(weights)), components
    )


def _full_per_output():
    """Independent full Gaussians, and their block-diagonal covariance."""
    start, variational, blocks = 0, {}, []
    for name, shape in SHAPES.items():
        loc, factors = _parts(LOC)[name], []
        for _ in range(1 if len(shape) == 1 else shape[0]):
            rows = slice(start, start + shape[-1])
            factors.append(TRIL[rows, rows])
            start += shape[-1]
        blocks += [factor @ factor.T for factor in factors]
        scale_tril = factors[0] if len(shape) == 1 else np.stack(factors)
        qv = dist.MultivariateNormal(loc, scale_tril=scale_tril)
        variational[name] = qv.to_event(len(shape) - 1)
    return variational, scipy.linalg.block_diag(*blocks)


def _diagonal():
    scale = _parts(np.diag(TRIL))
    return {
        name: dist.Normal(part, scale[name]).to_event(part.ndim)
        for name, part in _parts(LOC).items()
    }


def _points():
    return {name: dist.Delta(v, event_dim=v.ndim) for name, v in _parts(LOC).items()}


def _partly_mixed():
    """A mixture over f, diagonal g, points for the rest."""
    components = dist.MultivariateNormal(LOCS[:, :5], scale_tril=TRILS[:, :5, :5])
    mixed = {"f": _mixture(components), "g": _diagonal()["g"]}

    def component(k):
        covariance = np.zeros((SIZE, SIZE))
        covariance[:5, :5] = SQUARES[k, :5, :5]
        covariance[range(5, 9), range(5, 9)] = np.diag(TRIL)[5:9] ** 2
        return PI[k], np.concatenate([LOCS[k, :5], LOC[5:]]), covariance

    return _points() | mixed, [component(k) for k in range(3)]


def _one(variational, covariance):
    return variational, [(1.0, LOC, covariance)]


SQUARES = TRILS @ np.swapaxes(TRILS, 1, 2)
SCALES = np.stack([np.diag(t) for t in TRILS])
DIAGONAL = np.diag(np.diag(TRIL) ** 2)

# Name -> what makes q(v) per process, and the components (weight, loc, covariance).
VARIATIONAL = {
    "Delta": lambda: _one(_points(), np.zeros((SIZE, SIZE))),
    "diagonal": lambda: _one(_diagonal(), DIAGONAL),
    "full": lambda: _one(*_full_per_output()),
    "coupled": lambda: _one(
        _joint(dist.MultivariateNormal(LOC, scale_tril=TRIL)), TRIL @ TRIL.T
    ),
    "coupled pairs": lambda: _one(*_two_pairs()),
    "joint diagonal": lambda: _one(
        _joint(dist.Normal(LOC, np.diag(TRIL)).to_event(1)), DIAGONAL
    ),
    "coupled mixture": lambda: (
        _joint(_mixture(dist.MultivariateNormal(LOCS, scale_tril=TRILS))),
        list(zip(PI, LOCS, SQUARES)),
    ),
    "diagonal mixture": lambda: (
        _joint(_mixture(dist.Normal(LOCS, SCALES).to_event(1))),
        [(pi, m, np.diag(s**2)) for pi, m, s in zip(PI, LOCS, SCALES)],
    ),
    "mixture, diagonal and points": _partly_mixed,
}


@jax.jit  # also where processes are made outside of a program
def _factor(kernel, z):
    return factorised(kernel(z), JITTER)


def _processes(variational):
    processes = {}
    for name, (variance, lengthscale, columns, z, outputs, mean) in PROCESSES.items():
        kernel = kernels.RBF(variance, lengthscale, active_columns=columns)
        z = jnp.asarray(z)
        factor = _factor(kernel, z)
        qv = variational[name]
        processes[name] = SparseGP(name, kernel, Points(z), factor, qv, mean, outputs)
    return processes


MIXTURES = "coupled mixture", "diagonal mixture"


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("full", 64),
        ("coupled pairs", 64),
        ("mixture, diagonal and points", 64),
        *(
            pytest.param(kind, 64, marks=pytest.mark.thorough)
            for kind in ("Delta", "diagonal", "joint diagonal", *MIXTURES)
        ),
        pytest.param("coupled", 64, marks=pytest.mark.slow),  # pairs are coupled, too
        pytest.param("coupled mixture", 32, marks=pytest.mark.slow),
    ],
    indirect=["precision"],
)
def test_moments_are_those_of_the_dense_gaussian(kind, precision):
    variational, components = VARIATIONAL[kind]()
    everything = precision == 64 and kind in ("full", "coupled mixture")
    names = EXPRESSIONS if everything else ("f + g", "W @ h", "f(x) - f(x')", "stack")

    @jax.jit
    def moments():
        processes = _processes(variational)
        latents = {name: EXPRESSIONS[name][0](processes) for name in names}
        return {
            name: (
                marginal.average(marginal.mean),
                marginal.total_variance,
                marginal.total_covariance,
                latent.joint(),
            )
            for name, latent in latents.items()
            for marginal in [latent.marginal()]
        }

    atol, rtol = (1e-10, 1e-7) if precision == 64 else (1e-4, 1e-4)
    for name, (mean, variance, covariance, joint) in moments().items():
        dense = [
            (w, *_dense_latent(m, s, *EXPRESSIONS[name][1:])) for w, m, s in components
        ]
        wanted = sum(w * m for w, m, _ in dense)
        # The law of total covariance over the components.
        gram = sum(
            w * (s + np.multiply.outer(m - wanted, m - wanted)) for w, m, s in dense
        )
        each = np.einsum("nqnr->nqr", gram)

        def close(ours, dense, what, name=name):
            dense = dense.reshape(np.shape(ours))
            message = f"{what} of {name}"
            np.testing.assert_allclose(
                ours, dense, atol=atol, rtol=rtol, err_msg=message
            )

        close(mean, wanted, "mean")
        close(variance, np.einsum("nqq->nq", each), "variance")
        close(covariance, each, "covariance")
        close(joint[0], wanted, "joint mean")
        close(joint[1], gram, "joint covariance")


def test_the_moments_of_a_latent_are_those_of_its_marginal():
    """Mixtures included: the total moments, not those of the components."""
    variational, components = VARIATIONAL["coupled mixture"]()

    @jax.jit
    def run():
        latent = W @ _processes(variational)["h"](X)
        marginal = latent.marginal()
        moments = latent.mean, latent.variance, latent.covariance
        return marginal, moments, marginal.total_variance, marginal.total_covariance

    marginal, (mean, variance, covariance), total_variance, total_covariance = run()
    assert marginal.mean.shape == (3, N, 2)
    np.testing.assert_allclose(mean, np.tensordot(PI, marginal.mean, 1))
    np.testing.assert_allclose(variance, total_variance)
    np.testing.assert_allclose(covariance, total_covariance)
    for k, (_, loc, square) in enumerate(components):
        mean, covariance = _dense_latent(loc, square, *EXPRESSIONS["W @ h"][1:])
        component = marginal.component(k)
        np.testing.assert_allclose(component.mean, mean, atol=1e-10)
        each = np.einsum("nqnr->nqr", covariance)
        np.testing.assert_allclose(component.covariance, each, atol=1e-10)


@pytest.mark.parametrize("kind", ["coupled mixture"])
def test_chunks_change_nothing(kind):
    variational, _ = VARIATIONAL[kind]()

    def total(lengthscale, chunk_size):
        processes = _processes(variational)
        kernel = kernels.RBF(1.3, lengthscale)
        f = SparseGP(
            "f",
            kernel,
            processes["f"].features,
            factorised(kernel(processes["f"].z), JITTER),
            variational["f"],
        )
        latents = [
            f(X) - WEIGHT * f(X2),
            stack([f(X), processes["g"](X) + f(X2)]),
            W @ processes["h"](X),
        ]
        marginals = [latent.marginal(chunk_size) for latent in latents]
        return sum(
            jnp.sum(jnp.sin(leaf) * jnp.arange(1.0, leaf.size + 1).reshape(leaf.shape))
            for leaf in jax.tree.leaves(marginals)
        )

    run = jax.jit(jax.value_and_grad(total), static_argnums=1)
    whole = run(0.7, None)
    # N = 6: the second chunk of 4 is cut.
    np.testing.assert_allclose(run(0.7, 4), whole, rtol=1e-10)


@pytest.mark.parametrize("kind", ["Delta", "coupled", "diagonal mixture"])
def test_a_latent_minus_itself_is_zero(kind):
    variational, _ = VARIATIONAL[kind]()

    @jax.jit
    def moments():
        f = _processes(variational)["f"]
        difference = f(X) - f(X)
        traced = jnp.float64(2.0) * f(X) - f(X) * jnp.float64(2.0)
        return [
            (latent.mean, latent.variance, latent.joint()[1])
            for latent in (difference, traced)
        ]

    for moment in jax.tree.leaves(moments()):
        assert np.all(np.asarray(moment) == 0.0)


def test_two_separate_mixtures_in_one_latent_are_refused():
    variational, _ = VARIATIONAL["full"]()
    for name in ("f", "g"):
        size = SHAPES[name][0]
        variational[name] = _mixture(dist.Normal(LOCS[:, :size], 1.0).to_event(1))

    @jax.jit
    def mean():
        processes = _processes(variational)
        return (processes["f"](X) + processes["g"](X)).mean

    with pytest.raises(ValueError, match=r"2 separate mixtures.*variational\.split"):
        mean()


# -------------------------------------------------------------- q(v) and its KL


def _kl(qv, **options):
    return float(jax.jit(lambda: prior_kl(qv, **options))())


@both_precisions
def test_kl_of_gaussians_is_the_textbook_formula(precision):
    covariance = TRIL @ TRIL.T
    dense = 0.5 * (
        np.trace(covariance) + LOC @ LOC - SIZE - np.linalg.slogdet(covariance)[1]
    )
    full = dist.MultivariateNormal(LOC, scale_tril=TRIL)
    tolerance = 1e-12 if precision == 64 else 1e-5
    np.testing.assert_allclose(_kl(full), dense, rtol=tolerance)
    np.testing.assert_allclose(_kl(_joint(full)["g"]), dense, rtol=tolerance)
    scale = np.diag(TRIL)
    dense = 0.5 * np.sum(scale**2 + LOC**2 - 1 - 2 * np.log(scale))
    diagonal = dist.Normal(LOC, scale).to_event(1)
    np.testing.assert_allclose(_kl(diagonal), dense, rtol=tolerance)


def test_block_diagonal_coupling_is_independence():
    independent, covariance = _full_per_output()
    factor = np.linalg.cholesky(covariance)
    joint = dist.MultivariateNormal(LOC, scale_tril=factor)
    coupled = _joint(joint)
    total = sum(_kl(qv) for qv in independent.values())
    np.testing.assert_allclose(_kl(joint), total, rtol=1e-12)

    @jax.jit
    def moments():
        both = _processes(coupled), _processes(independent)
        return [
            (latent.mean, latent.variance, latent.covariance)
            for latent in (stack([p["f"](X) + p["g"](X), p["h"](X)]) for p in both)
        ]

    for one, other in zip(*moments()):
        np.testing.assert_allclose(one, other, atol=1e-12)


MIXTURES = {
    "full": lambda k: dist.MultivariateNormal(LOCS[k, :5], scale_tril=TRILS[k, :5, :5]),
    "diagonal": lambda k: dist.Normal(
        LOCS[k, :5], np.diagonal(TRILS, axis1=1, axis2=2)[k, :5]
    ).to_event(1),
    "diagonal, 2 outputs": lambda k: dist.Normal(
        LOCS[k, :4].reshape(*np.shape(LOCS[k, :4])[:-1], 2, 2), 0.4
    ).to_event(2),
    "full, 2 outputs": lambda k: dist.MultivariateNormal(
        LOCS[k, :4].reshape(*np.shape(LOCS[k, :4])[:-1], 2, 2),
        scale_tril=np.stack([TRILS[k, :2, :2], TRILS[k, 2:4, 2:4]], axis=-3),
    ).to_event(1),
}
FIRST, ALL = slice(0, 1), slice(None)


@pytest.mark.parametrize("kind", ["full", "diagonal, 2 outputs"])
def test_a_mixture_of_one_is_the_gaussian(kind):
    mixture, gaussian = _mixture(MIXTURES[kind](FIRST), [1.0]), MIXTURES[kind](0)
    for options in ({}, {"entropy": "monte_carlo", "key": random.key(0)}):
        np.testing.assert_allclose(_kl(mixture, **options), _kl(gaussian), rtol=1e-12)
    shape = gaussian.event_shape
    y = RNG.poisson(1.0, size=N)

    def model(x, y):
        outputs = None if len(shape) == 1 else shape[0]
        f = sparse_gp("f", kernels.RBF(), X2[: shape[-1]], num_outputs=outputs)
        latent = f(x) if outputs is None else f(x)[..., 1]
        with numpyro.plate("data", N):
            observe("y", lk.Poisson(), latent, obs=y)

    @jax.jit
    def bounds():
        guides = [lambda *_, b=b: numpyro.sample("f", b) for b in (mixture, gaussian)]
        args = random.key(0), {}, model
        return [MarginalELBO().loss(*args, guide, X, y) for guide in guides]

    np.testing.assert_allclose(*bounds(), rtol=1e-12)


@pytest.mark.parametrize("kind", ["diagonal", "full, 2 outputs"])
def test_kl_of_a_mixture(kind):
    mixture = _mixture(MIXTURES[kind](ALL))
    white = dist.Normal(0.0, 1.0)

    @jax.jit
    def by_brute_force(key):
        draws = mixture.sample(key, (100_000,))
        axes = tuple(range(1, draws.ndim))
        return mixture.log_prob(draws) - jnp.sum(white.log_prob(draws), axes)

    @jax.jit
    def by_components(key):
        keys = random.split(key, 400)
        return jax.vmap(
            lambda key: prior_kl(mixture, entropy="monte_carlo", key=key, num_draws=16)
        )(keys)

    exact, estimate = by_brute_force(random.key(1)), by_components(random.key(2))
    error = np.hypot(np.std(exact) / 100_000**0.5, np.std(estimate) / 400**0.5)
    assert abs(np.mean(exact) - np.mean(estimate)) < 5 * error
    # Jensen bounds the entropy from below, hence the divergence from above.
    assert _kl(mixture) > np.mean(exact) + 5 * error


def test_bounds_of_the_entropy_are_sums_over_a_grid():
    """Σ_k π_k log Σ_j π_j a_kj by integrals of q_k q_j, and of √(q_k q_j), in NumPy."""
    loc, tril = LOCS[:, :2], TRILS[:, :2, :2]
    axis = np.arange(-10.0, 10.0, 0.05)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    normal = scipy.stats.multivariate_normal
    q = np.stack([normal(m, s @ s.T).pdf(grid) for m, s in zip(loc, tril)])
    cell = 0.05**2
    np.testing.assert_allclose(q.sum(axis=1) * cell, 1.0, rtol=1e-12)
    cross = -q @ normal(np.zeros(2)).logpdf(grid) * cell
    entropies = -cell * np.sum(scipy.special.xlogy(q, q), axis=1)
    overlap, affinity = cell * q @ q.T, cell * np.sqrt(q) @ np.sqrt(q).T
    jensen = PI @ (cross + np.log(overlap @ PI))
    pairwise = PI @ (cross + np.log(affinity @ PI) - entropies)
    mixture = _mixture(dist.MultivariateNormal(loc, scale_tril=tril))
    np.testing.assert_allclose(_kl(mixture), jensen, rtol=1e-10)
    np.testing.assert_allclose(_kl(mixture, entropy="pairwise"), pairwise, rtol=1e-10)
    # Both bound the divergence from above.
    total = PI @ q
    exact = PI @ cross + cell * np.sum(scipy.special.xlogy(total, total))
    assert exact < min(jensen, pairwise)


# --------------------------------------------------------------------------- the bound

NUM, NOISE = 25, 0.4
XB = RNG.uniform(-2, 2, size=(NUM, 1))
YB = np.sin(2 * XB[:, 0]) + NOISE * RNG.normal(size=NUM)


def _regression(z, jitter, likelihood=None):
    def model(x, y, size=None):
        f = sparse_gp("f", kernels.RBF(1.2, 0.6), z, jitter=jitter)
        with numpyro.plate("data", size or len(x), subsample_size=len(x)):
            observe("y", likelihood or lk.Gaussian(NOISE), f(x), obs=y)

    return model


def _rbf_1d(x, z):
    return 1.2 * np.exp(-0.5 * (x - z.T) ** 2 / 0.6**2)


def _optimal_bound(z, jitter):
    gram = _rbf_1d(z, z) + jitter * np.eye(len(z))
    a = np.linalg.solve(np.linalg.cholesky(gram), _rbf_1d(z, XB))
    covariance = np.linalg.inv(np.eye(len(z)) + a @ a.T / NOISE**2)
    loc = covariance @ a @ YB / NOISE**2
    scale_tril = np.linalg.cholesky(covariance)

    def guide(*args):
        numpyro.sample("f", dist.MultivariateNormal(loc, scale_tril=scale_tril))

    loss = MarginalELBO().loss
    model = _regression(z, jitter)
    return -float(jax.jit(lambda: loss(random.key(0), {}, model, guide, XB, YB))()), a


def test_bound_at_the_optimum_is_titsias():
    bound, a = _optimal_bound(np.linspace(-2, 2, 6)[:, None], 1e-6)
    # log N(y; 0, Q + σ² I) − tr(K − Q) / (2 σ²), Q = aᵀ a (Titsias 2009, eq. 9).
    evidence = scipy.stats.multivariate_normal(
        cov=a.T @ a + NOISE**2 * np.eye(NUM)
    ).logpdf(YB)
    trace = np.sum(1.2 - np.sum(a * a, axis=0))
    np.testing.assert_allclose(bound, evidence - 0.5 * trace / NOISE**2, rtol=1e-10)


def test_bound_with_z_at_the_data_is_the_evidence():
    bound, _ = _optimal_bound(XB, 1e-10)
    evidence = scipy.stats.multivariate_normal(
        cov=_rbf_1d(XB, XB) + NOISE**2 * np.eye(NUM)
    ).logpdf(YB)
    np.testing.assert_allclose(bound, evidence, rtol=1e-7)


ZB = np.linspace(-2, 2, 5)[:, None]
COUNTS = RNG.poisson(np.exp(YB))


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_marginal_bound_is_the_mean_of_the_sampled_one(kind):
    model, qv = _regression(ZB, 1e-6, lk.Poisson()), MIXTURES[kind](0)

    def guide(*args):
        numpyro.sample("f", qv)

    @jax.jit
    def bounds():
        exact = MarginalELBO().loss(random.key(0), {}, model, guide, XB, COUNTS)
        keys = random.split(random.key(1), 4000)
        sampled = jax.vmap(
            lambda key: Trace_ELBO().loss(key, {}, model, guide, XB, COUNTS)
        )(keys)
        return exact, sampled

    exact, sampled = bounds()
    assert abs(exact - np.mean(sampled)) < 5 * np.std(sampled) / 4000**0.5


def test_minibatches_average_to_the_whole():
    model, qv = _regression(ZB, 1e-6, lk.Poisson()), MIXTURES["full"](0)

    def guide(*args, **kwargs):
        numpyro.sample("f", qv)

    @jax.jit
    def run(x, y):
        loss = MarginalELBO().loss
        return loss(random.key(0), {}, model, guide, x, y, size=NUM)

    parts = [run(XB[i : i + 5], COUNTS[i : i + 5]) for i in range(0, NUM, 5)]
    np.testing.assert_allclose(np.mean(parts), run(XB, COUNTS), rtol=1e-12)
    assert np.std(parts) > 0.1


def test_coupled_q_in_a_guide():
    """The bound of two processes counts the joint KL once, and sees the coupling."""
    shapes = {"f": (5,), "g": (4,)}
    joint = dist.MultivariateNormal(LOC[:9], scale_tril=TRIL[:9, :9])

    def model(x, y):
        f = sparse_gp("f", kernels.RBF(0.8, 0.6), ZB)
        g = sparse_gp("g", kernels.RBF(0.5, 1.5), ZB[:4])
        with numpyro.plate("data", NUM):
            observe("y", lk.Poisson(), f(x) + g(x), obs=y)

    def guide(*args):
        value = numpyro.sample("v", joint, infer={"is_auxiliary": True})
        for name, block in split("v", joint, value, shapes).items():
            numpyro.sample(name, block)

    @jax.jit
    def parts():
        args = random.key(0), {}, model, guide, XB, COUNTS
        guide_trace = trace(seed(guide, 0)).get_trace()
        held = trace(replay_distributions(seed(model, 0), guide_trace)).get_trace(
            XB, COUNTS
        )
        by_hand = prior_kl(joint) - held["y"]["fn"].log_prob(COUNTS).sum()
        keys = random.split(random.key(1), 4000)
        sampled = jax.vmap(lambda key: Trace_ELBO().loss(key, *args[1:]))(keys)
        return MarginalELBO().loss(*args), by_hand, sampled

    loss, by_hand, sampled = parts()
    np.testing.assert_allclose(loss, by_hand, rtol=1e-12)
    assert abs(loss - np.mean(sampled)) < 5 * np.std(sampled) / 4000**0.5


@pytest.mark.parametrize("size", [4, 6])
def test_a_joint_q_of_another_size_is_refused(size):
    joint = dist.MultivariateNormal(np.zeros(size), scale_tril=np.eye(size))
    with pytest.raises(ValueError, match=f"has {size} values, .* need 5"):
        split("v", joint, jnp.zeros(size), {"f": (2,), "g": (3,)})


def test_inputs_that_are_written_into_are_other_inputs():
    """Also where JAX would share their memory, which starts at a multiple of 64."""
    memory = np.empty(7 * 8 + 64, np.uint8)
    start = -memory.ctypes.data % 64

    def model():
        f = sparse_gp("f", kernels.RBF(1.0, 0.3), np.linspace(0, 1, 5)[:, None])
        x = memory[start : start + 7 * 8].view(float)[:, None]
        x[:, 0] = np.linspace(0.0, 1.0, 7)
        before = f(x)
        again = before - f(x)
        x += 0.5
        return again.variance, (before - f(x)).variance, (before - f(x.copy())).variance

    same, moved, copied = seed(model, 0)()
    np.testing.assert_array_equal(same, 0.0)
    np.testing.assert_allclose(moved, copied)
    assert np.any(moved > 0.01)


def test_a_mean_function_of_whole_numbers_has_a_slope():
    def model(mean):
        z = np.linspace(0, 1, 5)[:, None]
        return sparse_gp("f", kernels.RBF(1.0, 0.3), z, mean=mean)(Derivative(z)).mean

    @jax.jit
    def both():
        constant = seed(model, 0)(lambda x: np.full(len(x), 3))
        return constant, seed(model, 0)(None)

    np.testing.assert_allclose(*both())


def test_a_mixture_of_equal_components_has_the_divergence_of_one():
    """By the pairwise bound of the entropy, which is exact there; of two outputs."""
    rng = np.random.default_rng(3)
    loc, scale = rng.normal(size=(2, 3)), rng.gamma(3.0, 0.3, size=(2, 3))
    one = dist.Normal(loc, scale).to_event(2)
    equal = dist.Normal(np.stack([loc] * 2), np.stack([scale] * 2)).to_event(2)
    qv = _mixture(equal, [0.3, 0.7])
    exact = np.sum(0.5 * (scale**2 + loc**2 - 1) - np.log(scale))
    for found in (_kl(one), _kl(qv, entropy="pairwise")):
        np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_independent_processes_are_drawn_independently():
    normal = dist.Normal(np.zeros((2, 3)), 1.0).to_event(1)
    v = Stacked({"f": normal, "g": normal}).sample(random.key(0), (2000,))
    covariance = np.cov(np.asarray(v).reshape(4000, 6).T)
    assert np.max(np.abs(covariance - np.eye(6))) < 5 * np.sqrt(2 / 4000)


def test_the_expected_log_prior_of_a_mixture_has_its_weights():
    loc, scale = np.array([[0.0, 1.0], [3.0, -2.0]]), np.array([0.5, 1.5])
    weights = np.array([0.1, 0.9])
    components = dist.Normal(loc, scale[:, None]).to_event(1)
    qv = dist.MixtureSameFamily(dist.Categorical(probs=weights), components)
    squares = np.sum(loc**2 + scale[:, None] ** 2, axis=1)
    exact = -0.5 * weights @ squares - np.log(2 * np.pi)
    found = jax.jit(lambda: expected_log_prior(qv))()
    np.testing.assert_allclose(found, exact, rtol=1e-6)
