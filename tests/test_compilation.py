"""What is compiled, how often, and what it keeps alive."""

import gc
import types
import weakref
from dataclasses import dataclass
from functools import partial

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax import random
from jax.scipy.stats import cauchy, norm
from numpyro.handlers import condition, substitute
from numpyro.infer.autoguide import AutoNormal

import svgp_ppl as gp
from svgp_ppl.fitting import steps as fitting_steps
from svgp_ppl.mcmc.chains import phases
from svgp_ppl.mcmc.target import Target
from svgp_ppl.runtime import compilation
from tests.models import COUNTS_X, COUNTS_Y, Walk, counts_z

COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: (
        COMPILED.append(seconds)
        if name == "/jax/core/compile/backend_compile_duration"
        else None
    )
)


def make_model():
    """The README's model, a new function with every call."""
    z_start = counts_z()

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(1.0, 0.3))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.1, 0.1))
        kernel = gp.kernels.RBF(variance=variance, lengthscale=lengthscale)
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", kernel, z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    return model


def fit(model, guide=None, x=COUNTS_X, y=COUNTS_Y, num_steps=20):
    guide = gp.AutoGaussian(model) if guide is None else guide
    options = {"num_steps": num_steps, "progress": False}
    return gp.fit(random.key(0), model, guide, x, y, **options)


def sample(model, init, x=COUNTS_X, y=COUNTS_Y):
    options = {"num_chains": 2, "num_warmup": 6, "num_samples": 7, "progress": False}
    return gp.sample(random.key(1), model, x, y, sampler=Walk(), init=init, **options)


def compilations(function):
    """What ``function()`` returns, and how many programs it compiled."""
    before = len(COMPILED)
    result = function()
    jax.block_until_ready(jax.tree.leaves(result))
    return result, len(COMPILED) - before


# Other data of the same shapes.
OTHER = {"x": COUNTS_X + 0.1, "y": COUNTS_Y + 1}


def test_a_first_fit_compiles_few_programs_and_a_second_none():
    model = make_model()
    guide = gp.AutoGaussian(model)
    _, first = compilations(lambda: fit(model, guide))
    assert 0 < first <= 20
    assert compilations(lambda: fit(model, guide))[1] == 0
    assert compilations(lambda: fit(model, guide, **OTHER))[1] == 0
    # Any number of steps is one program, for blocks of one size.
    assert compilations(lambda: fit(model, guide, num_steps=15))[1] == 0
    # A new guide, and a notebook's cell that is run again: traced, not compiled.
    assert compilations(lambda: fit(model))[1] == 0
    assert compilations(lambda: fit(make_model()))[1] == 0


def test_a_guide_for_the_rest_is_set_up_without_the_processes():
    model = make_model()
    guide = gp.AutoGaussian(model, rest=AutoNormal)
    _, first = compilations(lambda: fit(model, guide))
    assert 0 < first <= 60
    assert compilations(lambda: fit(model, guide))[1] == 0


def test_fits_of_other_data_are_not_traced_again(monkeypatch):
    model, lowered, of = make_model(), [], compilation._lowered

    def counted(function, *args):
        lowered.append(function.__qualname__)
        return of(function, *args)

    monkeypatch.setattr(compilation, "_lowered", counted)
    options = {"num_steps": 20, "progress": False}
    for guide in ([], [gp.AutoGaussian(model)]):
        gp.fit(random.key(0), model, *guide, COUNTS_X, COUNTS_Y, **options)
        assert any(name.startswith("Steps") for name in lowered)
        lowered.clear()
        gp.fit(random.key(0), model, *guide, *OTHER.values(), **options)
        # Without a guide there is a new one, which looks for its point estimates.
        assert not any(name.startswith("Steps") for name in lowered)
        assert len(lowered) == (not guide)
        lowered.clear()


def test_a_second_sample_compiles_nothing(monkeypatch):
    looks, logdensity_fn = [], Target.logdensity_fn

    def counted(self, *args):
        looks.append(None)
        return logdensity_fn(self, *args)

    monkeypatch.setattr(Target, "logdensity_fn", counted)
    model = make_model()
    fitted = fit(model)
    _, first = compilations(lambda: sample(model, fitted))
    assert 0 < first <= 25
    # One for the coordinates; the start of the chains, warm-up and draws share one.
    assert len(looks) == 2
    assert compilations(lambda: sample(model, fitted))[1] == 0
    assert compilations(lambda: sample(model, fitted, **OTHER))[1] == 0
    again = make_model()
    init = fit(again).guide, fitted.params
    assert compilations(lambda: sample(again, init))[1] == 0


@pytest.mark.parametrize(
    "from_draws", [pytest.param(False, marks=pytest.mark.slow), True]
)
def test_second_predictions_compile_nothing(from_draws):
    model = make_model()
    posterior = fit(model)
    posterior = sample(model, posterior) if from_draws else posterior

    def everything(x=COUNTS_X, y=COUNTS_Y):
        at_x = gp.predict(model, posterior, x)["y"]
        paths = gp.draw_functions(random.key(1), model, posterior, x, num_draws=3)
        moments = at_x.mean, at_x.latent_variance, at_x.latent_covariance
        return moments, at_x.log_prob(y), at_x.sample(random.key(0), 5), paths

    _, first = compilations(everything)
    assert first > 0
    assert compilations(everything)[1] == 0
    assert compilations(lambda: everything(**OTHER))[1] == 0
    at_x = gp.predict(model, posterior, COUNTS_X)["y"]
    for _ in range(2):
        assert compilations(lambda: at_x.log_prob(COUNTS_Y))[1] == 0


@pytest.mark.thorough
def test_an_identical_prediction_runs_the_model_once(monkeypatch):
    """To check the arguments; not to compute anything, nor to draw data."""
    model, runs = make_model(), []
    fitted = fit(model)

    def counted(*args, **kwargs):
        runs.append(None)
        return model(*args, **kwargs)

    def predict():
        return gp.predict(counted, (fitted.guide, fitted.params), COUNTS_X)["y"].mean

    predict()
    runs.clear()
    monkeypatch.setattr(gp.Expected, "sample", None)
    predict()
    assert len(runs) == 1


@pytest.mark.thorough
def test_no_data_outlive_their_call():
    model = make_model()
    fitted = fit(model)

    def alive_after(call):
        x, y = jnp.asarray(COUNTS_X) + 0.0, jnp.asarray(COUNTS_Y, float)
        references = [weakref.ref(x), weakref.ref(y)]
        result = call(x, y)
        del x, y
        gc.collect()
        return result, sum(reference() is not None for reference in references)

    assert alive_after(lambda x, y: fit(model, None, x, y))[1] == 0
    assert alive_after(lambda x, y: sample(model, fitted, x, y))[1] == 0
    assert alive_after(lambda x, y: gp.predict(model, fitted, x)["y"].mean)[1] == 0


def test_programs_go_with_their_model():
    model = make_model()
    fitted = fit(model)
    kept = len(compilation._found)
    reference = weakref.ref(model)
    del model, fitted
    gc.collect()
    assert reference() is None
    assert len(compilation._found) < kept


@pytest.mark.slow
def test_memory_is_flat_over_fits():
    def programs_after_fit():
        fit(make_model())
        gc.collect()
        programs = len(compilation._found), len(compilation._compiled)
        return *programs, len(gc.get_objects())

    programs_after_fit()
    first = programs_after_fit()
    for _ in range(5):
        last = programs_after_fit()
    assert last[:2] == first[:2]
    assert last[2] < first[2] + 500


# ------------------------------------------------------------------------- the programs


def test_closed_over_arrays_are_arguments():
    def adder(value):
        shift = jnp.full(3, value)
        return lambda x: x + shift

    one, two = adder(1.0), adder(2.0)
    assert np.all(compilation.call(one, ("add", one), jnp.zeros(3)) == 1.0)
    result, count = compilations(
        lambda: compilation.call(two, ("add", two), jnp.zeros(3))
    )
    assert count == 0
    assert np.all(result == 2.0)


def test_shapes_and_options_make_programs():
    def program(x, made_of):
        return compilation.find(lambda x: 2 * x, made_of, x).found

    x = jnp.ones(3)
    first = program(x, ("double", 1))
    assert program(x, ("double", 1)) is first
    assert program(x, ("double", True)) is not first
    assert program(jnp.ones(4), ("double", 1)) is not first
    assert program(jnp.ones(3, int), ("double", 1)) is not first
    # Values to which there are no weak references.
    of_numpy = program(x, (np.int64(1), range(3), frozenset("ab")))
    assert program(x, (np.int64(1), range(3), frozenset("ab"))) is of_numpy
    assert program(x, (np.int64(2), range(3), frozenset("ab"))) is not of_numpy


FACTOR = 1.0
TABLE = np.ones(3)


def scaled(x):
    return FACTOR * x


def test_what_a_function_reads_is_part_of_its_program(monkeypatch):
    def through_a_helper(x):
        return scaled(x) + jnp.asarray(TABLE) + shift

    def run():
        made_of = ("reads", through_a_helper)
        return float(compilation.call(through_a_helper, made_of, jnp.ones(3))[0])

    shift = 0.0
    assert run() == 2.0
    monkeypatch.setitem(globals(), "FACTOR", 5.0)  # a global, read by a helper
    assert run() == 6.0
    monkeypatch.setitem(globals(), "TABLE", np.full(3, 10.0))
    assert run() == 15.0
    TABLE[0] = 20.0  # written into
    assert run() == 25.0
    shift = 100.0  # of the surrounding function
    assert run() == 125.0


class Scaling:
    """Code that reads a global, as an object, by a method and through its class."""

    def __call__(self, x):
        return FACTOR * x

    def method(self, x):
        return self(x)

    @staticmethod
    def of_class(x):
        return FACTOR * x


class Inherits(Scaling):
    pass


HELD = partial(scaled)


@pytest.mark.parametrize(
    "code",
    [
        partial(scaled),
        Scaling(),
        Inherits().method,
        condition(scaled, data={}),
        lambda x: Scaling()(x),
        lambda x: Inherits.of_class(x),
        lambda x: HELD(x),
    ],
    ids=["partial", "object", "method", "handler", "class", "inherited", "held"],
)
def test_what_other_code_reads_is_part_of_its_program(monkeypatch, code):
    def run():
        return float(
            compilation.find(code, ("reads", code), jnp.ones(3))(jnp.ones(3))[0]
        )

    before = compilation.find(code, ("reads", code), jnp.ones(3)).found
    assert compilation.find(code, ("reads", code), jnp.ones(3)).found is before
    assert run() == 1.0
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert run() == 5.0


@dataclass
class Settings:
    """A value that methods read from their object."""

    factor: float = 1.0

    def scaled(self, x):
        return self.factor * x

    __call__ = scaled


class Constants:
    factor = 1.0


def scaled_by(settings, x):
    return settings.factor * x


class Computed(Constants):
    """A value that is read by other names than its own, or by none."""

    @property
    def computed(self):
        return self.factor

    @classmethod
    def of_class(cls):
        return cls.factor

    def __getitem__(self, name):
        return self.factor


class Slotted:
    __slots__ = ("factor",)

    def __init__(self):
        self.factor = 1.0


class Served:
    """Attributes in a dictionary, as the configurations of several packages have."""

    __module__ = "configuration"

    def __init__(self):
        vars(self)["_fields"] = {"factor": 1.0}

    def __getattr__(self, name):
        if name not in vars(self)["_fields"]:
            raise AttributeError(name)
        return self._fields[name]

    def __setattr__(self, name, value):
        self._fields[name] = value

    def __delattr__(self, name):
        del self._fields[name]


SETTINGS, CONFIGURATION = Settings(), types.ModuleType("configuration")
CONFIGURATION.factor = 1.0
COMPUTED, SLOTTED, SERVED = Computed(), Slotted(), Served()


@pytest.mark.parametrize(
    "code, owner",
    [
        (lambda x: SETTINGS.factor * x, SETTINGS),
        (lambda x: scaled_by(SETTINGS, x), SETTINGS),
        (partial(scaled_by, SETTINGS), SETTINGS),
        (SETTINGS.scaled, SETTINGS),
        (SETTINGS, SETTINGS),
        (lambda x: Constants.factor * x, Constants),
        (lambda x: scaled_by(Constants(), x), Constants),
        (lambda x: CONFIGURATION.factor * x, CONFIGURATION),
        (lambda x: COMPUTED.factor * x, Constants),
        (lambda x: COMPUTED.computed * x, COMPUTED),
        (lambda x: COMPUTED.of_class() * x, Computed),
        (lambda x: COMPUTED["any"] * x, COMPUTED),
        (lambda x: SLOTTED.factor * x, SLOTTED),
        (lambda x: SERVED.factor * x, SERVED),
    ],
    ids=[
        "global",
        "helper",
        "partial",
        "method",
        "object",
        "class",
        "its",
        "module",
        "inherited",
        "property",
        "classmethod",
        "item",
        "slots",
        "served",
    ],
)
def test_attributes_that_are_set_anew_are_seen(monkeypatch, code, owner):
    def find():
        return compilation.find(code, ("attributes", code), jnp.ones(3))

    before = find()
    assert find().found is before.found
    assert before(jnp.ones(3))[0] == 1.0
    monkeypatch.setattr(owner, "factor", 5.0)
    assert find()(jnp.ones(3))[0] == 5.0


def test_objects_may_lead_back_to_each_other():
    one, other = Settings(), Settings()
    one.scaled, other.scaled = other, one
    assert compilation.find(one, ("each other", one), jnp.ones(3))(jnp.ones(3))[0] == 1


def test_a_handler_around_a_call_is_part_of_its_program():
    def run():
        def model():
            return numpyro.param("value", jnp.ones(()))

        return float(compilation.call(model, ("handled",)))

    assert run() == 1.0
    with substitute(data={"value": 2.0}):
        assert run() == 2.0
    assert run() == 1.0


def shifted(x):
    return x + 1.0


HELPER, KERNEL, MODULE = shifted, gp.kernels.RBF, norm


def test_helpers_classes_and_modules_under_the_same_name(monkeypatch):
    def reads_names(x):
        return HELPER(x) + KERNEL(2.0, 1.0)(x) + MODULE.logpdf(x)

    def run():
        made_of = ("names", reads_names)
        x = jnp.asarray([[0.5], [1.5]])
        result = compilation.call(reads_names, made_of, x)
        np.testing.assert_allclose(result, reads_names(x), rtol=1e-6)
        return result[0, 1].item()

    def elsewhere(x):
        return x + 3.0

    elsewhere.__module__ = "elsewhere"
    values = {run()}
    for name, value in (
        ("HELPER", lambda x: x + 2.0),  # of this module
        ("HELPER", elsewhere),
        ("KERNEL", gp.kernels.Matern12),
        ("MODULE", cauchy),
    ):
        monkeypatch.setitem(globals(), name, value)
        values.add(run())
    assert len(values) == 5


@pytest.mark.parametrize("of", [pd.Series, np.ma.asarray, lambda y: y.astype("U8")])
def test_tables_and_texts_that_are_written_into(of):
    def total(held):
        return jnp.asarray(np.asarray(held, float)).sum()

    def run():
        return float(compilation.find(lambda: total(held), ("table", held))())

    held = of(np.arange(3.0))
    assert run() == run() == 3.0
    held[0] = "7.0" if isinstance(held[1], str) else 7.0
    assert run() == 10.0


def test_functions_around_a_function_may_lead_back_to_it():
    def run(x):
        return table["scale"] * x + len(table["steps"])

    table = {"scale": 2.0, "steps": [run, lambda x: run(x)]}
    found = compilation.find(run, ("leads back", run), jnp.ones(3))
    assert found(jnp.ones(3))[0] == 4.0
    table["scale"] = 3.0
    again = compilation.find(run, ("leads back", run), jnp.ones(3))
    assert again(jnp.ones(3))[0] == 5.0


@pytest.mark.thorough
def test_a_fit_sees_what_its_model_reads_now(monkeypatch):
    monkeypatch.setitem(globals(), "TABLE", counts_z())

    def model(x, y=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(FACTOR, 0.9), TABLE)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    guide = gp.AutoGaussian(model)
    first = fit(model, guide).losses
    np.testing.assert_array_equal(fit(model, guide).losses, first)
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert fit(model, guide).losses[0] != first[0]


@pytest.mark.thorough
def test_a_fit_sees_what_is_set_in_an_object_among_the_arguments():
    def model(x, y=None, settings=None):
        f = gp.sparse_gp("f", gp.kernels.RBF(settings.factor, 0.9), counts_z())
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    def last():
        given = {"settings": settings, "num_steps": 2, "progress": False}
        args = random.key(0), model, guide, COUNTS_X, COUNTS_Y
        return gp.fit(*args, **given).losses[-1]

    guide, settings = gp.AutoGaussian(model), Settings()
    first = last()
    settings.factor = 2.0
    assert last() != first


def test_inside_of_a_trace_a_call_is_part_of_it():
    def outer(x):
        return compilation.call(lambda x: jnp.sin(x), ("sine",), x)

    assert jax.grad(outer)(0.0) == 1.0


def test_the_cache_on_disk_is_filled(tmp_path):
    before = {
        name: getattr(jax.config, name)
        for name in (
            "jax_compilation_cache_dir",
            "jax_persistent_cache_min_compile_time_secs",
            "jax_persistent_cache_min_entry_size_bytes",
        )
    }
    try:
        folder = gp.cache_compilations(tmp_path / "programs")
        jax.jit(lambda x: jnp.tanh(x) * 1.2345)(jnp.ones(17))
        assert list(folder.iterdir())
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_sums_beside_products_with_the_data_are_compiled_rightly():
    """jaxlib 0.10.2 fuses them wrongly in float32, as in log p of dist.Beta."""

    def difference(f, y):
        return jnp.sum(y * (f - 1.0), axis=-1) - jnp.sum(jnp.exp(f), axis=-1)

    rng = np.random.default_rng(0)
    f = rng.normal(size=(128, 300, 4)).astype(np.float32)
    y = rng.normal(size=(300, 4)).astype(np.float32)
    exact = np.sum(y * (f - 1.0), axis=-1) - np.sum(np.exp(f), axis=-1)
    found = compilation.call(difference, ("a difference",), f, y)
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", [32], indirect=True)
def test_loops_over_many_rows_are_compiled_for_long(precision, monkeypatch):
    uses, compiled = [], compilation._compile

    def noting(lowered, *use):
        uses.append(use)

        def compile(options):
            has_slow_loops = "xla_cpu_use_fusion_emitters" in options
            assert not (use == (False, True) and has_slow_loops)
            return lowered.compile(options)

        return compiled(types.SimpleNamespace(compile=compile), *use)

    monkeypatch.setattr(compilation, "_compile", noting)
    for module in (fitting_steps, phases):
        monkeypatch.setattr(module, "_MANY_ROWS", len(COUNTS_X))
    x, y = COUNTS_X.copy(), COUNTS_Y.copy()  # those of other tests are of float64
    model = make_model()
    fitted = fit(model, x=x, y=y)
    assert uses.count((False, True)) == 1
    sample(model, fitted, x=x, y=y)
    assert uses.count((False, True)) > 1

    assert not compilation.has_many_rows([x[1:], np.zeros(())], len(x))
    with jax.enable_x64(True):
        assert not compilation.has_many_rows(x, len(x))
