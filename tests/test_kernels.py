"""Every kernel: GPflow's numbers, its four forms against one another, its gradients."""

import dataclasses
import inspect
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tinygp
from jax.test_util import check_grads

from svgp_ppl import kernels
from svgp_ppl.kernels import kernel as algebra
from tests.conftest import both_precisions, mostly_single

REFERENCE = np.load(pathlib.Path(__file__).parent / "fixtures" / "gpflow.npz")
VARIANCE, LENGTHSCALE = float(REFERENCE["variance"]), REFERENCE["lengthscale"].tolist()

# The settings of the reference numbers; ``_values`` turns the lists into arrays.
LIKE_GPFLOW = {
    "RBF": kernels.RBF(VARIANCE, LENGTHSCALE),
    "Matern12": kernels.Matern12(VARIANCE, LENGTHSCALE),
    "Matern32": kernels.Matern32(VARIANCE, LENGTHSCALE),
    "Matern52": kernels.Matern52(VARIANCE, LENGTHSCALE),
    "RationalQuadratic": kernels.RationalQuadratic(VARIANCE, LENGTHSCALE, alpha=0.7),
    "Periodic": kernels.Periodic(kernels.RBF(VARIANCE, LENGTHSCALE), [1.7, 2.3]),
    "Linear": kernels.Linear(VARIANCE),
    "Polynomial": kernels.Polynomial(2, VARIANCE, offset=0.4),
    "ArcCosine": kernels.ArcCosine(1, VARIANCE),
    "Cosine": kernels.Cosine(VARIANCE, LENGTHSCALE),
}


# tinygp's own default, L1, is no covariance for Matérn 5/2 and two columns.
EUCLIDEAN = tinygp.kernels.L2Distance()


def _ours(a, b):
    return 0.8 * jnp.exp(-jnp.sum(jnp.abs(a - b))) + jnp.dot(a, b)


ALL = {
    **LIKE_GPFLOW,
    # Two columns would not be positive definite.
    "Periodic Matern52": kernels.Periodic(
        kernels.Matern52(0.7, 0.6, active_columns=(1,)), 1.3
    ),
    "Periodic Matern12": kernels.Periodic(kernels.Matern12(0.7, [0.6, 1.1]), 1.3),
    "Linear per column": kernels.Linear([0.3, 2.0]),
    "ArcCosine 0": kernels.ArcCosine(0, 1.3, [0.4, 1.2], 0.6),
    "ArcCosine 2": kernels.ArcCosine(2, 1.3, 0.8, 0.6),
    "Constant": kernels.Constant(0.6),
    "White": kernels.White(0.6),
    "Sum": kernels.RBF(0.5) + kernels.White(0.1),
    "Product": 1.7 * kernels.Matern32(0.5, active_columns=(1,)),
    "FunctionKernel": kernels.as_kernel(_ours),
    "TinygpKernel": kernels.as_kernel(1.5 * tinygp.kernels.Matern52(0.9, EUCLIDEAN)),
}
# Of the same class as another, or made of others.
ALIKE = {"Periodic Matern52", "Periodic Matern12", "Linear per column", "ArcCosine 0"}
ALIKE |= {"ArcCosine 2", "Matern32", "Sum"}
every_kernel = pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(kernel, id=name, marks=[pytest.mark.thorough] * (name in ALIKE))
        for name, kernel in ALL.items()
    ],
)
stationary = pytest.mark.parametrize(
    "family",
    [
        kernels.RBF,
        kernels.RationalQuadratic,
        kernels.Matern12,
        kernels.Matern32,
        kernels.Matern52,
    ],
)


def _inputs(rows, seed, columns=2):
    return np.random.default_rng(seed).normal(size=(rows, columns))


def _leaves_as_arrays(kernel):
    return jax.tree.map(jnp.asarray, kernel)


@jax.jit  # one program: single operations take as long to compile, each of them
def _forms(kernel, x, y):
    """k(x, x), k(x, y), and both row by row."""
    return kernel(x), kernel(x, y), kernel.diagonal(x), kernel.paired(x, y)


_gram = jax.jit(lambda kernel, x: kernel(x))
_cross = jax.jit(lambda kernel, x, y: kernel(x, y))


def _assert_equal_forms(one, other, rtol=1e-12, atol=1e-14):
    for values, expected in zip(one, other, strict=True):
        np.testing.assert_allclose(values, expected, rtol=rtol, atol=atol)


def _has_noise(kernel):
    return isinstance(kernel, kernels.White) or (
        isinstance(kernel, kernels.Sum) and _has_noise(kernel.second)
    )


def test_no_kernel_is_missing_from_the_list():
    def subclasses(cls):
        return {cls}.union(*(subclasses(sub) for sub in cls.__subclasses__()))

    package = {
        cls
        for cls in subclasses(kernels.Kernel)
        if cls.__module__.startswith("svgp_ppl") and not inspect.isabstract(cls)
    }
    assert package == {type(kernel) for kernel in ALL.values()}
    assert {cls.__name__ for cls in package} <= set(kernels.__all__)


@pytest.mark.parametrize("name", LIKE_GPFLOW)
def test_values_are_those_of_gpflow(name):
    kernel, x = LIKE_GPFLOW[name], REFERENCE["x"]
    # Absolute too: k(x, z) of a dot product may be close to zero.
    tolerance = {"rtol": 1e-10, "atol": 1e-12}
    stored = REFERENCE[f"kernel_{name}"], REFERENCE[f"kernel_diag_{name}"]
    ours = jax.jit(lambda x, z: (kernel(x, z), kernel.diagonal(x)))(x, REFERENCE["z"])
    for values, expected in zip(ours, stored, strict=True):
        np.testing.assert_allclose(values, expected, **tolerance)


def test_every_reference_is_used():
    stored = {name for name in REFERENCE.files if name.startswith("kernel_")}
    assert stored == {f"kernel_{n}" for n in LIKE_GPFLOW} | {
        f"kernel_diag_{n}" for n in LIKE_GPFLOW
    }


@every_kernel
def test_the_four_forms_agree(kernel):
    x, y = _inputs(6, seed=0), _inputs(6, seed=1)
    gram, cross, diagonal, paired = _forms(kernel, x, y)
    _, turned, _, _ = _forms(kernel, y, x)
    _, as_two, _, with_itself = _forms(kernel, x, x)
    assert gram.shape == cross.shape == (6, 6)
    np.testing.assert_allclose(diagonal, np.diagonal(gram), rtol=1e-12)
    np.testing.assert_allclose(paired, np.diagonal(cross), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(cross, turned.T, rtol=1e-12, atol=1e-14)
    if not _has_noise(kernel):
        np.testing.assert_allclose(gram, as_two, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(with_itself, diagonal, rtol=1e-12)


@every_kernel
def test_gram_matrices_are_symmetric_and_positive_semidefinite(kernel):
    x = _inputs(20, seed=2)
    gram = np.asarray(_gram(kernel, x))
    np.testing.assert_allclose(gram, gram.T, rtol=1e-12, atol=1e-14)
    smallest = np.linalg.eigvalsh(gram)[0]
    assert smallest > -1e-12 * np.mean(np.diagonal(gram)) * len(x)


@mostly_single
@every_kernel
def test_gradients_are_finite_at_coincident_points(kernel, precision):
    kernel = _leaves_as_arrays(kernel)
    x = np.tile(_inputs(3, seed=3), (2, 1))
    x, weights = (jnp.asarray(a) for a in (x, np.cos(np.arange(36.0)).reshape(6, 6)))

    # Not compiled: fusion may fold 0 · ∞ away, and hide what another program meets.
    forms, pull_back = jax.vjp(_forms.__wrapped__, kernel, x, x)
    ones = jnp.ones_like(forms[-1])
    gradients = pull_back((weights.astype(x.dtype),) * 2 + (ones,) * 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@every_kernel
def test_gradients_match_finite_differences(kernel):
    kernel, x, y = _leaves_as_arrays(kernel), _inputs(4, seed=4), _inputs(3, seed=5)

    @jax.jit
    def forms(kernel, x):
        return kernel(x), kernel(x, y), kernel.diagonal(x)

    check_grads(
        forms,
        (kernel, x),
        order=1,
        modes=["rev"],
        rtol=1e-5,
        atol=1e-5,
    )


@both_precisions
@pytest.mark.parametrize("columns", [2, 65])  # distances by differences, by products
@stationary
def test_the_value_at_coincident_points_is_exactly_the_variance(
    family, columns, precision
):
    # Far from the origin and wide: the distance of a row to itself has rounding.
    x = 100.0 + _inputs(9, seed=6, columns=columns)
    gram, _, diagonal, paired = _forms(family(variance=1.7, lengthscale=0.3), x, x)
    np.testing.assert_array_equal(np.diagonal(gram), diagonal)
    np.testing.assert_array_equal(paired, diagonal)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_is_the_expectation_over_a_wide_network(order):
    # k(x, x') = 2 E[h(wᵀa) h(wᵀa')], w ~ N(0, I), h(t) = max(0, t)^order. In two
    # dimensions (x of one column, and the bias) the angle of w is integrated evenly and
    # E ‖w‖^(2 order) = 1, 2, 8.
    x, y = _inputs(5, seed=7, columns=1), _inputs(4, seed=8, columns=1)
    angle = (np.arange(400_000) + 0.5) * 2 * np.pi / 400_000

    def hidden(x):
        t = np.concatenate([1.5 * x, 0.5 * np.ones_like(x)], 1) @ np.stack(
            [np.cos(angle), np.sin(angle)]
        )
        return (t > 0) * t**order

    expected = 2 * [1, 2, 8][order] * hidden(x) @ hidden(y).T / len(angle)
    kernel = kernels.ArcCosine(order, weight_variances=2.25, bias_variance=0.25)
    np.testing.assert_allclose(_cross(kernel, x, y), expected, rtol=1e-5)


@mostly_single
def test_arc_cosine_at_the_origin_without_bias_is_finite(precision):
    kernel = kernels.ArcCosine(order=1, bias_variance=0.0)
    x = jnp.array([[0.0, 0.0], [1.0, 2.0], [-1.0, -2.0]])
    value, gradient = jax.jit(jax.value_and_grad(lambda x: jnp.sum(kernel(x))))(x)
    # Opposite points: J_1(π) = 0.
    np.testing.assert_allclose(value, 10.0, rtol=1e-6)
    assert jnp.isfinite(gradient).all()


def test_rational_quadratic_becomes_rbf():
    x = _inputs(5, seed=9)
    near = _gram(kernels.RationalQuadratic(1.3, 0.7, alpha=1e12), x)
    np.testing.assert_allclose(near, _gram(kernels.RBF(1.3, 0.7), x), rtol=1e-10)


def test_periodic_kernels_repeat():
    x, y = _inputs(5, seed=10), _inputs(4, seed=11)
    for base in (kernels.RBF(1.2, 0.8), kernels.Matern32(1.2, 0.8)):
        kernel = kernels.Periodic(base, np.array([0.5, 2.0]))
        shifted = _cross(kernel, x + np.array([1.5, -4.0]), y)
        np.testing.assert_allclose(shifted, _cross(kernel, x, y), rtol=1e-10)
    column, other = x[:, :1], y[:, :1]
    sine = np.abs(np.sin(np.pi * (column - other.T) / 0.5)) / 0.8
    expected = 1.2 * (1 + np.sqrt(3) * sine) * np.exp(-np.sqrt(3) * sine)
    kernel = kernels.Periodic(kernels.Matern32(1.2, 0.8), 0.5)
    np.testing.assert_allclose(_cross(kernel, column, other), expected, rtol=1e-12)


def test_noise_goes_by_position():
    x = np.ones((3, 1))
    gram, cross, diagonal, paired = _forms(kernels.White(0.4), x, x)
    np.testing.assert_array_equal(gram, 0.4 * np.eye(3))
    np.testing.assert_array_equal(cross, np.zeros((3, 3)))
    np.testing.assert_array_equal(diagonal, 0.4 * np.ones(3))
    np.testing.assert_array_equal(paired, np.zeros(3))


def test_sums_and_products():
    x, y = _inputs(4, seed=12), _inputs(4, seed=13)
    first, second = kernels.RBF(0.7, 0.5), kernels.Linear(1.2)
    cases = [
        (first + second, lambda a, b: a + b),
        (sum([first, second, first]), lambda a, b: a + b + a),
        (first * second, lambda a, b: a * b),
        (2.5 * first, lambda a, b: 2.5 * a),
        (first * np.float64(2.5), lambda a, b: 2.5 * a),
        (np.float64(2.5) * first, lambda a, b: 2.5 * a),
        (np.asarray(2.5) * first, lambda a, b: 2.5 * a),
        (jnp.asarray(2.5) * first + second, lambda a, b: 2.5 * a + b),
    ]
    ours = [kernel for kernel, _ in cases]
    assert all(isinstance(kernel, kernels.Kernel) for kernel in ours)
    of_all = jax.jit(lambda *ks: [_forms(kernel, x, y) for kernel in ks])
    a, b, *found = of_all(first, second, *ours)
    for forms, (_, combined) in zip(found, cases, strict=True):
        expected = [combined(*(np.asarray(v) for v in ab)) for ab in zip(a, b)]
        _assert_equal_forms(forms, expected, rtol=1e-14, atol=0.0)


def test_a_traced_number_scales_a_kernel():
    x = _inputs(3, seed=14)
    slope = jax.jit(jax.grad(lambda scale: jnp.sum((scale * kernels.RBF())(x))))(2.0)
    np.testing.assert_allclose(slope, np.sum(_gram(kernels.RBF(), x)), rtol=1e-12)


@pytest.mark.parametrize("other", [1, 1.0, "RBF", jnp.ones(2)], ids=str)
def test_what_is_no_kernel_is_not_added(other):
    with pytest.raises(TypeError):
        kernels.RBF() + other
    with pytest.raises(TypeError):
        other + kernels.RBF()


@every_kernel
def test_active_columns_are_the_slice(kernel):
    x, y = (_inputs(4, seed=seed, columns=4) for seed in (15, 16))
    seeing = dataclasses.replace(kernel, active_columns=(3, 1))
    expected = _forms(kernel, x[:, [3, 1]], y[:, [3, 1]])
    _assert_equal_forms(_forms(seeing, x, y), expected)


def test_whole_turns_are_taken_off():
    """Hours of 27 years in single precision; and a column that is dropped."""
    hours = np.float32(np.random.default_rng(3).integers(0, 240_000, (30, 1)) / 4)
    turns = (hours.astype(float) - hours.T) / 24.0
    with jax.enable_x64(False):
        periodic = _gram(kernels.Periodic(kernels.RBF(1.0, 0.5), 24.0), hours)
        cosine = _gram(kernels.Cosine(1.0, 24.0), hours)
    expected = np.exp(-0.5 * np.square(np.sin(np.pi * turns) / 0.5))
    np.testing.assert_allclose(periodic, expected, atol=1e-6)
    np.testing.assert_allclose(cosine, np.cos(2.0 * np.pi * turns), atol=1e-6)
    both = _gram(kernels.Cosine(1.0, np.array([np.inf, 24.0])), np.hstack([hours] * 2))
    np.testing.assert_allclose(both, cosine, atol=1e-6)


def test_parts_choose_among_the_columns_of_the_whole():
    x = _inputs(4, seed=17, columns=3)
    parts = kernels.RBF(active_columns=(0,)) + kernels.Linear(active_columns=(-1,))
    expected = _gram(kernels.RBF(), x[:, :1]) + _gram(kernels.Linear(), x[:, 2:])
    np.testing.assert_allclose(_gram(parts, x), expected, rtol=1e-12)
    whole = dataclasses.replace(parts, active_columns=(2, 0))
    expected = _gram(kernels.RBF(), x[:, 2:]) + _gram(kernels.Linear(), x[:, :1])
    np.testing.assert_allclose(_gram(whole, x), expected, rtol=1e-12)
    periodic = kernels.Periodic(kernels.RBF(active_columns=(1,)), 0.7)
    expected = _gram(kernels.Periodic(kernels.RBF(), 0.7), x[:, 1:2])
    np.testing.assert_allclose(_gram(periodic, x), expected, rtol=1e-12)


def test_functions_and_tinygp_kernels_are_kernels():
    x, y = _inputs(4, seed=18), _inputs(4, seed=19)
    expected = _forms(kernels.RBF(1.4, 0.6), x, y)

    def function(a, b):
        return 1.4 * jnp.exp(-0.5 * jnp.sum(((a - b) / 0.6) ** 2))

    tiny = 1.4 * tinygp.kernels.ExpSquared(0.6, EUCLIDEAN)
    for covariance in (function, tiny):
        kernel = kernels.as_kernel(covariance)
        _assert_equal_forms(_forms(kernel, x, y), expected, atol=0.0)


def test_the_values_of_a_tinygp_kernel_are_leaves():
    x = _inputs(3, seed=20)
    kernel = kernels.as_kernel(tinygp.kernels.Matern32(jnp.asarray(0.8)))
    gradient = jax.jit(jax.grad(lambda kernel: jnp.sum(kernel(x))))(kernel)
    assert jax.tree.leaves(gradient)[0] != 0


def test_a_kernel_stays_as_it_is():
    kernel = kernels.RBF()
    assert kernels.as_kernel(kernel) is kernel


@every_kernel
def test_kernels_are_pytrees_under_jit_and_vmap(kernel):
    x, y = _inputs(4, seed=21), _inputs(3, seed=22)
    same = jax.tree.map(lambda leaf: leaf, kernel)
    assert jax.tree.structure(same) == jax.tree.structure(kernel)
    expected = kernel(x, y)  # not compiled, its values known
    several = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), kernel)

    @jax.jit
    def compiled(kernel, several, x):
        many = jax.vmap(lambda kernel, x: kernel(x, y), (0, None), axis_size=2)
        inputs = jax.vmap(kernel)(jnp.stack([x, x + 1]))
        return kernel(x, y), many(several, x)[0], kernel(x + 1), inputs[1]

    one, first, moved, second = compiled(kernel, several, x)
    _assert_equal_forms((one, first), (expected,) * 2, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(second, moved, rtol=1e-10, atol=1e-12)


@every_kernel
def test_single_precision_stays(kernel):
    x = _inputs(4, seed=23).astype(jnp.float32)
    kernel = jax.tree.map(jnp.float32, kernel)
    forms = jax.eval_shape(_forms, kernel, x, x)
    assert {form.dtype for form in forms} == {jnp.dtype(jnp.float32)}


def test_plain_numbers_do_not_raise_the_precision():
    x = _inputs(4, seed=24).astype(jnp.float32)
    ours = [kernels.RBF(), kernels.ArcCosine(2), kernels.White(), 2.0 * kernels.RBF()]
    forms = jax.eval_shape(lambda x: [(k(x), k.diagonal(x)) for k in ours], x)
    assert {form.dtype for form in jax.tree.leaves(forms)} == {jnp.dtype(jnp.float32)}


def test_integers_become_floats():
    x = np.arange(6).reshape(3, 2)
    for kernel in (kernels.Linear(), kernels.Matern12(), kernels.White()):
        as_floats = _gram(kernel, x.astype(float))
        np.testing.assert_array_equal(_gram(kernel, x), as_floats)


def test_the_algebra_of_noise_keeps_positions():
    x = np.ones((3, 1))
    kernel = kernels.RBF(2.0) * kernels.White(0.5)
    np.testing.assert_allclose(_gram(kernel, x), np.eye(3), rtol=1e-14)


X = np.ones((3, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.RBF()(X[:, 0]), r"shape \[N, D\], got \(3,\).*x\[:, None\]"),
        (lambda: kernels.RBF().diagonal(X[0]), r"shape \[N, D\]"),
        (lambda: kernels.RBF()(X, X[:, :1]), "as many columns in x as in y, got 2 and"),
        (lambda: kernels.RBF().paired(X, X[:2]), "as many rows in x as in y, got 3 an"),
        (
            lambda: kernels.RBF(lengthscale=jnp.ones(3))(X),
            r"number for lengthscale, or 2.*got an array of shape \(3,\).*active_colu",
        ),
        (
            lambda: kernels.RBF(lengthscale=jnp.ones(2), active_columns=(0,))(X),
            "number for lengthscale, or 1",
        ),
        (lambda: kernels.Matern12(variance=jnp.ones(2))(X), "one number for variance"),
        (lambda: kernels.Matern12(variance=jnp.ones(2)).diagonal(X), "for variance"),
        (lambda: kernels.Cosine(lengthscale=jnp.ones(3))(X), "for lengthscale, or 2"),
        (lambda: kernels.Linear(jnp.ones(3)).diagonal(X), "for variance, or 2"),
        (lambda: kernels.ArcCosine(0, 1.0, jnp.ones(3))(X), "weight_variances, or 2"),
        (
            lambda: kernels.Periodic(kernels.RBF(), jnp.ones(3))(X),
            "number for period, or 2",
        ),
        (
            lambda: kernels.Periodic(kernels.Linear())(X),
            "expected a stationary base .* got Linear",
        ),
        (lambda: kernels.RBF(active_columns=(2,))(X), r"each below 2, .*got \(2,\)"),
        (lambda: kernels.RBF(active_columns=(-3,))(X), r"each below 2, .*got \(-3,\)"),
        (lambda: kernels.RBF(active_columns=())(X), r"a tuple of columns.*got \(\)"),
        (lambda: kernels.ArcCosine(3), "expected 0, 1 or 2 for order, got 3"),
        (lambda: kernels.Polynomial(0), "positive integer for degree, got 0"),
        (lambda: kernels.as_kernel("RBF"), "a tinygp kernel, or a function.*got 'RBF'"),
        (lambda: kernels.as_kernel(kernels.RBF), "a class needs its values"),
        (
            lambda: kernels.as_kernel(lambda a, b: a * b)(X),
            r"one number from the covariance function.*got shape \(2,\)",
        ),
    ],
)
def test_errors_explain(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_kernel_that_is_written_anew_has_a_diagonal_of_its_own():
    """Variances of predictions would be those of the class it comes from."""
    with pytest.raises(TypeError, match=r"inherits Stationary\._evaluate_diagonal"):

        class Halved(kernels.RBF):
            def _evaluate(self, pairs):
                return super()._evaluate(pairs) / 2.0

    class Growing(kernels.RBF):
        def _evaluate(self, pairs):
            both = pairs.apply(lambda a, b: a[0] * b[0])
            return both * super()._evaluate(pairs)

        def _evaluate_diagonal(self, x):
            return x[:, 0] ** 2 * super()._evaluate_diagonal(x)

    kernel = Growing()
    np.testing.assert_allclose(kernel.diagonal(X), np.diag(kernel(X)), rtol=1e-12)
    with pytest.raises(ValueError, match="and Growing writes _evaluate anew"):
        kernels.Periodic(kernel)(X)


def test_shapes_are_checked_under_tracing():
    with pytest.raises(ValueError, match="number for lengthscale, or 2"):
        jax.jit(lambda scale: kernels.RBF(lengthscale=scale)(X))(jnp.ones(3))


def test_values_are_arrays_after_their_check():
    assert algebra.single("variance", 1.0).weak_type
    assert algebra.per_column("lengthscale", [1.0, 2.0], 2).shape == (2,)


def test_cosine_has_wavelength_and_variance_one_by_default():
    x = np.array([[0.0], [0.25], [0.5], [1.0]])
    expected = np.cos(2 * np.pi * (x - x.T))
    np.testing.assert_allclose(_gram(kernels.Cosine(), x), expected, atol=1e-12)
