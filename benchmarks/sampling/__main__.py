"""What a user waits for draws: samplers on the same model, from the same fit.

    python -m benchmarks.sampling coal [--samplers "NUTS fitted" numpyro …] [--x64]
    python -m benchmarks.sampling pages

Four chains from one Gaussian fit, each sampler in turn in one process, and all of them
once more with each further key (``--repeats``): a row has the means. ``fitted``,
``collapsed`` and ``whitened`` say in which coordinates the sampler moves; ``refitted``
are those of a fit at the mean of a first run, as long as the second
(``gp.mcmc.refit``), ``dense`` has a dense metric. ``numpyro`` is
``numpyro.infer.MCMC(NUTS(model))`` on the same model with z frozen, from draws of the
same fit, ``numpyro fitted`` the same on ``gp.mcmc.reparam_sites(model, fit)``; ``hsgp``
NumPyro's on its Hilbert space approximation and ``unwhitened`` NUTS on u = L v (coal
only); ``importance`` is ``gp.importance_sample``, whose effective sample size is that
of its weights. ``NUTS without a fit`` and ``from Pathfinder`` do not get it.

A run writes a file of results, whole; ``--beside`` only adds draws of
``gpflow_sgpmc.py`` to it; ``pages`` puts the tables into the docs.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import random

import svgp_ppl as gp
from benchmarks.papers import provenance
from benchmarks.papers.runs import plain
from benchmarks.sampling import elsewhere, tables
from benchmarks.sampling.problems import PROBLEMS, Problem
from benchmarks.sampling.runs import SAMPLERS, averaged, row_of, run


def fitted(problem: Problem, num_steps: int | None):
    """The Gaussian fit that every sampler starts from."""
    return gp.fit(
        random.key(0),
        problem.model,
        gp.AutoGaussian(problem.model),
        problem.x,
        problem.y,
        optimizer=optax.adam(0.02),
        num_steps=num_steps or problem.num_steps,
    )


def compare(name: str, options: argparse.Namespace) -> None:
    """Run every sampler; the file grows with each."""
    problem = PROBLEMS[name]()
    x, y = jnp.asarray(problem.x, jnp.result_type(float)), jnp.asarray(problem.y)
    if jnp.issubdtype(y.dtype, jnp.floating):
        y = y.astype(x.dtype)
    problem = problem._replace(x=x, y=y)
    fit = fitted(problem, options.steps)
    if options.export:
        elsewhere.export(options.export, name, problem, fit)
        return
    names = ("chains", "warmup", "draws", "seed", "repeats")
    settings = {n: getattr(options, n) for n in names}
    settings["numpyro chains"] = options.numpyro_chains
    rows: dict = {}
    found = {
        "problem": name,
        "precision": "float64" if options.x64 else "float32",
        "data": list(np.shape(x)),
        "settings": settings | {"steps of the fit": len(fit.losses)},
        "rows": rows,
        "versions": provenance.versions(),
        "machine": provenance.machine(),
    }
    path = path_of(name, options)
    runs: dict[str, list] = {sampler: [] for sampler in options.samplers}
    for repeat in range(options.repeats):
        key = random.key(options.seed + repeat)
        for sampler, each in runs.items():
            each.append(row_of(*run(sampler, key, problem, fit, settings)))
            rows[sampler] = plain(averaged(each), 4)
            print(tables.line(sampler, rows[sampler]), flush=True)
            path.write_text(json.dumps(found, indent=1) + "\n")


def path_of(name: str, options: argparse.Namespace) -> Path:
    """The file of results of a problem."""
    options.out.mkdir(parents=True, exist_ok=True)
    suffix = f"-{options.label}" if options.label else ""
    return options.out / f"{name}{suffix}.json"


def add_beside(name: str, options: argparse.Namespace) -> None:
    """Rows for the draws of another library, in a file of results."""
    path = path_of(name, options)
    found = json.loads(path.read_text())
    for file in options.beside:
        row = row_of(*elsewhere.load(file))
        found["rows"][f"SGPMC {Path(file).stem}"] = plain(row, 4)
    path.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    add = parser.add_argument
    add("name", choices=[*PROBLEMS, "pages"])
    add("--samplers", nargs="+", default=["NUTS fitted", "numpyro"], choices=SAMPLERS)
    add("--chains", type=int, default=4)
    add("--warmup", type=int, default=300)
    add("--draws", type=int, default=400)
    add("--seed", type=int, default=1)
    add("--repeats", type=int, default=1, help="keys, one after the other")
    add("--steps", type=int, help="of the fit")
    add(
        "--numpyro-chains",
        default="vectorized",
        choices=["vectorized", "sequential"],
        help="one after the other where a branch (of a quadrature) would be lost",
    )
    add("--x64", action="store_true")
    add("--out", type=Path, default=tables.RESULTS)
    add("--label", default="", help="of the file, beside the name of the problem")
    add("--export", help="write the problem for gpflow_sgpmc.py, only")
    add("--beside", nargs="+", default=[], help="add draws of it to a file")
    options = parser.parse_args()
    if options.name == "pages":
        tables.write()
        return
    if options.beside:
        add_beside(options.name, options)
        return
    jax.config.update("jax_enable_x64", options.x64)
    compare(options.name, options)


if __name__ == "__main__":
    main()
