"""Moments at many new inputs: points a second, processor time, memory.

    python benchmarks/speed/predictions.py fit [--m 500] [--n 100000] [--x64]
    python benchmarks/speed/predictions.py draws [--m 100] [--n 10000] [--draws 1000]
    python benchmarks/speed/predictions.py file [--n 10000000]

``fit`` predicts from a Gaussian q(v), ``draws`` from draws of v and hyperparameters,
``file`` from a fit at inputs of a memory map, by ``gp.predict_batches`` into another.
A matrix product of M × M with M × 5000 alternates with the predictions: on a machine
that has other work to do, ``products a point`` says more than the seconds.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import svgp_ppl as gp

NUM_COLUMNS = 8


def regression(z):
    """A Gaussian likelihood of one process."""

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
        lengthscale = numpyro.sample("lengthscale", dist.LogNormal(0.0, 1.0))
        kernel = gp.kernels.RBF(variance, lengthscale)
        f = gp.sparse_gp("f", kernel, numpyro.param("z", z))
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Gaussian(0.1), f(x), obs=y)

    return model


def posterior_of(kind: str, model, z, num_draws: int, rng, dtype):
    """A fit or draws, made up: what they are costs nothing less."""
    m = len(z)
    if kind == "draws":
        return {
            "variance": rng.gamma(10.0, 0.1, num_draws).astype(dtype),
            "lengthscale": rng.gamma(40.0, 0.05, num_draws).astype(dtype),
            "f": rng.normal(size=(num_draws, m)).astype(dtype),
        }
    tril = np.tril(0.01 * rng.normal(size=(m, m)), -1) + 0.3 * np.eye(m)
    params = {
        "auto_f_loc": rng.normal(size=m),
        "auto_f_scale_tril": tril,
        "variance_auto_loc": 1.0,
        "lengthscale_auto_loc": 2.0,
        "z": z,
    }
    return gp.AutoGaussian(model), {n: jnp.asarray(v) for n, v in params.items()}


def used() -> tuple[float, float]:
    """Seconds of processor, and the peak of resident memory in GiB."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def product_seconds(m: int, dtype) -> float:
    """The best of five products of M × M with M × 5000, for each column."""
    product = jax.jit(jnp.matmul)
    a, b = jnp.ones((m, m), dtype), jnp.ones((m, 5000), dtype)
    product(a, b).block_until_ready()
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        product(a, b).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return min(seconds) / 5000


def from_file(model, posterior, n: int, batch_size: int, rng, dtype) -> None:
    """From one memory map into another."""
    with tempfile.TemporaryDirectory() as folder:
        shape = (n, NUM_COLUMNS)
        path = Path(folder) / "x.npy"
        x = np.lib.format.open_memmap(path, "w+", dtype, shape)
        for start in range(0, n, batch_size):
            part = x[start : start + batch_size]
            part[:] = rng.normal(size=part.shape)
        x.flush()
        del x
        mapped = np.load(path, mmap_mode="r")
        mean = np.lib.format.open_memmap(Path(folder) / "mean.npy", "w+", dtype, (n,))
        (processor, before), began = used(), time.perf_counter()
        options = {"batch_size": batch_size}
        for rows, at in gp.predict_batches(model, posterior, mapped, **options):
            mean[rows] = at["y"].mean
        seconds = time.perf_counter() - began
        after, peak = used()
        print(
            f"{n / seconds:.0f} points/s, {1e6 * (after - processor) / n:.2f} µs of "
            f"processor a point, peak memory {before:.2f} -> {peak:.2f} GiB"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["fit", "draws", "file"])
    parser.add_argument("--m", type=int)
    parser.add_argument("--n", type=int)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--x64", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", options.x64)
    dtype = np.float64 if options.x64 else np.float32
    m = options.m or {"fit": 500, "draws": 100, "file": 100}[options.kind]
    n = options.n or {"fit": 100_000, "draws": 10_000, "file": 10_000_000}[options.kind]
    rng = np.random.default_rng(0)
    z = rng.normal(size=(m, NUM_COLUMNS)).astype(dtype)
    model = regression(z)
    posterior = posterior_of(options.kind, model, z, options.draws, rng, dtype)
    if options.kind == "file":
        from_file(model, posterior, n, options.batch, rng, dtype)
        return
    x = jnp.asarray(rng.normal(size=(n, NUM_COLUMNS)), dtype)
    params = {"z": z} if options.kind == "draws" else None

    def moments():
        at = gp.predict(model, posterior, x, params=params)["y"]
        return jax.block_until_ready((at.mean, at.variance))

    _, before = used()
    began = time.perf_counter()
    moments()
    print(f"first call {time.perf_counter() - began:.1f} s", flush=True)
    times, processors, products = [], [], []
    for _ in range(options.rounds):
        product = product_seconds(m, dtype)
        (start, _), began = used(), time.perf_counter()
        moments()
        times.append(time.perf_counter() - began)
        processors.append(used()[0] - start)
        products.append(times[-1] / n / product)
    print(
        f"{np.median(times):.2f} s (best {min(times):.2f}), at best "
        f"{n / min(times):.0f} points/s, {1e6 * np.median(processors) / n:.2f} µs of "
        "processor a point, "
        f"{np.median(products):.1f} products a point, "
        f"peak memory {before:.2f} -> {used()[1]:.2f} GiB"
    )


if __name__ == "__main__":
    main()
