"""Data on several devices: how rows are spread, and computing with them in place.

JAX partitions a program by the shardings of its arguments (SPMD): rows stay where they
are, M × M matrices are computed everywhere, and sums over rows are the only messages.
This module adds what else that needs: loops over blocks of rows that take a piece of
every device's rows at each turn, checks of values that leave the rows in place, and
results that are again ordinary arrays.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from svgp_ppl.rows.arrow import ArrowRows

__all__ = [
    "as_array",
    "automatic",
    "device_ids",
    "first_true",
    "free_axes",
    "in_blocks",
    "is_sharded",
    "local",
    "mesh_of",
    "over_same_devices",
    "placed",
    "rows_spread_like",
    "shard",
    "signature",
    "spans_processes",
]

# Number of parts that rows are in, in the program that is being traced.
_num_parts: ContextVar[int] = ContextVar("num_parts", default=1)


def shard(mesh: Mesh, *arrays: Any, axis: str | None = None) -> Any:
    """The arrays with their rows spread over an axis of a mesh of devices.

    ``jax.device_put(x, NamedSharding(mesh, PartitionSpec(axis)))`` for each of them.
    With several processes (``jax.distributed``) each passes the rows that it holds, the
    same number in all, and gets the array of all rows. ``fit``, ``sample`` and
    ``predict`` take the results like any other array.

    Args:
        mesh: Made by ``jax.make_mesh``.
        *arrays: Arrays with the same number of rows N on their first axis.
        axis: Name of an axis of the mesh; its first one if None.

    Returns:
        The array, or a tuple if there are several.

    Raises:
        ValueError: There is no such axis; numbers of rows differ, or are not a multiple
            of the number of parts. Leave rows out, or pad with any rows and mask those
            by ``observe(..., mask=known)``: the results are the same.

    Example:
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> x_spread, y_spread = gp.shard(mesh, x, y)
        >>> len(x_spread.sharding.device_set)
        1
    """
    axis = mesh.axis_names[0] if axis is None else axis
    if axis not in mesh.axis_names:
        raise ValueError(
            f"axis must be one of the axes of the mesh, {mesh.axis_names}, and is "
            f"{axis!r}."
        )
    lengths = {np.shape(array)[:1] for array in arrays}
    if len(lengths) != 1 or () in lengths:
        raise ValueError(
            "shard needs arrays with the same number of rows, and got shapes "
            f"{[np.shape(array) for array in arrays]}."
        )
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    here = {d for d in mesh.devices.flat if d.process_index == jax.process_index()}
    is_alone = len(here) == mesh.size
    parts = mesh.shape[axis]
    if not is_alone:
        parts = max(1, parts * len(here) // mesh.size)
    num_rows = len(arrays[0])
    if rest := num_rows % parts:
        raise ValueError(
            f"{num_rows} rows cannot be spread evenly over {parts} parts: leave "
            f"{rest} rows out, or add {parts - rest} and leave those out by "
            "observe(..., mask=known)."
        )
    put = jax.device_put if is_alone else _of_processes
    spread = tuple(put(array, sharding) for array in arrays)
    first, *others = spread
    return spread if others else first


def _of_processes(rows: Any, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_process_local_data(sharding, np.asarray(rows))


# ----------------------------------------------------------------- where an array lies


def is_sharded(value: Any) -> bool:
    """Whether it is an array on several devices."""
    is_array = isinstance(value, jax.Array) and not isinstance(value, Tracer)
    return is_array and len(value.sharding.device_set) > 1


def spans_processes(tree: Any) -> bool:
    """Whether an array is spread over several processes."""
    sharded = filter(is_sharded, jax.tree.leaves(tree))
    return any(not array.is_fully_addressable for array in sharded)


def mesh_of(arrays: list) -> Mesh | None:
    """The devices of the first array that is on several."""
    for array in filter(is_sharded, arrays):
        if isinstance(array.sharding, NamedSharding):
            mesh: Any = array.sharding.mesh
            return mesh
        devices = sorted(array.sharding.device_set, key=lambda device: device.id)
        return Mesh(np.array(devices), ("devices",))
    return None


def automatic(value: Any) -> Any:
    """The array on the same devices, whose axes JAX partitions by itself.

    The axes of ``jax.make_mesh`` are explicit from JAX 0.9 on: types of arrays then
    carry their sharding, and every product over rows would have to state that of its
    result.
    """
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return value
    if not isinstance(value.sharding, NamedSharding):
        return value
    mesh: Any = value.sharding.mesh
    spec = value.sharding.spec
    if mesh.are_all_axes_auto:
        return value
    mesh = Mesh(mesh.devices, mesh.axis_names)
    return jax.device_put(value, NamedSharding(mesh, spec))


def as_array(leaf: Any) -> jax.Array:
    """A leaf of the arguments of a program as a JAX array."""
    if isinstance(leaf, jax.Array):
        return automatic(leaf)
    if isinstance(leaf, ArrowRows):
        leaf = np.asarray(leaf)
    if isinstance(leaf, np.ndarray) and not leaf.dtype.isnative:
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))  # files from other machines
    if isinstance(leaf, np.ndarray | np.generic):
        return jax.device_put(leaf)  # jnp.asarray would compile a program for it
    return jnp.asarray(leaf)


def signature(leaf: jax.Array) -> tuple:
    """The properties of an argument that determine a program."""
    sharding = leaf.sharding
    placed = sharding if len(sharding.device_set) > 1 else None
    return jax.typeof(leaf), placed


def device_ids(arrays: list) -> list[int]:
    """Ids of the devices of a mesh, in their order; none if there is no mesh."""
    mesh = mesh_of(arrays)
    return [] if mesh is None else [device.id for device in mesh.devices.flat]


def placed(flat: list) -> dict[str, Any]:
    """Shardings of a program on several devices, for its arguments and results.

    Arrays that are spread stay so; everything else is replicated, so that results can
    be arguments of the next call, and can be read by every process.
    """
    mesh = mesh_of(flat)
    if mesh is None:
        return {}
    everywhere = NamedSharding(mesh, PartitionSpec())
    arguments = [a.sharding if is_sharded(a) else everywhere for a in flat]
    return {"in_shardings": (everywhere, arguments), "out_shardings": everywhere}


def local(tree: Any) -> Any:
    """Arrays that all devices hold, as ordinary ones of this process."""

    def one(leaf):
        if not is_sharded(leaf):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            # The bits of one device: no program that all processes would have to run.
            bits = jax.random.key_data(leaf.addressable_data(0))
            bits = jax.device_put(np.asarray(bits))
            return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaf))
        return jax.device_put(np.asarray(leaf))

    return jax.tree.map(one, tree)


def over_same_devices(rows: Any, like: Any) -> Any:
    """Rows of a traced array, spread like those of ``like`` if they divide evenly."""
    if len(rows) % _parts_of(like):
        return rows
    return jax.lax.with_sharding_constraint(rows, like.sharding)


def _parts_of(array: Any) -> int:
    """Number of parts that the rows of an array are in."""
    if not array.ndim:
        return 1
    return array.shape[0] // array.sharding.shard_shape(array.shape)[0]


def free_axes(arrays: list, number: int) -> tuple[Mesh | None, tuple[str, ...]]:
    """Axes of the mesh over which no array is spread, for ``number`` chains.

    Returns:
        The mesh, and as many of its free axes as divide the number.
    """
    mesh = mesh_of(arrays)
    if mesh is None:
        return None, ()
    taken = set()
    for array in filter(is_sharded, arrays):
        for names in getattr(array.sharding, "spec", mesh.axis_names):
            taken |= {names} if isinstance(names, str) else set(names or ())
    found: tuple[str, ...] = ()
    for name, size in mesh.shape.items():
        if name not in taken and size > 1 and number % size == 0:
            found, number = (*found, name), number // size
    return mesh, found


# ------------------------------------------------------------------- blocks of the rows


@contextmanager
def rows_spread_like(arrays: list) -> Iterator[None]:
    """In this context, traced rows have the same parts as these arrays."""
    parts = max((_parts_of(a) for a in arrays if is_sharded(a)), default=1)
    token = _num_parts.set(parts)
    try:
        yield
    finally:
        _num_parts.reset(token)


def in_blocks(function: Callable, tree: Any, size: int, axis: int) -> Any:
    """``function(tree)``, on at most ``size`` rows of every device at a time.

    A loop over blocks of consecutive rows would have all devices wait for the one that
    holds them, and copy them first. Here block c has the c-th piece of each part, so
    that every device works on its own rows.

    Args:
        function: Function of arrays [n, ...] to arrays with the rows on ``axis``. It
            is called with several n.
        tree: Arrays [N, ...].
        size: Rows of a block.
        axis: 0 or -1.
    """
    total = len(jax.tree.leaves(tree)[0])
    parts = _num_parts.get()
    parts = parts if total % parts == 0 else 1
    rows = total // parts
    if rows <= size:
        return function(tree)
    # Blocks of equal size: the last one is padded, and cut afterwards.
    blocks = -(-rows // size)
    size = -(-rows // blocks)

    def fold(leaf):  # [N, ...] -> [blocks, parts · size, ...]
        rest = leaf.shape[1:]
        folded = leaf.reshape(parts, rows, *rest)
        padding = (parts, blocks * size - rows, *rest)
        folded = jnp.concatenate(
            [folded, jnp.broadcast_to(folded[:, -1:], padding)], axis=1
        )
        folded = jnp.swapaxes(folded.reshape(parts, blocks, size, *rest), 0, 1)
        return folded.reshape(blocks, parts * size, *rest)

    def unfold(values):  # [blocks, .., parts · size, ..] -> [.., N, ..]
        place = axis % (values.ndim - 1)
        before, rest = values.shape[1 : place + 1], values.shape[place + 2 :]
        values = values.reshape(blocks, *before, parts, size, *rest)
        values = jnp.moveaxis(values, 0, place + 1)
        values = values.reshape(*before, parts, blocks * size, *rest)
        values = jax.lax.slice_in_dim(values, 0, rows, axis=place + 1)
        return values.reshape(*before, total, *rest)

    folded = jax.tree.map(fold, tree)
    return jax.tree.map(unfold, jax.lax.map(function, folded))


# --------------------------------------------------------------------- values, in place


def first_true(mask: Any) -> tuple[int, ...] | None:
    """Index of the first True, or None; the mask stays on its devices."""
    if not is_sharded(mask):
        mask = np.atleast_1d(np.asarray(mask))
        return tuple(map(int, np.argwhere(mask)[0])) if mask.any() else None
    with jax.ensure_compile_time_eval():
        rows = mask.reshape(len(mask), -1).any(axis=1)
        if not bool(rows.any()):
            return None
        row = int(jnp.argmax(rows))
        entry = int(jnp.argmax(mask[row].ravel()))
    return row, *(int(i) for i in np.unravel_index(entry, mask.shape[1:]))
