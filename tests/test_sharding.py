"""Data on several devices, and in several processes: the numbers of one device."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import svgp_ppl as gp
from svgp_ppl.rows.sharding import _num_parts, first_true, in_blocks
from tests.conftest import XLA_FLAGS
from tests.sharded import BATCH, N

ROOT = Path(__file__).parent.parent
# Of a program that waits for messages that never come.
LONGEST = 600


def started(file, *options):
    """The program ``tests/sharded.py``."""
    environment = {**os.environ, "XLA_FLAGS": XLA_FLAGS, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.sharded", str(file)]
    return subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def results(file, *processes):
    try:
        for process in processes:
            said, _ = process.communicate(timeout=LONGEST)
            assert process.returncode == 0, said
    finally:
        for process in processes:
            process.kill()
    with np.load(file) as found:
        return dict(found) | {"facts": json.loads(str(found["facts"]))}


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """On eight devices."""
    file = tmp_path_factory.mktemp("eight") / "numbers.npz"
    return results(file, started(file, "--devices", "8"))


@pytest.fixture(scope="module")
def eight_with_chains(tmp_path_factory):
    """Rows over four devices, chains over two; minibatches too."""
    file = tmp_path_factory.mktemp("chains") / "numbers.npz"
    return results(file, started(file, "--devices", "8", "--slow"))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Of two devices each, that send their messages over the loopback."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    options = ("--devices", "2", "--port", port, "--process")
    processes = [started(folder / f"{i}.npz", *options, str(i)) for i in range(2)]
    return results(folder / "0.npz", *processes)


def assert_equal_to_rounding(found):
    names = [name for name in found if name.startswith("many: ")]
    assert len(names) >= 8
    for name in names:
        one = found[name.removeprefix("many: ")]
        np.testing.assert_allclose(found[name], one, rtol=1e-9, atol=1e-12)


def assert_refused_in_words(facts):
    assert "index (70, 1)" in facts["NaN"]
    assert "among them is -1 (row 50)" in facts["support"]


@pytest.mark.thorough
def test_eight_devices_have_the_numbers_of_one(eight):
    assert_equal_to_rounding(eight)


def test_values_are_checked_where_they_are(eight):
    assert_refused_in_words(eight["facts"])


def num_bytes(moved):
    return sum(message[2] for message in moved)


def largest(moved, *kinds):
    """The longest axis of what is sent."""
    sent = [shape for kind, shapes, *_ in moved for shape in shapes if kind in kinds]
    return max((size for shape in sent for size in shape), default=0)


def test_what_moves_at_a_step_does_not_depend_on_the_rows(eight):
    one, twice = eight["facts"]["moved"], eight["facts"]["of twice as many"]
    assert num_bytes(one) == num_bytes(twice) > 0
    assert {kind for kind, *_ in one} == {"all-reduce"}
    # The rows that a device has are more than M.
    assert largest(twice, "all-reduce") < 2 * N // 8


@pytest.mark.slow
def test_chains_and_minibatches_have_the_numbers_of_one_device(eight_with_chains):
    assert "many: draws of f" in eight_with_chains
    assert_equal_to_rounding(eight_with_chains)


@pytest.mark.slow
def test_of_a_minibatch_its_rows_move(eight_with_chains):
    facts = eight_with_chains["facts"]
    one, twice = facts["batches"], facts["batches of twice as many"]
    assert num_bytes(one) == num_bytes(twice) > 0
    assert largest(one, *{kind for kind, *_ in one}) <= BATCH < N


@pytest.mark.slow
def test_two_processes_have_the_numbers_of_one(two_processes):
    assert_equal_to_rounding(two_processes)
    assert_refused_in_words(two_processes["facts"])


# ------------------------------------------------------------------------ on one device


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("axis", [0, -1])
def test_blocks_of_rows_are_all_rows(parts, axis):
    rows = {"a": np.arange(20.0), "b": np.arange(60.0).reshape(20, 3)}

    def function(rows):
        values = rows["a"][:, None] + rows["b"]  # [n, 3]
        return values if axis == 0 else (values.T, rows["a"])

    token = _num_parts.set(parts)
    try:
        found = jax.jit(lambda rows: in_blocks(function, rows, 3, axis))(rows)
    finally:
        _num_parts.reset(token)
    jax.tree.map(np.testing.assert_array_equal, found, function(rows))


def test_rows_that_do_not_divide_are_one_part():
    token = _num_parts.set(8)
    try:
        found = jax.jit(lambda x: in_blocks(jnp.sin, x, 4, 0))(np.arange(45.0))
    finally:
        _num_parts.reset(token)
    np.testing.assert_array_equal(found, jnp.sin(np.arange(45.0)))


def test_the_first_true_of_a_mask():
    mask = np.zeros((4, 3), bool)
    assert first_true(mask) is None
    mask[2, 1] = mask[3, 0] = True
    assert first_true(mask) == (2, 1)


class TestShard:
    def mesh(self, *shape):
        return jax.make_mesh(shape or (1,), ("data", "chains")[: len(shape) or 1])

    def test_an_array_or_several(self):
        x, y = np.ones((6, 2)), np.arange(6.0)
        spread = gp.shard(self.mesh(), x)
        assert spread.sharding.spec == jax.sharding.PartitionSpec("data")
        np.testing.assert_array_equal(spread, x)
        both = gp.shard(self.mesh(1, 1), x, y, axis="chains")
        assert [a.sharding.spec[0] for a in both] == ["chains", "chains"]

    def test_an_axis_that_is_not_there(self):
        with pytest.raises(ValueError, match=r"axes of the mesh, \('data',\)"):
            gp.shard(self.mesh(), np.ones(3), axis="rows")

    def test_unequal_rows(self):
        with pytest.raises(ValueError, match="same number of rows"):
            gp.shard(self.mesh(), np.ones(3), np.ones(4))
