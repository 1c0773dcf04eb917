"""What a user waits for at first calls, and again: seconds and programs compiled.

    python benchmarks/speed/first_calls.py [--repeats 3]

The README's model (coal, 12 inducing inputs), each time in a new process without a
cache of compilations. Beside `sample`: NumPyro's own NUTS on the same model, from the
same start. Prints medians over the processes.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


def calls(results: Any) -> None:
    """One process: every call once, those of interest a second time."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    from jax import monitoring, random
    from numpyro.infer import MCMC, NUTS

    import svgp_ppl as gp

    numpyro.enable_x64()
    compiled = 0

    def listen(event: str, _: float, **__: Any) -> None:
        nonlocal compiled
        compiled += event.endswith("backend_compile_duration")

    monitoring.register_event_duration_secs_listener(listen)
    x, y, _ = gp.datasets.coal()
    z_start = gp.inducing.grid(x, 12)

    def model(x, y=None):
        variance = numpyro.sample("variance", dist.Gamma(1.0, 0.3))
        lengthscale = numpyro.sample("lengthscale", dist.Gamma(1.1, 0.1))
        z = numpyro.param("z", z_start)
        f = gp.sparse_gp("f", gp.kernels.RBF(variance, lengthscale), z)
        with numpyro.plate("data", len(x)):
            gp.observe("y", gp.likelihoods.Poisson(), f(x), obs=y)

    found: dict[str, tuple[float, int]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        nonlocal compiled
        compiled, start = 0, time.perf_counter()
        result = call()
        found[name] = time.perf_counter() - start, compiled
        return result

    guide = gp.AutoGaussian(model)
    quiet = {"progress": False}
    fit = timed("fit", lambda: gp.fit(random.key(0), model, guide, x, y, **quiet))
    timed("fit again", lambda: gp.fit(random.key(0), model, guide, x, y, **quiet))
    # One step of warm-up and one draw: the seconds before the first draw.
    short = {"init": fit, "num_warmup": 1, "num_samples": 1, **quiet}
    timed("sample", lambda: gp.sample(random.key(1), model, x, y, **short))
    timed("sample again", lambda: gp.sample(random.key(1), model, x, y, **short))
    prediction = timed("predict", lambda: gp.predict(model, fit, x)["y"])
    timed("mean", lambda: prediction.mean)
    timed("log_prob", lambda: prediction.log_prob(y))
    timed("log_prob again", lambda: gp.predict(model, fit, x)["y"].log_prob(y))

    def peer() -> None:
        substituted = numpyro.handlers.substitute(model, {"z": fit.params["z"]})
        mcmc = MCMC(
            NUTS(substituted), num_warmup=1, num_samples=1, num_chains=4,
            chain_method="vectorized", progress_bar=False,
        )  # fmt: skip
        mcmc.run(random.key(1), x, y)
        jax.block_until_ready(mcmc.get_samples())

    timed("NumPyro's NUTS", peer)
    results.put(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    context, rounds = multiprocessing.get_context("spawn"), []
    for _ in range(parser.parse_args().repeats):
        results = context.Queue()
        process = context.Process(target=calls, args=(results,))
        process.start()
        rounds.append(json.loads(results.get()))
        process.join()
    print(f"{'call':18s}{'seconds':>9s}{'programs':>10s}   ({sys.version.split()[0]})")
    for name in rounds[0]:
        seconds = statistics.median(each[name][0] for each in rounds)
        print(f"{name:18s}{seconds:9.2f}{rounds[0][name][1]:10d}")


if __name__ == "__main__":
    main()
