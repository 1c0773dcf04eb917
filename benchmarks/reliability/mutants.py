"""Mutants of the code: what share of them do the default tests kill?

    pip install cosmic-ray
    python benchmarks/reliability/mutants.py [--each 12] [--seed 0] [--only latent elbo]

Cosmic Ray lists every small change of a module (another operator, number, comparison
or truth value; a loop not entered, a decorator removed). A sample of them, of equal
size for each part of the package, is applied one at a time to a copy of the
repository, and the tests of that part are run until the first failure. Annotations
and Cosmic Ray's variants of ``|`` are left out: they are equivalent. Prints each
survivor as a diff, and the share of mutants that were killed.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT = 900.0

# A part: its modules, and the tests that are to kill its mutants, the quick ones first.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "latent": (("latent.py",), ("identities", "layers", "errors")),
    "marginals": (
        ("marginals.py", "residual.py"),
        ("identities", "residual", "inducing"),
    ),
    "variational": (
        ("variational/*.py",),
        ("identities", "projection", "sites", "own_family", "guides", "sample_paths"),
    ),
    "linalg": (("linalg/*.py",), ("linalg", "lapack", "projection")),
    "expectations": (
        ("expectations/*.py",),
        ("expectations", "wide_marginals", "predictive", "likelihoods"),
    ),
    "elbo": (("elbo.py", "expected.py"), ("elbo", "masks", "missing", "identities")),
    "predict": (
        ("prediction/*.py",),
        ("results", "averages", "checking", "predict", "nothing_silent"),
    ),
    "target": (("mcmc/target.py", "mcmc/coordinates.py"), ("coordinates", "sample")),
    "gibbs": (("mcmc/gibbs.py",), ("samplers", "sample")),
    "hmc": (("mcmc/hmc.py",), ("samplers", "tuning", "sample")),
    "tuning": (("mcmc/tuning.py",), ("tuning", "samplers")),
    "mixing": (("diagnostics/mixing.py",), ("diagnostics", "report")),
    "likelihoods": (
        ("likelihoods/*.py",),
        (
            "likelihoods",
            "more_likelihoods",
            "noisy_labels",
            "regression_network",
            "warped",
        ),
    ),
    "kernels": (("kernels/*.py",), ("kernels", "spectral", "linalg")),
    "natural_gradient": (
        ("fitting/natural_gradient.py",),
        ("natural_gradient", "schedules"),
    ),
    "minibatches": (("fitting/minibatches.py",), ("minibatches", "errors")),
    "checkpoints": (("checkpoints.py",), ("checkpoints", "sample_checkpoints")),
}


def mutations(modules: tuple[str, ...]) -> Iterator[Any]:
    """All changes that Cosmic Ray knows for these modules, annotations aside."""
    import cosmic_ray.plugins
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.work_item import MutationSpec

    paths = sorted(p for pattern in modules for p in (ROOT / "svgp_ppl").glob(pattern))
    for path in paths:
        tree = get_ast_from_path(path)
        for name in cosmic_ray.plugins.operator_names():
            operator = cosmic_ray.plugins.get_operator(name)
            if operator.arguments() or "BitOr" in name:
                continue
            places = (
                (node, start, end)
                for node in ast_nodes(tree)
                for start, end in operator().mutation_positions(node)
            )
            for occurrence, (node, start, end) in enumerate(places):
                if not is_annotation(node):
                    relative = path.relative_to(ROOT)
                    yield MutationSpec(str(relative), name, occurrence, start, end)


def is_annotation(node: Any) -> bool:
    """Whether the node of Parso's tree stands in an annotation."""
    while node is not None:
        if node.type in ("tfpdef", "annassign") or (
            node.parent is not None
            and node.parent.type == "funcdef"
            and node is node.parent.annotation
        ):
            return True
        node = node.parent
    return False


def run_part(name: str, size: int, seed: int, tree: Path) -> tuple[int, int]:
    """Mutate one part.

    Returns:
        How many mutants were killed, and how many there were.
    """
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_item import TestOutcome

    modules, tests = PARTS[name]
    pool = list(mutations(modules))
    sample = random.Random(seed).sample(pool, min(size, len(pool)))
    files = [f"tests/test_{test}.py" for test in tests]
    files = [file for file in files if (tree / file).exists()]
    command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider {' '.join(files)}"
    killed = 0
    for mutation in sample:
        result = mutate_and_test([mutation], command, TIMEOUT)
        survived = result.test_outcome == TestOutcome.SURVIVED
        killed += not survived
        print("survived" if survived else "killed", mutation.module_path, flush=True)
        if survived:
            print(result.diff, flush=True)
    print(
        f"{name}: {killed} of {len(sample)} killed, of {len(pool)} mutants", flush=True
    )
    return killed, len(sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--each", type=int, default=12, help="mutants of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    import os

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "clone", "-q", ROOT, tree], check=True)
        os.chdir(tree)  # Cosmic Ray changes files below the current folder
        os.environ["PYTHONPATH"] = str(tree)
        counts = [run_part(n, options.each, options.seed, tree) for n in options.only]
    killed, total = map(sum, zip(*counts, strict=True))
    print(f"{killed} of {total} mutants killed: {killed / total:.0%}")


if __name__ == "__main__":
    main()
