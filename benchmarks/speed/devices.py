"""Bytes that devices send each other at a step of a fit, and the time of a step.

Steps of ``fit`` on all rows (RBF, Gaussian noise, AutoGaussian, z learnt, float64) with
rows over so many virtual devices of this machine, each number of devices in a process
of its own. Bytes are read from the compiled program: what a device has of sums when
they are done (an all-reduce in a ring sends about twice that). ``longest`` is the
longest axis of an array that is sent: it is to be M, never N.

    python benchmarks/speed/devices.py [--devices 1 2 8] [--n 20000 40000] [--m 50 100]

Virtual devices share the cores: for times take no more devices than there are cores.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path


def measure(options):
    """A line for every N and M, on one number of devices."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", options.devices[0])
    from messages import messages

    for n in options.n:
        for m in options.m:
            run, text = step_of(n, m, options)
            sent = messages(text)
            seconds = []
            for _ in range(options.rounds):
                began = time.perf_counter()
                jax.block_until_ready(run())
                seconds.append((time.perf_counter() - began) / options.steps)
            longest = max((s for a in sent for x in a.shapes for s in x), default=0)
            kinds = ", ".join(sorted({message.kind for message in sent})) or "none"
            total = sum(message.num_bytes for message in sent)
            print(
                f"{options.devices[0]:8d}{n:10d}{m:6d}{total:12d}{longest:9d}"
                f"{1e3 * sorted(seconds)[len(seconds) // 2]:12.2f}  {kinds}",
                flush=True,
            )


def step_of(n, m, options):
    """A block of steps, and the text of its program."""
    import jax
    import numpy as np
    import numpyro
    import optax
    from numpyro.distributions import constraints

    import svgp_ppl as gp
    from svgp_ppl.fitting.minibatches import Whole
    from svgp_ppl.fitting.steps import Steps

    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, options.d))
    y = np.sin(x.sum(axis=1)) + 0.1 * rng.normal(size=n)
    z_start = x[:m]

    def positive(name, start):
        return numpyro.param(name, start, constraint=constraints.softplus_positive)

    def model(x, y):
        kernel = gp.kernels.RBF(positive("variance", 1.0), positive("lengthscale", 2.0))
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z_start))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(positive("noise", 0.3)), f(x), y)

    mesh = jax.make_mesh((options.devices[0],), ("data",))
    guide, bound = gp.AutoGaussian(model), gp.MarginalELBO()
    rows = Whole(gp.shard(mesh, x, y), {})
    steps = Steps(model, guide, optax.adam(1e-2), bound, rows, None, 0)
    start = steps.start(jax.random.key(0), None, 0)
    arrays = rows.block(0, options.steps, options.steps)
    program = steps.block(start, options.steps, arrays)
    given = (start.state, start.transforms, np.int32(options.steps), arrays)
    return program.bound(*given), program.found.executable.as_text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--n", type=int, nargs="+", default=[20_000, 40_000])
    parser.add_argument("--m", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--d", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", action="store_true", help="used by the program")
    options = parser.parse_args()
    if options.child:
        measure(options)
        return
    print(
        f"{'devices':>8s}{'N':>10s}{'M':>6s}{'bytes':>12s}{'longest':>9s}"
        f"{'ms a step':>12s}  kinds",
        flush=True,
    )
    given = sys.argv[1:]
    for number in options.devices:
        command = [sys.executable, str(Path(__file__)), *given]
        subprocess.run([*command, "--devices", str(number), "--child"], check=True)


if __name__ == "__main__":
    main()
