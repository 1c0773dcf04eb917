"""A fit, predictions and draws, on one device and on several: a program of its own.

The number of devices has to be known before JAX starts. Writes numbers by name: those
of one device, and with a prefix those of several; refusals as text; and what moves
between devices.

    python -m tests.sharded FILE --devices 8 [--slow]
    python -m tests.sharded FILE --devices 2 --process I --port P
"""

import argparse
import importlib
import json
import sys
from functools import cache
from pathlib import Path

import jax

if __name__ == "__main__":  # before anything computes: some packages do when imported
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--process", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_num_cpu_devices", options.devices)
    if options.process is not None:
        # A machine may be busy for minutes.
        patience = {"heartbeat_timeout_seconds": 600, "initialization_timeout": 600}
        address = f"127.0.0.1:{options.port}"
        jax.distributed.initialize(address, 2, options.process, **patience)

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from jax.experimental.multihost_utils import sync_global_devices

import svgp_ppl as gp
from svgp_ppl.fitting.minibatches import Minibatches, Whole
from svgp_ppl.fitting.steps import Steps
from svgp_ppl.linalg import distances

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "speed"))
messages = importlib.import_module("messages").messages

N, M, CHUNK, BATCH = 96, 6, 4, 24
FIT = {"num_steps": 6, "progress": False}
HMC = gp.mcmc.HMC((1e-3, 1e-3), (3, 3), num_rounds=1)
DRAWS = {"num_chains": 4, "num_warmup": 2, "num_samples": 3, "sampler": HMC}
OPTIMIZER, LOSS = optax.adam(1e-2), gp.MarginalELBO()


def data(num_rows):
    rng = np.random.default_rng(0)
    x = rng.uniform(0.0, 5.0, (num_rows, 2))
    return x, rng.poisson(np.exp(np.sin(x[:, 0])))


def model(x, y=None, num_data=None):
    variance = numpyro.sample("variance", dist.Gamma(2.0, 2.0))
    lengthscale = numpyro.sample("lengthscale", dist.Gamma(2.0, 2.0))
    z = numpyro.param("z", jnp.asarray(data(N)[0][:M]))
    f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
    with numpyro.plate("data", num_data or len(x), subsample_size=len(x)):
        gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y, chunk_size=CHUNK)


@cache
def guide():
    return gp.AutoGaussian(model)


def numbers(x, y, slow):
    """Losses, parameters, predictions and draws."""
    fitted = gp.fit(random.key(0), model, guide(), x, y, **FIT)
    found = {"losses": fitted.losses, **fitted.params}
    at = gp.predict(model, fitted, x)["y"]
    found |= {"mean": at.mean, "density": at.log_prob(y)}
    if slow:
        options = {"num_data": N, "batch_size": BATCH, **FIT}
        found["batches"] = gp.fit(random.key(0), model, guide(), x, y, **options).losses
        draws = gp.sample(
            random.key(1), model, x, y, init=fitted, progress=False, **DRAWS
        )
        draws = gp.diagnostics.group(draws, "posterior")
        found |= {f"draws of {n}": draws[n] for n in ("variance", "f")}
    return {name: np.asarray(values) for name, values in found.items()}


def moved(x, y, batch_size=None):
    """What moves between devices in a block of steps."""
    rows = Whole((x, y), {})
    if batch_size is not None:
        rows = Minibatches((x, y), {"num_data": len(x)}, batch_size, 0)
    steps = Steps(model, guide(), OPTIMIZER, LOSS, rows, None, 0)
    block = steps.block(steps.start(random.key(0), None, 0), 6, rows.block(0, 6, 6))
    return messages(block.found.executable.as_text())


def refused(x, y):
    try:
        gp.fit(random.key(0), model, guide(), x, y, **FIT)
    except ValueError as error:
        return str(error)
    return "accepted"


def main(options):
    is_alone = options.process is None
    # Several blocks of distances on every device.
    distances._MOST_ALONE, distances._MOST_AT_ONCE = 0, 5 * M
    slow = options.slow or not is_alone
    devices = len(jax.devices())
    shape = (devices // 2, 2) if slow else (devices, 1)
    mesh = jax.make_mesh(shape, ("data", "chains"))
    x, y = data(N)
    if not is_alone:  # connects them, for which they have half a minute
        sync_global_devices("start")

    def spread(x, y):
        if is_alone:
            return gp.shard(mesh, x, y)
        mine = slice(options.process * len(x) // 2, (options.process + 1) * len(x) // 2)
        return gp.shard(mesh, x[mine], y[mine])

    many = numbers(*spread(x, y), slow)
    found = {f"many: {name}": values for name, values in many.items()}
    holed, impossible = x.copy(), y.copy()
    holed[70, 1], impossible[50] = np.nan, -1
    facts = {
        "NaN": refused(*spread(holed, y)),
        "support": refused(*spread(x, impossible)),
    }
    if is_alone:
        facts["moved"] = moved(*spread(x, y))
        facts["of twice as many"] = moved(*spread(*data(2 * N)))
    if slow:
        facts["batches"] = moved(*spread(x, y), BATCH)
        facts["batches of twice as many"] = moved(*spread(*data(2 * N)), BATCH)
    if is_alone or options.process == 0:
        found |= numbers(x, y, slow)
    np.savez(options.file, facts=np.array(json.dumps(facts)), **found)


if __name__ == "__main__":
    main(options)
