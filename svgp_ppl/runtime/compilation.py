"""Programs: compiled once for what determines them, and found again.

``jax.jit`` finds a program by the function object: a closure made at every call is
compiled at every call, and the values it closes over live as long as the program.
Here a program keeps neither a model nor data alive, and is found in two ways:

1. by what its caller says determines it (a model, a sampler, options), and by the
   shapes of its arguments: it is not even traced again;
2. by its lowered text, every array around it an argument: a function defined anew with
   the same code is traced and not compiled.
"""

import hashlib
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer, eval_jaxpr
from numpyro.handlers import block, seed, trace
from numpyro.primitives import _PYRO_STACK

from svgp_ppl.rows import is_array, is_table
from svgp_ppl.rows.sharding import (
    as_array,
    automatic,
    device_ids,
    local,
    placed,
    rows_spread_like,
    signature,
)
from svgp_ppl.runtime.identity import Identities, mentions
from svgp_ppl.runtime.indices import warn_of_rows_beyond

__all__ = [
    "TRACING",
    "Program",
    "as_jax_arrays",
    "cache_compilations",
    "call",
    "find",
    "forget_programs",
    "has_many_rows",
    "inspected",
    "look",
    "partition",
    "static_part",
    "traced_once",
]

# Programs of either kind that are remembered; enough for a whole session of work.
_MOST_PROGRAMS = 256

# NumPyro's stack of handlers is global: one model is traced at a time.
TRACING = threading.RLock()

# What JAX says of a table as an index, and as an argument of jnp.take.
_REFUSALS = "are valid indices", "valid JAX type", "abstract array"

# Options of XLA, more of them for programs that do not run long, and more again for
# those that are run once (record 0015). They are not part of any interface: one that
# this XLA does not know is taken out. Some fusions of YNN are wrong in jaxlib 0.10.2:
# there are none.
_options: dict[str, Any] = {"xla_cpu_experimental_ynn_fusion_type": ""}
_sooner: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}
_quickly: dict[str, Any] = {"xla_backend_optimization_level": 0}

_found: OrderedDict[tuple, "_Found"] = OrderedDict()
_compiled: OrderedDict[str, Any] = OrderedDict()


class _Found(NamedTuple):
    """The stored parts of a program.

    Attributes:
        executable: The compiled program, of two flat lists: constants and arguments.
        constants: The arrays that the function closes over.
        out_tree: Structure of its result.
    """

    executable: Any
    constants: list
    out_tree: Any


class Program(NamedTuple):
    """A compiled function; call it with arguments like those it was found for.

    Attributes:
        found: Its stored parts.
        seconds: Time to find it (and to trace and compile it).
    """

    found: _Found
    seconds: float

    def __call__(self, *args) -> Any:
        """The result of the function."""
        return self.bound(*args)()

    def bound(self, *args) -> Callable[[], Any]:
        """The call, with arrays made in this thread as arguments, and its settings."""
        flat = [as_array(leaf) for leaf in jax.tree.leaves(args)]
        run, constants, out_tree = self.found
        return lambda: out_tree.unflatten(run(constants, flat))


def call(function: Callable, made_of: tuple, *args, runs_once: bool = False) -> Any:
    """``function(*args)``, compiled at most once; inside a trace, part of it.

    The arguments are those of :func:`find`. If they are on several devices, the result
    is on one.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args)):
        return function(*args)
    return local(find(function, made_of, *args, runs_once=runs_once)(*args))


def find(
    function: Callable,
    made_of: tuple,
    *args,
    runs_once: bool = False,
    runs_long: bool = False,
) -> Program:
    """The program of a function for such arguments; compiled if there is none.

    If the arguments are on several devices, each of those gets the whole result.

    Args:
        function: Function of arrays and trees of arrays. Only its code and the values
            it closes over matter: it is traced, and not kept.
        made_of: What determines the function, besides the shapes of its arguments.
            Plain values and frozen dataclasses are compared, everything else is taken
            by identity and not kept alive. Include a string that names the program.
        *args: Example arguments.
        runs_once: Whether it is called only once or twice, so that compiling in half
            the time matters more than running in a third of it.
        runs_long: Whether it runs for so long that compiling in three quarters of the
            time matters less than loops that may take twice as long.
    """
    began = time.perf_counter()
    leaves, in_tree = jax.tree.flatten(args)
    flat = [as_array(leaf) for leaf in leaves]
    identity = Identities(_forget).of((made_of, _handlers()))
    key = (identity, in_tree, tuple(map(signature, flat)), _settings())
    with TRACING:
        found = _found.get(key)
        if found is None:
            found = _lowered(function, in_tree, flat, (runs_once, runs_long))
            _remember(_found, key, found)
        else:
            _found.move_to_end(key)
    return Program(found, time.perf_counter() - began)


def has_many_rows(arrays: Any, number: int) -> bool:
    """Whether loops over these arrays gain from compiling them for longer.

    Loops without XLA's fusion emitters are not vectorised where they write into one of
    their arguments; in double precision that hardly shows (record 0015).

    Args:
        arrays: Tree of the arrays.
        number: Of rows of one of them, from which the time is made up for.
    """
    rows = (leaf.shape[0] for leaf in jax.tree.leaves(arrays) if jnp.ndim(leaf))
    return jnp.result_type(float) == jnp.float32 and max(rows, default=0) >= number


def inspected(function: Callable, *args) -> Any:
    """Facts that ``function(*args)`` returns when it is traced; nothing is computed.

    Args:
        function: Returns plain facts (names, shapes, flags), no arrays. The values it
            closes over are concrete, and can be checked as well.
        *args: Arrays and trees of arrays, of which it sees only the shapes.
    """
    return _inspected(function, *args)[0]


def _inspected(function: Callable, *args) -> tuple[Any, Any]:
    """The facts, and the operations that were traced for them."""
    facts = []
    with TRACING:
        traced = jax.make_jaxpr(lambda *args: facts.append(function(*args)))(*args)
    return facts[0], traced


def traced_once(function: Callable, *args) -> tuple[Callable, Any]:
    """``function`` as its traced operations, and the shapes of its result.

    For a function that takes long to trace and is traced again with the same shapes,
    such as the body of a loop.

    Args:
        function: Function of arrays and trees of arrays.
        *args: Arguments with the shapes of later calls.
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    structure = jax.tree.structure(shapes)

    def operations(*args):
        leaves = eval_jaxpr(traced.jaxpr, traced.consts, *jax.tree.leaves(args))
        return structure.unflatten(leaves)

    return operations, shapes


def look(function: Callable, args: tuple, kwargs: dict[str, Any], *traced) -> Any:
    """Facts that ``function(args, kwargs, *traced)`` returns; nothing is computed.

    Warns of rows that a model takes from beyond the end of an array.

    Args:
        function: Returns plain facts, no arrays.
        args: Arguments of a model, which keep their values and can be checked.
        kwargs: Its keyword arguments, likewise.
        *traced: Arrays and trees of arrays, of which only the shapes are seen.
    """
    args, kwargs = jax.tree.map(automatic, (args, kwargs))
    with _naming_tables(args, kwargs):
        try:
            facts, operations = _inspected(partial(function, args, kwargs), *traced)
        except jax.errors.TracerArrayConversionError:
            # Traced indices work on JAX's arrays, but not on those of NumPy.
            args, kwargs = as_jax_arrays(args, kwargs)
            facts, operations = _inspected(partial(function, args, kwargs), *traced)
    warn_of_rows_beyond(operations)
    return facts


@contextmanager
def _naming_tables(args: tuple, kwargs: dict[str, Any]) -> Iterator[None]:
    """Say which arguments a model cannot compute with; JAX knows them as constants."""
    try:
        yield
    except (TypeError, IndexError) as error:
        is_traced = isinstance(error, jax.errors.TracerArrayConversionError)
        is_of_jax = is_traced or any(words in str(error) for words in _REFUSALS)
        tables = [leaf for leaf in jax.tree.leaves((args, kwargs)) if is_table(leaf)]
        if not (is_of_jax and tables):
            raise
        kinds = ", ".join(sorted({type(table).__name__ for table in tables}))
        raise ValueError(
            "the model computes with an argument that is no array; those that are "
            f"none: {kinds}. Give it the numbers, such as column.to_numpy(), or "
            "column.cat.codes.to_numpy() of categories."
        ) from error


def forget_programs() -> None:
    """Forget all programs that were compiled here."""
    with TRACING:
        _found.clear()
        _compiled.clear()


def cache_compilations(folder: str | os.PathLike | None = None) -> Path:
    """Keep compiled programs on disk, for the next process.

    Sets JAX's persistent compilation cache for everything this process compiles from
    now on, small programs included (JAX's own threshold of one second skips most of
    them): a script that is started again then compiles next to nothing.

    Args:
        folder: Where to keep them; by default ``svgp_ppl`` in the user's cache folder.
            It grows without bound and may be deleted at any time.

    Returns:
        The folder.

    Example:
        >>> import svgp_ppl as gp
        >>> folder = gp.cache_compilations()
    """
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "svgp_ppl"
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


# ------------------------------------------------------------ the arguments of a model


def partition(args: tuple, kwargs: dict[str, Any]) -> tuple[list, Callable, tuple]:
    """The arguments of a model, split into arrays and the rest.

    Arrays are passed to programs as arguments, so that data are never constants of
    compiled code; flags, sizes and None stay Python values.

    Returns:
        The arrays; a function ``combine(arrays) -> (args, kwargs)``; and what else
        determines the arguments, for ``made_of``.
    """
    leaves, static = jax.tree.leaves((args, kwargs)), static_part(args, kwargs)
    arrays = [as_array(leaf) for leaf in leaves if is_array(leaf)]
    return arrays, partial(_combined, *static), static


def _combined(structure: Any, rest: tuple, arrays: list) -> tuple[tuple, dict]:
    """The arguments of a model, of arrays and the rest."""
    waiting = iter(arrays)
    full = [next(waiting) if leaf is None else leaf[0] for leaf in rest]
    return jax.tree.unflatten(structure, full)


def as_jax_arrays(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict]:
    """The arguments with JAX's arrays, which accept traced indices."""

    def convert(leaf):
        return as_array(leaf) if is_array(leaf) else leaf

    return jax.tree.map(convert, (args, kwargs))


def static_part(args: tuple, kwargs: dict[str, Any]) -> tuple:
    """What else determines the arguments of a model, for ``made_of``."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    return structure, tuple(None if is_array(leaf) else (leaf,) for leaf in leaves)


# ------------------------------------------------------------------------- compilation


def _lowered(
    function: Callable, in_tree: Any, flat: list, use: tuple[bool, bool]
) -> _Found:
    """Trace a function and compile it, unless the same text was compiled before."""
    out_trees = []

    def of_leaves(*leaves):
        result, out_tree = jax.tree.flatten(function(*in_tree.unflatten(leaves)))
        out_trees.append(out_tree)
        return result

    with rows_spread_like(flat):
        traced = jax.make_jaxpr(of_leaves)(*flat)
    constants = [as_array(constant) for constant in traced.consts]

    def of_lists(constants, leaves):
        return eval_jaxpr(traced.jaxpr, constants, *leaves)

    # Unused arguments are kept, so that the text shows their shapes too.
    where = placed(flat)
    lowered = jax.jit(of_lists, keep_unused=True, **where).lower(constants, flat)
    digest = hashlib.sha256(lowered.as_text().encode()).hexdigest()
    digest = f"{digest} {use} {_settings()} {device_ids(flat)}"
    executable = _compiled.get(digest)
    if executable is None:
        executable = _compile(lowered, *use)
        _remember(_compiled, digest, executable)
    return _Found(executable, constants, out_trees[-1])


def _compile(lowered: Any, runs_once: bool, runs_long: bool) -> Any:
    options = dict(_options)
    if not runs_long:
        options |= _sooner
    if runs_once:
        options |= _quickly
    try:
        return lowered.compile(options)
    except jax.errors.JaxRuntimeError as error:
        unknown = [name for name in options if name in str(error)]
        if not unknown:
            return lowered.compile()
        for name in unknown:
            for known in (_options, _sooner, _quickly):
                known.pop(name, None)
        return _compile(lowered, runs_once, runs_long)


def _remember(programs: OrderedDict, key: Any, value: Any) -> None:
    programs[key] = value
    while len(programs) > _MOST_PROGRAMS:
        programs.popitem(last=False)


def _handlers() -> tuple:
    """The handlers around the call that a run of a model inside of it meets."""
    return tuple(h for h in _PYRO_STACK if not isinstance(h, block | seed | trace))


def _settings() -> tuple:
    """Other settings that decide how a function is traced and compiled."""
    config: Any = jax.config
    return (
        config.jax_enable_x64,
        config.jax_default_matmul_precision,
        config.jax_default_device,
        config.read("jax_disable_most_optimizations"),
    )


def _forget(reference: weakref.ref) -> None:
    """Drop the programs of an object that is gone, with the arrays they close over."""
    for key in list(_found):
        if mentions(key[0], reference):
            _found.pop(key, None)
