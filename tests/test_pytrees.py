"""Dataclasses as pytrees: one structure a class, static fields in it, paths by name."""

import dataclasses
import importlib
import inspect
import itertools
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import svgp_ppl as gp


@gp.register_dataclass
@dataclasses.dataclass(frozen=True)
class One:
    value: float
    power: int = dataclasses.field(default=1, metadata={"static": True})


@gp.register_dataclass
@dataclasses.dataclass(frozen=True)
class Other(One):
    pass


def _pytree_classes():
    """Dataclasses of the package that have leaves of their own."""
    names = [m.name for m in pkgutil.walk_packages(gp.__path__, "svgp_ppl.")]
    modules = [
        importlib.import_module(name) for name in names if "__main__" not in name
    ]
    classes = {c for module in modules for c in vars(module).values() if _is_class(c)}
    for cls in filter(_is_concrete, classes):
        tree = object.__new__(cls)
        for field in dataclasses.fields(cls):
            object.__setattr__(tree, field.name, None)
        if not jax.tree_util.all_leaves([tree]):
            yield cls, jax.tree.structure(tree, is_leaf=lambda x: x is None)


def _is_concrete(cls):
    return dataclasses.is_dataclass(cls) and not inspect.isabstract(cls)


def _is_class(value):
    return inspect.isclass(value) and value.__module__.startswith("svgp_ppl")


def test_structures_tell_the_classes_of_the_package_apart():
    classes = list(_pytree_classes())
    assert len(classes) > 30
    for (one, a), (other, b) in itertools.combinations(classes, 2):
        assert a != b, (one, other)


def test_programs_of_one_class_are_not_run_for_another():
    """Hashes of structures change from process to process, equality does not."""
    assert jax.tree.structure(One(2.0)) != jax.tree.structure(Other(2.0))
    assert jax.tree.structure(One(2.0)) == jax.tree.structure(One(3.0))
    assert jax.tree.structure([One(2.0)]) != jax.tree.structure([Other(2.0)])


def test_static_fields_belong_to_the_structure():
    assert jax.tree.structure(One(2.0, 1)) != jax.tree.structure(One(2.0, 2))
    assert jax.tree.leaves(One(2.0, 7)) == [2.0]
    slope = jax.jit(jax.grad(lambda one: one.value**one.power))(One(3.0, 2))
    assert slope == One(jnp.asarray(6.0), 2)
    np.testing.assert_allclose(slope.value, 6.0)


def test_paths_name_the_fields():
    ((path, value),) = jax.tree.leaves_with_path([Other(2.0)])
    assert jax.tree_util.keystr(path) == "[0].value"
    assert value == 2.0


def test_what_is_computed_from_other_fields_is_no_leaf():
    @gp.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Squared:
        value: float
        square: float = dataclasses.field(init=False)

        def __post_init__(self):
            object.__setattr__(self, "square", self.value**2)

    assert jax.tree.leaves(Squared(3.0)) == [3.0]
    assert jax.tree.map(lambda v: v + 1.0, Squared(3.0)).square == 16.0


def test_other_classes_are_refused():
    with pytest.raises(TypeError, match=r"expected a dataclass, got .*int"):
        gp.register_dataclass(int)


def test_equal_is_of_equal_values():
    """Where fields hold arrays, whose == is an array."""
    kernels, gaussian = gp.kernels, gp.likelihoods.Gaussian
    row = np.array([1.0, 2.0])

    def both(scale):
        return kernels.RBF(1.0, jnp.asarray(row)) + kernels.Matern32(scale, row)

    assert both(2.0) == both(2.0) and both(2.0) in [both(2.0)]
    assert both(2.0) != both(3.0) and both(2.0) != kernels.RBF(1.0, row)
    assert gaussian(row) == gaussian(jnp.asarray(row))
    for other in (row[::-1], 1.0, np.ones(3), row[:1]):
        assert gaussian(row) != gaussian(other) and gaussian(other) != gaussian(row)
    assert gaussian(0.5) == gaussian(0.5) and gaussian(0.5) != None  # noqa: E711
    assert hash(gaussian(0.5)) == hash(gaussian(0.5))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(lambda scale: gaussian(scale) == gaussian(scale + 1.0))(row)
