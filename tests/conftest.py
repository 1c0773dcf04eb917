"""How programs are compiled while testing, and every test in its precision."""

import gc
import hashlib
import io
import os
import sys
import threading

# Test processes share the cores: threads of LAPACK would fight for them. Read by
# OpenBLAS when it is loaded, so it has to stand before the imports.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _keep_to_one_core():
    """Of as many processes as there are cores each has its own: a twentieth.

    Threads of XLA are made for the cores that a process has, so it has to be before.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ or sys.platform != "linux":
        return
    cores = sorted(os.sched_getaffinity(0))
    if int(os.environ["PYTEST_XDIST_WORKER_COUNT"]) == len(cores):
        number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


_keep_to_one_core()

import jax
import pytest
from jaxtyping import config as jaxtyping_config
from jaxtyping import install_import_hook

# Most tests run for milliseconds what takes seconds to compile.
jax.config.update("jax_disable_most_optimizations", True)


def _override_compiler_options():
    """Beside jax_disable_most_optimizations: a half to a sixth of what is left of it.

    No fusion emitters, and one piece a program, which LLVM compiles in half the time.
    JAX has no setting for options of XLA that can be changed again, and XLA_FLAGS
    would hold for the tests with the user's settings too.

    Returns:
        What XLA_FLAGS has to be for the same in another process.
    """
    from jax._src import compiler

    options_of = compiler.get_compile_options
    ours = {
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_parallel_codegen_split_count": 1,
    }

    def with_override(*args, env_options_overrides=None, **kwargs):
        overrides = dict(env_options_overrides or {})
        if jax.config.read("jax_disable_most_optimizations"):
            overrides = ours | overrides
        return options_of(*args, env_options_overrides=overrides, **kwargs)

    compiler.get_compile_options = with_override
    while ours:
        try:
            jax.jit(lambda x: x + 1).lower(1.0).compile()
            break
        except jax.errors.JaxRuntimeError as error:  # the tests pass without them
            unknown = [name for name in ours if name in str(error)] or list(ours)
        for name in unknown:
            del ours[name]
    return " ".join(f"--{name}={str(value).lower()}" for name, value in ours.items())


XLA_FLAGS = _override_compiler_options()


def _share_contexts():
    """One MLIR context for many programs: a new one takes a fifth of a small program.

    One a thread, and another after 500 programs, whose constants stay in it. A program
    that is lowered within another has its own.
    """
    try:
        from jax._src.interpreters import mlir
        from jax._src.lib.mlir import ir

        make, held = mlir.make_ir_context, threading.local()
    except (ImportError, AttributeError):  # the tests pass without it
        return

    def shared():
        if ir.Context.current is not None:
            return make()
        held.uses = getattr(held, "uses", 0) + 1
        if held.uses % 500 == 1:
            held.context = make()
        return held.context

    mlir.make_ir_context = shared


_share_contexts()


def _forget_locations():
    """What an operation was traced from is for the programs of users: a thirtieth."""
    try:
        from jax._src.interpreters import mlir
        from jax._src.lib.mlir import ir
    except ImportError:  # the tests pass without it
        return
    mlir.source_info_to_location = lambda *_, **__: ir.Location.unknown()


_forget_locations()

_executables = {}


def _share_executables():
    """What was lowered to the same program is compiled once: one in eight is."""
    try:
        from jax._src import compiler

        build = compiler.backend_compile_and_load
    except (ImportError, AttributeError):  # the tests pass without it
        return

    def shared(backend, module, devices, options, callbacks):
        def made():
            return build(backend, module, devices, options, callbacks)

        if callbacks:  # are of this program alone
            return made()
        text = io.BytesIO()
        module.operation.write_bytecode(text)
        digest = hashlib.blake2b(text.getvalue()).digest()
        key = id(backend), digest, options.SerializeAsString()  # with its devices
        if key not in _executables:
            _executables[key] = made()
        return _executables[key]

    compiler.backend_compile_and_load = shared


_share_executables()

# Programs are millions of objects that stay: to look at them again and again took a
# tenth of the time.
gc.set_threshold(100_000, 20, 100)


def pytest_addoption(parser):
    parser.addoption(
        "--annotations",
        action="store_true",
        help="check shapes and types in annotations at every call",
    )
    parser.addoption(
        "--piece",
        default="1/1",
        help="run every n-th test, from the i-th one on (i/n)",
    )


def pytest_collection_finish():
    """What was imported stays, and is not looked at again: a fiftieth."""
    gc.freeze()


def pytest_configure(config):
    """The annotations of the package cannot lie; a fifth of the time of the tests."""
    if config.getoption("annotations"):
        install_import_hook("svgp_ppl", "beartype.beartype")


@pytest.hookimpl(trylast=True)  # of what -m and -k leave, each piece gets its share
def pytest_collection_modifyitems(config, items):
    """Deal the tests out to the pieces; those in single precision come last."""
    items.sort(key=_is_single)
    piece, pieces = map(int, config.getoption("piece").split("/"))
    if not 1 <= piece <= pieces:
        raise pytest.UsageError(f"--piece {piece}/{pieces}: from 1 to {pieces}")
    others = [item for i, item in enumerate(items) if i % pieces != piece - 1]
    config.hook.pytest_deselected(items=others)
    items[:] = items[piece - 1 :: pieces]


def _is_single(item):
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("precision") == 32


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file stays in one process, as far as the others have work.

    They then share its fits, its draws and what it compiled.
    """
    from xdist.scheduler import WorkStealingScheduling

    is_default = config.getoption("dist") == "load"
    return WorkStealingScheduling(config, log) if is_default else None


_bits_before = None


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef):
    """What tests share is computed in float64, whichever test asks for it first."""
    global _bits_before
    result = yield
    if fixturedef.scope != "function" and _bits_before == 32:
        _bits_before = None
    return result


@pytest.fixture(autouse=True)
def precision(request):
    """float64 unless the test asks for another through ``both_precisions``."""
    global _bits_before
    bits = getattr(request, "param", 64)
    if bits != _bits_before:
        # JAX keeps what a NumPy array was converted to, in whichever precision.
        jax.clear_caches()
    _bits_before = bits
    with jax.enable_x64(bits == 64):
        yield bits


@pytest.fixture
def optimized():
    """Programs as users have them."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def optimized_when_slow(request):
    """Slow tests run for longer than they are compiled."""
    is_slow = request.node.get_closest_marker("slow") is not None
    if is_slow:
        request.getfixturevalue("optimized")
    yield
    if is_slow:
        _forget_programs_when_many()


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """What was compiled goes when there is too much of it."""
    yield
    _forget_programs_when_many()


def _forget_programs_when_many():
    """Programs fill gigabytes, and each is several mappings of memory.

    Linux allows a process 65,530 of those (vm.max_map_count); at the next program
    LLVM ends the process by a segmentation fault.
    """
    if _resident_memory() > 4e9 or _num_mappings() > 30_000:
        from svgp_ppl.runtime.compilation import forget_programs

        forget_programs()
        jax.clear_caches()
        _executables.clear()


def _num_mappings():
    """Mapped ranges of addresses; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/maps", "rb") as file:
        return sum(1 for _ in file)


def _resident_memory():
    """Bytes that are resident now; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def as_users_call():
    """Wrong types reach the package's own checks, as they do for users."""
    jaxtyping_config.update("jaxtyping_disable", True)
    yield
    jaxtyping_config.update("jaxtyping_disable", False)


both_precisions = pytest.mark.parametrize("precision", [32, 64], indirect=True)

# Where single precision is the harder one: double with the thorough tests.
single_first = pytest.mark.parametrize(
    "precision",
    [32, pytest.param(64, marks=pytest.mark.thorough)],
    indirect=True,
)

# Where the subject is not numerics: single precision with the slow tests.
mostly_double = pytest.mark.parametrize(
    "precision", [pytest.param(32, marks=pytest.mark.slow), 64], indirect=True
)

# Where rounding is what goes wrong: double precision with the slow tests.
mostly_single = pytest.mark.parametrize(
    "precision", [32, pytest.param(64, marks=pytest.mark.slow)], indirect=True
)
